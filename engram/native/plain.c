/* All other processors: vectors of four floats, which compilers know how to make on each. */
#define LANES 4
#define TARGET
#include "variant.h"

KERNELS(plain)
