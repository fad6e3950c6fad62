/* AVX2 and fused multiply-add: nearly all x86-64 processors. */
#if defined(__x86_64__)
#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#include "variant.h"

KERNELS(avx2)
#endif
