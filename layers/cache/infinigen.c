/* infinigen.c: a step reads the rows to which the query that a layer is expected to have attends most. The layer before
 * guesses it: this layer's query projection of that layer's input. A score counts the channels in which the query heads
 * of a group are largest together, C of D:
 *   s = scale sum_{d in C} q_d k_d
 * Each head counts the rows whose score is less than `below` under its largest; as many rows are read as the mean over
 * the heads of the group, those nearest to the largest of a head, at most `reads`. Source: Lee et al., "InfiniGen:
 * Efficient Generative Inference of Large Language Models with Dynamic KV Cache Management", arXiv:2406.19707. */
#include "policy.h"

static void infinigen_judge(PageChoice *c) {
    const int D = c->D, few = imax(1, (int)(c->p->channels * D + 1e-9));
    int64_t near = 0;
    for (int d = 0; d < D; d++) {
        real size = 0;
        for (int g = 0; g < c->group; g++) size += (real)fabs((double)c->q[g * D + d]);
        c->order[d] = (Ranked){size, d};
    }
    qsort(c->order, (size_t)D, sizeof *c->order, ranked_first);
    for (int g = 0; g < c->group; g++) {
        real most = -(real)INFINITY;
        memset(c->query, 0, (size_t)D * sizeof *c->query);
        for (int k = 0; k < few; k++) c->query[c->order[k].at] = c->scale * c->q[g * D + c->order[k].at];
        policy_dots(c, c->query, D, c->each);
        for (int i = 0; i < c->n; i++) most = c->each[i] > most ? c->each[i] : most;
        for (int i = 0; i < c->n; i++) {
            const real off = c->each[i] - most;
            near += off > -(real)c->p->below;
            c->score[i] = g && c->score[i] > off ? c->score[i] : off;
        }
    }
    c->most = imin(c->most, imax(1, (int)(near / c->group)));
}
static const Key own[] = {POLICY_READS_KEYS("0.2", "64", "1"),
                          POLICY_KEY(channels, KEY_FLOAT, "0.3", 0.001, 1,
                                     "share of a key's channels that rows are judged by"),
                          POLICY_KEY(below, KEY_FLOAT, "4", 0.001, 1e9,
                                     "rows are read whose score is less than this under the largest"),
                          {0}};
static const Key keys[] = {{0}};
const Policy policy_infinigen = {.name = "infinigen",
                                 .meaning =
                                     "all; a step reads the rows that a query guessed by the layer before prefers",
                                 .source = "arXiv:2406.19707",
                                 .lacks = "the rotation of channels by an SVD; heads of a group alone read alike",
                                 .role = POLICY_READS,
                                 .keys = keys,
                                 .own = own,
                                 .summary = policy_means,
                                 .summary_channels = 1,
                                 .judge = infinigen_judge,
                                 .guesses = true,
                                 .fewer = true};
