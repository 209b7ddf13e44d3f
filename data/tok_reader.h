/* tok_reader.h: what the readers of a tokenizer.json share. Private to data/. */
#pragma once
#include <jansson.h>
#include "tok_model.h"

typedef struct {
    const char *where;
    const json_t *root;
    Tokenizer *t;
    TokModel *m;
    bool bytes, fallback;                       /* byte level; byte fallback */
    bool show_blanks, show_bytes, show_cleanup; /* what the decoder does: U+2581, <0xNN>, blanks before punctuation */
    const char *show_prefix;                    /* the decoder of a WordPiece model: "##"; else NULL */
    Err *e;
} TokReader;

static inline const char *tok_text(const json_t *j, const char *key) {
    return json_string_value(json_object_get(j, key));
}
static inline bool tok_absent(const json_t *j) { return !j || json_is_null(j); }
static inline bool tok_truth(const json_t *j, const char *key, bool otherwise) {
    const json_t *v = json_object_get(j, key);
    return v && !json_is_null(v) ? json_is_true(v) : otherwise;
}
static inline const char *tok_type(const json_t *j) {
    const char *s = tok_text(j, "type");
    return s ? s : "one without a type";
}
static inline bool tok_unknown(const TokReader *r, const char *part, const char *found) {
    return err_input(r->e, "%s: %s: %.100s is not supported", r->where, part, found);
}

/* tokenizer_steps.c: reads normalizer, pre_tokenizer, post_processor and decoder. */
bool tok_read_steps(TokReader *);
/* Append what decoding shows of a token of the vocabulary. */
void tok_show(const TokReader *, const char *name, Buf *out);
int fallback_byte(const char *name); /* the value of a token <0xNN>; -1: another token */
