/* Arguments of the token convolution. Fields in the order of `TokenConvCall` in token_conv.py.
 *
 * N rows, M tokens of three bytes (location, feature, value), K features, C channels. Window, output and
 * kernel are row-major. Everything is contiguous, except the rows of tokens. */

struct token_conv {
    long rows, tokens, features, channels, threads;
    long height, width, kernel_height, kernel_width, stride_height, stride_width, output_height, output_width;
    const unsigned char *bytes; /* [N, M, 3] */
    long bytes_row;
    const long long *cell_of_location, *index_of_feature; /* [256]: -1 if there is none */
    const float *normalizations; /* [K] */
    const float *weight; /* [C, K, kernel] */
    const float *bias; /* [C] */
    float *output; /* [N, output, C] */
    float *scratch; /* as many floats as the _scratch function asks for */
    /* for the backward pass only */
    const float *d_output; /* [N, output, C] */
    float *d_weight, *d_bias;
};
