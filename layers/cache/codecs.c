/* codecs.c: the table of codecs, and the text of --cache-dtype. */
#include "codec.h"

static const RowCodec *const codecs[] = {
    &codec_f32,  &codec_bf16, &codec_int8,  &codec_fp8,   &codec_int4,
    &codec_int3, &codec_int2, &codec_kivi4, &codec_kivi3, &codec_kivi2,
};
enum { CODECS = sizeof codecs / sizeof *codecs, WORD_MOST = 40 };

const RowCodec *codec_at(int i) { return i >= 0 && i < CODECS ? codecs[i] : NULL; }
const RowCodec *codec_find(const char *name) {
    for (int i = 0; i < CODECS; i++)
        if (!strcmp(codecs[i]->name, name)) return codecs[i];
    return NULL;
}
void codec_names(char out[CODEC_NAMES_MAX]) {
    int n = 0;
    for (int i = 0; i < CODECS; i++) {
        const char *between = i == 0 ? "" : i + 1 == CODECS ? " or " : ", ";
        n += snprintf(out + n, (size_t)(CODEC_NAMES_MAX - n), "%s%s", between, codecs[i]->name);
        CHECK(n < CODEC_NAMES_MAX, "names of %d codecs", CODECS);
    }
}

/* ---- settings ----------------------------------------------------------------------------------------------------*/

size_t codec_part_bytes(const RowCodec *c, int width) {
    return c->block ? c->piece_bytes(c, width) : c->bytes(c, width);
}
bool codec_rotates(const RowCodec *c) { return c->block || (c->as != ROWS_REAL && c->as != ROWS_BF16); }
static bool setting_take(RowCodec *c, const char *word, Err *e) {
    if (c->group && (!strcmp(word, "group=32") || !strcmp(word, "group=64"))) return c->group = atoi(word + 6), true;
    if (codec_rotates(c) && (!strcmp(word, "rotate=yes") || !strcmp(word, "rotate=no")))
        return c->rotate = word[7] == 'y', true;
    return err_input(e, "--cache-dtype %s: expected %s, got '%.*s'", c->name,
                     c->group           ? "group=32, group=64, rotate=yes or rotate=no"
                     : codec_rotates(c) ? "rotate=yes or rotate=no"
                                        : "no settings",
                     WORD_MOST, word);
}
bool codec_parse(const char *text, RowCodec *to, Err *e) {
    const size_t n = strcspn(text, ":");
    char names[CODEC_NAMES_MAX], *words = xformat("%s", text);
    words[n] = 0;
    const RowCodec *found = codec_find(words);
    bool ok = found != NULL;
    if (found) *to = *found;
    codec_names(names);
    if (!found) err_input(e, "--cache-dtype: expected %s, got '%.*s'", names, WORD_MOST, words);
    for (char *word = text[n] ? words + n + 1 : NULL, *next; ok && word; word = next) {
        if ((next = strchr(word, ','))) *next++ = 0;
        ok = setting_take(to, word, e);
    }
    free(words);
    return ok;
}
