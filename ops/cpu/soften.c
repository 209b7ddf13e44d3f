/* soften.c: the softmax between attention's products when these use pairs: a row of KB scores in registers at a time.
 * The maximum that is subtracted is renewed only when a score exceeds it by more than LEAD. So sums are at most e^LEAD
 * times larger, and lse and o are the same. Sums of a row stay in vector lanes to the end. attend.c includes it after
 * Block. */
#ifdef __AVX512BF16__
enum { PARTS = KB / W, LEAD = 8 };

/* e^x to a relative error of 3e-6, for x below -104 as for -104; NaN stays NaN. The result is rounded to 8 bits, or
 * summed. */
INLINE __m512 exp_vec(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-104), x);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT),
           r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693147181f), x), p = _mm512_set1_ps(1.0f / 120);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
    return _mm512_scalef_ps(p, n);
}
INLINE __mmask16 part_of(uint64_t bits, int v) { return (__mmask16)(bits >> (v * W)); }
INLINE uint64_t below_bit(int n) { return n >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << imax(n, 0)) - 1; }
/* A bit for each of the keys j0..j0+n-1 that entry i sees. */
INLINE uint64_t seen_keys(const Block *b, int i, const int *kpos, int j0, int n) {
    uint64_t bits = below_bit(imin(n, b->row[i] - j0 + 1)) & ~below_bit(b->from[i] - j0);
    if (!b->spec.window) return bits;
    if (b->from[i] <= j0 && !b->loose && b->pos[i] - kpos[0] < b->spec.window) return bits; /* all in one document */
    for (int v = 0; v < PARTS; v++) {
        __m512i at = _mm512_maskz_loadu_epi32(part_of(below_bit(n), v), kpos + v * W),
                age = _mm512_sub_epi32(_mm512_set1_epi32(b->pos[i]), at);
        uint64_t ok = _mm512_cmplt_epi32_mask(age, _mm512_set1_epi32(b->spec.window)) |
                      _mm512_cmplt_epi32_mask(at, _mm512_set1_epi32(b->spec.sinks));
        bits &= ~((uint64_t)0xFFFF << (v * W)) | ok << (v * W);
    }
    return bits;
}
/* A bit for each of n keys whose bias applies to entry i. */
INLINE uint64_t biased_keys(const Block *b, int i, const int *kpos, int n) {
    uint64_t bits = 0;
    for (int v = 0; v < PARTS; v++) {
        __mmask16 in = part_of(below_bit(n), v);
        bits |= (uint64_t)_mm512_mask_cmplt_epi32_mask(in, _mm512_maskz_loadu_epi32(in, kpos + v * W),
                                                       _mm512_set1_epi32(b->pos[i] - b->delay))
                << (v * W);
    }
    return bits;
}
/* The scores of entry i, with biases; *seen: which of them it sees. */
INLINE void scores_of_row(__m512 x[PARTS], const Block *b, int i, const int *kpos, const real *bias, int j0, int n,
                          uint64_t *seen) {
    uint64_t biased = bias ? biased_keys(b, i, kpos, n) : 0;
    *seen = seen_keys(b, i, kpos, j0, n);
    #pragma GCC unroll 4
    for (int v = 0; v < PARTS; v++) {
        x[v] = _mm512_loadu_ps(b->s + i * KB + v * W);
        if (bias) x[v] = _mm512_add_ps(x[v], _mm512_maskz_loadu_ps(part_of(biased, v), bias + v * W));
    }
}

/* As soften, but the results go to b->sp and sums to b->lanes. */
static void soften_pairs(Block *b, const int *kpos, const real *bias, int j0, int n) {
    const __m512 none = _mm512_set1_ps(-INFINITY);
    for (int i = 0; i < b->n; i++) {
        __m512 x[PARTS], l = _mm512_loadu_ps(b->lanes + i * W), lead = _mm512_set1_ps(b->m[i] + LEAD);
        Pair *to = b->sp + i * KB / 2;
        uint64_t seen;
        unsigned over = 0, nan = 0;
        scores_of_row(x, b, i, kpos, bias, j0, n, &seen);
        if (~seen)
    #pragma GCC unroll 4
            for (int v = 0; v < PARTS; v++) x[v] = _mm512_mask_mov_ps(none, part_of(seen, v), x[v]);
    #pragma GCC unroll 4
        for (int v = 0; v < PARTS; v++) over |= _mm512_cmp_ps_mask(x[v], lead, _CMP_GT_OQ);
        if (over) {
            __m512 most = _mm512_set1_ps(b->m[i]);
    #pragma GCC unroll 4
            /* the maximum of NaN and a number is the number */
            for (int v = 0; v < PARTS; v++) most = _mm512_max_ps(x[v], most);
            float top = _mm512_reduce_max_ps(most), fade = exp_real(b->m[i] - top);
            l = _mm512_mul_ps(l, _mm512_set1_ps(fade));
            for (int c = 0; c < b->Dv; c++) b->o[i * b->Dv + c] *= fade;
            b->m[i] = top;
        }
        if (b->m[i] == -INFINITY) { /* nothing seen so far, but for NaN perhaps */
    #pragma GCC unroll 4
            for (int v = 0; v < PARTS; v++) nan |= _mm512_cmp_ps_mask(x[v], x[v], _CMP_UNORD_Q);
            if (nan) _mm512_storeu_ps(b->lanes + i * W, _mm512_set1_ps(NAN));
            memset(to, 0, KB / 2 * sizeof *to);
            continue;
        }
    #pragma GCC unroll 4
        for (int v = 0; v < PARTS; v++) {
            x[v] = exp_vec(_mm512_sub_ps(x[v], _mm512_set1_ps(b->m[i])));
            if (~seen) x[v] = _mm512_maskz_mov_ps(part_of(seen, v), x[v]);
            l = _mm512_add_ps(l, x[v]);
        }
        _mm512_storeu_ps(b->lanes + i * W, l);
    #pragma GCC unroll 2
        for (int v = 0; v < PARTS; v += 2)
            _mm512_storeu_si512(to + v * W / 2, (__m512i)_mm512_cvtne2ps_pbh(x[v + 1], x[v]));
    }
}
static void soften_begin(Block *b) {
    memset(b->lanes, 0, (size_t)b->n * W * sizeof(real));
    for (int i = 0; i < b->n; i++) b->lanes[i * W] = b->l[i];
}
static void soften_end(Block *b) {
    for (int i = 0; i < b->n; i++) b->l[i] = _mm512_reduce_add_ps(_mm512_loadu_ps(b->lanes + i * W));
}

/* p = exp(s - lse) and d = p (d - delta) from the scores in b->s and d (QB,KB): d as pairs along the row to b->sp,
 * both as pairs of rows to pb and db; dbias (KB) += the columns of d that had a bias. */
static void soften_back(Block *b, const real *d, Pair *pb, Pair *db, const int *kpos, const real *bias, real *dbias,
                        int j0, int n, const real *lse, const real *delta) {
    for (int i = 0; i < b->n; i += 2, pb += KB, db += KB) {
        __m512 p[2][PARTS], g[2][PARTS];
        for (int k = 0; k < 2; k++) {
            uint64_t seen;
            if (i + k == b->n) {
    #pragma GCC unroll 4
                for (int v = 0; v < PARTS; v++) p[k][v] = g[k][v] = _mm512_setzero_ps();
                break;
            }
            scores_of_row(p[k], b, i + k, kpos, bias, j0, n, &seen);
    #pragma GCC unroll 4
            for (int v = 0; v < PARTS; v++) {
                __m512 x = exp_vec(_mm512_sub_ps(p[k][v], _mm512_set1_ps(lse[i + k])));
                if (~seen) x = _mm512_maskz_mov_ps(part_of(seen, v), x);
                __m512 y = _mm512_loadu_ps(d + (i + k) * KB + v * W);
                p[k][v] = x, g[k][v] = _mm512_mul_ps(x, _mm512_sub_ps(y, _mm512_set1_ps(delta[i + k])));
                if (~seen) g[k][v] = _mm512_maskz_mov_ps(part_of(seen, v), g[k][v]); /* y can be anything there */
            }
            if (bias) {
                uint64_t biased = biased_keys(b, i + k, kpos, n);
                for (int v = 0; v < PARTS; v++) {
                    __m512 sum = _mm512_loadu_ps(dbias + v * W);
                    _mm512_storeu_ps(dbias + v * W, _mm512_mask_add_ps(sum, part_of(biased, v), sum, g[k][v]));
                }
            }
            Pair *to = b->sp + (i + k) * KB / 2;
    #pragma GCC unroll 2
            for (int v = 0; v < PARTS; v += 2)
                _mm512_storeu_si512(to + v * W / 2, (__m512i)_mm512_cvtne2ps_pbh(g[k][v + 1], g[k][v]));
        }
    #pragma GCC unroll 4
        for (int v = 0; v < PARTS; v++) {
            _mm512_storeu_si512(pb + v * W, pairs_of(p[0][v], p[1][v]));
            _mm512_storeu_si512(db + v * W, pairs_of(g[0][v], g[1][v]));
        }
    }
}
#else
static void soften_begin(Block *b) { (void)b; }
static void soften_end(Block *b) { (void)b; }
static void clear_from(real *x, int n, int rows) {
    for (int i = 0; i < rows; i++) memset(x + i * KB + n, 0, (size_t)(KB - n) * sizeof *x);
}
static void soften_pairs(Block *b, const int *kpos, const real *bias, int j0, int n) {
    soften(b, kpos, bias, j0, n);
    clear_from(b->s, n, b->n);
    pairs_along(b->sp, b->s, b->n, KB);
}
static void soften_back(Block *b, real *d, Pair *pb, Pair *db, const int *kpos, const real *bias, real *dbias, int j0,
                        int n, const real *lse, const real *delta) {
    rows_back(b, d, kpos, bias, dbias, j0, n, lse, delta);
    clear_from(b->s, n, b->n);
    clear_from(d, n, b->n);
    pairs_below(pb, rows_wide(b->s, KB), b->n, KB);
    pairs_below(db, rows_wide(d, KB), b->n, KB);
    pairs_along(b->sp, d, b->n, KB);
}
#endif
