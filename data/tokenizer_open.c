/* tokenizer_open.c: opens the tokenizer that a setting or option names. */
#include <sys/stat.h>
#include "ops/file.h"
#include "ops/text.h"
#include "tokenizer.h"

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
    if (!there || !S_ISDIR(st.st_mode)) return tokenizer_load(t, name, e);
    if (file_exists(name, "tokenizer.json", e)) {
        char *path = xformat("%s/tokenizer.json", name);
        bool ok = tokenizer_load(t, path, e);
        free(path);
        return ok;
    }
    if (!e->status && file_exists(name, "encoder.json", e)) return tokenizer_load_gpt2(t, name, e);
    return !e->status && err_input(e, "%s: no tokenizer.json in it, nor GPT-2's encoder.json and vocab.bpe", name);
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
