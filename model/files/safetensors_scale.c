/* safetensors_scale.c: which entries of a file are quantised, and where the scales of their blocks lie. */
#include "safetensors_scale.h"

/* The entry NAME without `end`, with `other` in its place; NULL: NAME does not end so, or there is none. */
static const StEntry *scale_partner(const St *st, const char *name, const char *end, const char *other) {
    const size_t n = strlen(name), k = strlen(end);
    if (n < k || strcmp(name + n - k, end)) return NULL;
    char *partner = xformat("%.*s%s", (int)(n - k), name, other);
    const StEntry *s = st_find(st, partner);
    free(partner);
    return s;
}
static bool scale_refused(const St *st, const StEntry *s, const StEntry *by, const char *what, Err *e) {
    return err_input(e, "%s: tensor \"%s\": quantised: %s%s%s", st->file[s->file].path, s->name, what, by ? " in " : "",
                     by ? by->name : "");
}
static uint64_t scale_blocks(uint64_t n, uint64_t each) { return n / each + (n % each > 0); }
static bool fp8_pair(const St *st, const StEntry *s, const StEntry *by, int rows, int cols, StScale *q, Err *e) {
    static const Dtype known[] = {F32, BF16};
    if (!by) return scale_refused(st, s, NULL, "there is no tensor of its name and _scale_inv", e);
    if (s->rank != 2 || by->rank != 2) return scale_refused(st, s, by, "expected a matrix, and one of scales", e);
    *q = (StScale){.code = s->p, .factor = by->p, .as = F64, .width = (size_t)s->shape[1]};
    q->rows = (size_t)rows, q->cols = (size_t)cols;
    q->across = scale_blocks(q->width, q->cols);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(by->dtype, dtype_name(known[i]))) q->as = known[i];
    if (q->as == F64) return scale_refused(st, s, by, "expected scales of F32 or BF16", e);
    const uint64_t down = scale_blocks(s->shape[0], q->rows);
    if (by->shape[0] == down && by->shape[1] == q->across) return true;
    return err_input(e,
                     "%s: tensor \"%s\": (%lu,%lu) in blocks of %d x %d: expected (%lu,%zu) scales, found (%lu,%lu) in "
                     "\"%s\"",
                     st->file[s->file].path, s->name, s->shape[0], s->shape[1], rows, cols, down, q->across,
                     by->shape[0], by->shape[1], by->name);
}
static bool mxfp4_pair(const St *st, StEntry *s, const StEntry *by, StScale *q, Err *e) {
    const int last = s->rank - 1;
    if (!by) return scale_refused(st, s, NULL, "there is no tensor of its name with _scales for _blocks", e);
    bool fits = s->rank >= 3 && by->rank == last && s->shape[last] == 16 && !strcmp(by->dtype, "U8");
    for (int i = 0; fits && i < last; i++) fits = by->shape[i] == s->shape[i];
    if (!fits)
        return scale_refused(st, s, by, "expected blocks of shape (..,G,16) and scales of shape (..,G), all U8,", e);
    const size_t across = (size_t)s->shape[last - 1];
    *q = (StScale){.code = s->p, .factor = by->p, .is_mxfp4 = true, .width = 32 * across, .rows = 1, .cols = 32};
    q->across = across;
    s->rank--;
    s->shape[last - 1] *= 32; /* the bytes are in memory, so it does not overflow */
    s->dtype = "F4";
    return true;
}
/* Take away the entries that are flagged. */
static void scale_drop(St *st, const bool *flag) {
    int kept = 0;
    for (int i = 0; i < st->n; i++) {
        if (flag[i]) {
            free(st->entry[i].name);
            free(st->entry[i].shape);
        } else {
            st->entry[kept++] = st->entry[i];
        }
    }
    st->n = kept;
}
static bool scale_pairs(St *st, bool is_mxfp4, int rows, int cols, Err *e) {
    const char *dtype = is_mxfp4 ? "U8" : "F8_E4M3", *end = is_mxfp4 ? "_blocks" : "",
               *other = is_mxfp4 ? "_scales" : "_scale_inv";
    bool *drop = xcalloc((size_t)st->n + 1, sizeof *drop), ok = true;
    st->scale = xcalloc((size_t)st->n + 1, sizeof *st->scale);
    for (int i = 0; ok && i < st->n; i++) {
        StEntry *s = &st->entry[i];
        const size_t n = strlen(s->name), k = strlen(end);
        if (strcmp(s->dtype, dtype) || n < k || strcmp(s->name + n - k, end)) continue;
        const StEntry *by = scale_partner(st, s->name, end, other);
        StScale *q = &st->scale[st->nscale++];
        ok = is_mxfp4 ? mxfp4_pair(st, s, by, q, e) : fp8_pair(st, s, by, rows, cols, q, e);
        if (!ok) break;
        s->scale = q;
        drop[by - st->entry] = true;
    }
    if (ok) scale_drop(st, drop);
    free(drop);
    return ok;
}
bool st_scale_fp8(St *st, int rows, int cols, Err *e) { return scale_pairs(st, false, rows, cols, e); }
bool st_scale_mxfp4(St *st, Err *e) { return scale_pairs(st, true, 0, 0, e); }
