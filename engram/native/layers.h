/* What a call of the kernels of one or two layers is about. The fields and their order are those of `Job` in layers.py.
 *
 * N rows, I inputs, K units of the first layer, O outputs of the second, 0 if there is none. What has no stride is
 * contiguous. */

struct layers {
    long rows, inputs, hidden, outputs, threads;
    long relu; /* after the first layer; else tanh */
    const float *x; /* [N, I] */
    long x_row; /* floats from row to row */
    const float *w_hidden, *b_hidden; /* [K, I], [K]; K is a multiple of 64 */
    const float *w_output, *b_output; /* [O, K], [O] or null */
    float *between; /* of two layers: what the first gives, WIDTH units at a time, [units][N][unit]; null: not to be kept */
    float *y; /* [N, O]; of one layer [N, K] */
    float *scratch; /* as many floats as the _scratch function asks for */
    /* for the backward pass only */
    const float *d_y; /* as y */
    float *d_x; /* null: not wanted */
    float *d_w_hidden, *d_b_hidden, *d_w_output;
};
