/* Categorical choices and the loss of PPO: much that is little per row, each in one pass. The same on all processors. */

/* Of one row of logits: probabilities and their logarithms; gives the entropy. */
static float distribution(const float *logits, long width, float *log_probs, float *probs) {
    float most = logits[0], sum = 0, entropy = 0;
    for (long k = 1; k < width; k++) most = logits[k] > most ? logits[k] : most;
    for (long k = 0; k < width; k++) sum += expf(logits[k] - most);
    float shift = most + logf(sum);
    for (long k = 0; k < width; k++) {
        log_probs[k] = logits[k] - shift;
        probs[k] = expf(log_probs[k]);
        entropy -= probs[k] * log_probs[k];
    }
    return entropy;
}

/* The place whose share of the sum of all probabilities holds the noise in [0, 1). */
static long place_of(float noise, const float *probs, long width) {
    float total = 0, sum = 0;
    for (long k = 0; k < width; k++) total += probs[k];
    for (long k = 0; k < width - 1; k++) {
        sum += probs[k];
        if (sum > noise * total) return k;
    }
    return width - 1;
}

/* What is said of choices [N]; they are made here, by the noise, if it is not null. */
static void choices(const float *logits, const float *noise, long long *index, float *log_prob, float *entropy,
                    float *log_probs, float *probs, long width, long first, long last) {
    for (long row = first; row < last; row++) {
        float *of_row = log_probs + row * width;
        entropy[row] = distribution(logits + row * width, width, of_row, probs + row * width);
        if (noise) index[row] = place_of(noise[row], probs + row * width, width);
        log_prob[row] = of_row[index[row]];
    }
}

/* The gradient of the logits from those of the choices' log-probability and of the entropy; either may be null. */
static void choices_backward(const long long *index, const float *log_probs, const float *probs, const float *entropy,
                             const float *d_log_prob, const float *d_entropy, float *d_logits, long width, long first,
                             long last) {
    for (long row = first; row < last; row++) {
        float of_choice = d_log_prob ? d_log_prob[row] : 0, of_entropy = d_entropy ? d_entropy[row] : 0;
        for (long k = row * width; k < (row + 1) * width; k++)
            d_logits[k] = -probs[k] * (of_choice + of_entropy * (log_probs[k] + entropy[row]));
        d_logits[row * width + index[row]] += of_choice;
    }
}

/* The loss of PPO. The fields and their order are those of `Job` in ppo.py. */
struct ppo {
    long count;
    const float *log_prob, *entropy, *value, *old_log_prob, *old_value, *advantages, *returns, *weights;
    float clip, vf_clip, value_unit, vf_coef, ent_coef; /* vf_clip: negative if values are not clipped */
    float *sums; /* of what is gained, of errors of values, entropies, divergences and clipped ratios, by weight */
    float *d_log_prob, *d_entropy, *d_value;
};

/* The square of a value's error in its unit, clipped as the policy is, and the derivative by the value in it. */
static float value_error(const struct ppo *job, long i, float *derivative) {
    float error = (job->value[i] - job->returns[i]) / job->value_unit;
    *derivative = 2 * error;
    if (job->vf_clip < 0) return error * error;
    float moved = (job->value[i] - job->old_value[i]) / job->value_unit;
    float near = moved < -job->vf_clip ? -job->vf_clip : moved > job->vf_clip ? job->vf_clip : moved;
    float error_near = error + (near - moved);
    if (error * error >= error_near * error_near) return error * error;
    *derivative = near == moved ? 2 * error_near : 0;
    return error_near * error_near;
}

static void ppo_loss(const struct ppo *job) {
    double gained = 0, errors = 0, entropies = 0, divergence = 0, clipped = 0;
    for (long i = 0; i < job->count; i++) {
        float weight = job->weights[i], log_ratio = job->log_prob[i] - job->old_log_prob[i], ratio = expf(log_ratio);
        float least = 1 - job->clip, most = 1 + job->clip, bounded = ratio < least ? least : ratio > most ? most : ratio;
        float gain = ratio * job->advantages[i], bounded_gain = bounded * job->advantages[i], d_error;
        float error = value_error(job, i, &d_error);
        gained += weight * (bounded_gain < gain ? bounded_gain : gain);
        errors += weight * error;
        entropies += weight * job->entropy[i];
        divergence += weight * (ratio - 1 - log_ratio);
        clipped += ratio != bounded ? weight : 0;
        job->d_log_prob[i] = bounded_gain < gain ? 0 : -weight * gain;
        job->d_entropy[i] = -job->ent_coef * weight;
        job->d_value[i] = weight * d_error * 0.5f * job->vf_coef / job->value_unit;
    }
    job->sums[0] = gained, job->sums[1] = errors, job->sums[2] = entropies;
    job->sums[3] = divergence, job->sums[4] = clipped;
}
