/* Two layers with tanh or ReLU between, for one instruction set. Units of the first layer are
 * computed WIDTH at a time, in panels: a block of rows is activated, multiplied and, backward, differentiated while it is
 * in cache. A row has the same bits in any batch. */

static long layers_panels(const struct layers *job) { return job->hidden / WIDTH; }

/* Weights packed for the forward pass: [panel][bias, then inputs][unit]. */
static long layers_weights(const struct layers *job) { return (1 + job->inputs) * job->hidden; }

/* Scratch of a thread: the sums of a panel, and the outputs' sums by lane. */
static long layers_scratch(const struct layers *job) { return BLOCK * (WIDTH + job->outputs * LANES); }

static TARGET void layers_pack(const struct layers *job, long panel, float *weights) {
    long I = job->inputs;
    float *to = weights + panel * (1 + I) * WIDTH;
    memcpy(to, job->b_hidden + panel * WIDTH, 4 * WIDTH);
    for (long k = 0; k < I; k += SQUARE)
        for (long unit = 0; unit < WIDTH; unit += SQUARE)
            copy_transposed(job->w_hidden + (panel * WIDTH + unit) * I + k, I, to + (1 + k) * WIDTH + unit, WIDTH, SQUARE,
                            I - k);
}

INLINE void activate(float *units, long count, long relu) {
    if (relu)
        for (long i = 0; i < count; i += LANES) store(units + i, larger(splat(0.0f), load(units + i)));
    else
        for (long i = 0; i < count; i += LANES) store(units + i, tanh_(load(units + i)));
}

/* Adds a panel's contribution to each output, by lane. */
INLINE void add_outputs(const int rows, const float *panel, const float *weights, long K, long O, float *outputs) {
    vf units[4][4];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 4; v++) units[r][v] = load(panel + r * WIDTH + v * LANES);
    for (long o = 0; o < O; o++) {
        vf factors[4];
        for (int v = 0; v < 4; v++) factors[v] = load(weights + o * K + v * LANES);
        for (int r = 0; r < rows; r++) {
            vf sum = load(outputs + (r * O + o) * LANES);
            for (int v = 0; v < 4; v++) sum = fma_(units[r][v], factors[v], sum);
            store(outputs + (r * O + o) * LANES, sum);
        }
    }
}

static TARGET void layers_forward_rows(const struct layers *job, const float *weights, long first, long last,
                                       float *scratch) {
    enum { TOGETHER = LANES == 16 ? 4 : 2 }; /* rows per read of an output's weights */
    long I = job->inputs, K = job->hidden, O = job->outputs;
    float *sums = scratch, *outputs = sums + BLOCK * WIDTH;
    for (long end; first < last; first = end) {
        end = last - first > BLOCK ? first + BLOCK : last;
        long rows = end - first;
        memset(outputs, 0, 4 * rows * O * LANES);
        for (long panel = 0; panel < layers_panels(job); panel++) {
            const float *from = weights + panel * (1 + I) * WIDTH, *w_output = job->w_output + panel * WIDTH;
            float *units = job->between ? job->between + (panel * job->rows + first) * WIDTH : sums;
            add_products(rows, job->x + first * job->x_row, job->x_row, from + WIDTH, I, from, 0, units);
            activate(units, rows * WIDTH, job->relu);
            long r = 0;
            for (; r + TOGETHER <= rows; r += TOGETHER)
                add_outputs(TOGETHER, units + r * WIDTH, w_output, K, O, outputs + r * O * LANES);
            for (; r < rows; r++) add_outputs(1, units + r * WIDTH, w_output, K, O, outputs + r * O * LANES);
        }
        for (long i = 0; i < rows * O; i++)
            job->y[first * O + i] = (job->b_output ? job->b_output[i % O] : 0) + sum_of(load(outputs + i * LANES));
    }
}

/* Weights packed for the gradient of x, WIDTH inputs at a time: [inputs][unit][input]. */
static long layers_groups(const struct layers *job) { return round_up(job->inputs, WIDTH) / WIDTH; }

static long layers_backward_weights(const struct layers *job) { return layers_groups(job) * job->hidden * WIDTH; }

static TARGET void layers_backward_pack(const struct layers *job, long group, float *weights) {
    long I = job->inputs, left = I - group * WIDTH, count = left < WIDTH ? left : WIDTH;
    float *to = weights + group * job->hidden * WIDTH;
    if (count < WIDTH) memset(to, 0, 4 * job->hidden * WIDTH);
    for (long unit = 0; unit < job->hidden; unit++)
        memcpy(to + unit * WIDTH, job->w_hidden + unit * I + group * WIDTH, 4 * count);
}

/* Scratch of a thread. */
struct layers_scratch_layout {
    float *d_w_hidden; /* this thread's sums, [panel][HEIGHT inputs][input][unit] */
    float *d_b_hidden, *d_w_output; /* the same, [panel][unit] and [panel][output][unit] */
    float *w_output; /* of a panel, [output][unit] */
    float *d_panel; /* gradients of the sums of a panel, [row][unit] */
    float *d_x; /* [inputs][row][input] */
    float *inputs; /* of a block, [HEIGHT inputs][row][input] */
};

static long layers_lay_out(const struct layers *job, float *scratch, struct layers_scratch_layout *at) {
    long I = round_up(job->inputs, HEIGHT), K = job->hidden;
    float *free_ = scratch;
    at->d_w_hidden = free_, free_ += I * K;
    at->d_b_hidden = free_, free_ += K;
    at->d_w_output = free_, free_ += job->outputs * K;
    at->w_output = free_, free_ += job->outputs * WIDTH;
    at->d_panel = free_, free_ += BLOCK * WIDTH;
    at->d_x = free_, free_ += layers_groups(job) * BLOCK * WIDTH;
    at->inputs = free_, free_ += I * BLOCK;
    return round_up(free_ - scratch, 16);
}

static long layers_backward_scratch(const struct layers *job) {
    struct layers_scratch_layout at;
    return layers_lay_out(job, 0, &at);
}

/* Gradients of a panel's pre-activations, and of all weights but the first layer's, from those of the outputs. */
static TARGET void panel_gradients(const struct layers *job, long panel, long first, long rows,
                                   const struct layers_scratch_layout *at) {
    static const float zeros[WIDTH];
    long K = job->hidden, O = job->outputs;
    const float *units = job->between + (panel * job->rows + first) * WIDTH, *d_y = job->d_y + first * O;
    for (long o = 0; o < O; o++) memcpy(at->w_output + o * WIDTH, job->w_output + o * K + panel * WIDTH, 4 * WIDTH);
    add_products(rows, d_y, O, at->w_output, O, zeros, 0, at->d_panel);
    vf bias[4];
    for (int v = 0; v < 4; v++) bias[v] = load(at->d_b_hidden + panel * WIDTH + v * LANES);
    for (long r = 0; r < rows; r++)
        for (int v = 0; v < 4; v++) {
            vf d = load(at->d_panel + r * WIDTH + v * LANES), unit = load(units + r * WIDTH + v * LANES);
            d = job->relu ? (vf)((vu)d & ~(vu)(unit <= 0)) : d * fma_(-unit, unit, splat(1.0f));
            bias[v] += d;
            store(at->d_panel + r * WIDTH + v * LANES, d);
        }
    for (int v = 0; v < 4; v++) store(at->d_b_hidden + panel * WIDTH + v * LANES, bias[v]);
    for (long o = 0; o < O; o += HEIGHT) {
        float *sums = at->d_w_output + (panel * O + o) * WIDTH;
        tile_of(O - o < HEIGHT ? O - o : HEIGHT, d_y + o, 1, O, units, rows, sums, WIDTH, sums);
    }
}

static TARGET void layers_backward_rows(const struct layers *job, const float *weights, long first, long last,
                                        float *scratch) {
    struct layers_scratch_layout at;
    long I = job->inputs, K = job->hidden, tiles = round_up(I, HEIGHT) / HEIGHT, groups = layers_groups(job);
    memset(scratch, 0, 4 * layers_lay_out(job, scratch, &at));
    for (long end; first < last; first = end) {
        end = last - first > BLOCK ? first + BLOCK : last;
        long rows = end - first;
        for (long r = 0; r < rows; r++)
            for (long tile = 0; tile < tiles; tile++) {
                long left = I - tile * HEIGHT, count = left < HEIGHT ? left : HEIGHT;
                memcpy(at.inputs + (tile * BLOCK + r) * HEIGHT, job->x + (first + r) * job->x_row + tile * HEIGHT, 4 * count);
            }
        memset(at.d_x, 0, 4 * groups * BLOCK * WIDTH);
        for (long panel = 0; panel < layers_panels(job); panel++) {
            panel_gradients(job, panel, first, rows, &at);
            for (long group = 0; group < groups; group++) {
                float *d_x = at.d_x + group * BLOCK * WIDTH;
                add_products(rows, at.d_panel, WIDTH, weights + (group * K + panel * WIDTH) * WIDTH, WIDTH, d_x, WIDTH, d_x);
            }
            for (long tile = 0; tile < tiles; tile++) {
                float *sums = at.d_w_hidden + (panel * tiles + tile) * HEIGHT * WIDTH;
                products(HEIGHT, at.inputs + tile * BLOCK * HEIGHT, 1, HEIGHT, at.d_panel, rows, sums, WIDTH, sums);
            }
        }
        for (long r = 0; r < rows; r++)
            for (long group = 0; group < groups; group++) {
                long left = I - group * WIDTH, count = left < WIDTH ? left : WIDTH;
                memcpy(job->d_x + (first + r) * I + group * WIDTH, at.d_x + (group * BLOCK + r) * WIDTH, 4 * count);
            }
    }
}

INLINE void add_floats(float *to, const float *from, long count) {
    for (long i = 0; i < count; i += LANES) store(to + i, load(to + i) + load(from + i));
}

/* Adds up the threads' sums of a panel, in thread order, and writes the gradients. */
static TARGET void layers_backward_sum(const struct layers *job, long panel, float *scratch, long threads) {
    struct layers_scratch_layout at, other;
    long I = job->inputs, O = job->outputs, size = round_up(I, HEIGHT) * WIDTH, each = layers_lay_out(job, scratch, &at);
    float *sums = at.d_w_hidden + panel * size;
    for (long thread = 1; thread < threads; thread++) {
        layers_lay_out(job, scratch + thread * each, &other);
        add_floats(sums, other.d_w_hidden + panel * size, size);
        add_floats(at.d_b_hidden + panel * WIDTH, other.d_b_hidden + panel * WIDTH, WIDTH);
        add_floats(at.d_w_output + panel * O * WIDTH, other.d_w_output + panel * O * WIDTH, O * WIDTH);
    }
    for (long k = 0; k < I; k += SQUARE)
        for (long unit = 0; unit < WIDTH; unit += SQUARE)
            copy_transposed(sums + k * WIDTH + unit, WIDTH, job->d_w_hidden + (panel * WIDTH + unit) * I + k, I, I - k, SQUARE);
    memcpy(job->d_b_hidden + panel * WIDTH, at.d_b_hidden + panel * WIDTH, 4 * WIDTH);
    for (long o = 0; o < O; o++)
        memcpy(job->d_w_output + o * job->hidden + panel * WIDTH, at.d_w_output + (panel * O + o) * WIDTH, 4 * WIDTH);
}
