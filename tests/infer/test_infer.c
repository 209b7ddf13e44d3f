/* Sampling and text: the parts of inference that need no model. */
#include "tests/lib/check.h"
#include "infer/sampler.h"
#include "infer/text.h"

static Err err;

/* ---- sampler: against the definition, rank by rank, O(V^2) ----------------------------------------------------------
 */
enum { VOCAB = 40 };

static void reference(const Sampler *s, const real *logits, const unsigned char *seen, double p[VOCAB]) {
    double l[VOCAB], top = -INFINITY;
    bool keep[VOCAB];
    for (int v = 0; v < VOCAB; v++) {
        l[v] = logits[v];
        if (seen && seen[v]) l[v] = l[v] > 0 ? l[v] / s->repetition_penalty : l[v] * s->repetition_penalty;
        top = fmax(top, l[v]);
    }
    int better[VOCAB] = {0};
    for (int v = 0; v < VOCAB; v++)
        for (int u = 0; u < VOCAB; u++) better[v] += l[u] > l[v] || (l[u] == l[v] && u < v);
    if (s->temperature == 0) {
        for (int v = 0; v < VOCAB; v++) p[v] = better[v] == 0;
        return;
    }
    double sum = 0, above[VOCAB] = {0}, most = 0;
    for (int v = 0; v < VOCAB; v++) {
        keep[v] = s->top_k == 0 || better[v] < s->top_k;
        p[v] = keep[v] ? exp((l[v] - top) / s->temperature) : 0;
        sum += p[v];
    }
    for (int v = 0; v < VOCAB; v++)
        for (int u = 0; u < VOCAB; u++)
            if (better[u] < better[v]) above[v] += p[u] / sum;
    for (int v = 0; v < VOCAB; v++) {
        if (s->top_p < 1 && better[v] && !(above[v] < s->top_p)) p[v] = 0;
        most = fmax(most, p[v]);
    }
    sum = 0;
    for (int v = 0; v < VOCAB; v++) {
        if (p[v] < s->min_p * most) p[v] = 0;
        sum += p[v];
    }
    for (int v = 0; v < VOCAB; v++) p[v] /= sum;
}

static void random_logits(real *l, unsigned char *seen, uint64_t key) {
    for (int v = 0; v < VOCAB; v++) {
        l[v] = (real)(3 * rng_normal(key, (uint64_t)v));
        if (key % 3 == 0) l[v] = (real)(0.5 * floor(2 * (double)l[v])); /* many ties */
        if (key % 5 == 0 && v % 7 == 0) l[v] = -INFINITY;
        seen[v] = rng_uniform(key, 1000 + (uint64_t)v) < 0.3;
    }
}

Test(infer, sampler_support_is_the_definition) {
    static const double temps[] = {0, 0.3, 1, 2.5}, ps[] = {0.05, 0.5, 0.9, 1}, mins[] = {0, 0.02, 0.3, 1};
    static const double pens[] = {1, 1.3, 0.7};
    static const int ks[] = {0, 1, 2, 7, VOCAB - 1, VOCAB, 1000};
    double worst = 0;
    int cases = 0;
    for (uint64_t key = 1; key <= 30; key++)
        for (int i = 0; i < 4 * 4 * 4 * 3 * 7; i++) {
            Sampler s = {.temperature = temps[i % 4],
                         .top_p = ps[i / 4 % 4],
                         .min_p = mins[i / 16 % 4],
                         .repetition_penalty = pens[i / 64 % 3],
                         .top_k = ks[i / 192],
                         .seed = 1};
            real l[VOCAB];
            unsigned char seen[VOCAB];
            double want[VOCAB], got[VOCAB] = {0};
            Candidate c[VOCAB];
            int n;
            random_logits(l, seen, key);
            reference(&s, l, seen, want);
            cr_assert(sampler_support(&s, l, VOCAB, seen, c, &n, &err), "%s", err.msg);
            for (int j = 0; j < n; j++) {
                cr_assert(got[c[j].id] == 0, "token %d twice", c[j].id);
                got[c[j].id] = c[j].p;
                if (j && (s.top_p < 1 || (s.top_k && s.top_k < VOCAB))) cr_assert(c[j].p <= c[j - 1].p);
            }
            for (int v = 0; v < VOCAB; v++) {
                cr_assert((got[v] > 0) == (want[v] > 0),
                          "key %d case %d token %d: probability %g, by the definition %g (t %g k %d p %g min %g r %g)",
                          (int)key, i, v, got[v], want[v], s.temperature, s.top_k, s.top_p, s.min_p,
                          s.repetition_penalty);
                worst = fmax(worst, fabs(got[v] - want[v]));
            }
            cases++;
        }
    cr_assert(worst <= 1e-13 && cases == 30 * 1344, "worst probability error %g in %d cases", worst, cases);
}

Test(infer, sampler_draws_have_the_distribution) {
    Sampler set[] = {sampler_default(), sampler_default(), sampler_default(), sampler_default()};
    set[0].temperature = 1.7;
    set[1].top_k = 9;
    set[2].top_p = 0.8;
    set[3].min_p = 0.05, set[3].repetition_penalty = 1.5, set[3].seed = 77;
    enum { DRAWS = 100000 };
    for (int k = 0; k < 4; k++) {
        real l[VOCAB];
        unsigned char seen[VOCAB];
        double p[VOCAB], chi = 0, pooled = 0;
        int count[VOCAB] = {0}, cells = 0, pool = 0;
        Candidate c[VOCAB];
        random_logits(l, seen, 11);
        reference(&set[k], l, seen, p);
        for (int i = 0; i < DRAWS; i++) {
            int t;
            cr_assert(sampler_pick(&set[k], l, VOCAB, seen, (uint64_t)(i % 10), (uint64_t)(i / 10), c, &t, &err));
            count[t]++;
        }
        for (int v = 0; v < VOCAB; v++) {
            cr_assert(p[v] > 0 || count[v] == 0, "token %d outside the support was drawn", v);
            if (p[v] * DRAWS < 10) { /* too rare for a cell of its own */
                pooled += p[v] * DRAWS;
                pool += count[v];
                continue;
            }
            chi += pow(count[v] - p[v] * DRAWS, 2) / (p[v] * DRAWS);
            cells++;
        }
        if (pooled > 1) chi += pow(pool - pooled, 2) / pooled, cells++;
        double df = cells - 1, h = 2 / (9 * df),
               limit = df * pow(1 - h + 3.1 * sqrt(h), 3); /* Wilson-Hilferty, 0.1 % */
        cr_assert(cells > 4 && chi < limit, "settings %d: chi-square %g with %g degrees of freedom, limit %g", k, chi,
                  df, limit);
    }
}

Test(infer, sampler_draw_depends_on_seed_sequence_and_number_only) {
    real l[VOCAB];
    unsigned char seen[VOCAB];
    Candidate c[VOCAB];
    random_logits(l, seen, 4);
    Sampler s = sampler_default();
    s.temperature = 3;
    int a[64], b[64], same[3] = {0};
    for (int i = 0; i < 64; i++) sampler_pick(&s, l, VOCAB, NULL, 5, (uint64_t)i, c, &a[i], &err);
    for (int i = 63; i >= 0; i--) sampler_pick(&s, l, VOCAB, NULL, 5, (uint64_t)i, c, &b[i], &err);
    cr_assert(!memcmp(a, b, sizeof a), "the order of the draws matters");
    for (int i = 0; i < 64; i++) {
        int t;
        sampler_pick(&s, l, VOCAB, NULL, 6, (uint64_t)i, c, &t, &err);
        same[0] += t == a[i];
        same[1] += i && a[i] == a[i - 1];
        Sampler other = s;
        other.seed++;
        sampler_pick(&other, l, VOCAB, NULL, 5, (uint64_t)i, c, &t, &err);
        same[2] += t == a[i];
    }
    for (int i = 0; i < 3; i++) cr_assert(same[i] < 32, "%d of 64 draws agree where they should not (%d)", same[i], i);
}

Test(infer, sampler_refuses) {
    struct {
        Sampler s;
        const char *part;
    } bad[] = {
        {{-0.1, 1, 0, 1, 0, 1}, "--temperature"}, {{NAN, 1, 0, 1, 0, 1}, "--temperature"},
        {{1, 0, 0, 1, 0, 1}, "--top-p"},          {{1, 1.01, 0, 1, 0, 1}, "--top-p"},
        {{1, 1, -1, 1, 0, 1}, "--min-p"},         {{1, 1, 1.5, 1, 0, 1}, "--min-p"},
        {{1, 1, 0, 0, 0, 1}, "--repetition"},     {{1, 1, 0, 1, -1, 1}, "--top-k"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Err e = {0};
        cr_assert(!sampler_check(&bad[i].s, &e) && e.status == EXIT_INPUT && strstr(e.msg, bad[i].part), "case %zu: %s",
                  i, e.msg);
    }
    real l[VOCAB] = {0};
    Candidate c[VOCAB];
    int n;
    Sampler s = sampler_default();
    cr_assert(sampler_check(&s, &err));
    l[7] = NAN;
    Err e = {0};
    cr_assert(!sampler_support(&s, l, VOCAB, NULL, c, &n, &e) && e.status == EXIT_RUNTIME && strstr(e.msg, "token 7"),
              "%s", e.msg);
    for (int v = 0; v < VOCAB; v++) l[v] = -INFINITY;
    e = (Err){0};
    cr_assert(!sampler_support(&s, l, VOCAB, NULL, c, &n, &e) && e.status == EXIT_RUNTIME);
}

/* ---- text ----------------------------------------------------------------------------------------------------------
 */
Test(infer, text_stops_hold_back_exactly_what_they_must) {
    int stopped = 0, held = 0;
    for (uint64_t key = 1; key <= 4000; key++) {
        uint64_t draw = 0;
#define BELOW(n) ((int)(rng_uniform(key, draw++) * (n)))
        char all[65] = {0}, stops[3][6] = {{0}};
        const char *stop[3] = {stops[0], stops[1], stops[2]};
        int len = 1 + BELOW(40), nstop = 1 + BELOW(3);
        for (int i = 0; i < len; i++) all[i] = (char)('a' + BELOW(2));
        for (int k = 0; k < nstop; k++)
            for (int i = 0, n = 1 + BELOW(5); i < n; i++) stops[k][i] = (char)('a' + BELOW(2));
        /* by the definition: the first end, then the longest */
        int cut = -1;
        for (int end = 1; end <= len && cut < 0; end++)
            for (int start = 0; start < end && cut < 0; start++)
                for (int k = 0; k < nstop; k++)
                    if (strlen(stop[k]) == (size_t)(end - start) &&
                        !strncmp(all + start, stop[k], (size_t)(end - start)))
                        cut = start;
        Text t = {.nstop = nstop, .stop = stop};
        size_t before = 0;
        for (int i = 0; i < len;) {
            int n = imin(1 + BELOW(4), len - i);
            bool end = text_push(&t, all + i, (size_t)n);
            i += n;
            size_t shown = text_final(&t);
            cr_assert(shown >= before && shown <= t.n && !memcmp(t.bytes, all, t.n));
            if (cut >= 0)
                cr_assert(shown <= (size_t)cut, "key %d: %zu bytes shown, the stop is at %d", (int)key, shown, cut);
            size_t need = 0; /* longest end of the text that begins a stop string */
            for (size_t h = 1; h <= t.n; h++)
                for (int k = 0; k < nstop; k++)
                    if (h < strlen(stop[k]) && !strncmp(t.bytes + t.n - h, stop[k], h)) need = h;
            if (!end) cr_assert(t.n - shown == need, "key %d: holds %zu bytes, needs %zu", (int)key, t.n - shown, need);
            held += !end && need > 0;
            before = shown;
        }
        cr_assert(t.stopped == (cut >= 0) && t.n == (size_t)(cut >= 0 ? cut : len), "key %d: ends at %zu, want %d",
                  (int)key, t.n, cut);
        stopped += t.stopped;
        text_free(&t);
    }
    cr_assert(stopped > 500 && stopped < 3950 && held > 1000, "%d stopped, %d held", stopped, held);
}

Test(infer, text_holds_back_open_characters) {
    const char *s = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z"; /* 1, 2, 3, 4, 1 bytes */
    static const int final[] = {1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11};
    Text t = {0};
    for (int i = 0; i < 11; i++) {
        text_push(&t, s + i, 1);
        cr_assert(text_final(&t) == (size_t) final[i], "after byte %d: %zu", i, text_final(&t));
    }
    text_free(&t);
    static const char *const whole[] = {"",         "abc",      "\x80\x80\x80", "\xff",        "\xe0\x80",
                                        "\xed\xa0", "\xf5\x80", "\xc3\xa9",     "\xf4\x90\x80"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        cr_assert(utf8_open(whole[i], strlen(whole[i])) == 0, "case %zu can never become a character", i);
}

Test(infer, utf8_clean_replaces_maximal_parts) {
    /* The Unicode Standard, tables 3-8 to 3-11: one U+FFFD for each maximal part. */
    static const char *const in[] = {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41",
                                     "\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41",
                                     "\xf4\x91\x92\x93\xff\x41\x80\xbf\x42",
                                     "\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41",
                                     "a\xf1\x80\x80\xe1\x80\xc2"
                                     "b\x80"
                                     "c\x80\xbf"
                                     "d",
                                     "caf\xc3\xa9 \xf0\x9f\x98\x80"};
#define U "\xef\xbf\xbd"
    static const char *const want[] = {U U U U U U U U "A",         U U U U U U U U "A",
                                       U U U U U "A" U U "B",       U U U U "A",
                                       "a" U U U "b" U "c" U U "d", "caf\xc3\xa9 \xf0\x9f\x98\x80"};
    for (size_t i = 0; i < sizeof in / sizeof *in; i++) {
        size_t m;
        char *got = utf8_clean(in[i], strlen(in[i]), &m);
        cr_assert(m == strlen(want[i]) && !strcmp(got, want[i]), "case %zu: %s", i, got);
        free(got);
    }
    size_t m;
    char *got = utf8_clean("a\0b", 3, &m);
    cr_assert(m == 3 && !memcmp(got, "a\0b", 4));
    free(got);
}
