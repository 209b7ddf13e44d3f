/* kvsmith generate: text that continues a prompt, or a file of prompts. */
#include <errno.h>
#include "ops/file.h"
#include "engine.h"
#include "generate.h"
#include "saved.h"

int generate_command(int argc, char **argv, const RankHooks *);
const CliSpec *generate_spec(void);

enum { STOPS_MAX = 64 };
typedef struct {
    const char *model, *prompt, *prompt_file, *batch_file, *session, *save_session;
    int64_t max_new, context, batch, chunk, seed, top_k;
    Sampler sampler;
    bool ignore_eos, plain, apart;
    int nstop;
    const char *stop[STOPS_MAX];
} Args;

enum {
    OPT_PROMPT_FILE = 0x100,
    OPT_BATCH_FILE,
    OPT_MAX_NEW,
    OPT_TEMPERATURE,
    OPT_TOP_K,
    OPT_TOP_P,
    OPT_MIN_P,
    OPT_PENALTY,
    OPT_STOP,
    OPT_IGNORE_EOS,
    OPT_SEED,
    OPT_CONTEXT,
    OPT_BATCH,
    OPT_CHUNK,
    OPT_GRAPH,
    OPT_SHARE,
    OPT_SESSION,
    OPT_SAVE_SESSION
};
static const struct argp_option options[] = {
    {"prompt", 'p', "TEXT", 0, "The text to continue (default: nothing, a new document)", 0},
    {"prompt-file", OPT_PROMPT_FILE, "FILE", 0, "Read the prompt from FILE; -: standard input", 0},
    {"batch-file", OPT_BATCH_FILE, "FILE", 0,
     "Many prompts: each line is a JSON object with \"prompt\"; other keys are ignored", 0},
    {"max-new", OPT_MAX_NEW, "N", 0, "New tokens at most (default 128)", 0},
    {"temperature", OPT_TEMPERATURE, "X", 0, "Divides the logits; 0: the most probable token (default 1)", 0},
    {"top-k", OPT_TOP_K, "K", 0, "Draw from the K most probable tokens; 0: all (default 0)", 0},
    {"top-p", OPT_TOP_P, "P", 0, "Draw from the fewest tokens whose probabilities sum to P (default 1: all)", 0},
    {"min-p", OPT_MIN_P, "X", 0,
     "Draw from tokens at least X times as probable as the most probable one (default 0: all)", 0},
    {"repetition-penalty", OPT_PENALTY, "X", 0,
     "Make tokens of prompt and output less likely by X (default 1: no change)", 0},
    {"stop", OPT_STOP, "TEXT", 0, "Stop before TEXT; may be repeated", 0},
    {"ignore-eos", OPT_IGNORE_EOS, 0, 0, "Continue after end-of-text", 0},
    {"seed", OPT_SEED, "S", 0, "Seed of the random draws (default 1, or the session's)", 0},
    {"context", OPT_CONTEXT, "N", 0, "Tokens of prompt and output at most (default: the model's positions)", 0},
    {"batch", OPT_BATCH, "N", 0, "Prompts that run at the same time (default 8)", 0},
    {"chunk", OPT_CHUNK, "N", 0, "Rows of one pass over the prompts (default 512)", 0},
    {"session", OPT_SESSION, "FILE", 0,
     "Continue what --save-session wrote. A prompt is the whole text, of which only what differs from the session's is "
     "computed; without a prompt the session's text is continued",
     0},
    {"save-session", OPT_SAVE_SESSION, "FILE", 0, "Write tokens and cache of the prompt and the new text to FILE", 0},
    {"share-prefixes", OPT_SHARE, "NAME", 0,
     "auto: prompts of a batch that begin with the same tokens compute and store them once; off: each for itself, with "
     "the same results (default auto)",
     0},
    {"graph", OPT_GRAPH, "NAME", 0,
     "auto: a GPU captures a decoding step as a CUDA graph and replays it; off: it launches kernel by kernel (default "
     "auto)",
     0},
    {0}};

static bool cmd_generate_off(const char *name, const char *arg, bool *off, Err *e) {
    *off = !strcmp(arg, "off");
    return *off || !strcmp(arg, "auto") || err_input(e, "%s: expected auto or off, got '%.40s'", name, arg);
}
static bool cmd_generate_take(void *ctx, int key, const char *arg, Err *e) {
    Args *a = ctx;
    Sampler *s = &a->sampler;
    switch (key) {
    case CLI_ARG: a->model = arg; return true;
    case 'p': a->prompt = arg; return true;
    case OPT_PROMPT_FILE: a->prompt_file = arg; return true;
    case OPT_BATCH_FILE: a->batch_file = arg; return true;
    case OPT_MAX_NEW: return cli_int(arg, "--max-new", 0, INT32_MAX, &a->max_new, e);
    case OPT_TEMPERATURE: return cli_real(arg, "--temperature", 0, 1e6, &s->temperature, e);
    case OPT_TOP_K: return cli_int(arg, "--top-k", 0, INT32_MAX, &a->top_k, e);
    case OPT_TOP_P: return cli_real(arg, "--top-p", 0, 1, &s->top_p, e);
    case OPT_MIN_P: return cli_real(arg, "--min-p", 0, 1, &s->min_p, e);
    case OPT_PENALTY: return cli_real(arg, "--repetition-penalty", 0, 1e6, &s->repetition_penalty, e);
    case OPT_IGNORE_EOS: a->ignore_eos = true; return true;
    case OPT_SEED: return cli_int(arg, "--seed", 0, INT64_MAX, &a->seed, e);
    case OPT_CONTEXT: return cli_int(arg, "--context", 1, 1 << 22, &a->context, e);
    case OPT_BATCH: return cli_int(arg, "--batch", 1, 4096, &a->batch, e);
    case OPT_CHUNK: return cli_int(arg, "--chunk", 1, 1 << 20, &a->chunk, e);
    case OPT_GRAPH: return cmd_generate_off("--graph", arg, &a->plain, e);
    case OPT_SESSION: a->session = arg; return true;
    case OPT_SAVE_SESSION: a->save_session = arg; return true;
    case OPT_SHARE: return cmd_generate_off("--share-prefixes", arg, &a->apart, e);
    case OPT_STOP:
        if (!*arg) return err_input(e, "--stop: expected a text, got an empty one");
        if (a->nstop == STOPS_MAX) return err_input(e, "--stop: more than %d of them", STOPS_MAX);
        a->stop[a->nstop++] = arg;
        return true;
    }
    CHECK(false, "option %d", key);
    return false;
}

/* ---- prompts --------------------------------------------------------------------------------------------------------
 */
typedef struct {
    int n, cap;
    Generation *g;
} Prompts;

static bool prompts_add(Prompts *p, const Engine *en, const char *text, size_t n, int context, const char *where,
                        Err *e) {
    const Tokenizer *t = &en->tokenizer;
    Ids ids = {0};
    Err why = {0};
    bool ok = tokenizer_encode(t, text, n, ENCODE_SPECIAL, &ids, &why),
         eot = en->one_end || (t->bos < 0 && t->eot >= 0);
    /* what the tokenizer's own template puts before a text, else end-of-text, as in training; but a prompt of a chat
     * brings its special tokens along, and in training nothing stood before those */
    if (ok && !(ids.n && tokenizer_special(t, ids.id[0]))) {
        ids.n = 0;
        if (eot) ids_push(&ids, t->eot);
        ok = tokenizer_encode(t, text, n, ENCODE_SPECIAL | (en->one_end ? 0u : ENCODE_TEMPLATE), &ids, &why);
    }
    if (!ok) {
        ids_free(&ids);
        return err_input(e, "%.100s: %.180s", where, why.msg);
    }
    size_t ntok = ids.n;
    if (ntok > (size_t)context || ntok == 0) {
        ids_free(&ids);
        return err_input(
            e,
            ntok
                ? "%s: %zu tokens, those before the text included, but the context has %d; shorten it or give --context"
                : "%s: the prompt is empty (%zu tokens), and the tokenizer has no token that starts a text; give a "
                  "prompt",
            where, ntok, context);
    }
    if (p->n == p->cap) {
        p->cap = 2 * p->cap + 8;
        p->g = xrealloc(p->g, (size_t)p->cap, sizeof *p->g);
    }
    p->g[p->n++] = (Generation){.prompt = ids.id, .nprompt = (int)ntok};
    return true;
}

static bool prompts_jsonl(Prompts *p, const Engine *en, const char *path, int context, Err *e) {
    char *text;
    size_t n;
    if (!engine_slurp(path, "prompt", &text, &n, e)) return false;
    bool ok = true;
    int line = 0;
    for (size_t at = 0; ok && at < n; line++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = (end ? (size_t)(end - text) : n) - at, blank = 0;
        while (blank < len && strchr(" \t\r", text[at + blank]) && text[at + blank]) blank++;
        if (blank < len) {
            char *where = xformat("%.200s line %d", path, line + 1);
            json_t *j = json_parse(text + at, len, where, NULL, e), *t = json_object_get(j, "prompt");
            if (!j)
                ok = false;
            else if (!json_is_string(t))
                ok = err_input(e, "%s: expected {\"prompt\": \"TEXT\"}, found %s", where,
                               t ? "a prompt that is no text" : "no prompt");
            else
                ok = prompts_add(p, en, json_string_value(t), json_string_length(t), context, where, e);
            json_decref(j);
            free(where);
        }
        at += len + 1;
    }
    free(text);
    return ok && (p->n || err_input(e, "%s: no prompt in it; expected a line {\"prompt\": \"TEXT\"}", path));
}

static bool prompts_read(Prompts *p, const Args *a, const Engine *en, int context, Err *e) {
    if (a->batch_file) return prompts_jsonl(p, en, a->batch_file, context, e);
    if (!a->prompt_file)
        return prompts_add(p, en, a->prompt ? a->prompt : "", a->prompt ? strlen(a->prompt) : 0, context, "the prompt",
                           e);
    char *text;
    size_t n;
    if (!engine_slurp(a->prompt_file, "prompt", &text, &n, e)) return false;
    bool ok = prompts_add(p, en, text, n, context, "the prompt", e);
    free(text);
    return ok;
}

static void prompts_free(Prompts *p) {
    for (int i = 0; i < p->n; i++) {
        free((void *)p->g[i].prompt);
        generation_free(&p->g[i]);
    }
    free(p->g);
}

/* ---- results --------------------------------------------------------------------------------------------------------
 */
static double cmd_generate_rate(const Generation *g) {
    return g->n > 1 && g->decode_s > 0 ? (g->n - 1) / g->decode_s : 0;
}

static json_t *cmd_generate_result(const Generation *g) {
    size_t m;
    char *text = utf8_clean(g->text.bytes, g->text.n, &m);
    json_t *tokens = json_array();
    for (int i = 0; i < g->n; i++) json_array_append_new(tokens, json_integer(g->tok[i]));
    json_t *j = json_pack("{s:s%, s:o, s:i, s:i, s:i, s:s, s:f, s:f, s:f, s:I}", "text", text, m, "tokens", tokens,
                          "prompt_tokens", g->nprompt, "cached_tokens", g->cached, "new_tokens", g->n, "finish",
                          finish_name(g->finish), "prefill_s", g->prefill_s, "decode_s", g->decode_s, "decode_tok_s",
                          cmd_generate_rate(g), "cache_bytes", (json_int_t)g->cache_bytes);
    free(text);
    return j;
}

static bool cmd_generate_put(const char *text, size_t n, Err *e) {
    if (fwrite(text, 1, n, stdout) == n && !fflush(stdout)) return true;
    return err_runtime(e, "standard output: %s", strerror(errno));
}
static bool cmd_generate_stream(void *ctx, int which, const char *text, size_t n, Err *e) {
    (void)ctx, (void)which;
    return cmd_generate_put(text, n, e);
}

static bool cmd_generate_json(const Prompts *p, const Args *a, const KvDisk *disk, Err *e) {
    json_t *list = a->batch_file ? json_array() : NULL,
           *j = list ? json_pack("{s:o}", "results", list) : cmd_generate_result(p->g);
    for (int i = 0; list && i < p->n; i++) json_array_append_new(list, cmd_generate_result(&p->g[i]));
    if (disk->of) json_object_set_new(j, engine_disk_name(disk), engine_disk(disk, 1));
    return engine_print(j, e);
}
static bool cmd_generate_report(const Prompts *p, const Args *a, const Cli *cli, bool streamed, KvDisk disk, Err *e) {
    if (cli->json) return cmd_generate_json(p, a, &disk, e);
    int new = 0, old = 0;
    double decode = 0, prefill = 0;
    size_t cache = 0;
    for (int i = 0; i < p->n; i++) {
        const Generation *g = &p->g[i];
        if (a->batch_file) printf("== prompt %d ==\n", i + 1);
        if (!streamed && !cmd_generate_put(g->text.bytes, g->text.n, e)) return false;
        if ((!g->text.n || g->text.bytes[g->text.n - 1] != '\n') && !cmd_generate_put("\n", 1, e)) return false;
        new += g->n, old += g->nprompt;
        decode = fmax(decode, g->decode_s), prefill = fmax(prefill, g->prefill_s);
        cache = zmax(cache, g->cache_bytes);
    }
    if (!cli->quiet && p->n == 1)
        fprintf(stderr, "%d prompt tokens in %.3f s, %d new in %.3f s (%.1f tokens/s), cache %zu bytes, ended by %s\n",
                old, prefill, new, decode, cmd_generate_rate(p->g), cache, finish_name(p->g->finish));
    if (!cli->quiet && disk.slots)
        fprintf(stderr, "rows of %d of %d layers %s: %zu bytes read, %zu written\n", disk.slots, disk.of,
                disk.host ? "in the host's memory" : "on disk", disk.read, disk.written);
    return true;
}

/* ---- sessions in files ----------------------------------------------------------------------------------------------
 */
typedef struct {
    const Args *a;
    const Prompts *p;
    bool open; /* there is a session to continue: */
    Saved saved;
    uint64_t model, seed, drawn; /* fingerprint; of the draws, how many were made before */
} Continued;
enum { SESSION_MARKS = 8 };

static bool continued_open(Continued *c, const Args *a, const Prompts *p, Err *e) {
    FileOut o;
    *c = (Continued){.a = a, .p = p, .seed = a->seed < 0 ? 1 : (uint64_t)a->seed};
    if (a->save_session) { /* before anything is computed */
        if (!file_begin(&o, a->save_session, e)) return false;
        file_drop(&o);
    }
    if (!a->session) return true;
    if (!saved_open(&c->saved, a->session, e)) return false;
    c->open = true;
    c->drawn = c->saved.text.draws;
    if (a->seed < 0) c->seed = c->saved.text.seed;
    return true;
}
/* The prompt of a command that names none: the session's tokens. */
static bool continued_prompt(const Continued *c, Prompts *p, int context, Err *e) {
    const SavedText *t = &c->saved.text;
    if (t->n > context)
        return err_input(e, "%.200s: %d tokens, but the context has %d; give a larger --context", c->a->session, t->n,
                         context);
    int *tok = xcalloc((size_t)t->n, sizeof *tok);
    memcpy(tok, t->tok, (size_t)t->n * sizeof *tok);
    p->g = xcalloc(1, sizeof *p->g);
    p->g[0] = (Generation){.prompt = tok, .nprompt = t->n};
    p->n = p->cap = 1;
    return true;
}
/* Sequence 0 holds what the session and the prompt have in common. */
static bool continued_begin(const Continued *c, Session *s, GenOpts *o, bool quiet, Err *e) {
    const SavedText *t = &c->saved.text;
    const Generation *g = c->p->g;
    int same = 0;
    if (!saved_restore(&c->saved, s, 0, c->model, e)) return false;
    while (same < t->length && same < g->nprompt - 1 && g->prompt[same] == t->tok[same]) same++;
    o->held = session_rewind(s, 0, same);
    session_mark(s, 0); /* where the next text begins */
    o->drawn = c->drawn;
    o->resumes = o->held && !c->a->prompt && !c->a->prompt_file;
    if (!o->held && !quiet)
        fprintf(stderr,
                "kvsmith: note: the prompt has the first %d of the session's %d tokens in common, and this cache "
                "cannot go back to them: all is computed anew\n",
                same, t->length);
    return true;
}
static bool continued_save(void *ctx, Session *s, int which, int seq, Err *e) {
    const Continued *c = ctx;
    const Generation *g = &c->p->g[which];
    const size_t n = (size_t)g->nprompt, more = (size_t)g->n;
    int *tok = xcalloc(n + more, sizeof *tok);
    memcpy(tok, g->prompt, n * sizeof *tok);
    if (more) memcpy(tok + n, g->tok, more * sizeof *tok);
    const SavedText t = {
        .n = (int)(n + more), .length = session_length(s, seq), .tok = tok, .draws = c->drawn + more, .seed = c->seed};
    const bool ok = saved_write(s, seq, c->a->save_session, &t, c->model, e);
    free(tok);
    return ok;
}

static bool generate_run(Args *a, const RankHooks *hooks, Cli *cli, Err *e) {
    Engine en;
    Session s;
    Prompts p = {0};
    Continued c;
    const bool kept = a->session || a->save_session;
    if (!engine_join(hooks, cli, a->prompt_file ? a->prompt_file : a->batch_file, e) ||
        !engine_open(&en, a->model, cli, e))
        return false;
    int context = a->context ? (int)a->context : en.cfg.max_positions;
    bool ok = engine_text(&en, e) && continued_open(&c, a, &p, e);
    if (!ok) {
        engine_close(&en);
        return false;
    }
    ok = a->session && !a->prompt && !a->prompt_file ? continued_prompt(&c, &p, context, e)
                                                     : prompts_read(&p, a, &en, context, e);
    if (ok) {
        int longest = c.open ? imin(c.saved.text.length, context) : 0;
        for (int i = 0; i < p.n; i++) longest = imax(longest, p.g[i].nprompt);
        SessionOpts so = {.nseq = imin((int)a->batch, p.n),
                          .spare = generate_spare(p.n, p.g),
                          .chunk = (int)a->chunk,
                          .marks = kept ? SESSION_MARKS : 0,
                          .document = -1, /* a prompt is one sequence, end-of-text in it or not */
                          .plain = a->plain,
                          .max_tokens = (int)(a->max_new < context - longest ? longest + a->max_new : context)};
        bool streamed = !cli->json && !cli->quiet && !a->batch_file, prints = engine_prints(cli);
        a->sampler.seed = c.seed;
        GenOpts o = {.sampler = a->sampler,
                     .max_new = (int)a->max_new,
                     .neos = a->ignore_eos ? 0 : en.neos,
                     .eos = en.eos,
                     .nstop = a->nstop,
                     .stop = a->stop,
                     .apart = a->apart,
                     .show = streamed ? cmd_generate_stream : NULL,
                     .done = a->save_session ? continued_save : NULL,
                     .ctx = &c};
        const int planned = kept ? context : so.max_tokens; /* the same in all commands that continue a text */
        engine_plan(&en, planned, cli->quiet);
        ok = (!kept || engine_fingerprint(&en, planned, &c.model, e)) && engine_same(&en, hooks, cli, planned, e) &&
             session_open(&s, &en.model, so, e);
        if (ok) {
            ok = (!c.open || continued_begin(&c, &s, &o, cli->quiet, e)) &&
                 generate(&s, &en.tokenizer, &o, p.n, p.g, e) &&
                 (!prints || cmd_generate_report(&p, a, cli, streamed, session_disk(&s), e));
            session_close(&s);
        }
    }
    if (c.open) saved_close(&c.saved);
    prompts_free(&p);
    engine_close(&en);
    return ok;
}

static const CliSpec spec = {
    .args = "MODEL",
    .doc = "Continues a prompt. MODEL is a run folder or a model directory. Text is streamed as it is generated; "
           "with -q or --json it is printed at the end. A random draw depends only on the seed, the index of the "
           "prompt and the index of the token. Sampling applies, in this order: repetition penalty, temperature, "
           "top-k, top-p, min-p.",
    .options = options,
    .take = cmd_generate_take,
    .min_args = 1,
    .cache = true,
    .tier = true,
    .ranks = true,
    .tuning = true,
    .adapter = true,
    .max_args = 1};
const CliSpec *generate_spec(void) { return &spec; }

int generate_command(int argc, char **argv, const RankHooks *hooks) {
    Args a = {.max_new = 128, .batch = 8, .chunk = CHUNK_ROWS, .seed = -1, .sampler = sampler_default()};
    Cli cli;
    Err e = {0};
    int status;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    a.sampler.top_k = (int)a.top_k;
    engine_signals();
    bool ok = sampler_check(&a.sampler, &e);
    if (ok && !!a.prompt + !!a.prompt_file + !!a.batch_file > 1)
        ok = err_input(&e, "generate: expected one of --prompt, --prompt-file and --batch-file, got several");
    if (ok && a.batch_file && (a.session || a.save_session))
        ok = err_input(&e, "generate: --session and --save-session hold one text: give --prompt, not --batch-file");
    if (ok && cli.tier.memory && a.save_session)
        ok = err_input(&e, "generate: --save-session copies the whole cache to memory: leave out it or --cache-memory");
    if (ok && cli.divides && (a.session || a.save_session))
        ok = err_input(&e,
                       "generate: --session and --save-session hold the rows of one process: leave out --cache-ranks");
    if (ok && a.save_session && cli.codec && cli.codec->block && policy_acts(&cli.policy))
        ok = err_input(
            &e,
            "generate: --save-session: a file holds no rows of blocks (--cache-dtype %s) that a policy chose; "
            "leave out --save-session or --policy, or take another codec, such as int4",
            cli.codec->name);
    return ok && generate_run(&a, hooks, &cli, &e) ? 0 : cli_fail(&e);
}
