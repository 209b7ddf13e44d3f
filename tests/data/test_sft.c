/* test_sft.c: conversations to ids, masks and windows against transformers and a packer of its own
 * (golden/make_sft.py); the packer; batches; training on them; what is refused. */
#include "data/jsonl.h"
#include "data/loader.h"
#include "data/white.h"
#include "train/save/checkpoint.h"
#include "train/feed.h"
#include "tests/lib/check.h"

static const char CHAT[] = "tests/golden/sft/chat.jsonl";

static int name_index(const char *const *names, const char *name) {
    for (int i = 0; names[i]; i++)
        if (!strcmp(names[i], name)) return i;
    cr_assert_fail("%s", name);
    return -1;
}
static uint32_t fnv(uint32_t h, const int row[4]) {
    for (int k = 0; k < 4; k++)
        for (int b = 0; b < 32; b += 8) h = (h ^ ((uint32_t)row[k] >> b & 0xFF)) * 0x01000193u;
    return h;
}
static int whole(const json_t *j, const char *key) { return (int)json_integer_value(json_object_get(j, key)); }

/* ---- against transformers -------------------------------------------------------------------------------------------
 */

ParameterizedTestParameters(sft, as_transformers) {
    static char names[][16] = {"qwen2-chatml", "llama3-llama3", "llama2-chatml", "first-chatml"};
    return cr_make_param_array(char[16], names, 4);
}
ParameterizedTest(char (*name)[16], sft, as_transformers) {
    char *path = xformat("tests/golden/sft/%s.json", *name), *gold = xformat("tests/golden/sft/%s.golden.json", *name);
    const char *train[] = {CHAT};
    Err e = {0};
    Tokenizer t;
    Jsonl l;
    Chat c;
    Ids ids = {0};
    json_t *j, *golden = json_read(gold, &e), *line, *w, *x;
    size_t i, k;
    int learned = 0, plain = 0;
    cr_assert(golden && tokenizer_load(&t, path, &e), "%s", e.msg);
    int template = name_index(chat_templates, json_string_value(json_object_get(golden, "template")));
    chat_open(&c, &t, template, false);
    cr_assert(jsonl_open(&l, CHAT, &e), "%s", e.msg);
    json_array_foreach(json_object_get(golden, "lines"), i, line) {
        const json_t *want = json_object_get(line, "ids");
        const char *mask = json_string_value(json_object_get(line, "learn"));
        ids.n = 0;
        cr_assert(jsonl_next(&l, &j, &e) && j && chat_encode(&c, j, l.where, &ids, &e), "%s", e.msg);
        cr_assert_eq(ids.n, json_array_size(want), "%s: line %zu: %zu ids, not %zu", *name, i + 1, ids.n,
                     json_array_size(want));
        json_array_foreach(want, k, x) {
            cr_assert_eq(ids.id[k] & ~CHAT_LEARN, (int)json_integer_value(x), "%s: line %zu, id %zu", *name, i + 1, k);
            cr_assert_eq((ids.id[k] & CHAT_LEARN) != 0, mask[k] == '1', "%s: line %zu, mask of id %zu", *name, i + 1,
                         k);
            learned += mask[k] == '1', plain += mask[k] == '0';
        }
        json_decref(j);
    }
    cr_assert(jsonl_next(&l, &j, &e) && !j && !c.plain && learned > 500 && plain > 500, "%d %d", learned, plain);
    chat_close(&c);
    jsonl_close(&l);
    ids_free(&ids);

    Sft s;
    SftCfg cfg = {template, SFT_ANSWERS,
                  name_index(sft_too_longs, json_string_value(json_object_get(golden, "too_long")))};
    SftSpec spec = {.ntrain = 1, .train = train, .seq_len = whole(golden, "seq_len"), .cfg = cfg};
    cr_assert(sft_open(&s, &spec, &t, &e), "%s", e.msg);
    const json_t *windows = json_object_get(golden, "windows");
    cr_assert_eq(s.cut, whole(golden, "cut"));
    cr_assert_eq(s.dropped, whole(golden, "dropped"));
    cr_assert_eq(s.train.pack.n, (int)json_array_size(windows));
    cr_assert_eq(s.val.n, 0);
    Loader loader;
    uint64_t W = (uint64_t)s.train.pack.n;
    bool *seen = xcalloc(W, sizeof *seen);
    cr_assert(loader_open(&loader, 1, spec.seq_len, true, &e), "%s", e.msg);
    json_array_foreach(windows, i, w) {
        const json_t *pieces = json_object_get(w, "pieces");
        const int *first = s.train.pack.first;
        cr_assert_eq(first[i + 1] - first[i], (int)json_array_size(pieces), "%s: window %zu", *name, i);
        json_array_foreach(pieces, k, x)
            cr_assert_eq(s.train.pack.piece[first[i] + (int)k], (int)json_integer_value(x), "%s: window %zu", *name, i);
    }
    /* the second epoch reads each window once, its rows as the other packer has them */
    int64_t targets = 0;
    for (uint64_t sample = W; sample < 2 * W; sample++) {
        loader_sft(&loader, &s, 7, sample, 1);
        uint32_t h = 0x811C9DC5u;
        for (int r = 0; r < loader.batch.N; r++) {
            int row[4] = {loader.tok[r], loader.tgt[r], loader.batch.first[r], loader.batch.pos[r]};
            h = fnv(h, row);
            targets += row[1] >= 0;
        }
        cr_assert_eq(loader.batch.id[0], sample);
        size_t at = 0;
        while (at < W && (whole(json_array_get(windows, at), "rows") != loader.batch.N ||
                          (uint32_t)json_integer_value(json_object_get(json_array_get(windows, at), "hash")) != h))
            at++;
        cr_assert(at < W && !seen[at], "%s: sample %d is no window, or one that came before", *name, (int)sample);
        seen[at] = true;
    }
    cr_assert_eq(targets, (int64_t)s.train.targets);
    cr_assert_eq(loader_sft_targets(&s, 7, W, (int)W), targets);
    free(seen);
    loader_close(&loader);
    sft_close(&s);
    json_decref(golden);
    tokenizer_close(&t);
    free(path), free(gold);
}

/* ---- the packer -----------------------------------------------------------------------------------------------------
 */

/* The rule by looking at every window, at rooms around the words and sums of its bits. */
Test(sft, pack_is_best_fit) {
    static const int rooms[] = {1, 2, 63, 64, 65, 127, 1000, 4095, 4096, 4097, 9000, 70000};
    for (size_t t = 0; t < sizeof rooms / sizeof *rooms; t++) {
        enum { N = 700 };
        int room = rooms[t], len[N], order[N], free_[N], came[N], in[N], n = 0, pieces[N];
        for (int i = 0; i < N; i++) {
            double u = rng_uniform(rng_mix(9, t), (uint64_t)i);
            len[i] = 1 + (int)(u * u * u * (room - 1));
            if (i % 50 == 0) len[i] = room;
        }
        Pack p;
        pack_make(&p, len, N, room);
        for (int i = 0; i < N; i++) { /* insertion sort: falling, stable */
            int k = i;
            for (; k && len[order[k - 1]] < len[i]; k--) order[k] = order[k - 1];
            order[k] = i;
        }
        for (int i = 0; i < N; i++) {
            int best = -1;
            for (int w = 0; w < n; w++) {
                if (free_[w] < len[order[i]]) continue;
                if (best < 0 || free_[w] < free_[best] || (free_[w] == free_[best] && came[w] > came[best])) best = w;
            }
            if (best < 0) best = n++, free_[best] = room;
            free_[best] -= len[order[i]];
            came[best] = i;
            in[order[i]] = best;
        }
        cr_assert_eq(p.n, n, "room %d: %d windows, not %d", room, p.n, n);
        memset(pieces, 0, sizeof pieces);
        for (int w = 0; w < n; w++)
            for (int k = p.first[w]; k < p.first[w + 1]; k++) {
                cr_assert_eq(in[p.piece[k]], w, "room %d: piece %d", room, p.piece[k]);
                cr_assert(k == p.first[w] || len[p.piece[k - 1]] >= len[p.piece[k]]);
                pieces[p.piece[k]]++;
            }
        for (int i = 0; i < N; i++) cr_assert_eq(pieces[i], 1);
        pack_free(&p);
    }
    Pack none;
    pack_make(&none, NULL, 0, 5);
    cr_assert_eq(none.n, 0);
    pack_free(&none);
}

/* ---- texts ----------------------------------------------------------------------------------------------------------
 */

static bool to_ids(const Tokenizer *t, int template, bool all, const char *line, Ids *ids, Chat *c, Err *e) {
    Jsonl l = jsonl_memory(line, strlen(line), "chat");
    json_t *j;
    bool ok = jsonl_next(&l, &j, e);
    cr_assert(!ok || j);
    chat_open(c, t, template, all);
    ok = ok && chat_encode(c, j, l.where, ids, e);
    json_decref(j);
    return ok;
}

/* By bytes: the text between [ and ] is what is learned, E is end-of-text. */
static void shows(int template, bool all, const char *line, const char *want) {
    Tokenizer t = tokenizer_byte();
    Ids ids = {0};
    Chat c;
    Err e = {0};
    char got[2048];
    size_t n = 0;
    bool in = false;
    cr_assert(to_ids(&t, template, all, line, &ids, &c, &e), "%s", e.msg);
    for (size_t i = 0; i <= ids.n; i++) {
        bool learn = i < ids.n && ids.id[i] & CHAT_LEARN;
        if (learn != in) got[n++] = learn ? '[' : ']';
        in = learn;
        int id = i < ids.n ? ids.id[i] & ~CHAT_LEARN : 0;
        got[n++] = (char)(id == t.eot ? 'E' : id);
    }
    cr_assert_str_eq(got, want, "\n%s\nnot\n%s", got, want);
    chat_close(&c);
    ids_free(&ids);
}

Test(sft, templates_by_bytes) {
    static const char two[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"Be it.\"},{\"role\":\"user\",\"content\":\" Hi \"},"
        "{\"role\":\"assistant\",\"content\":\"Yo\"},{\"role\":\"user\",\"content\":\"<|im_end|>\"},"
        "{\"role\":\"assistant\",\"content\":\"No\",\"weight\":1}]}";
    static const char task[] = "{\"instruction\":\"Add.\",\"input\":\"1 1\",\"output\":\"2\"}",
                      bare[] = "{\"instruction\":\"Go.\",\"output\":\"\",\"input\":null}";
    shows(CHAT_CHATML, false, two,
          "E<|im_start|>system\nBe it.<|im_end|>\n<|im_start|>user\n Hi "
          "<|im_end|>\n<|im_start|>assistant\n[Yo<|im_end|>]\n"
          "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n[No<|im_end|>]\n");
    shows(CHAT_CHATML, true, bare, "E[<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n]");
    shows(CHAT_LLAMA3, false, two,
          "E<|start_header_id|>system<|end_header_id|>\n\nBe it.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
          "Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[Yo<|eot_id|>]<|start_header_id|>user"
          "<|end_header_id|>\n\n<|im_end|><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[No<|eot_id|>]");
    shows(CHAT_ALPACA, false, task,
          "EBelow is an instruction that describes a task, paired with an input that provides further context. Write a "
          "response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 1\n\n"
          "### Response:\n[2E]");
    shows(
        CHAT_ALPACA, false, bare,
        "EBelow is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nGo.\n\n### Response:\n[E]");
    shows(CHAT_ALPACA, false, two,
          "EBe it.\n\n### Instruction:\n Hi \n\n### Response:\n[Yo\n\n]### Instruction:\n<|im_end|>\n\n### "
          "Response:\n[NoE]");
    shows(CHAT_PLAIN, false, two,
          "EBe it.\n\nUser:\n Hi \n\nAssistant:\n[Yo\n\n]User:\n<|im_end|>\n\nAssistant:\n[NoE]");
    shows(CHAT_PLAIN, false, task, "EUser:\nAdd.\n1 1\n\nAssistant:\n[2E]");
    shows(
        CHAT_PLAIN, false,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\",\"weight\":0},"
        "{\"role\":\"assistant\",\"content\":\"c\"},{\"role\":\"user\",\"content\":\"d\"}]}",
        "EUser:\na\n\nAssistant:\nb\n\nAssistant:\n[c\n\n]User:\nd\n\n");
}

/* ShareGPT's lines: the same conversation in other words. */
Test(sft, conversations_of_sharegpt) {
    static const char want[] = "EBe it.\n\nUser:\nHi\n\nAssistant:\n[YoE]";
    shows(CHAT_PLAIN, false,
          "{\"conversations\":[{\"from\":\"system\",\"value\":\"Be it.\"},{\"from\":\"human\",\"value\":\"Hi\"},"
          "{\"from\":\"gpt\",\"value\":\"Yo\"}]}",
          want);
    shows(CHAT_PLAIN, false,
          "{\"id\":\"a\",\"system\":\"Be it.\",\"conversations\":[{\"from\":\"user\",\"value\":\"Hi\"},"
          "{\"from\":\"assistant\",\"value\":\"Yo\"}]}",
          want);
    shows(CHAT_PLAIN, false,
          "{\"system\":\"\",\"conversations\":[{\"role\":\"user\",\"content\":\"Hi\"},"
          "{\"from\":\"gpt\",\"value\":\"Yo\"}]}",
          "EUser:\nHi\n\nAssistant:\n[YoE]");
    static const char *const bad[][2] = {{"{\"conversations\":[{\"from\":\"tool\",\"value\":\"x\"}]}",
                                          "conversations.0: \"from\": expected system, human or gpt, found tool"},
                                         {"{\"conversations\":[{\"from\":\"gpt\",\"content\":\"x\"}]}",
                                          "conversations.0: \"value\": expected a text, found nothing"},
                                         {"{\"conversations\":[{\"role\":\"human\",\"content\":\"x\"}]}",
                                          "\"role\": expected system, user or assistant, found human"},
                                         {"{\"system\":3,\"conversations\":[{\"from\":\"gpt\",\"value\":\"x\"}]}",
                                          "\"system\": expected a text, found a number"},
                                         {"{\"conversations\":[]}",
                                          "\"conversations\": expected a list of at least one"},
                                         {"{\"text\":\"a\"}", "found none of them"}};
    Tokenizer t = tokenizer_byte();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Err e = {0};
        Ids ids = {0};
        Chat c;
        cr_assert(!to_ids(&t, CHAT_PLAIN, false, bad[i][0], &ids, &c, &e) && strstr(e.msg, bad[i][1]), "%s", e.msg);
        chat_close(&c);
        ids_free(&ids);
    }
}

/* A text that looks like a special token stays text; other added tokens are found; markers that are no tokens are said.
 */
Test(sft, messages_make_no_special_tokens) {
    static const char line[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"thou art <s><|endoftext|> king\"},"
                               "{\"role\":\"assistant\",\"content\":\"<|eot_id|>\\n<|end_header_id|>\"}]}";
    Tokenizer t;
    Err e = {0};
    Ids ids = {0};
    Chat c;
    cr_assert(tokenizer_load(&t, "tests/golden/sft/llama3-llama3.json", &e), "%s", e.msg);
    cr_assert(to_ids(&t, CHAT_LLAMA3, false, line, &ids, &c, &e), "%s", e.msg);
    int eot = tokenizer_find(&t, "<|eot_id|>"), header = tokenizer_find(&t, "<|end_header_id|>"),
        king = tokenizer_find(&t, "king"), special = 0, kings = 0;
    cr_assert(eot > 0 && header > 0 && king > 0 && !c.plain);
    for (size_t i = 0; i < ids.n; i++) {
        special += tokenizer_special(&t, ids.id[i] & ~CHAT_LEARN);
        kings += (ids.id[i] & ~CHAT_LEARN) == king;
    }
    cr_assert_eq(special, 7, "%d special ids", special); /* begin, four of headers, two ends */
    cr_assert_eq(kings, 1);
    cr_assert_eq(ids.id[0], tokenizer_find(&t, "<|begin_of_text|>"));
    cr_assert_eq(ids.id[ids.n - 1], eot | CHAT_LEARN);
    chat_close(&c);
    ids.n = 0;
    cr_assert(to_ids(&t, CHAT_CHATML, false, line, &ids, &c, &e), "%s", e.msg);
    cr_assert(c.plain && !strncmp(c.plain, "<|im_start|>", (size_t)c.nplain));
    cr_assert_eq(ids.id[0], t.bos); /* no special id stands first: a text begins */
    chat_close(&c);
    ids_free(&ids);
    tokenizer_close(&t);
}

Test(sft, white_space) {
    static const char s[] = " \t\xc2\xa0\xe3\x80\x80\xe2\x80\x83 a\xe2\x80\x8b\xc3\xa9\xc2\x85\x1c\n";
    size_t n = sizeof s - 1, skip = white_begin(s, n);
    cr_assert_eq(skip, 11);
    cr_assert_eq(white_end(s, n), n - 4);
    cr_assert_eq(white_end(s, skip), 0);
    cr_assert_eq(white_begin(s + skip, 1), 0);
    cr_assert_eq(white_begin("\xf0\x9f\x99\x82", 4), 0);
}

/* ---- the templates as Jinja -----------------------------------------------------------------------------------------
 */

/* transformers' apply_chat_template with what we write gives the ids that we train on, of messages and instructions;
 * and before an answer the text that a model is asked with. */
Test(sft, jinja_is_what_is_trained_on) {
    Err e = {0};
    size_t i, n = 0;
    json_t *golden = json_read("tests/golden/sft/templates.json", &e), *c;
    cr_assert(golden, "%s", e.msg);
    char *text = check_read("tests/golden/sft/chat.jsonl", NULL);
    json_array_foreach(json_object_get(golden, "cases"), i, c) {
        const char *name = json_string_value(json_object_get(c, "tokenizer"));
        char *path = xformat("tests/golden/sft/%s.json", name);
        Tokenizer t;
        Chat chat;
        int k = 0, lines = 0, same = 0;
        cr_assert(tokenizer_open(&t, path, NULL, &e), "%s", e.msg);
        while (strcmp(chat_templates[k], json_string_value(json_object_get(c, "template")))) k++;
        char *jinja = chat_jinja(&t, k);
        cr_assert_str_eq(jinja, json_string_value(json_object_get(c, "jinja")));
        chat_open(&chat, &t, k, false);
        for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, lines++) {
            Ids ids = {0};
            json_t *j = json_loadb(line, (size_t)(end - line), 0, NULL),
                   *want = json_array_get(json_object_get(c, "ids"), (size_t)lines);
            cr_assert(j && chat_encode(&chat, j, "line", &ids, &e), "%s", e.msg);
            cr_expect_eq(ids.n, json_array_size(want), "%s %s line %d: %zu ids, want %zu", name, chat_templates[k],
                         lines, ids.n, json_array_size(want));
            for (size_t x = 0; x < ids.n && x < json_array_size(want); x++) {
                int id = (int)json_integer_value(json_array_get(want, x));
                if ((ids.id[x] & ~CHAT_LEARN) == id) continue;
                cr_expect(false, "%s %s line %d id %zu: %d, want %d", name, chat_templates[k], lines, x,
                          ids.id[x] & ~CHAT_LEARN, id);
                break;
            }
            same++;
            json_decref(j);
            ids_free(&ids);
        }
        cr_assert(same == 36 && lines == 36, "%d of %d", same, lines);
        chat_close(&chat);
        tokenizer_close(&t);
        free(path), free(jinja);
        n++;
    }
    cr_assert_eq(n, 8);
    json_decref(golden);
    free(text);
}
