/* AVX-512. */
#if defined(__x86_64__)
#define LANES 16
#define TARGET __attribute__((target("avx512f,avx2,fma")))
#include "variant.h"

KERNELS(avx512)
#endif
