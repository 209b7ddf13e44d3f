/* infinipot.c: a long prompt in a pot of `budget` + `every` rows. Each time `every` tokens have come, `budget` rows
 * stay. A share of them, `share`, goes to the tokens that the rows before them led to expect least, by
 *   n_t = -log P(x_t | the rows that were there when x_t was read),
 * the same for all lanes and layers; the others are of each lane the rows that the newest `window` queries look at, or
 * with `catalyst` those of a prompt that is fed after the rows and dropped again.
 * Source: Kim et al., "InfiniPot: Infinite Context Processing on Memory-Constrained LLMs", arXiv:2410.01518,
 * section 3. */
#include "policy.h"
#include "ops/host.h"

static void infinipot_score(Run *r, const Kv *pass, Tensor score) {
    const size_t n = tensor_count(score), lanes = (size_t)score.n[1];
    const RunMark mark = run_mark(r);
    size_t *to = arena_take(r->host, n * sizeof *to, "places of novelty"),
           *from = arena_take(r->host, n * sizeof *from, "novelty of rows");
    (void)pass;
    CHECK(present(r->novelty), "no novelty of the pass's tokens");
    for (size_t i = 0; i < n && !measuring(r); i++) to[i] = i, from[i] = i / lanes;
    r->ops->move(r, score, to, r->novelty, from, (int)n, 1);
    run_release(r, mark);
}
static void infinipot_select(Choice *c) {
    for (int h = 0; h < c->lanes; h++) {
        PolicyLane *l = &c->lane[h];
        policy_stay(l, c->p->share); /* the novel rows; then attention speaks for the others */
        for (int i = 0; i < l->n; i++) l->score[i] = l->stat[i];
    }
}
static const Key keys[] = {
    POLICY_KEY(budget, KEY_FLOAT, "2048", 0.001, 1e9, "rows, or up to 1 a share of the tokens"),
    POLICY_ASKED_WINDOW("32"),
    POLICY_SINKS("0"),
    POLICY_EVERY("2048", 0),
    POLICY_SHARE("0.5", 1, "of the budget that goes to novel tokens"),
    POLICY_KEY(catalyst, KEY_INT, "0", 0, 1,
               "1: a prompt that asks for a summary is fed each time, and its queries are asked"),
    {0}};
const Policy policy_infinipot = {
    .name = "infinipot",
    .meaning = "in a pot of fixed size: novel tokens, and the rows that the newest queries look at",
    .source = "arXiv:2410.01518",
    .lacks = "rows keep their positions; rows that stay keep the novelty that they had; the newest rows ask unless "
             "`catalyst` has a prompt ask",
    .keys = keys,
    .not_lanes = "a share of each lane's rows goes to tokens, the same in all lanes",
    .score = infinipot_score,
    .ask = {ASK_WINDOW, COL_SUM, COL_SUM, COL_PLAIN},
    .novelty = true,
    .select = infinipot_select};
