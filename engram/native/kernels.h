/* The functions compiled for each instruction set. Each works on one thread. */

#include "lstm.h"
#include "token_conv.h"
#include "layers.h"

struct kernels {
    const char *name;
    long lanes; /* floats in a vector */
    /* floats of the packed weights, and of a thread's scratch */
    long (*forward_weights)(const struct lstm *), (*forward_scratch)(const struct lstm *);
    void (*forward_pack)(const struct lstm *, long panel, float *weights);
    void (*forward_rows)(const struct lstm *, const float *weights, long first, long last, float *scratch);
    long (*backward_weights)(const struct lstm *), (*backward_scratch)(const struct lstm *);
    long (*backward_groups)(const struct lstm *);
    void (*backward_pack)(const struct lstm *, long group, float *weights);
    void (*backward_rows)(const struct lstm *, const float *weights, long first, long last, float *scratch);
    void (*backward_sum)(const struct lstm *, long panel, float *scratch, long threads);
    long (*conv_columns)(const struct token_conv *);
    long (*conv_sums)(const struct token_conv *), (*conv_scratch)(const struct token_conv *);
    void (*conv_pack)(const struct token_conv *, long first, long last, float *weights);
    void (*conv_forward_rows)(const struct token_conv *, const float *weights, long first, long last, float *scratch);
    void (*conv_backward_rows)(const struct token_conv *, float *d_weights, long first, long last, float *scratch);
    void (*conv_sum)(const struct token_conv *, long first, long last, const float *sums);
    long (*layers_panels)(const struct layers *), (*layers_groups)(const struct layers *);
    long (*layers_weights)(const struct layers *), (*layers_scratch)(const struct layers *);
    void (*layers_pack)(const struct layers *, long panel, float *weights);
    void (*layers_forward_rows)(const struct layers *, const float *weights, long first, long last, float *scratch);
    long (*layers_backward_weights)(const struct layers *), (*layers_backward_scratch)(const struct layers *);
    void (*layers_backward_pack)(const struct layers *, long group, float *weights);
    void (*layers_backward_rows)(const struct layers *, const float *weights, long first, long last, float *scratch);
    void (*layers_backward_sum)(const struct layers *, long panel, float *scratch, long threads);
};

extern const struct kernels kernels_avx512, kernels_avx2, kernels_plain;
