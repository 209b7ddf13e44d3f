/* fastgen.c: a lane keeps by the first of four rules under which its queries keep a given share of their attention: the
 * first and newest rows; these and the heavy hitters; these and a local window; everything. Under the window a query
 * counts the rows near to itself. Source: Ge et al., "Model Tells You What to Discard: Adaptive KV Cache Compression
 * for LLMs", arXiv:2310.01801. */
#include "policy.h"

enum { SIDE = POLICY_SIDE }; /* queries that are taken at a time */
/* Of the attention of a lane's queries: what each row received, and what of it from queries within `near` positions. */
static void fastgen_sums(const Choice *c, int h, int near, double *all, double *local) {
    const PolicyLane *l = &c->lane[h];
    const int group = c->heads / c->lanes, D = c->kdim, asks = c->queries * group;
    real *q = xcalloc((size_t)D * SIDE, sizeof *q);
    for (int a0 = 0; a0 < asks; a0 += SIDE) {
        const int n = imin(SIDE, asks - a0);
        int own[SIDE];
        double lse[SIDE];
        for (int a = 0; a < n; a++) {
            const int i = (a0 + a) / group, g = h * group + (a0 + a) % group;
            own[a] = c->next - c->queries + i, lse[a] = (double)c->lse[(size_t)i * (size_t)c->heads + (size_t)g];
            for (int d = 0; d < D; d++) q[d * SIDE + a] = policy_query(c, i, g)[d];
        }
        for (int j = 0; j < l->n && l->pos[j] <= own[n - 1]; j++) {
            real s[SIDE];
            policy_side(s, q, l->key + j * D, D);
            for (int a = 0; a < n; a++) {
                const double p = l->pos[j] <= own[a] ? exp((double)s[a] - lse[a]) : 0;
                all[j] += p, local[j] += own[a] - l->pos[j] < near ? p : 0;
            }
        }
    }
    free(q);
}
static void fastgen_lane(Choice *c, int h, const void *with) {
    (void)with;
    PolicyLane *l = &c->lane[h];
    const int near = (int)ceil(c->p->local * c->next - 1e-9), heavy = (int)ceil(c->p->heavy * c->next - 1e-9);
    const double least = c->p->share * c->queries * (c->heads / c->lanes);
    double *all = xcalloc((size_t)l->n + 1, sizeof *all), *local = xcalloc((size_t)l->n + 1, sizeof *local);
    fastgen_sums(c, h, near, all, local);
    l->budget = 0;
    for (int i = 0; i < l->n; i++) l->score[i] = (real)all[i], l->budget += l->stays[i];
    for (int rule = 0;; rule++) {
        double mass = 0;
        if (rule == 1) l->budget += heavy, policy_keep(l);
        if (rule == 3 || c->p->share >= 1) {
            l->budget = l->n;
            break;
        }
        for (int i = 0; i < l->n; i++) mass += l->stays[i] ? all[i] : rule == 2 ? local[i] : 0;
        if (mass < least) continue;
        for (int i = 0; i < l->n && rule == 2; i++) l->stays[i] |= l->pos[i] >= c->next - near;
        l->budget = 0; /* those that stay, and no more */
        break;
    }
    free(all), free(local);
}
static void fastgen_select(Choice *c) { policy_each_lane(c, fastgen_lane, NULL); }
static int fastgen_rows(const PolicyCfg *p, int n, int slot, int slots) { return (void)p, (void)slot, (void)slots, n; }
static const Key keys[] = {POLICY_WINDOW("1"),
                           POLICY_SINKS("4"),
                           POLICY_EVERY("0", 0),
                           POLICY_QUERIES("64"),
                           POLICY_SHARE("0.95", 1, "of the attention that a lane's rule keeps; 1: all rows stay"),
                           POLICY_KEY(heavy, KEY_FLOAT, "0.3", 0, 1, "of the tokens are heavy hitters"),
                           POLICY_KEY(local, KEY_FLOAT, "0.3", 0, 1, "of the tokens are the local window"),
                           {0}};
const Policy policy_fastgen = {.name = "fastgen",
                               .meaning = "by a rule for each lane: first rows, heavy hitters, a window, or all",
                               .source = "arXiv:2310.01801",
                               .lacks = "special tokens are the first positions, punctuation has no rule; it asks the "
                                        "newest queries; rows after the prompt all stay",
                               .keys = keys,
                               .not_layers = "each lane has a rule of its own",
                               .not_lanes = "each lane has a rule of its own",
                               .ask = {.whom = ASK_QUERIES},
                               .needs = NEED_KEYS | NEED_QUERIES,
                               .select = fastgen_select,
                               .rows = fastgen_rows,
                               .varies = true};
