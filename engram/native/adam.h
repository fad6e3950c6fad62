/* A clipped Adam step over many arrays. Fields in the order of `AdamCall` in adam.py. */
struct adam {
    long arrays, threads;
    const long *sizes;
    float *const *weights;
    float *const *means, *const *squares; /* running averages of gradients and of their squares */
    float *const *steps; /* number of steps so far, per array */
    const float *const *gradients; /* null: the array is skipped */
    double *sums; /* scratch: one number per array and thread */
    float *norms; /* of each gradient, before clipping */
    double max_norm; /* the gradients are scaled down to this total norm */
    double rate, beta1, beta2, eps, decay;
    long decoupled; /* weight decay as in AdamW, not through the gradient */
};
