/* All code of one kind of processor. */

#include "kernels.h"
#include "lanes.h"
#include "tile.h"
#include "lstm_forward.h"
#include "lstm_backward.h"

#define KERNELS(name)                                                                                            \
    const struct kernels kernels_##name = {#name,            LANES,           HEIGHT,         forward_weights,   \
                                           forward_scratch,  forward_pack,    forward_rows,   backward_weights,  \
                                           backward_scratch, backward_groups, backward_pack,  backward_rows,     \
                                           backward_sum};
