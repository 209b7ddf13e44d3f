/* test_sft_train.c: training on conversations: the loss is of the answers alone, a conversation sees no other, a run
 * goes on to the same bytes and learns; what is refused. */
#include "infer/eval/task_run.h"
#include "infer/session.h"
#include "train/feed.h"
#include "tests/lib/check.h"
#include "tests/lib/trial.h"

#ifdef KV_DOUBLE
    #define TOL 1e-11
#else
    #define TOL 2e-5
#endif

static const char yaml[] =
    "run: {dir: '%s', seed: 3, threads: 1}\n"
    "model:\n"
    "  d_model: 16\n"
    "  layers: 2\n"
    "  init_std: 0.2\n"
    "  kinds: {mix: {mixer: gqa, heads: 2, kv_heads: 1, head_dim: 8}}\n"
    "  ffn: {kind: swiglu, hidden: 24}\n"
    "data: {train: configs/chat.jsonl, sft: plain, val_fraction: 0.2, seq_len: 256}\n"
    "train: {steps: 8, batch: 4, micro_batch: 4, dtype: f32, eval_every: 4, save_every: 4, log_every: 1}\n"
    "optim: {lr: 0.02, min_lr: 0.002, warmup: 2, clip: 0.5}\n";

/* ---- a step ---------------------------------------------------------------------------------------------------------
 */

/* Loss and gradient of a step are those of the mean over the learned ids of the whole batch, however it is cut. */
Test(sft_train, loss_is_the_mean_over_answers) {
    static const char *const cut[] = {"train.micro_batch=1", "train.micro_batch=2", "train.micro_batch=4"};
    Config a, b;
    Trainer *u = trial_open(&b, yaml, 0, NULL);
    Loader *l = &u->loader;
    Err why = {0};
    cr_assert(u->feeder->train(u, 0, 4, &why), "%s", why.msg);
    double sum = 0, squares = 0;
    int count = 0, documents = 0;
    for (int i = 0; i < l->batch.N; i++) {
        count += l->tgt[i] >= 0, documents += l->batch.first[i] == i;
        cr_assert_eq(l->batch.pos[i], i - l->batch.first[i]);
        cr_assert_geq(l->batch.first[i], l->batch.off[l->batch.of[i]]);
    }
    cr_assert(count > 0 && count < l->batch.N * 2 / 3 && documents > 4 && l->batch.N < 4 * 256, "%d of %d rows, %d",
              count, l->batch.N, documents);
    for (int i = 0; i < l->batch.N; i++) u->g[i] = 1 / (real)count; /* of rows without a target it must not matter */
    model_zero_grad(&u->model);
    model_train(&u->model, &u->work, &l->batch, l->tok, l->tgt, u->g, u->nll);
    for (int i = 0; i < l->batch.N; i++) sum += (double)u->nll[i];
    for (int i = 0; i < u->params.n; i++)
        for (size_t k = 0; k < tensor_count(u->params.p[i].t[PARAM_GRAD]); k++)
            squares += pow((double)R(u->params.p[i].t[PARAM_GRAD])[k], 2);
    double loss = sum / count, norm = sqrt(squares);
    for (int k = 0; k < 3; k++) {
        Trainer *t = trial_open(&a, yaml, 1, &cut[k]);
        TrainRecord r = {0};
        Err e = {0};
        cr_assert(trainer_step(t, &r, &e), "%s", e.msg);
        CHECK_CLOSE("loss", &r.loss, &loss, 1, TOL);
        CHECK_CLOSE("norm", &r.grad_norm, &norm, 1, TOL);
        cr_assert_eq(t->run->state.tokens, 4 * 256, "tokens are the rows that windows have room for");
        trial_close(t, &a);
    }
    trial_close(u, &b);
}

/* What a session says of each conversation alone, one token at a time, is what validation says of packed windows. */
Test(sft_train, packed_is_as_alone) {
    static const char *const mixers[] = {"model.kinds.mix={mixer: gqa, heads: 2, window: 20, sinks: 2}",
                                         "model.kinds.mix={mixer: kda, heads: 2, head_dim: 8}",
                                         "model.kinds.mix={mixer: dmc, heads: 2}"};
    for (int m = 0; m < 3; m++) {
        Config cfg;
        Trainer *t = trial_open(&cfg, yaml, 2, (const char *[]){mixers[m], "train.micro_batch=2"});
        int V = cfg.model.vocab, n, asked = 0;
        real *logits = xcalloc((size_t)V, sizeof *logits);
        Session s;
        Err e = {0};
        ValRecord v;
        double nll = 0;
        cr_assert(t->sft.val.n >= 3 && t->sft.val.pack.n < t->sft.val.n, "%d in %d", t->sft.val.n, t->sft.val.pack.n);
        cr_assert(
            session_open(&s, &t->model, (SessionOpts){.nseq = 1, .max_tokens = 256, .chunk = 8, .document = -1}, &e));
        for (int i = 0; i < t->sft.val.n; i++) {
            const int *id = sft_piece(&t->sft, &t->sft.val, i, &n);
            session_reset(&s, 0);
            for (int k = 0; k + 1 < n; k++) {
                int tok = id[k] & ~CHAT_LEARN;
                Feed f = {0, 1, &tok};
                cr_assert(session_extend(&s, 1, &f, WANT_LAST, TENSOR(logits, REAL, 1, V), &e), "%s", e.msg);
                if (!(id[k + 1] & CHAT_LEARN)) continue;
                nll += logits_nll(logits, V, id[k + 1] & ~CHAT_LEARN, NULL);
                asked++;
            }
        }
        session_close(&s);
        cr_assert(trainer_validate(t, &v, &e), "%s", e.msg);
        cr_assert_eq(v.tokens, asked);
        double mean = nll / asked;
        CHECK_CLOSE(mixers[m], &v.loss, &mean, 1, TOL);
        free(logits);
        trial_close(t, &cfg);
    }
}

/* Windows to validate on: as many as hold train.eval_tokens rows. */
Test(sft_train, eval_tokens) {
    Config cfg;
    Trainer *t = trial_open(&cfg, yaml, 1, (const char *[]){"data.seq_len=120"});
    uint64_t all = t->feeder->val_count(t), n = loader_sft_val_windows(&t->sft, 1),
             m = loader_sft_val_windows(&t->sft, 130);
    cr_assert(all == (uint64_t)t->sft.val.pack.n && all > 2 && n == 1 && m == 2, "%d %d %d", (int)all, (int)n, (int)m);
    trial_close(t, &cfg);
}

/* ---- the program ----------------------------------------------------------------------------------------------------
 */

#ifndef KV_DOUBLE
static char *printed(Ran r) {
    cr_assert_eq(r.status, 0, "status %d: %s", r.status, r.err);
    free(r.err);
    return r.out;
}
static double number(const char *json, const char *key) {
    char *quoted = xformat("\"%s\":", key), *at = strstr(json, quoted);
    cr_assert(at, "no %s in %s", key, json);
    double v = strtod(at + strlen(quoted), NULL);
    free(quoted);
    return v;
}
    #define TINY       "configs/tiny-sft.yaml", "--threads", "1"
    #define TRAIN(...) printed(RUN("train", TINY, "--json", "-q", __VA_ARGS__))

static void same_file(const char *a, const char *b, const char *name) {
    char *x = xformat("%s/%s", a, name), *y = xformat("%s/%s", b, name);
    size_t n, m;
    char *p = check_read(x, &n), *q = check_read(y, &m);
    cr_assert_eq(n, m, "%s: %zu bytes, then %zu", name, n, m);
    CHECK_BYTES(name, p, q, n);
    free(x), free(y), free(p), free(q);
}

Test(sft_train, resumes_to_the_same_bytes) {
    char *a = check_path("a"), *b = check_path("b"), *da = xformat("run.dir=%s", a), *db = xformat("run.dir=%s", b),
         *la = xformat("%s/last", a), *lb = xformat("%s/last", b), *chat = check_path("chat.jsonl"),
         *train = xformat("data.train=%s", chat), *text = check_read("configs/chat.jsonl", NULL);
    static const char *const files[] = {"model.safetensors", "config.json", "trainer/optimizer.safetensors",
                                        "trainer/state.json", "tokenizer.json"};
    #define SAME "train.dropout=0.1", "optim.schedule_steps=20"
    check_write(chat, text, strlen(text));
    free(TRAIN(da, SAME, train));
    free(TRAIN(db, SAME, train, "train.steps=10"));
    free(TRAIN(db, SAME, train, "--resume", "auto"));
    for (int i = 0; i < 5; i++) same_file(la, lb, files[i]);
    #define AGAIN "train", TINY, "--resume", "auto", SAME, train, da
    CHECK_REFUSED(RUN(AGAIN, "data.sft.template=plain"), 2,
                  "data.sft.template: plain, but the run was begun with chatml");
    CHECK_REFUSED(RUN(AGAIN, "data.sft.learn=all"), 2, "data.sft.learn: all");
    char *yes = strstr(text, "Four.");
    memcpy(yes, "Five.", 5); /* as many ids, others */
    check_write(chat, text, strlen(text));
    CHECK_REFUSED(RUN(AGAIN), 2, "was trained on another text");
    free(a), free(b), free(da), free(db), free(la), free(lb), free(chat), free(train), free(text);
}

/* It learns answers by heart, and gives each when asked in the template's words, end-of-text and all. */
Test(sft_train, learns_and_answers) {
    static const char *const pairs[][2] = {{"Hot?", "Cold."}, {"Up?", "Down."}, {"Left?", "Right."}, {"In?", "Out."}};
    char *run = check_path("run"), *dir = xformat("run.dir=%s", run), *path = check_path("pairs.jsonl"),
         *train = xformat("data.train=%s", path), text[1024];
    int n = 0;
    for (int i = 0; i < 4; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "{\"instruction\":\"%s\",\"output\":\"%s\"}\n", pairs[i][0],
                      pairs[i][1]);
    check_write(path, text, (size_t)n);
    Ran r = RUN("train", TINY, dir, train, "data.sft.template=plain", "data.seq_len=64", "train.steps=120",
                "train.eval_every=0", "data.val_fraction=0", "optim.lr=1e-2", "optim.min_lr=1e-3", "train.save_every=0",
                "--json");
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_assert(strstr(r.err, "4 conversations in 2 windows") && !strstr(r.err, "is not a token"), "%s", r.err);
    cr_assert(number(r.out, "loss") < 0.1, "%s", r.out);
    for (int i = 0; i < 4; i++) {
        char *prompt = xformat("User:\n%s\n\nAssistant:\n", pairs[i][0]), *want = xformat("%s\n", pairs[i][1]);
        char *got = printed(
            RUN("generate", run, "--prompt", prompt, "--temperature", "0", "--max-new", "20", "--threads", "1", "-q"));
        cr_assert_str_eq(got, want);
        free(got), free(prompt), free(want);
    }
    free(r.out), free(r.err), free(run), free(dir), free(path), free(train);
}

/* A Jinja template of the model that a run starts from goes along, byte for byte, through stages of text; a stage of
 * conversations writes its own, also when it is resumed. */
Test(sft_train, copies_the_jinja_template) {
    static const char jinja[] = "{% for m in messages %}\n\t{{ m.content }}\xe2\x80\xa6{% endfor %}";
    char *a = check_path("a"), *b = check_path("b"), *da = xformat("run.dir=%s", a), *db = xformat("run.dir=%s", b),
         *from = xformat("init_from=%s/last", a), *file = xformat("%s/last/chat_template.jinja", a),
         *config = xformat("%s/last/tokenizer_config.json", a), *got = xformat("%s/last/chat_template.jinja", b),
         *copied = xformat("%s/last/tokenizer_config.json", b);
    #define STAGES                                                                                              \
        "stages=[{name: text, steps: 2, set: {data.train: README.md, data.sft: none}}, {name: more, steps: 1, " \
        "set: {data.train: README.md, data.sft: none}}"
    free(TRAIN(da, "train.steps=1", "optim.warmup=0"));
    check_write(file, jinja, sizeof jinja - 1);
    static const char settings[] =
        "{\"model_max_length\": 1000000000000000019884624838656, \"chat_template\": \"{{ 1 }}\\n\"}";
    check_write(config, settings, sizeof settings - 1);
    free(TRAIN(db, from, STAGES "]", "train.steps=3", "optim.warmup=0"));
    for (int resumed = 0; resumed < 3; resumed++) {
        size_t n;
        char *text = check_read(got, &n), *own = check_read(copied, NULL);
        if (resumed)
            cr_assert(strstr(text, "'<|im_start|>user\\n'") && strstr(own, "'<|im_start|>user\\\\n'"), "%s %s", text,
                      own);
        else
            cr_assert(n == sizeof jinja - 1 && !memcmp(text, jinja, n) &&
                          strstr(own, "\"chat_template\": \"{{ 1 }}\\n\""),
                      "%s %s", text, own);
        cr_assert(strstr(own, "\"eos_token\""), "%s", own);
        free(text), free(own);
        if (!resumed)
            free(TRAIN(db, from, STAGES ", {name: chat, steps: 1}]", "train.steps=4", "optim.warmup=0", "--resume",
                       "auto"));
        if (resumed == 1)
            free(TRAIN(db, from, STAGES ", {name: chat, steps: 2}]", "train.steps=5", "optim.warmup=0", "--resume",
                       "auto"));
    }
    free(a), free(b), free(da), free(db), free(from), free(file), free(config), free(got), free(copied);
}

/* The same with merges: markers that are ids, what begins a conversation, and where an answer ends. The Jinja template
 * beside the tokenizer, which is another, gives way to their own. */
Test(sft_train, learns_and_answers_with_merges) {
    static const struct {
        const char *tokenizer, *template, *prompt;
    } with[] = {
        {"qwen2-chatml", "chatml", "<|im_start|>user\nHot?<|im_end|>\n<|im_start|>assistant\n"},
        {"llama3-llama3", "llama3",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHot?<|eot_id|><|start_header_id|>assistant"
         "<|end_header_id|>\n\n"},
        {"llama2-chatml", "plain", "User:\nHot?\n\nAssistant:\n"}};
    static const char text[] = "{\"instruction\":\"Hot?\",\"output\":\"Cold.\"}\n"
                               "{\"instruction\":\"Up?\",\"output\":\"Down.\"}\n";
    char *run = check_path("run"), *dir = xformat("run.dir=%s", run), *path = check_path("pairs.jsonl"),
         *train = xformat("data.train=%s", path), *own = check_path("tokenizer.json"),
         *tok = xformat("data.tokenizer=%s", own), *jinja = check_path("chat_template.jinja"),
         *got = xformat("%s/last/chat_template.jinja", run);
    check_write(path, text, sizeof text - 1);
    check_write(jinja, "{{ 1 }}", 7);
    for (int i = 0; i < 3; i++) {
        char *from = xformat("tests/golden/sft/%s.json", with[i].tokenizer),
             *as = xformat("data.sft=%s", with[i].template);
        size_t n;
        char *json = check_read(from, &n), *clean = xformat("rm -rf '%s'", run);
        check_write(own, json, n);
        cr_assert_eq(system(clean), 0);
        Ran r = RUN("train", TINY, dir, train, tok, as, "data.seq_len=64", "train.steps=80", "train.eval_every=0",
                    "data.val_fraction=0", "optim.lr=1e-2", "optim.min_lr=1e-3", "train.save_every=0", "--json");
        cr_assert_eq(r.status, 0, "%s", r.err);
        cr_assert(strstr(r.err, "2 conversations in 1 windows") && !strstr(r.err, "is not a token"), "%s", r.err);
        char *said = printed(RUN("generate", run, "--prompt", with[i].prompt, "--temperature", "0", "--max-new", "20",
                                 "--threads", "1", "--json"));
        cr_assert(strstr(said, "\"text\":\"Cold.\"") && strstr(said, "\"finish\":\"eos\""), "%s", said);
        char *copied = check_read(got, NULL);
        cr_assert(strstr(copied, "{% for message in messages %}"), "%s", copied);
        cr_assert(strstr(r.err, "checkpoints get that of data.sft"), "%s", r.err);
        free(from), free(as), free(json), free(clean), free(r.out), free(r.err), free(said), free(copied);
    }
    free(run), free(dir), free(path), free(train), free(own), free(tok), free(jinja), free(got);
}

/* What the source says of generation stays, and every id that ended a text there still does; the template's end comes
 * last. A resumed run writes the same. */
Test(sft_train, keeps_settings_of_generation) {
    char *a = check_path("a"), *b = check_path("b"), *da = xformat("run.dir=%s", a), *db = xformat("run.dir=%s", b),
         *from = xformat("init_from=%s/last", a), *file = xformat("%s/last/generation_config.json", a),
         *got = xformat("%s/last/generation_config.json", b), *config = xformat("%s/last/config.json", b);
    static const char tok[] = "data.tokenizer=tests/golden/sft/qwen2-chatml.json";
    static const char settings[] =
        "{\"bos_token_id\": 3, \"do_sample\": true, \"eos_token_id\": [7, 5], \"pad_token_id\": "
        "7, \"temperature\": 0.6, \"top_p\": 0.95}";
    Tokenizer t;
    Err e = {0};
    HfIds ids;
    cr_assert(tokenizer_open(&t, "tests/golden/sft/qwen2-chatml.json", NULL, &e), "%s", e.msg);
    free(TRAIN(da, tok, "train.steps=1", "optim.warmup=0", "train.eval_every=0"));
    check_write(file, settings, sizeof settings - 1);
    for (int resumed = 0; resumed < 2; resumed++) {
        if (resumed)
            free(TRAIN(db, from, tok, "train.steps=2", "optim.warmup=0", "train.eval_every=0", "--resume", "auto"));
        else
            free(TRAIN(db, from, tok, "train.steps=1", "optim.warmup=0", "train.eval_every=0"));
        json_t *j = json_read(got, &e), *c = json_read(config, &e);
        cr_assert(j && c && json_is_true(json_object_get(j, "do_sample")), "%s", e.msg);
        cr_assert_eq(json_number_value(json_object_get(j, "temperature")), 0.6);
        cr_assert_eq(json_number_value(json_object_get(j, "top_p")), 0.95);
        cr_assert_eq(json_integer_value(json_object_get(j, "pad_token_id")), 7);
        char *dir = xformat("%s/last", b);
        cr_assert(hf_ids_read(dir, &ids, &e), "%s", e.msg);
        cr_assert(ids.neos == 4 && ids.eos[0] == 7 && ids.eos[1] == 5 && ids.eos[2] == t.eot &&
                      ids.eos[3] == tokenizer_find(&t, "<|im_end|>"),
                  "%d ids", ids.neos);
        cr_assert(json_equal(json_object_get(j, "eos_token_id"), json_object_get(c, "eos_token_id")));
        json_decref(j), json_decref(c);
        free(dir);
    }
    tokenizer_close(&t);
    free(a), free(b), free(da), free(db), free(from), free(file), free(got), free(config);
}

/* What generate puts before a prompt: nothing, where the prompt begins with a special token. */
Test(sft_train, prompts_of_chats) {
    static const struct {
        const char *prompt;
        int tokens;
    } asked[] = {{"king", 2}, {"<s>king", 2}, {"<|endoftext|>king", 2}, {"kingking", 3}};
    for (int i = 0; i < 4; i++) {
        char *got = printed(RUN("generate", "tests/golden/choices/llama3", "--prompt", asked[i].prompt, "--max-new",
                                "1", "--threads", "1", "--json"));
        cr_assert_eq((int)number(got, "prompt_tokens"), asked[i].tokens, "%s: %s", asked[i].prompt, got);
        free(got);
    }
}

Test(sft_train, says_what_was_lost) {
    char *run = check_path("run"), *dir = xformat("run.dir=%s", run);
    Ran r = RUN("train", TINY, dir, "data.sft.template=llama3", "data.seq_len=192", "train.steps=1", "optim.warmup=1",
                "data.sft.too_long=drop");
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_assert(strstr(r.out, "too long: 0 were cut,") && strstr(r.out, "dropped; <|start_header_id|> is not a token of"),
              "%s", r.out);
    free(run), free(dir);
}

Test(sft_train, refusals) {
    static const struct {
        const char *line, *part;
    } bad[] = {
        {"{\"text\":\"x\"}", ":2: expected {\"messages\": [...]}, {\"conversations\": [...]} or {\"instruction\""},
        {"{\"messages\":{}}", ":2: \"messages\": expected a list of at least one, found an object"},
        {"{\"messages\":[]}", "found an empty one"},
        {"{\"messages\":[1]}", ":2: messages.0: expected an object, found a number"},
        {"{\"messages\":[{\"content\":\"x\"}]}",
         "messages.0: \"role\": expected system, user or assistant, found nothing"},
        {"{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", "user or assistant, found tool"},
        {"{\"messages\":[{\"role\":\"user\"}]}", ":2: messages.0: \"content\": expected a text, found nothing"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
         "\"content\": expected a text, found a list"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
         ":2: \"messages\": expected at least one message of the assistant"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"weight\":0}]}",
         "expected at least one message of the assistant"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"weight\":0.5}]}", "\"weight\": expected 0 or 1"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{}]}]}",
         "\"tool_calls\": no built-in template"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}],\"tools\":[{}]}",
         "\"tools\": no built-in template"},
        {"{\"instruction\":\"x\"}", ":2: \"output\": expected a text, found nothing"},
        {"{\"instruction\":1,\"output\":\"x\"}", ":2: \"instruction\": expected a text, found a number"},
        {"{\"instruction\":\"x\",\"output\":\"y\",\"input\":{}}", ":2: \"input\": expected a text, found an object"},
        {"{\"instruction\":\"x\",\"output\":\"y\"", ":2: not valid JSON"},
    };
    char *path = check_path("bad.jsonl"), *train = xformat("data.train=%s", path), *run = check_path("run"),
         *dir = xformat("run.dir=%s", run), *val = xformat("data.val=%s", path);
    #define START "train", TINY, dir
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *text = xformat("{\"instruction\":\"x\",\"output\":\"y\",\"input\":\"\"}\n%s\n", bad[i].line);
        check_write(path, text, strlen(text));
        CHECK_REFUSED(RUN(START, train), 2, bad[i].part);
        free(text);
    }
    check_write(path, "\n", 1);
    CHECK_REFUSED(RUN(START, train), 2, "no conversation in it");
    CHECK_REFUSED(RUN(START, val), 2, "no conversation in it");
    CHECK_REFUSED(RUN(START, "data.train=tests"), 2, "tests");
    CHECK_REFUSED(RUN(START, "data.seq_len=8", "data.sft.too_long=drop"), 2,
                  "no conversation is left to train on (16 were");
    CHECK_REFUSED(RUN(START, "data.seq_len=8"), 2, "no conversation is left to train on (16 were");
    CHECK_REFUSED(RUN(START, "data.train=[{path: configs/chat.jsonl, weight: 2}]"), 2, "have no weights");
    CHECK_REFUSED(RUN(START, "data.separator=x"), 2, "a line is a conversation, but data.separator is given");
    CHECK_REFUSED(RUN(START, "data.train=", "data.val_fraction=0", "data.task=copy"), 2,
                  "but data.sft is given; remove one");
    CHECK_REFUSED(RUN(START, "data.sft.template=chatlm"), 2,
                  "expected one of none, chatml, llama3, alpaca, plain, got chatlm");
    CHECK_REFUSED(RUN(START, "data.sft.learn=none"), 2, "data.sft.learn");
    CHECK_REFUSED(RUN(START, "data.sft.pack=1"), 2, "data.sft.pack");
    CHECK_REFUSED(RUN(START, "train.stop_at_acc=0.5"), 2, "train.stop_at_acc");
    static const char one[] = "{\"instruction\":\"x\",\"output\":\"y\"}\n";
    check_write(path, one, sizeof one - 1);
    CHECK_REFUSED(RUN(START, train), 2, "no conversation is left to train on");
    cr_assert(!check_exists(run), "a refusal left the run's folder");
    free(path), free(train), free(run), free(dir), free(val);
}
#endif
