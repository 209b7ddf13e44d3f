/* test_prefix.c: texts that begin alike share what they have in common. They get the bits of texts that compute
 * everything for themselves, with every mixer, policy and codec; and what is shared is computed and stored once. */
#include <jansson.h>
#include "infer/generate.h"
#include "infer/prefix.h"
#include "tests/lib/speaker.h"

enum { TEXTS = 9, LONG = 150, TAIL = 5 };
/* A family: all have 45 tokens in common; texts 2..5 have 40 more, of which 3 and 4 are equal and 5 ends there; text 6
 * begins otherwise after 3 tokens; 7 and 8 have 20 more in common, too few for a prefix. In no order. */
typedef struct {
    int tok[TEXTS][LONG];
    PrefixText text[TEXTS];
} Family;
static void family_make(Family *f, int V) {
    static const int place[TEXTS] = {4, 7, 0, 2, 8, 3, 1, 6, 5}, len[TEXTS] = {60, 72, 99, 120, 120, 86, 50, 80, 77};
    for (int k = 0; k < TEXTS; k++) {
        int *tok = f->tok[place[k]];
        for (int i = 0; i < LONG; i++) {
            uint64_t who = i < 45 ? 0 : k >= 2 && k <= 5 && i < 85 ? 1 : k >= 7 && i < 65 ? 2 : 10 + (uint64_t)k;
            if (k == 4 && who > 9) who = 13; /* as text 3 */
            if (k == 6 && i >= 3) who = 16;
            tok[i] = (int)(rng_uniform(rng_mix(77, who), (uint64_t)i) * (V - 1));
        }
        /* where texts branch they differ */
        if (k != 4) tok[45] = k >= 2 && k <= 5 ? 1 : k >= 7 ? 2 : 3 + k;
        if (k == 4) tok[45] = 1;
        if (k >= 2 && k <= 5) tok[85] = k == 4 ? 3 : k;
        if (k >= 7) tok[65] = k - 6;
        if (k == 6) tok[3] = f->tok[place[0]][3] ? 0 : 1;
        f->text[place[k]] = (PrefixText){len[k], tok};
    }
}
enum { COMPUTED = 45 + 40 + (60 - 45) + (72 - 45) + (99 - 85) + (119 - 85) + 1 + 1 + 1 + 50 + (80 - 45) + (77 - 45) };

static void session_with(Session *s, Speaker *r, SessionOpts o) {
    Err e = {0};
    o.document = -1;
    cr_assert(session_open(s, &r->m, o, &e), "%s", e.msg);
}
/* The last logits of every text, and after TAIL more tokens, in places of 3; tokens fed in all. */
static int walk(Speaker *r, const Family *f, int spare, bool apart, real *logits) {
    Session s;
    Prefixes p;
    Err e = {0};
    const size_t V = (size_t)r->V;
    int fed = 0;
    session_with(&s, r, (SessionOpts){.nseq = 3, .spare = spare, .max_tokens = LONG, .chunk = 16, .page_rows = 4});
    prefixes_open(&p, f->text, TEXTS, spare, apart);
    while (p.at < TEXTS) {
        Feed feed[3];
        int which[3], B = 0;
        for (; B < 3 && p.at < TEXTS; B++) {
            int have, computed;
            cr_assert(prefixes_next(&p, &s, B, &which[B], &have, &computed, &e), "%s", e.msg);
            const PrefixText *t = &f->text[which[B]];
            cr_assert(have >= 0 && have < t->n && session_length(&s, B) == have, "%d tokens of %d", have, t->n);
            feed[B] = (Feed){B, t->n - have, t->tok + have};
            fed += computed + t->n - have;
        }
        for (int step = 0; step <= TAIL; step++) {
            real *own = xcalloc(3 * V, sizeof *own);
            cr_assert(session_extend(&s, B, feed, WANT_LAST, TENSOR(own, REAL, B, r->V), &e), "%s", e.msg);
            for (int b = 0; b < B; b++) {
                if (!step) cr_assert(session_prompt_ends(&s, b, &e), "%s", e.msg);
                memcpy(logits + (size_t)(which[b] * (TAIL + 1) + step) * V, own + (size_t)b * V, V * sizeof(real));
                feed[b] = (Feed){b, 1, f->tok[which[b]] + LONG - 1 - step};
            }
            free(own);
        }
    }
    prefixes_close(&p);
    session_close(&s);
    return fed;
}
/* The same of each text alone in a session of its own. */
static void lone(Speaker *r, const Family *f, real *logits) {
    Err e = {0};
    for (int k = 0; k < TEXTS; k++) {
        Session s;
        session_with(&s, r, (SessionOpts){.nseq = 1, .max_tokens = LONG, .page_rows = 4});
        for (int step = 0; step <= TAIL; step++) {
            const Feed feed = {0, step ? 1 : f->text[k].n, step ? f->tok[k] + LONG - step : f->tok[k]};
            real *to = logits + (size_t)(k * (TAIL + 1) + step) * (size_t)r->V;
            cr_assert(session_extend(&s, 1, &feed, WANT_LAST, TENSOR(to, REAL, 1, r->V), &e), "%s", e.msg);
            if (!step) cr_assert(session_prompt_ends(&s, 0, &e), "%s", e.msg);
        }
        session_close(&s);
    }
}
static bool same_bits(const Animal *a, Keeping how, bool alone) {
    static const double TOL = sizeof(real) == 8 ? 1e-9 : 2e-4;
    Speaker r;
    Family f;
    if (!speaker_keeping(&r, a, &how, 1)) return false;
    family_make(&f, r.V);
    const size_t n = (size_t)(TEXTS * (TAIL + 1) * r.V);
    real *shared = xcalloc(n, sizeof *shared), *apart = xcalloc(n, sizeof *apart), *own = xcalloc(n, sizeof *own);
    const int depth = prefixes_depth(f.text, TEXTS), fed = walk(&r, &f, depth, false, shared);
    const int all = walk(&r, &f, depth, true, apart);
    int whole = 0;
    for (int k = 0; k < TEXTS; k++) whole += f.text[k].n;
    cr_assert(depth == 3 && fed == COMPUTED && all == whole, "%d prefixes, %d and %d tokens fed, expected %d and %d",
              depth, fed, all, COMPUTED, whole);
    for (size_t i = 0; i < n; i++)
        cr_assert(shared[i] == apart[i], "%s, policy %s, codec %s: logit %zu: %a shared, %a apart", a->name,
                  how.policy ? how.policy : "none", how.codec ? how.codec : "none", i, (double)shared[i],
                  (double)apart[i]);
    if (alone) lone(&r, &f, own);
    if (alone) CHECK_RELATIVE(a->name, shared, own, n, TOL);
    free(shared), free(apart), free(own);
    speaker_close(&r);
    return true;
}
Test(prefix, every_mixer_as_alone, .timeout = 120) {
    for (int i = 0; i < zoo_count(); i++) cr_assert(same_bits(&zoo[i], (Keeping){0}, true));
}
Test(prefix, every_policy, .timeout = 120) {
    static const char *const set[] = {"budget=40,", "budget=40,every=16,"};
    int n = 0;
    for (int k = 0; policy_at(k); k++)
        for (int every = 0; every < 2; every++) {
            const Policy *of = policy_at(k);
            char text[100] = "";
            bool budget = false, rests = false;
            const Key *key;
            for (int i = 0; (key = policy_key(of, i)); i++)
                budget |= !strcmp(key->name, "budget"), rests |= !strcmp(key->name, "every");
            if (of->role == POLICY_ROWS && every && !rests) continue;
            snprintf(text, sizeof text, "%s%s%s", of->name, budget ? ":" : "", budget ? set[rests ? every : 0] : "");
            if (budget) text[strlen(text) - 1] = 0;
            n += same_bits(&speaker_bytes, (Keeping){.policy = text}, false);
        }
    cr_assert(n >= 20, "%d policies", n);
}
Test(prefix, every_codec, .timeout = 120) {
    for (int k = 0; codec_at(k); k++)
        for (int i = 0; i < zoo_count(); i += 5) same_bits(&zoo[i], (Keeping){.codec = codec_at(k)->name}, false);
    cr_assert(same_bits(&zoo[0], (Keeping){.codec = "zipcache:share=0.3,probes=16"}, false));
    cr_assert(same_bits(&zoo[zoo_find("gqa")], (Keeping){.codec = "minicache:from=0,bits=8"}, false));
}
Test(prefix, bf16, .timeout = 120) {
    if (sizeof(real) == 8) return; /* matrices are doubles there */
    for (int i = 0; i < zoo_count(); i++) cr_assert(same_bits(&zoo[i], (Keeping){.bf16 = true}, false));
}

/* 16 sequences behind a prompt of 2,000 tokens: what is resident, and what is computed. */
Test(prefix, a_long_prompt_is_stored_once, .timeout = 120) {
    enum { MANY = 16, PROMPT = 2000, OWN = 3 };
    static const char *const animals[] = {"gqa", "mla", "dmc"};
    int *tok = xcalloc(MANY * (PROMPT + OWN), sizeof *tok), met = 0;
    for (int i = 0; i < zoo_count(); i++) {
        bool picked = false;
        for (int k = 0; k < 3; k++) picked |= !strcmp(zoo[i].name, animals[k]);
        if (!picked) continue;
        met++;
        Speaker r;
        Session s;
        Prefixes p;
        Err e = {0};
        PrefixText text[MANY];
        size_t one = 0;
        cr_assert(speaker_keeping(&r, &zoo[i], &(Keeping){0}, 1));
        for (int k = 0; k < MANY; k++) {
            int *own = tok + k * (PROMPT + OWN);
            for (int j = 0; j < PROMPT; j++) own[j] = (int)(rng_uniform(5, (uint64_t)j) * r.V);
            own[PROMPT] = k % r.V, own[PROMPT + 1] = k / r.V, own[PROMPT + 2] = 0;
            text[k] = (PrefixText){PROMPT + OWN, own};
        }
        session_with(&s, &r, (SessionOpts){.nseq = MANY, .spare = 1, .max_tokens = PROMPT + OWN, .page_rows = 8});
        prefixes_open(&p, text, MANY, 1, false);
        for (int k = 0, fed = 0; k < MANY; k++) {
            int which, have, computed;
            cr_assert(prefixes_next(&p, &s, k, &which, &have, &computed, &e), "%s", e.msg);
            fed += computed;
            cr_assert(have == PROMPT && fed == PROMPT, "%d tokens computed for %d texts", fed, k + 1);
            const Feed f = {k, OWN, text[which].tok + have};
            cr_assert(session_extend(&s, 1, &f, WANT_LAST, ABSENT, &e), "%s", e.msg);
            if (!k) one = session_bytes(&s, k);
        }
        cr_log_info("%s: %zu bytes for 16, %zu for one", zoo[i].name, session_resident(&s), one);
        cr_assert((double)session_resident(&s) <= 1.1 * (double)one, "%s: %zu bytes, one sequence %zu", zoo[i].name,
                  session_resident(&s), one);
        prefixes_close(&p);
        session_close(&s);
        speaker_close(&r);
    }
    cr_assert(met == 3, "%d models of that name", met);
    free(tok);
}

/* The program: a batch file whose prompts share, and the same with nothing shared. */
Test(prefix, generate_reads_a_batch, .timeout = 60) {
    char *run = check_path("run"), *dir = xformat("run.dir=%s", run), *file = check_path("batch.jsonl");
    static const char lines[] = "{\"prompt\":\"In the beginning God created the heaven\"}\n"
                                "{\"prompt\":\"short\"}\n"
                                "{\"prompt\":\"In the beginning God created the hills\"}\n";
    const int common = 1 + 34; /* end-of-text, then "In ... the h" */
    check_write(file, lines, sizeof lines - 1);
    Ran t = RUN("train", "configs/tiny-gqa.yaml", dir, "train.steps=1", "train.eval_every=0", "optim.warmup=0",
                "model.init_std=0.3", "run.threads=1", "-q");
    cr_assert_eq(t.status, 0, "%s", t.err);
    char *text[2];
    for (int off = 0; off < 2; off++) {
        Ran r = RUN("generate", run, "--batch-file", file, "--max-new", "12", "--json", "--threads", "1", "--batch",
                    "2", "--share-prefixes", off ? "off" : "auto");
        json_t *j = json_loads(r.out, 0, NULL), *list = json_object_get(j, "results");
        cr_assert(!r.status && json_array_size(list) == 3, "%s", r.err);
        int cached[3];
        for (size_t k = 0; k < 3; k++) {
            json_t *x = json_array_get(list, k);
            cached[k] = (int)json_integer_value(json_object_get(x, "cached_tokens"));
            static const char *const vary[] = {"prefill_s", "decode_s", "decode_tok_s", "cached_tokens"};
            for (int i = 0; i < 4; i++) json_object_del(x, vary[i]);
        }
        cr_assert(cached[0] == 0 && cached[1] == 0 && cached[2] == (off ? 0 : common), "%d %d %d of %d", cached[0],
                  cached[1], cached[2], common);
        text[off] = json_dumps(list, JSON_SORT_KEYS);
        json_decref(j);
        free(r.out), free(r.err);
    }
    cr_assert_str_eq(text[0], text[1]);
    CHECK_REFUSED(RUN("generate", run, "--share-prefixes", "on"), 2, "--share-prefixes: expected auto or off");
    free(text[0]), free(text[1]), free(run), free(dir), free(file);
}
