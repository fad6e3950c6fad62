/* Categorical choices, all that is said of a row in one pass: little per row, the same on all kinds of processors. */

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

/* What is said of choices [N]; they are made here, by the noise, if it is not null. Gives how many there cannot be. */
static long choices(const float *logits, const float *noise, long long *index, float *log_prob, float *entropy,
                    float *log_probs, float *probs, long width, long first, long last) {
    long wrong = 0;
    for (long row = first; row < last; row++) {
        float *of_row = log_probs + row * width;
        entropy[row] = distribution(logits + row * width, width, of_row, probs + row * width);
        if (noise) index[row] = place_of(noise[row], probs + row * width, width);
        if (index[row] < 0 || index[row] >= width) wrong++;
        else log_prob[row] = of_row[index[row]];
    }
    return wrong;
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
