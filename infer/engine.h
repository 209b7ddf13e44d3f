/* engine.h: an engine is a model directory ready for use: settings, weights, tokenizer. The commands `generate`, `eval`
 * and `logits` open one. */
#pragma once
#include <jansson.h>
#include "data/tokenizer.h"
#include "model/cli.h"
#include "model/files/hf.h"
#include "model/config/task_cfg.h"

typedef struct {
    char dir[4096];      /* where the files are: a run folder's checkpoint is resolved */
    const char *adapter; /* directory of the adapter that is added to the weights; NULL: none */
    Device *dev;
    ModelCfg cfg;
    Model model;
    Tokenizer tokenizer;
    bool text;        /* there is a tokenizer that this program supports */
    bool one_end;     /* the token that ends a text also begins one, as in training; then there is no template */
    Err no_text;      /* otherwise: why not */
    PolicyCfg policy; /* of the open model, if the policy makes requests of it in words */
    TaskCfg task;     /* the task that the model was trained on; kind NULL: none */
    int neos,
        eos[HF_EOS_MAX]; /* tokens that end a text: from generation_config.json, else config.json, else tokenizer */
} Engine;

/* `path`: a model directory, a run folder or an adapter directory, whose base is read. Reads and checks every file; a
 * valid tokenizer.json that this program does not support is not an error (see engine_text). */
bool engine_open(Engine *, const char *path, const Cli *, Err *);
/* The same without values: every file is checked by its header, and the model has sizes alone. */
bool engine_measure(Engine *, const char *path, const Cli *, Err *);
/* The same in two steps, for a model that is opened for more than extend: first all but the model and its weights, then
 * those. A failure of the second closes the engine. */
bool engine_read(Engine *, const char *path, const Cli *, Err *);
bool engine_load(Engine *, ModelOpts, Err *);
/* How a command becomes one of several ranks that divide the rows of a cache (--cache-ranks): the program's main part
 * knows ranks, this folder does not. */
typedef struct {
    /* Meets the other ranks and fills Cli.ranks; threads are divided among those of a host, and only rank 0 is not
     * quiet. EXIT_INPUT: this process is alone, or the ranks differ in their command or version. */
    bool (*join)(void *ctx, Cli *, Err *);
    /* False (EXIT_INPUT): `hash`, of `what`, differs from rank 0's. */
    bool (*same)(void *ctx, const char *what, uint64_t hash, Err *);
    void *ctx;
} RankHooks;
/* Whether this process prints and writes: it is alone, or rank 0. */
static inline bool engine_prints(const Cli *cli) { return cli->ranks.rank == 0; }
/* Before engine_open, where --cache-ranks was given (otherwise nothing): join. `input`: a file that the command reads,
 * NULL: none; ranks cannot share standard input. */
bool engine_join(const RankHooks *, Cli *, const char *input, Err *);
/* After it: all ranks read the same files of a model. */
bool engine_same(const Engine *, const RankHooks *, const Cli *, int planned, Err *);
/* The dtypes of weights and cache by --dtype and --cache-dtype. */
ModelOpts engine_bf16(const Cli *, ModelOpts);
/* True if a rotation of type dynamic adapts to sequences longer than those of training. */
bool engine_dynamic(const Engine *);
/* Plans the open model for sequences of `length` tokens (model_plan). If that is more than it was trained on and no
 * rotation of type dynamic adapts, prints a note on stderr unless `quiet`. */
void engine_plan(Engine *, int length, bool quiet);
/* A hash of the model's files: its config.json, and of each file of tensors, and an adapter's, the size, the header and
 * 256 blocks of 4 KiB spread over it. Where rotations depend on the planned length (engine_plan) that, too. */
bool engine_fingerprint(const Engine *, int planned, uint64_t *, Err *);
void engine_close(Engine *);
/* The device that --device and --threads name. */
bool engine_device(Device **, const Cli *, Err *);
/* False (EXIT_INPUT) if text cannot be tokenized: no tokenizer.json, or an unsupported one. */
bool engine_text(const Engine *, Err *);

enum { SLURP_MAX = 1 << 30, SLURP_PIPE_MAX = 64 << 20 };
/* All bytes of a file, a pipe or, named "-", standard input; malloc'ed. `what` ("prompt") begins the message.
 * EXIT_INPUT: missing, more than SLURP_MAX bytes, or SLURP_PIPE_MAX of an input whose size is not known before. */
bool engine_slurp(const char *path, const char *what, char **text, size_t *n, Err *);
/* The signals of signals.h end the process with status 130 at once, for commands that have nothing to save; and a
 * mapped file that is truncated meanwhile ends it with one line. */
void engine_signals(void);
/* Print a JSON object in one line on stdout and drop the reference. NULL or a failed write: EXIT_RUNTIME. */
bool engine_print(json_t *, Err *);
/* What the tier of a command's cache did, for its JSON, and the name under which it has it, "disk" or "host"; `steps`:
 * bytes and seconds are divided by as many. */
const char *engine_disk_name(const KvDisk *);
json_t *engine_disk(const KvDisk *, double steps);
/* A number, or null where JSON has none (NaN, infinities). */
json_t *engine_number(double);
