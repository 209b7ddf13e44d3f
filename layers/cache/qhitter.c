/* qhitter.c: rows that are looked at and that few bits hold well. Of the rows beyond sinks and window a share, `heavy`,
 * goes to those with the most attention from all queries so far, as in h2o; the others have the highest
 *   share a + (1 - share) (2 - e_k - e_v) / 2,
 * a being that attention and e_k, e_v how far the row's key and value are from themselves in 4 bits (an L2 norm), each
 * scaled to 0..1 over the rows of all lanes of the slot. Source: Zhang et al., "Q-Hitter: A Better Token Oracle for
 * Efficient LLM Inference via Sparse-Quantized KV Cache" (MLSys 2024); VITA-Group/Q-Hitter, utils/modify_llama.py. */
#include "policy.h"
#include <math.h>

/* How far n elements are from themselves in codes of 4 bits with a scale and a zero of their own. Every row is asked
 * whenever rows leave, so the loops are of vectors. */
static double qhitter_error(const real *x, int n) {
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
    return sqrt((double)sum);
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
/* Of the rows of all lanes, one lane after the other. */
typedef struct {
    double *looked, *key, *value;
} Rows;
static void qhitter_lane(Choice *c, int h, const void *with) {
    const Rows *all = with;
    const PolicyLane *l = &c->lane[h];
    int at = 0;
    for (int g = 0; g < h; g++) at += c->lane[g].n;
    for (int i = 0; i < l->n; i++, at++) {
        all->looked[at] = (double)l->score[i];
        all->key[at] = qhitter_error(l->key + (size_t)i * (size_t)c->kdim, c->kdim);
        all->value[at] = qhitter_error(l->value + (size_t)i * (size_t)c->vdim, c->vdim);
    }
}
static void qhitter_select(Choice *c) {
    int rows = 0, at = 0;
    policy_sums(c);
    for (int h = 0; h < c->lanes; h++) rows += c->lane[h].n;
    double *looked = xcalloc(3 * (size_t)rows + 1, sizeof *looked), *key = looked + rows, *value = key + rows;
    policy_each_lane(c, qhitter_lane, &(Rows){looked, key, value});
    qhitter_scale(looked, rows), qhitter_scale(key, rows), qhitter_scale(value, rows);
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
                           POLICY_KEY(every, KEY_INT, "256", 0, 4096,
                                      "tokens between two evictions; 0: one, where the prompt ends"),
                           POLICY_SHARE("0.5", 1,
                                        "of a row's score that is attention; the rest is how well 4 bits hold it"),
                           POLICY_KEY(heavy, KEY_FLOAT, "0.35", 0, 1, "of the budget that goes to attention alone"),
                           {0}};
const Policy policy_qhitter = {.name = "qhitter",
                               .meaning = "the rows with the most attention, and rows that 4 bits hold well",
                               .source = "Q-Hitter, MLSys 2024",
                               .lacks = "as h2o, every 256 tokens; errors are of 4 bits with a scale for each row, "
                                        "whatever the codec; not latents (mla)",
                               .keys = keys,
                               .not_lanes = "a share of each lane's rows is for attention alone",
                               .ask = {ASK_ALL, COL_SUM, COL_SUM, COL_PLAIN},
                               .needs = NEED_KEYS | NEED_VALUES,
                               .keeps = true,
                               .select = qhitter_select};
