/* AVX-512: 32 registers of 64 bytes hold a tile of 3 vectors by 8 columns. */
#define FD_ISA avx512
#define FD_BYTES 64
#define FD_ROWS 8
#define FD_STRIPS 3
#define FD_PAIR_STRIPS 3
#define FD_GROUP 12
#define FD_CHAINS 4
#include "tile_impl.h"
