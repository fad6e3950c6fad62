/* Arguments of the kernel for two layers. Fields in the order of `LayersCall` in layers.py.
 *
 * N rows, I inputs, K units of the first layer, O outputs of the second. Arrays without strides are contiguous. */

struct layers {
    long rows, inputs, hidden, outputs, threads;
    long relu; /* after the first layer; else tanh */
    const float *x; /* [N, I] */
    long x_row; /* floats from row to row */
    const float *w_hidden, *b_hidden; /* [K, I], [K]; K is a multiple of 64 */
    const float *w_output, *b_output; /* [O, K], [O] or null */
    float *between; /* hidden activations, [K / WIDTH][N][WIDTH]; null: not kept */
    float *y; /* [N, O] */
    float *scratch; /* as many floats as the _scratch function asks for */
    /* for the backward pass only */
    const float *d_y; /* [N, O] */
    float *d_x, *d_w_hidden, *d_b_hidden, *d_w_output;
};
