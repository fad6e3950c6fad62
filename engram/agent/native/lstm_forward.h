/* The LSTM's forward pass, for one kind of processor. */

/* Units are done LANES at a time, in panels: weights are laid out [panel][bias, then I inputs, then H of memory][gate]
 * [lane], and where H is no multiple of LANES the last lanes have weights 0. */
static long forward_weights(const struct lstm *job) {
    return round_up(job->hidden, LANES) / LANES * (1 + job->inputs + job->hidden) * WIDTH;
}

/* Floats one thread needs: inputs, memory before and after the step, cells, and the sums of a panel. */
static long forward_scratch(const struct lstm *job) {
    return BLOCK * (job->inputs + 3 * round_up(job->hidden, LANES) + WIDTH);
}

/* The weights of a panel's units, from [gate][unit][k] to [k][gate][lane]. */
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

/* Gates, cell and output of one row's units in a panel, from the sums before activation. */
INLINE void finish_units(const float *sums, float *c, float *h, float *cells, float *outputs, float *gates, long H,
                         long count) {
    vf i = sigmoid(load(sums)), f = sigmoid(load(sums + LANES));
    vf g = hyperbolic(load(sums + 2 * LANES)), o = sigmoid(load(sums + 3 * LANES));
    vf cell = fma_(i, g, f * load(c));
    vf output = o * hyperbolic(cell);
    store(c, cell);
    store(h, output);
    store_some(outputs, output, count);
    if (cells) store_some(cells, cell, count);
    if (gates) {
        store_some(gates, i, count);
        store_some(gates + H, f, count);
        store_some(gates + 2 * H, g, count);
        store_some(gates + 3 * H, o, count);
    }
}

/* Inputs side by side, and memory forgotten where an episode starts: written over, so that no NaN survives. */
static TARGET void begin_step(const struct lstm *job, long t, long first, long rows, float *x, float *h, float *c) {
    long padded = round_up(job->hidden, LANES);
    for (long r = 0; r < rows; r++) {
        memcpy(x + r * job->inputs, job->x + t * job->x_step + (first + r) * job->x_row, 4 * job->inputs);
        if (job->starts[t * job->starts_step + (first + r) * job->starts_row]) {
            memset(h + r * padded, 0, 4 * padded);
            memset(c + r * padded, 0, 4 * padded);
        }
    }
}

/* Rows `first` up to, without, `last`, block by block through all steps. */
static TARGET void forward_rows(const struct lstm *job, const float *weights, long first, long last, float *scratch) {
    long I = job->inputs, H = job->hidden, padded = round_up(H, LANES), depth = 1 + I + H;
    float *x = scratch, *h = x + BLOCK * I, *h_next = h + BLOCK * padded, *c = h_next + BLOCK * padded;
    float *sums = c + BLOCK * padded;
    for (long end; first < last; first = end) {
        end = last - first > BLOCK ? first + BLOCK : last;
        long rows = end - first;
        memset(scratch + BLOCK * I, 0, 4 * 3 * BLOCK * padded);
        for (long r = 0; r < rows; r++) {
            memcpy(h + r * padded, job->h0 + (first + r) * job->h0_row, 4 * H);
            memcpy(c + r * padded, job->c0 + (first + r) * job->c0_row, 4 * H);
        }
        for (long t = 0; t < job->steps; t++) {
            begin_step(job, t, first, rows, x, h, c);
            for (long unit = 0; unit < H; unit += LANES) {
                const float *panel = weights + unit / LANES * depth * WIDTH;
                add_products(rows, x, I, panel + WIDTH, I, panel, 0, sums);
                add_products(rows, h, padded, panel + (1 + I) * WIDTH, H, sums, WIDTH, sums);
                for (long r = 0; r < rows; r++) {
                    long place = t * job->rows + first + r;
                    finish_units(sums + r * WIDTH, c + r * padded + unit, h_next + r * padded + unit,
                                 job->cells ? job->cells + place * H + unit : 0, job->outputs + place * H + unit,
                                 job->gates ? job->gates + place * 4 * H + unit : 0, H, H - unit);
                }
            }
            float *before = h;
            h = h_next, h_next = before;
        }
        for (long r = 0; r < rows && job->h_end; r++) {
            memcpy(job->h_end + (first + r) * job->h_end_row, h + r * padded, 4 * H);
            memcpy(job->c_end + (first + r) * job->c_end_row, c + r * padded, 4 * H);
        }
    }
}
