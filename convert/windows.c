/* windows.c: the text that a conversion looks at, as windows of ids. */
#include "data/source.h"
#include "data/tokenizer.h"
#include "flow.h"

enum { BYTES = 32 }; /* of a token, at most: longer ones are few */

/* The text for a model whose user gave none: plain prose with names, numbers and repetition in it. */
static const char prose[] =
    "The harbour lay quiet when Marta came down to the boats. It was early in April, and the light on the water was "
    "grey, then silver, then gone behind a cloud. She had counted eleven boats the evening before; now there were "
    "nine. \"Somebody went out at night,\" said the old man who mended nets on the wall. \"Two boats, and neither "
    "carried a lamp.\" Marta looked at the sea for a long time. The wind came from the west, as it had for three "
    "days, and the ropes knocked against the masts, and a dog that nobody owned slept under the table where fish "
    "were sold on Saturdays.\n\n"
    "Her brother had taken one of the boats. She knew it before she found his coat gone from the door. He had said, "
    "more than once, that a man who can read the tide needs no lamp; but he was seventeen, and he had read the tide "
    "for only two summers. The second boat belonged to the schoolmaster, who taught sums and the names of rivers to "
    "thirty children in one room, and who was afraid of water.\n\n"
    "By noon the cloud had passed. The first boat came round the point with its sail down, and the second came "
    "behind it on a rope. \"He cannot row,\" her brother called across the water, \"but he can count. He counted the "
    "waves all night, and every seventh was the largest, so we turned on the sixth.\" The old man laughed and went "
    "back to his nets. Marta said nothing. She took the rope when it was thrown to her, made it fast to the ring in "
    "the wall, and counted the boats again: ten, eleven.\n";

/* The beginning of a text, documents of JSONL one after the other. */
typedef struct {
    Buf text;
    size_t most;
    bool enough;
} Beginning;
static bool begin_with(void *ctx, const char *s, size_t n, bool end, Err *e) {
    Beginning *b = ctx;
    (void)e;
    buf_put(&b->text, s, zmin(n, b->most - b->text.n));
    if (end && b->text.n < b->most) buf_put(&b->text, "\n", 1);
    return !(b->enough = b->text.n == b->most);
}

/* `most`: bytes of the text that are looked at, so that a text of any length will do. */
static bool windows_encode(const char *dir, const char *text, size_t most, Ids *ids, int vocab, bool *none, Err *e) {
    Tokenizer tk;
    Err why = {0};
    char *path = tokenizer_file(dir, &why);
    bool ok = path && tokenizer_open(&tk, path, NULL, &why);
    free(path);
    *none = !ok;
    if (!ok && why.status == EXIT_RUNTIME) {
        *e = why;
        return false;
    }
    if (!ok)
        return !text || err_input(e, "--calib: %.230s",
                                  why.status ? why.msg : "the source has no tokenizer to make ids of a text");
    Beginning b = {.most = most};
    SourceCfg c = {.sink = begin_with, .ctx = &b, .lift = ""};
    if (text) {
        c.jsonl_key = source_key(text);
        ok = source_read(&c, text, &why) || b.enough;
        if (!ok) err_input(e, "--calib: %.280s", why.msg), e->status = why.status;
        if (ok && !b.enough && !c.jsonl_key) b.text.n--; /* the end of a text that is one document */
    } else {
        buf_put(&b.text, prose, zmin(sizeof prose - 1, most));
    }
    if (ok && tk.eot >= 0) ids_push(ids, tk.eot);
    ok = ok && tokenizer_encode(&tk, b.text.n ? b.text.at : "", b.text.n, 0, ids, e);
    for (size_t i = 0; ok && i < ids->n; i++)
        if (ids->id[i] >= vocab)
            ok = err_input(e, "the tokenizer of %s: id %d, but the model's vocabulary is %d", dir, ids->id[i], vocab);
    buf_free(&b.text);
    tokenizer_close(&tk);
    return ok;
}

bool windows_read(Windows *w, const char *dir, const ModelCfg *cfg, const char *text, int context, int calib, int check,
                  Err *e) {
    Ids ids = {0};
    bool none;
    *w = (Windows){.T = imin(context, cfg->max_positions), .text = text ? "calibration" : "built-in"};
    if (!windows_encode(dir, text, ((size_t)calib + (size_t)check + (size_t)context) * BYTES, &ids, cfg->vocab, &none,
                        e)) {
        ids_free(&ids);
        return false;
    }
    if (none) {
        w->text = "random ids";
        w->T = imin(w->T, 64);
        for (int i = 0; i < w->T; i++) ids_push(&ids, (int)(rng_mix(0xCA11B, (uint64_t)i) % (uint64_t)cfg->vocab));
    }
    if (ids.n < 2) {
        ids_free(&ids);
        return err_input(e, "%s: a text of %zu tokens, at least 2 are needed", text ? text : dir, ids.n);
    }
    w->T = (int)zmin((size_t)w->T, ids.n);
    size_t n = zmin(ids.n / (size_t)w->T, (size_t)imax(1, (calib + check) / w->T));
    int want = imax(1, imin((int)((n + 3) / 4), check / w->T));
    w->n = (int)n;
    w->check = n > 1 ? w->n - want : 0;
    w->calib = n > 1 ? w->check : 1;
    w->id = xcalloc(n * (size_t)w->T, sizeof *w->id);
    memcpy(w->id, ids.id, n * (size_t)w->T * sizeof *w->id);
    ids_free(&ids);
    return true;
}
void windows_free(Windows *w) {
    free(w->id);
    *w = (Windows){0};
}
