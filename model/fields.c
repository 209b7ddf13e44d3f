/* fields.c: the declarations of a whole model's weights, by the names that Hugging Face has for them. */
#include "inside.h"
#include "layers/parts.h"

/* The model, not the visitor, decides how weights are stored. */
Fields fields_stored(const Model *m, Fields *f) {
    const ModelOpts *o = &m->opts;
    const Fields was = *f;
    f->matrices_bf16 = o->bf16_weights || o->stored_bf16;
    f->only = o->bf16_weights ? NULL : o->stored_bf16;
    f->only_ctx = o->stored_ctx;
    return was;
}
static void fields_restored(Fields *f, const Fields *was) {
    f->matrices_bf16 = was->matrices_bf16, f->only = was->only, f->only_ctx = was->only_ctx;
}
/* Matrices that are not trained have no gradient; products leave out what is ABSENT. */
typedef struct {
    const ModelOpts *opts;
    Fields *to;
    bool all;
} Grads;
static void fields_see_grad(Fields *f, Tensor *t, const char *path, unsigned flags) {
    const Grads *x = f->ctx;
    const bool frozen = t->rank == 2 && !x->opts->trained(x->opts->trained_ctx, path);
    if (!frozen || x->all) x->to->see(x->to, t, path, flags);
    if (frozen) *t = ABSENT;
}
/* Of the weights of norms. */
static unsigned norm_flags(const Model *m) { return norm_gain_flags(m->cfg.norm_plus_one); }
void model_layer_fields(const Model *m, int l, Weights *w, Fields *f) {
    const Layer *y = &m->layer[l];
    const int d = m->cfg.d_model;
    const bool biases = m->cfg.norm == NORM_LAYER, pre = m->cfg.norm_place != NORM_POST,
               post = m->cfg.norm_place != NORM_PRE, reads = !y->kind->mixer->reads_nothing;
    const unsigned gain = norm_flags(m);
    LayerWeights *lw = &w->layer[l];
    const Fields was = fields_stored(m, f);
    snprintf(f->scope, sizeof f->scope, "model.layers.%d.", l);
    if (pre && reads) field(f, &lw->norm1, "input_layernorm.weight", gain, d);
    if (biases && reads) field(f, &lw->bias1, "input_layernorm.bias", FIELD_ZEROS | FIELD_NODECAY, d);
    snprintf(f->scope, sizeof f->scope, "model.layers.%d.self_attn.", l);
    y->kind->mixer->weights(y->cfg, lw->mix, f);
    snprintf(f->scope, sizeof f->scope, "model.layers.%d.", l);
    if (post && !y->publisher) field(f, &lw->post1, "post_attention_layernorm.weight", gain, d);
    if (y->feeds) {
        if (pre)
            field(f, &lw->norm2, post ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight", gain,
                  d);
        if (post) field(f, &lw->post2, "post_feedforward_layernorm.weight", gain, d);
        if (biases) field(f, &lw->bias2, "post_attention_layernorm.bias", FIELD_ZEROS | FIELD_NODECAY, d);
        snprintf(f->scope, sizeof f->scope, "model.layers.%d.mlp.", l);
        y->ffn->ffn->weights(y->fcfg, lw->ffn, f);
    }
    f->scope[0] = 0;
    fields_restored(f, &was);
}
void model_positions_field(const Model *m, Weights *w, Fields *f) {
    const ModelCfg *c = &m->cfg;
    const Fields was = fields_stored(m, f);
    if (c->positions == POSITIONS_LEARNED)
        field(f, &w->positions, "model.embed_positions.weight", FIELD_TABLE, c->max_positions, c->d_model);
    fields_restored(f, &was);
}
void model_norm_fields(const Model *m, Weights *w, Fields *f) {
    const ModelCfg *c = &m->cfg;
    field(f, &w->norm, "model.norm.weight", norm_flags(m), c->d_model);
    if (c->norm == NORM_LAYER) field(f, &w->norm_bias, "model.norm.bias", FIELD_ZEROS | FIELD_NODECAY, c->d_model);
}
int model_units(const Model *m) { return m->L + 2; }
static void unit_fields(const Model *m, int unit, Weights *w, Fields *f) {
    const ModelCfg *c = &m->cfg;
    const Fields was = fields_stored(m, f);
    f->scope[0] = 0;
    if (unit > 0 && unit <= m->L) {
        model_layer_fields(m, unit - 1, w, f);
    } else if (unit == 0) {
        field(f, &w->embed, "model.embed_tokens.weight", FIELD_TABLE, c->vocab, c->d_model);
        model_positions_field(m, w, f);
    } else {
        model_norm_fields(m, w, f);
        if (!c->tied) field(f, &w->head, "lm_head.weight", FIELD_TABLE, c->vocab, c->d_model);
    }
    fields_restored(f, &was);
}
void model_unit_fields(const Model *m, int unit, Weights *w, Fields *f) {
    Grads grads = {&m->opts, f, false};
    Fields wrap = {.see = fields_see_grad, .ctx = &grads};
    unit_fields(m, unit, w, w == &m->g && m->opts.trained ? &wrap : f);
}
void model_unit_grads(Model *m, int unit, Fields *f) {
    Grads grads = {&m->opts, f, true};
    Fields wrap = {.see = fields_see_grad, .ctx = &grads};
    unit_fields(m, unit, &m->g, m->opts.trained ? &wrap : f);
}
void model_fields(const Model *m, Weights *w, Fields *f) {
    for (int u = 0; u < model_units(m); u++) model_unit_fields(m, u, w, f);
}
