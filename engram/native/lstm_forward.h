/* The LSTM's forward pass, for one instruction set. */

/* Units are computed LANES at a time, in panels. Packed weights: [panel][bias, then I inputs, then H of memory][gate]
 * [lane], with zeros in the last lanes if H is not a multiple of LANES. */
static long forward_weights(const struct lstm *job) {
    return round_up(job->hidden, LANES) / LANES * (1 + job->inputs + job->hidden) * WIDTH;
}

/* Scratch of a thread: inputs, h before and after the step, cells, and the sums of a panel. */
static long forward_scratch(const struct lstm *job) {
    return BLOCK * (job->inputs + 3 * round_up(job->hidden, LANES) + WIDTH);
}

/* Transposes the weights of a panel, from [gate][unit][k] to [k][gate][lane]. */
static TARGET void transpose(const float *weights, long H, long depth, long panel, float *to) {
    for (long k = 0; k < depth; k += SQUARE)
        for (long column = 0; column < WIDTH; column += SQUARE) {
            long unit = panel * LANES + column % LANES, gate = column / LANES * H + unit;
            copy_transposed(weights + gate * depth + k, depth, to + k * WIDTH + column, WIDTH, H - unit, depth - k);
        }
}

static TARGET void forward_pack(const struct lstm *job, long panel, float *weights) {
    long H = job->hidden, I = job->inputs, depth = 1 + I + H;
    float *to = weights + panel * depth * WIDTH;
    if (panel * LANES + LANES > H) memset(to, 0, 4 * depth * WIDTH);
    for (long column = 0; column < WIDTH; column++) {
        long unit = panel * LANES + column % LANES, gate = column / LANES * H + unit;
        if (unit < H) to[column] = job->b_ih[gate] + job->b_hh[gate];
    }
    transpose(job->w_ih, H, I, panel, to + WIDTH);
    transpose(job->w_hh, H, H, panel, to + (1 + I) * WIDTH);
}

/* Addresses of a row's units in a panel. */
struct units {
    const float *c; /* before the step */
    float *c_after, *h_after;
    float *cells, *outputs, *gates; /* cells and gates may be null */
};

/* Gates, cell and output of one row's units in a panel, from the pre-activations. */
INLINE void finish_units(const float *sums, const struct units *of, long H, long count) {
    vf i = sigmoid(load(sums)), f = sigmoid(load(sums + LANES));
    vf g = tanh_(load(sums + 2 * LANES)), o = sigmoid(load(sums + 3 * LANES));
    vf cell = fma_(i, g, f * load_some(of->c, count));
    vf output = o * tanh_(cell);
    store_some(of->c_after, cell, count);
    store_some(of->h_after, output, count);
    store_some(of->outputs, output, count);
    if (of->cells) store_some(of->cells, cell, count);
    if (of->gates) {
        store_some(of->gates, i, count);
        store_some(of->gates + H, f, count);
        store_some(of->gates + 2 * H, g, count);
        store_some(of->gates + 3 * H, o, count);
    }
}

/* The inputs of a step with contiguous rows, copied if they are not: distant rows would compete for cache lines. */
static TARGET const float *inputs_of(const struct lstm *job, long t, long first, long rows, float *buffer) {
    const float *x = job->x + t * job->x_step + first * job->x_row;
    if (job->x_row == job->inputs) return x;
    for (long r = 0; r < rows; r++) memcpy(buffer + r * job->inputs, x + r * job->x_row, 4 * job->inputs);
    return buffer;
}

/* Rows [first, last), block by block through all steps. At an episode start the old memory is not read, so that not even
 * a NaN survives. */
static TARGET void forward_rows(const struct lstm *job, const float *weights, long first, long last, float *scratch) {
    static const float zeros[LANES];
    long I = job->inputs, H = job->hidden, padded = round_up(H, LANES), depth = 1 + I + H;
    float *buffer = scratch, *h = buffer + BLOCK * I, *h_next = h + BLOCK * padded, *c = h_next + BLOCK * padded;
    float *sums = c + BLOCK * padded;
    for (long end; first < last; first = end) {
        end = last - first > BLOCK ? first + BLOCK : last;
        long rows = end - first;
        for (long r = 0; r < rows; r++) memcpy(h + r * padded, job->h0 + (first + r) * job->h0_row, 4 * H);
        for (long t = 0; t < job->steps; t++) {
            const unsigned char *starts = job->starts + t * job->starts_step + first * job->starts_row;
            const float *x = inputs_of(job, t, first, rows, buffer);
            int at_end = t == job->steps - 1 && job->h_end;
            for (long r = 0; r < rows; r++)
                if (starts[r * job->starts_row]) memset(h + r * padded, 0, 4 * padded);
            for (long unit = 0; unit < H; unit += LANES) {
                const float *panel = weights + unit / LANES * depth * WIDTH;
                add_products(rows, x, I, panel + WIDTH, I, panel, 0, sums);
                add_products(rows, h, padded, panel + (1 + I) * WIDTH, H, sums, WIDTH, sums);
                for (long r = 0; r < rows; r++) {
                    long row = first + r, offset = (t * job->rows + row) * H + unit;
                    struct units of = {
                        .c = starts[r * job->starts_row] ? zeros : t ? c + r * padded + unit : job->c0 + row * job->c0_row + unit,
                        .c_after = at_end ? job->c_end + row * job->c_end_row + unit : c + r * padded + unit,
                        .h_after = at_end ? job->h_end + row * job->h_end_row + unit : h_next + r * padded + unit,
                        .cells = job->cells ? job->cells + offset : 0,
                        .outputs = job->outputs + offset,
                        .gates = job->gates ? job->gates + 4 * (offset - unit) + unit : 0,
                    };
                    finish_units(sums + r * WIDTH, &of, H, H - unit);
                }
            }
            float *before = h;
            h = h_next, h_next = before;
        }
    }
}
