/* cli.h: what every command shares: its options, the one line of an error, where a model lies.
 *
 * A command is `int cmd_name(int argc, char **argv)` with argv[0] = its name; it returns the exit status of the program
 * and stands in the table of kvsmith.c. Its options are a table of glibc's argp, which also prints the help; parsing is
 * getopt_long over that table, so that a mistake is one line of ours (argp prints two). */
#pragma once
#include <argp.h>
#include "../ops/tensor.h"

#define KVSMITH_VERSION "0.1.0"

/* The options that every command takes. Zero-initialise; `device` is then set by cli_parse. */
typedef struct {
    const char *device;  /* "auto", "cpu" or "cuda"; NULL: not given */
    int threads;         /* 0: as many as there are processors; -1: not given */
    const char *isa;     /* the instruction set of the CPU's kernels, on this processor; NULL: not given */
    bool bf16;           /* operands of matrix products, see device_bf16; in inference weights in memory, too */
    bool f32;            /* no bf16 was asked for by name: of use where another default is */
    int cache;           /* CACHE_*: how a cache keeps its rows */
    const char *tuning;  /* file of choices for a device's products; NULL: none */
    const char *adapter; /* directory of an adapter of the model, see peft.h; NULL: none */
    bool json, quiet;
} Cli;

enum { CACHE_AS_DTYPE, CACHE_F32, CACHE_BF16 };

/* Takes one option (its key) or, with key CLI_ARG, one word that is no option; words come in order, after all options.
 * False with `e` filled: a mistake of the user's. */
enum { CLI_ARG = 0x10000 };
typedef bool CliTake(void *ctx, int key, const char *arg, Err *e);
typedef struct {
    const char *args;                  /* "MODEL", "CONFIG.yaml [KEY=VALUE...]": for the usage line */
    const char *doc;                   /* a paragraph for --help */
    const struct argp_option *options; /* ended by {0}; its own only; NULL: none */
    CliTake *take;                     /* NULL: takes neither options nor words */
    int min_args, max_args;            /* number of words; max_args -1: any */
    bool cache;                        /* it has a cache: --cache-dtype */
    bool tuning;                       /* it computes on a device: --tuning */
    bool settings;                     /* its words KEY=VALUE are settings of a run */
    bool adapter;                      /* it reads a model: --adapter */
} CliSpec;

/* Parse. True: go on. False: return *status: 0 after --help or --version (printed on stdout), 2 after a mistake, of
 * which one line stands on stderr. */
bool cli_parse(const CliSpec *, Cli *, void *ctx, int argc, char **argv, int *status);

/* What the words of a command say, for who starts it and takes none of them itself: the first that is no option and no value
 * of one, --device and --isa; NULL: not given. word[0] is the command; what is no option of the spec is passed over. */
typedef struct {
    const char *word, *device, *isa;
} CliPeek;
void cli_peek(const CliSpec *, int nword, char *const word[], CliPeek *);

/* Print "kvsmith: <msg>" on stderr, one line of at most 300 characters, and return the exit status that goes with it.
 */
int cli_fail(const Err *);

/* A number from an option's text; `name` ("--threads") for the message; the range is inclusive. */
bool cli_int(const char *arg, const char *name, int64_t min, int64_t max, int64_t *out, Err *);
bool cli_real(const char *arg, const char *name, double min, double max, double *out, Err *);

/* Of `n` names the one nearest to `name` by edit distance, or NULL when none is near (more than a third differs). */
const char *cli_nearest(const char *name, int n, const char *const names[]);

/* The directory of a model that the user named: `path` itself when it holds config.json, else the checkpoint that a run
 * folder's `best` points to, else `last`. The link is read once, so that a checkpoint written meanwhile does not mix
 * in. Of an adapter directory (peft.h) the base's: whoever reads the weights there gives hf_load_with peft_path(path).
 */
bool model_dir_resolve(const char *path, char out[4096], Err *);
