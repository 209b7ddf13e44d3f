/* codecs.c: the table of codecs, and the text of --cache-dtype. */
#include "aqua.h"
#include "codec.h"

static const RowCodec *const codecs[] = {
    &codec_f32,      &codec_bf16,     &codec_int8,  &codec_fp8,       &codec_int4,     &codec_int3,
    &codec_int2,     &codec_kivi4,    &codec_kivi3, &codec_kivi2,     &codec_kvquant4, &codec_kvquant3,
    &codec_kvquant2, &codec_zipcache, &codec_palu,  &codec_minicache, &codec_aqua,
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
    if (c->rank > 0) /* as above */
        return (c->bytes(c, codec_rank(c, width, false)) + c->bytes(c, codec_rank(c, width, true)) + 1) / 2;
    if (c->block_bytes) { /* of a key and a value on average; rounded up */
        const size_t parts = 2 * (size_t)c->block;
        return (c->block_bytes(c, width, width) + parts - 1) / parts;
    }
    return c->block ? c->piece_bytes(c, width) : c->bytes(c, width);
}
bool codec_calibrated(const RowCodec *c) { return c->rank > 0 || c->predicts; }
bool codec_rotates(const RowCodec *c) {
    return !c->levels && !c->salient_bits && !c->merges && !(c->rank > 0) && !c->predicts &&
           (c->block || (c->as != ROWS_REAL && c->as != ROWS_BF16));
}
/* Settings that are yes or no, and their places in a RowCodec. */
enum { FLAGS = 4 };
static const struct {
    const char *key;
    size_t at;
} flags[FLAGS] = {{"rotate", offsetof(RowCodec, rotate)},
                  {"apart", offsetof(RowCodec, apart)},
                  {"turned", offsetof(RowCodec, turned)},
                  {"pairs", offsetof(RowCodec, pairs)}};
static bool flag_known(const RowCodec *c, int i) {
    return i == 0 ? codec_rotates(c) : i < 3 ? c->levels != NULL : c->predicts;
}
/* Settings of a codec with salient rows that are numbers: whole ones, and one that is not. */
enum { NUMBERS = 3 };
static const struct {
    const char *key;
    size_t at;
    int least, most;
} numbers[NUMBERS] = {{"bits", offsetof(RowCodec, bits), 2, 4},
                      {"salient_bits", offsetof(RowCodec, salient_bits), 2, 4},
                      {"probes", offsetof(RowCodec, probes), 1, 64}};
static const char numbers_known[] = "bits=2..4, salient_bits=2..4, probes=1..64, share=0..1";
static bool setting_number(RowCodec *c, const char *word) {
    const char *value = strchr(word, '=');
    char *end;
    if (!c->salient_bits || !value || !(value[1] >= '0' && value[1] <= '9')) return false;
    const size_t n = (size_t)(value - word);
    const double x = strtod(value + 1, &end);
    if (*end) return false;
    if (n == 5 && !strncmp(word, "share", n)) return x >= 0 && x <= 1 ? c->share = x, true : false;
    for (int i = 0; i < NUMBERS; i++) {
        if (n != strlen(numbers[i].key) || strncmp(word, numbers[i].key, n)) continue;
        if (!(x >= numbers[i].least && x <= numbers[i].most) || x != floor(x)) return false;
        return *(int *)((char *)c + numbers[i].at) = (int)x, true;
    }
    return false;
}
/* value: of a word NAME=VALUE; a number from 0 on. */
static bool setting_value(const char *value, double *x) {
    char *end;
    *x = *value >= '0' && *value <= '9' ? strtod(value, &end) : -1;
    return *x >= 0 && !*end;
}
/* The bits of an element: a power of 2 from 4 on, or one of those below that are known. */
static bool setting_bits(RowCodec *c, double x, int least) {
    for (int bits = least; bits <= 32; bits = bits < 4 ? bits + 1 : 2 * bits)
        if (x == bits) return c->bits = bits, true;
    return false;
}
/* Settings of a codec with a file. `at`: the same word in the text that is kept. */
static const char rank_known[] = "basis=FILE, rank=0..1, value_rank=0..1, bits=32|16|8|4|3|2, group=32|64";
static const char predicts_known[] = "basis=FILE, bits=4|3|2, group=32|64, recent=0|64|128";
static bool setting_rank(RowCodec *c, const char *word, const char *at) {
    const char *value = strchr(word, '=');
    double x;
    if (!codec_calibrated(c) || !value++ || !*value) return false;
    const size_t n = (size_t)(value - word);
    if (!strncmp(word, "basis=", n)) return c->basis = at + n, c->basis_n = (int)strlen(value), true;
    if (!setting_value(value, &x)) return false;
    if (c->predicts && !strncmp(word, "recent=", n))
        return x == 0 || x == 64 || x == 128 ? codec_aqua_recent(c, (int)x), true : false;
    if (c->predicts) return !strncmp(word, "bits=", n) && (x == 2 || x == 3 || x == 4) ? c->bits = (int)x, true : false;
    if (!strncmp(word, "rank=", n)) return x > 0 && x <= 1 ? c->rank = x, true : false;
    if (!strncmp(word, "value_rank=", n)) return x > 0 && x <= 1 ? c->value_rank = x, true : false;
    return !strncmp(word, "bits=", n) && setting_bits(c, x, 2);
}
/* Settings of a codec that merges rows of two layers. */
static const char merged_known[] = "from=0..1, t=0..1, apart=0..1, bits=32|16|8|4, group=32|64";
static bool setting_merged(RowCodec *c, const char *word) {
    const char *value = strchr(word, '=');
    double x;
    if (!c->merges || !value++ || !setting_value(value, &x)) return false;
    const size_t n = (size_t)(value - word);
    if (!strncmp(word, "bits=", n)) return setting_bits(c, x, 4);
    double *const to = !strncmp(word, "from=", n)    ? &c->from
                       : !strncmp(word, "t=", n)     ? &c->toward
                       : !strncmp(word, "apart=", n) ? &c->share
                                                     : NULL;
    if (!to || x > 1) return false;
    *to = x;
    return true;
}
static bool settings_fit(const RowCodec *c, Err *e) {
    if (!c->salient_bits || c->salient_bits > c->bits) return true;
    return err_input(e, "--cache-dtype %s: expected more salient_bits than bits, got %d and %d", c->name,
                     c->salient_bits, c->bits);
}

void codec_settings(const RowCodec *c, char between, char out[CODEC_TEXT_MAX]) {
    if (c->salient_bits) {
        snprintf(out, CODEC_TEXT_MAX, "bits=%d%csalient_bits=%d%cshare=%.9g%cprobes=%d", c->bits, between,
                 c->salient_bits, between, c->share, between, c->probes);
        return;
    }
    int n = c->group ? snprintf(out, CODEC_TEXT_MAX, "group=%d", c->group) : 0;
    out[n] = 0;
    if (c->rank > 0)
        snprintf(out + n, CODEC_TEXT_MAX - (size_t)n, "%crank=%.9g%cvalue_rank=%.9g%cbits=%d", between, c->rank,
                 between, c->value_rank > 0 ? c->value_rank : c->rank, between, c->bits);
    if (c->merges)
        snprintf(out + n, CODEC_TEXT_MAX - (size_t)n, "%cfrom=%.9g%ct=%.9g%capart=%.9g%cbits=%d", between, c->from,
                 between, c->toward, between, c->share, between, c->bits);
    if (c->predicts)
        n += snprintf(out + n, CODEC_TEXT_MAX - (size_t)n, "%cbits=%d%crecent=%d", between, c->bits, between, c->block);
    for (int i = 0; i < FLAGS; i++) {
        const bool yes = *(const bool *)((const char *)c + flags[i].at);
        if (!flag_known(c, i)) continue;
        if (n) out[n++] = between;
        n += snprintf(out + n, CODEC_TEXT_MAX - (size_t)n, "%s=%s", flags[i].key, yes ? "yes" : "no");
    }
}
static bool setting_flag(RowCodec *c, int i, const char *word) {
    const size_t n = strlen(flags[i].key);
    if (!flag_known(c, i) || strncmp(word, flags[i].key, n) || word[n] != '=') return false;
    if (strcmp(word + n + 1, "yes") && strcmp(word + n + 1, "no")) return false;
    *(bool *)((char *)c + flags[i].at) = word[n + 1] == 'y';
    return true;
}
static bool setting_take(RowCodec *c, const char *word, const char *at, Err *e) {
    char known[CODEC_TEXT_MAX] = "";
    int n = 0;
    if (setting_rank(c, word, at) || setting_merged(c, word)) return true;
    if (c->group && (!strcmp(word, "group=32") || !strcmp(word, "group=64"))) return c->group = atoi(word + 6), true;
    if (setting_number(c, word)) return true;
    if (c->salient_bits) n = snprintf(known, sizeof known, "%s", numbers_known);
    if (c->group) n = snprintf(known, sizeof known, "group=32, group=64");
    if (codec_calibrated(c)) n = snprintf(known, sizeof known, "%s", c->predicts ? predicts_known : rank_known);
    if (c->merges) n = snprintf(known, sizeof known, "%s", merged_known);
    for (int i = 0; i < FLAGS; i++) {
        if (setting_flag(c, i, word)) return true;
        if (flag_known(c, i))
            n += snprintf(known + n, sizeof known - (size_t)n, "%s%s=yes or %s=no", n ? ", " : "", flags[i].key,
                          flags[i].key);
    }
    return err_input(e, "--cache-dtype %s: expected %s, got '%.*s'", c->name, n ? known : "no settings", WORD_MOST,
                     word);
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
        ok = setting_take(to, word, text + (word - words), e);
    }
    ok = ok && settings_fit(to, e);
    free(words);
    return ok;
}
