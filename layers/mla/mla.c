/* mla.c: the mixer mla: expanded and absorbed attention, forward, backward and extend. */
#include "mla.h"
#include "layers/dmc/adapter.h"
#include "layers/parts.h"

#define AT(member) offsetof(MlaCfg, member)
static const Key keys[] = {
    {"heads", KEY_INT, AT(heads), NULL, 0, 1024, "query heads; 0: this layer only publishes latents for others", 0, 0},
    {"kv_rank", KEY_INT, AT(kv_rank), NULL, 1, 1 << 20, "width of the latent from which keys and values are computed",
     0, 0},
    {"q_rank", KEY_INT, AT(q_rank), "0", 0, 1 << 20,
     "width of the queries' latent; 0: queries are computed directly from x", 0, 0},
    {"nope_dim", KEY_INT, AT(nope_dim), "0", 0, 1024, "elements of a head's key that are not rotated", 0, 0},
    {"rope_dim", KEY_INT, AT(rope_dim), "0", 0, 2 * ROPE_PAIRS,
     "elements of the shared, rotated key; 0 needs `rope: none`", 0, 0},
    {"v_dim", KEY_INT, AT(v_dim), "0", 0, 1024, "width of a head's value; 0: nope_dim", 0, 0},
    {"rope_heads", KEY_INT, AT(rope_heads), "1", 1, 1024,
     "rotated keys per token, a divisor of heads; heads / rope_heads heads share each", 0, 0},
    {"window", KEY_INT, AT(window), "0", 0, 1 << 30, "positions that a query sees, its own included; 0: all", 0, 0},
    {"sinks", KEY_INT, AT(sinks), "0", 0, 1 << 20, "first positions of a document that every query sees", 0, 0},
    {"rope", KEY_TABLE, AT(rope), "", 0, 0,
     "rotary position embedding of the rope_dim elements; mscale_all_dim also scales the softmax", 0, rope_keys},
    {"latent_norm", KEY_BOOL, AT(latent_norm), "true", 0, 0, "RMSNorm of the latent", 0, 0},
    {"q_latent_norm", KEY_BOOL, AT(q_latent_norm), "true", 0, 0, "RMSNorm of the queries' latent, if q_rank is not 0",
     0, 0},
    {"a_bias", KEY_BOOL, AT(a_bias), "false", 0, 0, "biases of the projections to latents and rotated keys", 0, 0},
    {"q_bias", KEY_BOOL, AT(q_bias), "false", 0, 0, "bias of the queries' projection", 0, 0},
    {"o_bias", KEY_BOOL, AT(o_bias), "false", 0, 0, "bias of the output projection", 0, 0},
    {"out_gate", KEY_BOOL, AT(out_gate), "false", 0, 0, "each head's output times a sigmoid of x, one for the head", 0,
     0},
    {"evict", KEY_BOOL, AT(evict), "false", 0, 0,
     "a projection of x decides about each token whether the latent before it is removed, `delay` positions later "
     "(DMS)",
     0, 0},
    EVICT_KEYS(MlaCfg),
    {0},
};
#undef AT

static const double latent_eps = 1e-6; /* independent of the model's norm_eps: all published weights assume it */

typedef struct {
    Tensor wq, bq;       /* (H (Dn+Dr), d or q_rank) */
    Tensor wqa, bqa, nq; /* (q_rank, d) (q_rank) (q_rank) */
    Tensor wa, ba, nkv;  /* (r + G Dr, d) (r + G Dr) (r); owner only */
    Tensor wb, wo, bo;   /* (H (Dn+Dv), r) (d, H Dv) (d) */
    Tensor wg;           /* (H, d) of out_gate */
    Tensor wd, bd;       /* (1, d) (1) of evict */
} W;
typedef struct {
    Tensor q, o, lse;   /* (M,H,Dn+Dr) as attended, (M,H,Dv), (M,H); M wanted rows */
    Tensor ql, ql_rstd; /* (M,q_rank) before its norm, (M) */
    Tensor u, rstd;     /* (N,r) before its norm, (N); owner with latent_norm only */
    Tensor gate;        /* (M,H) of out_gate, before the sigmoid */
    Tensor alpha;       /* (N,1) of evict */
} S;

static int key_dim(const MlaCfg *c) { return c->nope_dim + c->rope_dim; }
static int up_dim(const MlaCfg *c) { return c->nope_dim + c->v_dim; }
static int rope_width(const MlaCfg *c) { return c->rope_heads * c->rope_dim; }

static bool check_sizes(const MlaCfg *c, Err *e) {
    int d = c->base.d_model;
    if (c->kv_rank > d) return err_input(e, "kv_rank: expected at most d_model (%d), got %d", d, c->kv_rank);
    if (c->q_rank > d) return err_input(e, "q_rank: expected at most d_model (%d), got %d", d, c->q_rank);
    if (c->heads % c->rope_heads)
        return err_input(e, "rope_heads: expected a divisor of heads (%d), got %d", c->heads, c->rope_heads);
    if (c->rope_heads > 1 && !c->rope_dim)
        return err_input(e, "rope_heads: %d rotated keys, but rope_dim is 0", c->rope_heads);
    if (c->heads && !key_dim(c)) return err_input(e, "nope_dim: keys have no elements; set nope_dim, rope_dim or both");
    if (c->heads && !c->v_dim) return err_input(e, "v_dim: must be given when nope_dim is 0");
    if ((long)imax(c->heads, c->rope_heads) * (key_dim(c) + c->v_dim) > 1 << 20)
        return err_input(e, "heads: %d heads of %d + %d elements are more than %d in all", c->heads, key_dim(c),
                         c->v_dim, 1 << 20);
    return true;
}
static bool check_evict(MlaCfg *c, Err *e) {
    if (c->delay && !c->evict)
        return err_input(e, "delay: %d positions, but no latent is removed; set evict: true or leave delay out",
                         c->delay);
    if (c->evict && !c->base.owner)
        return err_input(e, "evict: this layer reads another's latents (kv_from), and the layer that makes them "
                            "decides; give the two layers different kinds");
    if (c->evict && c->window)
        return err_input(e,
                         "evict: not together with a window (%d), which removes latents by their age; set one of "
                         "them",
                         c->window);
    if (c->gain == 0) c->gain = EVICT_GAIN;
    return true;
}
static bool mla_check(void *cfg, Err *e) {
    MlaCfg *c = cfg;
    bool turns = c->rope.type != ROPE_NONE;
    if (!c->v_dim) c->v_dim = c->nope_dim;
    if (!check_sizes(c, e) || !check_evict(c, e)) return false;
    if (turns && !c->rope_dim)
        return err_input(e, "rope_dim: 0 leaves nothing to rotate; expected an even number, or `rope: none`");
    if (turns && c->rope_dim % 2)
        return err_input(e, "rope_dim: rope turns pairs, expected an even number, got %d", c->rope_dim);
    if (c->sinks && !c->window)
        return err_input(e, "sinks: %d without a window has no meaning; set window or remove sinks", c->sinks);
    if (!c->heads && c->out_gate)
        return err_input(e, "out_gate: a gate for each head, but heads is 0; remove out_gate");
    if (!c->heads && !c->base.owner)
        return err_input(e, "heads: 0 publishes latents, but kv_from says that this layer reads another's");
    if (!rope_make(&c->k_turn, &c->rope, turns ? c->rope_dim : 0, c->base.max_positions, e)) return false;
    c->q_turn = c->k_turn;
    c->q_turn.at = c->nope_dim;
    return true;
}

static void mla_weights(const void *cfg, void *w_, Fields *f) {
    const MlaCfg *c = cfg;
    W *w = w_;
    int d = c->base.d_model, Q = c->heads * key_dim(c), A = c->kv_rank + rope_width(c);
    const unsigned gain = FIELD_ONES | FIELD_NODECAY, bias = FIELD_ZEROS | FIELD_NODECAY;
    if (c->heads && c->q_rank) {
        field(f, &w->wqa, "q_a_proj.weight", 0, c->q_rank, d);
        if (c->a_bias) field(f, &w->bqa, "q_a_proj.bias", bias, c->q_rank);
        if (c->q_latent_norm) field(f, &w->nq, "q_a_layernorm.weight", gain, c->q_rank);
        field(f, &w->wq, "q_b_proj.weight", 0, Q, c->q_rank);
        if (c->q_bias) field(f, &w->bq, "q_b_proj.bias", bias, Q);
    } else if (c->heads) {
        field(f, &w->wq, "q_proj.weight", 0, Q, d);
        if (c->q_bias) field(f, &w->bq, "q_proj.bias", bias, Q);
    }
    if (c->base.owner) {
        field(f, &w->wa, "kv_a_proj_with_mqa.weight", 0, A, d);
        if (c->a_bias) field(f, &w->ba, "kv_a_proj_with_mqa.bias", bias, A);
        if (c->latent_norm) field(f, &w->nkv, "kv_a_layernorm.weight", gain, c->kv_rank);
        if (c->evict) adapter_fields(f, &w->wd, &w->bd, 1, d);
    }
    if (!c->heads) return;
    field(f, &w->wb, "kv_b_proj.weight", 0, c->heads * up_dim(c), c->kv_rank);
    field(f, &w->wo, "o_proj.weight", FIELD_RESIDUAL, d, c->heads * c->v_dim);
    if (c->o_bias) field(f, &w->bo, "o_proj.bias", bias, d);
    if (c->out_gate) field(f, &w->wg, "g_proj.weight", 0, c->heads, d);
}

static void mla_buffers(const MlaCfg *c, int N, int M, S *s, Fields *f) {
    if (c->heads) {
        field(f, &s->q, "q", 0, M, c->heads, key_dim(c));
        field(f, &s->o, "o", 0, M, c->heads, c->v_dim);
        field(f, &s->lse, "lse", FIELD_F32, M, c->heads);
        if (c->out_gate) field(f, &s->gate, "gate", 0, M, c->heads);
    }
    if (c->heads && c->q_rank) {
        field(f, &s->ql, "ql", 0, M, c->q_rank);
        if (c->q_latent_norm) field(f, &s->ql_rstd, "ql_rstd", FIELD_F32, M);
    }
    if (c->base.owner && c->latent_norm) {
        field(f, &s->u, "u", 0, N, c->kv_rank);
        field(f, &s->rstd, "rstd", FIELD_F32, N);
    }
    if (c->evict) field(f, &s->alpha, "alpha", FIELD_F32, N, 1);
}
static void mla_saved(const void *cfg, int N, void *s, Fields *f) { mla_buffers(cfg, N, N, s, f); }

static void mla_rows(const void *cfg, KvShape *s) {
    const MlaCfg *c = cfg;
    *s = (KvShape){.lanes = 1,
                   .kdim = c->kv_rank + rope_width(c),
                   .vdim = c->kv_rank,
                   .alias = true,
                   .window = c->window,
                   .sinks = c->sinks,
                   .evicts = c->evict,
                   .delay = c->delay,
                   .heads = c->window || c->evict ? 0 : c->heads};
}
static Decide decide_of(const MlaCfg *c) {
    return (Decide){.gain = c->gain, .offset = c->offset, .temperature = c->temperature, .group = 1};
}
/* Forward, backward and both forms of reading must use the same pattern. */
static AttnSpec mla_attn(const MlaCfg *c) {
    double m =
        c->rope.factor > 1 && c->rope.mscale_all_dim > 0 ? 0.1 * c->rope.mscale_all_dim * log(c->rope.factor) + 1 : 1;
    return (
        AttnSpec){.heads = c->heads, .window = c->window, .sinks = c->sinks, .scale = (real)(m * m / sqrt(key_dim(c)))};
}

/* ---- pieces shared by all passes --------------------------------------------------------------------------------- */

/* The rotated keys of the rows in kv, (N, G, Dr), or their memory as (N, G Dr). */
static Tensor rope_keys_of(Run *r, const MlaCfg *c, int N, Tensor k, Dtype dtype) {
    Tensor t = SCRATCH_OF(r, "rope keys", dtype, N, c->rope_heads, c->rope_dim);
    r->ops->columns(r, tensor_rows(t, rope_width(c)), 0, k, c->kv_rank, rope_width(c));
    return t;
}

static void mla_latents(Run *r, const MlaCfg *c, const W *w, Tensor x, Kv *kv, S *s) {
    Mark mark = arena_mark(r->scratch);
    const Tensor rows = kv_made(r, kv).k;
    int N = r->in.n, rank = c->kv_rank, ropes = rope_width(c);
    Tensor latent = SCRATCH_OF(r, "latent", x.dtype, N, rank), u = c->latent_norm ? s->u : latent;
    Tensor k = ropes ? SCRATCH_OF(r, "rope keys", x.dtype, N, c->rope_heads, c->rope_dim) : ABSENT;
    Projection p[] = {{u, tensor_part(w->wa, 0, rank), tensor_part(w->ba, 0, rank)},
                      {k, tensor_part(w->wa, rank, ropes), tensor_part(w->ba, rank, ropes)}};
    r->ops->linear_many(r, 1 + (ropes > 0), p, x);
    if (c->latent_norm) r->ops->rmsnorm(r, latent, s->rstd, u, w->nkv, latent_eps);
    r->ops->columns(r, rows, 0, latent, 0, rank);
    if (ropes) {
        r->ops->rope(r, k, &c->k_turn, r->in, 1);
        r->ops->columns(r, rows, rank, tensor_rows(k, ropes), 0, ropes);
    }
    if (c->evict) adapter_decide(r, w->wd, w->bd, decide_of(c), x, kv, ABSENT, s->alpha);
    kv_settle(r, kv);
    arena_release(r->scratch, mark);
}
/* The gradients of the latents and of the decisions about them. dkv, the gradients of the rows, are only read. d and p
 * receive the products that still have to be done for x, in scratch; returns how many. */
static int latents_backward(Run *r, const MlaCfg *c, const W *w, W *dw, Dtype dtype, const Kv *dkv, const S *s,
                            Projection *d, Projection *p) {
    int N = r->in.n, rank = c->kv_rank, ropes = rope_width(c), n = 0;
    Tensor dk = dkv->k;
    if (c->evict) {
        p[n].w = w->wd;
        d[n++] = (Projection){adapter_backward(r, decide_of(c), dkv, s->alpha, dtype), dw->wd, dw->bd};
    }
    Tensor g = SCRATCH_OF(r, "d latent", dtype, N, rank);
    r->ops->columns(r, g, 0, dk, 0, rank);
    if (c->latent_norm) {
        Tensor du = SCRATCH_OF(r, "d u", dtype, N, rank);
        r->ops->rmsnorm_backward(r, overwrite(du), dw->nkv, g, s->u, w->nkv, s->rstd);
        g = du;
    }
    p[n].w = tensor_part(w->wa, 0, rank);
    d[n++] = (Projection){g, tensor_part(dw->wa, 0, rank), tensor_part(dw->ba, 0, rank)};
    if (!ropes) return n;
    Tensor k = rope_keys_of(r, c, N, dk, dtype);
    r->ops->rope(r, k, &c->k_turn, r->in, -1);
    p[n].w = tensor_part(w->wa, rank, ropes);
    d[n++] = (Projection){k, tensor_part(dw->wa, rank, ropes), tensor_part(dw->ba, rank, ropes)};
    return n;
}

/* The input of the query projection: x, or its latent; rstd is written if there is a norm. */
static Tensor query_input(Run *r, const MlaCfg *c, const W *w, Tensor x, Tensor ql, Tensor rstd) {
    if (!c->q_rank) return x;
    if (!c->q_latent_norm) return ql;
    Tensor normed = SCRATCH_OF(r, "query latent", ql.dtype, ql.n[0], c->q_rank);
    r->ops->rmsnorm(r, normed, rstd, ql, w->nq, latent_eps);
    return normed;
}
static void mla_queries(Run *r, const MlaCfg *c, const W *w, Tensor x, S *s) {
    Mark mark = arena_mark(r->scratch);
    x = wanted_rows(r, x);
    if (c->q_rank) r->ops->linear(r, s->ql, x, w->wqa, w->bqa);
    if (c->out_gate) r->ops->linear(r, s->gate, x, w->wg, ABSENT);
    r->ops->linear(r, s->q, query_input(r, c, w, x, s->ql, s->ql_rstd), w->wq, w->bq);
    r->ops->rope(r, s->q, &c->q_turn, r->out, 1);
    arena_release(r->scratch, mark);
}
/* The gradients of the queries. Consumes dq; returns the product that still has to be done for x, in scratch. */
static Projection queries_backward(Run *r, const MlaCfg *c, const W *w, W *dw, Tensor x, Tensor dq, const S *s) {
    int N = r->in.n;
    r->ops->rope(r, dq, &c->q_turn, r->in, -1);
    if (!c->q_rank) return (Projection){dq, dw->wq, dw->bq};
    Tensor in = query_input(r, c, w, x, s->ql, c->q_latent_norm ? SCRATCH(r, "again", N) : ABSENT),
           din = SCRATCH_OF(r, "d query latent", x.dtype, N, c->q_rank);
    r->ops->linear_backward(r, overwrite(din), dw->wq, dw->bq, dq, in, w->wq);
    if (c->q_latent_norm) {
        Tensor dql = SCRATCH_OF(r, "d ql", x.dtype, N, c->q_rank);
        r->ops->rmsnorm_backward(r, overwrite(dql), dw->nq, din, s->ql, w->nq, s->ql_rstd);
        din = dql;
    }
    return (Projection){din, dw->wqa, dw->bqa};
}

/* ---- expanded ---------------------------------------------------------------------------------------------------- */

/* Of a row that a decision removes every head sees the same mask. */
static KvShape expanded_shape(const MlaCfg *c, const KvShape *rows) {
    return (
        KvShape){.lanes = c->heads, .kdim = key_dim(c), .vdim = c->v_dim, .evicts = rows->evicts, .delay = rows->delay};
}
/* The keys and values of every head for all rows of the pass, in scratch, with the rows' dtype; *latent: their first
 * factor (N,r). */
static Kv mla_expand(Run *r, const MlaCfg *c, const W *w, const Kv *kv, Tensor *latent) {
    int N = r->batch->N, H = c->heads;
    Dtype dtype = kv->k.dtype;
    KvShape shape = expanded_shape(c, &kv->s);
    Fields place = arena_placer(r->scratch);
    Kv e = {0};
    place.acts_bf16 = dtype == BF16;
    kv_fields(&shape, N, &e, &place);
    if (e.s.evicts) r->ops->columns(r, tensor_rows(e.bias, 1), 0, kv->bias, 0, 1);
    *latent = SCRATCH_OF(r, "latents", dtype, N, c->kv_rank);
    r->ops->columns(r, *latent, 0, kv->k, 0, c->kv_rank);
    Mark mark = arena_mark(r->scratch);
    Tensor up = SCRATCH_OF(r, "keys and values", dtype, N, H, up_dim(c));
    r->ops->linear(r, up, *latent, w->wb, ABSENT);
    r->ops->columns(r, e.k, 0, up, 0, c->nope_dim);
    r->ops->columns(r, e.v, 0, up, c->nope_dim, c->v_dim);
    if (c->rope_heads > 1)
        r->ops->columns(r, e.k, c->nope_dim, rope_keys_of(r, c, N, kv->k, dtype), 0, c->rope_dim);
    else
        r->ops->columns(r, e.k, c->nope_dim, kv->k, c->kv_rank, c->rope_dim);
    arena_release(r->scratch, mark);
    return e;
}
static void attend_expanded(Run *r, const MlaCfg *c, const W *w, const Kv *kv, S *s, bool merge) {
    Mark mark = arena_mark(r->scratch);
    Tensor latent;
    Kv e = mla_expand(r, c, w, kv, &latent);
    r->ops->attend(r, s->o, s->lse, s->q, &e, mla_attn(c), merge);
    arena_release(r->scratch, mark);
}
/* Overwrite the gradients of queries; put those of the rows in kv into dkv, and add to those of Wb. Sums for keys have
 * their dtype: they are rounded if nothing else adds to them. The gradient of a row's mask is the sum over heads. */
static void mla_attend_backward(Run *r, const MlaCfg *c, const W *w, W *dw, const Kv *kv, const S *s, Tensor dout,
                                Tensor dq, const KvInto *dkv) {
    Mark mark = arena_mark(r->scratch);
    int N = r->in.n, H = c->heads;
    Into dk = keys_into(dkv);
    Tensor latent;
    Kv e = mla_expand(r, c, w, kv, &latent), de = {.s = e.s};
    de.k = SCRATCH_OF(r, "d keys", e.k.dtype, N, H, key_dim(c));
    de.v = SCRATCH_OF(r, "d values", e.v.dtype, N, H, c->v_dim);
    if (e.s.evicts) {
        de.bias = SCRATCH(r, "d masks", N, H);
        r->ops->zero(r, de.bias);
    }
    r->ops->attend_backward(r, overwrite(dq), &(KvInto){de, true}, dout, s->q, &e, mla_attn(c), s->o, s->lse);
    if (e.s.evicts) r->ops->columns_backward(r, add_to(dkv->kv.bias), 0, tensor_rows(de.bias, 1), 0, 1);
    Tensor dup = SCRATCH_OF(r, "d keys and values", e.k.dtype, N, H, up_dim(c)),
           dlatent = SCRATCH_OF(r, "d latents", dk.t.dtype, N, c->kv_rank);
    r->ops->columns(r, dup, 0, de.k, 0, c->nope_dim);
    r->ops->columns(r, dup, c->nope_dim, de.v, 0, c->v_dim);
    r->ops->linear_backward(r, overwrite(dlatent), dw->wb, ABSENT, dup, latent, w->wb);
    r->ops->columns_backward(r, dk, 0, dlatent, 0, c->kv_rank);
    if (c->rope_heads > 1) { /* every head of a group adds to the key it shares */
        Tensor drope = SCRATCH_OF(r, "d rope keys", dk.t.dtype, N, c->rope_heads, c->rope_dim);
        r->ops->columns_backward(r, overwrite(drope), 0, de.k, c->nope_dim, c->rope_dim);
        r->ops->columns_backward(r, dk, c->kv_rank, tensor_rows(drope, rope_width(c)), 0, rope_width(c));
    } else {
        r->ops->columns_backward(r, dk, c->kv_rank, de.k, c->nope_dim, c->rope_dim);
    }
    arena_release(r->scratch, mark);
}

/* ---- absorbed ---------------------------------------------------------------------------------------------------- */

/* The absorbed queries (M, H, r + G Dr), which read rows as they are stored. */
static Tensor mla_absorb(Run *r, const MlaCfg *c, const W *w, Tensor q) {
    int M = q.n[0], H = c->heads, width = c->kv_rank + rope_width(c);
    Tensor qa = SCRATCH(r, "absorbed queries", M, H, width);
    if (c->rope_heads > 1) r->ops->zero(r, qa); /* a head only reads its own rope key */
    r->ops->linear_heads(r, qa, q, w->wb, 0, c->nope_dim, true);
    if (c->rope_heads == 1) {
        r->ops->columns(r, qa, c->kv_rank, q, c->nope_dim, c->rope_dim);
        return qa;
    }
    for (int h = 0; h < H; h++)
        r->ops->columns(r, tensor_rows(qa, H * width), h * width + c->kv_rank + h / (H / c->rope_heads) * c->rope_dim,
                        tensor_rows(q, H * key_dim(c)), h * key_dim(c) + c->nope_dim, c->rope_dim);
    return qa;
}
/* slot NULL: no history. own: also read the pass's own rows. */
static void attend_absorbed(Run *r, const MlaCfg *c, const W *w, const Kv *kv, S *s, const Slot *slot, bool own) {
    Mark mark = arena_mark(r->scratch);
    Tensor qa = mla_absorb(r, c, w, s->q), z = SCRATCH(r, "read latents", r->out.n, c->heads, c->kv_rank);
    if (slot) kv_attend(r, slot, kv, z, s->lse, qa, mla_attn(c), false);
    if (own) r->ops->attend(r, z, s->lse, qa, kv, mla_attn(c), slot != NULL);
    r->ops->linear_heads(r, s->o, z, w->wb, c->nope_dim, c->v_dim, false);
    arena_release(r->scratch, mark);
}

bool mla_expands(const MlaCfg *c, const Batch *b, RowList out) {
    double pairs = 0, up = (double)c->kv_rank * up_dim(c);
    for (int m = 0; m < out.n; m++) {
        int i = out.idx[m], sees = i - imax(b->first[i], b->off[b->of[i]]) + 1;
        pairs += c->window ? imin(sees, c->window) : sees;
    }
    double absorbed = pairs * (2.0 * c->kv_rank + rope_width(c)) + (b->history ? 0 : out.n * up);
    return pairs * (key_dim(c) + c->v_dim) + b->N * up < absorbed;
}

/* ---- the gate of outputs ----------------------------------------------------------------------------------------- */

/* A head's gate goes to its Dv values, and their gradients back to it, by a product with a column of ones. */
static Tensor gate_ones(Run *r, const MlaCfg *c) {
    Tensor ones = SCRATCH(r, "ones", c->v_dim, 1);
    r->ops->repeat(r, ones, &(const double){1});
    return ones;
}
static Tensor gate_spread(Run *r, const MlaCfg *c, const S *s, Tensor ones) {
    Tensor z = SCRATCH_OF(r, "gates", s->o.dtype, s->o.n[0], c->heads, c->v_dim);
    r->ops->linear(r, tensor_rows(z, c->v_dim), tensor_rows(s->gate, 1), ones, ABSENT);
    return z;
}
/* What the output projection reads: o, or o times its gate, in scratch. */
static Tensor mla_gated(Run *r, const MlaCfg *c, const S *s) {
    if (!c->out_gate) return s->o;
    Tensor y = SCRATCH_OF(r, "gated", s->o.dtype, s->o.n[0], c->heads, c->v_dim);
    r->ops->sigmoid_gate(r, y, s->o, gate_spread(r, c, s, gate_ones(r, c)));
    return y;
}
/* From dy compute dout, the gradient of o, and add to those of the output projection. Returns the gradient of the
 * gates (N,H), in scratch; without a gate it is absent. */
static Tensor gate_backward(Run *r, const MlaCfg *c, const W *w, W *dw, const S *s, Tensor dy, Tensor dout) {
    const int N = r->in.n, H = c->heads;
    if (!c->out_gate) {
        r->ops->linear_backward(r, overwrite(dout), dw->wo, dw->bo, dy, s->o, w->wo);
        return ABSENT;
    }
    Tensor dgate = SCRATCH_OF(r, "d gate", dout.dtype, N, H);
    Mark mark = arena_mark(r->scratch);
    Tensor dgated = SCRATCH_OF(r, "d gated", dout.dtype, N, H, c->v_dim),
           dz = SCRATCH_OF(r, "d gates", dout.dtype, N, H, c->v_dim), ones = gate_ones(r, c);
    r->ops->linear_backward(r, overwrite(dgated), dw->wo, dw->bo, dy, mla_gated(r, c, s), w->wo);
    r->ops->sigmoid_gate_backward(r, overwrite(dout), overwrite(dz), dgated, s->o, gate_spread(r, c, s, ones));
    r->ops->linear_backward(r, overwrite(tensor_rows(dgate, 1)), ABSENT, ABSENT, tensor_rows(dz, c->v_dim),
                            tensor_rows(s->gate, 1), ones);
    arena_release(r->scratch, mark);
    return dgate;
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

static void mla_forward(Run *r, const void *cfg, const void *w_, Tensor x, Kv *kv, void *s_, Tensor y) {
    const MlaCfg *c = cfg;
    const W *w = w_;
    S *s = s_;
    if (c->base.owner) mla_latents(r, c, w, x, kv, s);
    if (!c->heads) return;
    mla_queries(r, c, w, x, s);
    attend_expanded(r, c, w, kv, s, false);
    Mark mark = arena_mark(r->scratch);
    r->ops->linear(r, y, mla_gated(r, c, s), w->wo, w->bo);
    arena_release(r->scratch, mark);
}
static void mla_extend(Run *r, const void *cfg, const void *w_, Tensor x, Kv *kv, const Slot *slot, Tensor y) {
    const MlaCfg *c = cfg;
    const W *w = w_;
    Mark mark = arena_mark(r->scratch);
    Fields f = arena_placer(r->scratch);
    S s = {0};
    mla_buffers(c, r->in.n, r->out.n, &s, &f);
    if (c->base.owner) mla_latents(r, c, w, x, kv, &s);
    if (c->heads) {
        bool all = measuring(r), history = r->batch->history, expands = !all && mla_expands(c, r->batch, r->out);
        mla_queries(r, c, w, x, &s);
        /* both partials of the softmax meet in (o, lse): that of the history is lifted before it is merged */
        if (all || history || !expands) attend_absorbed(r, c, w, kv, &s, history ? slot : NULL, all || !expands);
        if (all || expands) attend_expanded(r, c, w, kv, &s, history);
        if (present(r->probe.q)) { /* as they meet the latents */
            Mark inner = arena_mark(r->scratch);
            kv_probe(r, mla_absorb(r, c, w, s.q), s.lse, mla_attn(c));
            arena_release(r->scratch, inner);
        }
        r->ops->linear(r, y, mla_gated(r, c, &s), w->wo, w->bo);
    }
    arena_release(r->scratch, mark);
}

static void mla_backward(Run *r, const void *cfg, const void *w_, void *dw_, Tensor x, const Kv *kv, const KvInto *dkv,
                         const void *s_, Tensor dy, Into dx) {
    const MlaCfg *c = cfg;
    const W *w = w_;
    W *dw = dw_;
    const S *s = s_;
    Mark mark = arena_mark(r->scratch);
    Projection d[5], p[5];
    int n = 0;
    if (c->heads) {
        int N = r->in.n, H = c->heads;
        Tensor dout = SCRATCH_OF(r, "d o", x.dtype, N, H, c->v_dim),
               dq = SCRATCH_OF(r, "d q", x.dtype, N, H, key_dim(c));
        Tensor dgate = gate_backward(r, c, w, dw, s, dy, dout);
        if (c->out_gate) {
            d[n] = (Projection){dgate, dw->wg, ABSENT};
            p[n++].w = w->wg;
        }
        mla_attend_backward(r, c, w, dw, kv, s, dout, dq, dkv);
        d[n] = queries_backward(r, c, w, dw, x, dq, s);
        p[n++].w = c->q_rank ? w->wqa : w->wq;
    }
    /* the owner's backward runs last: dkv holds the sum of all readers' parts */
    if (c->base.owner) n += latents_backward(r, c, w, dw, x.dtype, &dkv->kv, s, d + n, p + n);
    r->ops->linear_many_backward(r, dx, n, d, x, p);
    arena_release(r->scratch, mark);
}

static double mla_seen(const MlaCfg *c, double context) {
    return c->window && context > c->window + c->sinks ? c->window + c->sinks : context;
}
static double mla_flops(const void *cfg, double context) {
    const MlaCfg *c = cfg;
    return 2.0 * c->heads * (key_dim(c) + c->v_dim) * mla_seen(c, context);
}
static double decode_flops(const void *cfg, double context) {
    const MlaCfg *c = cfg;
    return 2.0 * c->heads * (2.0 * c->kv_rank + rope_width(c)) * mla_seen(c, context);
}
static bool mla_reports(const void *cfg) { return ((const MlaCfg *)cfg)->evict; }
static bool mla_publishes_only(const void *cfg) { return ((const MlaCfg *)cfg)->heads == 0; }

const Mixer mla_mixer = {
    .name = "mla",
    .source = "arXiv:2405.04434",
    .keys = keys,
    .cfg_size = sizeof(MlaCfg),
    .w_size = sizeof(W),
    .s_size = sizeof(S),
    .check = mla_check,
    .weights = mla_weights,
    .saved = mla_saved,
    .rows = mla_rows,
    .forward = mla_forward,
    .backward = mla_backward,
    .extend = mla_extend,
    .flops = mla_flops,
    .decode_flops = decode_flops,
    .publishes_only = mla_publishes_only,
    .reports = mla_reports,
    .takes_bf16 = true,
};
