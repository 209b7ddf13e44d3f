/* tokenizer_open.c: opens the tokenizer that a setting or option names. */
#include <sys/stat.h>
#include "ops/file.h"
#include "ops/text.h"
#include "tok_model.h"

char *tokenizer_file(const char *dir, Err *e) {
    static const char *const names[] = {"tokenizer.json", "tokenizer.model"};
    e->status = 0;
    for (int i = 0; !e->status && i < 2; i++)
        if (file_exists(dir, names[i], e)) return xformat("%s/%s", dir, names[i]);
    for (int i = 0; !e->status && tiktoken_name(i); i++)
        if (file_exists(dir, tiktoken_name(i), e)) return xformat("%s/%s", dir, tiktoken_name(i));
    return !e->status && file_exists(dir, "encoder.json", e) ? xformat("%s/encoder.json", dir) : NULL;
}

static bool ends_with(const char *s, const char *end) {
    return strlen(s) >= strlen(end) && !strcmp(s + strlen(s) - strlen(end), end);
}
/* A tiktoken file and the tokenizer_config.json next to it. */
static bool open_tiktoken(Tokenizer *t, const char *dir, const char *path, const FileMap *m, Err *e) {
    const char *slash = strrchr(path, '/');
    json_t *config = NULL;
    if (file_exists(dir, "tokenizer_config.json", e)) {
        char *at = xformat("%s/tokenizer_config.json", dir);
        config = json_read(at, e);
        free(at);
    }
    bool ok = !e->status && tokenizer_parse_tiktoken(t, slash ? slash + 1 : path, m->p, m->n, config, path, e);
    json_decref(config);
    return ok;
}
static bool open_file(Tokenizer *t, const char *path, Err *e) {
    const char *slash = strrchr(path, '/');
    const bool gpt2 = !strcmp(slash ? slash + 1 : path, "encoder.json"), model = ends_with(path, ".model");
    char *dir = slash ? xformat("%.*s", (int)imax((int)(slash - path), 1), path) : xstrdup(".");
    bool ok;
    FileMap m;
    if (gpt2) {
        ok = tokenizer_load_gpt2(t, dir, e);
    } else if (!model && !ends_with(path, ".tiktoken")) {
        ok = tokenizer_load(t, path, e);
    } else if ((ok = file_map(&m, path, e))) {
        const bool spm = model && m.n && *(const char *)m.p == 0x0A; /* a SentencePiece model begins with a piece */
        ok = spm ? tokenizer_parse_spm(t, m.p, m.n, path, e) : open_tiktoken(t, dir, path, &m, e);
        file_unmap(&m);
    }
    free(dir);
    return ok;
}

static bool tokenizer_open_load(Tokenizer *t, const char *name, Err *e) {
    struct stat st;
    if (!*name || !strcmp(name, "byte")) {
        *t = tokenizer_byte();
        return true;
    }
    char hub[200];
    const bool there = file_look(name, &st, e);
    if (e->status) return false;
    if (!there && *hub_text(name, "tokenizer.json", hub))
        return err_input(e, "cannot open %s: no such file%s", name, hub);
    if (!there || !S_ISDIR(st.st_mode)) return open_file(t, name, e);
    char *path = tokenizer_file(name, e);
    bool ok = path && open_file(t, path, e);
    free(path);
    if (ok || e->status) return ok;
    return err_input(e,
                     "%s: no tokenizer.json in it, nor tokenizer.model, a tiktoken file of a known name, or GPT-2's "
                     "encoder.json and vocab.bpe",
                     name);
}

/* The id that `eot` names: a number, or a token that the file lists as added. */
static bool choose_eot(Tokenizer *t, const char *name, const char *eot, Err *e) {
    char *end;
    if (!*eot) return true;
    long long id = eot[strspn(eot, "0123456789")] || strlen(eot) > 9 ? tokenizer_find(t, eot) : strtoll(eot, &end, 10);
    if (id < 0 || id >= t->vocab)
        return err_input(e, "data.eot: '%.60s' is neither an added token of the tokenizer %.120s nor an id below %d",
                         eot, *name ? name : "byte", t->vocab);
    t->eot = (int)id;
    return true;
}

bool tokenizer_open(Tokenizer *t, const char *name, const char *eot, Err *e) {
    *t = (Tokenizer){.eot = -1, .bos = -1};
    if (!tokenizer_open_load(t, name, e)) return false;
    if (choose_eot(t, name, eot ? eot : "", e)) return true;
    tokenizer_close(t);
    return false;
}
