/* test_codec.c: every codec of the cache's table under every model of the zoo: what it takes, and that a row looks the
 * same to its own pass and to later ones, however the text is cut. A codec is under test by its line in the table. */
#include "infer/session.h"
#include "layers/cache/codec.h"
#include "model/cost.h"
#include "tests/lib/zoo.h"

enum { T = 24, CHUNK = 16 };
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
} ModelCase;
static void open_case(ModelCase *c, int i, const RowCodec *codec) {
    *c = (ModelCase){0};
    zoo_open(&zoo[i], &c->cfg, &c->m, NULL, &c->dev, (ModelOpts){.codec = codec});
}
static void close_case(ModelCase *c) { zoo_close(&c->cfg, &c->m, NULL, c->dev); }
static bool has_rows(const ModelCase *c) {
    for (int l = 0; l < c->m.L; l++)
        if (c->m.layer[l].owner && c->m.layer[l].rows.lanes) return true;
    return false;
}
/* What hangs on a comparison of two numbers may turn over by a rounding. */
static bool decides(int i) { return zoo_decides(&zoo[i]) || strstr(zoo[i].json, "\"moe\""); }
static void open_session(Session *s, ModelCase *c) {
    Err e = {0};
    SessionOpts o = {.nseq = 1, .max_tokens = T, .chunk = T, .page_rows = 5, .document = -1, .want_all = true};
    cr_assert(session_open(s, &c->m, o, &e), "%s", e.msg);
}
static void feed(Session *s, int n, const int *tok, real *logits) {
    Err e = {0};
    Tensor out = logits ? TENSOR(logits, REAL, n, s->model->cfg.vocab) : ABSENT;
    cr_assert(session_extend(s, 1, &(Feed){0, n, tok}, WANT_ALL, out, &e), "%s", e.msg);
}
static void tokens(int *tok, int V, uint64_t seed) {
    for (int i = 0; i < T; i++) tok[i] = (int)(rng_uniform(rng_mix(seed, 5), (uint64_t)i) * V);
}
/* Logits of every row: `first` tokens, then the rest in pieces of so many. */
static void all_logits(ModelCase *c, const int *tok, int first, int piece, real *logits) {
    Session s;
    const int V = c->cfg.vocab;
    open_session(&s, c);
    for (int at = 0, n; at < T; at += n) {
        n = imin(at ? piece : first, T - at);
        feed(&s, n, tok + at, logits + (size_t)at * (size_t)V);
    }
    session_close(&s);
}
static double distance(const real *a, const real *b, size_t n) {
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) off += pow((double)a[i] - (double)b[i], 2), size += pow((double)b[i], 2);
    return sqrt(off / size);
}

/* Rows that a codec stores each alone and as they are; test_blocks.c and test_palu.c have the others. */
static bool plain(const RowCodec *c) { return !c->block && !codec_calibrated(c); }

/* Of the logits that rows as computed give, relative. */
static double most_apart(const RowCodec *c) {
    return c->bits == 4 ? 0.5 : c->bits == 3 ? 0.8 : c->bits ? 1.5 : c == &codec_fp8 ? 0.3 : 0.1;
}

/* In double no sum falls on the other side of a rounding, so that all cuts agree to the last digits. In f32 they agree
 * to a fraction of what the codec itself changes, but for models that decide. */
Test(codec, rows_look_the_same_behind_every_cut, .timeout = 300) {
    int rounded = 0;
    for (int k = 0; codec_at(k); k++)
        for (int i = 0; i < zoo_count() && plain(codec_at(k)); i++) {
            if (!check_sampled(i + k)) continue;
            const RowCodec *codec = codec_at(k);
            ModelCase c, plain;
            int tok[T];
            open_case(&c, i, codec);
            open_case(&plain, i, NULL);
            const size_t n = (size_t)(T * c.cfg.vocab);
            real *whole = xcalloc(n, sizeof *whole), *cut = xcalloc(n, sizeof *cut), *wide = xcalloc(n, sizeof *wide);
            tokens(tok, c.cfg.vocab, (uint64_t)i);
            all_logits(&c, tok, T, T, whole);
            all_logits(&plain, tok, T, T, wide);
            const double apart = distance(whole, wide, n);
            cr_assert(decides(i) || apart < most_apart(codec), "%s, %s: %.3g from a wide cache", codec->name,
                      zoo[i].name, apart);
            cr_assert(codec->as == ROWS_REAL ? apart == 0 : !has_rows(&c) || apart > 1e-6, "%s, %s: %.3g", codec->name,
                      zoo[i].name, apart);
            rounded += apart > 0;
            const double bound = REAL == F64 ? 1e-9 : codec->bits ? most_apart(codec) / 2 : 2e-2;
            for (int first = 1; first < T; first += codec->as == ROWS_REAL ? T : 5) {
                all_logits(&c, tok, first, first % 2 ? 1 : 7, cut);
                const double off = distance(cut, whole, n);
                cr_assert(off <= bound || (decides(i) && REAL == F32), "%s, %s, cut at %d: %.3g", codec->name,
                          zoo[i].name, first, off);
            }
            free(whole), free(cut), free(wide);
            close_case(&c), close_case(&plain);
        }
    cr_assert(rounded > zoo_count() / 2, "%d models were rounded", rounded);
}

/* What is resident is what the cost model says, and by its own count rows of the codec's bytes; states and what is
 * carried stay `real`s. */
Test(codec, bytes_are_those_of_the_rows, .timeout = 120) {
    for (int k = 0; codec_at(k); k++)
        for (int i = 0; i < zoo_count() && plain(codec_at(k)); i++) {
            if (!check_sampled(i + k)) continue;
            const RowCodec *codec = codec_at(k);
            CacheCost *cost = xcalloc(1, sizeof *cost);
            ModelCase c;
            Session s;
            Err e = {0};
            int tok[T];
            open_case(&c, i, codec);
            tokens(tok, c.cfg.vocab, 3);
            open_session(&s, &c);
            feed(&s, T, tok, NULL);
            cost_cache(&c.m, T, cost);
            const size_t have = session_bytes(&s, 0);
            cr_assert(cost->at_most ? have <= cost->bytes_at_context : have == cost->bytes_at_context,
                      "%s, %s: %zu resident, %zu by the cost model", codec->name, zoo[i].name, have,
                      cost->bytes_at_context);
            size_t rows = 0, mapped;
            for (int l = 0; l < c.m.L; l++) {
                const KvShape *r = &c.m.layer[l].rows;
                if (!c.m.layer[l].owner || !r->lanes) continue;
                const size_t row = codec->bytes(codec, r->kdim) + (r->alias ? 0 : codec->bytes(codec, r->vdim));
                for (int h = 0; h < r->lanes; h++) rows += row * (size_t)kv_rows(kv_slot(&s.cache, l), 0, h);
                const Lanes *t = kv_lanes(kv_slot(&s.cache, l));
                cr_assert(tensor_bytes(t->data) == row * (size_t)t->P * (size_t)t->npages);
            }
            cr_assert(have - cost->state_bytes == rows, "%s, %s", codec->name, zoo[i].name);
            cr_assert(cost_cache_mapped(&c.m, 1, T, CHUNK, &mapped, &e));
            Cache cache;
            cr_assert(model_cache_open(&c.m, &cache, 1, T, CHUNK, 0, false, &e));
            cr_assert(cache.mem.size == mapped && cache.mem.used == mapped);
            kv_close(&cache);
            session_close(&s);
            free(cost);
            close_case(&c);
        }
}
