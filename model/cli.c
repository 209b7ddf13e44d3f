/* cli.c: parses options over argp's tables, prints errors, and finds the directory of a model. */
#include "cli.h"
#include "ops/file.h"
#include "ops/isa.h"
#include "ops/text.h"
#include "model/config/hints.h"
#include "model/config/schema.h"
#include <ctype.h>
#include <errno.h>
#include <getopt.h>

enum {
    KEY_DEVICE = 0x20000,
    KEY_DTYPE,
    KEY_THREADS,
    KEY_ISA,
    KEY_JSON,
    KEY_VERSION,
    KEY_CACHE,
    KEY_POLICY,
    KEY_MEMORY,
    KEY_DISK,
    KEY_PREFETCH,
    KEY_RANKS,
    KEY_TUNING,
    KEY_ADAPTER,
    OPTIONS_MAX = 64,
    WORD_MAX = 120
};

static const struct argp_option common[] = {
    {"device", KEY_DEVICE, "NAME", 0,
     "Where to compute: cpu, cuda (a GPU), or auto: cuda if a GPU can be used, else cpu (default auto)", 0},
    {"dtype", KEY_DTYPE, "NAME", 0,
     "Inputs of matrix products: f32 (default; train: train.dtype) or bf16. For inference, bf16 also stores the weight "
     "matrices in bf16",
     0},
    {"threads", KEY_THREADS, "N", 0, "CPU threads; 0: OMP_NUM_THREADS, else one per processor", 0},
    {"isa", KEY_ISA, "NAME", 0,
     "Instruction set of the CPU kernels: auto (the best available), baseline, avx2, avx512, avx512bf16, amx, neon, "
     "neonbf16",
     0},
    {"json", KEY_JSON, 0, 0, "Print one JSON object on stdout and nothing else there", 0},
    {"quiet", 'q', 0, 0, "Print results only", 0},
    {"help", 'h', 0, 0, "Print this text", 0},
    {"version", KEY_VERSION, 0, 0, "Print the version", 0},
    {0}};
static const struct argp_option cache_option = {
    "cache-dtype",
    KEY_CACHE,
    "NAME[:KEY=VALUE,...]",
    0,
    "How the cache stores rows: one of `info --codecs`, as f32, bf16, int8 or int4:group=64 (default: as --dtype)",
    0};

static const struct argp_option policy_option = {
    "policy",
    KEY_POLICY,
    "NAME[:KEY=VALUE,...]",
    0,
    "Which of attention's rows the cache keeps: none (all) or one of `info --policies` (default none). Policies "
    "compose: give --policy again, or join them by +",
    0};

enum { TIER_OPTIONS = 3 };
static const struct argp_option tier_options[TIER_OPTIONS] = {
    {"cache-memory", KEY_MEMORY, "BYTES", 0,
     "Memory of a cache at most, such as 500MB or 2GiB; rows of layers that do not fit are kept in a file of "
     "--cache-disk or, with a GPU, in the host's memory (default: no limit)",
     0},
    {"cache-disk", KEY_DISK, "DIR", 0, "Where that file is; it has no name and is gone when the command ends", 0},
    {"cache-prefetch", KEY_PREFETCH, "NAME", 0,
     "auto: the rows of the next such layer are read while one computes; off: each layer waits for its own, and one "
     "buffer less is needed (default auto)",
     0},
};

static const struct argp_option ranks_option = {
    "cache-ranks",
    KEY_RANKS,
    "NAME",
    0,
    "The ranks that `kvsmith launch -n N` starts divide the rows of the cache, and rank 0 prints. rows: all compute "
    "every "
    "token; prompt: each computes a part of a prompt, too (default: this process is alone)",
    0};

static const struct argp_option tuning_option = {
    "tuning", KEY_TUNING, "FILE", 0, "The fastest algorithms of a GPU's matrix products, as `bench tune` wrote them",
    0};

int cli_fail(const Err *e) {
    char line[sizeof e->msg + 16];
    int n = snprintf(line, sizeof line, "kvsmith: %s", e->status ? e->msg : "failed without a message");
    if (n > 300) { /* never cut inside a UTF-8 character */
        n = 297;
        while (n > 0 && ((unsigned char)line[n] & 0xc0) == 0x80) n--;
        strcpy(line + n, "...");
    }
    fprintf(stderr, "%s\n", line);
    return e->status ? e->status : EXIT_RUNTIME;
}

bool cli_int(const char *arg, const char *name, int64_t min, int64_t max, int64_t *out, Err *e) {
    char *end;
    errno = 0;
    long long v = strtoll(arg, &end, 10);
    if (!*arg || *end || isspace((unsigned char)*arg) || errno || v < min || v > max)
        return err_input(e, "%s: expected a whole number from %lld to %lld, got '%.*s'", name, (long long)min,
                         (long long)max, WORD_MAX, arg);
    *out = v;
    return true;
}

bool cli_real(const char *arg, const char *name, double min, double max, double *out, Err *e) {
    char *end;
    double v = strtod(arg, &end);
    if (!*arg || *end || isspace((unsigned char)*arg) || !(v >= min && v <= max))
        return err_input(e, "%s: expected a number from %g to %g, got '%.*s'", name, min, max, WORD_MAX, arg);
    *out = v;
    return true;
}

const char *cli_nearest(const char *name, int n, const char *const names[]) {
    const char *best = NULL;
    int least = 1 + imax(1, (int)strlen(name) / 3);
    for (int i = 0; i < n; i++) {
        int d = name_distance(name, names[i]);
        if (d < least) least = d, best = names[i];
    }
    return best;
}

static const struct argp_option adapter_option = {
    "adapter", KEY_ADAPTER, "DIR", 0, "A PEFT adapter directory (LoRA); it is added to MODEL's weights", 0};

/* Given twice, the option is a list. */
static bool cli_policy(Cli *cli, const char *arg, Err *e) {
    char *text = cli->policies[0] ? xformat("%s+%s", cli->policies, arg) : xstrdup(arg);
    const bool fits = strlen(text) < sizeof cli->policies;
    if (fits) strcpy(cli->policies, text);
    free(text);
    return fits ? policy_parse(cli->policies, &cli->policy, e)
                : err_input(e, "--policy: expected at most %zu characters in all", sizeof cli->policies - 1);
}
static bool cli_tier(Cli *cli, int key, const char *arg, Err *e) {
    switch (key) {
    case KEY_MEMORY:
        if (bytes_parse(arg, &cli->tier.memory)) return true;
        return err_input(e, "--cache-memory: expected a size such as 500MB or 2GiB, got '%.*s'", WORD_MAX, arg);
    case KEY_DISK: cli->tier.dir = arg; return true;
    }
    cli->tier.alone = !strcmp(arg, "off");
    return cli->tier.alone || !strcmp(arg, "auto") ||
           err_input(e, "--cache-prefetch: expected auto or off, got '%.*s'", WORD_MAX, arg);
}
/* The limit can be without a folder where the device is a GPU (kv_tier_fits). */
static bool cli_tier_whole(const Cli *cli, const char *cmd, Err *e) {
    return cli->tier.memory || !(cli->tier.dir || cli->tier.alone) ||
           err_input(e, "%s: %s needs a limit: give --cache-memory BYTES, too", cmd,
                     cli->tier.dir ? "--cache-disk" : "--cache-prefetch");
}
static bool cli_ranks(Cli *cli, const char *arg, Err *e) {
    cli->ranks.prompts = !strcmp(arg, "prompt");
    cli->divides = cli->ranks.prompts || !strcmp(arg, "rows");
    return cli->divides || err_input(e, "--cache-ranks: expected rows or prompt, got '%.*s'", WORD_MAX, arg);
}
static bool take_common(Cli *cli, int key, const char *arg, Err *e) {
    int64_t v;
    switch (key) {
    case KEY_DEVICE:
        if (strcmp(arg, "auto") && strcmp(arg, "cpu") && strcmp(arg, "cuda"))
            return err_input(e, "--device: expected auto, cpu or cuda, got '%.*s'", WORD_MAX, arg);
        cli->device = arg;
        return true;
    case KEY_DTYPE:
        if (strcmp(arg, "f32") && strcmp(arg, "bf16"))
            return err_input(e, "--dtype: expected f32 or bf16, got '%.*s'", WORD_MAX, arg);
        cli->bf16 = !strcmp(arg, "bf16");
        cli->f32 = !cli->bf16;
        return true;
    case KEY_CACHE: cli->codec = &cli->own_codec; return codec_parse(arg, &cli->own_codec, e);
    case KEY_POLICY: return cli_policy(cli, arg, e);
    case KEY_MEMORY:
    case KEY_DISK:
    case KEY_PREFETCH: return cli_tier(cli, key, arg, e);
    case KEY_RANKS: return cli_ranks(cli, arg, e);
    case KEY_THREADS:
        if (!cli_int(arg, "--threads", 0, 1024, &v, e)) return false;
        cli->threads = (int)v;
        return true;
    case KEY_TUNING: cli->tuning = arg; return true;
    case KEY_ISA: cli->isa = arg; return device_isa_there(arg, e);
    case KEY_ADAPTER: cli->adapter = arg; return true;
    case KEY_JSON: cli->json = true; return true;
    case 'q': cli->quiet = true; return true;
    }
    CHECK(false, "option %d", key);
    return false;
}

static const struct argp_option *own_option(const CliSpec *spec, int i) {
    return spec->options && (spec->options[i].name || spec->options[i].key || spec->options[i].doc) ? &spec->options[i]
                                                                                                    : NULL;
}

/* The tables of argp in the form that getopt_long needs. */
typedef struct {
    struct option opt[OPTIONS_MAX + 1];
    const char *name[OPTIONS_MAX];
    char brief[3 * OPTIONS_MAX + 2];
    int n;
} Table;

static void table_add(Table *t, const struct argp_option *o) {
    if (!o->name && !o->key) return; /* a heading */
    CHECK(t->n < OPTIONS_MAX && !(o->flags & OPTION_ARG_OPTIONAL), "option %s", o->name);
    if (o->name) {
        t->name[t->n] = o->name;
        t->opt[t->n++] = (struct option){o->name, o->arg ? required_argument : no_argument, NULL, o->key};
    }
    if (o->key > ' ' && o->key < 127) {
        char *b = t->brief + strlen(t->brief);
        snprintf(b, 3, "%c%s", o->key, o->arg ? ":" : "");
    }
}

static bool cli_mistake(Err *e, const Table *t, const CliSpec *spec, int got, int argc, char **argv) {
    const char *cmd = argv[0];
    const char *word = argv[optind - 1];
    if (strncmp(word, "--", 2))
        return got == ':' ? err_input(e, "%s: option -%c needs a value", cmd, optopt)
                          : err_input(e, "%s: unknown option -%c; see kvsmith %s --help", cmd, optopt, cmd);
    char name[WORD_MAX], hint[HINT_MAX];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    if (got == ':') return err_input(e, "%s: option --%s needs a value", cmd, name);
    if (optopt) return err_input(e, "%s: option --%s does not allow a value", cmd, name);
    int hits = 0;
    for (int i = 0; i < t->n; i++) hits += !strncmp(t->name[i], name, strlen(name));
    if (hits > 1) return err_input(e, "%s: option --%s is ambiguous; see kvsmith %s --help", cmd, name, cmd);
    const char *near = cli_nearest(name, t->n, t->name), *value = strchr(word, '=');
    if (!value && optind < argc && *argv[optind] != '-')
        value = argv[optind];
    else if (value)
        value++;
    if (spec->settings && hint_option(name, value, hint))
        return err_input(e, "%s: unknown option --%s; %s", cmd, name, hint);
    return near ? err_input(e, "%s: unknown option --%s; did you mean --%s?", cmd, name, near)
                : err_input(e, "%s: unknown option --%s; see kvsmith %s --help", cmd, name, cmd);
}

static void cli_help(const CliSpec *spec, char *cmd) {
    struct argp_option more[6 + TIER_OPTIONS] = {{0}};
    struct argp shared = {.options = common}, own = {.options = more};
    const bool some = spec->cache || spec->tuning || spec->adapter;
    int n = 0;
    if (spec->cache) more[n++] = cache_option, more[n++] = policy_option;
    for (int i = 0; spec->tier && i < TIER_OPTIONS; i++) more[n++] = tier_options[i];
    if (spec->ranks) more[n++] = ranks_option;
    if (spec->cache || spec->tuning) more[n++] = tuning_option;
    if (spec->adapter) more[n++] = adapter_option;
    struct argp_child child[] = {{some ? &own : &shared, 0, some ? NULL : "Common options:", 0},
                                 {some ? &shared : NULL, 0, "Common options:", 0},
                                 {0}};
    struct argp a = {.options = spec->options, .args_doc = spec->args, .doc = spec->doc, .children = child};
    char *name = xformat("kvsmith %s", cmd);
    argp_help(&a, stdout, ARGP_HELP_USAGE | ARGP_HELP_DOC | ARGP_HELP_LONG, name);
    free(name);
}

static void table_make(Table *t, const CliSpec *spec) {
    *t = (Table){.brief = ":"};
    for (int i = 0; own_option(spec, i); i++) table_add(t, own_option(spec, i));
    for (int i = 0; common[i].name; i++) table_add(t, &common[i]);
    if (spec->cache) table_add(t, &cache_option), table_add(t, &policy_option);
    for (int i = 0; spec->tier && i < TIER_OPTIONS; i++) table_add(t, &tier_options[i]);
    if (spec->ranks) table_add(t, &ranks_option);
    if (spec->tuning) table_add(t, &tuning_option);
    if (spec->adapter) table_add(t, &adapter_option);
}

void cli_peek(const CliSpec *spec, int nword, char *const word[], CliPeek *p) {
    Table t;
    char **copy = xcalloc((size_t)nword + 1, sizeof *copy); /* getopt puts options first */
    memcpy(copy, word, (size_t)nword * sizeof *copy);
    *p = (CliPeek){0};
    table_make(&t, spec);
    optind = 0, opterr = 0;
    for (int key; (key = getopt_long(nword, copy, t.brief, t.opt, NULL)) != -1;) {
        if (key == KEY_DEVICE) p->device = optarg;
        if (key == KEY_ISA) p->isa = optarg;
        if (key == KEY_RANKS) p->ranks = optarg;
    }
    if (optind < nword) p->word = copy[optind];
    free(copy);
}

bool cli_parse(const CliSpec *spec, Cli *cli, void *ctx, int argc, char **argv, int *status) {
    *cli = (Cli){.threads = -1};
    Table t;
    table_make(&t, spec);
    const char *cmd = argv[0];
    Err e = {0};
    optind = 0, opterr = 0, *status = 0;
    for (int key; (key = getopt_long(argc, argv, t.brief, t.opt, NULL)) != -1;) {
        bool ours = key == KEY_CACHE || key == KEY_POLICY || key == KEY_TUNING || key == KEY_ADAPTER;
        ours |= key == KEY_MEMORY || key == KEY_DISK || key == KEY_PREFETCH || key == KEY_RANKS;
        for (int i = 0; common[i].name; i++) ours |= common[i].key == key;
        if (key == '?' || key == ':') {
            cli_mistake(&e, &t, spec, key, argc, argv);
        } else if (key == 'h') {
            cli_help(spec, argv[0]);
            return false;
        } else if (key == KEY_VERSION) {
            printf("kvsmith %s\n", KVSMITH_VERSION);
            return false;
        } else if (ours ? take_common(cli, key, optarg, &e) : spec->take(ctx, key, optarg, &e)) {
            continue;
        }
        *status = cli_fail(&e);
        return false;
    }
    int words = argc - optind;
    bool good = true;
    if (words < spec->min_args)
        good = err_input(&e, "%s: expected %s; see kvsmith %s --help", cmd, spec->args, cmd);
    else if (spec->max_args >= 0 && words > spec->max_args)
        good = err_input(&e, "%s: unexpected word '%.*s'; see kvsmith %s --help", cmd, WORD_MAX,
                         argv[optind + spec->max_args], cmd);
    good = good && cli_tier_whole(cli, cmd, &e);
    for (int i = optind; good && i < argc; i++) good = spec->take(ctx, CLI_ARG, argv[i], &e);
    if (!good) *status = cli_fail(&e);
    return good;
}
