/* hf_names.c: the names and places of a model's tensors in the files of a model type. */
#include "hf_file.h"

/* Match the beginning of `s` with a pattern in which * is a number; returns how much of s it is, 0: it is not. */
static size_t hf_names_match(const char *pattern, const char *s, int *number) {
    const char *at = s;
    for (; *pattern; pattern++) {
        if (*pattern != '*') {
            if (*at++ != *pattern) return 0;
            continue;
        }
        int used = 0;
        if (*at < '0' || *at > '9' || sscanf(at, "%9d%n", number, &used) != 1) return 0;
        at += used;
    }
    return (size_t)(at - s);
}
/* Their name: prefix, the pattern with the number for *, the rest. */
static void hf_names_write(char name[192], const char *prefix, const char *pattern, int number, const char *rest) {
    const char *star = strchr(pattern, '*');
    if (star)
        snprintf(name, 192, "%s%.*s%d%s%s", prefix, (int)(star - pattern), pattern, number, star + 1, rest);
    else
        snprintf(name, 192, "%s%s%s", prefix, pattern, rest);
}

/* Stored rows of a part. */
static int part_rows(const HfPlaces *p, char letter, Tensor t) {
    const bool q = letter == 'q', kv = letter == 'k' || letter == 'v';
    if (letter == 'K' || letter == 'V') return letter == 'K' ? p->state_keys : p->state_values;
    if (!q && !kv) return t.n[0];
    CHECK(p->head_dim > 0, "%s: joined tensors of another mixer than gqa", p->type->type);
    return (q ? p->heads : p->kv_heads) * p->head_dim;
}
static StPlace hf_names_place(const HfPlaces *p, const HfName *k, int number, bool packed, Tensor t) {
    if (k->slice) {
        const int parts = k->join ? (int)strlen(k->join) : 1;
        return (StPlace){parts, k->part, 1, k->turned && !packed, 0, 0, 0, 0, false, p->experts, number};
    }
    if (!k->join && !k->stack) return (StPlace){1, 0, 1, k->turned, 0, 0, 0, 0, k->deep, 0, 0};
    const char *join = k->join ? k->join : "x";
    int n = (int)strlen(join), first = 0, all = 0;
    bool alike = !k->stack;
    for (int i = 0; i < n; i++) {
        const int rows = part_rows(p, join[i], t);
        alike &= rows == part_rows(p, join[0], t);
        if (i < k->part) first += rows;
        all += rows;
    }
    const int times = k->alternate == HF_BY_HEADS ? p->heads : k->alternate == HF_BY_KEYS ? p->key_heads : 1;
    CHECK(times > 0 && (times == 1 || !k->stack), "%s: nothing alternates in %s", p->type->type, k->theirs);
    if (alike) return (StPlace){n, k->part, t.n[0] / times, k->turned, 0, 0, 0, 0, false, 0, 0};
    if (times > 1) return (StPlace){1, 0, t.n[0] / times, k->turned, first / times, all, 0, all / times, false, 0, 0};
    if (!k->stack) return (StPlace){1, 0, 1, k->turned, first, all, 0, 0, false, 0, 0};
    return (StPlace){1, 0, 1, k->turned, number * all + first, p->experts * all, p->experts, 0, false, 0, 0};
}

static StPlace hf_names_find(const StNames *n, const char *path, Tensor t, char name[192]) {
    const HfPlaces *p = (const HfPlaces *)n->ctx;
    const char *rest = path;
    char prefix[96] = "";
    int layer = -1, used = 0, number = 0;
    if (sscanf(path, "model.layers.%d.%n", &layer, &used) == 1 && used) {
        rest = path + used;
        snprintf(prefix, sizeof prefix, "%s%d.", p->layer, layer);
    }
    for (const HfName *k = p->type->names; k->ours; k++) {
        size_t len = hf_names_match(k->ours, rest, &number);
        const bool state = layer >= 0 && layer < LAYERS_MAX && p->state[layer];
        if (!len || (k->layers == HF_STATE && !state) || (k->layers == HF_ATTENTION && state)) continue;
        const bool top = !*prefix && *k->theirs == '/';
        hf_names_write(name, *prefix ? prefix : top ? "" : p->top, k->theirs + top, number, rest + len);
        const char *also = k->packed ? k->packed : k->also;
        char other[192];
        bool there = false; /* under the other name */
        if (also && p->st && !st_find(p->st, name)) {
            hf_names_write(other, prefix, also, number, rest + len);
            there = st_find(p->st, other) != NULL;
            if (there) memcpy(name, other, sizeof other);
        }
        return hf_names_place(p, k, number, there && k->packed, t);
    }
    snprintf(name, 192, "%s%s", prefix, rest); /* the type names it as we do, or has no such tensor */
    return ST_WHOLE;
}

void hf_places(HfPlaces *p, const HfType *type, const ModelCfg *c, const St *st) {
    *p = (HfPlaces){.type = type, .st = st};
    if (!type || !type->names) return;
    HfShape *s = xcalloc(1, sizeof *s);
    bool gqa = true;
    for (int l = 0; l < c->layers; l++) {
        const FfnKind *k = &c->ffn[c->ffn_pattern[l]];
        const Kind *mix = &c->kind[c->pattern[l]];
        p->state[l] = type->state && mix->mixer == mixer_find(type->state);
        gqa &= mix->mixer == mixer_find("gqa") || p->state[l];
        if (p->state[l]) {
            LineCfg line = *(const LineCfg *)mix->cfg;
            hf_line_plain(&line, c->d_model);
            p->key_heads = line.heads;
            p->state_keys = line.heads * line.head_dim, p->state_values = line.v_heads * line.v_dim;
        }
        if (k->ffn == &moe_ffn) p->experts = ((const MoeCfg *)k->cfg)->experts;
    }
    if (gqa && hf_attention(c, s, NULL))
        p->heads = s->g.heads, p->kv_heads = s->g.kv_heads, p->head_dim = s->g.head_dim;
    free(s);
    p->names = (StNames){hf_names_find, p};
    p->layer = type->layer ? type->layer : "model.layers.", p->top = type->top ? type->top : "";
    if (st && type->bare && st_find(st, type->bare)) p->layer = strchr(type->layer, '.') + 1, p->top = "";
}

StPlace hf_place_written(const ModelCfg *c, const char *path, Tensor t, char name[192]) {
    HfPlaces p;
    hf_places(&p, hf_type_of(c), c, NULL);
    if (p.names.find) return p.names.find(&p.names, path, t, name);
    snprintf(name, 192, "%s", path);
    return ST_WHOLE;
}
