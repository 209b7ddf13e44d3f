/* qhitter.c: rows that are looked at and that few bits hold well. Of the rows beyond sinks and window a share, `heavy`,
 * goes to those with the most attention from all queries so far, as in h2o; the others have the highest
 *   share a + (1 - share) (2 - e_k - e_v) / 2,
 * a being that attention and e_k, e_v how far the row's key and value are from themselves in 4 bits (an L2 norm), each
 * scaled to 0..1 over the rows of all lanes of the slot. A row keeps a, e_k and e_v. Source: Zhang et al., "Q-Hitter: A
 * Better Token Oracle for Efficient LLM Inference via Sparse-Quantized KV Cache" (MLSys 2024); VITA-Group/Q-Hitter,
 * utils/modify_llama.py. */
#include "policy.h"
#include <math.h>

enum { LOOKED, KEY, VALUE, KEPT }; /* numbers of a row: a, e_k, e_v */

/* How far n elements are from themselves in codes of 4 bits with a scale and a zero of their own. Never 0,
 * which is a row without an error. */
static real qhitter_error(const real *x, int n) {
    const real top = 15,
               whole = (real)(sizeof(real) == 4 ? 0x1.8p23 : 0x1.8p52); /* adding it and taking it away rounds */
    real least = INFINITY, most = -INFINITY, sum = 0;
#pragma omp simd reduction(min : least) reduction(max : most)
    for (int i = 0; i < n; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    const real range = most - least, scale = (range > (real)1e-5 ? range : (real)1e-5) / top,
               low = (-least / scale + whole) - whole,
               zero = low < 0     ? 0
                      : low > top ? top
                                  : low;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++) {
        const real code = ((x[i] / scale + whole) - whole) + zero, above = code < 0 ? 0 : code,
                   held = above > top ? top : above, off = (held - zero) * scale - x[i];
        sum += off * off;
    }
    return (real)fmax(sqrt((double)sum), 1e-30);
}
/* To 0..1; all 0 where they are equal. */
static void qhitter_scale(double *x, int n) {
    double least = INFINITY, most = -INFINITY;
    for (int i = 0; i < n; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    for (int i = 0; i < n; i++) x[i] = most > least ? (x[i] - least) / (most - least) : 0;
}
static void qhitter_errors(Choice *c, int h, const void *with) {
    (void)with;
    const PolicyLane *l = &c->lane[h];
    const real *key = l->key, *value = l->value;
    for (int i = 0; i < l->n; i++) {
        real *kept = l->kept + i * KEPT;
        if (kept[KEY] != 0) continue;
        kept[KEY] = qhitter_error(key, c->kdim), key += c->kdim;
        kept[VALUE] = qhitter_error(value, c->vdim), value += c->vdim;
    }
}
static void qhitter_select(Choice *c) {
    int rows = 0, at = 0;
    policy_each_lane(c, qhitter_errors, NULL);
    policy_sums(c);
    for (int h = 0; h < c->lanes; h++) rows += c->lane[h].n;
    double *looked = xcalloc(3 * (size_t)rows + 1, sizeof *looked), *key = looked + rows, *value = key + rows;
    for (int h = 0; h < c->lanes; h++)
        for (int i = 0; i < c->lane[h].n; i++, at++) {
            const real *kept = c->lane[h].kept + i * KEPT;
            looked[at] = (double)kept[LOOKED], key[at] = (double)kept[KEY], value[at] = (double)kept[VALUE];
        }
    qhitter_scale(looked, rows), qhitter_scale(key, rows), qhitter_scale(value, rows);
    at = 0;
    for (int h = 0; h < c->lanes; h++) {
        PolicyLane *l = &c->lane[h];
        policy_stay(l, c->p->heavy);
        for (int i = 0; i < l->n; i++, at++)
            l->score[i] = (real)(c->p->share * looked[at] + (1 - c->p->share) * (2 - key[at] - value[at]) / 2);
    }
    free(looked);
}
static const Key keys[] = {POLICY_KEY(budget, KEY_FLOAT, "0.2", 0.001, 1e9, "share of the tokens, or above 1 rows"),
                           POLICY_WINDOW("1"),
                           POLICY_SINKS("0"),
                           POLICY_KEY(every, KEY_INT, "64", 0, 4096,
                                      "tokens between two evictions; 0: one, where the prompt ends"),
                           POLICY_SHARE("0.5", 1,
                                        "of a row's score that is attention; the rest is how well 4 bits hold it"),
                           POLICY_KEY(heavy, KEY_FLOAT, "0.35", 0, 1, "of the budget that goes to attention alone"),
                           {0}};
const Policy policy_qhitter = {
    .name = "qhitter",
    .meaning = "the rows with the most attention, and rows that 4 bits hold well",
    .source = "Q-Hitter, MLSys 2024",
    .lacks = "as h2o; errors are of 4 bits with a scale for each row, whatever the codec; not latents (mla)",
    .keys = keys,
    .not_lanes = "a share of each lane's rows is for attention alone",
    .ask = {ASK_ALL, COL_SUM, COL_SUM, COL_PLAIN},
    .needs = NEED_KEYS | NEED_VALUES | NEED_NEW,
    .keeps = KEPT,
    .select = qhitter_select};
