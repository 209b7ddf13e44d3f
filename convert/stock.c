/* stock.c: layers of other mixers back to grouped queries, where an algebra allows it.
 *
 * Latents (mla): with c = W_a x + b_a, nothing between, the keys and values that W_b makes of c are W_b W_a x + W_b
 * b_a: projections of x. A head of keys and values for every query head, or for every group of query heads that read
 * the same; its rotated elements come first (rope_dims). Exact where latents have no norm, queries none of theirs, and
 * keys are as long as values. Merged rows (dmc): the same projections without the decision channel of each head, or
 * without the adapter that decided.
 * Exact before anything merges (phase zero) and without a rotation, which mixes the channel with its partner; else rows
 * separate. Rows that were evicted stay. A window as long as the model's positions hides nothing and goes. A gqa layer
 * that reads the keys and values of another reads them as before. One that reads another's latents has none of its own:
 * they are made of the other's input, which no projection of its own gives. */
#include "stock.h"
#include "layers/dmc/dmc.h"
#include "layers/mla/mla.h"
#include "kinds.h"

static bool stock_is(const Job *j, int l, const char *mixer) { return !strcmp(j->a.layer[l].kind->mixer->name, mixer); }

bool stock_wanted(const Job *j, int kv_heads) {
    bool latents = false;
    for (int l = 0; l < j->a.L; l++) latents |= stock_is(j, l, "mla");
    return !kv_heads || latents;
}

static bool mla_fits(const Job *j, int l, int kv_heads, Err *e) {
    const MlaCfg *c = (const void *)j->a.layer[l].cfg;
    const int K = kv_heads ? kv_heads : c->heads;
    if (c->latent_norm || c->q_rank)
        return err_input(
            e, "--to gqa: layer %d norms its latents (%s), so its keys and values are not projections of its input", l,
            c->latent_norm ? "kv_a_layernorm" : "q_a_proj, q_a_layernorm");
    if (c->nope_dim + c->rope_dim != c->v_dim)
        return err_input(e, "--to gqa: keys of layer %d have %d elements, values %d; gqa needs one head_dim for both",
                         l, c->nope_dim + c->rope_dim, c->v_dim);
    if (c->out_gate)
        return err_input(e, "--to gqa: layer %d has a gate for each head (out_gate), that of gqa is for each value", l);
    if (c->rope.type == ROPE_YARN && c->rope.mscale_all_dim > 0)
        return err_input(e, "--to gqa: layer %d scales its scores by rope.mscale_all_dim, which gqa does not support",
                         l);
    if (c->heads % K || (c->rope_dim && K % c->rope_heads))
        return err_input(e,
                         "kv_heads: expected a divisor of %d and a multiple of the %d rotated keys (layer %d), got %d",
                         c->heads, c->rope_dim ? c->rope_heads : 1, l, K);
    return true;
}

static json_t *mla_kind(const MlaCfg *c, const json_t *kind, int kv_heads) {
    return json_pack("{ss si si si si si si sO sb sb}", "mixer", "gqa", "heads", c->heads, "kv_heads",
                     kv_heads ? kv_heads : c->heads, "head_dim", c->v_dim, "rope_dims",
                     c->rope_dim < c->v_dim ? c->rope_dim : 0, "window", c->window, "sinks", c->sinks, "rope",
                     json_object_get(kind, "rope"), "qkv_bias", c->q_bias || c->a_bias, "o_bias", c->o_bias);
}
static bool stock_reads(const Job *j, int l, Err *e) {
    if (job_gqa(&j->a, l) || j->a.layer[l].owner) return true;
    return err_input(e,
                     "--to gqa: layer %d reads the latents of layer %d, and no projection of the input of layer %d can "
                     "compute its keys and values",
                     l, j->a.layer[l].kv_from, l);
}
static json_t *dmc_kind(const DmcCfg *c, const json_t *kind) {
    return json_pack("{ss si si si sO si sb sb sb sb}", "mixer", "gqa", "heads", c->g.heads, "kv_heads", c->g.kv_heads,
                     "head_dim", c->g.head_dim, "rope", json_object_get(kind, "rope"), "rope_dims", c->g.rope_dims,
                     "qk_norm", c->g.qk_norm, "qk_norm_wide", c->g.qk_norm_wide, "qkv_bias", c->g.qkv_bias, "o_bias",
                     c->g.o_bias);
}

bool stock_plan(Job *j, json_t *model, int kv_heads, Err *e) {
    bool convert[LAYERS_MAX], exact = true;
    int latents = 0, merged = 0, windows = 0, lanes = 0;
    for (int l = 0; l < j->a.L; l++) {
        const GqaCfg *g = job_gqa(&j->a, l);
        const bool wide = g && g->window >= j->from.max_positions;
        const MlaCfg *m = job_mla(&j->a, l);
        if (!g && !stock_is(j, l, "mla") && !stock_is(j, l, "dmc"))
            return err_input(e, "--to gqa: layer %d is %s, whose state cannot become keys and values", l,
                             j->a.layer[l].kind->mixer->name);
        if (!stock_reads(j, l, e)) return false;
        if (m && !m->heads) return err_input(e, "--to gqa: layer %d publishes latents and has no queries", l);
        if (m && !mla_fits(j, l, kv_heads, e)) return false;
        latents += m != NULL, windows += wide, exact &= !m || !m->evict;
        if (stock_is(j, l, "dmc")) {
            const DmcCfg *c = (const void *)j->a.layer[l].cfg;
            merged++, lanes += c->decide == DMC_LANE;
            exact &= c->phase == DMC_ZERO && !c->g.table.n;
        }
        convert[l] = !g || wide;
    }
    if (!latents && !merged && !windows)
        return err_input(e, "--to gqa: all layers already have the mixer gqa; to change their heads give kv_heads");
    for (int i = 0; i < j->from.nkinds; i++) {
        const char *name = j->from.kind[i].name;
        int l = 0;
        while (l < j->a.L && strcmp(j->a.layer[l].kind->name, name)) l++;
        if (l == j->a.L || !convert[l]) continue;
        json_t *kind = json_object_get(json_object_get(model, "kinds"), name), *next;
        if (stock_is(j, l, "mla")) {
            next = mla_kind((const void *)j->a.layer[l].cfg, kind, kv_heads);
        } else if (stock_is(j, l, "dmc")) {
            next = dmc_kind((const void *)j->a.layer[l].cfg, kind);
        } else {
            next = json_deep_copy(kind);
            json_object_set_new(next, "window", json_integer(0));
            json_object_set_new(next, "sinks", json_integer(0));
        }
        kind_split(model, name, "gqa", convert, next);
    }
    j->exact = exact;
    snprintf(j->report->rule, sizeof j->report->rule,
             "gqa: of %d layers %d with latents, %d with merged rows, %d windows", j->a.L, latents, merged, windows);
    if (!exact)
        snprintf(j->report->note, sizeof j->report->note,
                 lanes ? "merged rows become separate rows, and the rotation includes the decision channel"
                       : "rows that were evicted stay");
    return true;
}

/* Row `row` of out <- sum over the latent of up[r] W_a[r], or W_a[row of it]. */
static void latent_row(Tensor wa, Tensor ba, const real *up, int rank, Tensor out, Tensor bias, int row) {
    const size_t d = (size_t)wa.n[1];
    for (size_t x = 0; x < d; x++) {
        double sum = 0;
        for (int r = 0; r < rank; r++) sum += (double)up[r] * R(wa)[(size_t)r * d + x];
        R(out)[(size_t)row * d + x] = (real)sum;
    }
    if (!present(bias)) return;
    double sum = 0;
    for (int r = 0; present(ba) && r < rank; r++) sum += (double)up[r] * R(ba)[r];
    R(bias)[row] = (real)sum;
}
static void plain_row(Tensor w, Tensor b, int from, Tensor out, Tensor bias, int row) {
    const size_t d = (size_t)w.n[1];
    memcpy(R(out) + (size_t)row * d, R(w) + (size_t)from * d, d * sizeof(real));
    if (present(bias)) R(bias)[row] = present(b) ? R(b)[from] : 0;
}

static bool mla_layer(Job *j, int l, Err *e) {
    const MlaCfg *c = (const void *)j->a.layer[l].cfg;
    const GqaCfg *g = job_gqa(&j->b, l);
    const Tensor wq = job_in(j, l, "self_attn.q_proj.weight"), bq = job_in(j, l, "self_attn.q_proj.bias"),
                 wa = job_in(j, l, "self_attn.kv_a_proj_with_mqa.weight"),
                 ba = job_in(j, l, "self_attn.kv_a_proj_with_mqa.bias"),
                 wb = job_in(j, l, "self_attn.kv_b_proj.weight"), q = job_out(j, l, "self_attn.q_proj.weight"),
                 qb = job_out(j, l, "self_attn.q_proj.bias"), k = job_out(j, l, "self_attn.k_proj.weight"),
                 kb = job_out(j, l, "self_attn.k_proj.bias"), v = job_out(j, l, "self_attn.v_proj.weight"),
                 vb = job_out(j, l, "self_attn.v_proj.bias");
    if (j->failed) return false;
    const int H = c->heads, K = g->kv_heads, each = H / K, D = c->v_dim, Dn = c->nope_dim, Dr = c->rope_dim,
              r = c->kv_rank;
    const size_t block = (size_t)(Dn + D) * (size_t)r;
    for (int h = 0; h < H; h++) {
        for (int i = 0; i < D; i++) plain_row(wq, bq, h * D + (i < Dr ? Dn + i : i - Dr), q, qb, h * D + i);
        const real *up = R(wb) + (size_t)h * block;
        if (h % each && memcmp(up, up - block, block * sizeof(real)))
            return err_input(e, "kv_heads: query heads %d and %d of layer %d read different keys and values; give %d",
                             h - 1, h, l, H);
        if (h % each) continue;
        for (int i = 0; i < D; i++) {
            const int row = h / each * D + i;
            if (i < Dr)
                plain_row(wa, ba, r + h / (H / c->rope_heads) * Dr + i, k, kb, row);
            else
                latent_row(wa, ba, up + (size_t)(i - Dr) * (size_t)r, r, k, kb, row);
            latent_row(wa, ba, up + (size_t)(Dn + i) * (size_t)r, r, v, vb, row);
        }
    }
    return true;
}

/* The decision channels become 0: of keys and all queries that merge; of the deciding queries alone that evict. */
static bool dmc_layer(Job *j, int l) {
    static const char *const names[] = {"self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.weight",
                                        "self_attn.k_proj.bias"};
    const DmcCfg *c = (const void *)j->a.layer[l].cfg;
    const int D = c->g.head_dim, lane = c->lane == DMC_LAST ? D - 1 : 0, each = c->g.heads / c->g.kv_heads;
    if (c->decide == DMC_ADAPTER) return true;
    for (int t = 0; t < 4; t++) {
        Tensor x = job_edit(j, l, names[t]);
        if (j->failed) return false;
        if (!present(x) || (t > 1 && c->action == DMC_EVICT)) continue;
        const size_t width = x.rank > 1 ? (size_t)x.n[1] : 1;
        for (int h = 0; h < x.n[0] / D; h++)
            if (c->action == DMC_MERGE || h % each == 0)
                memset(R(x) + (size_t)(h * D + lane) * width, 0, width * sizeof(real));
    }
    return true;
}

bool stock_layer(Job *j, int l, Err *e) {
    if (stock_is(j, l, "mla")) return mla_layer(j, l, e);
    return !stock_is(j, l, "dmc") || dmc_layer(j, l);
}
