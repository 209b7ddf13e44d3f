/* aqua.c: see aqua.h. */
#include "aqua.h"
#include "infer/basis_file.h"
#include "infer/predict.h"

static bool aqua_excused(const Err *e) {
    return e->status == EXIT_INPUT &&
           (strstr(e->msg, "latents") || strstr(e->msg, "merges or evicts rows") || strstr(e->msg, "has a window") ||
            strstr(e->msg, "expected equal ones") || strstr(e->msg, "no layer of this model stores rows"));
}
static void aqua_parse(PaluCase *c, const char *settings, const char *path) {
    Err e = {0};
    c->text = path ? xformat("aqua:basis=%s%s%s", path, *settings ? "," : "", settings)
                   : xformat("aqua%s%s", *settings ? ":" : "", settings);
    cr_assert(codec_parse(c->text, &c->codec, &e), "%s: %s", c->text, e.msg);
}
bool aqua_calibrate(int animal, int texts, const char *settings, const char *path, double *left) {
    PaluCase c, own = {0};
    Session s;
    Prediction p;
    Err e = {0};
    aqua_parse(&own, settings, NULL);
    palu_plain(&c, animal, (ModelOpts){0});
    palu_session(&s, &c, 1);
    const bool ok = prediction_open(&p, &s, &own.codec, (size_t)(texts * PALU_TOKENS), &e);
    cr_assert(ok || aqua_excused(&e), "%s: %s", zoo[animal].name, e.msg);
    while (ok && prediction_next(&p)) {
        for (int i = 0; i < texts; i++) {
            int tok[PALU_TOKENS];
            palu_text(tok, c.cfg.vocab, PALU_SEED(i));
            cr_assert(prediction_read(&p, &s, tok, PALU_TOKENS, &e), "%s", e.msg);
        }
        cr_assert(prediction_fit(&p, &e), "%s", e.msg);
    }
    if (ok) cr_assert(prediction_write(&p, 0, path, &e), "%s", e.msg);
    for (int l = 0; ok && left && l < c.m.L; l++)
        for (int i = 0; i < 2; i++) left[2 * l + i] = prediction_left(&p, l, i);
    prediction_close(&p);
    session_close(&s);
    palu_close(&c);
    free(own.text);
    return ok;
}
void aqua_open_file(PaluCase *c, int animal, const char *settings, const char *path, ModelOpts opts) {
    *c = (PaluCase){0};
    aqua_parse(c, settings, path);
    opts.codec = &c->codec;
    zoo_open(&zoo[animal], &c->cfg, &c->m, NULL, &c->dev, opts);
}
bool aqua_open(PaluCase *c, int animal, const char *settings, ModelOpts opts) {
    Err e = {0};
    char name[40];
    snprintf(name, sizeof name, "aqua-%d", animal);
    char *path = check_path(name);
    if (aqua_calibrate(animal, 3, settings, path, NULL)) {
        aqua_open_file(c, animal, settings, path, opts);
        c->path = path;
        return true;
    }
    *c = (PaluCase){0};
    aqua_parse(c, settings, path);
    opts.codec = &c->codec;
    cr_assert(model_cfg_from_json(&c->cfg, zoo[animal].json, strlen(zoo[animal].json), zoo[animal].name, &e), "%s",
              e.msg);
    cr_assert(device_open(&c->dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(!model_open(&c->m, c->dev, &c->cfg, opts, &e) && aqua_excused(&e), "%s: %s", zoo[animal].name, e.msg);
    device_close(c->dev);
    model_cfg_free(&c->cfg);
    free(path), free(c->text);
    return false;
}
void aqua_change(const char *from, const char *to, float (*change)(const char *name, size_t i, float x)) {
    St st;
    Err e = {0};
    cr_assert(st_open(&st, from, &e), "%s", e.msg);
    BasisFile f = basis_file(st.n);
    for (int t = 0; t < st.n; t++) {
        const StEntry *x = &st.entry[t];
        int shape[2] = {(int)x->shape[0], x->rank > 1 ? (int)x->shape[1] : 1};
        float *own = basis_file_add(&f, x->name, F32, x->rank, shape);
        memcpy(own, x->p, x->bytes);
        for (size_t i = 0; i < x->bytes / sizeof *own; i++) own[i] = change(x->name, i, own[i]);
    }
    cr_assert(basis_file_write(&f, to, PREDICTOR_FORMAT, 0, 1, NULL, &e), "%s", e.msg);
    basis_file_free(&f);
    st_close(&st);
}
