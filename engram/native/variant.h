/* All code for one instruction set. */

#include "kernels.h"
#include "lanes.h"
#include "tile.h"
#include "lstm_forward.h"
#include "lstm_backward.h"
#include "token_conv_kernel.h"
#include "layers_kernel.h"

#define KERNELS(variant)                                     \
    const struct kernels kernels_##variant = {               \
        .name = #variant,                                    \
        .lanes = LANES,                                      \
        .forward_weights = forward_weights,                  \
        .forward_scratch = forward_scratch,                  \
        .forward_pack = forward_pack,                        \
        .forward_rows = forward_rows,                        \
        .backward_weights = backward_weights,                \
        .backward_scratch = backward_scratch,                \
        .backward_groups = backward_groups,                  \
        .backward_pack = backward_pack,                      \
        .backward_rows = backward_rows,                      \
        .backward_sum = backward_sum,                        \
        .conv_columns = conv_columns,                        \
        .conv_sums = conv_sums,                              \
        .conv_scratch = conv_scratch,                        \
        .conv_pack = conv_pack,                              \
        .conv_forward_rows = conv_forward_rows,              \
        .conv_backward_rows = conv_backward_rows,            \
        .conv_sum = conv_sum,                                \
        .layers_panels = layers_panels,                      \
        .layers_groups = layers_groups,                      \
        .layers_weights = layers_weights,                    \
        .layers_scratch = layers_scratch,                    \
        .layers_pack = layers_pack,                          \
        .layers_forward_rows = layers_forward_rows,          \
        .layers_backward_weights = layers_backward_weights,  \
        .layers_backward_scratch = layers_backward_scratch,  \
        .layers_backward_pack = layers_backward_pack,        \
        .layers_backward_rows = layers_backward_rows,        \
        .layers_backward_sum = layers_backward_sum,          \
    };
