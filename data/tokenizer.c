/* tokenizer.c: the byte tokenizer and its tokenizer.json. */
#include "tokenizer.h"
#include "../ops/file.h"

static const char EOT_TEXT[] = "<|endoftext|>";

Tokenizer tokenizer_byte(void) {
    Tokenizer t = {.vocab = TOKENIZER_VOCAB, .eot = TOKENIZER_EOT};
    for (int i = 0; i < 256; i++) t.byte[i] = (unsigned char)i;
    return t;
}

size_t tokenizer_encode(const Tokenizer *t, const void *text, size_t n, int *ids) {
    const unsigned char *s = text;
    (void)t;
    for (size_t i = 0; i < n; i++) ids[i] = s[i];
    return n;
}

const char *tokenizer_decode(const Tokenizer *t, int id, size_t *n) {
    CHECK(id >= 0 && id < t->vocab, "id %d of %d", id, t->vocab);
    *n = id == t->eot ? sizeof EOT_TEXT - 1 : 1;
    return id == t->eot ? EOT_TEXT : (const char *)&t->byte[id];
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* The character that stands for each byte: printable Latin-1 stands for itself, the other 68 bytes in order for U+0100
 * and up. Every character is of one or two UTF-8 bytes. */
typedef struct {
    char utf8[3];
} ByteChar;
static void byte_chars(ByteChar c[256]) {
    int next = 0x100;
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        int u = itself ? b : next++;
        c[b] = u < 0x80 ? (ByteChar){{(char)u}} : (ByteChar){{(char)(0xC0 | u >> 6), (char)(0x80 | (u & 0x3F))}};
    }
}

static json_t *need(json_t *j) {
    CHECK(j, "building JSON failed");
    return j;
}

char *tokenizer_json(const Tokenizer *t) {
    ByteChar c[256];
    byte_chars(c);
    json_t *vocab = need(json_object());
    for (int b = 0; b < 256; b++) json_object_set_new(vocab, c[b].utf8, need(json_integer(b)));
    /* Keys, order and values are those that the tokenizers library writes; the decoder's three mean nothing to it. */
    json_t *j = need(json_pack(
        "{ss sn sn s[{si ss sb sb sb sb sb}] sn s{ss sb sb sb} sn s{ss sb sb sb} s{ss sn sn sn sn sb sb sb so s[]}}",
        "version", "1.0", "truncation", "padding", "added_tokens", "id", t->eot, "content", EOT_TEXT, "single_word", 0,
        "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1, "normalizer", "pre_tokenizer", "type", "ByteLevel",
        "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 0, "post_processor", "decoder", "type", "ByteLevel",
        "add_prefix_space", 1, "trim_offsets", 1, "use_regex", 1, "model", "type", "BPE", "dropout", "unk_token",
        "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", 0,
        "vocab", vocab, "merges"));
    char *body = json_dumps(j, JSON_INDENT(2));
    CHECK(body, "writing JSON failed");
    char *text = xformat("%s\n", body);
    free(body);
    json_decref(j);
    return text;
}

static bool only_byte(Err *e, const char *where, const char *found) {
    return err_input(e, "%s: only the byte tokenizer (256 byte tokens, no merges, %s = %d) is supported; found %s",
                     where, EOT_TEXT, TOKENIZER_EOT, found);
}

/* null, missing, or (accept != NULL) an object of that type. */
static bool absent_or(const json_t *j, const char *accept) {
    if (!j || json_is_null(j)) return true;
    const char *type = json_string_value(json_object_get(j, "type"));
    return accept && type && !strcmp(type, accept);
}

/* What differs from the byte tokenizer, into found; true when nothing does. */
static bool is_byte(const json_t *root, char found[160]) {
    const size_t room = 160;
    const json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges"), *added = json_object_get(root, "added_tokens");
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!json_is_object(model) || !type) return snprintf(found, room, "no model.type"), false;
    if (strcmp(type, "BPE")) return snprintf(found, room, "a %.40s model", type), false;
    if (!json_is_object(vocab)) return snprintf(found, room, "no model.vocab"), false;
    size_t nvocab = json_object_size(vocab), nmerge = json_array_size(merges);
    if (!json_is_array(merges)) return snprintf(found, room, "no list model.merges"), false;
    if (nvocab != 256 || nmerge)
        return snprintf(found, room, "a BPE vocabulary of %zu tokens with %zu merges", nvocab, nmerge), false;

    ByteChar c[256];
    byte_chars(c);
    for (int b = 0; b < 256; b++) {
        const json_t *id = json_object_get(vocab, c[b].utf8);
        if (!id) return snprintf(found, room, "no token for byte %d", b), false;
        if (!json_is_integer(id) || json_integer_value(id) != b)
            return snprintf(found, room, "another id for the token of byte %d", b), false;
    }
    static const char *const plain[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (!absent_or(json_object_get(model, plain[i]), NULL))
            return snprintf(found, room, "model.%s", plain[i]), false;

    const json_t *eot = json_array_get(added, 0);
    const char *content = json_string_value(json_object_get(eot, "content"));
    const json_t *id = json_object_get(eot, "id");
    if (!json_is_array(added) || json_array_size(added) != 1)
        return snprintf(found, room, "%zu added tokens", json_array_size(added)), false;
    if (!content || !json_is_integer(id)) return snprintf(found, room, "an added token without content or id"), false;
    if (strcmp(content, EOT_TEXT) || json_integer_value(id) != TOKENIZER_EOT)
        return snprintf(found, room, "added token %.40s = %lld", content, (long long)json_integer_value(id)), false;

    const json_t *pre = json_object_get(root, "pre_tokenizer");
    if (!absent_or(json_object_get(root, "normalizer"), NULL)) return snprintf(found, room, "a normalizer"), false;
    if (!absent_or(json_object_get(root, "post_processor"), "ByteLevel"))
        return snprintf(found, room, "a post_processor that is not ByteLevel"), false;
    if (!json_is_object(pre) || !absent_or(pre, "ByteLevel"))
        return snprintf(found, room, "a pre_tokenizer that is not ByteLevel"), false;
    if (!json_is_false(json_object_get(pre, "add_prefix_space")))
        return snprintf(found, room, "a pre_tokenizer whose add_prefix_space is not false"), false;
    return true;
}

bool tokenizer_parse(Tokenizer *t, const char *json, size_t n, const char *where, Err *e) {
    if (n > TOKENIZER_FILE_MAX) {
        char found[64];
        snprintf(found, sizeof found, "a file of %zu bytes", n);
        return only_byte(e, where, found);
    }
    json_error_t why;
    json_t *root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &why);
    if (!root) return err_input(e, "%s: not a tokenizer.json: line %d: %s", where, why.line, why.text);
    char found[160];
    bool ok = is_byte(root, found);
    json_decref(root);
    if (!ok) return only_byte(e, where, found);
    *t = tokenizer_byte();
    return true;
}

bool tokenizer_load(Tokenizer *t, const char *path, Err *e) {
    FileMap m;
    if (!file_map(&m, path, e)) return false;
    bool ok = tokenizer_parse(t, (const char *)m.p, m.n, path, e);
    file_unmap(&m);
    return ok;
}

char *tokenizer_config_json(const Tokenizer *t) {
    size_t n;
    const char *eot = tokenizer_decode(t, t->eot, &n);
    return xformat(
        "{\n  \"bos_token\": \"%.*s\",\n  \"clean_up_tokenization_spaces\": false,\n  \"eos_token\": \"%.*s\",\n"
        "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n",
        (int)n, eot, (int)n, eot);
}
