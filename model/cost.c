#include "cost.h"
#include "layers/cache/aqua.h"
#include "layers/cache/codec.h"
#include "optim/state.h"

typedef struct {
    size_t all, matrices;
} Count;
static void count_field(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)path;
    Count *c = f->ctx;
    if (flags & FIELD_BALANCE) return; /* no parameter, as model_params has it */
    c->all += tensor_count(*t);
    if (t->rank >= 2) c->matrices += tensor_count(*t);
}

static double mixer_flops(const Model *m, double visible, bool decoding) {
    double sum = 0;
    for (int l = 0; l < m->L; l++) {
        const Mixer *x = m->layer[l].kind->mixer;
        sum += (decoding && x->decode_flops ? x->decode_flops : x->flops)(m->layer[l].cfg, visible);
    }
    return sum;
}

Cost cost_model(const Model *m, int context) {
    CHECK(context >= 1, "context %d", context);
    Count n = {0};
    Fields f = {.see = count_field, .ctx = &n};
    Weights w = m->w; /* declaring writes dtype and shape only, and the same ones again */
    model_fields(m, &w, &f);
    size_t table = (size_t)m->cfg.vocab * (size_t)m->cfg.d_model;
    Cost c = {.params = n.all, .embedding = table, .context = context};
    size_t idle = 0;
    for (int l = 0; l < m->L; l++) {
        const Layer *y = &m->layer[l];
        if (y->feeds && y->ffn->ffn->idle) idle += y->ffn->ffn->idle(y->fcfg);
    }
    c.active = n.all - idle;
    c.matmul = (m->cfg.tied ? n.matrices : n.matrices - table) - idle - tensor_count(w.positions);
    /* mean over t by the midpoints of equal parts: exact while there are as many parts as tokens */
    int parts = imin(context, 4096);
    double attention = 0;
    for (int i = 0; i < parts; i++) attention += mixer_flops(m, (context * (i + 0.5)) / parts + 0.5, false) / parts;
    c.forward = 2.0 * (double)c.matmul + attention;
    c.itemised = 3 * c.forward;
    c.all_half = 6.0 * (double)c.active + 6.0 * m->L * m->cfg.d_model * context;
    c.matmul_full = 6.0 * (double)c.matmul + 3 * mixer_flops(m, context, false);
    c.decode = 2.0 * (double)c.matmul + mixer_flops(m, context, true);
    return c;
}

double cost_prefill(const Model *m, int context) {
    CHECK(context >= 1, "context %d", context);
    double sum = 0;
    for (int l = 0; l < m->last_writer; l++) {
        const Layer *y = &m->layer[l];
        Count n = {0};
        Fields f = {.see = count_field, .ctx = &n};
        Weights w = m->w;
        model_layer_fields(m, l, &w, &f);
        sum += 2.0 * (double)(n.matrices - (y->feeds && y->ffn->ffn->idle ? y->ffn->ffn->idle(y->fcfg) : 0));
        int parts = imin(context, 4096);
        for (int i = 0; i < parts; i++)
            sum += y->kind->mixer->flops(y->cfg, (context * (i + 0.5)) / parts + 0.5) / parts;
    }
    return sum;
}

/* Of a codec that stores rows together: the newest rows wait for a block to be full. own: bytes that a policy keeps
 * with a row. True: these are the most bytes that the rows can have, as it is not known how many are in which block.
 * Where rows leave again and again a block stays as long as one of its rows; where lanes have different rows, other
 * ones wait. */
static bool cost_blocks(const KvShape *s, const PolicyCfg *p, int context, size_t own, LayerCache *y) {
    const int lo = s->window ? imax(0, context - (s->window - 1)) : 0, P = rows_together(s);
    const bool some = policy_acts(p) && policy_suits(p, s) && y->rows < context, often = some && !policy_once(p),
               differ = some && (p->lanes || p->of->varies);
    size_t lane = blocks_bytes(s, 0, imin(s->sinks, lo), lo, context);
    if (some) lane = blocks_bytes(s, 0, 0, 0, y->rows);
    if (differ) lane = (size_t)((y->rows + P - 1) / P) * block_bytes(s) + (size_t)(P - 1) * row_bytes(s);
    if (often)
        lane = (size_t)imin(y->rows, context / P) * block_bytes(s) + (size_t)imin(y->rows, 2 * P - 2) * row_bytes(s);
    y->token_bytes = (size_t)s->lanes * block_bytes(s) / (size_t)P + own;
    y->bytes = (size_t)s->lanes * lane + (size_t)y->rows * own + y->state_bytes;
    return often || differ;
}
void cost_cache(const Model *m, int context, CacheCost *c) {
    CHECK(context >= 0, "context %d", context);
    *c = (CacheCost){.L = m->L, .context = context};
    const PolicyCfg *p = m->opts.policy;
    int slot = 0, slots = 0;
    for (int l = 0; l < m->L; l++) slots += m->layer[l].owner && policy_suits(p, &m->layer[l].rows);
    for (int l = 0; l < m->L; l++) {
        if (!m->layer[l].owner) continue;
        const KvShape *s = &m->layer[l].rows;
        LayerCache *y = &c->layer[l];
        /* the next query sees itself and window-1 older rows: those and the sinks are kept */
        size_t kept = s->window ? zmin((size_t)context, (size_t)s->window - 1 + (size_t)s->sinks) : (size_t)context;
        if (policy_any(p) && policy_suits(p, s)) {
            kept = (size_t)policy_resident(p, context, slot++, slots);
            c->at_most |= p->of->varies;
        }
        y->rows = s->lanes ? (int)kept : 0;
        y->token_bytes = (size_t)s->lanes * row_bytes(s) + policy_row_bytes(p, s);
        y->state_bytes =
            ((size_t)s->state + carried(s)) * sizeof(real) + policy_state_bytes(p, s) + salient_state_bytes(s);
        y->bytes = (size_t)y->rows * y->token_bytes + y->state_bytes;
        if (rows_together(s)) c->at_most |= cost_blocks(s, p, context, policy_row_bytes(p, s), y);
        c->bytes_per_token += y->token_bytes;
        c->grows_per_token += s->window ? 0 : y->token_bytes;
        c->state_bytes += y->state_bytes;
        c->at_most |= s->evicts;
        c->bytes_at_context += y->bytes;
        if (aqua_token_bytes(s)) c->once_per_token = aqua_token_bytes(s);
    }
    c->bytes_per_token += c->once_per_token, c->grows_per_token += c->once_per_token;
    c->bytes_at_context += c->once_per_token * (size_t)context;
    c->mha_bytes_per_token =
        2 * (size_t)m->L * codec_part_bytes(m->opts.codec ? m->opts.codec : &codec_f32, m->cfg.d_model);
    c->mha_bytes_at_context = c->mha_bytes_per_token * (size_t)context;
}

/* An open arena has its size; one that was only measured has its peak. */
static size_t cost_region(const Arena *a) { return a->base ? a->size : a->peak; }

/* AdamW's states of a training model. */
static void cost_moments(const Model *m, size_t bytes[STATES_MAX]) {
    static const OptimCfg adamw = {.kind = 0};
    Params p = {0};
    Arena mem[STATES_MAX] = {{0}};
    Fields f = params_visitor(&p, PARAM_WEIGHT);
    Weights w = m->w; /* declaring sets shapes again */
    if (m->opts.train) model_fields(m, &w, &f);
    for (int i = 0; m->opts.trained && i < p.n; i++) p.p[i].frozen = !m->opts.trained(m->opts.trained_ctx, p.p[i].name);
    optimizer_declare(&p, &adamw);
    states_place(&p, mem);
    for (int k = 0; k < STATES_MAX; k++) bytes[k] = mem[k].peak;
    params_free(&p);
}
StepMemory cost_regions(const Model *m, const Workspace *ws) {
    size_t state[STATES_MAX];
    cost_moments(m, state);
    StepMemory s = {cost_region(&m->aw) + cost_region(&m->ah),
                    cost_region(&m->ag),
                    state[0],
                    state[1],
                    ws ? cost_region(&ws->keep) : 0,
                    ws ? cost_region(&ws->scratch) : 0,
                    0};
    s.total = s.weights + s.gradients + s.moment1 + s.moment2 + s.saved + s.scratch;
    return s;
}

bool cost_step(Device *dev, const ModelCfg *cfg, ModelOpts opts, StepMemory *s, Err *e) {
    Model m;
    Workspace ws;
    opts.dry = true;
    if (!model_open(&m, dev, cfg, opts, e)) return false;
    bool ok = workspace_open(&ws, &m, e);
    if (ok) *s = cost_regions(&m, &ws);
    if (ok) workspace_close(&ws);
    model_close(&m);
    return ok;
}

bool cost_cache_mapped(const Model *m, int nseq, int max_tokens, int max_rows, size_t *bytes, Err *e) {
    Cache c;
    if (!model_cache_open(m, &c, nseq, max_tokens, max_rows, 0, true, e)) return false;
    *bytes = c.mem.peak;
    kv_close(&c);
    return true;
}
