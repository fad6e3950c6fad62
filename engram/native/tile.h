/* The inner loop of all matrix products: a few rows by four vectors of sums, held in registers. */

#define WIDTH (4 * LANES) /* of a tile, in floats */
#if LANES == 16 || defined(__aarch64__)
enum { HEIGHT = 6 }; /* 32 registers */
#else
enum { HEIGHT = 3 }; /* 16 registers */
#endif

static inline long round_up(long n, long to) { return (n + to - 1) / to * to; }

/* out[r] = begin[r] + sum over k of a[r * a_row + k * a_next] * b[k], for `height` rows of WIDTH floats.
 *
 * Each sum runs in the order of k, one product at a time, whatever the height. So a row's result does not depend on the
 * other rows of its tile. */
INLINE void products(const int height, const float *a, long a_row, const long a_next, const float *b, long depth,
                     const float *begin, long begin_row, float *out) {
    vf sums[6][4];
    for (int r = 0; r < height; r++)
        for (int v = 0; v < 4; v++) sums[r][v] = load(begin + r * begin_row + v * LANES);
    for (long k = 0; k < depth; k++) {
        vf factors[6];
        for (int r = 0; r < height; r++) factors[r] = splat(a[r * a_row + k * a_next]);
        for (int v = 0; v < 4; v++) {
            vf weights = load(b + k * WIDTH + v * LANES);
            for (int r = 0; r < height; r++) sums[r][v] = fma_(factors[r], weights, sums[r][v]);
        }
    }
    for (int r = 0; r < height; r++)
        for (int v = 0; v < 4; v++) store(out + r * WIDTH + v * LANES, sums[r][v]);
}

#define TILE_CASE(n) \
    case n: products(n, a, a_row, a_next, b, depth, begin, begin_row, out); break;

INLINE void tile_of(int height, const float *a, long a_row, const long a_next, const float *b, long depth,
                    const float *begin, long begin_row, float *out) {
    switch (height) {
        TILE_CASE(1) TILE_CASE(2) TILE_CASE(3)
#if LANES == 16 || defined(__aarch64__)
        TILE_CASE(4) TILE_CASE(5) TILE_CASE(6)
#endif
    }
}

/* For `rows` rows: sums[r] = begin[r] + a[r] * b, b [depth, WIDTH]. `begin` may be `sums` itself. */
__attribute__((noinline)) TARGET static void add_products(long rows, const float *a, long a_row, const float *b,
                                                          long depth, const float *begin, long begin_row,
                                                          float *sums) {
    long tiles = (rows + HEIGHT - 1) / HEIGHT; /* of about equal height, since low tiles waste multipliers */
    for (long k = 0; k < depth; k += DEPTH) {
        long now = depth - k < DEPTH ? depth - k : DEPTH;
        for (long i = 0, r = 0, next; i < tiles; i++, r = next) {
            next = rows * (i + 1) / tiles;
            tile_of(next - r, a + r * a_row + k, a_row, 1, b + k * WIDTH, now, begin + r * begin_row, begin_row,
                    sums + r * WIDTH);
        }
        begin = sums, begin_row = WIDTH;
    }
}

#undef TILE_CASE

/* A square of at most SQUARE rows and columns, transposed. */
#if LANES > 4
enum { SQUARE = 8 };
INLINE void copy_square(const float *from, long from_row, float *to, long to_row) {
    __m256 a[8], b[8];
    for (int r = 0; r < 8; r++) a[r] = _mm256_loadu_ps(from + r * from_row);
    for (int r = 0; r < 8; r += 2) {
        b[r] = _mm256_unpacklo_ps(a[r], a[r + 1]);
        b[r + 1] = _mm256_unpackhi_ps(a[r], a[r + 1]);
    }
    for (int r = 0; r < 8; r += 4) {
        a[r] = _mm256_shuffle_ps(b[r], b[r + 2], 0x44);
        a[r + 1] = _mm256_shuffle_ps(b[r], b[r + 2], 0xee);
        a[r + 2] = _mm256_shuffle_ps(b[r + 1], b[r + 3], 0x44);
        a[r + 3] = _mm256_shuffle_ps(b[r + 1], b[r + 3], 0xee);
    }
    for (int r = 0; r < 4; r++) {
        _mm256_storeu_ps(to + r * to_row, _mm256_permute2f128_ps(a[r], a[r + 4], 0x20));
        _mm256_storeu_ps(to + (r + 4) * to_row, _mm256_permute2f128_ps(a[r], a[r + 4], 0x31));
    }
}
#else
enum { SQUARE = 4 };
INLINE void copy_square(const float *from, long from_row, float *to, long to_row) {
    for (int r = 0; r < 4; r++)
        for (int k = 0; k < 4; k++) to[k * to_row + r] = from[r * from_row + k];
}
#endif

INLINE void copy_transposed(const float *from, long from_row, float *to, long to_row, long rows, long columns) {
    if (rows >= SQUARE && columns >= SQUARE) {
        copy_square(from, from_row, to, to_row);
        return;
    }
    for (long r = 0; r < rows && r < SQUARE; r++)
        for (long k = 0; k < columns && k < SQUARE; k++) to[k * to_row + r] = from[r * from_row + k];
}
