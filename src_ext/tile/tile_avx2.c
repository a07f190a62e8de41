/* AVX2 and FMA: 16 registers of 32 bytes hold a tile of 3 vectors by 4 columns. */
#define FD_ISA avx2
#define FD_BYTES 32
#define FD_ROWS 4
#define FD_STRIPS 3
#define FD_PAIR_STRIPS 2
#define FD_GROUP 6
#define FD_CHAINS 2
#include "tile_impl.h"
