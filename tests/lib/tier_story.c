/* tier_story.c: see tier_story.h. */
#include "tier_story.h"

int tier_row_slots(const Model *m) {
    int n = 0;
    for (int l = 0; l < m->L; l++) n += m->layer[l].owner && m->layer[l].rows.lanes > 0;
    return n;
}
void tier_session(Session *s, Model *m, const KvTier *tier, int page) {
    Err e = {0};
    SessionOpts o = {.nseq = TIER_SEQS,
                     .max_tokens = TIER_TOKENS,
                     .chunk = TIER_CHUNK,
                     .page_rows = page,
                     .document = -1,
                     .want_all = true};
    m->opts.tier = tier;
    cr_assert(session_open(s, m, o, &e), "%s", e.msg);
}
int tier_story(Session *s, real *out) {
    const int V = s->model->cfg.vocab;
    Err e = {0};
    int tok[3 * TIER_TOKENS], n = 0;
    for (int i = 0; i < 3 * TIER_TOKENS; i++) tok[i] = (int)(rng_uniform(11, (uint64_t)i) * V);
#define FEED(B, ...)                                                                                                  \
    do {                                                                                                              \
        const Feed f_[] = {__VA_ARGS__};                                                                              \
        int all_ = 0;                                                                                                 \
        for (int b_ = 0; b_ < B; b_++) all_ += f_[b_].n;                                                              \
        cr_assert(session_extend(s, B, f_, WANT_ALL, TENSOR(out + (size_t)(n * V), REAL, all_, V), &e), "%s", e.msg); \
        n += all_;                                                                                                    \
    } while (0)
    FEED(1, {0, 17, tok});
    cr_assert(session_prompt_ends(s, 0, &e), "%s", e.msg);
    session_fork(s, 0, 1);
    for (int i = 0; i < 6; i++) FEED(2, {0, 1, tok + 17 + i}, {1, 1, tok + 60 + i});
    FEED(3, {2, 9, tok + 30}, {0, 1, tok + 23}, {1, 8, tok + 70});
    session_rewind(s, 1, 12);
    FEED(2, {1, 3, tok + 80}, {2, 1, tok + 39});
    session_fork(s, 2, 0);
    session_reset(s, 2);
    FEED(3, {2, 2, tok + 100}, {0, 4, tok + 50}, {1, 1, tok + 83});
    for (int i = 0; i < 5; i++) FEED(3, {0, 1, tok + 54 + i}, {1, 1, tok + 84 + i}, {2, 1, tok + 102 + i});
    return n;
}
int tier_rows(const Session *s) {
    int n = 0;
    for (int i = 0; i < s->cache.nslots; i++) {
        const Lanes *t = kv_lanes(kv_slot(&s->cache, i));
        for (int lane = 0; lane < t->s.lanes * TIER_SEQS; lane++)
            n += kv_rows(kv_slot(&s->cache, i), lane / t->s.lanes, lane % t->s.lanes);
    }
    return n;
}
