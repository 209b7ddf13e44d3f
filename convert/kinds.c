/* kinds.c: see kinds.h. */
#include "kinds.h"

const GqaCfg *kind_gqa(const Job *j, const char *name) {
    for (int l = 0; l < j->a.L; l++)
        if (!strcmp(j->a.layer[l].kind->name, name)) return job_gqa(&j->a, l);
    return NULL;
}

char *kind_name(const json_t *model, const char *name, const char *suffix) {
    char *s = xformat("%.40s_%s", name, suffix);
    for (int i = 2; json_object_get(json_object_get(model, "kinds"), s); i++) {
        free(s);
        s = xformat("%.40s_%s%d", name, suffix, i);
    }
    return s;
}
void kind_split(json_t *model, const char *name, const char *suffix, const bool *convert, json_t *settings) {
    json_t *kinds = json_object_get(model, "kinds"), *pattern = json_object_get(model, "pattern"), *v;
    char *next = kind_name(model, name, suffix);
    size_t l, left = 0, taken = 0;
    json_array_foreach(pattern, l, v) {
        if (strcmp(json_string_value(v), name)) continue;
        taken += convert[l], left += !convert[l];
    }
    if (taken) json_object_set(kinds, next, settings);
    for (l = 0; l < json_array_size(pattern); l++)
        if (convert[l] && !strcmp(json_string_value(json_array_get(pattern, l)), name))
            json_array_set_new(pattern, l, json_string(next));
    if (taken && !left) json_object_del(kinds, name);
    json_decref(settings);
    free(next);
}

bool layers_chosen(const Job *j, const Ints *keep, int every, bool convert[LAYERS_MAX], Err *e) {
    return layers_chosen_of(j, keep, every, false, convert, e);
}
bool layers_chosen_of(const Job *j, const Ints *keep, int every, bool latents, bool convert[LAYERS_MAX], Err *e) {
    int n = 0;
    for (int i = 0; i < keep->n; i++)
        if (keep->v[i] >= j->a.L) return err_input(e, "keep: expected layers 0 to %d, got %d", j->a.L - 1, keep->v[i]);
    for (int l = 0; l < j->a.L; l++) {
        convert[l] = (job_gqa(&j->a, l) || (latents && job_mla(&j->a, l))) && !(every && l % every == every - 1);
        for (int i = 0; i < keep->n; i++) convert[l] &= keep->v[i] != l;
        n += convert[l];
    }
    return n || err_input(e, "--to %s: no layer of mixer gqa%s is left to convert (layer 0 is %s)", j->target->name,
                          latents ? " or mla" : "", j->a.layer[0].kind->mixer->name);
}

bool gqa_unscaled(const Job *j, int l, Err *e) {
    const GqaCfg *c = job_gqa(&j->a, l);
    const char *to = j->target->name;
    if (c->scale > 0 || c->soft_cap > 0)
        return err_input(e, "--to %s: layer %d sets its scores' %s, which %s cannot hold", to, l,
                         c->scale > 0 ? "scale" : "soft_cap", to);
    if (c->out_gate || c->sink_scores)
        return err_input(e, "--to %s: layer %d has %s, which %s cannot hold", to, l,
                         c->out_gate ? "out_gate" : "sink_scores", to);
    return true;
}
bool gqa_plain(const Job *j, int l, bool norm, bool shared, bool window, Err *e) {
    const GqaCfg *c = job_gqa(&j->a, l);
    const char *to = j->target->name;
    if (norm && (c->qk_norm || c->qk_norm_wide))
        return err_input(e, "--to %s: layer %d norms its queries and keys (%s), which %s cannot hold", to, l,
                         c->qk_norm ? "qk_norm" : "qk_norm_wide", to);
    if (norm && !gqa_unscaled(j, l, e)) return false;
    if (shared && (j->a.layer[l].shared || !j->a.layer[l].owner))
        return err_input(e, "--to %s: layer %d shares keys and values with others (kv_from), which %s cannot hold", to,
                         l, to);
    if (window && c->window)
        return err_input(e, "--to %s: layer %d has a window of %d, which %s cannot hold", to, l, c->window, to);
    return true;
}

bool gqa_follows(const Job *j, int l, bool turned, const char *what, Err *e) {
    const GqaCfg *g = job_gqa(&j->a, l), *o = g ? job_gqa(&j->a, j->a.layer[l].kv_from) : NULL;
    if (!g) return true;
    const Rope *q = &g->table, *k = &o->table;
    if (turned && (g->qk_norm_wide || o->qk_norm_wide))
        return err_input(e, "%s: layer %d norms all its heads together (qk_norm_wide); they cannot be turned apart",
                         what, l);
    bool same = q->n == k->n && (!q->n || q->interleaved == k->interleaved);
    if (turned ? o->qk_norm || (!g->qk_norm && (same || !q->n)) : same) return true;
    return err_input(e, "%s: layer %d rotates or norms its queries differently from the keys of layer %d that it reads",
                     what, l, j->a.layer[l].kv_from);
}
