/* test_loss_split.c: the loss by position and by recall against golden/loss_split.txt, which golden/make_loss_split.py
 * writes by the rule of Zoology. */
#include "infer/eval/loss_split.h"
#include "infer/eval/task_run.h"
#include "tests/lib/check.h"

static long whole(FILE *f) {
    long v;
    cr_assert(fscanf(f, "%ld", &v) == 1, "the golden file ends early");
    return v;
}
static const LossSum *named(const LossSplit *s, const char *name) {
    long upto = strncmp(name, "upto-", 5) ? 0 : strtol(name + 5, NULL, 10);
    for (int b = 0; upto && b < LOSS_BUCKETS; b++)
        if (upto == 1L << 2 * b) return &s->bucket[b];
    return !strcmp(name, "hit")      ? &s->kind[LOSS_HIT]
           : !strcmp(name, "first")  ? &s->kind[LOSS_FIRST]
           : !strcmp(name, "common") ? &s->kind[LOSS_COMMON]
           : !strcmp(name, "all")    ? &s->all
                                     : NULL;
}

Test(loss_split, golden) {
    enum { ROWS = 256, VOCAB = 16 };
    FILE *f = fopen("tests/golden/loss_split.txt", "re");
    cr_assert(f);
    while (fgetc(f) != '\n') {} /* what the lines are */
    const int V = (int)whole(f);
    const long limit = whole(f);
    static int32_t train[1024];
    const long ntrain = whole(f);
    cr_assert(V <= VOCAB && ntrain <= 1024);
    for (long i = 0; i < ntrain; i++) train[i] = (int32_t)whole(f);
    /* one text in two parts of a mix would lose the pair between them: it is one here */
    const Tokens text = {.id = train, .n = (size_t)ntrain, .type = ID_S32, .name = "text"};
    static struct {
        int n, tok[ROWS + 1], pos[ROWS];
        double nll[ROWS];
    } window[8];
    const long windows = whole(f);
    cr_assert(windows <= 8);
    Pairs counts;
    pairs_open(&counts, 8 * ROWS);
    for (long w = 0; w < windows; w++) {
        const int n = window[w].n = (int)whole(f);
        cr_assert(n <= ROWS);
        for (int i = 0; i <= n; i++) window[w].tok[i] = (int)whole(f);
        for (int i = 0; i < n; i++) {
            float value;
            real row[VOCAB];
            for (int v = 0; v < V; v++) {
                cr_assert(fscanf(f, "%f", &value) == 1);
                row[v] = (real)value;
            }
            window[w].pos[i] = !i || !window[w].tok[i] ? 0 : window[w].pos[i - 1] + 1;
            window[w].nll[i] = logits_nll(row, V, window[w].tok[i + 1], NULL);
            pairs_add(&counts, window[w].tok[i], window[w].tok[i + 1]);
        }
    }
    pairs_count(&counts, &text);
    LossSplit s = {0};
    for (long w = 0; w < windows; w++)
        loss_split_add(&s, &counts, limit, window[w].n, window[w].tok, window[w].tok + 1, window[w].pos, window[w].nll);
    pairs_close(&counts);
    char name[32];
    double sum, worst = 0;
    long n, lines = 0, rows = 0;
    for (; fscanf(f, "%31s %ld %lf", name, &n, &sum) == 3; lines++) {
        const LossSum *got = named(&s, name);
        cr_assert(got, "no sum %s", name);
        cr_assert_eq(got->n, n, "%s: %lld tokens, expected %ld", name, (long long)got->n, n);
        const double off = fabs(got->nll - sum);
        cr_assert(off <= 1e-9, "%s: %.12f, expected %.12f", name, got->nll, sum); /* of printing */
        worst = fmax(worst, off);
        if (!strncmp(name, "upto", 4)) rows += n;
    }
    fclose(f);
    cr_assert(lines >= 8 && rows == s.all.n, "%ld sums, of %ld rows", lines, rows);
    cr_log_info("worst difference of a sum: %g", worst);
}

Test(loss_split, buckets) {
    static const int last[] = {0, 3, 15, 63, 255, 1023};
    for (int k = 0; k < 6; k++) {
        cr_expect_eq(loss_bucket(last[k]), k, "%d tokens before: bucket %d", last[k], loss_bucket(last[k]));
        cr_expect_eq(loss_bucket(last[k] + 1), k + 1);
    }
    cr_expect_eq(loss_bucket((1 << 30) - 1), LOSS_BUCKETS - 1);
}

/* Many pairs, those of large ids too, do not get into each other's places. */
Test(loss_split, pairs) {
    enum { N = 3000 };
    Pairs p;
    pairs_open(&p, N);
    for (int64_t i = 0; i < N; i++) *pairs_add(&p, i * 0x10001 % 0x7fffffff, 0x7fffffff - i / 7) += i + 1;
    for (int64_t i = 0; i < N; i++) {
        const int64_t *v = pairs_find(&p, i * 0x10001 % 0x7fffffff, 0x7fffffff - i / 7);
        cr_assert(v && *v == i + 1, "pair %lld", (long long)i);
    }
    cr_expect_null(pairs_find(&p, 1, 1));
    cr_expect_eq(p.n, N);
    pairs_close(&p);
}
