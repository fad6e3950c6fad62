/* What a call of the kernels of two layers is about. The fields and their order are those of `Job` in two_layers.py.
 *
 * N rows, I inputs, K units between the layers, O outputs. What has no stride is contiguous. */

struct two_layers {
    long rows, inputs, hidden, outputs, threads;
    long relu; /* between the layers; else tanh */
    const float *x; /* [N, I] */
    long x_row; /* floats from row to row */
    const float *w_hidden, *b_hidden; /* [K, I], [K]; K is a multiple of 64 */
    const float *w_output, *b_output; /* [O, K], [O] or null */
    float *between; /* after activation, WIDTH units at a time, [units][N][unit]; or null, if it is not kept */
    float *y; /* [N, O] */
    float *scratch; /* as many floats as the _scratch function asks for */
    /* for the backward pass only */
    const float *d_y; /* [N, O] */
    float *d_x, *d_w_hidden, *d_b_hidden, *d_w_output;
};
