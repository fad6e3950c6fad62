/* A convolution of tokens, for one instruction set: each token adds its value times a column of the weights to the output
 * cells whose window covers it. */

#define MAX_SIDE 16 /* cells a side of a window: a location has four bits for each */

/* Packed weights and gradients: [feature][kernel cell][channel], channels padded to whole vectors. */
static long conv_columns(const struct token_conv *job) {
    return job->features * job->kernel_height * job->kernel_width;
}

static long conv_weights(const struct token_conv *job) { return conv_columns(job) * round_up(job->channels, LANES); }

/* Gradient sums of the weights and the bias. */
static long conv_sums(const struct token_conv *job) { return conv_weights(job) + round_up(job->channels, LANES); }

/* Scratch: a row of output, and one bit per cell and feature. */
static long conv_scratch(const struct token_conv *job) {
    long bits = job->height * job->width * job->features;
    return (job->output_height * job->output_width + 1) * round_up(job->channels, LANES) + round_up(bits, 64) / 32;
}

static TARGET void conv_pack(const struct token_conv *job, long first, long last, float *weights) {
    long columns = conv_columns(job), padded = round_up(job->channels, LANES);
    memset(weights + first * padded, 0, 4 * (last - first) * padded);
    for (long column = first; column < last; column += SQUARE)
        for (long channel = 0; channel < job->channels; channel += SQUARE)
            copy_transposed(job->weight + channel * columns + column, columns, weights + column * padded + channel, padded,
                            job->channels - channel, last - column);
}

/* For each cell of one side, the output cells [first, last) whose window covers it. */
struct span {
    long first, last;
};

static void spans(long cells, long kernel, long stride, long outputs, struct span *covering) {
    for (long cell = 0; cell < cells && cell < MAX_SIDE; cell++) {
        covering[cell].first = cell < kernel ? 0 : (cell - kernel) / stride + 1;
        covering[cell].last = cell / stride + 1 < outputs ? cell / stride + 1 : outputs;
    }
}

/* One row's tokens from last to first, since the last token of a cell and feature counts. Forward, adds the tokens'
 * weights to `output`; backward, `output` is its gradient, which is added to the weights' gradient. */
INLINE void conv_row(const struct token_conv *job, long row, const int backward, const struct span *down,
                     const struct span *across, float *weights, float *output, unsigned *seen) {
    long padded = round_up(job->channels, LANES);
    memset(seen, 0, round_up(job->height * job->width * job->features, 64) / 8);
    for (long m = job->tokens - 1; m >= 0; m--) {
        const unsigned char *token = job->bytes + row * job->bytes_row + 3 * m;
        long cell = job->cell_of_location[token[0]], feature = job->index_of_feature[token[1]];
        if (cell < 0 || feature < 0) continue;
        long bit = cell * job->features + feature;
        if (seen[bit / 32] >> bit % 32 & 1) continue;
        seen[bit / 32] |= 1u << bit % 32;
        vf value = splat(token[2] / job->normalizations[feature]);
        long y = cell / job->width, x = cell % job->width;
        for (long i = down[y].first; i < down[y].last; i++)
            for (long j = across[x].first; j < across[x].last; j++) {
                long within = (y - i * job->stride_height) * job->kernel_width + x - j * job->stride_width;
                float *w = weights + (feature * job->kernel_height * job->kernel_width + within) * padded;
                float *o = output + (i * job->output_width + j) * padded;
                for (long channel = 0; channel < padded; channel += LANES) {
                    float *from = (backward ? o : w) + channel, *to = (backward ? w : o) + channel;
                    store(to, fma_(value, load(from), load(to)));
                }
            }
    }
}

static TARGET void conv_forward_rows(const struct token_conv *job, const float *weights, long first, long last,
                                     float *scratch) {
    long cells = job->output_height * job->output_width, C = job->channels, padded = round_up(C, LANES);
    unsigned *seen = (unsigned *)(scratch + (cells + 1) * padded);
    struct span down[MAX_SIDE], across[MAX_SIDE];
    spans(job->height, job->kernel_height, job->stride_height, job->output_height, down);
    spans(job->width, job->kernel_width, job->stride_width, job->output_width, across);
    for (long row = first; row < last; row++) {
        for (long cell = 0; cell < cells; cell++) memcpy(scratch + cell * padded, job->bias, 4 * C);
        conv_row(job, row, 0, down, across, (float *)weights, scratch, seen);
        for (long cell = 0; cell < cells; cell++)
            memcpy(job->output + (row * cells + cell) * C, scratch + cell * padded, 4 * C);
    }
}

/* `d_weights` belongs to this thread; the bias's gradient follows it. */
static TARGET void conv_backward_rows(const struct token_conv *job, float *d_weights, long first, long last,
                                      float *scratch) {
    long cells = job->output_height * job->output_width, C = job->channels, padded = round_up(C, LANES);
    float *d_bias = d_weights + conv_weights(job);
    unsigned *seen = (unsigned *)(scratch + (cells + 1) * padded);
    struct span down[MAX_SIDE], across[MAX_SIDE];
    spans(job->height, job->kernel_height, job->stride_height, job->output_height, down);
    spans(job->width, job->kernel_width, job->stride_width, job->output_width, across);
    memset(d_weights, 0, 4 * conv_sums(job));
    memset(scratch, 0, 4 * (cells + 1) * padded);
    for (long row = first; row < last; row++) {
        for (long cell = 0; cell < cells; cell++) {
            memcpy(scratch + cell * padded, job->d_output + (row * cells + cell) * C, 4 * C);
            for (long channel = 0; channel < padded; channel += LANES)
                store(d_bias + channel, load(d_bias + channel) + load(scratch + cell * padded + channel));
        }
        conv_row(job, row, 1, down, across, d_weights, scratch, seen);
    }
}

/* Adds up the threads' sums of some columns, in thread order, and writes the gradients. */
static TARGET void conv_sum(const struct token_conv *job, long first, long last, const float *sums) {
    long columns = conv_columns(job), padded = round_up(job->channels, LANES), each = conv_sums(job), threads = job->threads;
    for (long channel = 0; channel < job->channels; channel++)
        for (long column = first; column < last; column++) {
            float sum = 0;
            for (long thread = 0; thread < threads; thread++) sum += sums[thread * each + column * padded + channel];
            job->d_weight[channel * columns + column] = sum;
        }
    for (long channel = 0; channel < job->channels && first == 0; channel++) {
        float sum = 0;
        for (long thread = 0; thread < threads; thread++) sum += sums[thread * each + conv_weights(job) + channel];
        job->d_bias[channel] = sum;
    }
}
