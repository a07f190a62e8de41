/* Any instruction set: the compiler vectorises for what the target has. */
#define FN_ISA base
#include "network_impl.h"

const fn_family *fn_find(const char *name)
{
#ifdef FASTDR_X86
    if (!strcmp(name, fn_avx2.name))
        return &fn_avx2;
    if (!strcmp(name, fn_avx512.name))
        return &fn_avx512;
#endif
    (void)name;
    return &fn_base;
}
