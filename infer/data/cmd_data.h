/* cmd_data.h: options and input files that the parts of the command `data` share. */
#pragma once
#include "data/paths.h"
#include "data/tokenizer.h"
#include "model/cli.h"
#include "infer/tell.h"

/* Files that a command reads one after the other, with progress and an end by signal. */
typedef struct {
    Paths file;
    const char *now;             /* the current one */
    const char *separator, *key; /* separator as given; key NULL: JSONL by the file's name, "text" */
    bool any;                    /* any bytes are text */
    size_t bytes, of;            /* on disk: read so far, all */
    bool quiet;
    Tell tell;
} Inputs;
typedef bool InputSink(void *ctx, const char *s, size_t n, bool end, Err *);

bool inputs_add(Inputs *, const char *word, Err *);     /* a file, "-", a pattern or a folder (paths.h) */
bool inputs_encoding(Inputs *, const char *arg, Err *); /* --encoding */
/* Reads every document of every file, in order; `end` as in source.h. A name with .jsonl (.jsonl.gz, .jsonl.zst) is
 * JSONL. After a signal: EXIT_SIGNAL in e->status, which data_fail turns into the exit status. */
bool inputs_read(Inputs *, InputSink *, void *ctx, Err *);
void inputs_free(Inputs *);
/* Signals (signals.h) wait until inputs_read checks for them, so that unfinished files are removed first. */
void inputs_hold_signals(void);
void inputs_let_signals(void); /* they end the process with EXIT_SIGNAL again */
int data_fail(const Err *);
int data_threads(const Cli *);

int data_tokenize(int argc, char **argv), data_train_bpe(int argc, char **argv), data_inspect(int argc, char **argv);
