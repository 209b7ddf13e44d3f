/* morphkv.c: next to the newest rows those older ones stay that the newest queries look at, where each query shares its
 * attention among the older rows alone. Query heads of a group ask as one, by the sum of their scores. Source: Ghadia
 * et al., "Dialogue Without Limits: Constant-Sized KV Caches for Extended Responses in LLMs", arXiv:2503.00979. */
#include "policy.h"

enum { SIDE = POLICY_SIDE }; /* queries that are taken at a time */
static void morphkv_lane(const Choice *c, int h) {
    PolicyLane *l = &c->lane[h];
    const int group = c->heads / c->lanes, D = c->kdim;
    double *q = xcalloc((size_t)D * SIDE, sizeof *q), *s = xcalloc((size_t)(l->n + 1) * SIDE, sizeof *s);
    int old = 0;
    while (old < l->n && l->pos[old] < c->next - c->p->window) old++;
    for (int i0 = 0; i0 < c->queries; i0 += SIDE) {
        double most[SIDE], sum[SIDE] = {0};
        const int n = imin(SIDE, c->queries - i0);
        memset(q, 0, (size_t)D * SIDE * sizeof *q);
        for (int i = 0; i < n; i++)
            for (int g = 0; g < group; g++)
                for (int d = 0; d < D; d++) q[d * SIDE + i] += (double)policy_query(c, i0 + i, h * group + g)[d];
        for (int i = 0; i < SIDE; i++) most[i] = -INFINITY;
        for (int j = 0; j < old; j++) {
            double *x = s + j * SIDE;
            policy_side(x, q, l->key + j * D, D);
            for (int i = 0; i < SIDE; i++) most[i] = fmax(most[i], x[i]);
        }
        for (int j = 0; j < old; j++)
            for (int i = 0; i < n; i++) sum[i] += s[j * SIDE + i] = exp(s[j * SIDE + i] - most[i]);
        for (int j = 0; j < old; j++)
            for (int i = 0; i < n; i++) {
                const real p = (real)(s[j * SIDE + i] / sum[i]);
                l->score[j] = !c->p->peak ? l->score[j] + p : p > l->score[j] ? p : l->score[j];
            }
    }
    free(q), free(s);
}
static void morphkv_select(Choice *c) {
    for (int h = 0; h < c->lanes; h++) morphkv_lane(c, h);
}
static const Key keys[] = {POLICY_BUDGET,
                           POLICY_ASKED_WINDOW("32"),
                           POLICY_SINKS("0"),
                           POLICY_EVERY("64", 0),
                           POLICY_KEY(peak, KEY_INT, "0", 0, 1,
                                      "1: the largest of the queries' attention instead of the sum"),
                           {0}};
const Policy policy_morphkv = {.name = "morphkv",
                               .meaning = "the older rows that the newest queries look at, again and again",
                               .source = "arXiv:2503.00979",
                               .keys = keys,
                               .ask = {.whom = ASK_WINDOW},
                               .needs = NEED_KEYS | NEED_QUERIES,
                               .select = morphkv_select};
