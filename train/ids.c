/* ids.c: see ids.h. */
#include "ids.h"
#include "model/files/hf.h"

bool ids_fit(const char *dir, const ModelCfg *to, const Tokenizer *tok, Err *e) {
    ModelCfg from = {0};
    Tokenizer its;
    bool ok = hf_config_read(dir, &from, e);
    if (ok && from.vocab != to->vocab)
        ok = err_input(e, "%s has a vocabulary of %d, model.vocab is %d", dir, from.vocab, to->vocab);
    if (ok && tok && (ok = tokenizer_open(&its, dir, NULL, e))) {
        char *a = tokenizer_json(&its), *b = tokenizer_json(tok);
        json_t *x = json_parse(a, strlen(a), dir, NULL, NULL), *y = json_parse(b, strlen(b), dir, NULL, NULL);
        ok = json_equal(x, y) ||
             err_input(e, "%s: its tokenizer differs from the tokenizer that data.tokenizer names", dir);
        json_decref(x);
        json_decref(y);
        free(a);
        free(b);
        tokenizer_close(&its);
    }
    model_cfg_free(&from);
    return ok;
}
