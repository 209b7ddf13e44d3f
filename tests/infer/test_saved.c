/* test_saved.c: a sequence in a file. Restored into another session it continues with the same bits, whatever mixer,
 * codec and policy; what is damaged, hostile or of another model is refused. */
#include <jansson.h>
#include "infer/saved.h"
#include "tests/lib/rig.h"
#include "tests/lib/speaker.h"

enum { LONG = 130, PROMPT = 70, STEPS = 40, MODEL = 0x1234 };

static void session_with(Session *s, Speaker *r, SessionOpts o) {
    Err e = {0};
    cr_assert(session_open(s, &r->m, o, &e), "%s", e.msg);
}
static void feed(Session *s, int seq, int n, const int *tok, real *logits) {
    Err e = {0};
    const Tensor out = logits ? TENSOR(logits, REAL, 1, s->model->cfg.vocab) : ABSENT;
    cr_assert(session_extend(s, 1, &(Feed){seq, n, tok}, WANT_LAST, out, &e), "%s", e.msg);
}
/* Tokens of several documents; the newest is longer than any window and delay. */
static void tokens(const Speaker *r, int *tok) {
    for (int i = 0; i < LONG; i++) tok[i] = (int)(rng_uniform(41, (uint64_t)i) * (r->V - 1));
    tok[11] = r->document;
}
static void save(const Session *s, int seq, const int *tok, const char *path) {
    Err e = {0};
    const int n = session_length(s, seq);
    const SavedText t = {.n = n + 1, .length = n, .tok = tok, .draws = 3, .seed = 9};
    cr_assert(saved_write(s, seq, path, &t, MODEL, &e), "%s", e.msg);
}
static void restore(Session *s, int seq, const char *path, const int *tok, int n) {
    Saved f;
    Err e = {0};
    cr_assert(saved_open(&f, path, &e) && saved_restore(&f, s, seq, MODEL, &e), "%s", e.msg);
    cr_assert(f.text.n == n + 1 && f.text.length == n && f.text.draws == 3 && f.text.seed == 9 &&
              !memcmp(f.text.tok, tok, (size_t)f.text.n * sizeof *tok));
    saved_close(&f);
}
static bool continues(const Animal *a, Keeping how) {
    Keeping other = how;
    Speaker r, two; /* the same model on one thread and on two */
    if (!speaker_keeping(&r, a, &how, 1)) return false;
    cr_assert(speaker_keeping(&two, a, &other, 2));
    int tok[LONG];
    tokens(&r, tok);
    char *path = check_path("a.session"), *again = check_path("b.session");
    Session s, t;
    real *want = xcalloc((size_t)r.V, sizeof *want), *got = xcalloc((size_t)r.V, sizeof *got);
    session_with(&s, &r,
                 (SessionOpts){.nseq = 2, .max_tokens = LONG, .chunk = 16, .page_rows = 4, .document = r.document});
    feed(&s, 1, PROMPT, tok, NULL);
    Err e = {0};
    cr_assert(session_prompt_ends(&s, 1, &e), "%s", e.msg);
    for (int i = 0; i < 5; i++) feed(&s, 1, 1, tok + PROMPT + i, NULL);
    const int n = session_length(&s, 1), at = PROMPT + 5;
    save(&s, 1, tok + at - n, path);
    /* in another place of a session of another size, which has been used */
    session_with(
        &t, &two,
        (SessionOpts){.nseq = 3, .max_tokens = LONG + 50, .chunk = 16, .page_rows = 4, .document = r.document});
    for (int q = 0; q < 3; q++) feed(&t, q, 9 + q, tok, NULL);
    restore(&t, 2, path, tok + at - n, n);
    cr_assert(session_length(&t, 2) == n && session_bytes(&t, 2) == session_bytes(&s, 1));
    save(&t, 2, tok + at - n, again);
    size_t x, y;
    char *p = check_read(path, &x), *q = check_read(again, &y);
    const bool undefined = n < 8; /* carried rows from before the document */
    cr_assert(x == y && (undefined || !memcmp(p, q, x)), "%s: saved again, the file differs", a->name);
    for (int i = at; i < at + STEPS; i++) {
        feed(&s, 1, 1, tok + i, want), feed(&t, 2, 1, tok + i, got);
        cr_assert(!memcmp(want, got, (size_t)r.V * sizeof *want), "%s, policy %s, codec %s: token %d", a->name,
                  how.policy ? how.policy : "none", how.codec ? how.codec : "none", i - at);
        cr_assert(session_bytes(&t, 2) == session_bytes(&s, 1));
    }
    free(p), free(q), free(path), free(again), free(want), free(got);
    session_close(&s), session_close(&t);
    speaker_close(&r), speaker_close(&two);
    return true;
}
Test(saved, every_mixer_continues, .timeout = 120) {
    for (int i = 0; i < zoo_count(); i++) cr_assert(continues(&zoo[i], (Keeping){0}));
    cr_assert(continues(&speaker_bytes, (Keeping){0}));
}
Test(saved, every_codec_continues, .timeout = 120) {
    for (int k = 0; codec_at(k); k++)
        for (int i = k; i < zoo_count(); i += 8) continues(&zoo[i], (Keeping){.codec = codec_at(k)->name});
    cr_assert(continues(&speaker_bytes, (Keeping){.codec = "int4:group=64,rotate=yes"}));
    cr_assert(continues(&zoo[0], (Keeping){.codec = "zipcache:share=0.3,probes=16"}));
    cr_assert(continues(&zoo[zoo_find("gqa")], (Keeping){.codec = "minicache:from=0,bits=8"}));
    for (int i = 0; sizeof(real) == 4 && i < zoo_count(); i += 2)
        cr_assert(continues(&zoo[i], (Keeping){.bf16 = true}));
}
Test(saved, every_policy_continues, .timeout = 120) {
    int n = 0;
    for (int k = 0; policy_at(k); k++)
        for (int every = 0; every < 2; every++) {
            const Policy *of = policy_at(k);
            char text[100];
            bool budget = false, rests = false;
            const Key *key;
            for (int i = 0; (key = policy_key(of, i)); i++)
                budget |= !strcmp(key->name, "budget"), rests |= !strcmp(key->name, "every");
            if (every && !rests) continue;
            snprintf(text, sizeof text, "%s%s%s", of->name, budget ? ":budget=40" : "",
                     !rests   ? ""
                     : budget ? (every ? ",every=16" : ",every=0")
                     : every  ? ":every=16"
                              : ":every=0");
            n += continues(&speaker_bytes, (Keeping){.policy = text});
            if (of->role == POLICY_ROWS && of->ask.whom == ASK_ALL)
                n += continues(&speaker_bytes, (Keeping){.policy = text, .codec = "int8"});
        }
    cr_assert(n >= 24, "%d policies", n);
}

/* ---- files that are not right ---------------------------------------------------------------------------------------
 */
typedef struct {
    Speaker r;
    Session s;
    Keeping how;
    char *path;
    int tok[LONG];
} Shelf;
static void shelf_open(Shelf *x, const Animal *a, Keeping how, int rows) {
    x->how = how;
    x->path = check_path("shelf.session");
    cr_assert(speaker_keeping(&x->r, a, &x->how, 1));
    tokens(&x->r, x->tok);
    session_with(&x->s, &x->r,
                 (SessionOpts){.nseq = 2, .max_tokens = LONG, .chunk = 16, .page_rows = 4, .document = -1});
    feed(&x->s, 0, rows, x->tok, NULL);
    save(&x->s, 0, x->tok, x->path);
}
static void shelf_close(Shelf *x) {
    free(x->path);
    session_close(&x->s);
    speaker_close(&x->r);
}
static bool opens(const char *path, Err *e) {
    Saved f;
    *e = (Err){0};
    if (!saved_open(&f, path, e)) {
        cr_assert(e->status == EXIT_INPUT && *e->msg, "status %d: %s", e->status, e->msg);
        return false;
    }
    saved_close(&f);
    return true;
}
Test(saved, damage_is_found, .timeout = 60) {
    Shelf x;
    Err e;
    shelf_open(&x, &zoo[zoo_find("dmc")], (Keeping){0}, 5);
    size_t n;
    char *bytes = check_read(x.path, &n);
    cr_assert(n > 1000 && n < 30000 && opens(x.path, &e), "%zu bytes", n);
    char *bad = check_path("bad.session");
    for (size_t i = 0; i < n; i++) { /* each byte has one bit turned, at times another than blanks that pad */
        bytes[i] ^= (char)(1 << i % 7);
        check_write(bad, bytes, n);
        cr_assert(!opens(bad, &e), "byte %zu of %zu is damaged and the file opens", i, n);
        bytes[i] ^= (char)(1 << i % 7);
    }
    for (size_t i = 0; i < n; i += 1 + i / 64) {
        check_write(bad, bytes, i);
        cr_assert(!opens(bad, &e), "cut at %zu of %zu the file opens", i, n);
    }
    free(bytes), free(bad);
    shelf_close(&x);
}
/* What a file says is not believed: parts with other content, but a right checksum. */
static void lies(Shelf *x, uint64_t draw, int *refused) {
    Saved f;
    Err e = {0};
    Dice d = {rng_mix(0x11E5, draw), 0};
    cr_assert(saved_open(&f, x->path, &e), "%s", e.msg);
    KvParts in = {.n = f.parts.n, .part = xcalloc((size_t)f.parts.n, sizeof(KvPart))};
    for (int i = 0; i < in.n; i++) {
        in.part[i] = f.parts.part[i];
        char *p = xcalloc(in.part[i].bytes, 1);
        memcpy(p, f.parts.part[i].p, in.part[i].bytes);
        in.part[i].p = p;
    }
    const int which = roll(&d, in.n);
    KvPart *t = &in.part[which];
    static const int words[] = {-1, 0, 1, 3, 4, 5, 1 << 20, INT32_MAX, INT32_MIN, 60, 61, 59};
    bool is_i32 = !strcmp(t->dtype, "I32");
    if (is_i32 && roll(&d, 4))
        memcpy((char *)t->p + 4 * (size_t)roll(&d, (int)t->n), &words[roll(&d, 12)], 4);
    else if (roll(&d, 2))
        t->n = roll(&d, 2) ? t->n + 1 : t->n - 1;
    else if (roll(&d, 2))
        t->dtype = "F16";
    else
        snprintf(t->name, sizeof t->name, "slot.%d.pos", roll(&d, 9));
    const int length = roll(&d, 5) ? f.text.length : f.text.length - 1 + 2 * roll(&d, 2);
    if (!kv_restore(&x->s.cache, 1, length, &in, &e)) {
        cr_assert(e.status == EXIT_INPUT && *e.msg && session_length(&x->s, 1) == 0);
        ++*refused;
    } else { /* it says something that may be: then it can be continued */
        x->s.next[1] = length;
        for (int i = 0; i < 20; i++) feed(&x->s, 1, 1, x->tok + i, NULL);
        session_reset(&x->s, 1);
    }
    kv_parts_free(&in);
    saved_close(&f);
}
Test(saved, hostile_parts_do_no_harm, .timeout = 60) {
    static const char *const animals[] = {"dmc", "window with sinks", "kda", "gqa"};
    for (int i = 0; i < 5; i++) {
        Shelf x;
        int refused = 0;
        shelf_open(&x, i < 4 ? &zoo[zoo_find(animals[i])] : &speaker_bytes,
                   (Keeping){.policy = i == 4 ? "h2o:budget=40,every=16" : NULL}, 60);
        for (uint64_t draw = 0; draw < 300; draw++) lies(&x, draw + 1000 * (uint64_t)i, &refused);
        cr_assert(refused > 150 && refused < 300, "%d of 300 refused", refused);
        shelf_close(&x);
    }
}
static void refused(const char *path, Session *s, uint64_t model, const char *part) {
    Saved f;
    Err e = {0};
    cr_assert(saved_open(&f, path, &e), "%s", e.msg);
    cr_assert(!saved_restore(&f, s, 0, model, &e) && e.status == EXIT_INPUT && strstr(e.msg, part), "%s", e.msg);
    saved_close(&f);
}
Test(saved, others_are_refused) {
    static const Keeping others[] = {{.codec = "int8"}, {.policy = "knorm:budget=40"}, {.bf16 = true}};
    static const char *const why[] = {"saved with codec f32, but this session has int8",
                                      "saved with policy none, but this session has knorm:budget=40",
                                      "saved with dtype f32, but this session has bf16"};
    Shelf x;
    shelf_open(&x, &speaker_bytes, (Keeping){0}, 60);
    refused(x.path, &x.s, MODEL + 1, "saved with model 0000000000001234, but this session has 0000000000001235");
    for (int i = 0; i < 3; i++) {
        Keeping how = others[i];
        Speaker r;
        Session s;
        if (how.bf16 && sizeof(real) == 8) continue;
        cr_assert(speaker_keeping(&r, &speaker_bytes, &how, 1));
        session_with(&s, &r, (SessionOpts){.nseq = 1, .max_tokens = LONG, .document = -1});
        refused(x.path, &s, MODEL, why[i]);
        session_close(&s);
        speaker_close(&r);
    }
    Session small;
    session_with(&small, &x.r, (SessionOpts){.nseq = 1, .max_tokens = 40, .document = -1});
    refused(x.path, &small, MODEL, "60 tokens, but the context has 40");
    session_close(&small);
    shelf_close(&x);
}

/* ---- back to a place ------------------------------------------------------------------------------------------------
 */
Test(saved, rewinds_where_every_row_is_kept, .timeout = 60) {
    int went = 0;
    for (int i = 0; i < zoo_count(); i++) {
        Speaker r;
        Session s;
        int tok[LONG];
        cr_assert(speaker_keeping(&r, &zoo[i], &(Keeping){0}, 1));
        tokens(&r, tok);
        real *want = xcalloc((size_t)r.V, sizeof *want), *got = xcalloc((size_t)r.V, sizeof *got);
        bool can = true;
        for (int l = 0; l < r.m.L; l++) {
            const KvShape *k = &r.m.layer[l].rows;
            can &= !r.m.layer[l].owner || (!k->state && !k->carry_rows && !k->evicts && !k->window);
        }
        session_with(&s, &r, (SessionOpts){.nseq = 3, .max_tokens = LONG, .chunk = 16, .page_rows = 4, .document = -1});
        feed(&s, 0, 37, tok, NULL), feed(&s, 0, 5, tok + 37, want);
        feed(&s, 1, 37, tok, NULL), feed(&s, 1, 60, tok + 40, NULL);
        session_fork(&s, 1, 2); /* keeps the rows that sequence 1 shares */
        const int now = session_rewind(&s, 1, 37);
        cr_assert(now == (can ? 37 : 0), "%s: went back to %d", zoo[i].name, now);
        cr_assert(session_length(&s, 1) == now);
        went += now > 0;
        if (!now) feed(&s, 1, 37, tok, NULL);
        feed(&s, 1, 5, tok + 37, got);
        cr_assert(!memcmp(want, got, (size_t)r.V * sizeof *want), "%s: other logits after going back", zoo[i].name);
        /* the fork, which shared the rows that were cut, is what it was */
        session_reset(&s, 0);
        feed(&s, 0, 37, tok, NULL), feed(&s, 0, 60, tok + 40, NULL), feed(&s, 0, 1, tok, want);
        feed(&s, 2, 1, tok, got);
        cr_assert(!memcmp(want, got, (size_t)r.V * sizeof *want), "%s: the fork has changed", zoo[i].name);
        free(want), free(got);
        session_close(&s);
        speaker_close(&r);
    }
    cr_assert(went > 10, "%d models", went);
}

/* Where states are marked, a sequence goes back to the last mark before, in the session and in one that was saved and
 * restored, to the same bits as a sequence that was fed no more. */
static int goes_back(const Animal *a) {
    enum { CHUNK = 16, AT = 32 }; /* marks at 16, 32 and at the ends of feeds of several tokens */
    Speaker r;
    Session s, t;
    Err e = {0};
    int tok[LONG], went = 0;
    cr_assert(speaker_keeping(&r, a, &(Keeping){0}, 1));
    tokens(&r, tok);
    real *want = xcalloc((size_t)r.V, sizeof *want), *got = xcalloc((size_t)r.V, sizeof *got);
    const SessionOpts o = {.nseq = 3, .max_tokens = LONG, .chunk = CHUNK, .page_rows = 4, .document = -1, .marks = 12};
    session_with(&s, &r, o), session_with(&t, &r, o);
    char *path = check_path("m.session");
    feed(&s, 1, 37, tok, NULL);
    for (int i = 37; i < 45; i++) feed(&s, 1, 1, tok + i, NULL);
    save(&s, 1, tok + 45 - session_length(&s, 1), path);
    Saved file;
    cr_assert(saved_open(&file, path, &e) && saved_restore(&file, &t, 2, MODEL, &e), "%s", e.msg);
    saved_close(&file);
    const bool marks = kv_mark_bytes(&s.cache) > 0;
    for (int again = 0; again < 2; again++) {
        Session *x = again ? &t : &s;
        const int seq = again ? 2 : 1, now = session_rewind(x, seq, 36);
        if (!marks) break; /* rows are cut: the test above */
        cr_assert(now == AT || now == 0, "%s: went back to %d", a->name, now);
        if (!now) continue; /* a window has let rows go */
        went++;
        feed(&s, 0, now, tok, NULL), feed(&s, 0, 5, tok + 60, want);
        feed(x, seq, 5, tok + 60, got);
        cr_assert(!memcmp(want, got, (size_t)r.V * sizeof *want), "%s: other logits after going back to %d", a->name,
                  now);
        session_reset(&s, 0);
        cr_assert(session_rewind(x, seq, 20) == CHUNK, "%s: not back to an older mark", a->name);
        cr_assert(session_rewind(x, seq, 15) == 0, "%s: back before the first mark", a->name);
    }
    free(want), free(got), free(path);
    session_close(&s), session_close(&t);
    speaker_close(&r);
    return went;
}
Test(saved, states_go_back_to_marks, .timeout = 120) {
    int went = 0;
    for (int i = 0; i < zoo_count(); i++) went += goes_back(&zoo[i]);
    cr_assert(went > 20 && went % 2 == 0, "%d times", went);
}

/* Marks that no session writes, in a file that is sound otherwise: refused, and the session stays as it was. */
Test(saved, marks_that_cannot_be_are_refused, .timeout = 60) {
    static const int length[] = {-5, 0, 16};
    Speaker r;
    Session s;
    int tok[LONG];
    cr_assert(speaker_keeping(&r, &zoo[zoo_find("kda")], &(Keeping){0}, 1));
    tokens(&r, tok);
    char *path = check_path("m.session");
    session_with(&s, &r, (SessionOpts){.nseq = 2, .max_tokens = LONG, .chunk = 16, .document = -1, .marks = 4});
    feed(&s, 0, 37, tok, NULL), feed(&s, 1, 9, tok, NULL);
    cr_assert(s.marks.n > 1 && s.marks.mark[0].length == 16);
    for (int i = 0; i < 3; i++) { /* the last: its state is too short */
        const size_t bytes = s.marks.bytes;
        Err e = {0};
        Saved file;
        s.marks.mark[0].length = length[i];
        s.marks.bytes -= length[i] == 16 ? sizeof(real) : 0;
        save(&s, 0, tok, path);
        s.marks.bytes = bytes;
        cr_assert(saved_open(&file, path, &e), "%s", e.msg);
        cr_assert(!saved_restore(&file, &s, 1, MODEL, &e) && e.status == EXIT_INPUT && strstr(e.msg, "mark."), "%d: %s",
                  length[i], e.msg);
        saved_close(&file);
        cr_assert(session_length(&s, 1) == 9);
    }
    free(path);
    session_close(&s);
    speaker_close(&r);
}

/* ---- the program ----------------------------------------------------------------------------------------------------
 */
static json_t *said(Ran r) {
    cr_assert_eq(r.status, 0, "%s", r.err);
    json_t *j = json_loads(r.out, 0, NULL);
    cr_assert(j, "%s", r.out);
    free(r.out), free(r.err);
    return j;
}
static int number(const json_t *j, const char *key) { return (int)json_integer_value(json_object_get(j, key)); }
/* `again`: tokens of a text that leaves the last turn after 8 which are not computed again. */
static void talks(const char *mixer, int again) {
    char *run = check_path("run"), *dir = xformat("run.dir=%s", run), *file = check_path("a.session"),
         *next = check_path("b.session"), *clean = xformat("rm -rf '%s'", run), *none = check_path("none/c.session");
    Ran t = RUN("train", "configs/tiny-gqa.yaml", dir, mixer, "train.steps=1", "train.eval_every=0", "optim.warmup=0",
                "model.init_std=0.3", "run.threads=1", "-q");
    cr_assert_eq(t.status, 0, "%s", t.err);
#define SAY(...) said(RUN("generate", run, "--json", "--ignore-eos", __VA_ARGS__))
    json_t *whole = SAY("-p", "In the beginning", "--max-new", "30", "--seed", "5", "--threads", "1"),
           *first = SAY("-p", "In the beginning", "--max-new", "12", "--seed", "5", "--threads", "1", "--save-session",
                        file),
           *rest = SAY("--session", file, "--max-new", "18", "--threads", "2", "--save-session", next);
    const json_t *all = json_object_get(whole, "tokens");
    for (size_t i = 0; i < 30; i++) {
        json_t *part = json_object_get(i < 12 ? first : rest, "tokens");
        cr_assert(json_equal(json_array_get(part, i < 12 ? i : i - 12), json_array_get(all, i)), "%s: token %zu", mixer,
                  i);
    }
    cr_assert(number(rest, "prompt_tokens") == 29 && number(rest, "cached_tokens") == 28, "%d of %d",
              number(rest, "cached_tokens"), number(rest, "prompt_tokens"));
    /* another turn: the whole text, of which the end is new */
    json_t *kept = SAY("-p", "In the", "--max-new", "0", "--save-session", file),
           *turn = SAY("-p", "In the beginning", "--session", file, "--max-new", "9", "--seed", "5", "--save-session",
                       next),
           *same = SAY("-p", "In the beginning", "--max-new", "9", "--seed", "5");
    json_t *edited = SAY("-p", "In the start", "--session", next, "--max-new", "9", "--temperature", "0"),
           *plain = SAY("-p", "In the start", "--max-new", "9", "--temperature", "0");
    cr_assert(number(edited, "cached_tokens") == again, "%s: %d", mixer, number(edited, "cached_tokens"));
    cr_assert(json_equal(json_object_get(edited, "tokens"), json_object_get(plain, "tokens")), "%s", mixer);
    json_decref(edited), json_decref(plain);
    cr_assert(number(turn, "cached_tokens") == 7 && number(turn, "prompt_tokens") == 17);
    cr_assert(json_equal(json_object_get(turn, "tokens"), json_object_get(same, "tokens")), "%s", mixer);
    CHECK_REFUSED(RUN("generate", run, "--session", file, "--cache-dtype", "int8"), 2, "saved with codec f32");
    CHECK_REFUSED(RUN("generate", run, "--session", "no-such.session"), 2, "no-such.session");
    CHECK_REFUSED(RUN("generate", run, "--session", "README.md"), 2, "README.md");
    CHECK_REFUSED(RUN("generate", run, "-p", "x", "--save-session", none), 2, "none");
    CHECK_REFUSED(RUN("generate", run, "--batch-file", "README.md", "--session", file), 2, "hold one text");
    /* trained on, it is another model */
    t = RUN("train", "configs/tiny-gqa.yaml", dir, mixer, "train.steps=2", "train.eval_every=0", "optim.warmup=0",
            "model.init_std=0.3", "run.threads=1", "-q", "--resume", "auto");
    cr_assert_eq(t.status, 0, "%s", t.err);
    CHECK_REFUSED(RUN("generate", run, "--session", file, "-q"), 2, "saved with model");
    json_decref(whole), json_decref(first), json_decref(rest), json_decref(kept), json_decref(turn), json_decref(same);
    cr_assert_eq(system(clean), 0);
    free(run), free(dir), free(file), free(next), free(clean), free(none);
}
Test(saved, generate_continues, .timeout = 120) {
    talks("model.kinds={mix: {mixer: gqa, heads: 2, window: 8, sinks: 1}}", 0);
    talks("model.kinds={mix: {mixer: kda, heads: 2}}", 7);
    talks("model.kinds={mix: {mixer: dmc, heads: 2}}", 0);
}
