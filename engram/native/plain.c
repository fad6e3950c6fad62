/* All other processors: vectors of four floats, which compilers support everywhere. */
#define LANES 4
#define TARGET
#include "variant.h"

KERNELS(plain)
