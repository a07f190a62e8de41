/* Any instruction set: the compiler lowers 32-byte vectors to what the target has. */
#define FD_ISA base
#define FD_BYTES 32
#define FD_ROWS 4
#ifdef __aarch64__
#define FD_STRIPS 3
#define FD_PAIR_STRIPS 2
#else
#define FD_STRIPS 1
#define FD_PAIR_STRIPS 1
#endif
#define FD_GROUP 2
#define FD_CHAINS 2
#include "tile_impl.h"

int fd_drops_far_calls;

/* Tables this machine can run, worst first; returns how many. */
int fd_tiles(const fd_tile *found[3])
{
    int count = 0;
    found[count++] = &fd_tile_base;
#ifdef FASTDR_X86
    __builtin_cpu_init();
    fd_drops_far_calls = __builtin_cpu_is("amd");
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2)
        found[count++] = &fd_tile_avx2;
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
#ifdef FASTDR_EMULATE
    avx512 = avx2;
#endif
    if (avx512)
        found[count++] = &fd_tile_avx512;
#endif
    return count;
}
