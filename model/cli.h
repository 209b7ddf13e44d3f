/* cli.h: shared by all commands: common options, parsing, the error line, and how a model's directory is found.
 *
 * A command is `int cmd_name(int argc, char **argv)` with argv[0] = its name. It returns the program's exit status and
 * has an entry in the table of kvsmith.c. Its options are a table of glibc's argp, which also prints the help. Parsing
 * is getopt_long over that table, so that a mistake gives one line of ours (argp prints two). */
#pragma once
#include "model/files/model_dir.h"
#include <argp.h>
#include "layers/cache/cache.h"
#include "layers/cache/codec.h"

#define KVSMITH_VERSION "0.1.0"

/* The options that every command has. Must be zeroed before use; cli_parse then sets `device`. */
typedef struct {
    const char *device;    /* "auto", "cpu" or "cuda"; NULL: not given */
    int threads;           /* 0: as many as there are processors; -1: not given */
    const char *isa;       /* the instruction set of the CPU's kernels, on this processor; NULL: not given */
    bool bf16;             /* dtype of matrix-product inputs, see device_bf16; in inference also of weights in memory */
    bool f32;              /* bf16 was not requested by name: for commands with another default */
    const RowCodec *codec; /* how a cache stores its rows; NULL: as --dtype; with settings of its own: &own_codec */
    RowCodec own_codec;
    PolicyCfg policy;    /* eviction policy of the cache, as */
    char policies[512];  /* the user named it: NAME:KEY=VALUE,...+NAME... */
    KvTier tier;         /* a limit of the cache's memory; memory 0: none */
    bool divides;        /* --cache-ranks was given: this process shall be one of several ranks, and once it is, */
    KvRanks ranks;       /* with whom it divides the cache's rows, and how; world 0: it is alone */
    const char *tuning;  /* file of measured algorithms for a GPU's products; NULL: none */
    const char *adapter; /* directory of an adapter of the model, see peft.h; NULL: none */
    bool json, quiet;
} Cli;

/* Takes one option (its key) or, with key CLI_ARG, one word that is no option; words come in order, after all options.
 * False with `e` filled: a mistake of the user's. */
enum { CLI_ARG = 0x10000 };
typedef bool CliTake(void *ctx, int key, const char *arg, Err *e);
typedef struct {
    const char *args;                  /* "MODEL", "CONFIG.yaml [KEY=VALUE...]": for the usage line */
    const char *doc;                   /* a paragraph for --help */
    const struct argp_option *options; /* ended by {0}; the command's own only; NULL: none */
    CliTake *take;                     /* NULL: the command has neither options nor words */
    int min_args, max_args;            /* number of words; max_args -1: any */
    bool cache;                        /* it has a cache: --cache-dtype, --policy */
    bool tier;                         /* it fills that cache: --cache-memory, --cache-disk, --cache-prefetch */
    bool ranks;                        /* its cache can be divided: --cache-ranks */
    bool tuning;                       /* it computes on a device: --tuning */
    bool settings;                     /* its words KEY=VALUE are settings of a run */
    bool adapter;                      /* it reads a model: --adapter */
} CliSpec;

/* Parse the arguments. True: continue. False: the command returns *status: 0 after --help or --version (printed on
 * stdout), 2 after a mistake, for which one line was printed on stderr. */
bool cli_parse(const CliSpec *, Cli *, void *ctx, int argc, char **argv, int *status);

/* Look into the words of another command without running it, for a command that starts it: the first word that is no
 * option and no option's value, --device, --isa and --cache-ranks; NULL: not given. word[0] is the command; options
 * that the spec lacks are skipped. */
typedef struct {
    const char *word, *device, *isa, *ranks;
} CliPeek;
void cli_peek(const CliSpec *, int nword, char *const word[], CliPeek *);

/* Print "kvsmith: <msg>" on stderr, one line of at most 300 characters, and return the exit status that belongs to
 * it. */
int cli_fail(const Err *);

/* A number from an option's text; `name` ("--threads") for the message; the range is inclusive. */
bool cli_int(const char *arg, const char *name, int64_t min, int64_t max, int64_t *out, Err *);
bool cli_real(const char *arg, const char *name, double min, double max, double *out, Err *);

/* The name of `n` that is nearest to `name` by edit distance; NULL if none is near (more than a third differs). */
const char *cli_nearest(const char *name, int n, const char *const names[]);
