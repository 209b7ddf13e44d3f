/* morphkv.c: next to the newest rows those older ones stay that the newest queries look at, where each query shares its
 * attention among the older rows alone. Query heads of a group ask as one, by the sum of their scores. Source: Ghadia
 * et al., "Dialogue Without Limits: Constant-Sized KV Caches for Extended Responses in LLMs", arXiv:2503.00979. */
#include "policy.h"

static void morphkv_lane(const Choice *c, int h) {
    PolicyLane *l = &c->lane[h];
    const int group = c->heads / c->lanes, D = c->kdim;
    double *q = xcalloc((size_t)D, sizeof *q), *s = xcalloc((size_t)l->n + 1, sizeof *s);
    int old = 0;
    while (old < l->n && l->pos[old] < c->next - c->p->window) old++;
    for (int i = 0; i < c->queries; i++) {
        double most = -INFINITY, sum = 0;
        for (int d = 0; d < D; d++) {
            q[d] = 0;
            for (int g = 0; g < group; g++) q[d] += (double)policy_query(c, i, h * group + g)[d];
        }
        for (int j = 0; j < old; j++) {
            s[j] = 0;
            for (int d = 0; d < D; d++) s[j] += q[d] * (double)l->key[j * D + d];
            most = fmax(most, s[j]);
        }
        for (int j = 0; j < old; j++) sum += s[j] = exp(s[j] - most);
        for (int j = 0; j < old; j++) {
            const real p = (real)(s[j] / sum);
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
