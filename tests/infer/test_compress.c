/* test_compress.c: shorter prompts: which passages and tokens stay, against golden/compress.txt, which
 * golden/make_compress.py writes by the papers' rules over logits of transformers; contexts that are too short. */
#include "infer/compress.h"
#include "model/files/hf.h"
#include "tests/lib/check.h"

enum { PASSAGES = 8, LONGEST = 20, ASKED = 10 };
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    CompressOpts o;
    int n, tok[PASSAGES][LONGEST], asked[ASKED], order[PASSAGES], left;
    bool keep[PASSAGES][LONGEST];
    Passage p[PASSAGES];
} Case;
static void drawn(int64_t x, int n, int vocab, int *out) {
    for (int i = 0; i < n; i++) {
        x = (x * 1103515245 + 12345) % (1ll << 31);
        out[i] = i < 3 || x / 4096 % 3 == 0 ? (int)(x / 65536 % vocab) : out[i - 1 - x / 65536 % 3];
    }
}
static void opened(Case *c, const char *dir, int n) {
    Err e = {0};
    char *path = xformat("tests/golden/%s", dir);
    cr_assert(hf_config_read(path, &c->cfg, &e) && device_open(&c->dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(model_open(&c->m, c->dev, &c->cfg, (ModelOpts){.train = false}, &e) && hf_load(path, &c->m, &e), "%s",
              e.msg);
    free(path);
    cr_assert(n <= PASSAGES);
    c->n = n;
    for (int i = 0; i < n; i++) {
        c->p[i] = (Passage){.tok = c->tok[i], .n = 5 + 4 * i % 15, .keep = c->keep[i]};
        drawn(100 + i, c->p[i].n, c->cfg.vocab, c->tok[i]);
    }
    drawn(99, ASKED, c->cfg.vocab, c->asked);
    c->o.question = c->asked;
}
static void closed(Case *c) {
    model_close(&c->m);
    device_close(c->dev);
    model_cfg_free(&c->cfg);
}
static bool compressed(Case *c, int context, int chunk, Err *e) {
    Session s;
    cr_assert(session_open(&s, &c->m, compress_session(&c->o, context, chunk), e), "%s", e->msg);
    const bool ok = compress(&s, &c->o, c->n, c->p, c->order, &c->left, e);
    session_close(&s);
    return ok;
}

Test(compress, the_papers_rules, .timeout = 60) {
    FILE *f = fopen("tests/golden/compress.txt", "r");
    char dir[64];
    int n, in_order, left, cases = 0, dropped = 0;
    CompressOpts o = {.start = 0};
    cr_assert(f);
    while (fscanf(f, "%63s %d %d %lf %lf %lf %d %d %d %d %d", dir, &n, &o.start, &o.rate, &o.coarse, &o.slope,
                  &o.segment, &o.nquestion, &o.nasked, &in_order, &left) == 11) {
        int at[PASSAGES], rank[PASSAGES];
        unsigned long long stays[PASSAGES];
        o.in_order = in_order;
        cr_assert(left <= PASSAGES && o.nasked <= ASKED);
        for (int i = 0; i < left; i++) cr_assert_eq(fscanf(f, "%d %d %llx", &at[i], &rank[i], &stays[i]), 3);
        for (int chunk = 3; chunk < 100; chunk += 61) {
            Case c = {.o = o};
            Err e = {0};
            opened(&c, dir, n);
            cr_assert(compressed(&c, 128, chunk, &e), "%s", e.msg);
            cr_assert_eq(c.left, left, "%s, rate %g: %d passages, expected %d", dir, o.rate, c.left, left);
            for (int i = 0; i < left; i++) {
                const Passage *p = &c.p[c.order[i]];
                unsigned long long got = 0;
                for (int k = 0; k < p->n; k++) got |= (unsigned long long)p->keep[k] << k;
                cr_assert(c.order[i] == at[i] && p->rank == rank[i] && got == stays[i],
                          "%s, rate %g, question %d: passage %d of rank %d keeps %llx; expected %d, %d, %llx", dir,
                          o.rate, o.nquestion, c.order[i], p->rank, got, at[i], rank[i], stays[i]);
                cr_assert_eq(p->kept, __builtin_popcountll(got));
                dropped += p->n - p->kept;
            }
            closed(&c);
        }
        cases++;
    }
    fclose(f);
    cr_assert(cases == 7 && dropped > 150, "%d cases, %d tokens left out", cases, dropped);
}

/* All tokens, in their order, and no pass. */
Test(compress, a_rate_of_1_changes_nothing) {
    Case c = {.o = {.rate = 1, .coarse = 1, .slope = 1, .segment = 4, .start = 0, .nquestion = 3, .nasked = 5}};
    Err e = {0};
    opened(&c, "recall", 5);
    cr_assert(compressed(&c, 10, 4, &e), "%s", e.msg);
    cr_assert_eq(c.left, 5);
    for (int i = 0; i < 5; i++) {
        cr_assert(c.order[i] == i && c.p[i].kept == c.p[i].n);
        for (int k = 0; k < c.p[i].n; k++) cr_assert(c.p[i].keep[k]);
    }
    closed(&c);
}

/* A context in which only the newest part of the text comes before a segment; one without room for that. */
Test(compress, short_contexts, .timeout = 60) {
    for (int question = 0; question < 2; question++) {
        const CompressOpts o = {
            .rate = 0.5, .coarse = 2, .segment = 6, .start = 1, .nquestion = 3 * question, .nasked = 5 * question};
        int wants = 0, kept = 0;
        Case c = {.o = o};
        Err e = {0};
        opened(&c, "recall", 7);
        cr_assert(compressed(&c, 14, 8, &e), "%s", e.msg);
        for (int i = 0; i < 7; i++) wants += c.p[i].n, kept += c.p[i].kept;
        cr_assert(abs(kept - (wants + 1) / 2) <= 4, "%d of %d tokens", kept, wants); /* roundings of 7 passages */
        cr_assert(!compressed(&c, 5, 8, &e) && e.status == EXIT_INPUT && strstr(e.msg, "context of 5"), "%s", e.msg);
        closed(&c);
    }
}
