/* The commands of inference as a user meets them: results against the library's training forward, exactly one JSON
 * object, refusals by the rule of errors. */
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "data/loader.h"
#include "infer/session.h"
#include "model/files/hf.h"
#include "model/files/safetensors.h"
#include "tests/lib/speaker.h"

#ifndef KV_DOUBLE /* the program is the f32 one */

/* A model directory with a tokenizer; returns its path. */
static char *model_dir(Speaker *s, const char *name, int rows) {
    Err e = {0};
    char *dir = check_path(name), *file = xformat("%s/tokenizer.json", dir);
    speaker_open(s, &speaker_bytes, rows);
    cr_assert(mkdir(dir, 0777) == 0);
    cr_assert(hf_save(dir, &s->m, &(HfIds){.bos = -1, .neos = 1, .eos = {256}}, F32, &e), "%s", e.msg);
    char *text = tokenizer_json(&s->tk);
    check_write(file, text, strlen(text));
    free(text);
    free(file);
    return dir;
}

/* stdout is one JSON object and nothing else; the status is 0. Takes what was printed. */
static json_t *object(Ran r) {
    json_error_t why;
    cr_assert(r.status == 0, "status %d: %s", r.status, r.err);
    json_t *j = json_loadb(r.out, r.out_n, JSON_REJECT_DUPLICATES, &why);
    cr_assert(json_is_object(j), "%s in: %.300s", why.text, r.out);
    free(r.out), free(r.err);
    return j;
}
    #define NUM(j, name) json_number_value(json_object_get(j, name))
static const char *str(json_t *j, const char *name) {
    cr_assert(json_is_string(json_object_get(j, name)), "no text %s", name);
    return json_string_value(json_object_get(j, name));
}
static void has_numbers(json_t *j, const char *const names[]) {
    for (; *names; names++) cr_assert(json_is_number(json_object_get(j, *names)), "no number %s", *names);
}

Test(cli, logits_are_those_of_the_training_forward) {
    enum { B = 3, T = 20, V = 257 };
    Speaker s;
    Err e = {0};
    char *dir = model_dir(&s, "m", B * T), *ids = check_path("ids"), *out = check_path("l.safetensors"),
         text[8 * B * T];
    int tok[B * T], tgt[B * T], n = 0;
    real nll[B * T], got[B * T], want[B * T];
    for (int i = 0; i < B * T; i++)
        tok[i] = (int)(rng_uniform(3, (uint64_t)i) * V), tgt[i] = (int)(rng_uniform(4, (uint64_t)i) * V);
    tok[7] = tok[T + 1] = tok[3 * T - 2] = 256; /* a line is one document all the same */
    for (int i = 0; i < B * T; i++)
        n += sprintf(text + n, "%d%s", tok[i], i % T == T - 1 ? " \n\n" : i % 3 ? " " : "\t ");
    check_write(ids, text, (size_t)n - 3); /* no newline at the end */
    speaker_nll(&s, B, T, tok, tgt, -1, nll);
    json_t *j = object(RUN("logits", dir, "--tokens", ids, "--out", out, "--json", "--chunk", "7"));
    cr_assert(json_array_size(json_object_get(j, "shape")) == 3);
    json_decref(j);
    St st;
    cr_assert(st_open(&st, out, &e), "%s", e.msg);
    const StEntry *x = st_find(&st, "logits");
    cr_assert(st.n == 1 && x && !strcmp(x->dtype, "F32") && x->rank == 3);
    real *logits = xcalloc(B * T * V, sizeof *logits);
    cr_assert(st_read(&st, x, TENSOR(logits, REAL, B, T, V), &e), "%s", e.msg);
    for (int i = 0; i < B * T; i++) got[i] = (real)log_softmax(logits + i * V, V, tgt[i]), want[i] = -nll[i];
    CHECK_RELATIVE("log p", got, want, B * T, 1e-4);
    free(logits);
    st_close(&st);
    speaker_close(&s);
}

Test(cli, generate_tells_the_same_in_every_form) {
    Speaker s;
    char *dir = model_dir(&s, "m", 0), *file = check_path("prompt"), *batch = check_path("b.jsonl");
    static const char *const numbers[] = {"prompt_tokens", "new_tokens",  "prefill_s", "decode_s",
                                          "decode_tok_s",  "cache_bytes", NULL};
    #define FORM                                                                                                   \
        "--max-new", "40", "--ignore-eos", "--temperature", "0.9", "--top-k", "100", "--top-p", "0.95", "--min-p", \
            "0.001", "--seed", "3"
    json_t *j = object(RUN("generate", dir, "--prompt", "abc", "--json", FORM));
    has_numbers(j, numbers);
    cr_assert(NUM(j, "prompt_tokens") == 4 && NUM(j, "new_tokens") == 40 && !strcmp(str(j, "finish"), "length"));
    json_t *tokens = json_object_get(j, "tokens"), *id;
    cr_assert(json_array_size(tokens) == 40);
    char raw[64];
    size_t n = 0, i;
    json_array_foreach(tokens, i, id) if (json_integer_value(id) < 256) raw[n++] = (char)json_integer_value(id);
    /* streamed, quiet and from a file: the bytes of the tokens and a newline */
    check_write(file, "abc", 3);
    Ran r[] = {RUN("generate", dir, "-p", "abc", FORM), RUN("generate", dir, "-p", "abc", "-q", FORM),
               RUN("generate", dir, "--prompt-file", file, FORM)};
    for (int k = 0; k < 3; k++) {
        bool newline = n && raw[n - 1] == '\n';
        cr_assert(r[k].status == 0 && r[k].out_n == n + !newline && !memcmp(r[k].out, raw, n),
                  "form %d: %zu bytes, want %zu", k, r[k].out_n, n);
    }
    cr_assert(r[1].err_n == 0 && strstr(r[0].err, "tokens/s"), "%s", r[1].err);
    /* one of a batch, whoever else is in it */
    static const char prompts[] =
        "{\"prompt\":\"abc\"}\n\n {\"id\":7,\"prompt\":\"\\u0000\\u00e9\"}\r\n{\"prompt\":\"\"}";
    check_write(batch, prompts, sizeof prompts - 1);
    json_t *all = object(RUN("generate", dir, "--batch-file", batch, "--batch", "2", "--json", FORM)),
           *list = json_object_get(all, "results");
    cr_assert(json_array_size(list) == 3, "%zu results", json_array_size(list));
    cr_assert(json_equal(json_object_get(json_array_get(list, 0), "tokens"), tokens) &&
              !strcmp(str(json_array_get(list, 0), "text"), str(j, "text")));
    cr_assert(NUM(json_array_get(list, 1), "prompt_tokens") == 4 && NUM(json_array_get(list, 2), "prompt_tokens") == 1);
    json_decref(all);
    /* a stop string is cut off */
    char stop[3] = {raw[9], raw[10], 0};
    if (strlen(stop) == 2) {
        Ran cut = RUN("generate", dir, "-p", "abc", "-q", "--stop", "no such text", "--stop", stop, FORM);
        const char *at = memmem(raw, n, stop, 2);
        size_t want = (size_t)(at - raw);
        cr_assert(cut.status == 0 && cut.out_n >= want && cut.out_n <= want + 1 && !memcmp(cut.out, raw, want));
    }
    json_decref(j);
    j = object(RUN("generate", dir, "--max-new", "400", "--ignore-eos", "--json", "--context", "30"));
    cr_assert(!strcmp(str(j, "finish"), "context") && NUM(j, "new_tokens") == 30);
    json_decref(j);
    speaker_close(&s);
}

/* The likeliest token after n ids, one sequence. */
static int next_of(Speaker *s, const int *id, int n) {
    Session one;
    Err e = {0};
    real *logits = xcalloc((size_t)s->V, sizeof *logits);
    cr_assert(session_open(&one, &s->m, (SessionOpts){.nseq = 1, .max_tokens = 32, .document = -1}, &e), "%s", e.msg);
    cr_assert(session_extend(&one, 1, &(Feed){0, n, id}, WANT_LAST, TENSOR(logits, REAL, 1, s->V), &e), "%s", e.msg);
    int best = 0;
    for (int v = 1; v < s->V; v++)
        if (logits[v] > logits[best]) best = v;
    session_close(&one);
    free(logits);
    return best;
}
/* End-of-text in a prompt is a token like any other: what stands before it is seen, positions continue, and the context
 * is not longer for it. */
Test(cli, a_prompt_is_one_sequence) {
    Speaker s;
    char *dir = model_dir(&s, "m", 0), many[28 * 13 + 1] = "", *file = xformat("%s/tokenizer.json", dir);
    char *text = tokenizer_json(&s.tk), *cut = strstr(text, "\"use_regex\": false");
    cr_assert(cut);
    memcpy(cut, "\"use_regex\": true ", 18); /* else it is the built-in one, to which no text is end-of-text */
    check_write(file, text, strlen(text));
    free(text), free(file);
    int told = 0; /* letters that show it: without the text before end-of-text another token comes next */
    for (int c = 'a'; c <= 'z' && told < 3; c++) {
        int id[] = {256, 'A', 256, c}, want = next_of(&s, id, 4);
        char prompt[20];
        if (want == next_of(&s, id + 2, 2)) continue;
        told++;
        snprintf(prompt, sizeof prompt, "A<|endoftext|>%c", c);
        json_t *j = object(
            RUN("generate", dir, "-p", prompt, "--max-new", "1", "--ignore-eos", "--temperature", "0", "--json"));
        cr_assert(NUM(j, "prompt_tokens") == 4, "%g tokens", NUM(j, "prompt_tokens"));
        cr_assert_eq(json_integer_value(json_array_get(json_object_get(j, "tokens"), 0)), want, "%s", prompt);
        json_decref(j);
    }
    cr_assert(told, "no letter tells a document from a sequence: take another seed");
    for (int i = 0; i < 28; i++) strcat(many, "<|endoftext|>");
    json_t *j = object(RUN("generate", dir, "-p", many, "--ignore-eos", "--json", "--context", "30"));
    cr_assert(!strcmp(str(j, "finish"), "context") && NUM(j, "new_tokens") == 3, "%g", NUM(j, "new_tokens"));
    json_decref(j);
    speaker_close(&s);
}

/* Sum of nll over the windows of a stream, each by one training forward; only what no earlier window scored. */
static double windows(Speaker *s, const int *stream, int inputs, int context, int stride) {
    double sum = 0;
    int scored = 0;
    for (int at = 0; scored < inputs; at += stride) {
        int n = imin(context, inputs - at);
        real *nll = xcalloc((size_t)n, sizeof *nll);
        speaker_nll(s, 1, n, stream + at, stream + at + 1, 256, nll);
        for (int i = scored - at; i < n; i++) sum += (double)nll[i];
        scored = at + n;
        free(nll);
    }
    return sum;
}

Test(cli, perplexity_is_that_of_the_training_forward) {
    enum { BYTES = 701, INPUTS = BYTES + 3 - 6 }; /* three documents; "--" and a newline between two are no text */
    Speaker s;
    char *dir = model_dir(&s, "m", 300), *file = check_path("text"), text[BYTES];
    int stream[BYTES + 8], n = 0;
    for (int i = 0; i < BYTES; i++) text[i] = (char)('a' + (int)(rng_uniform(9, (uint64_t)i) * 20));
    memcpy(text + 200, "--\n", 3), memcpy(text + 450, "--\n", 3);
    check_write(file, text, BYTES);
    stream[n++] = 256;
    for (int i = 0; i < BYTES; i++) {
        if (i == 200 || i == 450) stream[n++] = 256, i += 3;
        stream[n++] = text[i];
    }
    stream[n++] = 256;
    cr_assert(n == INPUTS + 1);
    static const int context[] = {160, 50, 50, 50, 300, 7}, stride[] = {160, 50, 20, 1, 100, 7};
    for (int k = 0; k < 6; k++) {
        char c[16], t[16];
        snprintf(c, 16, "%d", context[k]), snprintf(t, 16, "%d", stride[k]);
        json_t *j = object(RUN("eval", dir, "ppl", "--data", file, "--separator", "--\\n", "--context", c, "--stride",
                               t, "--json", "--batch", k % 2 ? "3" : "8", "--chunk", k ? "50" : "1000"));
        double want = windows(&s, stream, INPUTS, context[k], stride[k]), nll = NUM(j, "nll");
        cr_assert(!strcmp(str(j, "task"), "ppl") && NUM(j, "tokens") == INPUTS && NUM(j, "bytes") == BYTES - 6);
        cr_assert(fabs(nll - want / INPUTS) <= 1e-5 * nll, "context %s stride %s: nll %.9g, want %.9g", c, t, nll,
                  want / INPUTS);
        cr_assert(fabs(NUM(j, "ppl") - exp(nll)) <= 1e-9 * exp(nll));
        cr_assert(fabs(NUM(j, "bits_per_byte") - nll * INPUTS / (BYTES - 6) / log(2)) <= 1e-9 * nll);
        json_decref(j);
    }
    speaker_close(&s);
}

/* The table of model types needs no model, and takes none. */
Test(cli, info_families) {
    Ran r = RUN("info", "--families");
    cr_expect(r.status == 0 && strstr(r.out, "\n| `llama` |") && strstr(r.out, "\n| `kvsmith` |"), "%s%s", r.out,
              r.err);
    json_t *j = object(RUN("info", "--families", "--json")), *list = json_object_get(j, "families");
    cr_expect(json_array_size(list) >= 7);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        cr_expect(json_is_true(json_object_get(x, "read")) && json_is_string(json_object_get(x, "covers")));
        char *line = xformat("\n| `%s` | ", json_string_value(json_object_get(x, "type")));
        cr_expect(strstr(r.out, line), "%s is not in the text", line);
        free(line);
    }
    json_decref(j);
    CHECK_REFUSED(RUN("info", "--families", "configs/tiny-gqa.yaml"), 2, "--families, --policies or --codecs alone");
    CHECK_REFUSED(RUN("info"), 2, "MODEL|CONFIG.yaml");
}

Test(cli, info_of_a_model_and_of_a_configuration) {
    Speaker s;
    char *dir = model_dir(&s, "m", 0), *yaml = check_path("c.yaml");
    static const char text[] = "model: {d_model: 64, layers: 2, kinds: {a: {mixer: gqa, heads: 4, kv_heads: 1}}, ffn: "
                               "{kind: swiglu, hidden: 96}}\n"
                               "data: {seq_len: 32}\ntrain: {batch: 4, micro_batch: 2}\n";
    check_write(yaml, text, sizeof text - 1);
    static const char *const numbers[] = {"params", "flops_per_token", "context", NULL},
                             *const cache[] = {"bytes_per_token", "state_bytes", "bytes_at_context", NULL};
    const char *const what[] = {dir, yaml};
    for (int k = 0; k < 2; k++) {
        json_t *j = object(RUN("info", what[k], "--json", "--context", "100", "--batch", "3")),
               *c = json_object_get(j, "cache");
        has_numbers(j, numbers);
        has_numbers(c, cache);
        if (k == 0) {
            cr_assert(NUM(j, "params") == (double)model_params(&s.m) &&
                      json_array_size(json_object_get(c, "layers")) == 3);
            /* layers w a w: one lane of 8 + 8 in a window of 9 with 2 sinks, two lanes in the middle */
            cr_assert(NUM(c, "bytes_per_token") == 4 * 16 * (1 + 2 + 1) &&
                      NUM(c, "bytes_at_context") == 3 * 4 * 16 * (10 + 200 + 10));
        } else {
            cr_assert(NUM(j, "params") == 257 * 64 + 2 * (2 * 64 + 2 * 64 * 64 + 2 * 16 * 64 + 3 * 64 * 96) + 64);
            cr_assert(NUM(c, "bytes_per_token") == 2 * 2 * 16 * 4 && NUM(c, "mha_bytes_per_token") == 2 * 2 * 64 * 4);
            cr_assert(NUM(json_object_get(j, "step_memory"), "rows") == 64);
        }
        json_decref(j);
        Ran r = RUN("info", what[k]);
        cr_assert(r.status == 0 && strstr(r.out, "parameters") && r.err_n == 0);
    }
    speaker_close(&s);
}

Test(cli, bench_measures) {
    char *yaml = check_path("c.yaml");
    static const char text[] =
        "model: {d_model: 16, layers: 1, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {kind: swiglu, hidden: 16}}\n"
        "data: {seq_len: 16}\ntrain: {micro_batch: 2}\n";
    check_write(yaml, text, sizeof text - 1);
    json_t *j = object(RUN("bench", "decode", yaml, "--seconds", "0.01", "--json")),
           *list = json_object_get(j, "decode"), *x;
    size_t i;
    static const char *const numbers[] = {"batch",      "tok_s",         "prefill_tok_s",
                                          "bytes_read", "read_gb_per_s", "percent_of_bandwidth",
                                          NULL};
    cr_assert(json_array_size(list) == 4);
    json_array_foreach(list, i, x) {
        has_numbers(x, numbers);
        cr_assert(NUM(x, "tok_s") > 0 && NUM(x, "read_gb_per_s") > 0);
    }
    json_decref(j);
    static const char *const prompts[] = {"batch",           "prompt",          "chunk", "tok_s",
                                          "flops_per_token", "percent_of_peak", NULL};
    for (int k = 0; k < (REAL == F32 ? 2 : 1); k++) { /* f32 and bf16 */
        j = object(RUN("bench", "prefill", yaml, "--seconds", "0.01", "--batch", "3", "--prompt", "20", "--chunk", "16",
                       "--json", "--dtype", k ? "bf16" : "f32"));
        x = json_array_get(json_object_get(j, "prefill"), 0);
        has_numbers(x, prompts);
        cr_assert(NUM(x, "batch") == 3 && NUM(x, "prompt") == 20 && NUM(x, "chunk") == 16 && NUM(x, "tok_s") > 0);
        json_decref(j);
    }
}

/* Settings on the command line, several batches, a cache that is filled. */
Test(cli, bench_is_told_what_to_measure) {
    char *yaml = check_path("c.yaml");
    static const char text[] =
        "model: {d_model: 16, layers: 1, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {kind: swiglu, hidden: 16}}\n"
        "data: {seq_len: 16}\ntrain: {micro_batch: 2}\n";
    check_write(yaml, text, sizeof text - 1);
    json_t *j = object(RUN("bench", "decode", yaml, "--seconds", "0.01", "--batch", "1,3", "--prompt", "70", "--fill",
                           "--graph", "both", "--json")),
           *list = json_object_get(j, "decode"), *x = json_array_get(list, 1);
    cr_assert(json_array_size(list) == 2 && NUM(x, "batch") == 3 && NUM(x, "prompt") == 70 && NUM(x, "tok_s") > 0);
    cr_assert(json_is_true(json_object_get(x, "filled")) && !json_object_get(x, "prefill_tok_s"));
    cr_assert_str_eq(json_string_value(json_object_get(x, "draw")), "host");
    json_decref(j);
    j = object(RUN("bench", "train", yaml, "train.micro_batch=4", "data.seq_len=8", "--seconds", "0.01", "--json"));
    cr_assert(NUM(json_object_get(j, "train"), "rows") == 32 && NUM(json_object_get(j, "train"), "profile_s") > 0);
    json_decref(j);
    j = object(RUN("bench", "limits", "--seconds", "0.01", "--rows", "64", "--json"));
    cr_assert(NUM(j, "gemm_peak_gflops") > 0 && NUM(json_object_get(j, "read"), "gb_per_s") > 0);
    json_decref(j);
    j = object(RUN("bench", "recur", "--rule", "gla,mamba2", "--shape", "2x40x3x8", "--seconds", "0.01", "--json"));
    list = json_object_get(j, "recur"), x = json_array_get(list, 1);
    cr_assert(json_array_size(list) == 2 && NUM(x, "batch") == 2 && NUM(x, "rows") == 40 && NUM(x, "heads") == 3 &&
              NUM(x, "dim") == 8);
    cr_assert_str_eq(json_string_value(json_object_get(x, "rule")), "mamba2");
    json_decref(j);
}

Test(cli, bench_trains_from_a_teacher) {
    char *yaml = check_path("c.yaml");
    static const char text[] =
        "model: {d_model: 16, layers: 1, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {kind: swiglu, hidden: 16}}\n"
        "data: {seq_len: 16}\ntrain: {micro_batch: 2}\n";
    check_write(yaml, text, sizeof text - 1);
    json_t *j = object(RUN("bench", "train", yaml, "--seconds", "0.01", "--json")), *x = json_object_get(j, "distill");
    cr_assert(x && NUM(x, "tok_s") > 0 && NUM(x, "of_plain_step") > 0 && NUM(json_object_get(j, "train"), "tok_s") > 0);
    json_decref(j);
}

Test(cli, bench_recurrences) {
    static const char *const rules[] = {"kda",    "gdn",  "deltanet", "gla", "retention", "linear",
                                        "mamba2", "gdn2", "comba",    "kda", "kda"};
    json_t *j = object(RUN("bench", "recur", "--seconds", "0.01", "--json")), *list = json_object_get(j, "recur"), *x;
    double forward = 0, both = 0;
    size_t i;
    cr_assert(json_array_size(list) == sizeof rules / sizeof *rules);
    json_array_foreach(list, i, x) {
        cr_assert_str_eq(json_string_value(json_object_get(x, "rule")), rules[i]);
        cr_assert(NUM(x, "forward_s") > 0 && NUM(x, "forward_backward_s") > 0, "%s", rules[i]);
        forward += NUM(x, "forward_s"), both += NUM(x, "forward_backward_s");
    }
    cr_assert(both > forward, "%g s with the backward pass, %g s without", both,
              forward); /* one alone may be disturbed */
    json_decref(j);
}

Test(cli, refusals) {
    Speaker s;
    char *dir = model_dir(&s, "m", 0), *text = check_path("text"), *bad = check_path("bad"), *out = check_path("out"),
         *none = check_path("none");
    char *in_none = xformat("%s/x", none);
    check_write(text, "some text", 9);
    struct {
        int status;
        const char *part, *arg[8];
    } c[] = {
        {2, "no such", {"generate", none}},
        {2, "MODEL", {"generate"}},
        {2, "unexpected word", {"generate", dir, "again"}},
        {2, "device cuda: this program was built without CUDA", {"generate", dir, "--device", "cuda"}},
        {2,
         "device cuda: this program was built without CUDA",
         {"train", "configs/tiny-gqa.yaml", "--device", "cuda", "--plan"}},
        {2, "device cuda: this program was built without CUDA", {"info", "configs/tiny-gqa.yaml", "--device", "cuda"}},
        {2, "device cuda: this program was built without CUDA", {"bench", "--device", "cuda"}},
        {2, "--temperature", {"generate", dir, "--temperature", "-1"}},
        {2, "--temperature", {"generate", dir, "--temperature", "nan"}},
        {2, "--top-p", {"generate", dir, "--top-p", "0"}},
        {2, "--top-p", {"generate", dir, "--top-p", "1.5"}},
        {2, "--top-k", {"generate", dir, "--top-k", "-3"}},
        {2, "--min-p", {"generate", dir, "--min-p", "2"}},
        {2, "--repetition-penalty", {"generate", dir, "--repetition-penalty", "0"}},
        {2, "--stop", {"generate", dir, "--stop", ""}},
        {2, "--max-new", {"generate", dir, "--max-new", "1e3"}},
        {2, "--seed", {"generate", dir, "--seed", "-1"}},
        {2, "one of", {"generate", dir, "--prompt", "a", "--prompt-file", text}},
        {2, "none", {"generate", dir, "--prompt-file", none}},
        {2, "context", {"generate", dir, "--prompt", "0123456789", "--context", "10"}},
        {2, "line 1", {"generate", dir, "--batch-file", text}},
        {2, "is a directory", {"generate", dir, "--prompt-file", check_dir()}},
        {2, "ppl", {"eval", dir, "pl", "--data", text}},
        {2, "--data", {"eval", dir, "ppl"}},
        {2, "MODEL ppl", {"eval", dir}},
        {2, "none", {"eval", dir, "ppl", "--data", none}},
        {2, "--stride", {"eval", dir, "ppl", "--data", text, "--stride", "161"}},
        {2, "--context", {"eval", dir, "ppl", "--data", text, "--context", "0"}},
        {2, "--tokens", {"logits", dir}},
        {2, "none", {"logits", dir, "--tokens", none, "--out", out}},
        {2, "line 1", {"logits", dir, "--tokens", text, "--out", out}},
        {2, "none", {"info", none}},
        {2, "text", {"info", text}},
        {2, "--batch", {"info", dir, "--batch", "0"}},
        {2, "nosuch", {"bench", "nosuch"}},
        {2, "expected [ops", {"bench", "ops", "train"}},
        {2, "--batch", {"bench", "decode", "--batch", "1,0"}},
        {2, "--rule: expected kda", {"bench", "recur", "--rule", "kda,nosuch"}},
        {2, "--shape: expected", {"bench", "recur", "--shape", "1x2x3"}},
        {2, "--draw: expected greedy, top_k or host", {"bench", "decode", "--draw", "x"}},
        {2, "--graph: expected auto, off or both", {"bench", "decode", "--graph", "on"}},
        {2, "nosuch", {"bench", "train", "nosuch.key=1"}},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        const char *argv[10] = {"kvsmith"};
        for (int k = 0; k < 8 && c[i].arg[k]; k++) argv[k + 1] = c[i].arg[k];
        Ran r = check_run_argv(argv);
        for (char *p = r.err; *p; p++)
            *p = *p == 'N' && !strncmp(p, "No such", 7) ? 'n' : *p == 'I' && !strncmp(p, "Is a", 4) ? 'i' : *p;
        char msg[512];
        cr_assert(check_refused(msg, r, c[i].status, c[i].part), "case %zu (%s %s %s): %s", i, argv[1],
                  c[i].arg[2] ? c[i].arg[2] : "", c[i].arg[3] ? c[i].arg[3] : "", msg);
    }
    static const struct {
        const char *ids, *part;
    } ids[] = {{"1 2\n3\n", "line 2"},
               {"1 257\n", "257"},
               {"1 -2\n", "line 1"},
               {"\n \n", "no token ids"},
               {"99999999999999999999\n", "line 1"},
               {"1 2\n3 x\n", "line 2"}};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        check_write(bad, ids[i].ids, strlen(ids[i].ids));
        CHECK_REFUSED(RUN("logits", dir, "--tokens", bad, "--out", out), 2, ids[i].part);
    }
    check_write(bad, "1 2\n", 4);
    CHECK_REFUSED(RUN("logits", dir, "--tokens", bad, "--out", in_none), 2, NULL);
    CHECK_REFUSED(RUN("logits", dir, "--tokens", bad, "--out", ""), 2, "empty");
    CHECK_REFUSED(RUN("logits", dir, "--tokens", bad, "--out", check_dir()), 2, "found a directory");
    struct stat st;
    char *fifo = check_path("fifo"); /* a device would go the same way */
    cr_assert(!mkfifo(fifo, 0600));
    CHECK_REFUSED(RUN("logits", dir, "--tokens", bad, "--out", fifo), 2, "found a device or pipe");
    cr_assert(!stat(fifo, &st) && S_ISFIFO(st.st_mode), "the pipe was replaced by a file");
    static const char *const lines[] = {"{\"prompt\": 3}",      "{\"text\": \"a\"}",     "[\"a\"]",
                                        "{\"prompt\": \"a\"",   "{\"prompt\": \"a\"} x", "",
                                        "{\"prompt\":\"\xff\"}"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        check_write(bad, lines[i], strlen(lines[i]));
        CHECK_REFUSED(RUN("generate", dir, "--batch-file", bad), 2, "bad");
    }
    cr_assert(!check_exists(out), "a refused command left its output");
    free(in_none);
    speaker_close(&s);
}

/* Every beginning of every file of a model (but for the whole) is refused, by every command that opens it. */
Test(cli, truncated_files) {
    Speaker s;
    char *dir = model_dir(&s, "m", 0), *text = check_path("text");
    static const char *const names[] = {"model.safetensors", "config.json", "tokenizer.json", "generation_config.json"};
    check_write(text, "some text", 9);
    for (int f = 0; f < 4; f++) {
        char *path = xformat("%s/%s", dir, names[f]);
        size_t n;
        char *whole = check_read(path, &n);
        const size_t cut[] = {0, 1, 7, 8, 9, n / 3, n / 2, n - 9, n - 2};
        for (size_t k = 0; k < sizeof cut / sizeof *cut; k++) {
            check_write(path, whole, cut[k]);
            Ran r = k % 3 == 0   ? RUN("info", dir)
                    : k % 3 == 1 ? RUN("generate", dir, "--max-new", "1")
                                 : RUN("eval", dir, "ppl", "--data", text);
            char msg[512];
            cr_assert(check_refused(msg, r, 2, names[f]), "%s cut at %zu of %zu: %s", names[f], cut[k], n, msg);
        }
        check_write(path, whole, n);
        free(whole), free(path);
    }
    char *tok = xformat("%s/tokenizer.json", dir), *model = xformat("%s/model.safetensors", dir);
    cr_assert(unlink(tok) == 0);
    CHECK_REFUSED(RUN("generate", dir), 2, "tokenizer.json");
    Ran r = RUN("info", dir);
    cr_assert(r.status == 0, "%s", r.err); /* nothing that needs text */
    cr_assert(unlink(model) == 0);
    CHECK_REFUSED(RUN("info", dir), 2, "safetensors");
    free(tok), free(model);
    speaker_close(&s);
}

/* A child that writes to `out`; its pid. */
static pid_t start(int out, const char *const argv[]) {
    const char *prog = getenv("KVSMITH");
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0), dup2(out, 1), dup2(null, 2);
        execv(prog ? prog : KVSMITH_PATH, (char *const *)argv);
        _exit(127);
    }
    cr_assert(pid > 0);
    return pid;
}
static int ended(pid_t pid) {
    int st;
    cr_assert(waitpid(pid, &st, 0) == pid && WIFEXITED(st), "ended by a signal");
    return WEXITSTATUS(st);
}

Test(cli, full_disks_and_signals) {
    Speaker s;
    char *dir = model_dir(&s, "m", 0);
    int full = open("/dev/full", O_WRONLY);
    const char *const runs[][5] = {{"kvsmith", "info", dir},
                                   {"kvsmith", "info", dir, "--json"},
                                   {"kvsmith", "generate", dir},
                                   {"kvsmith", "generate", dir, "-q"}};
    for (int i = 0; i < 4; i++) cr_assert(ended(start(full, runs[i])) == 1, "run %d into a full disk", i);
    const char *const on[] = {"kvsmith", "generate",     dir, "--max-new", "1000000", "--context",
                              "1000000", "--ignore-eos", NULL};
    for (int i = 0; i < 2; i++) {
        int p[2];
        char c;
        cr_assert(pipe(p) == 0);
        pid_t pid = start(p[1], on);
        close(p[1]);
        cr_assert(read(p[0], &c, 1) == 1); /* it is at work */
        kill(pid, i ? SIGTERM : SIGINT);
        cr_assert(ended(pid) == 130);
        close(p[0]);
    }
    close(full);
    speaker_close(&s);
}
#endif
