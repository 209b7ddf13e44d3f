/* data_spec.c: converts data.* to a StreamSpec, and opens the tokenizer that the settings name. */
#include "data_spec.h"
#include "model/files/model_dir.h"
#include "ops/file.h"
#include <sys/stat.h>

void data_spec(const DataCfg *d, DataSpec *s) {
    bool weights = d->ntrain && d->train[0].weight > 0;
    *s = (DataSpec){.spec = {.ntrain = d->ntrain,
                             .train = s->path,
                             .weight = weights ? s->weight : NULL,
                             .val = d->val,
                             .val_fraction = d->val_fraction,
                             .separator = d->separator,
                             .lift = d->encoding == ENCODING_BYTES ? NULL : "data.encoding=bytes",
                             .seq_len = d->seq_len}};
    for (int i = 0; i < d->ntrain; i++) s->path[i] = d->train[i].path, s->weight[i] = d->train[i].weight;
}

/* The tokenizer's place; for a run folder that of its checkpoint. */
static const char *tokenizer_place(const DataCfg *d, char dir[4096], Err *e) {
    struct stat st;
    Err why = {0};
    if (!file_look(d->tokenizer, &st, e)) return d->tokenizer_copy && *d->tokenizer ? d->tokenizer_copy : d->tokenizer;
    char *path = S_ISDIR(st.st_mode) ? tokenizer_file(d->tokenizer, e) : NULL;
    bool run = S_ISDIR(st.st_mode) && !path && !e->status && model_dir_resolve(d->tokenizer, dir, &why);
    free(path);
    if (why.status == EXIT_RUNTIME) *e = why; /* no model: the reader of tokenizers says what is missing */
    return run ? dir : d->tokenizer;
}

bool data_tokenizer(const DataCfg *d, Tokenizer *t, Err *e) {
    Err why = {0};
    char dir[4096];
    bool byte = !*d->tokenizer || !strcmp(d->tokenizer, "byte");
    const char *place = byte ? d->tokenizer : tokenizer_place(d, dir, &why);
    if (why.status || !tokenizer_open(t, place, d->eot, &why)) {
        if (why.status == EXIT_RUNTIME || !strncmp(why.msg, "data.", 5)) {
            *e = why;
            return false;
        }
        return err_input(e, "data.tokenizer: %.280s", why.msg);
    }
    if (t->eot >= 0) return true;
    tokenizer_close(t);
    return err_input(e, "data.eot: the tokenizer %.150s names no end-of-text token; give the name of one or its id",
                     d->tokenizer);
}
