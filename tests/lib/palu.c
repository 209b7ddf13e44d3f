/* palu.c: see palu.h. */
#include <math.h>
#include "palu.h"
#include "infer/calibrate.h"
#include "layers/cache/codec.h"
#include "model/basis.h"
#include "model/files/safetensors.h"

void palu_text(int tok[PALU_TOKENS], int vocab, uint64_t seed) {
    for (int i = 0; i < PALU_TOKENS; i++) tok[i] = (int)(rng_uniform(rng_mix(seed, 5), (uint64_t)i) * vocab);
}
void palu_plain(PaluCase *c, int animal, ModelOpts opts) {
    *c = (PaluCase){0};
    opts.codec = &codec_f32;
    zoo_open(&zoo[animal], &c->cfg, &c->m, NULL, &c->dev, opts);
}
void palu_close(PaluCase *c) {
    zoo_close(&c->cfg, &c->m, NULL, c->dev);
    free(c->path), free(c->text);
}
void palu_session(Session *s, PaluCase *c, int nseq) {
    Err e = {0};
    const SessionOpts o = {.nseq = nseq,
                           .max_tokens = PALU_TOKENS,
                           .chunk = PALU_TOKENS,
                           .page_rows = 5,
                           .document = -1,
                           .want_all = true};
    cr_assert(session_open(s, &c->m, o, &e), "%s", e.msg);
}
void palu_feed(Session *s, int seq, int n, const int *tok, real *logits) {
    Err e = {0};
    const Tensor out = logits ? TENSOR(logits, REAL, n, s->model->cfg.vocab) : ABSENT;
    cr_assert(session_extend(s, 1, &(Feed){seq, n, tok}, WANT_ALL, out, &e), "%s", e.msg);
}
void palu_logits(PaluCase *c, const int *tok, int first, int piece, real *logits) {
    Session s;
    palu_session(&s, c, 1);
    for (int at = 0, n; at < PALU_TOKENS; at += n) {
        n = imin(at ? piece : first, PALU_TOKENS - at);
        palu_feed(&s, 0, n, tok + at, logits + (size_t)at * (size_t)c->cfg.vocab);
    }
    session_close(&s);
}
void palu_wrong_guess(Session *s, PaluCase *c, const int *tok, real *x) {
    enum { N = 3 };
    const int V = c->cfg.vocab, of[N] = {0}, pos[N] = {11, 12, 13}, first[N] = {-1, -1, -1}, off[] = {0, N}, seq = 0,
              all[N] = {0, 1, 2}, accept = 1, guess[N] = {tok[11], (tok[12] + 1) % V, tok[13]};
    const uint64_t id = 0;
    const Batch b = {1, N, off, &seq, of, pos, first, &id, true, NULL};
    Err e = {0};
    cr_assert(model_verify(&c->m, &s->own, &s->cache, &b, guess, (RowList){N, all}, TENSOR(x + 11 * V, REAL, N, V), &e),
              "%s", e.msg);
    model_commit(&c->m, &s->own, &s->cache, &b, &accept);
    s->next[0] = 12;
}
bool palu_decides(int i) { return zoo_decides(&zoo[i]) || strstr(zoo[i].json, "\"moe\""); }
double palu_distance(const real *a, const real *b, size_t n) {
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) off += pow((double)a[i] - (double)b[i], 2), size += pow((double)b[i], 2);
    return sqrt(off / size);
}
static bool palu_excused(const Err *e) {
    return e->status == EXIT_INPUT && (strstr(e->msg, "latents") || strstr(e->msg, "merges or evicts rows") ||
                                       strstr(e->msg, "no layer of this model stores rows"));
}
static bool palu_groups_excused(const Err *e) {
    return palu_excused(e) || (e->status == EXIT_INPUT && strstr(e->msg, "--heads: layer "));
}
bool palu_calibrate(int animal, int texts, int heads, const char *path) {
    PaluCase c;
    Session s;
    Calibration x;
    Err e = {0};
    palu_plain(&c, animal, (ModelOpts){0});
    palu_session(&s, &c, 1);
    const bool ok = calibration_open(&x, &s, heads, &e);
    cr_assert(ok || (heads > 1 ? palu_groups_excused(&e) : palu_excused(&e)), "%s: %s", zoo[animal].name, e.msg);
    for (int i = 0; ok && i < texts; i++) {
        int tok[PALU_TOKENS];
        palu_text(tok, c.cfg.vocab, PALU_SEED(i));
        cr_assert(calibration_read(&x, &s, tok, PALU_TOKENS, &e), "%s", e.msg);
    }
    if (ok) cr_assert(calibration_write(&x, &c.m, 0, path, NULL, &e), "%s", e.msg);
    if (ok) calibration_free(&x);
    session_close(&s);
    palu_close(&c);
    return ok;
}
static bool palu_prepare(PaluCase *c, int animal, int heads, const char *settings) {
    Err e = {0};
    char name[40];
    *c = (PaluCase){0};
    snprintf(name, sizeof name, "basis-%d-%d", animal, heads);
    c->path = check_path(name);
    const bool known = palu_calibrate(animal, 1, heads, c->path);
    c->text = xformat("palu:basis=%s,%s", c->path, settings);
    cr_assert(codec_parse(c->text, &c->codec, &e), "%s", e.msg);
    return known;
}
bool palu_open_groups(PaluCase *c, int animal, int heads, const char *settings, ModelOpts opts) {
    if (heads == 1) return palu_open(c, animal, settings, opts);
    const bool known = palu_prepare(c, animal, heads, settings);
    opts.codec = &c->codec;
    if (known)
        zoo_open(&zoo[animal], &c->cfg, &c->m, NULL, &c->dev, opts);
    else
        free(c->path), free(c->text);
    return known;
}
bool palu_open(PaluCase *c, int animal, const char *settings, ModelOpts opts) {
    Err e = {0};
    const bool known = palu_prepare(c, animal, 1, settings);
    opts.codec = &c->codec;
    if (known) {
        zoo_open(&zoo[animal], &c->cfg, &c->m, NULL, &c->dev, opts);
        return true;
    }
    cr_assert(model_cfg_from_json(&c->cfg, zoo[animal].json, strlen(zoo[animal].json), zoo[animal].name, &e), "%s",
              e.msg);
    cr_assert(device_open(&c->dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(!model_open(&c->m, c->dev, &c->cfg, opts, &e) && palu_excused(&e), "%s: %s", zoo[animal].name, e.msg);
    device_close(c->dev);
    model_cfg_free(&c->cfg);
    free(c->path), free(c->text);
    return false;
}
void palu_row(const Session *s, int layer, int lane, bool value, int row, real *to) {
    row_decode(kv_lanes(kv_slot(&s->cache, layer)), to, value, lane, row);
}
double palu_eigenvalue(const PaluCase *c, int layer, bool value, int group, int k) {
    St st;
    Err e = {0};
    char name[BASIS_NAME];
    basis_name(name, layer, value, "eigenvalues");
    cr_assert(st_open(&st, c->path, &e), "%s", e.msg);
    const StEntry *x = st_find(&st, name);
    cr_assert(x && x->rank == 2);
    double one, *all = xcalloc((size_t)(x->shape[0] * x->shape[1]), sizeof *all);
    cr_assert(st_read(&st, x, TENSOR(all, F64, (int)x->shape[0], (int)x->shape[1]), &e), "%s", e.msg);
    one = all[(size_t)group * x->shape[1] + (size_t)k];
    free(all);
    st_close(&st);
    return one;
}
