/* tokenizer_gpt2.c: converts GPT-2's pair of files to an equivalent tokenizer.json. */
#include "ops/file.h"
#include "tokenizer.h"

static const char EOT_TEXT[] = "<|endoftext|>";

/* The lines of vocab.bpe after the first, which names the version. */
static json_t *merges_read(const char *path, Err *e) {
    FileMap f;
    if (!file_map(&f, path, e)) return NULL;
    json_t *list = json_array();
    const char *s = (const char *)f.p, *end = s + f.n;
    bool ok = true;
    for (size_t line = 1; ok && s < end; line++) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        size_t n = (size_t)((stop ? stop : end) - s);
        bool comment = line == 1 && n >= 8 && !memcmp(s, "#version", 8);
        if (n && s[n - 1] == '\r') n--;
        if (n && !comment) {
            json_t *v = json_stringn(s, n);
            if (!v)
                ok = err_input(e, "%s:%zu: expected two tokens as UTF-8 text", path, line);
            else
                json_array_append_new(list, v);
        }
        s = stop ? stop + 1 : end;
    }
    file_unmap(&f);
    if (ok) return list;
    json_decref(list);
    return NULL;
}

bool tokenizer_load_gpt2(Tokenizer *t, const char *dir, Err *e) {
    char *encoder = xformat("%s/encoder.json", dir), *bpe = xformat("%s/vocab.bpe", dir);
    json_t *vocab = json_read(encoder, e), *merges = vocab ? merges_read(bpe, e) : NULL;
    bool ok = merges != NULL;
    const json_t *eot = json_object_get(vocab, EOT_TEXT);
    if (ok && !json_is_integer(eot)) ok = err_input(e, "%s: expected the token %s", encoder, EOT_TEXT);
    if (ok) {
        json_t *j = json_pack(
            "{ss sn sn s[{sO ss sb sb sb sb sb}] sn s{ss sb sb sb} sn s{ss sb sb sb} s{ss sn sn sn sn sb sb sb sO sO}}",
            "version", "1.0", "truncation", "padding", "added_tokens", "id", eot, "content", EOT_TEXT, "single_word", 0,
            "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1, "normalizer", "pre_tokenizer", "type", "ByteLevel",
            "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1, "post_processor", "decoder", "type", "ByteLevel",
            "add_prefix_space", 1, "trim_offsets", 1, "use_regex", 1, "model", "type", "BPE", "dropout", "unk_token",
            "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", 0,
            "vocab", vocab, "merges", merges);
        CHECK(j, "building JSON failed");
        char *text = json_dumps(j, JSON_INDENT(2));
        CHECK(text, "writing JSON failed");
        ok = tokenizer_parse(t, text, strlen(text), dir, e);
        free(text);
        json_decref(j);
    }
    json_decref(merges);
    json_decref(vocab);
    free(encoder);
    free(bpe);
    return ok;
}
