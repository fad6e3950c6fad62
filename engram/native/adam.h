/* A clipped step of Adam over many arrays. The fields and their order are those of `Job` in adam.py. */
struct adam {
    long arrays, threads;
    const long *sizes;
    float *const *weights;
    float *const *means, *const *squares; /* running averages of gradients and of their squares */
    float *const *steps; /* how many there were, of each array */
    const float *const *gradients; /* null for an array that is left alone */
    double *sums; /* room for a number of each array and thread */
    float *norms; /* of each gradient, before clipping */
    double most; /* norm of all gradients together: larger ones are scaled down to it */
    double rate, beta1, beta2, eps, decay;
    long decoupled; /* weights decay by themselves, as in AdamW, not by way of the gradient */
};
