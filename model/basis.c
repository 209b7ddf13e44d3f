/* basis.c: the directions of a model's rows, from a file that `kvsmith calibrate` wrote; what its files have in common:
 * model/basis.h has their formats. */
#include "basis.h"
#include "layers/cache/codec.h"
#include "model/files/safetensors.h"
#include "ops/checksum.h"

static const char *const part_words[2] = {"keys", "values"};
void basis_name(char out[BASIS_NAME], int layer, bool value, const char *what) {
    snprintf(out, BASIS_NAME, "layers.%d.%s.%s", layer, part_words[value], what);
}
bool basis_layer(const Model *m, int l) { return m->layer[l].owner && m->layer[l].rows.lanes; }

uint64_t basis_checksum(uint64_t h, const char *name, const void *p, size_t n) {
    return rng_mix(rng_mix(h, xxh64(name, strlen(name))), xxh64(p, n));
}

/* What a model must not have, whatever the file. */
bool basis_suits(const Model *m, const char *codec, Err *e) {
    bool any = false;
    if (device_apart(m->dev))
        return err_input(e, "--cache-dtype %s: no GPU kernel reads its rows; use --device cpu or another codec", codec);
    for (int l = 0; l < m->L; l++) {
        const KvShape *s = &m->layer[l].rows;
        if (!basis_layer(m, l)) continue;
        any = true;
        if (s->alias)
            return err_input(e,
                             "--cache-dtype %s: the rows of layer %d are latents, keys and values at once, which have "
                             "a low rank already; use another codec, such as int4",
                             codec, l);
        if (s->evicts || s->carry_rows)
            return err_input(e,
                             "--cache-dtype %s: layer %d merges or evicts rows, whose keys cannot be turned back by "
                             "one position; use another codec, such as int4",
                             codec, l);
        CHECK(s->kdim <= BASIS_WIDEST && s->vdim <= BASIS_WIDEST, "rows of %d and %d elements", s->kdim, s->vdim);
    }
    return any || err_input(e, "--cache-dtype %s: no layer of this model stores rows; leave it out", codec);
}
/* Whether n rows are orthonormal; a bound that float files hold, too. */
static bool basis_orthonormal(const double *v, int n, int width) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            double sum = 0;
            for (int k = 0; k < width; k++) sum += v[i * width + k] * v[j * width + k];
            if (!(fabs(sum - (i == j)) < 1e-5)) return false;
        }
    return true;
}
/* The same span by other directions: v (rank,width) becomes H v, H the discrete Hartley transform, which is orthogonal
 * and flat. Coefficients of the eigenvectors differ much in size, so one would decide the scale of all, and the error
 * of a large one would be all in its direction; mixed ones have about one size. */
static void basis_mix(double *v, int rank, int width) {
    const size_t r = (size_t)rank, w = (size_t)width;
    double *was = xcalloc(r * w, sizeof *was), *cas = xcalloc(r, sizeof *cas);
    memcpy(was, v, r * w * sizeof *was);
    for (size_t i = 0; i < r; i++) {
        const double angle = 2 * M_PI * (double)i / rank;
        cas[i] = cos(angle) + sin(angle);
    }
    for (size_t j = 0; j < r; j++)
        for (size_t k = 0; k < w; k++) {
            double sum = 0;
            for (size_t i = 0; i < r; i++) sum += cas[i * j % r] * was[i * w + k];
            v[j * w + k] = sum / sqrt(rank);
        }
    free(was), free(cas);
}
/* Heads of a group by the first dimension of a basis (groups,width,width), which are its groups; 1 where it fits no
 * groups of this layer. */
static int basis_heads(const KvShape *s, const StEntry *x) {
    const uint64_t groups = x->rank ? x->shape[0] : 0;
    if (!groups || (uint64_t)s->lanes % groups) return 1;
    const int heads = s->lanes / (int)groups;
    return (long)heads * imax(s->kdim, s->vdim) <= BASIS_WIDEST ? heads : 1;
}
/* The leading directions of a part of layer l, of groups as those of the keys, which are read first. */
static bool basis_read(const Model *m, int l, bool value, const St *st, RowBasis *b, Err *e) {
    const KvShape *s = &m->layer[l].rows;
    PartBasis *p = &b->part[value];
    char name[BASIS_NAME], shape[64];
    basis_name(name, l, value, "basis");
    const StEntry *x = st_find(st, name);
    if (!x)
        return err_input(e, "%.*s: %s is missing; this basis is of another model, run kvsmith calibrate", PATH_SHOWN,
                         st->path, name);
    if (!value) b->heads = basis_heads(s, x);
    const int groups = s->lanes / b->heads, part = value ? s->vdim : s->kdim, width = b->heads * part;
    const size_t w = (size_t)width, one = w * w;
    double *all = xcalloc((size_t)groups * one, sizeof *all);
    const Tensor t = TENSOR(all, F64, groups, width, width);
    bool ok = x->rank == 3 && x->shape[0] == (uint64_t)groups && x->shape[1] == w && x->shape[2] == w;
    if (!ok)
        err_input(e, "%.*s: %s: expected %s, got another shape; this basis is of another model, run kvsmith calibrate",
                  PATH_SHOWN, st->path, name, tensor_shape(t, shape));
    ok = ok && st_read(st, x, t, e);
    *p = (PartBasis){.rank = codec_rank(s->codec, part, value), .width = part};
    const size_t rank = (size_t)(b->heads * p->rank);
    if (ok) p->direction = xcalloc((size_t)groups * rank * w, sizeof *p->direction);
    for (size_t h = 0; ok && h < (size_t)groups; h++) {
        ok = basis_orthonormal(all + h * one, (int)rank, width) ||
             err_input(e, "%.*s: %s: the directions of %s %zu are not orthonormal; the file is damaged", PATH_SHOWN,
                       st->path, name, b->heads > 1 ? "group" : "head", h);
        if (ok && s->codec->bits < 32) basis_mix(all + h * one, (int)rank, width);
        for (size_t i = 0; i < rank * w; i++) p->direction[h * rank * w + i] = (real)all[h * one + i];
    }
    free(all);
    return ok;
}
const char *basis_meta(const St *st, const char *key) {
    const char *text = json_string_value(json_object_get(st->file[0].metadata, key));
    return text ? text : "";
}
bool basis_sound(const St *st, const char *kind, int tensors, int layers, Err *e) {
    char digits[17];
    uint64_t h = 0;
    if (strcmp(basis_meta(st, "kind"), kind) != 0)
        return err_input(e, "%.*s: not a basis that kvsmith calibrate wrote (kind '%.40s', expected %s)", PATH_SHOWN,
                         st->path, basis_meta(st, "kind"), kind);
    for (int i = 0; i < st->n; i++) h = basis_checksum(h, st->entry[i].name, st->entry[i].p, st->entry[i].bytes);
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)h);
    if (strcmp(basis_meta(st, "checksum"), digits) != 0)
        return err_input(e, "%.*s: the file is damaged: its checksum is not that of its content", PATH_SHOWN, st->path);
    return st->n == tensors ||
           err_input(e, "%.*s: expected %d tensors for the %d layers of this model, got %d; run kvsmith calibrate",
                     PATH_SHOWN, st->path, tensors, layers, st->n);
}
bool basis_leading(Model *m, const St *st, Err *e) {
    int layers = 0;
    for (int l = 0; l < m->L; l++) layers += basis_layer(m, l);
    if (!basis_sound(st, BASIS_FORMAT, layers * BASIS_TENSORS, layers, e)) return false;
    for (int l = 0; l < m->L; l++) {
        KvShape *s = &m->layer[l].rows;
        if (!basis_layer(m, l) || s->codec != m->opts.codec) continue;
        m->basis[l].lanes = s->lanes;
        for (int i = 0; i < 2; i++)
            if (!basis_read(m, l, i, st, &m->basis[l], e)) return false;
        if (m->basis[l].heads > 1 && policy_any(m->opts.policy))
            return err_input(e,
                             "--cache-dtype %s: in this basis %d heads share directions, whose rows stay together, and "
                             "--policy lets each head keep or read others; leave --policy out, or calibrate with "
                             "--heads 1",
                             s->codec->name, m->basis[l].heads);
        s->basis = &m->basis[l];
    }
    return true;
}
