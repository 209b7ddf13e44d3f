/* map.c: the layer map: the settings of every layer, the layer whose K/V it reads, and how long the owner must keep
 * its rows. */
#include "inside.h"
#include "ops/rope.h"

static bool same_rows(const KvShape *a, const KvShape *b) {
    return a->lanes == b->lanes && a->kdim == b->kdim && a->vdim == b->vdim && a->alias == b->alias &&
           a->state == b->state;
}

/* An owner keeps rows as long as its widest reader needs them; a window of 0 keeps all. */
static void map_widen(KvShape *owner, const KvShape *reader) {
    if (!owner->window) return;
    owner->window = reader->window ? imax(owner->window, reader->window) : 0;
    owner->sinks = owner->window ? imax(owner->sinks, reader->sinks) : 0;
}

static void *layer_cfg(const void *cfg, size_t size, const ModelCfg *m, bool owner) {
    LayerCfg *c = xcalloc(1, size);
    memcpy(c, cfg, size);
    *c = layer_base(m, owner);
    return c;
}

static bool map_layer(Model *m, const ModelCfg *cfg, int l, Err *e) {
    Layer *y = &m->layer[l];
    int from = cfg->kv_from[l];
    *y = (Layer){.kind = &cfg->kind[cfg->pattern[l]],
                 .ffn = &cfg->ffn[cfg->ffn_pattern[l]],
                 .kv_from = from,
                 .owner = from == l};
    const Mixer *mixer = y->kind->mixer;
    Err why = {0};
    y->cfg = layer_cfg(y->kind->cfg, mixer->cfg_size, cfg, y->owner);
    if (!mixer->check(y->cfg, &why)) return err_input(e, "model.kinds.%s (layer %d): %s", y->kind->name, l, why.msg);
    y->publisher = mixer->publishes_only && mixer->publishes_only(y->cfg);
    y->feeds = !y->publisher && y->ffn->ffn->forward;
    y->fcfg = layer_cfg(y->ffn->cfg, y->ffn->ffn->cfg_size, cfg, true);
    if (!y->ffn->ffn->check(y->fcfg, &why)) return err_input(e, "model.ffn (layer %d): %s", l, why.msg);
    mixer->rows(y->cfg, &y->rows);
    y->heads = y->rows.heads;
    if (y->owner) {
        if (y->rows.lanes || y->rows.state) m->last_writer = l;
        return true;
    }
    if (from < 0 || from >= l)
        return err_input(e, "model.kv_from: layer %d reads layer %d; expected an earlier layer, 0 to %d", l, from,
                         l - 1);
    Layer *o = &m->layer[from];
    if (!o->owner)
        return err_input(e, "model.kv_from: layer %d reads layer %d, which itself reads layer %d; name that one", l,
                         from, o->kv_from);
    if (o->rows.alias != y->rows.alias)
        return err_input(e,
                         "model.kv_from: layer %d (%s) cannot read the rows of layer %d (%s): one stores latents, "
                         "the other keys and values",
                         l, mixer->name, from, o->kind->mixer->name);
    if (!same_rows(&o->rows, &y->rows) && y->rows.alias)
        return err_input(e,
                         "model.kv_from: layer %d expects latents of %d + %d elements, layer %d stores %d + %d; make "
                         "kv_rank, rope_dim and rope_heads equal",
                         l, y->rows.vdim, y->rows.kdim - y->rows.vdim, from, o->rows.vdim, o->rows.kdim - o->rows.vdim);
    if (!same_rows(&o->rows, &y->rows))
        return err_input(e,
                         "model.kv_from: layer %d expects rows of %d heads x %d, layer %d stores %d x %d; make "
                         "kv_heads and head_dim equal",
                         l, y->rows.lanes, y->rows.kdim, from, o->rows.lanes, o->rows.kdim);
    o->shared = true;
    map_widen(&o->rows, &y->rows);
    if (y->heads) y->heads_at = o->rows.heads / o->rows.lanes, o->rows.heads += y->heads;
    return true;
}

bool model_map(Model *m, const ModelCfg *cfg, Err *e) {
    m->cfg = *cfg;
    m->L = cfg->layers;
    m->last_writer = 0, m->last_asked = -1;
    m->layer = xcalloc((size_t)m->L, sizeof *m->layer);
    for (int l = 0; l < m->L; l++)
        if (!map_layer(m, cfg, l, e)) return false;
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].publisher && !m->layer[l].shared)
            return err_input(e,
                             "model.pattern: layer %d (%s) only publishes K/V, and no later layer reads it in kv_from",
                             l, m->layer[l].kind->name);
    return true;
}

void model_unmap(Model *m) {
    for (int l = 0; m->layer && l < m->L; l++) {
        free(m->layer[l].cfg);
        free(m->layer[l].fcfg);
    }
    free(m->layer);
    m->layer = NULL;
}

bool model_plan(Model *m, int length) {
    bool any = false;
    for (int l = 0; l < m->L; l++) {
        Layer *y = &m->layer[l];
        for (const Key *k = y->kind->mixer->keys; k->name; k++) {
            const RopeCfg *given = (const RopeCfg *)((const char *)y->kind->cfg + k->at);
            if (k->sub != rope_keys || given->length || (given->type != ROPE_DYNAMIC && given->type != ROPE_LONGROPE))
                continue;
            ((RopeCfg *)((char *)y->cfg + k->at))->length = length;
            Err why = {0};
            /* it passed the same check with another length */
            CHECK(y->kind->mixer->check(y->cfg, &why), "%s", why.msg);
            any = true;
        }
    }
    if (any) model_basis_turns(m);
    return any;
}
