/* engine.h: a model directory ready for use: settings, weights, tokenizer. */
#pragma once
#include <jansson.h>
#include "../data/tokenizer.h"
#include "../model/cli.h"
#include "../model/hf.h"
#include "../model/task_cfg.h"

typedef struct {
    char dir[4096];      /* where the files lie: a run folder's checkpoint is resolved */
    const char *adapter; /* directory of what is added to the weights; NULL: nothing */
    Device *dev;
    ModelCfg cfg;
    Model model;
    Tokenizer tokenizer;
    bool text;    /* there is a tokenizer that this program has */
    bool one_end; /* the token that ends a text also begins one, as in training here; no template then */
    Err no_text;  /* else: why not */
    TaskCfg task; /* that the model was trained on; kind NULL: none */
    int neos,
        eos[HF_EOS_MAX]; /* tokens that end a text: of generation_config.json, else config.json, else the tokenizer's */
} Engine;

/* `path`: a model directory, a run folder or an adapter directory, whose base is read. Reads and checks every file; a tokenizer.json that is sound but of another
 * kind than this program's is no failure (see engine_text). */
bool engine_open(Engine *, const char *path, const Cli *, Err *);
/* The same in two steps, for a model that is to be opened in another way than for extend alone: all but the model and
 * its weights; then those. A failure of the second closes the engine. */
bool engine_read(Engine *, const char *path, const Cli *, Err *);
bool engine_load(Engine *, ModelOpts, Err *);
/* How --dtype and --cache-dtype have weights and cache in memory. */
ModelOpts engine_narrow(const Cli *, ModelOpts);
/* A rotation of type dynamic adapts to sequences that are longer than those of the training. */
bool engine_dynamic(const Engine *);
/* Plan the open model for sequences of `length` tokens (model_plan). Where that is more than it was trained on and no
 * rotation of type dynamic adapts, a line on stderr says so unless `quiet`. */
void engine_plan(Engine *, int length, bool quiet);
void engine_close(Engine *);
/* The device that --device and --threads name. */
bool engine_device(Device **, const Cli *, Err *);
/* False (EXIT_INPUT) when text cannot be made into tokens: no tokenizer.json, or one of a kind that is not here. */
bool engine_text(const Engine *, Err *);

enum { SLURP_MAX = 1 << 30, SLURP_PIPE_MAX = 64 << 20 };
/* All bytes of a file, a pipe or, named "-", standard input; malloc'ed. `what` ("prompt") begins the message. EXIT_INPUT:
 * not there, more than SLURP_MAX bytes, or SLURP_PIPE_MAX of what has no size to be known before. */
bool engine_slurp(const char *path, const char *what, char **text, size_t *n, Err *);
/* The signals of signals.h end the process with status 130 at once: for commands that have nothing to save; and one line for
 * a mapped file that is cut meanwhile. */
void engine_signals(void);
/* Print a JSON object in one line on stdout and drop the reference. NULL or a failed write: EXIT_WORLD. */
bool engine_print(json_t *, Err *);
/* A number, or null where JSON has none (NaN, infinities). */
json_t *engine_number(double);
