/* The LSTM's backward pass, for one instruction set. */

/* Weights packed for the gradients of x and h, WIDTH columns at a time, first x, then h:
 * [columns][panel][gate][lane][column]. */
static long backward_columns(long size) { return round_up(size, WIDTH) / WIDTH; }

static long backward_groups(const struct lstm *job) {
    return backward_columns(job->inputs) + backward_columns(job->hidden);
}

static long backward_weights(const struct lstm *job) {
    return backward_groups(job) * 4 * round_up(job->hidden, LANES) * WIDTH;
}

static TARGET void backward_pack(const struct lstm *job, long group, float *weights) {
    long H = job->hidden, wide = 4 * round_up(H, LANES), of_x = backward_columns(job->inputs);
    const float *from = group < of_x ? job->w_ih : job->w_hh;
    long size = group < of_x ? job->inputs : H, column = (group < of_x ? group : group - of_x) * WIDTH;
    long count = size - column < WIDTH ? size - column : WIDTH;
    float *to = weights + group * wide * WIDTH;
    if (count < WIDTH || H % LANES) memset(to, 0, 4 * wide * WIDTH);
    for (long k = 0; k < wide; k++) {
        long unit = k / WIDTH * LANES + k % LANES, gate = k % WIDTH / LANES * H + unit;
        if (unit < H) memcpy(to + k * WIDTH, from + gate * size + column, 4 * count);
    }
}

/* Per thread: gradient sums of the weights, [panel][HEIGHT inputs][input][gate][lane], and of the biases. */
static long weight_sums(const struct lstm *job) {
    return round_up(job->hidden, LANES) * 4 * (round_up(job->inputs + job->hidden, HEIGHT) + 1);
}

/* Steps of `rows` rows between two updates of those sums. */
static long stretch(const struct lstm *job, long rows) {
    long steps = (DEPTH + rows - 1) / rows;
    return steps < job->steps ? steps : job->steps;
}

/* Scratch of a thread: a block of rows, or a stretch of at most DEPTH + BLOCK rows of it. */
struct lstm_scratch_layout {
    float *d_h, *d_c; /* [rows][padded H]: gradients from the next step */
    float *d_gates; /* [rows][panel][gate][lane], of this step: multiplied by the weights */
    float *d_panels; /* [panel][rows of the stretch][gate][lane]: the same, multiplied by the inputs */
    float *inputs; /* [HEIGHT inputs][rows of the stretch][input]: x and h before the step */
    float *row; /* [inputs] of one row */
    float *sums; /* [rows][WIDTH] */
    float *d_weights, *d_bias; /* of this thread */
    long capacity; /* rows of a stretch */
};

static long lay_out(const struct lstm *job, float *scratch, struct lstm_scratch_layout *at) {
    long padded = round_up(job->hidden, LANES), columns = round_up(job->inputs + job->hidden, HEIGHT);
    float *free_ = scratch;
    at->capacity = DEPTH + BLOCK;
    at->d_weights = free_, free_ += padded * 4 * columns;
    at->d_bias = free_, free_ += padded * 4;
    at->d_h = free_, free_ += BLOCK * padded;
    at->d_c = free_, free_ += BLOCK * padded;
    at->d_gates = free_, free_ += BLOCK * 4 * padded;
    at->d_panels = free_, free_ += at->capacity * 4 * padded;
    at->inputs = free_, free_ += at->capacity * columns;
    at->row = free_, free_ += columns;
    at->sums = free_, free_ += BLOCK * WIDTH;
    return free_ - scratch;
}

static long backward_scratch(const struct lstm *job) {
    struct lstm_scratch_layout at;
    return lay_out(job, 0, &at);
}

/* Gradients of one row's units in a panel: of the gates' pre-activations and of the previous cell. */
INLINE void unit_gradients(const float *gates, long H, long count, vf cell, vf cell_before, vf d_output, vf d_cell,
                           vf d_gates[4], vf *d_cell_before) {
    const vf one = splat(1.0f);
    vf i = load_some(gates, count), f = load_some(gates + H, count);
    vf g = load_some(gates + 2 * H, count), o = load_some(gates + 3 * H, count);
    vf tanh_cell = tanh_(cell);
    d_cell = fma_(d_output * o, fma_(-tanh_cell, tanh_cell, one), d_cell);
    d_gates[0] = d_cell * g * i * (one - i);
    d_gates[1] = d_cell * cell_before * f * (one - f);
    d_gates[2] = d_cell * i * fma_(-g, g, one);
    d_gates[3] = d_output * tanh_cell * o * (one - o);
    *d_cell_before = d_cell * f;
}

/* One step of a block: the gradients of all gates, in both layouts, and of the biases. `slot` is the number of rows
 * already in the stretch. */
static TARGET void gate_gradients(const struct lstm *job, long t, long first, long rows, long slot,
                                  const struct lstm_scratch_layout *at) {
    long H = job->hidden, padded = round_up(H, LANES);
    for (long unit = 0; unit < H; unit += LANES) {
        float *panel = at->d_panels + unit / LANES * at->capacity * WIDTH + slot * WIDTH;
        vf bias[4];
        for (int v = 0; v < 4; v++) bias[v] = load(at->d_bias + unit * 4 + v * LANES);
        for (long r = 0; r < rows; r++) {
            long row = first + r, offset = (t * job->rows + row) * H + unit, count = H - unit;
            float *d_h = at->d_h + r * padded + unit, *d_c = at->d_c + r * padded + unit;
            int start = job->starts[t * job->starts_step + row * job->starts_row] != 0;
            vf before = {0}, d_gates[4], d_cell_before;
            if (!start)
                before = load_some(t ? job->cells + offset - job->rows * H : job->c0 + row * job->c0_row + unit, count);
            vf d_cell = load(d_c);
            if (job->d_cells)
                d_cell += load_some(job->d_cells + t * job->d_cells_step + row * job->d_cells_row + unit, count);
            vf d_output = load(d_h) + load_some(job->d_outputs + t * job->d_outputs_step
                                                + row * job->d_outputs_row + unit, count);
            unit_gradients(job->gates + 4 * (offset - unit) + unit, H, count, load_some(job->cells + offset, count), before,
                           d_output, d_cell, d_gates, &d_cell_before);
            store(d_c, start ? (vf){0} : d_cell_before);
            for (int v = 0; v < 4; v++) {
                bias[v] += d_gates[v];
                store(at->d_gates + r * 4 * padded + unit * 4 + v * LANES, d_gates[v]);
                store(panel + r * WIDTH + v * LANES, d_gates[v]);
            }
        }
        for (int v = 0; v < 4; v++) store(at->d_bias + unit * 4 + v * LANES, bias[v]);
    }
}

/* Gradients of x and of the previous h, from those of the gates; zero at an episode start. */
static TARGET void through_weights(const struct lstm *job, const float *weights, long t, long first, long rows,
                                   const struct lstm_scratch_layout *at) {
    static const float zeros[WIDTH];
    long I = job->inputs, H = job->hidden, padded = round_up(H, LANES), of_x = backward_columns(I);
    for (long group = 0; group < backward_groups(job); group++) {
        add_products(rows, at->d_gates, 4 * padded, weights + group * 4 * padded * WIDTH, 4 * padded, zeros, 0, at->sums);
        long column = (group < of_x ? group : group - of_x) * WIDTH, size = group < of_x ? I : H;
        long count = size - column < WIDTH ? size - column : WIDTH;
        for (long r = 0; r < rows; r++) {
            float *to = group < of_x ? job->d_x + (t * job->rows + first + r) * I : at->d_h + r * padded;
            memcpy(to + column, at->sums + r * WIDTH, 4 * count);
        }
    }
    for (long r = 0; r < rows; r++)
        if (job->starts[t * job->starts_step + (first + r) * job->starts_row])
            memset(at->d_h + r * padded, 0, 4 * padded);
}

/* Stores the inputs of a step: x and the previous h. */
static TARGET void store_inputs(const struct lstm *job, long t, long first, long rows, long slot,
                               const struct lstm_scratch_layout *at) {
    long I = job->inputs, H = job->hidden, tiles = round_up(I + H, HEIGHT) / HEIGHT;
    for (long r = 0; r < rows; r++) {
        long row = first + r;
        const float *h = t ? job->outputs + ((t - 1) * job->rows + row) * H : job->h0 + row * job->h0_row;
        memcpy(at->row, job->x + t * job->x_step + row * job->x_row, 4 * I);
        if (job->starts[t * job->starts_step + row * job->starts_row]) memset(at->row + I, 0, 4 * H);
        else memcpy(at->row + I, h, 4 * H);
        float *to = at->inputs + (slot + r) * HEIGHT;
        for (long tile = 0; tile < tiles; tile++)
            memcpy(to + tile * HEIGHT * at->capacity, at->row + tile * HEIGHT, 4 * HEIGHT);
    }
}

static TARGET void add_weight_gradients(const struct lstm *job, long rows, const struct lstm_scratch_layout *at) {
    long panels = round_up(job->hidden, LANES) / LANES, tiles = round_up(job->inputs + job->hidden, HEIGHT) / HEIGHT;
    for (long panel = 0; panel < panels; panel++)
        for (long k = 0; k < rows; k += DEPTH) {
            long depth = rows - k < DEPTH ? rows - k : DEPTH;
            const float *d_gates = at->d_panels + (panel * at->capacity + k) * WIDTH;
            for (long tile = 0; tile < tiles; tile++) {
                float *sums = at->d_weights + (panel * tiles + tile) * HEIGHT * WIDTH;
                products(HEIGHT, at->inputs + (tile * at->capacity + k) * HEIGHT, 1, HEIGHT, d_gates, depth, sums, WIDTH, sums);
            }
        }
}

/* Rows [first, last), block by block from the last step to the first. */
static TARGET void backward_rows(const struct lstm *job, const float *weights, long first, long last, float *scratch) {
    struct lstm_scratch_layout at;
    long H = job->hidden, padded = round_up(H, LANES);
    lay_out(job, scratch, &at);
    memset(at.d_weights, 0, 4 * weight_sums(job));
    memset(at.row, 0, 4 * round_up(job->inputs + H, HEIGHT));
    for (long end; first < last; first = end) {
        end = last - first > BLOCK ? first + BLOCK : last;
        long rows = end - first, maximum = stretch(job, rows), steps = 0;
        memset(at.d_h, 0, 4 * 2 * BLOCK * padded);
        for (long t = job->steps - 1; t >= 0; t--) {
            gate_gradients(job, t, first, rows, steps * rows, &at);
            through_weights(job, weights, t, first, rows, &at);
            store_inputs(job, t, first, rows, steps * rows, &at);
            if (++steps == maximum || t == 0) {
                add_weight_gradients(job, steps * rows, &at);
                steps = 0;
            }
        }
        for (long r = 0; r < rows; r++) {
            memcpy(job->d_h0 + (first + r) * H, at.d_h + r * padded, 4 * H);
            memcpy(job->d_c0 + (first + r) * H, at.d_c + r * padded, 4 * H);
        }
    }
}

/* Transposes sums [input][gate][lane] to the weights' layout [gate][unit][input]. */
static TARGET void unpack_sums(const float *sums, long inputs, long H, long panel, float *d_weights) {
    for (long column = 0; column < WIDTH; column += SQUARE) {
        long unit = panel * LANES + column % LANES, gate = column / LANES * H + unit;
        for (long k = 0; k < inputs; k += SQUARE)
            copy_transposed(sums + k * WIDTH + column, WIDTH, d_weights + gate * inputs + k, inputs, inputs - k, H - unit);
    }
}

/* Adds up the threads' sums of a panel, in thread order, and writes the gradients. */
static TARGET void backward_sum(const struct lstm *job, long panel, float *scratch, long threads) {
    long I = job->inputs, H = job->hidden, columns = round_up(I + H, HEIGHT), each = backward_scratch(job);
    float *sums = scratch + panel * columns * WIDTH;
    float *biases = scratch + round_up(H, LANES) * 4 * columns + panel * WIDTH;
    for (long thread = 1; thread < threads; thread++) {
        for (long i = 0; i < columns * WIDTH; i += LANES) store(sums + i, load(sums + i) + load(sums + thread * each + i));
        for (long i = 0; i < WIDTH; i += LANES) store(biases + i, load(biases + i) + load(biases + thread * each + i));
    }
    unpack_sums(sums, I, H, panel, job->d_w_ih);
    unpack_sums(sums + I * WIDTH, H, H, panel, job->d_w_hh);
    for (long offset = 0; offset < WIDTH; offset++) {
        long unit = panel * LANES + offset % LANES;
        if (unit < H) job->d_b[offset / LANES * H + unit] = biases[offset];
    }
}
