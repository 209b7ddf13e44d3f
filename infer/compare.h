/* compare.h: `kvsmith compare`: the same data, budget, parameters and code for every architecture.
 *
 * DIR/table.md, results.json        what was found                 DIR/.lock   held while somebody compares here
 * DIR/speed.json                    the last measurement of speed
 * DIR/ROW/lr-3e-3-seed-1/           an ordinary run folder         DIR/ROW/lr-3e-3-seed-1.yaml  its settings
 * DIR/ROW/lr-3e-3-seed-1.json       its record, written when the run is over: finished or diverged
 *
 *
 * A row with `convert` starts from a conversion of the row that `from` names:
 * DIR/ROW/converted/                a model directory          DIR/ROW/converted.json  what `kvsmith convert` said
 * A row with `marks` is a run per seed and mark, the mark a percentage of the steps of the row that the chain of `from`
 * begins with: DIR/ROW/lr-3e-3-seed-1-mark-5. The rate is constant and decays in the last `decay` percent of a mark's
 * steps. The run of a mark begins with the checkpoint that the one before saved as its decay began, so that every mark
 * is, bit for bit, what a run of that many steps with that schedule gives, and constant steps are done once.
 *
 * A run without a record is begun or gone on with, a run with one is not touched again. */
#pragma once
#include <jansson.h>
#include "../model/cli.h"
#include "../model/config.h"

enum {
    ROWS_COMPARED_MAX = 64,
    LRS_MAX = 16,
    SEEDS_MAX = 32,
    BATCHES_MAX = 8,
    CONTEXTS_MAX = 8,
    MARKS_MAX = 8,
    WORDS_MAX = 32
};

/* ---- settings ------------------------------------------------------------------------------------------------------
 */
typedef struct {
    char name[KEY_TEXT_MAX], from[KEY_TEXT_MAX], teacher[KEY_TEXT_MAX];
    int64_t tokens; /* 0: budget.tokens */
    Numbers lrs;    /* resolved: the comparison's where the row gives none */
    const Node *set;
    Numbers marks;
    double mark_decay;                                   /* percent */
    int64_t mark_steps[MARKS_MAX], mark_hold[MARKS_MAX]; /* of a mark; before its decay. steps is that of the last */
    const Node *convert;                                 /* NULL: none */
    char to[32], calib[KEY_TEXT_MAX], calib_tokens[24];  /* of it */
    int nword;
    char *word[WORDS_MAX]; /* key=value, owned */
    int learns;            /* the row that `teacher` names, -1: none */
    int source;            /* the row that `from` names, -1: none */
    Config cfg;            /* of any of its runs, but for run.dir, run.seed, init_from and the learning rate */
    double decay;          /* optim.min_lr / optim.lr of its settings */
    int64_t steps;
    size_t params, hidden; /* hidden: of the first feed-forward part */
    /* by formula: one token's bytes as far as they grow for ever, states, all at measure.context and at the contexts */
    size_t grows, state_bytes, at_context, at[CONTEXTS_MAX];
} CompareRow;
typedef struct {
    char dir[KEY_TEXT_MAX];
    struct {
        int64_t params;
        double tolerance;
        int by, multiple;
    } match;
    Numbers lrs;
    int64_t tune_seed;
    Ints seeds;
    struct {
        int64_t tokens;
        double max_passes, max_seconds;
    } budget;
    struct {
        int context, prompt, decode, repeats;
        Ints batches, contexts;
    } measure;
    int nrows;
    CompareRow *row;
    Node *root, *base;
    char *base_path;        /* NULL: written in place */
    const char *path;       /* of the configuration */
    size_t text_tokens;     /* to train on */
    char text_hash[24];     /* of them */
    int threads;            /* that runs and measurements use */
    char isa[KEY_TEXT_MAX]; /* as --isa names it, "auto" too */
    Dtype dtype;            /* of the operands of products, in all rows */
} Compare;
extern const Key compare_keys[], compare_row_keys[];

/* Read, check everything, match every row's width. `c` must outlive what is made of it. Nothing is written. */
bool compare_read(Compare *, const char *path, int noverride, char *const override[], const Cli *, Err *);
void compare_free(Compare *);
/* The smallest difference to `want` parameters that widths in multiples of `multiple` reach. Sets cfg's widths: the
 * first part's is the result, others keep their proportion to it. `where` begins the message. */
bool compare_match(Config *cfg, Device *, int64_t want, double tolerance, int multiple, size_t *params, size_t *hidden,
                   const char *where, Err *);
/* 0.003 -> "3e-3" */
const char *compare_lr_name(double lr, char buf[32]);

/* ---- runs ----------------------------------------------------------------------------------------------------------
 */
/* ---- conversions and marks ------------------------------------------------------------------------------------------
 */
/* The keys `convert`, `marks`, `decay` of a row that is read otherwise. */
bool compare_convert_read(const Compare *, CompareRow *, const Node *row, const char *path, Err *);
bool compare_marks_read(const Compare *, CompareRow *, const Node *row, const char *path, Err *);
/* The settings of what the row's conversion makes of a model of the settings `from`, a tree. NULL: refused. */
Node *compare_convert_plan(const CompareRow *, const Config *from, const char *path, Err *);
/* The folder that the row's runs start from (malloc'ed): made of SRC unless it is there. *status: see compare_train. */
bool compare_convert(const Compare *, const CompareRow *, const char *src, int *status, Err *);
char *compare_converted(const Compare *, const CompareRow *);
/* The record beside it; NULL: none. */
json_t *compare_convert_record(const Compare *, const CompareRow *);
/* The checkpoint that a mark's run goes on from; NULL: it starts where the row does. malloc'ed */
char *compare_mark_start(const Compare *, const CompareRow *, double lr, int64_t seed, int mark);
int compare_runs(const CompareRow *); /* of a seed: marks, or 1 */

typedef enum { RUN_MISSING, RUN_BEGUN, RUN_FINISHED, RUN_DIVERGED } RunState;
typedef struct {
    RunState state;
    double lr, val_loss, tok_s, seconds; /* tok_s, seconds: of training steps alone */
    double first_loss;                   /* before the first step; NaN: not known */
    int64_t seed, step, steps, tokens, val_tokens;
    int64_t start; /* tokens before what metrics.jsonl tells: of another run */
    int threads;
    bool cut;      /* ended by budget.max_seconds */
    char why[301]; /* of RUN_DIVERGED */
} RunRecord;

/* What metrics.jsonl of a run folder tells, r->start given: step, tokens, seconds of the steps, the last validation. A
 * missing or empty file is no failure: all zero. */
bool compare_metrics(const char *folder, RunRecord *, Err *);
/* malloc'ed DIR/ROW/lr-..-seed-..; of a row with marks that of a mark, -1: the last */
char *compare_folder(const Compare *, const CompareRow *, double lr, int64_t seed, int mark);
/* The model directories that a row's runs start from and learn from, NULL: none. malloc'ed */
typedef struct {
    char *from, *teacher;
} Origin;
void origin_free(Origin *);
/* Settings of one run. The copy shares the row's model. */
void compare_run_config(const Compare *, const CompareRow *, double lr, int64_t seed, int mark, const Origin *,
                        Config *);
/* The record of a run as it is on disk. EXIT_INPUT: it was begun with other settings or another text. */
bool compare_look(const Compare *, const CompareRow *, const Config *, int mark, RunRecord *, Err *);

typedef struct {
    const Cli *cli;
    int at, total; /* runs begun by this process, runs that it will do */
    bool live;
    FILE *out;
} Progressing;
/* Train one run in a child process and write its record. *status: 0, or 130 when a signal came, the run then having
 * saved. False: it failed otherwise, by its own message. */
bool compare_train(const Compare *, const CompareRow *, const Config *, int mark, Progressing *, RunRecord *,
                   int *status, Err *);
void compare_signals(void); /* from now on signals.h's end the run at work, which saves */
bool compare_interrupted(void);

/* ---- results -------------------------------------------------------------------------------------------------------
 */
typedef struct {
    int n;
    double mean, sd; /* sd: with n - 1; NaN below 2 */
} Spread;
Spread compare_spread(int n, const double *x);
typedef enum { RANK_NONE, RANK_BEST, RANK_TIE, RANK_WORSE } Rank;
/* Against the lowest mean: a tie when the difference is below 2 sd, of the two sds the larger, or an sd is not known.
 * n = 0: RANK_NONE. */
void compare_rank(int n, const Spread *, Rank *);

typedef struct {
    RunRecord tune[LRS_MAX], run[SEEDS_MAX]; /* of a row with marks: of the last, or the one that diverged */
    RunRecord mark[MARKS_MAX][SEEDS_MAX];
    bool tuned; /* every learning rate was tried; lr is the one of the lowest loss, 0 when all diverged */
    double lr;
    int best; /* the seed of the lowest loss among finished runs, -1: none */
    Spread loss;
    Rank rank;
} RowResult;
/* Of the records on disk. */
bool compare_result(const Compare *, int row, const RowResult *all, RowResult *, Err *);
/* The folder of the best run of a row; NULL: it has none. malloc'ed. */
char *compare_best(const Compare *, int row, const RowResult *);

/* What row `row` starts and learns from. False: a row that is named has no finished run yet; a conversion of it may be
 * still to be made. */
bool compare_source(const Compare *, int row, const RowResult *all, Origin *);
/* Cache bytes and speeds of every row that has a finished run, all in one go, in interleaved repetitions; the JSON of
 * DIR/speed.json. Kept from the last time when nothing of it would differ, unless `again`. NULL: failed. */
json_t *compare_measure(const Compare *, const RowResult *, bool again, const Cli *, Err *);
void compare_machine(char name[128]); /* the processor */
/* All that is known, as one object; and as a Markdown table. */
json_t *compare_json(const Compare *, const RowResult *, const json_t *speed);
void compare_table(FILE *, const json_t *results);
/* What a row's conversion said and its marks, into its object. */
void compare_marks_json(const Compare *, int row, const RowResult *, json_t *);
/* The second table, of rows with marks; nothing where there are none. */
void compare_marks_table(FILE *, const json_t *results);
