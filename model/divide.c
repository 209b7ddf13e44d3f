/* divide.c: what the rows of a pass cost, by which ranks divide them. Source: arXiv:2405.05329, which looks the borders
 * up in a table of measured times. */
#include "divide.h"

static void count_matrices(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)path;
    if (!(flags & FIELD_BALANCE) && t->rank >= 2) *(double *)f->ctx += (double)tensor_count(*t);
}
/* FLOPs of a row in the layers up to the last that stores rows: 2 for each element of a matrix that it uses. */
void model_divide_open(const Model *m, Cache *c) {
    double n = 0;
    if (!c->ranks) return;
    for (int l = 0; l <= m->last_writer; l++) {
        const Layer *y = &m->layer[l];
        Fields f = {.see = count_matrices, .ctx = &n};
        Weights w = m->w;
        model_layer_fields(m, l, &w, &f);
        if (y->feeds && y->ffn->ffn->idle) n -= (double)y->ffn->ffn->idle(y->fcfg);
    }
    c->ranks->row = 2 * n;
}
/* The same of attention to the `sees` rows of its document that are in the pass. The rows before the pass cost every
 * rank the same. */
static double divide_attention(const Model *m, int sees) {
    double n = 0;
    for (int l = 0; l <= m->last_writer; l++) n += m->layer[l].kind->mixer->flops(m->layer[l].cfg, sees);
    return n;
}

RowRanks *model_divide(const Model *m, Cache *c, const Batch *b) {
    RowRanks *k = c->ranks;
    if (!k || !row_ranks_divides(k, b->N)) return NULL;
    k->cost[0] = 0;
    for (int i = 0; i < b->N; i++)
        k->cost[i + 1] = k->cost[i] + k->row + divide_attention(m, i - imax(b->first[i], b->off[b->of[i]]) + 1);
    row_ranks_divide(k, b->N);
    return k;
}
RowRanks *model_shares(const Cache *c) { return c->ranks && c->ranks->of.prompts ? c->ranks : NULL; }
