/* AVX-512. */
#define FN_ISA avx512
#include "network_impl.h"
