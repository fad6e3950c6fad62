/* Arguments of the LSTM kernels. Fields in the order of `LSTMCall` in lstm.py.
 *
 * T steps, B rows, I inputs, H hidden. Strides are in floats; arrays without strides are contiguous. */

struct lstm {
    long steps, rows, inputs, hidden, threads;
    const float *x; /* [T, B, I] */
    long x_step, x_row;
    const float *h0, *c0; /* [B, H] */
    long h0_row, c0_row;
    const unsigned char *starts; /* [T, B]: an episode starts here, so memory is zero before this step */
    long starts_step, starts_row;
    const float *w_ih, *w_hh, *b_ih, *b_hh; /* as in torch.nn.LSTM, gates i, f, g, o */
    float *outputs, *cells, *gates; /* [T, B, H], the same, [T, B, 4H] after activation; cells and gates may be null */
    float *h_end, *c_end; /* [B, H]: memory after the last step; or null */
    long h_end_row, c_end_row;
    float *scratch; /* as many floats as the _scratch function asks for */
    /* for the backward pass only */
    const float *d_outputs; /* [T, B, H] */
    long d_outputs_step, d_outputs_row;
    const float *d_cells; /* the same, or null */
    long d_cells_step, d_cells_row;
    float *d_x, *d_h0, *d_c0, *d_w_ih, *d_w_hh, *d_b;
};

/* Rows run through all steps in blocks of this size, to reuse the weights while they are in cache. */
#define BLOCK 132

/* Sums take this many products at a time, so that their weights stay in the first-level cache. */
#define DEPTH 128
