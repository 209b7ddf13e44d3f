/* flow.c: see flow.h. */
#include "flow.h"
#include "convert.h"
#include "layers/kv.h"

enum { TABLE_BYTES = 64 << 20 }; /* of a piece of the head */

static size_t flow_mapped(const Flow *f) {
    return f->rows.size + f->weights.size + f->shared.size + f->work.keep.size + f->work.scratch.size;
}

/* Rows row..row+t.n[0]-1 of a matrix in the files. */
static bool read_rows(const HfFiles *files, const char *name, int row, Tensor t, Err *e) {
    StPlace place;
    const StEntry *s = hf_files_find(files, name, t, &place);
    if (!s) return err_input(e, "%s: tensor \"%s\" is missing", files->st.path, name);
    CHECK(st_is_whole(place, 2), "%s does not lie in rows", name);
    uint64_t shape[2] = {(uint64_t)t.n[0], (uint64_t)t.n[1]};
    StEntry some = *s;
    CHECK(s->rank == 2 && s->shape[1] == shape[1] && (uint64_t)row + shape[0] <= s->shape[0], "%s", name);
    size_t width = s->bytes / s->shape[0];
    some.shape = shape;
    some.p += (size_t)row * width;
    some.bytes = shape[0] * width;
    return st_read(&files->st, &some, t, e);
}

/* Weights that `visit` declares, in memory and read. */
typedef void Visit(Flow *, int l, Fields *);
static bool flow_load(Flow *f, Visit *visit, int l, Err *e) {
    Arena size = {.name = "weights"};
    Fields measure = arena_placer(&size);
    visit(f, l, &measure);
    arena_close(&f->weights);
    f->weights = (Arena){.name = "weights of a layer"};
    if (!arena_open(&f->weights, "weights of a layer", size.peak, false, e)) return false;
    Fields place = arena_placer(&f->weights);
    visit(f, l, &place);
    f->memory = zmax(f->memory, flow_mapped(f));
    StLoad s;
    st_load_begin(&s, &f->files->st, NULL, e);
    s.names = f->files->names;
    Fields read = st_loader(&s);
    visit(f, l, &read);
    return st_load_end(&s, NULL);
}
static void visit_layer(Flow *f, int l, Fields *v) { model_layer_fields(&f->m, l, &f->m.w, v); }
static void visit_positions(Flow *f, int l, Fields *v) {
    (void)l;
    model_positions_field(&f->m, &f->m.w, v);
}
static void visit_norm(Flow *f, int l, Fields *v) {
    (void)l;
    model_norm_fields(&f->m, &f->m.w, v);
}

static Tensor window_rows(const Flow *f, int w) {
    int T = f->w->T, d = f->m.cfg.d_model;
    return TENSOR(R(f->x) + (size_t)(w - f->from) * (size_t)T * (size_t)d, REAL, T, d);
}

static void shared_kv(Flow *f) {
    Fields place = arena_placer(&f->shared);
    for (int l = 0; l < f->m.L; l++)
        for (int w = 0; w < f->to - f->from; w++)
            if (f->m.layer[l].shared)
                kv_fields(&f->m.layer[l].rows, f->w->T, &f->kv[(size_t)l * (size_t)(f->to - f->from) + (size_t)w],
                          &place);
}

/* The stream's beginning. The table's rows are read one by one: it need not be in memory. */
static bool flow_embed(Flow *f, Err *e) {
    int T = f->w->T, d = f->m.cfg.d_model;
    if (!flow_load(f, visit_positions, 0, e)) return false;
    for (int w = f->from; w < f->to; w++) {
        const int *id = f->w->id + (size_t)w * (size_t)T;
        for (int i = 0; i < T; i++)
            if (!read_rows(f->files, "model.embed_tokens.weight", id[i],
                           TENSOR(R(f->y) + (size_t)i * (size_t)d, REAL, 1, d), e))
                return false;
        f->m.w.embed = f->y;
        model_block_embed(&f->m, &f->work, &f->batch, f->work.idx, window_rows(f, w));
    }
    f->m.w.embed = f->m.w.positions = ABSENT;
    return true;
}

bool flow_open(Flow *f, Device *dev, const HfFiles *files, const ModelCfg *cfg, const Windows *w, int from, int to,
               Err *e) {
    int T = w->T, n = to - from, L = cfg->layers;
    *f = (Flow){.files = files, .w = w, .from = from, .to = to};
    if (!model_open(&f->m, dev, cfg, (ModelOpts){.dry = true, .max_rows = T, .max_samples = 1}, e)) return false;
    if (!workspace_open(&f->work, &f->m, e)) goto fail;
    model_plan(&f->m, T);
    f->kv = xcalloc((size_t)L * (size_t)n, sizeof *f->kv);
    f->ints = xcalloc(4 * (size_t)T + 4, sizeof *f->ints);
    f->rows.name = "rows of the windows", f->shared.name = "shared keys and values";
    int *off = f->ints, *zero = off + 2, *pos = zero + 2 * T;
    off[1] = T;
    for (int i = 0; i < T; i++) pos[i] = i;
    /* one number of zeros serves as sequence, owner, first row and the sample's number */
    f->batch = (Batch){.B = 1,
                       .N = T,
                       .off = off,
                       .seq = zero,
                       .of = zero,
                       .pos = pos,
                       .first = zero,
                       .id = (const uint64_t *)(const void *)zero};
    for (int pass = 0; pass < 2; pass++) {
        Mark none = {0};
        f->x = arena_tensor(&f->rows, "stream", REAL, 2, (int[]){n * T, cfg->d_model});
        f->y = arena_tensor(&f->rows, "block output", REAL, 2, (int[]){T, cfg->d_model});
        shared_kv(f);
        if (pass) break;
        arena_release(&f->rows, none);
        arena_release(&f->shared, none);
        if (!arena_open(&f->rows, "rows of the windows", f->rows.peak, false, e) ||
            !arena_open(&f->shared, "shared keys and values", f->shared.peak, false, e) ||
            !model_pieces(&f->m, &f->work, e))
            goto fail;
    }
    f->memory = flow_mapped(f);
    if (flow_embed(f, e)) return true;
fail:
    flow_close(f);
    return false;
}

typedef struct {
    FlowSee *see;
    void *ctx;
    FlowView view;
} Seeing;
static void see_block(void *ctx, Tensor in, Tensor mid, const Kv *kv) {
    Seeing *s = ctx;
    s->view.in = in, s->view.mid = mid, s->view.kv = kv;
    if (s->see) s->see(s->ctx, &s->view);
}

/* All later roundings fall otherwise after this, so that a nudged run is a second draw of the errors of a whole
 * model. */
static void flow_nudge(const Flow *f, int l, int w, Tensor x) {
    const uint64_t key = rng_mix(0x6e75646765, (uint64_t)l << 32 | (uint64_t)w);
    for (size_t i = 0; f->nudge > 0 && i < tensor_count(x); i++)
        R(x)[i] += (real)((double)R(x)[i] * f->nudge * (2 * rng_uniform(key, i) - 1));
}
double flow_unit(bool f64) { return f64 && sizeof(real) == 8 ? 0x1p-52 : 0x1p-23; }
double flow_rounding(const FlowScore *again, double unit) {
    return CONVERT_MARGIN * fmax(again->logit_diff, unit / 2 * again->logit_max);
}

bool flow_layer(Flow *f, int l, FlowSee *see, void *ctx, Err *e) {
    if (!flow_load(f, visit_layer, l, e)) return false;
    size_t n = (size_t)(f->to - f->from);
    for (int w = f->from; w < f->to; w++) {
        for (int k = 0; k < f->m.L; k++)
            if (f->m.layer[k].shared) f->work.kv[k] = f->kv[(size_t)k * n + (size_t)(w - f->from)];
        Tensor x = window_rows(f, w);
        flow_nudge(f, l, w, x);
        Seeing s = {see, ctx, {.l = l, .window = w, .x = x}};
        model_block(&f->m, &f->work, &f->batch, l, x, f->y, see_block, &s);
        memcpy(x.p, f->y.p, tensor_bytes(f->y));
    }
    arena_close(&f->weights); /* of mixtures a layer is large, and another flow comes next */
    f->weights = (Arena){.name = "weights of a layer"};
    return true;
}

void flow_close(Flow *f) {
    arena_close(&f->rows);
    arena_close(&f->weights);
    arena_close(&f->shared);
    workspace_close(&f->work);
    if (f->m.dev) model_close(&f->m);
    free(f->kv);
    free(f->ints);
    *f = (Flow){0};
}

/* ---- comparing -----------------------------------------------------------------------------------------------------
 */

/* For one token, over the vocabulary so far: running sums of exp(a - ma) and of exp(a - ma) (a - b) over the source's
 * ids, of exp(b - mb) over all; the best id of both; the target's logits. */
typedef struct {
    double ma, za, s, mb, zb, ta, tb;
    int ia, ib;
} Word;

static void see_a(Word *w, double a, double b, int id) {
    if (a > w->ma) {
        double down = exp(w->ma - a);
        w->za *= down, w->s *= down, w->ma = a, w->ia = id;
    }
    double p = exp(a - w->ma);
    w->za += p;
    w->s += p * (a - b);
}
static void see_b(Word *w, double b, int id) {
    if (b > w->mb) w->zb *= exp(w->mb - b), w->mb = b, w->ib = id;
    w->zb += exp(b - w->mb);
}

static const char *head_name(const Flow *f) { return f->m.cfg.tied ? "model.embed_tokens.weight" : "lm_head.weight"; }

/* The stream of every window, normed for the head. */
static bool norm_all(Flow *f, int check, Err *e) {
    if (f->normed) return true;
    if (!flow_load(f, visit_norm, 0, e)) return false;
    for (int w = check; w < f->to; w++) {
        Tensor x = window_rows(f, w);
        flow_nudge(f, f->m.L, w, x);
        model_block_norm(&f->m, &f->work, &f->batch, x, f->y);
        memcpy(x.p, f->y.p, tensor_bytes(f->y));
    }
    f->normed = true;
    return true;
}

static void see_rows(const Windows *win, int w, Word *word, int first, Tensor la, Tensor lb, FlowScore *out) {
    int T = win->T, na = present(la) ? la.n[1] : 0, nb = lb.n[1];
    const int *id = win->id + (size_t)w * (size_t)T;
    for (int t = 0; t < T; t++)
        for (int i = 0; i < nb; i++) {
            double b = R(lb)[(size_t)t * (size_t)nb + (size_t)i];
            int next = t + 1 < T ? id[t + 1] : -1;
            see_b(&word[t], b, first + i);
            if (first + i == next) word[t].tb = b;
            if (i >= na) continue;
            double a = R(la)[(size_t)t * (size_t)na + (size_t)i], d = fabs(a - b);
            see_a(&word[t], a, b, first + i);
            if (first + i == next) word[t].ta = a;
            if (d > out->logit_diff || isnan(d)) out->logit_diff = d; /* NaN stays: nothing is more than it */
            if (fabs(a) > out->logit_max) out->logit_max = fabs(a);
        }
}

static void add_up(const Windows *win, int check, const Word *word, FlowScore *out) {
    int scored = 0;
    for (int w = check; w < win->n; w++)
        for (int t = 0; t < win->T; t++, word++) {
            double la = word->ma + log(word->za), lb = word->mb + log(word->zb);
            out->kl += word->s / word->za - la + lb;
            out->top1 += word->ia == word->ib;
            out->tokens++;
            if (t + 1 == win->T) continue;
            out->nll_a += la - word->ta;
            out->nll_b += lb - word->tb;
            scored++;
        }
    out->kl /= out->tokens, out->top1 /= out->tokens;
    out->nll_a /= imax(1, scored), out->nll_b /= imax(1, scored);
}

bool flow_compare(Flow *a, Flow *b, FlowScore *out, Err *e) {
    const Windows *win = a->w;
    int d = a->m.cfg.d_model, Va = a->m.cfg.vocab, Vb = b->m.cfg.vocab, T = win->T, check = imax(a->from, b->from);
    int step = imax(1, imin(Vb, (int)(TABLE_BYTES / sizeof(real) / (size_t)(d + T))));
    Word *word = xcalloc((size_t)(win->n - check) * (size_t)T, sizeof *word);
    Arena mem = {.name = "a piece of the head"};
    Tensor ta = ABSENT, tb = ABSENT, la = ABSENT, lb = ABSENT;
    *out = (FlowScore){0};
    bool ok = Vb >= Va && norm_all(a, check, e) && norm_all(b, check, e);
    for (int pass = 0; ok && pass < 2; pass++) {
        if (pass) ok = arena_open(&mem, mem.name, mem.peak, false, e);
        if (!ok) break;
        Mark none = {0};
        if (!pass) mem.used = 0;
        ta = arena_tensor(&mem, "table", REAL, 2, (int[]){step, d});
        tb = arena_tensor(&mem, "table", REAL, 2, (int[]){step, d});
        la = arena_tensor(&mem, "logits", REAL, 2, (int[]){T, step});
        lb = arena_tensor(&mem, "logits", REAL, 2, (int[]){T, step});
        if (!pass) arena_release(&mem, none);
    }
    a->memory = zmax(a->memory, flow_mapped(a) + mem.size);
    for (int i = 0; i < (win->n - check) * T; i++) word[i] = (Word){.ma = -INFINITY, .mb = -INFINITY, .ia = -1};
    for (int v = 0; ok && v < Vb; v += step) {
        int nb = imin(step, Vb - v), na = imax(0, imin(step, Va - v));
        ta.n[0] = la.n[1] = na, tb.n[0] = lb.n[1] = nb;
        ok = (!na || read_rows(a->files, head_name(a), v, ta, e)) && read_rows(b->files, head_name(b), v, tb, e);
        for (int w = check; ok && w < win->n; w++) {
            if (na) model_block_logits(&a->m, &a->work, &a->batch, window_rows(a, w), ta, la);
            model_block_logits(&b->m, &b->work, &b->batch, window_rows(b, w), tb, lb);
            see_rows(win, w, word + (size_t)(w - check) * (size_t)T, v, na ? la : ABSENT, lb, out);
        }
    }
    if (ok) add_up(win, check, word, out);
    arena_close(&mem);
    free(word);
    return ok;
}
