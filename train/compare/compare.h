/* compare.h: the command `kvsmith compare`: trains several layouts with the same data, budget, parameters and code, and
 * measures each.
 *
 * - DIR/table.md, table.html, results.json: the results
 * - DIR/speed.json: the last measurement of sizes and speeds; DIR/losses.json: that of losses by position
 * - DIR/.lock: locked while a process compares here
 * - DIR/ROW/lr-3e-3-seed-1/: an ordinary run folder; next to it its settings, lr-3e-3-seed-1.yaml, and its record,
 *   lr-3e-3-seed-1.json, written when the run is over: finished or diverged
 *
 * Learning rates are tried at `tune_seed`, whose runs are not among those that are compared.
 *
 * The runs of a row with `from` start from the source's run of the same seed. A seed that the source has no run of, as
 * that run diverged or the source was not tuned, starts from the source's best run. A row with `convert` starts from a
 * conversion of that run: DIR/ROW/converted-seed-1/ is a model directory, converted-seed-1.json the output of `kvsmith
 * convert`. A teacher is the named row's run of the same seed, too.
 *
 * A row with `marks` is a run per seed and mark, where the mark is a percentage of the steps of the first row in the
 * chain of `from`: DIR/ROW/lr-3e-3-seed-1-mark-5. The learning rate is constant and decays in the last `decay` percent
 * of a mark's steps. The run of a mark begins with the checkpoint that the run before saved when its decay began, so
 * every mark is, bit for bit, the result of a run of that many steps with that schedule, and constant steps are done
 * once.
 *
 * A run without a record is started or continued; a run with one is not touched again. */
#pragma once
#include <jansson.h>
#include "infer/eval/loss_split.h"
#include "model/cli.h"
#include "model/config/config.h"

enum {
    ROWS_COMPARED_MAX = 64,
    LRS_MAX = 16,
    WIDEN_MAX = 8,
    RATES_MAX = LRS_MAX + 2 * WIDEN_MAX,
    SEEDS_MAX = 32,
    BATCHES_MAX = 8,
    CONTEXTS_MAX = 8,
    MARKS_MAX = 8,
    WORDS_MAX = 32
};

#define LR_MIN 1e-9
#define LR_MAX 100.0

/* ---- settings ------------------------------------------------------------------------------------------------------
 */
typedef struct {
    char name[KEY_TEXT_MAX], from[KEY_TEXT_MAX], teacher[KEY_TEXT_MAX];
    int64_t tokens; /* 0: budget.tokens */
    Numbers lrs;    /* resolved: the comparison's if the row gives none */
    const Node *set;
    Numbers marks;
    double mark_decay;                                   /* percent */
    int64_t mark_steps[MARKS_MAX], mark_hold[MARKS_MAX]; /* of a mark; before its decay. steps is that of the last */
    const Node *convert;                                 /* NULL: none */
    char to[32], calib[KEY_TEXT_MAX], calib_tokens[24];  /* of it */
    int nword;
    char *word[WORDS_MAX]; /* key=value, owned */
    int learns;            /* index of the row that `teacher` names, -1: none */
    int source;            /* index of the row that `from` names, -1: none */
    bool control;          /* made by compare_controls: has the layout of its source */
    int reference; /* index of the row that continues the same source as it is, with the same teacher, -1: none */
    Config cfg;    /* settings of any of its runs, except run.dir, run.seed, init_from and the learning rate */
    double decay;  /* optim.min_lr / optim.lr of its settings */
    int64_t steps, tune_steps; /* tune_steps: of runs at tune_seed */
    size_t params, hidden;     /* hidden: of the first feed-forward part */
    /* by formula: one token's bytes as far as they grow without limit, states, all at measure.context and at the
     * contexts */
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
    int widen;
    int64_t tune_seed;
    Ints seeds;
    struct {
        int64_t tokens, tune_tokens;
        double max_passes, max_seconds;
    } budget;
    struct {
        int context, prompt, decode, repeats, loss_context;
        int64_t loss_tokens, common;
        Ints batches, contexts;
    } measure;
    bool controls;
    int nrows; /* the controls come last */
    CompareRow *row;
    Node *root, *base, *control_rows; /* control_rows: a list like `rows` */
    char *base_path;                  /* NULL: written in place */
    const char *path;                 /* of the configuration */
    size_t text_tokens;               /* to train on */
    char text_hash[24];               /* of them */
    int threads;                      /* threads of runs and measurements */
    char isa[KEY_TEXT_MAX];           /* as --isa names it, "auto" too */
    Dtype dtype;                      /* dtype of the inputs of products, in all rows */
} Compare;
extern const Key compare_keys[], compare_row_keys[];

/* Reads and checks everything, and matches every row's width. `c` must outlive everything made from it. Writes
 * nothing. */
bool compare_read(Compare *, const char *path, int noverride, char *const override[], const Cli *, Err *);
void compare_free(Compare *);
/* The smallest difference from `want` parameters that widths in multiples of `multiple` reach. Sets cfg's widths: the
 * first part's is the result, others keep their proportion to it. `where` begins the message. */
bool compare_match(Config *cfg, Device *, int64_t want, double tolerance, int multiple, size_t *params, size_t *hidden,
                   const char *where, Err *);
/* 0.003 -> "3e-3" */
const char *compare_lr_name(double lr, char buf[32]);

/* ---- conversions and marks ------------------------------------------------------------------------------------------
 */
/* The keys `convert`, `marks`, `decay` of a row, which are read separately. */
bool compare_convert_read(const Compare *, CompareRow *, const Node *row, const char *path, Err *);
bool compare_marks_read(const Compare *, CompareRow *, const Node *row, const char *path, Err *);
/* Sets mark_steps and mark_hold of a row whose marks and source are set. Returns the first mark that is not a step or
 * more after the one before, -1: all are. */
int compare_marks_place(const Compare *, CompareRow *);
/* Rows with `convert`, and rows with `from` that set keys of the layout, are compared with a control: the source as it
 * is, trained on for the same steps or marks, at the same rates, with the row's other settings and teacher. Sets
 * `reference` of all rows; *out: a list of the controls that the configuration does not have, which follow its rows in
 * this order (NULL: none). A row with a teacher also gets the control without one. With `controls` false: none. */
bool compare_controls(Compare *, Node **out, Err *);
/* The settings, a tree, of the row's conversion of a model with the settings `from`. NULL: refused. */
Node *compare_convert_plan(const CompareRow *, const Config *from, const char *path, Err *);
/* Converts the run in the folder `src` into compare_converted, from which the row's run of that seed starts, unless it
 * exists. *status: see compare_train. */
bool compare_convert(const Compare *, const CompareRow *, int64_t seed, const char *src, int *status, Err *);
char *compare_converted(const Compare *, const CompareRow *, int64_t seed); /* malloc'ed */
/* The record next to it; NULL: none. */
json_t *compare_convert_record(const Compare *, const CompareRow *, int64_t seed);
/* The checkpoint from which a mark's run continues; NULL: it starts where the row does. malloc'ed */
char *compare_mark_start(const Compare *, const CompareRow *, double lr, int64_t seed, int mark);
int compare_runs(const CompareRow *);                                               /* of a seed: marks, or 1 */
int64_t compare_steps(const Compare *, const CompareRow *, int64_t seed, int mark); /* of a run */

/* ---- runs ----------------------------------------------------------------------------------------------------------
 */
typedef enum { RUN_MISSING, RUN_BEGUN, RUN_FINISHED, RUN_DIVERGED } RunState;
typedef struct {
    RunState state;
    double lr, val_loss, tok_s, seconds; /* tok_s, seconds: of training steps only */
    double first_loss;                   /* loss before the first step; NaN: unknown */
    int64_t seed, step, steps, tokens, val_tokens;
    int64_t start; /* tokens before those in metrics.jsonl: of another run */
    int threads;
    bool cut;      /* ended by budget.max_seconds */
    char why[301]; /* of RUN_DIVERGED */
} RunRecord;

/* Reads metrics.jsonl of a run folder, with r->start given: step, tokens, seconds of the steps, the last validation. A
 * missing or empty file is not an error: all zero. */
bool compare_metrics(const char *folder, RunRecord *, Err *);
/* malloc'ed DIR/ROW/lr-..-seed-..; of a row with marks that of a mark, -1: the last */
char *compare_folder(const Compare *, const CompareRow *, double lr, int64_t seed, int mark);
/* The model directories from which a row's runs start and learn, NULL: none. malloc'ed */
typedef struct {
    char *from, *teacher;
} Origin;
void origin_free(Origin *);
/* Settings of one run. The copy shares the row's model. */
void compare_run_config(const Compare *, const CompareRow *, double lr, int64_t seed, int mark, const Origin *,
                        Config *);
/* The record of a run on disk. EXIT_INPUT: it was made with other settings or another text. */
bool compare_look(const Compare *, const CompareRow *, const Config *, int mark, RunRecord *, Err *);

typedef struct {
    const Cli *cli;
    int at, total; /* runs started by this process, runs that it will do */
    bool live;
    FILE *out;
} Progressing;
/* Trains one run in a child process and writes its record. *status: 0, or 130 after a signal, when the run has saved.
 * False: it failed otherwise; the message is its own. */
bool compare_train(const Compare *, const CompareRow *, const Config *, int mark, Progressing *, RunRecord *,
                   int *status, Err *);
void compare_signals(void); /* from now on the signals of signals.h end the current run, which saves */
bool compare_interrupted(void);

/* ---- results -------------------------------------------------------------------------------------------------------
 */
typedef struct {
    int n;
    double mean, sd; /* sd: with n - 1; NaN below 2 */
} Spread;
Spread compare_spread(int n, const double *x);
typedef enum { RANK_NONE, RANK_BEST, RANK_TIE, RANK_WORSE } Rank;
/* Compares with the lowest mean: a tie if the difference is below 2 sd, the larger sd of the two, or if an sd is
 * unknown. n = 0: RANK_NONE. */
void compare_rank(int n, const Spread *, Rank *);

typedef struct {
    RunRecord run[SEEDS_MAX]; /* in a row with marks: of the last, or of the one that diverged */
    RunRecord mark[MARKS_MAX][SEEDS_MAX];
    RunRecord tune[RATES_MAX]; /* (ntuned) by learning rate; the last may not have begun */
    int ntuned;
    double next; /* the learning rate that is tried next, 0: none, the row is tuned */
    bool tuned;  /* lr has the lowest loss, 0 if all diverged */
    bool edge;   /* and is the smallest or the largest that was tried */
    double lr;
    int best; /* index of the seed of the lowest loss among finished runs, -1: none */
    Spread loss;
    LossSplit split[SEEDS_MAX]; /* of finished runs, after compare_losses */
    Rank rank;
} RowResult;
/* Reads the records on disk. */
bool compare_result(const Compare *, int row, const RowResult *all, RowResult *, Err *);
/* The folder of the best run of a row; NULL: it has none. malloc'ed. */
char *compare_best(const Compare *, int row, const RowResult *);

/* Sets the folders from which row `row` starts and learns at a seed. False: a named row's run of that seed is not over
 * yet, or none finished; a conversion of it may still have to be made. */
bool compare_source(const Compare *, int row, const RowResult *all, int64_t seed, Origin *);
/* The folder (malloc'ed) of a row's run from which others start at a seed: see above. NULL: none, or not over yet. */
char *compare_run_of(const Compare *, int row, const RowResult *, int64_t seed);

/* ---- learning rates ------------------------------------------------------------------------------------------------
 */
bool compare_tunes(const Compare *, const CompareRow *); /* several rates are tried */
/* Sets tune, ntuned, next, tuned, edge and lr of a row that tunes, from what `look` says of the runs at a rate. */
typedef bool TuneLook(void *ctx, double lr, RunRecord *, Err *);
bool compare_tuning(const Compare *, const CompareRow *, TuneLook *, void *ctx, RowResult *, Err *);
/* The rate that is tried after `n` others, in ascending order and with their losses (NaN: diverged), of which the grid
 * is a part; 0: none. The best one is at an edge: the next one lies beyond it by the grid's ratio there, or by 2 in a
 * grid of one, at most `widen` times on a side. Where all diverged it is the lowest. *edge: the best is at an edge and
 * none follows. */
double compare_widen(const Numbers *grid, int widen, int n, const double *lr, const double *loss, bool *edge);
/* Runs at tune_seed that are still to be made, at least; more follow where the best rate stays at an edge. */
int compare_tuning_left(const Compare *, const CompareRow *, const RowResult *);

/* ---- tables --------------------------------------------------------------------------------------------------------
 */
void compare_machine(char name[128]); /* the processor */
/* Everything known, as one object; and as a Markdown table. */
json_t *compare_json(const Compare *, const RowResult *, const json_t *speed);
void compare_table(FILE *, const json_t *results);
/* A page of `markdown`, which compare_table wrote, and a plot of loss over bytes. */
void compare_html(FILE *, const char *markdown, const json_t *results);
/* Which of `n` points no other of the same kind dominates: one that is not worse in both and better in one. A point
 * with a NaN is not on the front. */
void compare_front(int n, const double *loss, const double *bytes, const bool *kind, bool *front);
/* Adds a row's conversion report and its marks to its object. */
void compare_marks_json(const Compare *, int row, const RowResult *, json_t *);
/* The second table, of rows with marks; nothing if there are none. */
void compare_marks_table(FILE *, const json_t *results);
