/* replay.c: a policy that judges rows by tokens fed after them. A copy of the sequence in the cache's spare one is fed.
 * The context once more (ASK_REPLAY): after each pass every row of the chunk that is repeated gets the largest of what
 * these queries gave it, and the prompt's end divides the budgets of all slots and lanes by one threshold. A prompt of
 * the policy's own (ASK_PROMPT): every row gets the sum of what the queries gave it, and nothing is divided. */
#include "slot.h"

/* What is known of rows in the meantime: of lane h of chosen slot number i, at score + ((lanes before it) + h) * next +
 * position. */
struct Replay {
    int next, lanes; /* of the prompt; of all chosen slots */
    real *score;
    int *rows; /* (lanes) that stay, once replay_divide was called */
};

void replay_open(Cache *c, int next) {
    Replay *x = c->replay;
    if (!x) {
        x = c->replay = xcalloc(1, sizeof *x);
        for (int i = 0; i < c->nslots; i++) x->lanes += c->slot[i].chosen ? c->slot[i].t.s.lanes : 0;
        x->next = next;
        x->score = xcalloc((size_t)x->lanes * (size_t)next + 1, sizeof *x->score);
        x->rows = xcalloc((size_t)x->lanes + 1, sizeof *x->rows);
    }
    CHECK(x->next == next, "a prompt of %d tokens is replayed, not of %d", x->next, next);
}
void replay_close(Cache *c) {
    if (!c->replay) return;
    free(c->replay->score), free(c->replay->rows), free(c->replay);
    c->replay = NULL;
}
void replay_see(const Cache *c, const Slot *s, int lanes, Tensor stat, int lo, int hi) {
    const Replay *x = c->replay;
    const bool sums = c->policy.of->ask.queries == COL_SUM;
    const int K = s->t.s.lanes, first = c->spare * K;
    for (int h = 0; h < K; h++) {
        const int begin = s->t.lo[first + h], rows = s->t.hi[first + h] - begin;
        real *score = x->score + (size_t)(lanes + h) * (size_t)x->next;
        for (int row = 0; row < rows; row++) {
            const int pos = s->t.pos[slot_place_of(s, first + h, begin + row)];
            const real p = R(stat)[(size_t)h * (size_t)stat.n[1] + (size_t)row];
            if (pos < lo || pos >= hi) continue;
            score[pos] = sums ? score[pos] + p : p > score[pos] ? p : score[pos];
        }
    }
}

typedef struct {
    real score;
    int pos, lane;
} Rival;
static int rival_first(const void *a, const void *b) {
    const Rival *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->pos != y->pos ? (x->pos > y->pos) - (x->pos < y->pos) : (x->lane > y->lane) - (x->lane < y->lane);
}
/* Rows that always stay are first given to their lanes. */
void replay_divide(Cache *c, int seq, int slots) {
    Replay *x = c->replay;
    Rival *r = xcalloc((size_t)x->lanes * (size_t)x->next + 1, sizeof *r);
    int64_t left = 0, n = 0;
    for (int i = 0, lanes = 0, slot = 0; i < c->nslots; i++) {
        const Slot *s = &c->slot[i];
        if (!s->chosen) continue;
        const int K = s->t.s.lanes;
        left += (int64_t)K * policy_slot_rows(&c->policy, x->next, slot++, slots);
        for (int h = 0; h < K; h++, lanes++)
            for (int lane = seq * K + h, row = s->t.lo[lane]; row < s->t.hi[lane]; row++) {
                const int pos = s->t.pos[slot_place_of(s, lane, row)];
                if (pos < c->policy.sinks || pos >= x->next - c->policy.window)
                    x->rows[lanes]++, left--;
                else
                    r[n++] = (Rival){x->score[(size_t)lanes * (size_t)x->next + (size_t)pos], pos, lanes};
            }
    }
    qsort(r, (size_t)n, sizeof *r, rival_first);
    for (int64_t i = 0; i < n && i < left; i++) x->rows[r[i].lane]++;
    free(r);
}
int replay_rows(const Cache *c, int lane) { return c->replay->rows[lane]; }
real replay_score(const Cache *c, int lane, int pos) {
    return c->replay->score[(size_t)lane * (size_t)c->replay->next + (size_t)pos];
}
