/* The PPO loss and its gradient, in one pass. Fields in the order of `PPOCall` in ppo.py. */
struct ppo {
    long count;
    const float *log_prob, *entropy, *value, *old_log_prob, *old_value, *advantages, *returns, *weights;
    float value_unit, clip, vf_clip, vf_coef, ent_coef; /* negative vf_clip: no value clipping */
    float *losses; /* weighted: total, policy loss, value loss, entropy, KL divergence, fraction of clipped ratios */
    float *d_log_prob, *d_entropy, *d_value;
};

/* The squared value error in value units, clipped, and its derivative. */
static float value_error(const struct ppo *job, long i, float *derivative) {
    float error = (job->value[i] - job->returns[i]) / job->value_unit;
    *derivative = 2 * error;
    if (job->vf_clip < 0) return error * error;
    float moved = (job->value[i] - job->old_value[i]) / job->value_unit;
    float near = moved < -job->vf_clip ? -job->vf_clip : moved > job->vf_clip ? job->vf_clip : moved;
    float error_near = error + (near - moved);
    if (!isfinite(moved)) error_near = (job->old_value[i] - job->returns[i]) / job->value_unit + near;
    float far_square = error * error, near_square = error_near * error_near;
    if (!(far_square < near_square)) return far_square >= near_square ? far_square : far_square + near_square;  /* NaN */
    *derivative = near == moved ? 2 * error_near : 0;
    return near_square;
}

static void ppo_loss(const struct ppo *job) {
    double gained = 0, errors = 0, entropies = 0, divergence = 0, clipped = 0;
    for (long i = 0; i < job->count; i++) {
        float weight = job->weights[i], log_ratio = job->log_prob[i] - job->old_log_prob[i], ratio = expf(log_ratio);
        float low = 1 - job->clip, high = 1 + job->clip, bounded = ratio < low ? low : ratio > high ? high : ratio;
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
    job->losses[0] = -gained + job->vf_coef * 0.5 * errors - job->ent_coef * entropies;
    job->losses[1] = -gained, job->losses[2] = 0.5 * errors;
    job->losses[3] = entropies, job->losses[4] = divergence, job->losses[5] = clipped;
}
