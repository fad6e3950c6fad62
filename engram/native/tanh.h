/* tanh of many numbers, and its gradient: the function that an LSTM's gates use, on whole arrays. */

static TARGET void tanh_of(const float *x, float *y, long count) {
    for (long i = 0; i < count; i += LANES) store_some(y + i, hyperbolic(load_some(x + i, count - i)), count - i);
}

/* From y = tanh(x) and the gradient of y, that of x. */
static TARGET void tanh_gradient(const float *y, const float *d_y, float *d_x, long count) {
    const vf one = splat(1.0f);
    for (long i = 0; i < count; i += LANES) {
        vf value = load_some(y + i, count - i);
        store_some(d_x + i, load_some(d_y + i, count - i) * fma_(-value, value, one), count - i);
    }
}
