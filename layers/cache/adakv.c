/* adakv.c: the lanes of a slot share their budgets, by snapkv's scores or those of another policy: rows of all lanes
 * compete, lane h wins c_h of them, and gets (1 - even) c_h + even * the same budget. Source: Feng et al., "Ada-KV:
 * Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM Inference", arXiv:2407.11550. */
#include "policy.h"

typedef struct {
    real score;
    int lane, pos;
} Rival;
static int stronger_first(const void *a, const void *b) {
    const Rival *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->pos != y->pos ? (x->pos > y->pos) - (x->pos < y->pos) : (x->lane > y->lane) - (x->lane < y->lane);
}
static void adakv_divide(Choice *c) {
    int all = 0, n = 0, left = 0;
    for (int h = 0; h < c->lanes; h++) all += c->lane[h].n;
    Rival *r = xcalloc((size_t)all + 1, sizeof *r);
    int *won = xcalloc((size_t)c->lanes, sizeof *won), *rivals = xcalloc((size_t)c->lanes, sizeof *rivals);
    for (int h = 0; h < c->lanes; h++) {
        const PolicyLane *l = &c->lane[h];
        left += l->budget;
        for (int i = 0; i < l->n; i++) {
            left -= l->stays[i];
            if (!l->stays[i]) r[n++] = (Rival){l->score[i], h, l->pos[i]}, rivals[h]++;
        }
    }
    qsort(r, (size_t)n, sizeof *r, stronger_first);
    left = imax(0, imin(left, n));
    for (int i = 0; i < left; i++) won[r[i].lane]++;
    int spare = left;
    for (int h = 0; h < c->lanes; h++) {
        won[h] = (int)floor(c->p->even * left / c->lanes + (1 - c->p->even) * won[h] + 1e-9);
        won[h] = imin(won[h], rivals[h]);
        spare -= won[h];
    }
    for (int h = 0; spare > 0; h = (h + 1) % c->lanes) /* what roundings and short lanes leave */
        if (won[h] < rivals[h]) won[h]++, spare--;
    for (int h = 0; h < c->lanes; h++) {
        PolicyLane *l = &c->lane[h];
        l->budget = won[h];
        for (int i = 0; i < l->n; i++) l->budget += l->stays[i];
    }
    free(rivals);
    free(r), free(won);
}
static const Key keys[] = {POLICY_BUDGET,     POLICY_ASKED_WINDOW("32"),
                           POLICY_SINKS("0"), POLICY_EVERY("0", 0),
                           POLICY_POOL,       {0}};
static const Key own[] = {{"share", KEY_FLOAT, offsetof(PolicyCfg, even), "0.2", 0, 1,
                           "of the budget that lanes have alike", 0, 0},
                          {0}};
const Policy policy_adakv = {.name = "adakv",
                             .meaning = "lanes share their budgets by how their rows compare, alone by snapkv's scores",
                             .source = "arXiv:2407.11550",
                             .role = POLICY_LANES,
                             .keys = keys,
                             .own = own,
                             .ask = {ASK_WINDOW, COL_SUM, COL_SUM, COL_PLAIN},
                             .select = policy_pool,
                             .divide = adakv_divide};
