/* The C interface of the kernels: splits the work among threads and selects the code for this processor. */

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernels.h"
#include "lru.h"
#include "ppo.h"

static const struct kernels *const VARIANTS[] = {
#if defined(__x86_64__)
    &kernels_avx512,
    &kernels_avx2,
#endif
    &kernels_plain,
};

static const struct kernels *chosen; /* by engram_select */

/* Selects the instruction set of this name, or the fastest one if null. Returns its name, or null if unsupported. */
const char *engram_select(const char *name) {
    for (size_t i = 0; i < sizeof VARIANTS / sizeof *VARIANTS; i++) {
        const char *found = VARIANTS[i]->name;
#if defined(__x86_64__)
        if (!strcmp(found, "avx512") && !__builtin_cpu_supports("avx512f")) continue;
        if (!strcmp(found, "avx2") && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) continue;
#endif
        if (name && strcmp(found, name)) continue;
        chosen = VARIANTS[i];
        return found;
    }
    return NULL;
}

/* The selected instruction set. */
const char *engram_instruction_set(void) { return chosen->name; }

/* Hash of the sources. A library built from other sources is not used. */
const char *engram_sources(void) { return ENGRAM_SOURCES; }

static long panels(const struct lstm *job) { return (job->hidden + chosen->lanes - 1) / chosen->lanes; }

/* Start of a thread's share of `count` items. Shares are multiples of `unit`, except the last. */
static long share(long count, long threads, long thread, long unit) {
    long each = ((count + threads - 1) / threads + unit - 1) / unit * unit;
    return each * thread < count ? each * thread : count;
}

/* First row of a thread. */
static long first_row(long rows, long threads, long thread) { return rows * thread / threads; }

/* Packed weights that fit into a core's own cache are packed by each thread: faster than fetching them from another
 * core. Larger ones are packed together and shared. */
enum { OWN_WEIGHTS = 1 << 18 };

static long copies(long weights, long threads) { return weights <= OWN_WEIGHTS ? threads : 1; }

long engram_lstm_forward_scratch(const struct lstm *job) {
    long weights = chosen->forward_weights(job);
    return copies(weights, job->threads) * weights + job->threads * chosen->forward_scratch(job);
}

void engram_lstm_forward(const struct lstm *job) {
    long size = chosen->forward_weights(job), each = chosen->forward_scratch(job), count = panels(job);
    long threads = job->threads, shared = copies(size, threads) < threads, together = shared ? count : 0;
    float *weights = job->scratch, *scratch = weights + copies(size, threads) * size;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long panel = 0; panel < together; panel++) chosen->forward_pack(job, panel, weights);
#pragma omp for schedule(static)
        for (long thread = 0; thread < threads; thread++) {
            float *own = shared ? weights : weights + thread * size;
            for (long panel = together; panel < count; panel++) chosen->forward_pack(job, panel, own);
            chosen->forward_rows(job, own, first_row(job->rows, threads, thread), first_row(job->rows, threads, thread + 1),
                                 scratch + thread * each);
        }
    }
}

long engram_lstm_backward_scratch(const struct lstm *job) {
    long weights = chosen->backward_weights(job);
    return copies(weights, job->threads) * weights + job->threads * chosen->backward_scratch(job);
}

void engram_lstm_backward(const struct lstm *job) {
    long size = chosen->backward_weights(job), each = chosen->backward_scratch(job), count = panels(job);
    long threads = job->threads, shared = copies(size, threads) < threads;
    long groups = chosen->backward_groups(job), together = shared ? groups : 0;
    float *weights = job->scratch, *scratch = weights + copies(size, threads) * size;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long group = 0; group < together; group++) chosen->backward_pack(job, group, weights);
#pragma omp for schedule(static)
        for (long thread = 0; thread < threads; thread++) {
            float *own = shared ? weights : weights + thread * size;
            for (long group = together; group < groups; group++) chosen->backward_pack(job, group, own);
            chosen->backward_rows(job, own, first_row(job->rows, threads, thread),
                                  first_row(job->rows, threads, thread + 1), scratch + thread * each);
        }
#pragma omp for schedule(static)
        for (long panel = 0; panel < count; panel++) chosen->backward_sum(job, panel, scratch, threads);
    }
}

/* Per thread: gradient sums as large as the weights, and scratch. Forward, the packed weights use the first sums. */
long engram_token_conv_scratch(const struct token_conv *job) {
    return job->threads * (chosen->conv_sums(job) + chosen->conv_scratch(job));
}

void engram_token_conv_forward(const struct token_conv *job) {
    long threads = job->threads, each = chosen->conv_scratch(job), columns = chosen->conv_columns(job);
    float *weights = job->scratch, *scratch = weights + threads * chosen->conv_sums(job);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long i = 0; i < threads; i++)
            chosen->conv_pack(job, share(columns, threads, i, 8), share(columns, threads, i + 1, 8), weights);
#pragma omp for schedule(static)
        for (long i = 0; i < threads; i++)
            chosen->conv_forward_rows(job, weights, share(job->rows, threads, i, 1), share(job->rows, threads, i + 1, 1),
                                      scratch + i * each);
    }
}

void engram_token_conv_backward(const struct token_conv *job) {
    long threads = job->threads, each = chosen->conv_scratch(job), columns = chosen->conv_columns(job);
    float *sums = job->scratch, *scratch = sums + threads * chosen->conv_sums(job);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long i = 0; i < threads; i++)
            chosen->conv_backward_rows(job, sums + i * chosen->conv_sums(job), share(job->rows, threads, i, 1),
                                       share(job->rows, threads, i + 1, 1), scratch + i * each);
#pragma omp for schedule(static)
        for (long i = 0; i < threads; i++)
            chosen->conv_sum(job, share(columns, threads, i, 8), share(columns, threads, i + 1, 8), sums);
    }
}

long engram_layers_forward_scratch(const struct layers *job) {
    return chosen->layers_weights(job) + job->threads * chosen->layers_scratch(job);
}

void engram_layers_forward(const struct layers *job) {
    long each = chosen->layers_scratch(job), panels = chosen->layers_panels(job);
    float *weights = job->scratch, *scratch = weights + chosen->layers_weights(job);
#pragma omp parallel num_threads(job->threads)
    {
#pragma omp for schedule(static)
        for (long panel = 0; panel < panels; panel++) chosen->layers_pack(job, panel, weights);
#pragma omp for schedule(static)
        for (long i = 0; i < job->threads; i++)
            chosen->layers_forward_rows(job, weights, first_row(job->rows, job->threads, i),
                                        first_row(job->rows, job->threads, i + 1), scratch + i * each);
    }
}

long engram_layers_backward_scratch(const struct layers *job) {
    return chosen->layers_backward_weights(job) + job->threads * chosen->layers_backward_scratch(job);
}

void engram_layers_backward(const struct layers *job) {
    long each = chosen->layers_backward_scratch(job), panels = chosen->layers_panels(job);
    long groups = chosen->layers_groups(job);
    float *weights = job->scratch, *scratch = weights + chosen->layers_backward_weights(job);
#pragma omp parallel num_threads(job->threads)
    {
#pragma omp for schedule(static)
        for (long group = 0; group < groups; group++) chosen->layers_backward_pack(job, group, weights);
#pragma omp for schedule(static)
        for (long i = 0; i < job->threads; i++)
            chosen->layers_backward_rows(job, weights, first_row(job->rows, job->threads, i),
                                         first_row(job->rows, job->threads, i + 1), scratch + i * each);
#pragma omp for schedule(static)
        for (long panel = 0; panel < panels; panel++) chosen->layers_backward_sum(job, panel, scratch, job->threads);
    }
}

void engram_ppo_loss(const struct ppo *job) { ppo_loss(job); }

void engram_lru_forward(const struct lru *job) { lru_run(job, lru_forward_units); }

void engram_lru_backward(const struct lru *job) { lru_run(job, lru_backward_units); }
