/* AVX2 and FMA. */
#define FN_ISA avx2
#include "network_impl.h"
