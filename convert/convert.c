/* convert.c: the driver: everything is checked, then layer after layer goes over, then the result is compared. */
#include "job.h"
#include "model/cli.h"
#include "model/files/peft.h"
#include "folder.h"
#include "recipe.h"

/* ---- before anything is written ------------------------------------------------------------------------------------
 */

static const Target *target_find(const char *name, Err *e) {
    const char *names[32];
    int n = 0;
    for (; targets[n]; n++) {
        names[n] = targets[n]->name;
        if (!strcmp(name, names[n])) return targets[n];
    }
    char list[200] = "";
    for (int i = 0; i < n; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", names[i]);
    const char *near = NULL;
    for (int i = 0, best = 3; i < n; i++) {
        int d = name_distance(name, names[i]);
        if (d < best) best = d, near = names[i];
    }
    err_input(e,
              near ? "--to: unknown layout '%.40s'; did you mean %s?"
                   : "--to: unknown layout '%.40s'; expected one of %s",
              name, near ? near : list);
    return NULL;
}

static bool words_read(Job *j, Err *e) {
    Node *map = tree_json("{}", 2, "command line", e);
    bool ok = map != NULL;
    for (int i = 0; ok && i < j->o->nword; i++) ok = tree_override(map, j->o->word[i], e);
    ok = ok && schema_read(j->target->keys, map, "", NULL, j->cfg, e);
    tree_free(map);
    return ok;
}

/* The target's settings from the source's, by way of the text that both are written in. */
static bool plan(Job *j, Err *e) {
    char *text = model_cfg_json(&j->from);
    json_t *model = json_parse(text, strlen(text), "the model's settings", NULL, e);
    free(text);
    CHECK(model, "%s", e ? e->msg : "");
    bool ok = j->target->plan(j, model, e);
    text = ok ? json_dumps(model, JSON_COMPACT) : NULL;
    ok = ok && model_cfg_from_json(&j->to, text, strlen(text), "the converted model", e);
    free(text);
    json_decref(model);
    if (!ok || !model_open(&j->b, j->dev, &j->to, (ModelOpts){.dry = true}, e)) return false;
    hf_files_plan(&j->out, &j->to);
    return true;
}

/* Dtype of a target's tensor: that of the source's tensor of the same name, else of its neighbour. */
static Dtype stored_as(const Job *j, const char *name, unsigned flags) {
    static const Dtype floats[] = {F64, F32, BF16, F16};
    int layer = -1, used = 0;
    StPlace place;
    const Tensor any = TENSOR(NULL, REAL, 1, 1);
    bool there = !(j->from.tied && !strcmp(name, "lm_head.weight")); /* a copy in a tied model counts nothing */
    if (sscanf(name, "model.layers.%d.%n", &layer, &used) == 1)
        there = present(job_declared(&j->a, layer, name + used));
    const StEntry *s = there ? job_entry(j, name, any, &place) : NULL;
    if (!s && layer >= 0) {
        char *norm = xformat("model.layers.%d.input_layernorm.weight", layer);
        s = job_entry(j, norm, any, &place);
        free(norm);
    }
    if (!s) s = job_entry(j, "model.embed_tokens.weight", any, &place);
    Dtype as = j->as >= 0 ? (Dtype)j->as : F32;
    for (int i = 0; i < 4; i++)
        if (j->as < 0 && s && !strcmp(s->dtype, dtype_name(floats[i]))) as = floats[i];
    if (j->as < 0 && s && s->scale) as = st_scaled_as(s);
    return flags & FIELD_F32 && dtype_size(as) < 4 ? F32 : as;
}

typedef struct {
    Job *j;
    StList list;
    size_t bytes, params;
    bool f64;      /* all are stored so */
    int below_f32; /* a dtype narrower than the arithmetic's that tensors are stored as; -1: none */
} Laying;
static void lay_field(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Laying *y = f->ctx;
    Dtype as = stored_as(y->j, path, flags);
    char name[192];
    StPlace p = hf_files_name(&y->j->out, path, *t, name);
    if (st_is_first(p)) st_plan(&y->list, name, st_stored(*t, p), as);
    y->params += tensor_count(*t);
    y->bytes += tensor_count(*t) * dtype_size(as);
    if (dtype_size(as) < 4) y->below_f32 = (int)as;
    y->f64 &= as == F64;
}

/* ---- tensors -------------------------------------------------------------------------------------------------------
 */

typedef struct {
    Job *j;
    StOut *out;
    Err *e;
    bool failed;
} Writing;

/* Rows of a tensor that is there from its first row on, by its name among the model's fields. */
static bool convert_put(Writing *w, const char *path, size_t row, Tensor whole, Tensor t) {
    char name[192];
    StPlace p = hf_files_name(&w->j->out, path, whole, name);
    return st_out_part(w->out, name, row, t, p, w->e);
}

/* A tensor of the source as it is, or rounded, in pieces: the head of a large model is larger than a layer. */
static bool copy_tensor(Writing *w, const char *path, const char *from, Tensor shape, Dtype as) {
    Job *j = w->j;
    char name[192];
    StPlace p, q = hf_files_name(&j->out, path, shape, name);
    const StEntry *s = job_entry(j, from, shape, &p);
    CHECK(s, "%s: no such tensor in the source", from);
    if (!st_fits_part(&j->files.st, s, shape, p, w->e)) return false;
    bool whole = st_is_whole(p, shape.rank), rows = whole && shape.rank > 1;
    if (whole && st_is_whole(q, shape.rank) && !strcmp(s->dtype, dtype_name(as)) && !st_patched(&j->files.st, s))
        return st_out_raw(w->out, name, s->p, s->bytes, w->e);
    size_t n = (size_t)shape.n[0], width = tensor_count(shape) / n;
    size_t step = rows ? zmax(1, ((size_t)1 << 22) / zmax(1, width)) : n;
    uint64_t part[RANK_MAX];
    bool ok = true;
    for (size_t r = 0; ok && r < n; r += step) {
        Mark mark = arena_mark(&j->layer);
        StEntry some = *s;
        Tensor t = shape;
        t.n[0] = (int)zmin(step, n - r);
        for (int i = 0; rows && i < t.rank; i++) part[i] = (uint64_t)t.n[i];
        if (rows) some.shape = part, some.p += r * (s->bytes / n), some.bytes = (size_t)t.n[0] * (s->bytes / n);
        t = arena_tensor(&j->layer, path, REAL, t.rank, t.n);
        ok = st_read_part(&j->files.st, &some, t, p, w->e) && convert_put(w, path, r, shape, t);
        arena_release(&j->layer, mark);
    }
    return ok;
}

static void write_field(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Writing *w = f->ctx;
    Job *j = w->j;
    if (w->failed || job_interrupted(w->e)) {
        w->failed = true;
        return;
    }
    for (int i = 0; i < j->npiece; i++)
        if (j->piece[i].out && !strcmp(j->piece[i].name, path)) {
            w->failed = !convert_put(w, path, 0, *t, j->piece[i].t);
            return;
        }
    w->failed = !copy_tensor(w, path, path, *t, stored_as(j, path, flags));
}

/* Embedding, last norm and head. Ids beyond the source's get the mean row: n of them then have at most n in V + n of a
 * row's probability (Jensen's inequality), whatever the row. */
static bool write_table(Writing *w, const char *name, Tensor shape) {
    Job *j = w->j;
    bool head = !strcmp(name, "lm_head.weight");
    const char *from = head && j->from.tied ? "model.embed_tokens.weight" : name;
    Dtype as = stored_as(j, name, FIELD_TABLE);
    int V = j->from.vocab, d = shape.n[1];
    if (shape.n[0] == V && !(head && j->fold)) return copy_tensor(w, name, from, shape, as);
    StPlace place, at;
    const StEntry *s = job_entry(j, from, shape, &place), *norm = job_entry(j, "model.norm.weight", ABSENT, &at);
    Mark mark = arena_mark(&j->layer);
    Tensor row = arena_tensor(&j->layer, "row", REAL, 2, (int[]){1, d}),
           gain = arena_tensor(&j->layer, "gain", REAL, 1, &d);
    double *sum = arena_take(&j->layer, (size_t)d * sizeof *sum, "mean row");
    memset(sum, 0, (size_t)d * sizeof *sum);
    bool ok = st_read(&j->files.st, norm, gain, w->e);
    for (int r = 0; ok && r < shape.n[0]; r++) {
        uint64_t one[2] = {1, (uint64_t)d};
        StEntry some = *s;
        some.shape = one;
        if (r < V) some.p += (size_t)r * (s->bytes / (size_t)V), ok = st_read(&j->files.st, &some, row, w->e);
        for (int i = 0; ok && i < d; i++)
            if (r >= V)
                R(row)[i] = (real)(sum[i] / V);
            else if (head && j->fold)
                sum[i] += R(row)[i] *= R(gain)[i];
            else
                sum[i] += R(row)[i];
        ok = ok && convert_put(w, name, (size_t)r, shape, row) && !job_interrupted(w->e);
    }
    arena_release(&j->layer, mark);
    return ok;
}

/* The norm before the head, whose gain may be folded into it; learned positions. */
static void write_top(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Writing *w = f->ctx;
    Job *j = w->j;
    if (w->failed) return;
    if (!j->fold || strcmp(path, "model.norm.weight")) {
        w->failed = !copy_tensor(w, path, path, *t, stored_as(j, path, flags));
        return;
    }
    Mark mark = arena_mark(&j->layer);
    Tensor ones = arena_tensor(&j->layer, "ones", REAL, 1, t->n);
    for (int i = 0; i < t->n[0]; i++) R(ones)[i] = 1;
    w->failed = !convert_put(w, path, 0, *t, ones);
    arena_release(&j->layer, mark);
}

static void see_window(void *ctx, const FlowView *v) {
    Job *j = ctx;
    if (v->window < j->win.calib) j->target->see(j, v);
}

static bool write_layers(Job *j, StOut *out, Flow *flow, Err *e) {
    Writing w = {j, out, e, false};
    Weights shapes = j->b.w;
    Fields f = {.see = write_field, .ctx = &w};
    j->err = e;
    for (int l = 0, seen = 0; l < j->b.L; l++) {
        const int until = j->target->until ? j->target->until(j, l) : l;
        for (; flow && seen <= until; seen++)
            if (!flow_layer(flow, seen, j->calibrates ? see_window : NULL, j, e)) return false;
        if (!(j->target->layer ? j->target->layer(j, l, e) : true) || j->failed) return false;
        model_layer_fields(&j->b, l, &shapes, &f);
        job_layer_done(j);
        if (w.failed) return false;
    }
    Fields top = {.see = write_top, .ctx = &w};
    model_positions_field(&j->b, &shapes, &top);
    model_norm_fields(&j->b, &shapes, &top);
    return !w.failed && write_table(&w, "model.embed_tokens.weight", shapes.embed) &&
           (j->to.tied || write_table(&w, "lm_head.weight", shapes.head)) && !job_interrupted(e);
}

/* ---- the result ----------------------------------------------------------------------------------------------------
 */

/* Decides whether the difference is rounding: see convert.h. */
static bool convert_exact(Job *j, Flow *a, Err *e) {
    ConvertCheck *c = &j->report->check;
    Flow again;
    FlowScore s;
    if (!flow_open(&again, j->dev, &j->files, &j->from, &j->win, j->win.check, j->win.n, e)) return false;
    again.nudge = j->unit;
    bool ok = true;
    for (int l = 0; ok && l < again.m.L; l++) ok = !job_interrupted(e) && flow_layer(&again, l, NULL, NULL, e);
    ok = ok && flow_compare(a, &again, &s, e);
    j->report->memory = zmax(j->report->memory, a->memory + again.memory);
    flow_close(&again);
    if (!ok) return false;
    c->rounding = s.logit_diff;
    double most = flow_rounding(&s, j->unit);
    if (c->logit_diff <= most) return true;
    return err_runtime(e,
                       "the conversion should be lossless, but logits (up to %.3g) differ by %.3g; rounding alone "
                       "changes them by %.3g, and %.3g is allowed (%g times that); nothing was kept",
                       c->logit_max, c->logit_diff, c->rounding, most, CONVERT_MARGIN);
}

static bool convert_check(Job *j, const char *dir, Flow *a, Err *e) {
    ConvertCheck *c = &j->report->check;
    ModelCfg cfg;
    HfFiles files;
    Flow b;
    FlowScore s;
    if (!hf_config_read(dir, &cfg, e)) return false;
    bool ok = hf_check(dir, &cfg, e) && hf_files_open(&files, dir, &cfg, e);
    if (!ok) {
        model_cfg_free(&cfg);
        return false;
    }
    ok = flow_open(&b, j->dev, &files, &cfg, &j->win, j->win.check, j->win.n, e);
    if (ok) {
        for (int l = 0; ok && l < b.m.L; l++) ok = !job_interrupted(e) && flow_layer(&b, l, NULL, NULL, e);
        ok = ok && flow_compare(a, &b, &s, e);
        j->report->memory = zmax(j->report->memory, a->memory + b.memory);
        flow_close(&b);
    }
    hf_files_close(&files);
    model_cfg_free(&cfg);
    if (!ok) return false;
    *c = (ConvertCheck){.text = j->win.text,
                        .tokens = s.tokens,
                        .logit_diff = s.logit_diff,
                        .logit_max = s.logit_max,
                        .kl = s.kl,
                        .ppl_before = exp(s.nll_a),
                        .ppl_after = exp(s.nll_b),
                        .top1 = s.top1};
    return !j->report->exact || s.logit_diff == 0 || convert_exact(j, a, e);
}

/* The id that pads, which no model computes with and which other programs look for. */
static bool keep_pad(const char *src, const char *config, Err *e) {
    char *from = xformat("%s/config.json", src);
    json_t *a = json_read(from, e), *b = a ? json_read(config, e) : NULL, *pad = json_object_get(a, "pad_token_id");
    bool ok = b && (!json_is_integer(pad) || (!json_object_set(b, "pad_token_id", pad) && json_write(config, b, e)));
    json_decref(a);
    json_decref(b);
    free(from);
    return ok;
}

/* The result computes something else, beyond rounding of stored values, and the source can teach it: same ids. */
static bool convert_loses(const Job *j) {
    return !j->report->exact && !*j->report->rounded && j->to.vocab == j->from.vocab;
}

static bool write_all(Job *j, const char *tmp, Flow *flow, Laying *lay, Err *e) {
    StOut out;
    HfIds ids;
    char said[320];
    snprintf(said, sizeof said, "%s", j->report->rule);
    const char *meta[] = {"kvsmith_convert", said, NULL};
    if (!hf_ids_read(j->src, &ids, e) || !st_out_begin(&out, tmp, &lay->list, j->shard, meta, e)) return false;
    if (!write_layers(j, &out, flow, e)) {
        st_out_drop(&out);
        return false;
    }
    char *config = xformat("%s/config.json", tmp);
    bool ok = st_out_end(&out, e) &&
              hf_config_write(config, &j->to, &ids, stored_as(j, "model.embed_tokens.weight", 0), e) &&
              keep_pad(j->src, config, e) && folder_copy(j->src, tmp, e) &&
              recipe_write(tmp, &j->to, convert_loses(j) || j->retrofit.adapter ? j->src : NULL, &j->retrofit, e);
    free(config);
    return ok;
}

static size_t source_bytes(const Job *j) {
    size_t bytes = 0;
    for (int i = 0; i < j->files.st.n; i++) bytes += j->files.st.entry[i].bytes;
    return bytes;
}

static bool convert_file(Job *j, Err *e) {
    ConvertReport *r = j->report;
    r->before = job_size(&j->a, model_params(&j->a), source_bytes(j));
    r->memory = j->layer.size;
    r->foreign = true;
    return j->target->write(j, e);
}

static bool convert_go(Job *j, Err *e) {
    const ConvertOpts *o = j->o;
    ConvertReport *r = j->report;
    Laying lay = {.j = j, .f64 = true, .below_f32 = -1};
    Fields f = {.see = lay_field, .ctx = &lay};
    Weights w = j->b.w;
    Flow flow = {0};
    Folder folder;
    model_fields(&j->b, &w, &f);
    j->unit = flow_unit(lay.f64);
    r->before = job_size(&j->a, model_params(&j->a), source_bytes(j));
    r->after = job_size(&j->b, lay.params, lay.bytes);
    bool narrower = j->as >= 0 && lay.below_f32 >= 0; /* rounding that was asked for may change even what only moves */
    r->exact = j->exact && !(lay.below_f32 >= 0 && (!j->moves || narrower));
    if (j->exact && !r->exact) snprintf(r->rounded, sizeof r->rounded, "%s", dtype_name((Dtype)lay.below_f32));
    bool looks = j->calibrates || o->check_tokens;
    bool ok =
        !looks || flow_open(&flow, j->dev, &j->files, &j->from, &j->win, j->calibrates ? 0 : j->win.check, j->win.n, e);
    if (ok && (ok = folder_begin(o->dst, &folder, e))) {
        ok = write_all(j, folder.tmp, looks ? &flow : NULL, &lay, e);
        r->memory = zmax(r->memory, flow.memory + j->layer.size + j->work.size);
        ok = ok && (!o->check_tokens || convert_check(j, folder.tmp, &flow, e)) && !job_interrupted(e);
        ok = folder_end(&folder, o->dst, ok, e);
    }
    if (looks) flow_close(&flow);
    st_list_free(&lay.list);
    return ok;
}

/* Room for the tensors of the widest layer in both models, and for a piece of a table. */
static bool convert_room(Job *j, Err *e) {
    size_t most = 0, work = 0;
    for (int l = 0; l < j->b.L; l++) {
        Arena size = {.name = "layer"};
        Fields f = arena_placer(&size);
        Weights a = j->a.w, b = j->b.w;
        if (l < j->a.L) model_layer_fields(&j->a, l, &a, &f);
        model_layer_fields(&j->b, l, &b, &f);
        /* what several layers of the source come together in: see Target.layer */
        most = zmax(most, size.peak * (size_t)imax(1, j->together));
        if (j->target->memory) work = zmax(work, j->target->memory(j, l));
    }
    most += ((size_t)1 << 22) * sizeof(real) + 4 * (size_t)j->from.d_model * sizeof(double) + 65536;
    return arena_open(&j->layer, "tensors of a layer", most, false, e) &&
           arena_open(&j->work, "calibration", work, false, e);
}

bool convert_plan(const ConvertOpts *o, const ModelCfg *from, Device *dev, ConvertReport *r, ModelCfg *to, Err *e) {
    Job j = {.o = o, .dev = dev, .as = -1, .report = r, .err = e};
    *r = (ConvertReport){0};
    if (!(j.target = target_find(o->to, e))) return false;
    if (!strcmp(j.target->name, "same"))
        return err_input(e, "--plan: --to same has to read the tensors of a model directory; leave --plan out");
    j.cfg = xcalloc(1, zmax(1, j.target->cfg_size));
    char *text = model_cfg_json(from);
    bool ok = words_read(&j, e) && model_cfg_from_json(&j.from, text, strlen(text), "the model's settings", e) &&
              model_open(&j.a, dev, &j.from, (ModelOpts){.dry = true}, e) && plan(&j, e);
    if (ok) {
        r->exact = j.exact;
        r->before = job_size(&j.a, model_params(&j.a), 0);
        r->after = job_size(&j.b, model_params(&j.b), 0);
    }
    if (j.target->done) j.target->done(&j);
    if (j.a.dev) model_close(&j.a);
    if (j.b.dev) model_close(&j.b);
    hf_files_close(&j.out);
    model_cfg_free(&j.from);
    if (ok)
        *to = j.to;
    else
        model_cfg_free(&j.to);
    free(j.cfg);
    free(text);
    return ok;
}

bool convert_run(const ConvertOpts *o, Device *dev, ConvertReport *r, Err *e) {
    Job j = {.o = o, .dev = dev, .as = -1, .report = r, .err = e};
    double start = now_seconds();
    *r = (ConvertReport){0};
    j.layer.name = "tensors of a layer", j.work.name = "calibration";
    if (!(j.target = target_find(o->to, e)) || !folder_free(o->dst, e)) return false;
    j.cfg = xcalloc(1, zmax(1, j.target->cfg_size));
    bool ok = words_read(&j, e) &&
              (!o->adapter || !peft_is(o->src) ||
               err_input(e, "--adapter: SRC, %.120s, is an adapter itself; give its base, or that alone", o->src)) &&
              model_dir_resolve(o->src, j.src, e) && hf_config_read(j.src, &j.from, e);
    if (!ok) {
        free(j.cfg);
        return false;
    }
    bool opened = false;
    const char *adapter = o->adapter ? o->adapter : peft_path(o->src);
    ok = hf_check_with(j.src, adapter, &j.from, e) &&
         (opened = hf_files_open_with(&j.files, j.src, adapter, &j.from, e)) &&
         model_open(&j.a, dev, &j.from, (ModelOpts){.dry = true}, e) &&
         (j.target->write || (!o->calib && !o->check_tokens) ||
          windows_read(&j.win, j.src, &j.from, o->calib, o->context, o->calib ? o->calib_tokens : 0,
                       imax(1, o->check_tokens), e)) &&
         plan(&j, e) && convert_room(&j, e) && (j.target->write ? convert_file : convert_go)(&j, e);
    if (j.target->done) j.target->done(&j);
    job_layer_drop(&j);
    windows_free(&j.win);
    arena_close(&j.layer);
    arena_close(&j.work);
    if (j.a.dev) model_close(&j.a);
    if (j.b.dev) model_close(&j.b);
    if (opened) hf_files_close(&j.files);
    hf_files_close(&j.out);
    model_cfg_free(&j.from);
    model_cfg_free(&j.to);
    free(j.cfg);
    r->seconds = now_seconds() - start;
    return ok;
}
