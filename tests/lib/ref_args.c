/* ref_args.c: the arguments of drawn calls (ref_call.h): products, norms, attention, means, losses, updates. Those of
 * recurrences, gates and rows are in ref_args_rows.c. */
#include "layers/cache/codec.h"
#include "ref_call.h"

#define EACH(v, shape_of, expression)                               \
    for (size_t i_ = 0; (v) && i_ < tensor_count(shape_of); i_++) { \
        const double v_ = (v)[i_];                                  \
        (v)[i_] = (expression);                                     \
    }
static int narrow(OpCall *c) { return imin(c->d, 64); }
static int outputs(OpCall *c) { return (const int[]){1, 15, 33}[draw_of(c, 3)]; }
static Dtype not_wider(OpCall *c, Dtype t) { return t == BF16 ? BF16 : any_dtype(c); }

/* ---- products ---- */
/* The input of a product on CUDA, which rounds it where one of its operands is BF16: values that bf16 has. */
static void operands(OpCall *c) {
    for (int i = 0; cuda_ops() && i < c->nslots; i++) {
        const Slot *s = &c->slot[i];
        if (s->roles & ROLE_IN) EACH(s->before, s->as, bf16_to(bf16_from((float)v_)));
    }
}
/* CUDA rounds y in BF16 twice where there is a bias: as a product, and with the bias added. */
static bool may_add(OpCall *c, const Tensor *y) { return !cuda_ops() || call_slot(c, y)->as.dtype != BF16; }
MAKE(linear) {
    const int O = outputs(c);
    ARG(y, c->N, O), ARG(x, c->N, c->d), ARG(w, O, c->d);
    if (may_add(c, &a->y)) ARG(bias, O);
    c->within = true; /* of many rows room for few is measured, too */
    c->terms = c->d + 1;
    operands(c);
}
MAKE(linear_invariant) {
    const int O = outputs(c);
    ARG(y, c->N, O), ARG(x, c->N, c->d), ARG(w, O, c->d), ARG(bias, O);
    c->terms = c->d + 1;
}
MAKE(linear_backward) {
    const int O = outputs(c);
    ARG(dx, c->N, c->d), ARG(dw, O, c->d), ARG(dbias, O), ARG(dy, c->N, O), ARG(x, c->N, c->d), ARG(w, O, c->d);
    c->terms = imax(O, c->N) + 1;
    operands(c);
}
MAKE(linear_many) {
    Projection *p = call_own(c, LINEAR_MANY * sizeof *p);
    a->n = 1 + draw_of(c, 4), a->p = p, c->within = true;
    ARG(x, c->N, c->d);
    for (int j = 0; j < a->n; j++) {
        const int O = 1 + draw_of(c, 40);
        PART("p", p[j].y, 0, c->N, O), PART("p", p[j].w, ROLE_IN | ROLE_WEIGHT, O, c->d);
        if (may_add(c, &p[j].y)) PART("p", p[j].bias, ROLE_IN | ROLE_OPTIONAL, O);
    }
    c->terms = c->d + 1;
    operands(c);
}
MAKE(linear_many_backward) {
    Projection *d = call_own(c, LINEAR_MANY * sizeof *d), *p = call_own(c, LINEAR_MANY * sizeof *p);
    a->n = 1 + draw_of(c, 4), a->d = d, a->p = p;
    if (cuda_ops()) /* rounds dx once per product */
        AS(REAL, dx, c->N, c->d), ARG(x, c->N, c->d);
    else
        ARG(dx, c->N, c->d), ARG(x, c->N, c->d);
    c->terms = c->N + 1;
    for (int j = 0; j < a->n; j++) {
        const int O = 1 + draw_of(c, 40);
        PART("d", d[j].y, 0, c->N, O), PART("d", d[j].w, ROLE_ADD | ROLE_OPTIONAL, O, c->d);
        PART("d", d[j].bias, ROLE_ADD | ROLE_OPTIONAL, O), PART("p", p[j].w, ROLE_IN, O, c->d);
        c->terms += O;
    }
    call_has(c, "p");
    operands(c);
}
MAKE(linear_heads) {
    const int H = 1 + draw_of(c, 4), I = narrow(c), O = 1 + draw_of(c, 20), R = O + draw_of(c, 5);
    a->turned = coin(c), a->O = O, a->row = draw_of(c, R - O + 1);
    ARG(x, c->N, H, (a->turned ? O : I) + draw_of(c, 3)), ARG(y, c->N, H, (a->turned ? I : O) + draw_of(c, 3));
    ARG(w, H * R, I);
    call_slot(c, &a->y)->partial = true;
    c->terms = imax(O, I);
    operands(c);
}
/* n groups of all rows, some of them empty; w[e] (O,I). */
static Groups groups_of(OpCall *c, int *O) {
    Groups g = {1 + draw_of(c, 5), NULL};
    int *off = call_own(c, (size_t)(g.n + 1) * sizeof *off);
    for (int e = 1; e <= g.n; e++) off[e] = e == g.n ? c->N : imin(c->N, off[e - 1] + (coin(c) ? 0 : draw_of(c, c->N)));
    g.off = off, *O = outputs(c), c->within = true;
    return g;
}
MAKE(linear_groups) {
    int O;
    a->g = groups_of(c, &O);
    Tensor *w = call_own(c, (size_t)a->g.n * sizeof *w);
    a->w = w;
    ARG(y, c->N, O), ARG(x, c->N, c->d);
    const Dtype type = any_dtype(c);
    for (int e = 0; e < a->g.n; e++) PART_AS(type, "w", w[e], 0, O, c->d);
    c->terms = c->d;
    operands(c);
}
MAKE(linear_groups_backward) {
    int O;
    a->g = groups_of(c, &O);
    Tensor *w = call_own(c, (size_t)a->g.n * sizeof *w), *dw = call_own(c, (size_t)a->g.n * sizeof *dw);
    a->w = w, a->dw = coin(c) ? dw : NULL;
    ARG(dx, c->N, c->d), ARG(dy, c->N, O), ARG(x, c->N, c->d);
    for (int e = 0; e < a->g.n; e++) {
        PART("w", w[e], ROLE_IN, O, c->d);
        if (a->dw) PART("dw", dw[e], 0, O, c->d);
    }
    call_has(c, "w");
    c->terms = imax(O, c->N) + 1;
    operands(c);
}
MAKE(embed) {
    ARG(y, c->N, c->d), ARG(table, 11, c->d);
    a->tok = call_ints(c, c->N, 11), a->scale = coin(c) ? 1 : 0.75;
}
MAKE(embed_backward) {
    ARG(dtable, 11, c->d), ARG(dy, c->N, c->d);
    a->tok = call_ints(c, c->N, 10), a->scale = 0.75; /* the last row is nobody's */
    c->terms = c->N + 1;
}

/* ---- norms, rotation ---- */
/* Rows of three sizes: ordinary, so small that eps rules, zero. */
static double *norm_rows(OpCall *c, double *x, Tensor t) {
    const int d = t.n[t.rank - 1];
    EACH(x, t, v_ * ((int)i_ / d % 3 == 1 ? 1e-4 : (int)i_ / d % 7 == 5 ? 0 : 3));
    c->terms = d;
    return x;
}
static int heads_of(OpCall *c) { return c->large ? 1 : 1 + draw_of(c, 3); }
MAKE(rmsnorm) {
    const int H = heads_of(c);
    const Dtype t = any_dtype(c);
    AS(not_wider(c, t), y, c->N, H, c->d), ARG(rstd, c->N, H), ARG(w, c->d);
    norm_rows(c, AS(t, x, c->N, H, c->d), a->x);
    a->eps = 1e-5;
}
MAKE(add_rmsnorm) {
    ARG(y, c->N, c->d), ARG(rstd, c->N), ARG(z, c->N, c->d), ARG(w, c->d);
    norm_rows(c, ARG(x, c->N, c->d), a->x);
    a->eps = 1e-5;
}
MAKE(rmsnorm_backward) {
    c->d = imax(3, c->d);
    const int H = heads_of(c);
    const Dtype t = any_dtype(c);
    Tensor y = TENSOR(call_own(c, sizeof(double) * (size_t)(c->N * H * c->d)), F64, c->N, H, c->d);
    AS(t, dx, c->N, H, c->d), ARG(dw, c->d), AS(not_wider(c, t), dy, c->N, H, c->d), ARG(w, c->d), ARG(rstd, c->N, H);
    norm_rows(c, AS(t, x, c->N, H, c->d), a->x);
    call_settle(c);
    ref_rmsnorm(&c->run, y, a->rstd, a->x, a->w, 1e-5);
    c->terms = imax(c->d, c->N * H) + 1;
}
MAKE(layernorm) {
    const Dtype t = cuda_ops() ? REAL : any_dtype(c);
    AS(not_wider(c, t), y, c->N, c->d), ARG(rstd, c->N), ARG(w, c->d), ARG(b, c->d);
    norm_rows(c, AS(t, x, c->N, c->d), a->x);
    a->eps = 1e-5;
}
MAKE(layernorm_backward) {
    c->d = imax(3, c->d);
    const Dtype t = cuda_ops() ? REAL : any_dtype(c);
    Tensor y = TENSOR(call_own(c, sizeof(double) * (size_t)(c->N * c->d)), F64, c->N, c->d);
    AS(t, dx, c->N, c->d), ARG(dw, c->d), ARG(db, c->d), AS(not_wider(c, t), dy, c->N, c->d), ARG(w, c->d);
    ARG(rstd, c->N);
    norm_rows(c, AS(t, x, c->N, c->d), a->x);
    call_settle(c);
    ref_layernorm(&c->run, y, a->rstd, a->x, a->w, a->w, 1e-5);
    c->terms = imax(c->d, c->N) + 1;
}
static const Rope *rope_of(OpCall *c, int D) {
    Rope *p = call_own(c, sizeof *p);
    p->n = 2 * draw_of(c, D / 2 + 1), p->at = draw_of(c, D - p->n + 1);
    p->interleaved = coin(c), p->factor = coin(c) ? 1 : 1.25;
    for (int i = 0; i < p->n / 2; i++) p->f[i] = pow(1e4, -2.0 * i / p->n);
    return p;
}
MAKE(rope) {
    a->rows = call_some_rows(c), a->sign = coin(c) ? 1 : -1, a->rope = rope_of(c, c->d);
    ARG(x, a->rows.n, heads_of(c), c->d);
}
MAKE(rmsnorm_rope) {
    const int H = heads_of(c);
    a->rows = call_some_rows(c), a->rope = rope_of(c, c->d), a->eps = 1e-5;
    ARG(y, a->rows.n, H, c->d), ARG(rstd, a->rows.n, H), ARG(w, c->d);
    norm_rows(c, ARG(x, a->rows.n, H, c->d), a->x);
}
MAKE(rmsnorm_rope_backward) {
    c->d = imax(3, c->d);
    const int H = heads_of(c), N = (a->rows = call_some_rows(c)).n;
    Tensor y = TENSOR(call_own(c, sizeof(double) * (size_t)(N * H * c->d)), F64, N, H, c->d);
    a->rope = rope_of(c, c->d);
    ARG(dx, N, H, c->d), ARG(dw, c->d), ARG(dy, N, H, c->d), ARG(w, c->d), ARG(rstd, N, H);
    norm_rows(c, ARG(x, N, H, c->d), a->x);
    call_settle(c);
    ref_rmsnorm(&c->run, y, a->rstd, a->x, a->w, 1e-5);
    c->terms = imax(c->d, N * H) + 1;
}

/* ---- attention ---- */
static const int head_widths[] = {1, 3, 8, 16, 33, 64};
static KvShape shape_of(OpCall *c, bool alias) {
    KvShape s = {.lanes = 1 + draw_of(c, 3), .kdim = head_widths[draw_of(c, 6)], .alias = alias, .evicts = coin(c)};
    s.vdim = alias ? 1 + draw_of(c, s.kdim) : head_widths[draw_of(c, 6)];
    s.delay = s.evicts ? draw_of(c, 5) : 0;
    c->terms = c->N + imax(s.kdim, s.vdim);
    return s;
}
static AttnSpec spec_of(OpCall *c, const KvShape *s) {
    AttnSpec spec = {.heads = s->lanes * (1 + draw_of(c, 3)), .scale = (real)(1 / sqrt(s->kdim))};
    if (coin(c)) spec.window = 1 + draw_of(c, 20), spec.sinks = draw_of(c, 4);
    if (draw_of(c, 3) == 0) spec.cap = 1.5;
    return spec;
}
/* log of what the successor leaves of a key: 0, less, or nothing. */
static void biases(double *v, Tensor t) { EACH(v, t, i_ % 5 == 2 ? -INFINITY : i_ % 5 == 3 ? 0 : -fabs(v_)); }
/* A partial over other keys: some entries have none. */
static void partials(double *o, Tensor to, double *lse, Tensor t) {
    EACH(lse, t, i_ % 7 == 3 ? -INFINITY : v_);
    EACH(o, to, lse[i_ / (size_t)to.n[2]] == -INFINITY ? 0 : v_);
}
#define OUT_OR_PARTIAL(role) (a->merge ? ROLE_INOUT | (role) : 0)

MAKE(attend) {
    call_batch(c, 1 + draw_of(c, 3), coin(c));
    if (coin(c)) c->run.out = call_some_rows(c);
    Kv *kv = call_own(c, sizeof *kv);
    const int out = c->run.out.n;
    a->kv = kv, kv->s = shape_of(c, coin(c)), a->spec = spec_of(c, &kv->s), a->merge = coin(c);
    double *o = PART("o", a->o, OUT_OR_PARTIAL(ROLE_BF16), out, a->spec.heads, kv->s.vdim);
    double *lse = PART("lse", a->lse, OUT_OR_PARTIAL(0), out, a->spec.heads);
    if (a->merge) partials(o, a->o, lse, a->lse);
    ARG(q, out, a->spec.heads, kv->s.kdim), PART("kv", kv->k, 0, c->N, kv->s.lanes, kv->s.kdim);
    if (!kv->s.alias) PART("kv", kv->v, 0, c->N, kv->s.lanes, kv->s.vdim);
    if (kv->s.evicts) biases(PART("kv", kv->bias, ROLE_IN, c->N, kv->s.lanes), kv->bias);
    c->terms = kv->s.kdim + c->N;
}
MAKE(attend_backward) {
    Kv *kv = call_own(c, sizeof *kv);
    KvInto *into = call_own(c, sizeof *into);
    Kv *dkv = &into->kv;
    a->kv = kv, a->dkv = into, kv->s = shape_of(c, false), a->spec = spec_of(c, &kv->s), dkv->s = kv->s;
    const int H = a->spec.heads, G = kv->s.lanes, Dk = kv->s.kdim, Dv = kv->s.vdim;
    ARG(dq, c->N, H, Dk), call_arg(c, "dkv", &dkv->k, &into->overwrite, 0, SHAPE_(c->N, G, Dk)),
        PART("dkv", dkv->v, 0, c->N, G, Dv);
    call_slot(c, &dkv->v)->overwrite = call_slot(c, &dkv->k)->overwrite; /* the argument says it of both */
    ARG(dout, c->N, H, Dv), ARG(q, c->N, H, Dk), ARG(o, c->N, H, Dv), ARG(lse, c->N, H);
    PART("kv", kv->k, 0, c->N, G, Dk), PART("kv", kv->v, 0, c->N, G, Dv);
    if (kv->s.evicts) {
        PART("dkv", dkv->bias, ROLE_ADD, c->N, G);
        biases(PART("kv", kv->bias, ROLE_IN, c->N, G), kv->bias);
    }
    call_settle(c);
    ref_attend(&c->run, a->o, a->lse, a->q, kv, a->spec, false);
    c->terms = imax(Dk, Dv) + c->N * H / G;
}
/* Lanes of nseq sequences without rows, whose pages lie in a drawn order. */
static void lanes_open(OpCall *c, Lanes *l, KvShape s, int nseq) {
    *l = (Lanes){.s = s, .nseq = nseq, .P = 4 << draw_of(c, 3), .maxpages = 27};
    const bool bf16 = s.codec && s.codec->as == ROWS_BF16;
    const int lanes = nseq * s.lanes;
    const size_t ints = (size_t)lanes * sizeof(int), places = (size_t)(lanes * l->maxpages * l->P), row = row_bytes(&s);
    l->npages = lanes * l->maxpages;
    l->s0 = call_own(c, ints), l->lo = call_own(c, ints), l->hi = call_own(c, ints), l->tail = call_own(c, ints);
    l->table = call_own(c, ints * (size_t)l->maxpages), l->pos = call_own(c, places * sizeof(int));
    l->evicted = s.evicts ? call_own(c, places * sizeof(bool)) : NULL;
    l->data = TENSOR(call_own(c, places * row), bf16 ? BF16 : REAL, l->npages,
                     (int)((size_t)l->P * row / (bf16 ? 2 : sizeof(real))));
    for (int i = 0; i < l->npages; i++) l->table[i] = (int)rng_permute(c->dice.key, (uint64_t)i, (uint64_t)l->npages);
    call_raw(c, &l->s0, ints, RAW_IN, false), call_raw(c, &l->lo, ints, RAW_IN, false);
    call_raw(c, &l->hi, ints, RAW_IN, false), call_raw(c, &l->tail, ints, RAW_IN, false);
    call_raw(c, &l->table, ints * (size_t)l->maxpages, RAW_IN, false);
    call_raw(c, &l->pos, places * sizeof(int), RAW_IN, false);
    if (s.evicts) call_raw(c, &l->evicted, places * sizeof(bool), RAW_IN, false);
    call_raw(c, &l->data.p, places * row, RAW_IN, false);
}
/* Rows of positions 0..past-1 into an empty lane; gaps: one in four is missing. */
static void lane_fill(OpCall *c, Lanes *l, int lane, int past, bool gaps) {
    const KvShape *s = &l->s;
    real part[64];
    int n = 0;
    for (int p = 0; p < past; p++) {
        if (gaps && draw_of(c, 4) == 0) continue;
        const int page = l->table[lane * l->maxpages + n / l->P % l->maxpages], at = n % l->P;
        char *to = (char *)l->data.p + (size_t)page * (size_t)l->P * row_bytes(s);
        l->pos[page * l->P + at] = p;
        if (s->evicts) l->evicted[page * l->P + at] = draw_of(c, 3) == 0;
        for (int v = 0; v < 1 + !s->alias; v++) {
            const int D = v ? s->vdim : s->kdim;
            const size_t bytes = part_bytes(s, D);
            char *place = to + (v ? (size_t)l->P * key_bytes(s) : 0) + (size_t)at * bytes;
            for (int k = 0; k < D; k++) part[k] = (real)check_normal(c->dice.key, c->dice.n++);
            if (s->codec)
                s->codec->encode(s->codec, place, part, D);
            else
                memcpy(place, part, bytes);
        }
        n++;
    }
    l->hi[lane] = n, l->tail[lane] = n - 1, l->lo[lane] = s->window ? imax(0, n - s->window + 1) : 0;
}
static const RowCodec *const lane_codecs[] = {NULL, &codec_bf16, &codec_int8, &codec_fp8, &codec_int4, &codec_int3};
enum { LANE_CODECS = sizeof lane_codecs / sizeof *lane_codecs };
MAKE(attend_lanes) {
    c->past = 100;
    call_batch(c, 1 + draw_of(c, 3), true);
    if (coin(c)) c->run.out = call_some_rows(c);
    Lanes *l = call_own(c, sizeof *l);
    Kv *pass = call_own(c, sizeof *pass);
    KvShape s = shape_of(c, coin(c));
    s.codec = lane_codecs[draw_of(c, LANE_CODECS)];
    if (!s.evicts && coin(c)) s.window = 1 + draw_of(c, 40), s.sinks = draw_of(c, 4);
    lanes_open(c, l, s, c->batch.B + 1);
    for (int q = 0; q < c->batch.B; q++)
        for (int h = 0; h < s.lanes; h++)
            lane_fill(c, l, c->seq[q] * s.lanes + h, c->first[c->off[q]] == -1 ? c->pos[c->off[q]] : 3, s.evicts);
    const int heads = s.lanes * (1 + draw_of(c, 3)), out = c->run.out.n;
    a->l = l, a->pass = pass, a->merge = coin(c);
    pass->s = s;
    a->spec = (AttnSpec){.heads = heads, .scale = (real)(1 / sqrt(s.kdim)), .cap = draw_of(c, 3) ? 0 : 1.5};
    if (s.window) a->spec.window = 1 + draw_of(c, s.window), a->spec.sinks = draw_of(c, s.sinks + 1);
    double *o = PART("o", a->o, OUT_OR_PARTIAL(0), out, heads, s.vdim);
    double *lse = PART("lse", a->lse, OUT_OR_PARTIAL(0), out, heads);
    if (a->merge) partials(o, a->o, lse, a->lse);
    ARG(q, out, heads, s.kdim);
    double *evicted = PART("pass", pass->evicted, 0, c->N, s.lanes);
    EACH(evicted, pass->evicted, v_ > 0);
    call_has(c, "l");
    c->terms = s.kdim + 100;
}
/* Counts jump where p is an even share: every lse is moved until no p of its query lies within a thousandth of that. */
static void away_from_even(const Args_colstat *a, double *lse) {
    const int heads = a->q.n[1], group = heads / a->l->s.lanes;
    Tensor one =
        TENSOR(xcalloc((size_t)(a->l->s.lanes * a->stat.n[1]), sizeof(double)), F64, a->l->s.lanes, a->stat.n[1]);
    for (int i = 0; i < a->c.n; i++)
        for (int h = 0; h < heads; h++) {
            const int lane = a->c.seq * a->l->s.lanes + h / group;
            double *l = &lse[(a->c.from + i) % a->q.n[0] * heads + h];
            for (bool close = true; close; *l += close ? 0.01 : 0) {
                ColStat c = {a->c.seq, a->c.from + i, 1, COL_SUM, COL_MAX, COL_PLAIN, false};
                Tensor q = a->q, only = a->lse; /* this head alone: others have p = 0 */
                double *kept = xcalloc(tensor_count(only), sizeof *kept);
                memcpy(kept, lse, tensor_count(only) * sizeof *kept);
                for (int g = 0; g < heads; g++)
                    if (g != h) lse[(a->c.from + i) % a->q.n[0] * heads + g] = INFINITY;
                ref_colstat(NULL, one, q, only, a->l, c);
                memcpy(lse, kept, tensor_count(only) * sizeof *kept);
                free(kept);
                int sees = 0;
                for (int n = 0; n < a->l->hi[lane]; n++) sees += get2(one, h / group, n) > 0;
                close = false;
                for (int n = 0; n < a->l->hi[lane]; n++) {
                    const double p = get2(one, h / group, n) * sees;
                    close |= p > 0 && fabs(log(p)) < 1e-3;
                }
            }
        }
    free(one.p);
}
MAKE(colstat) {
    Lanes *l = call_own(c, sizeof *l);
    KvShape s = shape_of(c, coin(c));
    s.evicts = false, s.delay = 0, s.codec = lane_codecs[draw_of(c, LANE_CODECS)];
    const int R = 1 + draw_of(c, 12), past = R + draw_of(c, 60);
    lanes_open(c, l, s, 2);
    a->l = l;
    a->c = (ColStat){.seq = draw_of(c, 2), .n = 1 + draw_of(c, R), .queries = (ColReduce)draw_of(c, 3)};
    a->c.heads = coin(c) ? COL_SUM : COL_MAX, a->c.value = (ColValue)draw_of(c, 3);
    a->c.older = a->c.queries != COL_COUNT && coin(c);
    a->c.from = past - a->c.n - draw_of(c, imin(3, past - a->c.n + 1));
    for (int h = 0; h < 2 * s.lanes; h++) lane_fill(c, l, h, past, coin(c));
    ARG(stat, s.lanes, past + draw_of(c, 5)), ARG(q, R, s.lanes * (1 + draw_of(c, 3)), s.kdim);
    double *lse = ARG(lse, R, a->q.n[1]);
    EACH(lse, a->lse, 2 + v_);
    call_settle(c);
    if (a->c.queries == COL_COUNT) away_from_even(a, lse);
    call_has(c, "l");
    c->terms = s.kdim + s.vdim + R * a->q.n[1] / s.lanes;
}

/* ---- means, decisions ---- */
/* Decisions in 0..1, some of them hard; weights above 0. */
static void decisions(double *a, Tensor ta, double *w, Tensor tw) {
    EACH(a, ta, i_ % 6 == 1 ? 0 : i_ % 6 == 2 ? 1 : 1 / (1 + exp(-v_)));
    EACH(w, tw, 0.1 + fabs(v_));
}
MAKE(merge) {
    call_batch(c, 1 + draw_of(c, 3), coin(c));
    const int G = 1 + draw_of(c, 3), D = narrow(c);
    a->window = coin(c) ? 0 : 1 + draw_of(c, 9), a->at = draw_of(c, 4);
    ARG(y, c->N, G, D), ARG(z, c->N, G), ARG(x, c->N, G, D);
    double *m = ARG(a, c->N, G), *w = ARG(w, c->N, G);
    decisions(m, a->a, w, a->w);
    if (c->history) {
        const int R = a->window ? imax(1, a->window - 1) : 1, C = a->at + D + 2 + draw_of(c, 3);
        double *past = MUST(past, c->batch.B + 1, G, R, C);
        EACH(past, a->past, (int)i_ % C == C - 2 ? 0.1 + fabs(v_) : (int)i_ % C == C - 1 ? 1 / (1 + exp(-v_)) : v_);
    }
    c->terms = a->window ? a->window : c->N;
}
MAKE(merge_backward) {
    const int G = 1 + draw_of(c, 3), D = narrow(c);
    c->N = imin(c->N, 70);
    call_batch(c, 1 + draw_of(c, 3), false);
    a->window = coin(c) ? 0 : 1 + draw_of(c, 9);
    ARG(dx, c->N, G, D), ARG(da, c->N, G), ARG(dw, c->N, G), ARG(dy, c->N, G, D), ARG(x, c->N, G, D);
    ARG(y, c->N, G, D), ARG(z, c->N, G);
    double *m = ARG(a, c->N, G), *w = ARG(w, c->N, G);
    decisions(m, a->a, w, a->w);
    call_settle(c);
    ref_merge(&c->run, a->y, a->z, a->x, a->a, a->w, a->window, ABSENT, 0);
    c->terms = c->N + D;
}
static Decide decide_of(OpCall *c) {
    return (Decide){uniform_in(c, 0.5, 2), uniform_in(c, -1, 3), uniform_in(c, 0.3, 1), 1e-6, 1 + draw_of(c, 3), false};
}
MAKE(decide) {
    static const unsigned modes[] = {0, RUN_TRAIN, RUN_TRAIN | RUN_STILL, RUN_TRAIN | RUN_SMOOTH,
                                     RUN_TRAIN | RUN_COUNT_STILL};
    call_batch(c, 1 + draw_of(c, 3), coin(c));
    const int G = 1 + draw_of(c, 4);
    c->run.mode = modes[draw_of(c, 5)];
    ARG(alpha, c->N, G), ARG(bias, c->N, G), ARG(evicted, c->N, G), ARG(omega, c->N, G);
    ARG(u, c->N, present(a->omega) ? 2 * G : G);
    if (coin(c)) PART("u", c->run.stat, ROLE_INOUT, c->batch.B, STATS, 2);
    a->c = decide_of(c), c->terms = c->N * G;
    a->c.itself = !present(a->omega) && coin(c);
    if (a->c.itself && c->history) MUST(past, c->batch.B + 1, G, 1, 1);
}
MAKE(decide_backward) {
    const int G = 1 + draw_of(c, 4);
    const bool merges = coin(c);
    ARG(du, c->N, G), ARG(dbias, c->N, G);
    double *alpha = ARG(alpha, c->N, G);
    EACH(alpha, a->alpha, 1 / (1 + exp(-v_)));
    if (merges) {
        MUST(dm, c->N, G), MUST(domega, c->N, G);
        double *o = MUST(omega, c->N, G);
        EACH(o, a->omega, 1 / (1 + exp(-v_)));
        ARG(dalpha, c->N, G);
    }
    if (coin(c)) PART("alpha", c->run.dstat, ROLE_IN, c->batch.B, STATS);
    a->c = decide_of(c), a->c.itself = !merges && coin(c);
}
MAKE(mean_rows) {
    const int n = 1 + draw_of(c, 4), d = coin(c) ? 1 : c->d;
    a->k = 1 + draw_of(c, 5), a->each = 1 + draw_of(c, 5), a->at = draw_of(c, a->each);
    const bool column = d == 1 && coin(c);
    if (column)
        ARG(y, n), ARG(w, n * a->k * a->each);
    else
        ARG(y, n, d), ARG(w, n * a->k * a->each, d);
    c->terms = a->k;
}
MAKE(scale_column) { ARG(x, c->N, c->d), a->c = draw_of(c, c->d), a->m = 1.7; }

/* ---- losses ---- */
static const int *targets(OpCall *c, int V) {
    int *t = call_ints(c, c->N, V);
    for (int i = 0; i < c->N; i++) t[i] = draw_of(c, 7) == 0 ? -1 : t[i];
    return t;
}
static const real *loss_weights(OpCall *c) {
    real *g = call_own(c, (size_t)c->N * sizeof *g);
    for (int i = 0; i < c->N; i++) g[i] = (real)uniform_in(c, -1, 1);
    return g;
}
static LogitMap map_of(OpCall *c) {
    return (LogitMap){coin(c) ? 1 : uniform_in(c, 0.2, 1.2), draw_of(c, 3) ? 0 : uniform_in(c, 2, 6)};
}
MAKE(map_logits) { ARG(x, c->N, c->d), a->map = map_of(c); }
MAKE(linear_xent) {
    const int d = narrow(c), V = c->large ? 203 : 1 + draw_of(c, 60);
    const bool gradient = coin(c);
    c->within = true;
    a->tgt = targets(c, V), a->map = map_of(c);
    /* CUDA rounds the logits' gradient next to x in BF16 */
    ARG(nll, c->N), AS(gradient && cuda_ops() ? REAL : any_dtype(c), x, c->N, d);
    if (gradient) {
        AS(cuda_ops() ? REAL : any_dtype(c), dx, c->N, d), MUST(dw, V, d), MUST(w, V, d), a->g = loss_weights(c);
        call_raw(c, &a->g, (size_t)c->N * sizeof(real), RAW_IN, false);
    } else
        ARG(w, V, d);
    if (coin(c)) {
        a->hit = call_own(c, (size_t)c->N * sizeof(int));
        call_raw(c, &a->hit, (size_t)c->N * sizeof(int), RAW_EXACT, true);
    }
    c->terms = imax(V, imax(c->N, d));
    operands(c);
}
MAKE(linear_distill) {
    const int d = narrow(c), e = 1 + draw_of(c, 40), V = c->large ? 120 : 1 + draw_of(c, 60);
    a->tgt = targets(c, V), a->g = loss_weights(c);
    a->c =
        (Distill){uniform_in(c, 0, 1), uniform_in(c, 0, 1), coin(c) ? 0.5 : 0, coin(c) ? 1 : 2.5, map_of(c), map_of(c)};
    call_raw(c, &a->g, (size_t)c->N * sizeof(real), RAW_IN, false);
    ARG(nll, c->N), ARG(kl, c->N), ARG(rkl, c->N);
    double *x = ARG(x, c->N, d), *y = ARG(y, c->N, e);
    EACH(x, a->x, v_ / sqrt(d));
    EACH(y, a->y, v_ / sqrt(e));
    ARG(w, V, d), ARG(u, V, e);
    if (coin(c)) MUST(dx, c->N, d), MUST(dw, V, d);
    c->terms = imax(V, imax(c->N, imax(d, e)));
}
MAKE(align) {
    const int d = narrow(c);
    a->tgt = targets(c, 5), a->g = loss_weights(c), a->c = 0.7;
    call_raw(c, &a->g, (size_t)c->N * sizeof(real), RAW_IN, false);
    ARG(err, c->N), ARG(dy, c->N, d), ARG(y, c->N, d), ARG(a, c->N, d);
    c->terms = c->N * d;
}

/* ---- updates ---- */
MAKE(adamw) {
    AdamwStep *s = call_own(c, 4 * sizeof *s);
    double *square = call_own(c, sizeof *square);
    a->n = c->large ? 1 : 1 + draw_of(c, 4), a->s = s, *square = uniform_in(c, 1, 9);
    for (int j = 0; j < a->n; j++) {
        const int n = c->large ? 20000 : 1 + draw_of(c, imin(700, c->N * c->d));
        s[j] = (AdamwStep){.lr = 0.01, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .decay = coin(c) ? 0.1 : 0, .gscale = 0.5};
        s[j].t = 1 + draw_of(c, 9), s[j].rule = (UpdateRule)draw_of(c, UPDATE_RULES), s[j].share = 0.125;
        s[j].round = (Rounding){rng_mix(c->dice.key, (uint64_t)j), (uint64_t)(3 * j)};
        const Dtype t = any_dtype(c), m = s[j].rule == UPDATE_SCHEDULE_FREE ? REAL : t, v = t;
        PART_AS(REAL, "s", s[j].w, 0, n), PART_AS(REAL, "s", s[j].g, ROLE_IN, n);
        PART_AS(m, "s", s[j].m, ROLE_INOUT | ROLE_MOMENT, n);
        if (s[j].rule != UPDATE_LION) {
            double *sq = PART_AS(v, "s", s[j].v, ROLE_INOUT | ROLE_MOMENT, n);
            EACH(sq, s[j].v, 0.01 + v_ * v_);
        }
        if (s[j].rule == UPDATE_SCHEDULE_FREE) PART_AS(REAL, "s", s[j].x, ROLE_INOUT, n);
        if (coin(c)) {
            s[j].square = square, s[j].most = coin(c) ? 1.5 : 0;
            call_raw(c, &s[j].square, sizeof *square, RAW_IN, false);
        }
    }
}
MAKE(momentum) {
    ARG(u, c->N, c->d), ARG(m, c->N, c->d), ARG(g, c->N, c->d);
    a->mu = 0.95, a->gscale = 0.5, a->nesterov = coin(c), a->rounding = (Rounding){c->dice.key, 7};
}
MAKE(sumsq) { ARG(x, c->N, c->d), c->terms = c->N * c->d; }
MAKE(normalise) { ARG(x, c->N, c->d), a->eps = 1e-7, c->terms = c->N * c->d; }
static const Tensor *tensors(OpCall *c, int *n) {
    Tensor *x = call_own(c, 8 * sizeof *x);
    *n = draw_of(c, 8), c->terms = 1;
    if (c->draw == 1) *n = 3;
    for (int j = 0; j < *n; j++) PART("x", x[j], 0, 1 + draw_of(c, c->N * c->d)), c->terms += c->N * c->d;
    return x;
}
MAKE(sumsqs) { a->x = tensors(c, &a->n), a->start = coin(c) ? 0 : 3.5; }
MAKE(sumsqs_there) {
    double *sum = call_own(c, sizeof *sum);
    *sum = 2.25, a->sum = sum, a->more = coin(c), a->x = tensors(c, &a->n);
    call_raw(c, &a->sum, sizeof *sum, RAW_F64, false);
}
