/* Vectors of floats, with sigmoid and tanh, for one instruction set.
 *
 * Included by one source file per instruction set, which defines LANES (floats in a vector) and TARGET (a function
 * attribute). Sums are explicit fused multiply-adds and the compiler may fuse nothing else, so results do not depend on
 * inlining. */

#include <math.h>
#include <string.h>
#if LANES > 4
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline)) TARGET

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef unsigned vu __attribute__((vector_size(4 * LANES)));
typedef float vf_anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vf load(const float *from) { return *(const vf_anywhere *)from; }
INLINE void store(float *to, vf value) { *(vf_anywhere *)to = value; }

/* Load or store the first `count` lanes, for sizes that are not a multiple of LANES. */
INLINE vf load_some(const float *from, long count) {
    vf value = {0};
    if (count >= LANES) return load(from);
    memcpy(&value, from, 4 * count);
    return value;
}

INLINE void store_some(float *to, vf value, long count) {
    if (count >= LANES) store(to, value);
    else memcpy(to, &value, 4 * count);
}

#if LANES == 16
INLINE vf splat(float x) { return (vf)_mm512_set1_ps(x); }
INLINE vf fma_(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
/* Maximum and minimum of a bound and x. These instructions return the second operand if either is NaN: NaN stays NaN. */
INLINE vf larger(vf bound, vf x) { return (vf)_mm512_max_ps((__m512)bound, (__m512)x); }
INLINE vf smaller(vf bound, vf x) { return (vf)_mm512_min_ps((__m512)bound, (__m512)x); }
#elif LANES == 8
INLINE vf splat(float x) { return (vf)_mm256_set1_ps(x); }
INLINE vf fma_(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE vf larger(vf bound, vf x) { return (vf)_mm256_max_ps((__m256)bound, (__m256)x); }
INLINE vf smaller(vf bound, vf x) { return (vf)_mm256_min_ps((__m256)bound, (__m256)x); }
#else
INLINE vf splat(float x) { return (vf){x, x, x, x}; }
INLINE vf fma_(vf a, vf b, vf c) {
#ifdef __aarch64__
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
INLINE vf larger(vf bound, vf x) {
    vu take = (vu)(bound > x);
    return (vf)((take & (vu)bound) | (~take & (vu)x));
}
INLINE vf smaller(vf bound, vf x) {
    vu take = (vu)(bound < x);
    return (vf)((take & (vu)bound) | (~take & (vu)x));
}
#endif

/* Sum of all lanes, pairwise. */
INLINE float sum_of(vf x) {
    float part[LANES];
    store(part, x);
    for (int half = LANES / 2; half; half /= 2)
        for (int lane = 0; lane < half; lane++) part[lane] += part[lane + half];
    return part[0];
}

/* 1 / (1 + exp(-x)), accurate to about two ulp: exp as a power of two times a polynomial of the remainder. */
INLINE vf sigmoid(vf x) {
    const vf shift = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer in the lowest bits */
    vf z = larger(splat(-87.0f), smaller(splat(87.0f), -x));
    vf shifted = fma_(z, splat(1.44269504f), shift);
    vf whole = shifted - shift;
    vf rest = fma_(whole, splat(2.12194440e-4f), fma_(whole, splat(-0.693359375f), z));
    vf p = fma_(splat(1.9875691500e-4f), rest, splat(1.3981999507e-3f));
    p = fma_(p, rest, splat(8.3334519073e-3f));
    p = fma_(p, rest, splat(4.1665795894e-2f));
    p = fma_(p, rest, splat(1.6666665459e-1f));
    p = fma_(p, rest, splat(5.0000001201e-1f));
    p = fma_(p, rest * rest, rest + splat(1.0f));
    vf power = (vf)(((vu)shifted << 23) + 0x3f800000u);
    return splat(1.0f) / fma_(p, power, splat(1.0f));
}

/* tanh as a quotient of polynomials, accurate to a few ulp, also near 0. */
INLINE vf tanh_(vf x) {
    x = larger(splat(-7.90531110763549805f), smaller(splat(7.90531110763549805f), x));
    vf s = x * x;
    vf p = fma_(s, splat(-2.76076847742355e-16f), splat(2.00018790482477e-13f));
    p = fma_(p, s, splat(-8.60467152213735e-11f));
    p = fma_(p, s, splat(5.12229709037114e-08f));
    p = fma_(p, s, splat(1.48572235717979e-05f));
    p = fma_(p, s, splat(6.37261928875436e-04f));
    p = fma_(p, s, splat(4.89352455891786e-03f));
    vf q = fma_(s, splat(1.19825839466702e-06f), splat(1.18534705686654e-04f));
    q = fma_(q, s, splat(2.26843463243900e-03f));
    q = fma_(q, s, splat(4.89352518554385e-03f));
    return x * p / q;
}
