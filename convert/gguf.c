/* gguf.c: the target gguf: a model and its tokenizer as one file for llama.cpp. Tensors go over one at a time, whole or
 * some rows of them, so that memory is that of a layer. */
#include "gguf.h"

enum { SOURCE_DTYPE };
static const char *const dtypes[] = {"source", "f32", "f16", "bf16", "q8_0", NULL};
typedef struct {
    int dtype;
    GgufArch arch;
} Cfg;
static const Key keys[] = {{"dtype", KEY_CHOICE, offsetof(Cfg, dtype), "source", 0, 0,
                            "dtype of matrices: f32, f16, bf16, q8_0 (scales of 32 values), or the source's; vectors "
                            "and learned positions are f32",
                            dtypes, 0},
                           {0}};

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static const GgufName top[] = {
    {"token_embd", {"model.embed_tokens"}, ROWS_SAME, false},
    {"position_embd", {"model.embed_positions"}, ROWS_SAME, false},
    {"output_norm", {"model.norm"}, ROWS_SAME, false},
    {"output", {"lm_head"}, ROWS_SAME, false},
};
static const GgufName layer[] = {
    {"attn_norm", {"input_layernorm"}, ROWS_SAME, false},
    {"attn_qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, ROWS_SAME, true},
    {"attn_q", {"self_attn.q_proj"}, ROWS_QUERIES, false},
    {"attn_k", {"self_attn.k_proj"}, ROWS_KEYS, false},
    {"attn_v", {"self_attn.v_proj"}, ROWS_SAME, false},
    {"attn_q_norm", {"self_attn.q_norm"}, ROWS_SAME, false},
    {"attn_k_norm", {"self_attn.k_norm"}, ROWS_SAME, false},
    {"attn_q_a", {"self_attn.q_a_proj"}, ROWS_SAME, false},
    {"attn_q_a_norm", {"self_attn.q_a_layernorm"}, ROWS_SAME, false},
    {"attn_q_b", {"self_attn.q_b_proj"}, ROWS_SAME, false},
    {"attn_kv_a_mqa", {"self_attn.kv_a_proj_with_mqa"}, ROWS_SAME, false},
    {"attn_kv_a_norm", {"self_attn.kv_a_layernorm"}, ROWS_SAME, false},
    {"attn_k_b", {"self_attn.kv_b_proj"}, ROWS_KEYS_UP, false},
    {"attn_v_b", {"self_attn.kv_b_proj"}, ROWS_VALUES_UP, false},
    {"attn_output", {"self_attn.o_proj"}, ROWS_SAME, false},
    {"ffn_norm", {"post_attention_layernorm"}, ROWS_SAME, false},
    {"post_attention_norm", {"post_attention_layernorm"}, ROWS_SAME, false},
    {"post_ffw_norm", {"post_feedforward_layernorm"}, ROWS_SAME, false},
    {"ffn_norm", {"pre_feedforward_layernorm"}, ROWS_SAME, false},
    {"ffn_up", {"mlp.gate_proj", "mlp.up_proj"}, ROWS_SAME, false},
    {"ffn_gate", {"mlp.gate_proj"}, ROWS_SAME, false},
    {"ffn_up", {"mlp.up_proj"}, ROWS_SAME, false},
    {"ffn_down", {"mlp.down_proj"}, ROWS_SAME, false},
    {"ffn_gate_inp", {"mlp.gate"}, ROWS_SAME, false},
    {"ffn_gate_shexp", {"mlp.shared_experts.gate_proj"}, ROWS_SAME, false},
    {"ffn_up_shexp", {"mlp.shared_experts.up_proj"}, ROWS_SAME, false},
    {"ffn_down_shexp", {"mlp.shared_experts.down_proj"}, ROWS_SAME, false},
    {"ffn_gate_inp_shexp", {"mlp.shared_expert_gate"}, ROWS_SAME, false},
};
/* One tensor of all experts, that many matrices. */
static const GgufName experts[] = {
    {"ffn_gate_exps", {"gate_proj"}, ROWS_SAME, false},
    {"ffn_up_exps", {"up_proj"}, ROWS_SAME, false},
    {"ffn_down_exps", {"down_proj"}, ROWS_SAME, false},
};

/* A field of the model; an output tensor, made of some. */
typedef struct {
    char path[128];
    Tensor t;
    bool used, plus_one; /* plus_one: a gain that is stored without the 1 that is added to it */
} GgufField;
typedef struct {
    RowsOrder order, last;
    int nparts, part[PARTS_MAX]; /* indices of fields */
    int step;                    /* of experts: part k is part[0] + k step (0: part[k]) */
} GgufItem;
static int item_part(const GgufItem *x, int k) { return x->step ? x->part[0] + k * x->step : x->part[k]; }
typedef struct {
    Job *j;
    const GgufArch *arch;
    Gguf g;
    int nfield, nitem, narrow; /* narrow: tensors of dtype q8_0 whose rows are not whole blocks */
    GgufField *field;
    json_t *index; /* of fields, by path: DeepSeek-V3 has 45,000 */
    GgufItem *item;
    bool rounds; /* some values are rounded */
    Dtype below; /* to that */
    size_t params;
    Err *e;
} Work;

static void see_field(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Work *w = f->ctx;
    w->field = xrealloc(w->field, (size_t)w->nfield + 1, sizeof *w->field);
    GgufField *x = &w->field[w->nfield++];
    *x = (GgufField){.t = *t};
    /* gains begin at 0 only where 1 is added to them */
    x->plus_one = w->j->a.cfg.norm_plus_one && flags & FIELD_ZEROS && t->rank == 1 && strstr(path, "norm.weight");
    CHECK((size_t)snprintf(x->path, sizeof x->path, "%s", path) < sizeof x->path, "%s", path);
    CHECK(!json_object_set_new(w->index, path, json_integer(w->nfield - 1)), "%s", path);
    if (!(flags & FIELD_BALANCE)) w->params += tensor_count(*t);
}
static int field_find(const Work *w, const char *path) {
    const json_t *at = json_object_get(w->index, path);
    return at ? (int)json_integer_value(at) : -1;
}

/* The type of a tensor of rows of `width`; `s` is the source of its first part. */
static GgmlType type_of(Work *w, const char *name, int rank, uint64_t width, const StEntry *s) {
    static const GgmlType as[] = {GGML_F32, GGML_F32, GGML_F16, GGML_BF16, GGML_Q8_0};
    const int asked = ((Cfg *)w->j->cfg)->dtype;
    if (rank < 2 || !strncmp(name, "position_embd", 13) || strstr(name, "ffn_gate_inp") || strstr(name, "ssm_conv1d") ||
        strstr(name, "ssm_norm") || strstr(name, "_exps.bias") || width == 1)
        return GGML_F32;
    if (asked == SOURCE_DTYPE)
        return !s || !strcmp(s->dtype, "F32") ? GGML_F32
               : !strcmp(s->dtype, "F16")     ? GGML_F16
               : !strcmp(s->dtype, "BF16")    ? GGML_BF16
                                              : GGML_F32;
    if (as[asked] != GGML_Q8_0 || width % GGUF_BLOCK == 0) return as[asked];
    w->narrow++;
    return GGML_F16;
}

static const StEntry *entry_of(const Work *w, const GgufField *x, StPlace *place) {
    return hf_files_find(&w->j->files, x->path, x->t, place);
}

/* Declare the tensor `name` of an item whose first part is `first`. */
static bool item_declare(Work *w, GgufItem item, const char *name, int rank, const uint64_t n[3]) {
    StPlace place;
    const GgufField *first = &w->field[item_part(&item, 0)];
    const GgmlType type = type_of(w, name, rank, n[rank - 1], entry_of(w, first, &place));
    for (int i = 0; i < item.nparts; i++) {
        const StEntry *s = entry_of(w, &w->field[item_part(&item, i)], &place);
        const bool keeps = type == GGML_F32    ? strcmp(s->dtype, "F64") != 0
                           : type == GGML_F16  ? !strcmp(s->dtype, "F16") && !st_patched(&w->j->files.st, s)
                           : type == GGML_BF16 ? !strcmp(s->dtype, "BF16") && !st_patched(&w->j->files.st, s)
                                               : false;
        w->rounds |= !keeps;
    }
    w->item = xrealloc(w->item, (size_t)w->nitem + 1, sizeof *w->item);
    w->item[w->nitem++] = item;
    return gguf_tensor(&w->g, name, rank, n, type, w->e);
}
/* Sizes of the tensor of an item in the file; returns its rank. */
static int item_sizes(const Work *w, const GgufPlace *k, const GgufItem *item, uint64_t n[3]) {
    const Tensor first = w->field[item->part[0]].t;
    n[0] = 0, n[1] = (uint64_t)first.n[1], n[2] = (uint64_t)first.n[2];
    for (int i = 0; i < item->nparts; i++) n[0] += (uint64_t)w->field[item->part[i]].t.n[0];
    if (k->name.order == ROWS_KEYS_UP || k->name.order == ROWS_VALUES_UP) {
        const MlaCfg *c = w->arch->mla;
        const bool up = k->name.order == ROWS_KEYS_UP;
        n[0] = (uint64_t)c->heads, n[1] = (uint64_t)(up ? c->kv_rank : c->v_dim),
        n[2] = (uint64_t)(up ? c->nope_dim : c->kv_rank);
        return 3;
    }
    if (k->shape == SHAPE_VECTOR) {
        if (first.rank > 1) n[0] = n[1];
        return 1;
    }
    if (k->shape == SHAPE_COLUMN) return n[1] = 1, 2;
    if (k->shape == SHAPE_GROUPS) {
        n[1] = n[0] / (uint64_t)w->arch->mamba->groups, n[0] = (uint64_t)w->arch->mamba->groups;
        return 2;
    }
    if (k->shape == SHAPE_SQUEEZED && first.rank == 3) return n[1] = n[2], 2;
    return first.rank;
}
/* Declare the tensor THEIRS.END, if the model has it. */
static bool item_place(Work *w, const GgufPlace *k, int l, const char *end, const char *prefix) {
    GgufItem item = {.order = k->name.order, .last = k->last};
    const char *dot = k->whole ? "" : ".";
    char name[96], block[16] = "";
    uint64_t n[3];
    if (k->whole) end = "";
    if (l >= 0) snprintf(block, sizeof block, "blk.%d.", l);
    snprintf(name, sizeof name, "%s%s%s%s", block, k->name.theirs, dot, end);
    for (int i = 0; i < PARTS_MAX && k->name.ours[i]; i++) {
        char *path = xformat("%s%s%s%s", prefix, k->name.ours[i], dot, end);
        const int at = field_find(w, path);
        free(path);
        if (at < 0) return true;
        item.part[item.nparts++] = at;
        w->field[at].used = true;
    }
    const int rank = item_sizes(w, k, &item, n);
    return item_declare(w, item, name, rank, n);
}
static bool item_add(Work *w, const GgufName *k, int l, const char *end, const char *prefix) {
    const bool row = !strcmp(k->theirs, "ffn_gate_inp_shexp"); /* one row is a vector there */
    return item_place(w, &(GgufPlace){.name = *k, .shape = row ? SHAPE_VECTOR : SHAPE_SAME}, l, end, prefix);
}
/* The tensors of a layer's experts, whose fields follow each other: gate, up and down of each, or up and down. */
static bool experts_add(Work *w, int l, const char *prefix) {
    const MoeCfg *c = w->arch->moe;
    char name[64], path[128];
    const int count = (int)(sizeof experts / sizeof *experts), from = c->act == EXPERT_RELU2; /* which has no gate */
    for (int i = from; i < count; i++)
        for (int bias = 0; bias <= c->expert_bias; bias++) {
            const char *end = bias ? "bias" : "weight";
            GgufItem item = {.order = ROWS_SAME, .nparts = c->experts, .step = (count - from) * (1 + c->expert_bias)};
            for (int k = 0; k < c->experts; k++) {
                snprintf(path, sizeof path, "%smlp.experts.%d.%s.%s", prefix, k, experts[i].ours[0], end);
                const int at = field_find(w, path);
                if (!k) item.part[0] = at;
                CHECK(at >= 0 && at == item_part(&item, k), "%s", path);
                w->field[at].used = true;
            }
            const Tensor t = w->field[item.part[0]].t;
            const uint64_t n[3] = {(uint64_t)c->experts, (uint64_t)t.n[0], (uint64_t)t.n[1]};
            snprintf(name, sizeof name, "blk.%d.%s.%s", l, experts[i].theirs, end);
            if (!item_declare(w, item, name, bias ? 2 : 3, n)) return false;
        }
    if (!c->bias_balance) return true;
    snprintf(path, sizeof path, "%smlp.gate.e_score_correction_bias", prefix);
    GgufItem item = {.order = ROWS_SAME, .nparts = 1, .part = {field_find(w, path)}};
    CHECK(item.part[0] >= 0, "%s", path);
    w->field[item.part[0]].used = true;
    snprintf(name, sizeof name, "blk.%d.exp_probs_b.bias", l);
    return item_declare(w, item, name, 1, (const uint64_t[3]){(uint64_t)c->experts});
}

/* Of two names of a field, that of the architecture. */
static bool name_fits(const Work *w, const GgufName *k) {
    const char *ours = k->ours[0];
    if (!strcmp(ours, "self_attn.q_proj") || !strcmp(ours, "self_attn.k_proj") || !strcmp(ours, "self_attn.v_proj"))
        return k->joined == w->arch->joined;
    if (!strcmp(ours, "mlp.gate_proj") || !strcmp(ours, "mlp.up_proj")) return !k->ours[1] == !w->arch->gate_up;
    /* the norm before the feed-forward part, or that after attention */
    if (!strcmp(ours, "post_attention_layernorm"))
        return !strcmp(k->theirs, "ffn_norm") == (w->j->a.cfg.norm_place == NORM_PRE && !w->arch->after);
    return true;
}
static bool items_add(Work *w, const GgufName *names, size_t n, int l, const char *prefix) {
    static const GgufPlace sinks = {.name = {.theirs = "attn_sinks.weight", .ours = {"self_attn.sinks"}},
                                    .whole = true};
    static const char *const ends[] = {"weight", "bias"};
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 2; k++)
            if (name_fits(w, &names[i]) && !item_add(w, &names[i], l, ends[k], prefix)) return false;
    return l < 0 || item_place(w, &sinks, l, "", prefix);
}

static bool recurrent_add(Work *w, int l, const char *prefix) {
    GgufPlaces lists[GGUF_LISTS];
    const int n = gguf_recurrent_places(w->arch, &w->j->a, l, lists);
    for (int i = 0; i < n; i++)
        for (const GgufPlace *k = lists[i].place; k < lists[i].place + lists[i].n; k++)
            if (!item_place(w, k, l, "weight", prefix) || (!k->whole && !item_place(w, k, l, "bias", prefix)))
                return false;
    return true;
}

static bool factors_add(Work *w, const char *name, RowsOrder order) {
    const uint64_t n = (uint64_t)w->arch->gqa->table.n / 2;
    w->item = xrealloc(w->item, (size_t)w->nitem + 1, sizeof *w->item);
    w->item[w->nitem++] = (GgufItem){.order = order};
    return gguf_tensor(&w->g, name, 1, &n, GGML_F32, w->e);
}

static bool tensors_declare(Work *w) {
    const Job *j = w->j;
    Weights weights = j->a.w;
    Fields f = {.see = see_field, .ctx = w};
    model_fields(&j->a, &weights, &f);
    if (!items_add(w, top, sizeof top / sizeof *top, -1, "")) return false;
    static const GgufName tied = {"output", {"model.embed_tokens"}, ROWS_SAME, false};
    if (j->from.tied && w->arch->head && !item_add(w, &tied, -1, "weight", "")) return false;
    if (w->arch->factors && !factors_add(w, "rope_freqs.weight", ROWS_FACTORS)) return false;
    if (w->arch->gqa && w->arch->gqa->rope.type == ROPE_LONGROPE &&
        (!factors_add(w, "rope_factors_long.weight", ROWS_LONG) ||
         !factors_add(w, "rope_factors_short.weight", ROWS_SHORT)))
        return false;
    for (int l = 0; l < j->a.L; l++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "model.layers.%d.", l);
        if (gguf_recurrent(&j->a) ? !recurrent_add(w, l, prefix)
                                  : !items_add(w, layer, sizeof layer / sizeof *layer, l, prefix))
            return false;
        if (j->a.layer[l].ffn->ffn == &moe_ffn && !experts_add(w, l, prefix)) return false;
    }
    for (int i = 0; i < w->nfield; i++) CHECK(w->field[i].used, "%s has no place in the file", w->field[i].path);
    return true;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Rows of heads of `width` rows each: i and i + width/2 become 2i and 2i + 1. */
static void rows_interleave(Tensor to, Tensor from, int width) {
    const size_t w = from.rank > 1 ? (size_t)from.n[1] : 1;
    for (int r = 0; r < from.n[0]; r++) {
        const int i = r % width, at = r - i + (i < width / 2 ? 2 * i : 2 * (i - width / 2) + 1);
        memcpy(R(to) + (size_t)at * w, R(from) + (size_t)r * w, w * sizeof(real));
    }
}

/* Of kv_b (heads (nope + v), rank): keys as (heads, rank, nope), or values as (heads, v, rank). */
static void rows_lift(Tensor to, Tensor from, const MlaCfg *c, bool values) {
    const size_t r = (size_t)c->kv_rank, up = (size_t)c->nope_dim, v = (size_t)c->v_dim;
    for (size_t h = 0; h < (size_t)c->heads; h++) {
        const real *p = R(from) + h * (up + v) * r;
        if (values) {
            memcpy(R(to) + h * v * r, p + up * r, v * r * sizeof(real));
            continue;
        }
        for (size_t i = 0; i < up; i++)
            for (size_t k = 0; k < r; k++) R(to)[(h * r + k) * up + i] = p[i * r + k];
    }
}

/* A field that is needed whole, in another order of rows. */
static bool put_moved(Work *w, const GgufField *x, RowsOrder order) {
    const MlaCfg *c = w->arch->mla;
    StPlace place;
    const StEntry *s = entry_of(w, x, &place);
    Tensor in = arena_tensor(&w->j->layer, "from", REAL, x->t.rank, x->t.n), out = in;
    if (!st_read_part(&w->j->files.st, s, in, place, w->e)) return false;
    for (size_t i = 0; x->plus_one && i < tensor_count(in); i++) R(in)[i] += 1;
    if (order == ROWS_KEYS_UP || order == ROWS_VALUES_UP) {
        const bool values = order == ROWS_VALUES_UP;
        const int n[] = {c->heads, values ? c->v_dim : c->kv_rank, values ? c->kv_rank : c->nope_dim};
        out = arena_tensor(&w->j->layer, "to", REAL, 3, n);
        rows_lift(out, in, c, values);
    } else if (order >= ROWS_TILED) {
        out = arena_tensor(&w->j->layer, "to", REAL, x->t.rank, x->t.n);
        gguf_recurrent_moved(w->arch, order, out, in);
    } else if (w->arch->turned && order != ROWS_SAME) {
        out = arena_tensor(&w->j->layer, "to", REAL, x->t.rank, x->t.n);
        rows_interleave(out, in, w->arch->gqa->head_dim);
    }
    return gguf_put(&w->g, out, w->e);
}

/* A field as it is, some rows at a time: a table may be larger than a layer. */
static bool put_rows(Work *w, const GgufField *x) {
    StPlace place;
    const StEntry *s = entry_of(w, x, &place);
    const bool some = st_is_whole(place, x->t.rank) && x->t.rank == 2;
    if (!some) return put_moved(w, x, ROWS_SAME);
    if (!st_fits_part(&w->j->files.st, s, x->t, place, w->e)) return false;
    const size_t n = (size_t)x->t.n[0], width = (size_t)x->t.n[1], step = zmax(1, ((size_t)1 << 22) / width);
    for (size_t r = 0; r < n; r += step) {
        Mark mark = arena_mark(&w->j->layer);
        Tensor t = x->t;
        t.n[0] = (int)zmin(step, n - r);
        const uint64_t shape[2] = {(uint64_t)t.n[0], (uint64_t)width};
        StEntry rows = *s;
        rows.shape = (uint64_t *)shape;
        rows.p += r * (s->bytes / n), rows.bytes = (size_t)t.n[0] * (s->bytes / n);
        t = arena_tensor(&w->j->layer, "rows", REAL, t.rank, t.n);
        const bool ok = st_read_part(&w->j->files.st, &rows, t, place, w->e) && gguf_put(&w->g, t, w->e);
        arena_release(&w->j->layer, mark);
        if (!ok) return false;
    }
    return true;
}

/* Two fields whose rows alternate by heads. */
static bool put_alternate(Work *w, const GgufItem *x) {
    Tensor in[2], out;
    for (int k = 0; k < 2; k++) {
        const GgufField *f = &w->field[x->part[k]];
        StPlace place;
        const StEntry *s = entry_of(w, f, &place);
        in[k] = arena_tensor(&w->j->layer, "from", REAL, f->t.rank, f->t.n);
        if (!st_read_part(&w->j->files.st, s, in[k], place, w->e)) return false;
    }
    out = arena_tensor(&w->j->layer, "to", REAL, 2, (const int[]){2 * in[0].n[0], in[0].n[1]});
    gguf_alternate(out, in[0], in[1], x->order == ROWS_BY_HEADS ? w->arch->gqa->heads : w->arch->gdn->heads);
    return gguf_put(&w->g, out, w->e);
}

static bool put_factors(Work *w, RowsOrder order) {
    const GqaCfg *c = w->arch->gqa;
    const Numbers *given = order == ROWS_LONG ? &c->rope.long_factor : &c->rope.short_factor;
    const int n = c->table.n / 2;
    Tensor t = arena_tensor(&w->j->layer, "factors", REAL, 1, &n);
    for (int i = 0; i < n; i++) R(t)[i] = (real)(order == ROWS_FACTORS ? gguf_rope_factor(c, i) : given->v[i]);
    return gguf_put(&w->g, t, w->e);
}

static bool values_put(Work *w) {
    for (int i = 0; i < w->nitem; i++) {
        const GgufItem *x = &w->item[i];
        if (job_interrupted(w->e)) return false;
        Mark mark = arena_mark(&w->j->layer);
        const bool turn = x->order == ROWS_BY_HEADS || x->order == ROWS_BY_KEYS;
        bool ok = turn ? put_alternate(w, x) : x->nparts || put_factors(w, x->order);
        for (int k = 0; ok && !turn && k < x->nparts; k++) {
            const GgufField *f = &w->field[item_part(x, k)];
            const RowsOrder order = x->last && k == x->nparts - 1 ? x->last : x->order;
            ok = order == ROWS_SAME || ((order == ROWS_QUERIES || order == ROWS_KEYS) && !w->arch->turned)
                     ? put_rows(w, f)
                     : put_moved(w, f, order);
        }
        arena_release(&w->j->layer, mark);
        if (!ok) return false;
    }
    return true;
}

/* ---- the target -------------------------------------------------------------------------------------------------- */

static void note_add(Job *j, const char *text) {
    char *note = j->report->note;
    snprintf(note + strlen(note), sizeof j->report->note - strlen(note), "%s%s", *note ? "; " : "", text);
}

/* As gguf_recurrent_arch, by the model_type of the source; settings alone (--plan) have none. */
static bool recurrent_arch(GgufArch *a, const Job *j, Err *e) {
    if (!*j->src) return gguf_recurrent_arch(a, &j->a, NULL, e);
    char *path = xformat("%s/config.json", j->src);
    json_t *config = json_read(path, e);
    const bool fits =
        config && gguf_recurrent_arch(a, &j->a, json_string_value(json_object_get(config, "model_type")), e);
    json_decref(config);
    free(path);
    return fits;
}

static bool gguf_plan(Job *j, json_t *model, Err *e) {
    Cfg *c = j->cfg;
    (void)model; /* the layout stays */
    if (j->o->calib) return err_input(e, "--calib: --to gguf looks at no text; leave it out");
    const char *dense = gguf_dense(&j->a);
    const bool fits = gguf_recurrent(&j->a) ? recurrent_arch(&c->arch, j, e)
                      : dense               ? gguf_dense_arch(&c->arch, &j->a, dense, e)
                                            : gguf_arch(&c->arch, &j->a, e);
    if (!fits) return false;
    j->exact = j->moves = !c->arch.erf && !c->arch.eps && !c->arch.lengths && !c->arch.untruncated;
    snprintf(j->report->rule, sizeof j->report->rule, "gguf: architecture %s, dtype %s", c->arch.name,
             dtypes[c->dtype]);
    if (c->arch.eps) {
        char text[112];
        snprintf(text, sizeof text, "llama.cpp adds %g to squares of keys and latents, this model 1e-6",
                 j->a.cfg.norm_eps);
        note_add(j, text);
    }
    if (c->arch.lengths)
        note_add(j, "longrope: llama.cpp chooses its factors by the size of the context, this model by the text's");
    if (c->arch.untruncated)
        note_add(j, "yarn: llama.cpp rounds the limits to whole pairs, this model (rope.truncate false) does not");
    if (c->arch.erf) note_add(j, "llama.cpp computes gelu by tanh, this model by erf: up to 5e-4 apart");
    return true;
}

/* The last word of the source's path, as a name; nothing where it is no word or no UTF-8. */
static void name_put(Gguf *g, const char *src) {
    size_t n = strlen(src);
    while (n > 1 && src[n - 1] == '/') n--;
    size_t at = n;
    while (at > 0 && src[at - 1] != '/') at--;
    char *name = xformat("%.*s", (int)(n - at), src + at);
    json_t *valid = json_string(name);
    if (valid && *name && strcmp(name, ".") && strcmp(name, "..")) gguf_text(g, "general.name", name);
    json_decref(valid);
    free(name);
}

static bool keys_put(Work *w) {
    static const uint32_t kinds[] = {0, 0, 1, 32, 7}; /* llama.cpp's LLAMA_FTYPE, by our dtypes */
    Job *j = w->j;
    Gguf *g = &w->g;
    uint32_t kind = kinds[((Cfg *)j->cfg)->dtype];
    StPlace place;
    const StEntry *embed = hf_files_find(&j->files, "model.embed_tokens.weight", j->a.w.embed, &place);
    if (((Cfg *)j->cfg)->dtype == SOURCE_DTYPE)
        kind = !strcmp(embed->dtype, "F16") ? 1 : !strcmp(embed->dtype, "BF16") ? 32 : 0;
    const char *note;
    gguf_text(g, "general.architecture", w->arch->name);
    gguf_text(g, "general.type", "model");
    name_put(g, j->o->src);
    gguf_u32(g, "general.file_type", kind);
    if (kind == 7) gguf_u32(g, "general.quantization_version", 2);
    if (gguf_recurrent(&j->a))
        gguf_recurrent_keys(g, w->arch, &j->a);
    else
        gguf_arch_keys(g, w->arch, &j->a);
    gguf_dense_keys(g, w->arch, &j->a);
    if (!gguf_vocab(g, j->src, j->from.vocab, &note, w->e)) return false;
    if (note) note_add(j, note);
    return true;
}

static bool gguf_write(Job *j, Err *e) {
    Cfg *c = j->cfg;
    Work w = {.j = j, .arch = &c->arch, .e = e, .index = json_object()};
    ConvertReport *r = j->report;
    w.g.arch = c->arch.name;
    bool ok = keys_put(&w) && tensors_declare(&w);
    if (ok && w.narrow) {
        char text[96];
        snprintf(text, sizeof text, "%d tensors whose rows are no multiple of 32 are f16", w.narrow);
        note_add(j, text);
    }
    if (ok) {
        r->after = job_size(&j->a, w.params, (size_t)w.g.bytes);
        r->exact = j->exact && !w.rounds;
        static const char *const as[] = {"F32", "F32", "F16", "BF16", "Q8_0"}; /* by our dtypes */
        if (w.rounds && j->exact) snprintf(r->rounded, sizeof r->rounded, "%s", as[c->dtype]);
        ok = gguf_begin(&w.g, j->o->dst, e) && values_put(&w) && gguf_end(&w.g, e);
    }
    gguf_drop(&w.g);
    json_decref(w.index);
    free(w.field), free(w.item);
    return ok;
}

const Target gguf_target = {
    .name = "gguf",
    .exact = "dtype=source, or f32: lossless; narrower by its rounding; gelu by erf: approximate (llama.cpp has tanh)",
    .needs = "an architecture of llama.cpp ([below](#gguf)); a tokenizer that it has",
    .about = "one file for llama.cpp: DST is its name, such as model.gguf",
    .keys = keys,
    .cfg_size = sizeof(Cfg),
    .plan = gguf_plan,
    .write = gguf_write};
