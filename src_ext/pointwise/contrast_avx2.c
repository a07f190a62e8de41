/* AVX2 and FMA: 16 registers of 32 bytes hold a tile of 4 rows by 3 vectors. */
#define FC_ISA avx2
#define FC_BYTES 32
#define FC_ROWS 4
#define FC_STRIPS 3
#include "contrast_impl.h"
