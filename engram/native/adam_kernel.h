/* The Adam step and gradient norms, for one instruction set. */

/* Sum of squares: float sums of short chunks, added in double for precision. */
static TARGET double squares_of(const float *x, long count) {
    enum { CHUNK = 64 * LANES };
    double total = 0;
    for (long i = 0; i < count; i += CHUNK) {
        vf sum = {0};
        for (long k = i; k < count && k < i + CHUNK; k += LANES) {
            vf value = load_some(x + k, count - k);
            sum = fma_(value, value, sum);
        }
        for (int lane = 0; lane < LANES; lane++) total += sum[lane];
    }
    return total;
}

/* Elements [first, last) of an array, with its gradient multiplied by `clip`. */
static TARGET void adam_step(const struct adam *job, long array, long first, long last, float clip) {
    float *weights = job->weights[array], *means = job->means[array], *squares = job->squares[array];
    double steps = *job->steps[array];
    const vf rate = splat(job->rate / (1 - pow(job->beta1, steps))), unbias = splat(1 / sqrt(1 - pow(job->beta2, steps)));
    const vf new_mean = splat(1 - job->beta1), old_square = splat(job->beta2), new_square = splat(1 - job->beta2);
    const vf decay = splat(job->decoupled ? 0 : job->decay), eps = splat(job->eps), scale = splat(clip);
    const vf keep = splat(job->decoupled ? 1 - job->rate * job->decay : 1);
    for (long i = first; i < last; i += LANES) {
        vf weight = load_some(weights + i, last - i), mean = load_some(means + i, last - i);
        vf gradient = fma_(decay, weight, scale * load_some(job->gradients[array] + i, last - i));
        vf square = old_square * load_some(squares + i, last - i);
        mean = fma_(new_mean, gradient - mean, mean);
        square = fma_(new_square, gradient * gradient, square);
        store_some(means + i, mean, last - i);
        store_some(squares + i, square, last - i);
        store_some(weights + i, keep * weight - rate * mean / fma_(square_root(square), unbias, eps), last - i);
    }
}
