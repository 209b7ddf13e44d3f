/* kvsmith logits: writes the logits, for comparison with other programs. Each line of ids is one document from its
 * first token, whatever the ids are, as in a plain forward pass of any implementation. */
#include "model/files/safetensors.h"
#include "ops/signals.h"
#include "engine.h"
#include "session.h"

int logits_command(int argc, char **argv, const RankHooks *);
const CliSpec *logits_spec(void);

typedef struct {
    const char *model, *tokens, *out;
    int64_t chunk;
} Args;

static bool cmd_logits_take(void *ctx, int key, const char *arg, Err *e) {
    Args *a = ctx;
    switch (key) {
    case CLI_ARG: a->model = arg; return true;
    case 't': a->tokens = arg; return true;
    case 'o': a->out = arg; return true;
    case 'c': return cli_int(arg, "--chunk", 1, 1 << 20, &a->chunk, e);
    }
    CHECK(false, "option %d", key);
    return false;
}

typedef struct {
    int B, T, *id;
} TokenRows;

/* Lines of whitespace-separated ids, all of one length; empty lines count for nothing. */
static bool ids_parse(TokenRows *ids, const unsigned char *p, size_t n, int vocab, const char *path, Err *e) {
    size_t count = 0, cap = 0;
    int line = 1, here = 0; /* here: ids of this line so far */
    for (size_t i = 0; i <= n; i++) {
        unsigned char c = i < n ? p[i] : '\n';
        if (c == '\n') {
            if (here && ids->T && here != ids->T)
                return err_input(e, "%s line %d: %d ids, but %d in the first line; expected lines of equal length",
                                 path, line, here, ids->T);
            if (here) ids->T = here, ids->B++;
            here = 0;
            line += i < n;
        } else if (c >= '0' && c <= '9') {
            int64_t v = 0;
            for (; i < n && p[i] >= '0' && p[i] <= '9'; i++) v = v > INT32_MAX ? v : 10 * v + p[i] - '0';
            i--;
            if (v >= vocab)
                return err_input(e, "%s line %d: id %lld, expected 0 to %d", path, line, (long long)v, vocab - 1);
            if (count == cap) {
                cap = zmax(256, 2 * cap);
                ids->id = xrealloc(ids->id, cap, sizeof(int));
            }
            ids->id[count++] = (int)v;
            if (count > INT32_MAX) return err_input(e, "%s: more than %d ids", path, INT32_MAX);
            here++;
        } else if (c != ' ' && c != '\t' && c != '\r')
            return err_input(e, "%s line %d: expected whitespace-separated token ids, found byte 0x%02x", path, line,
                             c);
    }
    return ids->B ? true : err_input(e, "%s: no token ids in it", path);
}

static bool cmd_logits_compute(Engine *en, const TokenRows *ids, int chunk, Tensor out, Err *e) {
    Session s;
    SessionOpts o = {.nseq = 1, .max_tokens = ids->T, .chunk = imin(chunk, ids->T), .document = -1, .want_all = true};
    if (!session_open(&s, &en->model, o, e)) return false;
    bool ok = true;
    size_t V = (size_t)en->cfg.vocab, T = (size_t)ids->T;
    for (int b = 0; ok && b < ids->B; b++) {
        session_reset(&s, 0);
        Feed f = {0, ids->T, ids->id + (size_t)b * T};
        ok = session_extend(&s, 1, &f, WANT_ALL, TENSOR(R(out) + (size_t)b * T * V, REAL, ids->T, (int)V), e);
    }
    session_close(&s);
    return ok;
}

static bool logits_run(const Args *a, const RankHooks *hooks, Cli *cli, Err *e) {
    Engine en;
    char *text;
    size_t n;
    TokenRows ids = {0};
    Tensor out = ABSENT;
    if (!policy_unprompted(&cli->policy, e) || !engine_join(hooks, cli, a->tokens, e) ||
        !engine_open(&en, a->model, cli, e))
        return false;
    bool ok = engine_slurp(a->tokens, "--tokens", &text, &n, e);
    if (ok) {
        ok = ids_parse(&ids, (const unsigned char *)text, n, en.cfg.vocab, a->tokens, e);
        free(text);
    }
    if (ok && ids.T > en.cfg.max_positions && !engine_dynamic(&en))
        ok =
            err_input(e, "%s: lines of %d ids, but the model has %d positions", a->tokens, ids.T, en.cfg.max_positions);
    if (ok) {
        engine_plan(&en, ids.T, cli->quiet);
        size_t bytes = (size_t)ids.B * (size_t)ids.T * (size_t)en.cfg.vocab * sizeof(real);
        out = TENSOR(malloc(bytes), REAL, ids.B, ids.T, en.cfg.vocab);
        if (!out.p)
            ok = err_runtime(e, "out of memory: %zu bytes of logits (%d,%d,%d)", bytes, ids.B, ids.T, en.cfg.vocab);
    }
    StList list = {0};
    ok = ok && engine_same(&en, hooks, cli, ids.T, e) && cmd_logits_compute(&en, &ids, (int)a->chunk, out, e);
    const bool writes = ok && engine_prints(cli);
    if (writes) {
        st_add(&list, "logits", out, F32);
        sigset_t ends, before; /* an interrupted write would leave its temporary file */
        signals_set(&ends);
        sigprocmask(SIG_BLOCK, &ends, &before);
        ok = st_write(a->out, &list, NULL, e);
        sigprocmask(SIG_SETMASK, &before, NULL);
        st_list_free(&list);
    }
    if (writes && ok && cli->json) {
        json_t *j = json_pack("{s:s, s:[i,i,i]}", "out", a->out, "shape", ids.B, ids.T, en.cfg.vocab);
        ok = engine_print(j, e);
    } else if (writes && ok && !cli->quiet)
        printf("%s: logits (%d,%d,%d)\n", a->out, ids.B, ids.T, en.cfg.vocab);
    free(out.p);
    free(ids.id);
    engine_close(&en);
    return ok;
}

static const struct argp_option options[] = {
    {"tokens", 't', "FILE", 0,
     "Token ids, separated by whitespace, in lines of equal length; -: standard input (required)", 0},
    {"out", 'o', "FILE", 0, "The safetensors file to write: tensor \"logits\" [B,T,V] F32 (required)", 0},
    {"chunk", 'c', "N", 0, "Rows of one pass (default 512)", 0},
    {0}};
static const CliSpec spec = {.args = "MODEL",
                             .adapter = true,
                             .doc = "Writes the logits after every token of every line. A line is one document.",
                             .options = options,
                             .take = cmd_logits_take,
                             .min_args = 1,
                             .max_args = 1,
                             .cache = true,
                             .tier = true,
                             .ranks = true,
                             .tuning = true};
const CliSpec *logits_spec(void) { return &spec; }

int logits_command(int argc, char **argv, const RankHooks *hooks) {
    Args a = {.chunk = CHUNK_ROWS};
    Cli cli;
    Err e = {0};
    int status;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    engine_signals();
    if (!a.tokens || !a.out) {
        err_input(&e, "logits: expected --tokens FILE and --out FILE; see kvsmith logits --help");
        return cli_fail(&e);
    }
    return logits_run(&a, hooks, &cli, &e) ? 0 : cli_fail(&e);
}
