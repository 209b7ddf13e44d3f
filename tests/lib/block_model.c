#include "block_model.h"
#include <criterion/criterion.h>
#include <math.h>

RowCodec block_codec(const char *text) {
    RowCodec c;
    Err e = {0};
    cr_assert(codec_parse(text, &c, &e), "%s", e.msg);
    return c;
}
void block_parse_fails(const char *text, const char *says) {
    RowCodec c;
    Err e = {0};
    cr_assert(!codec_parse(text, &c, &e) && e.status == EXIT_INPUT, "%s", text);
    cr_assert_str_eq(e.msg, says);
}
void block_close(BlockCase *c) { zoo_close(&c->cfg, &c->m, NULL, c->dev); }
bool block_decides(int i) { return strstr(zoo[i].json, "\"moe\"") != NULL; }
bool block_has_state(const BlockCase *c) {
    for (int l = 0; l < c->m.L; l++)
        if (c->m.layer[l].owner && (c->m.layer[l].rows.state || c->m.layer[l].rows.carry_rows)) return true;
    return false;
}
void block_session(Session *s, BlockCase *c, int nseq) {
    Err e = {0};
    SessionOpts o = {
        .nseq = nseq, .max_tokens = BLOCK_TOKENS, .chunk = BLOCK_CHUNK * nseq, .document = -1, .want_all = true};
    cr_assert(session_open(s, &c->m, o, &e), "%s", e.msg);
}
void block_feed(Session *s, int seq, int n, const int *tok, real *logits) {
    Err e = {0};
    Tensor out = logits ? TENSOR(logits, REAL, n, s->model->cfg.vocab) : ABSENT;
    cr_assert(session_extend(s, 1, &(Feed){seq, n, tok}, logits ? WANT_ALL : WANT_LAST, out, &e), "%s", e.msg);
}
void block_text(int tok[BLOCK_TOKENS], int vocab, uint64_t seed) {
    for (int i = 0; i < BLOCK_TOKENS; i++) tok[i] = (int)(rng_uniform(rng_mix(seed, 5), (uint64_t)i) * vocab);
}
void block_logits(BlockCase *c, const int *tok, int first, int piece, real *logits) {
    Session s;
    block_session(&s, c, 1);
    for (int at = 0, n; at < BLOCK_TOKENS; at += n) {
        n = imin(at ? piece : first, BLOCK_TOKENS - at);
        block_feed(&s, 0, n, tok + at, logits + (size_t)at * (size_t)c->cfg.vocab);
    }
    session_close(&s);
}
double block_distance(const real *a, const real *b, size_t n) {
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) off += pow((double)a[i] - (double)b[i], 2), size += pow((double)b[i], 2);
    return sqrt(off / size);
}
int block_back(BlockCase *c, Session *s, int i, int to, const int *tok, int *other, real *back, real *fresh) {
    enum { T = BLOCK_TOKENS, FED = 140 };
    const size_t V = (size_t)c->cfg.vocab;
    block_feed(s, 0, FED, tok, NULL);
    session_fork(s, 0, 1);
    const int at = session_rewind(s, 1, to), want = to < 128 ? to / 64 * 64 : to;
    cr_assert(at == 0 || at == want, "%s: back to %d, not %d", zoo[i].name, at, want);
    cr_assert(at == want || block_has_state(c) || strstr(zoo[i].json, "window"), "%s: not back to %d", zoo[i].name, to);
    memcpy(other, tok, (size_t)at * sizeof *other);
    block_feed(s, 1, T - at, other + at, back);
    block_feed(s, 2, T, other, fresh);
    const double off = block_distance(back, fresh + (size_t)at * V, (size_t)(T - at) * V);
    cr_assert(off <= (REAL == F64 ? 1e-9 : 0.1) || block_decides(i), "%s, back to %d: %.3g", zoo[i].name, at, off);
    return at;
}
void block_refused(int i, const char *codec, const char *policy, const char *says) {
    const RowCodec c = block_codec(codec);
    ModelCfg cfg;
    Device *dev;
    Model m;
    PolicyCfg p;
    Err e = {0};
    cr_assert(policy_parse(policy, &p, &e), "%s", e.msg);
    cr_assert(model_cfg_from_json(&cfg, zoo[i].json, strlen(zoo[i].json), zoo[i].name, &e), "%s", e.msg);
    cr_assert(device_open(&dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(!model_open(&m, dev, &cfg, (ModelOpts){.codec = &c, .policy = &p}, &e) && e.status == EXIT_INPUT &&
                  strstr(e.msg, says),
              "%s, %s, %s: %s", zoo[i].name, codec, policy, e.msg);
    device_close(dev), model_cfg_free(&cfg);
}
