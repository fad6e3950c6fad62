/* What a call of the token convolution is about. The fields and their order are those of `Job` in token_conv.py.
 *
 * N rows, M tokens of three bytes (location, feature, value), K features, C channels. The window and the output are cells
 * row by row, the kernel likewise. Contiguous, but for the rows of tokens. */

struct token_conv {
    long rows, tokens, features, channels, threads;
    long height, width, kernel_height, kernel_width, stride_height, stride_width, output_height, output_width;
    const unsigned char *bytes; /* [N, M, 3] */
    long bytes_row;
    const long long *cell_of_location, *place_of_feature; /* [256]: -1 where there is none */
    const float *normalizations; /* [K] */
    const float *weight; /* [C, K, kernel] */
    const float *bias; /* [C] */
    float *output; /* [N, output, C] */
    float *scratch; /* as many floats as the _scratch function asks for */
    /* for the backward pass only */
    const float *d_output; /* [N, output, C] */
    float *d_weight, *d_bias;
};
