/* The recurrence of complex units, s = (real + i imag) * s + drive, and its gradient. Fields in the order of `LRUCall`
 * in lru.py.
 *
 * T steps, B rows, H units; [T, B, 2H] and [B, 2H] hold H real parts beside H imaginary parts, all contiguous. */
struct lru {
    long steps, rows, units, threads;
    const float *drive, *first; /* [T, B, 2H], [B, 2H] */
    const unsigned char *starts; /* [T, B]: an episode starts here, so the state is zero before this step */
    const float *real, *imag; /* [H] */
    float *states; /* [T, B, 2H] */
    /* for the backward pass only */
    const float *d_states;
    float *d_drive, *d_first, *d_real, *d_imag;
};

enum { UNITS = 32 }; /* of one thread at a time: units do not depend on each other */

/* The state before a step, of the units from `unit` on; null where it is zero. */
static const float *lru_before(const struct lru *job, long step, long row, long unit) {
    long width = 2 * job->units;
    if (job->starts[step * job->rows + row]) return NULL;
    return unit + (step ? job->states + ((step - 1) * job->rows + row) * width : job->first + row * width);
}

static void lru_forward_units(const struct lru *job, long unit, long count) {
    long imaginary = job->units;
    const float *restrict real = job->real + unit, *restrict imag = job->imag + unit;
    for (long row = 0; row < job->rows; row++)
        for (long step = 0; step < job->steps; step++) {
            long place = (step * job->rows + row) * 2 * job->units + unit;
            const float *restrict drive = job->drive + place, *before = lru_before(job, step, row, unit);
            float *restrict state = job->states + place;
            if (!before) {
                memcpy(state, drive, count * sizeof *state);
                memcpy(state + imaginary, drive + imaginary, count * sizeof *state);
                continue;
            }
            for (long i = 0; i < count; i++) {
                float re = before[i], im = before[imaginary + i];
                state[i] = drive[i] + real[i] * re - imag[i] * im;
                state[imaginary + i] = drive[imaginary + i] + real[i] * im + imag[i] * re;
            }
        }
}

static void lru_backward_units(const struct lru *job, long unit, long count) {
    long imaginary = job->units;
    const float *restrict real = job->real + unit, *restrict imag = job->imag + unit;
    float d_real[UNITS] = {0}, d_imag[UNITS] = {0};
    for (long row = 0; row < job->rows; row++) {
        float later_re[UNITS] = {0}, later_im[UNITS] = {0}; /* gradient of the state, from the steps after it */
        for (long step = job->steps - 1; step >= 0; step--) {
            long place = (step * job->rows + row) * 2 * job->units + unit;
            const float *restrict d_state = job->d_states + place, *before = lru_before(job, step, row, unit);
            float *restrict d_drive = job->d_drive + place;
            for (long i = 0; i < count; i++) {
                d_drive[i] = d_state[i] + later_re[i];
                d_drive[imaginary + i] = d_state[imaginary + i] + later_im[i];
            }
            if (!before) {
                memset(later_re, 0, sizeof later_re);
                memset(later_im, 0, sizeof later_im);
                continue;
            }
            for (long i = 0; i < count; i++) {
                float d_re = d_drive[i], d_im = d_drive[imaginary + i], re = before[i], im = before[imaginary + i];
                d_real[i] += d_re * re + d_im * im;
                d_imag[i] += d_im * re - d_re * im;
                later_re[i] = real[i] * d_re + imag[i] * d_im;
                later_im[i] = real[i] * d_im - imag[i] * d_re;
            }
        }
        float *d_first = job->d_first + row * 2 * job->units + unit;
        memcpy(d_first, later_re, count * sizeof *d_first);
        memcpy(d_first + imaginary, later_im, count * sizeof *d_first);
    }
    memcpy(job->d_real + unit, d_real, count * sizeof *d_real);
    memcpy(job->d_imag + unit, d_imag, count * sizeof *d_imag);
}

static void lru_run(const struct lru *job, void (*units)(const struct lru *, long unit, long count)) {
#pragma omp parallel for schedule(static) num_threads(job->threads)
    for (long unit = 0; unit < job->units; unit += UNITS)
        units(job, unit, job->units - unit < UNITS ? job->units - unit : UNITS);
}
