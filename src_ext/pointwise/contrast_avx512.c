/* AVX-512: 32 registers of 64 bytes hold a tile of 8 rows by 3 vectors. */
#define FC_ISA avx512
#define FC_BYTES 64
#define FC_ROWS 8
#define FC_STRIPS 3
#include "contrast_impl.h"
