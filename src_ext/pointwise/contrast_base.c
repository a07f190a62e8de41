/* Any instruction set: the compiler lowers 32-byte vectors to what the target has. */
#define FC_ISA base
#define FC_BYTES 32
#define FC_ROWS 4
#ifdef __aarch64__
#define FC_STRIPS 3
#else
#define FC_STRIPS 1
#endif
#include "contrast_impl.h"

const fc_family *fc_find(const char *name)
{
#ifdef FASTDR_X86
    if (!strcmp(name, fc_avx2.name))
        return &fc_avx2;
    if (!strcmp(name, fc_avx512.name))
        return &fc_avx512;
#endif
    return &fc_base;
}
