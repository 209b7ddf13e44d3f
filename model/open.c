/* open.c: what a model has in memory: the regions of its weights and gradients, and walks over its fields. */
#include "inside.h"
#include "layers/cache/codec.h"
#include "ops/shadow.h"
#include "ops/host.h"

static void open_see_count(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)path;
    if (!(flags & FIELD_BALANCE)) *(size_t *)f->ctx += tensor_count(*t);
}
size_t model_params(const Model *m) {
    size_t n = 0;
    Fields f = {.see = open_see_count, .ctx = &n};
    Weights w = m->w;
    model_fields(m, &w, &f);
    return n;
}

void model_layer_stage_end(const Model *m, int l, Fields *f) {
    const Kind *k = m->layer[l].kind;
    Weights w;
    if (!k->mixer->stage_end) return;
    weights_new(m, &w);
    model_layer_fields(m, l, &w, f);
    k->mixer->stage_end(m->dev, m->layer[l].cfg, w.layer[l].mix);
    weights_free(m, &w);
}
void model_stage_end(Model *m) {
    for (int l = 0; l < m->L; l++) {
        const Kind *k = m->layer[l].kind;
        if (k->mixer->stage_end) k->mixer->stage_end(m->dev, m->layer[l].cfg, m->w.layer[l].mix);
    }
}
void model_zero_grad(Model *m) {
    Fields f = fields_zero_at(m->dev);
    model_fields(m, &m->g, &f);
}

/* ---- regions ------------------------------------------------------------------------------------------------------
 */

void weights_new(const Model *m, Weights *w) {
    *w = (Weights){.layer = xcalloc((size_t)m->L, sizeof *w->layer)};
    for (int l = 0; l < m->L; l++) {
        w->layer[l].mix = xcalloc(1, m->layer[l].kind->mixer->w_size);
        w->layer[l].ffn = xcalloc(1, m->layer[l].ffn->ffn->w_size);
    }
}
void weights_free(const Model *m, Weights *w) {
    for (int l = 0; w->layer && l < m->L; l++) {
        free(w->layer[l].mix);
        free(w->layer[l].ffn);
    }
    free(w->layer);
}
static void see_shape(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)f, (void)t, (void)path, (void)flags;
}
static void open_visit(const Model *m, Weights *w, Fields f) { model_fields(m, w, &f); }
static bool open_region(Model *m, Arena *a, const char *name, Weights *w, bool without, Err *e) {
    a->name = name;
    if (without) {
        open_visit(m, w, (Fields){.see = see_shape});
        return m->opts.dry || arena_open(a, name, 0, false, e);
    }
    open_visit(m, w, arena_placer(a));
    if (m->opts.dry) return true;
    if (!arena_open_at(a, device_memory(m->dev, false), name, a->peak, m->opts.poison, e)) return false;
    open_visit(m, w, arena_placer(a));
    return true;
}
/* Copies in bf16 of what products read: not of tables that rows are only looked up in. */
static void see_shadow(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Model *m = f->ctx;
    if (!shadow_wanted(m->dev, *t, flags) || (flags & FIELD_TABLE && t != (m->cfg.tied ? &m->w.embed : &m->w.head)))
        return;
    Tensor copy = arena_tensor(&m->ah, path, BF16, t->rank, t->n);
    t->has_shadow = true;
    if (copy.p) shadow_keep(m->dev, *t, copy);
}
static bool open_copies(Model *m, Err *e) {
    Fields see = {.see = see_shadow, .ctx = m};
    m->ah.name = "weights in bf16";
    open_visit(m, &m->w, see);
    if (m->opts.dry || !m->ah.peak) return true;
    if (!arena_open_at(&m->ah, device_memory(m->dev, false), m->ah.name, m->ah.peak, m->opts.poison, e)) return false;
    open_visit(m, &m->w, see);
    return true;
}
int model_varying(const Model *m) {
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].ffn->ffn->varies) return l;
    return -1;
}

/* Pairs of layers whose rows the codec merges: neighbours among the layers that keep all rows, of one shape, from its
 * share of the depth on. */
static void open_pairs(Model *m) {
    const RowCodec *c = m->opts.codec;
    if (!c || !c->merges) return;
    RowCodec *pair = xcalloc(2, sizeof *pair);
    pair[0] = codec_paired(c, PAIR_LOWER), pair[1] = codec_paired(c, PAIR_UPPER);
    m->pair = pair;
    for (int l = 0, lower = -1; l < m->L; l++) {
        KvShape *s = &m->layer[l].rows, *other = lower < 0 ? NULL : &m->layer[lower].rows;
        if (!m->layer[l].owner || !s->lanes || s->window || s->codec != c || l < c->from * m->L - 1e-9) continue;
        const bool alike = other && other->lanes == s->lanes && other->kdim == s->kdim && other->vdim == s->vdim &&
                           other->alias == s->alias;
        if (alike) other->codec = &pair[0], s->codec = &pair[1];
        lower = alike ? -1 : l;
    }
}
static bool open_paired(const Model *m) {
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].rows.codec == &m->pair[0]) return true;
    return false;
}
/* How the cache stores a layer's rows: by the codec of all, or in the first layers by one of the policy's own. */
static void open_rows(Model *m) {
    const PolicyCfg *p = m->opts.policy;
    for (int l = 0, slot = 0; l < m->L; l++) {
        KvShape *s = &m->layer[l].rows;
        const RowCodec *own = m->layer[l].owner && policy_suits(p, s) ? policy_codec(p, slot++) : NULL;
        s->codec = own ? own : m->opts.codec, s->coded = own != NULL;
    }
    open_pairs(m);
    for (int l = 0; l < m->L; l++)
        if (!m->layer[l].owner) m->layer[l].rows.codec = m->layer[m->layer[l].kv_from].rows.codec;
}
/* A codec that rotates keys has some that are not values too: these would come back mixed. Rows that are stored
 * together cannot leave one by one. */
static bool open_codec(Model *m, const RowCodec *codec, Err *e) {
    for (int l = 0; codec && codec->block && l < m->L; l++)
        if (m->layer[l].owner && m->layer[l].rows.evicts)
            return err_input(e,
                             "--cache-dtype %s: layer %d merges or evicts rows one by one, and this codec stores %d "
                             "together; take another, such as int4",
                             codec->name, l, codec->block);
    if (codec && codec->merges && !open_paired(m))
        return err_input(e,
                         "--cache-dtype %s: from layer %d of %d on no two layers keep all rows in one shape, so there "
                         "is nothing to merge; take a smaller `from` or another codec, such as kivi4",
                         codec->name, (int)ceil(codec->from * m->L - 1e-9), m->L);
    for (int l = 0; codec && codec->salient_bits && l < m->L; l++) {
        const KvShape *s = &m->layer[l].rows;
        if (m->layer[l].owner && s->codec == codec && s->lanes && !s->heads)
            return err_input(e,
                             "--cache-dtype %s: it asks queries that see all rows, and layer %d has none (a window, or "
                             "capped scores); take another, such as kivi4",
                             codec->name, l);
        if (m->layer[l].heads && m->layer[m->layer[l].kv_from].rows.codec == codec) m->last_asked = l;
    }
    for (int l = 0; codec && codec->rotate && l < m->L; l++)
        if (m->layer[l].owner && m->layer[l].rows.lanes && m->layer[l].rows.alias)
            return err_input(e,
                             "--cache-dtype %s:rotate=yes: the rows of layer %d are latents, keys and values at once, "
                             "which a rotation would mix; use rotate=no",
                             codec->name, l);
    return true;
}

bool model_guesses(const Model *m, int l) {
    const PolicyCfg *p = m->opts.policy;
    return p && p->read && p->read->guesses && l > 0 && l < m->L && m->layer[l].heads &&
           m->layer[l].kind->mixer->queries && !m->layer[l - 1].kind->mixer->reads_nothing &&
           policy_suits(p, &m->layer[m->layer[l].kv_from].rows);
}
/* Every row goes through all layers, and one slot remembers the newest. */
static void open_novelty(Model *m) {
    const PolicyCfg *p = m->opts.policy;
    if (!policy_novelty(p)) return;
    m->last_asked = m->L - 1;
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].owner && policy_suits(p, &m->layer[l].rows)) {
            m->layer[l].rows.last = m->cfg.d_model;
            return;
        }
}
/* Whether the policy works with rows that are stored together. */
static bool open_policy_blocks(const PolicyCfg *p, const RowCodec *codec, Err *e) {
    if (policy_feeds(p))
        return err_input(e,
                         "--policy %s: it judges rows by tokens that it feeds itself, which rows in blocks "
                         "(--cache-dtype %s) cannot be; take another codec, such as int4",
                         p->of->name, codec->name);
    if (policy_acts(p) && codec->salient_bits)
        return err_input(e,
                         "--policy %s: it evicts rows, whose attention --cache-dtype %s orders in blocks of "
                         "neighbours; take another codec, such as kivi2",
                         p->of->name, codec->name);
    if (policy_acts(p) && codec->merges)
        return err_input(e,
                         "--policy %s: it evicts rows of each layer, and --cache-dtype %s merges rows that two layers "
                         "have; take another codec, such as kivi4",
                         p->of->name, codec->name);
    if (p->read && p->page != codec->block)
        return err_input(e,
                         "--policy %s: page: --cache-dtype %s stores %d rows in a block, which a step reads together; "
                         "expected page=%d, got %d",
                         p->read->name, codec->name, codec->block, codec->block, p->page);
    if (policy_acts(p) && codec->turned)
        return err_input(e,
                         "--policy %s: rows that stay come from anywhere, and --cache-dtype %s:turned=yes turns the "
                         "rows of a block as neighbours; use turned=no",
                         p->of->name, codec->name);
    return true;
}
/* Whether the policy has rows to choose from; which layers it asks. */
static bool open_policy(Model *m, const PolicyCfg *p, Err *e) {
    bool rows = false, suits = false, guessed = false;
    const RowCodec *codec = m->opts.codec;
    if (!policy_any(p)) return true;
    if (codec && codec->block && !open_policy_blocks(p, codec, e)) return false;
    if (policy_whom(p) == ASK_PROMPT && !p->request[REQUEST_FIRST].n)
        return err_input(e, "--policy %s: catalyst: its prompt has words, and no tokenizer is here; leave catalyst out",
                         p->of->name);
    if (codec && codec->rotate && p->of->needs & NEED_TURNS)
        return err_input(
            e,
            "--policy %s: it needs keys as their positions turned them, and --cache-dtype %s:rotate=yes mixes "
            "them; use rotate=no or another policy",
            p->of->name, codec->name);
    for (int l = 0; l < m->L; l++) {
        const Layer *y = &m->layer[l];
        const KvShape *s = &m->layer[y->kv_from].rows;
        rows |= y->owner && policy_suits(NULL, s);
        suits |= y->owner && policy_suits(p, s);
        guessed |= model_guesses(m, l);
        if (y->heads && policy_queries(p) && policy_suits(p, s)) m->last_asked = l;
    }
    open_novelty(m);
    if (suits && p->read && p->read->guesses && !guessed)
        return err_input(e,
                         "--policy %s: it guesses the queries of a gqa layer from the input of the layer before, and "
                         "no layer of this model can be guessed; use another policy",
                         p->read->name);
    if (suits) return true;
    return err_input(e,
                     rows ? "--policy %s: it needs queries of ordinary attention%s, which no layer of this model has; "
                            "use another policy"
                          : "--policy %s: no layer of this model stores a row per token; leave --policy out",
                     p->of->name,
                     p->of->ask.value != COL_PLAIN || p->of->needs & NEED_VALUES ? " and values next to keys" : "");
}

bool model_open(Model *m, Device *dev, const ModelCfg *cfg, ModelOpts opts, Err *e) {
    *m = (Model){.dev = dev, .opts = opts};
    CHECK(!opts.train || opts.dry || !(opts.bf16_weights || opts.codec), "training keeps what it rounds");
    if (!model_map(m, cfg, e)) goto fail;
    open_rows(m);
    if (!open_codec(m, opts.codec, e) || !open_policy(m, opts.policy, e) || !model_basis_open(m, e)) goto fail;
    for (int l = 0; l < m->L; l++) m->layer[l].recompute = opts.recompute < 0 || l < opts.recompute;
    weights_new(m, &m->w);
    if (!open_region(m, &m->aw, "weights", &m->w, false, e) || !open_copies(m, e)) goto fail;
    if (opts.train) {
        weights_new(m, &m->g);
        if (!open_region(m, &m->ag, "gradients", &m->g, opts.without_grads, e)) goto fail;
        if (!opts.dry && !opts.without_grads) open_visit(m, &m->g, fields_zero_at(dev));
    }
    return true;
fail:
    model_close(m);
    return false;
}

void model_close(Model *m) {
    shadow_drop(m->dev, m->aw.base, m->aw.size);
    Arena *regions[] = {&m->ah, &m->aw, &m->ag};
    Weights *weights[] = {&m->w, &m->g};
    for (size_t i = 0; i < sizeof regions / sizeof *regions; i++) arena_close(regions[i]);
    for (size_t i = 0; m->layer && i < sizeof weights / sizeof *weights; i++) weights_free(m, weights[i]);
    model_basis_close(m);
    model_unmap(m);
    free(m->pair);
    *m = (Model){0};
}
