/* test_gguf_vocab.c: --to gguf: tokenizers, templates and ids in the file, which ones are refused; one writer of a
 * file.
 */
#include "tests/lib/gguf_read.h"

#define TIED GQA("\"heads\":4,\"kv_heads\":2")

/* A model of `vocab` ids with that tokenizer.json and those files of text: name, content, ..., NULL. */
static char *told_dir(const char *name, int vocab, const char *tokenizer, const char *const *files) {
    char *json =
             xformat("{\"d_model\":16,\"vocab\":%d,\"max_positions\":32,\"layers\":1,\"tied\":true,\"kinds\":{\"a\":"
                     "{\"mixer\":\"gqa\",\"heads\":4}},\"pattern\":[\"a\"],\"ffn\":[{\"kind\":\"swiglu\","
                     "\"hidden\":8}]}",
                     vocab),
         *dir = model_dir(name, json, F32), *to = xformat("%s/tokenizer.json", dir);
    size_t n = strlen(tokenizer);
    char *text = *tokenizer == '{' ? xstrdup(tokenizer) : check_read(tokenizer, &n);
    check_write(to, text, n);
    for (; files && *files; files += 2) {
        char *path = xformat("%s/%s", dir, files[0]);
        check_write(path, files[1], strlen(files[1]));
        free(path);
    }
    free(json), free(to), free(text);
    return dir;
}
static Done told_file(File *f, const char *name, int vocab, const char *tokenizer, const char *const *files) {
    char *src = told_dir(name, vocab, tokenizer, files), *dst = xformat("%s.gguf", src);
    Done d = run(src, dst, "gguf", "", NULL);
    if (d.ok) file_open(f, dst);
    cr_expect_eq(check_exists(dst), d.ok);
    free(src), free(dst);
    return d;
}
#define IDS "generation_config.json", "{\"bos_token_id\": 3, \"eos_token_id\": [5, 7]}"
static const char *const ids[] = {IDS, NULL};

Test(gguf_vocab, byte_level_vocabularies) {
    static const struct {
        const char *file, *pre;
        int tokens, merges, bos; /* bos: the template's; -1: it has none */
    } known[] = {{"tests/golden/bpe/gpt2.json", "gpt-2", 700, 443, -1},
                 {"tests/golden/bpe/llama3.json", "llama-bpe", 700, 442, 1},
                 {"tests/golden/bpe/qwen2.json", "qwen2", 700, 443, -1},
                 {"tests/golden/tokenizers/o200k.json", "gpt-4o", 600, 343, -1},
                 {"tests/golden/tokenizers/qwen35.json", "qwen35", 600, 343, -1}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        File f;
        Err e = {0};
        char *name = xformat("bpe%zu", i);
        Done d = told_file(&f, name, 704, known[i].file, ids);
        cr_assert(d.ok, "%s", d.e.msg);
        cr_expect_eq(strstr(d.r.note, "gpt-4o cuts words") != NULL, i == 3, "%s", d.r.note);
        text_is(&f, "tokenizer.ggml.model", "gpt2");
        text_is(&f, "tokenizer.ggml.pre", known[i].pre);
        cr_expect_eq(key_of(&f, "tokenizer.ggml.tokens")->n, 704);
        cr_expect_eq(key_of(&f, "tokenizer.ggml.token_type")->n, 704);
        cr_expect_eq(key_of(&f, "tokenizer.ggml.merges")->n, known[i].merges);
        json_t *j = json_read(known[i].file, &e), *id, *merge, *a;
        const char *token;
        size_t k;
        json_object_foreach(json_object_get(json_object_get(j, "model"), "vocab"), token, id)
            text_at_is(&f, "tokenizer.ggml.tokens", (uint64_t)json_integer_value(id), token);
        json_array_foreach(json_object_get(json_object_get(j, "model"), "merges"), k, merge) if (k % 50 == 0) {
            char *both = json_is_string(merge) ? xstrdup(json_string_value(merge))
                                               : xformat("%s %s", json_string_value(json_array_get(merge, 0)),
                                                         json_string_value(json_array_get(merge, 1)));
            text_at_is(&f, "tokenizer.ggml.merges", k, both);
            free(both);
        }
        json_array_foreach(json_object_get(j, "added_tokens"), k, a) {
            const uint64_t at = (uint64_t)json_integer_value(json_object_get(a, "id"));
            text_at_is(&f, "tokenizer.ggml.tokens", at, json_string_value(json_object_get(a, "content")));
            cr_expect_eq(number_at(&f, "tokenizer.ggml.token_type", at),
                         json_is_true(json_object_get(a, "special")) ? 3 : 4);
        }
        cr_expect_eq(number_at(&f, "tokenizer.ggml.token_type", 300), 1);
        text_at_is(&f, "tokenizer.ggml.tokens", 703, "[PAD703]"); /* an id without a token */
        cr_expect_eq(number_at(&f, "tokenizer.ggml.token_type", 703), 5);
        cr_expect_eq(scalar(&f, "tokenizer.ggml.bos_token_id"), known[i].bos < 0 ? 3 : known[i].bos);
        cr_expect_eq(scalar(&f, "tokenizer.ggml.eos_token_id"), 5);
        cr_expect_eq(scalar(&f, "tokenizer.ggml.eot_token_id"), 7);
        cr_expect_eq(scalar(&f, "tokenizer.ggml.add_bos_token"), known[i].bos >= 0);
        json_decref(j);
        file_close(&f);
        free(name);
    }
}

Test(gguf_vocab, byte_tokenizer) {
    static const char *const files[] = {"chat_template.jinja", "{{ messages }}", NULL};
    Tokenizer t = tokenizer_byte();
    char *json = tokenizer_json(&t);
    File f;
    Done d = told_file(&f, "bytes", 257, json, files);
    cr_assert(d.ok, "%s", d.e.msg);
    text_is(&f, "tokenizer.ggml.model", "gpt2");
    cr_expect_eq(key_of(&f, "tokenizer.ggml.merges")->n, 0);
    text_at_is(&f, "tokenizer.ggml.tokens", 'A', "A");
    text_at_is(&f, "tokenizer.ggml.tokens", ' ', "\xC4\xA0"); /* U+0120, as GPT-2 spells a blank */
    text_at_is(&f, "tokenizer.ggml.tokens", 256, "<|endoftext|>");
    cr_expect_eq(number_at(&f, "tokenizer.ggml.token_type", 256), 3);
    cr_expect_eq(scalar(&f, "tokenizer.ggml.eos_token_id"), 256);
    cr_expect_eq(scalar(&f, "tokenizer.ggml.bos_token_id"), 256);
    text_is(&f, "tokenizer.chat_template", "{{ messages }}");
    file_close(&f);
    free(json);
    tokenizer_close(&t);
    d = told_file(&f, "templates", 704, "tests/golden/bpe/gpt2.json",
                  (const char *const[]){IDS, "tokenizer_config.json",
                                        "{\"chat_template\": [{\"name\": \"tools\", \"template\": \"no\"}, "
                                        "{\"name\": \"default\", \"template\": \"yes\"}]}",
                                        NULL});
    cr_assert(d.ok, "%s", d.e.msg);
    text_is(&f, "tokenizer.chat_template", "yes");
    file_close(&f);
}

/* A vocabulary of characters with byte fallback: ids 0 to 2 are special, then 256 bytes, characters and these. */
static char *characters(const char *tokens, const char *merges) {
    char *vocab = xstrdup("\"<unk>\":0,\"<s>\":1,\"</s>\":2");
    for (int b = 0; b < 256; b++) {
        char *more = xformat("%s,\"<0x%02X>\":%d", vocab, (unsigned)b, b + 3);
        free(vocab);
        vocab = more;
    }
    char *json = xformat(
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true},{\"id\":2,\"content\":"
        "\"</s>\",\"special\":true}],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
        "\"prepend\":\"\xE2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":"
        "\"\xE2\x96\x81\"}]},\"pre_tokenizer\":null,\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
        "\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],"
        "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],\"tokens\":[\"<s>\"]}}},\"decoder\":{\"type\":"
        "\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},"
        "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]"
        "},\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"byte_fallback\":true,\"vocab\":{%s%s},\"merges\":[%s]}"
        "}",
        vocab, tokens, merges);
    free(vocab);
    return json;
}
#define LETTERS  ",\"\xE2\x96\x81\":259,\"a\":260,\"b\":261,\"c\":262"
#define WORDS_OF ",\"ab\":263,\"bc\":264,\"abc\":265"
Test(gguf_vocab, vocabularies_of_characters) {
    char *json = characters(LETTERS WORDS_OF, "\"a b\",\"b c\",\"ab c\",\"a bc\"");
    File f;
    Done d = told_file(&f, "spm", 266, json, NULL);
    cr_assert(d.ok, "%s", d.e.msg);
    text_is(&f, "tokenizer.ggml.model", "llama");
    cr_expect(!key_of(&f, "tokenizer.ggml.merges"));
    static const int types[][2] = {{0, 2}, {1, 3}, {2, 3}, {3, 6}, {258, 6}, {259, 1}, {265, 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        cr_expect_eq(number_at(&f, "tokenizer.ggml.token_type", (uint64_t)types[i][0]), types[i][1], "id %d",
                     types[i][0]);
    cr_expect_eq(number_at(&f, "tokenizer.ggml.scores", 263), 0);
    cr_expect_eq(number_at(&f, "tokenizer.ggml.scores", 264), -1);
    cr_expect_eq(number_at(&f, "tokenizer.ggml.scores", 265), -2);
    cr_expect_eq(scalar(&f, "tokenizer.ggml.bos_token_id"), 1);
    cr_expect_eq(scalar(&f, "tokenizer.ggml.eos_token_id"), 2);
    cr_expect_eq(scalar(&f, "tokenizer.ggml.add_bos_token"), 1);
    cr_expect_eq(scalar(&f, "tokenizer.ggml.add_space_prefix"), 1);
    file_close(&f);
    free(json);
}

/* llama.cpp looks for added tokens in the text itself, where a mark of the normalizer is still a space. */
Test(gguf_vocab, added_tokens_of_spaces) {
    char *json = characters(LETTERS WORDS_OF, "\"a b\",\"b c\",\"ab c\",\"a bc\""), *at = strstr(json, "{\"id\":1,"),
         *more = xformat("%.*s{\"id\":266,\"content\":\"\xE2\x96\x81\xE2\x96\x81\",\"special\":false,\"normalized\":"
                         "true},{\"id\":267,\"content\":\"a\xE2\x96\x81\",\"special\":false,\"normalized\":false},%s",
                         (int)(at - json), json, at);
    File f;
    Done d = told_file(&f, "spaces", 268, more, NULL);
    cr_assert(d.ok, "%s", d.e.msg);
    text_at_is(&f, "tokenizer.ggml.tokens", 266, "  ");
    text_at_is(&f, "tokenizer.ggml.tokens", 267, "a\xE2\x96\x81");
    cr_expect_eq(number_at(&f, "tokenizer.ggml.token_type", 266), 4);
    file_close(&f);
    free(json), free(more);
}

/* The byte tokenizer's vocabulary with another pre_tokenizer and a merge. */
static char *level(const char *pre, const char *more) {
    Tokenizer t = tokenizer_byte();
    Err e = {0};
    char *text = tokenizer_json(&t);
    json_t *j = json_parse(text, strlen(text), "byte", NULL, &e), *model = json_object_get(j, "model");
    json_object_set_new(j, "pre_tokenizer", json_loads(pre, 0, NULL));
    json_object_set_new(json_object_get(model, "vocab"), "ab", json_integer(257));
    json_object_set_new(model, "merges", json_pack("[s]", "a b"));
    if (*more) json_object_set_new(model, more, json_true());
    free(text);
    text = json_dumps(j, 0);
    json_decref(j);
    tokenizer_close(&t);
    return text;
}

Test(gguf_vocab, tokenizers_that_llama_cpp_does_not_have) {
    char *order = characters(LETTERS WORDS_OF, "\"a b\",\"ab c\",\"b c\",\"a bc\""),
         *cut = characters(LETTERS WORDS_OF, "\"a b\",\"b c\",\"ab c\""),
         *pattern =
             level("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x+\"},"
                   "\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                   "\"use_regex\":false}]}",
                   ""),
         *blank = level("{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", ""),
         *whole = level("{\"type\":\"ByteLevel\",\"add_prefix_space\":false}", "ignore_merges");
    const struct {
        const char *what, *tokenizer, *part;
        int vocab;
        const char *files[3];
    } bad[] = {
        {"order", order, "whose merges are not in the order of their tokens: abc", 266, {0}},
        {"cut", cut, "does not merge every cut of its token abc", 266, {0}},
        {"trained", "tests/golden/bpe/llama2.json", "does not merge every cut", 800, {0}},
        {"pattern", pattern, "the pattern x+", 258, {0}},
        {"blank", blank, "add_prefix_space", 258, {0}},
        {"whole", whole, "ignore_merges with the pattern", 258, {0}},
        {"few", "tests/golden/bpe/gpt2.json", "700 tokens, but the model has 600 ids", 600, {0}},
        {"far",
         "tests/golden/bpe/gpt2.json",
         "eos_token_id is 900, but the model has 704 ids",
         704,
         {"generation_config.json", "{\"eos_token_id\": 900}", NULL}},
        {"jinja", "tests/golden/bpe/gpt2.json", "expected UTF-8 text", 704, {"chat_template.jinja", "\xFF", NULL}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        File f;
        const int before = check_entries(check_dir());
        Done d = told_file(&f, bad[i].what, bad[i].vocab, bad[i].tokenizer, bad[i].files);
        cr_expect(!d.ok, "%s", bad[i].what);
        dir_refused(bad[i].what, NULL, &d.e, bad[i].part);
        cr_expect_eq(check_entries(check_dir()), before + 1, "%s: something was left", bad[i].what);
    }
    free(order), free(cut), free(pattern), free(blank), free(whole);
}

Test(gguf_vocab, without_a_tokenizer) {
    char *src = model_dir("wordless", TIED, F32), *dst = xformat("%s.gguf", src);
    Done d = run(src, dst, "gguf", "", NULL);
    cr_assert(d.ok, "%s", d.e.msg);
    File f;
    file_open(&f, dst);
    text_is(&f, "tokenizer.ggml.model", "none");
    text_is(&f, "general.name", "wordless");
    cr_expect(!key_of(&f, "tokenizer.ggml.tokens"));
    cr_expect(strstr(d.r.note, "no tokenizer in the source"), "%s", d.r.note);
    file_close(&f);
    free(src), free(dst);
}

/* An existing file stays as it is; what a killed conversion has left is replaced; a running one is waited for by
 * none. */
Test(gguf_vocab, one_writer_of_a_file) {
    char *src = model_dir("place", TIED, F32), *dst = check_path("there.gguf"), *tmp = file_unfinished(dst);
    size_t n;
    check_write(dst, "mine", 4);
    Done d = run(src, dst, "gguf", "", NULL);
    dir_refused("exists", dst, &d.e, "exists; give a new name, or remove it");
    char *text = check_read(dst, &n);
    cr_expect(n == 4 && !memcmp(text, "mine", 4));
    cr_assert_eq(unlink(dst), 0);
    check_write(tmp, "half of it", 10);
    FileOut other;
    Err e = {0};
    cr_assert(file_begin(&other, dst, &e), "%s", e.msg); /* somebody writes it */
    d = run(src, dst, "gguf", "", NULL);
    dir_refused("two writers", dst, &d.e, "another process is writing it");
    close(other.fd); /* as if it had been killed */
    d = run(src, dst, "gguf", "", NULL);
    cr_assert(d.ok, "%s", d.e.msg);
    cr_expect(check_exists(dst) && !check_exists(tmp));
    /* and a name that is taken meanwhile */
    e = (Err){0};
    cr_assert_eq(unlink(dst), 0);
    cr_assert(file_begin(&other, dst, &e) && file_put(&other, "new", 3, &e), "%s", e.msg);
    other.fresh = true;
    check_write(dst, "mine", 4);
    cr_expect(!file_commit(&other, &e) && e.status == EXIT_INPUT && strstr(e.msg, "was created meanwhile"), "%s",
              e.msg);
    cr_expect(!check_exists(tmp));
    free(text);
    text = check_read(dst, &n);
    cr_expect(n == 4 && !memcmp(text, "mine", 4));
    free(text), free(src), free(dst), free(tmp);
}
