/* config.h: the settings of a run, as the schema tables in config.c describe them. */
#pragma once
#include "../data/sft.h"
#include "../data/task.h"
#include "../layers/mixer.h"
#include "tree.h"

enum { LAYERS_MAX = 256, KINDS_MAX = 32, PATHS_MAX = 256, STAGES_MAX = 64, STAGE_NAME_MAX = 32 };
typedef struct {
    char name[64];
    const Mixer *mixer;
    void *cfg; /* mixer->cfg_size bytes, LayerCfg first */
} Kind;
typedef struct {
    const Ffn *ffn;
    void *cfg;
} FfnKind;
/* The shape of a model: all that config.json must hold. vocab 0: as many ids as data.tokenizer or data.task has
 * (config.c cannot know; whoever opens the data sets it). max_positions is resolved: data.seq_len unless given. */
typedef struct {
    int d_model, layers, vocab, max_positions;
    double norm_eps, init_std, embed_scale;
    int norm, positions;
    bool tied, parallel;
    int nkinds, nffn;
    Kind kind[KINDS_MAX];
    FfnKind ffn[KINDS_MAX];  /* as listed; layer l has ffn[l % nffn] */
    int pattern[LAYERS_MAX]; /* layer -> kind, tiled out */
    int kv_from[LAYERS_MAX]; /* layer -> the layer whose K/V it reads; itself: owner */
} ModelCfg;

typedef struct {
    char path[KEY_TEXT_MAX];
    double weight; /* 0: none is given */
} Path;
typedef struct {
    char dir[KEY_TEXT_MAX];
    int64_t seed;
    int device, threads;
    char isa[KEY_TEXT_MAX], tuning[KEY_TEXT_MAX];
    int graph; /* GRAPH_AUTO, GRAPH_OFF */
} RunCfg;
enum { GRAPH_AUTO, GRAPH_OFF };
typedef struct {
    int ntrain;
    Path train[PATHS_MAX];      /* text files and sets of ids; all have a weight, or none */
    TaskCfg task;               /* kind NULL: text; else T is seq_len, and no file is read */
    const char *tokenizer_copy; /* no setting: a directory with the same tokenizer if `tokenizer` is gone; or NULL */
    char val[KEY_TEXT_MAX];     /* "" = the last val_fraction of train */
    double val_fraction;
    char tokenizer[KEY_TEXT_MAX],
        eot[KEY_TEXT_MAX]; /* "byte" or a path; the token between documents, "" = the tokenizer's */
    int seq_len;
    char separator[KEY_TEXT_MAX]; /* text between two documents of a file; "" = a file is one document */
    int encoding;                 /* ENCODING_UTF8, ENCODING_BYTES: of text files */
    int64_t val_samples;          /* of the task */
    SftCfg sft;                   /* template CHAT_NONE: the files are plain text */
} DataCfg;
enum { ENCODING_UTF8, ENCODING_BYTES };
/* The loss on what mixers report of their caches, see train/compression.h. */
typedef struct {
    double target, weight; /* target 1: none */
    bool ramp;
} CompressionCfg;
/* Losses against another model; path "": none. */
typedef struct {
    double lm, kl, rkl, attention, hidden;
} TeacherLosses;
typedef struct {
    char path[KEY_TEXT_MAX];
    TeacherLosses losses; /* weights */
    double temperature;
    int dtype; /* of its matrices in memory */
} TeacherCfg;
static inline bool teacher_wanted(const TeacherCfg *t) {
    const TeacherLosses *l = &t->losses;
    return *t->path && (l->kl > 0 || l->rkl > 0 || l->attention > 0 || l->hidden > 0);
}
typedef struct {
    int64_t steps;
    double max_seconds, stop_at_acc; /* stop_at_acc 0: off */
    int batch, micro_batch, dtype, attention;
    double dropout;
    int recompute; /* first layers whose activations are recomputed in backward; -1 all */
    int64_t eval_every, save_every, sample_every, log_every, eval_tokens;
    int keep_last;
    int save_dtype;
    bool keep_best, async_save, tensorboard, eval_first;
    double skip_z; /* 0: off; see train/skip.h */
    int skip_window, skip_most;
    Texts freeze, train_only; /* globs of tensors' names; see train/freeze.h */
    int frozen_dtype;         /* of matrices in memory that are never trained */
    char sample_prompt[KEY_TEXT_MAX];
    int sample_tokens;
    CompressionCfg compression;
} TrainCfg;
/* Adapters of low rank, see train/lora.h; rank 0: none. */
typedef struct {
    int rank;
    double alpha;
    Texts targets;
    int save;
    char init_from[KEY_TEXT_MAX];
} LoraCfg;
/* Tensors with rates of their own; the first that matches counts. */
enum { GROUPS_MAX = 32 };
typedef struct {
    char match[KEY_TEXT_MAX];
    double lr_scale, weight_decay;
} OptimGroup;
typedef struct {
    int ngroups;
    OptimGroup group[GROUPS_MAX];
    int kind, state_dtype;
    double muon_momentum, muon_scale;
    int muon_steps;
    bool muon_nesterov;
    double lr, min_lr, weight_decay, clip, beta1, beta2, eps, balance_rate;
    Length warmup, schedule_steps, decay_steps; /* schedule_steps 0: train.steps; see config_schedule */
    int schedule, schedule_by;
} OptimCfg;
/* Several ranks, see train/dist.h. */
typedef struct {
    int stage, reduce;
    int64_t check_every;
    double flops, link, latency, deadline;
    int launcher, comm; /* RanksFrom and CommBy of train/ranks.h */
    char store[KEY_TEXT_MAX];
} DistCfg;
typedef struct Config Config;
/* One stage of a run, see `stages` below. */
typedef struct {
    char name[KEY_TEXT_MAX]; /* below STAGE_NAME_MAX letters, digits, - and _; "" in a run without stages */
    int64_t first, steps;    /* steps of the run before it, its own */
    char *set;               /* what it changes, as a YAML map in one line */
    Config *cfg;             /* its settings in full: those of the run with `set` put in, train.steps = steps */
} Stage;
struct Config {
    RunCfg run;
    ModelCfg model;
    char init_from[KEY_TEXT_MAX];
    Texts init_change; /* settings that may deviate from init_from's; see source.h */
    TeacherCfg teacher;
    LoraCfg lora;
    DataCfg data;
    TrainCfg train;
    OptimCfg optim;
    DistCfg dist;
    int nstages; /* 0: the run is one stage */
    Stage *stage;
    bool quiet;        /* no setting: whoever opens the data tells nothing of long work */
    int threads;       /* no setting: this rank's share of the processors; 0: as run.threads says */
    unsigned follows;  /* no setting: which defaults follow from other settings (config_defaults.c) */
    struct Comm *comm; /* no setting: the ranks of the run (train/comm.h); NULL: it is alone */
};

/* The order of the choices in config_keys.c. */
enum { NORM_RMS, NORM_LAYER };
enum { POSITIONS_NONE, POSITIONS_LEARNED };
enum { SAVE_F32, SAVE_BF16 };
enum { LORA_BOTH, LORA_MERGED };
enum { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };
enum { DTYPE_AUTO, DTYPE_F32, DTYPE_BF16 };
enum { OPTIM_ADAMW, OPTIM_MUON };
enum { STATE_F32, STATE_BF16 };
enum { REDUCE_F32, REDUCE_BF16 };
enum { SCHEDULE_BY_STEPS, SCHEDULE_BY_TIME };
enum { SCHEDULE_COSINE, SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_WSD };

/* Read a YAML file, then `key=value` overrides in order, check everything (layer map excluded), fill defaults. In the
 * file a text that begins with ${here} names a path in the file's own folder; other paths are from the working
 * directory. A value of ??? is refused: the user must give one. Without a whole `model` that of init_from is taken
 * (source.h), and its tokenizer unless data.tokenizer is given; the settings then hold it whole. */
/* ${here} at the start of a text of a file's tree becomes the file's folder. EXIT_INPUT: there is no such folder. */
bool config_here(Node *root, const char *path, Err *);
bool config_read(Config *, const char *path, int noverride, char *const override[], Err *);
/* The same from memory. `where` names it in messages. On failure there is nothing to free. */
bool config_parse(Config *, const char *text, size_t n, const char *where, int noverride, char *const override[],
                  Err *);
/* The same from a tree, which is taken. NULL: the error that the reader of the tree left stands. */
bool config_tree(Config *, Node *root, int noverride, char *const override[], Err *);
/* What only training needs: run.dir and one of data.train and data.task are given; what is said of a teacher is used.
 */
bool config_trainable(const Config *, Err *);
/* May a run begun with `saved` that has done `step` steps go on with `now`? Only run.*, train.steps, train.attention,
 * train.max_seconds, train.stop_at_acc, train.*_every, train.eval_first, train.async_save, train.save_dtype, train.tensorboard,
 * train.skip_*, train.keep_*, data.val and the schedule's clock and lengths (optim.schedule_by,
 * optim.warmup, optim.schedule_steps, optim.decay_steps) may differ; the message names the first other key that does. teacher.path may differ, too: a
 * checkpoint knows the teacher's numbers. So in the stage that the run is in; stages before it must be of as many steps
 * as they were, those after it may be others. A vocab of 0 and a dtype of auto agree with any. */
bool config_resumable(const Config *saved, const Config *now, int64_t step, Err *);
/* The two are the same run: they differ in nothing but run.dir, run.device, run.threads, run.tuning, run.graph,
 * train.max_seconds and train.keep_*. The message names the first other key that does. */
bool config_same_run(const Config *saved, const Config *now, Err *);

/* Defaults that the user has left open (optim.warmup, train.micro_batch, optim.min_lr) for a run of `world` ranks: each
 * gets equally many micro-batches where train.batch allows it. */
void config_ranks(Config *, int world);
/* On resume they are what the run was begun with: before config_resumable. */
void config_adopt(Config *now, const Config *saved);

/* Stages: a run goes through them in order, each with the settings of the run but for what its `set` says. Steps are
 * counted through all of them and train.steps is their sum; warmup, schedule and Run.progress are a stage's own. */
int config_stages(const Config *);         /* >= 1 */
Stage config_stage(const Config *, int k); /* a view; without stages k = 0 is the run itself, its cfg the argument */
/* The stage of the last of `step` steps: at a border the one that ends there. */
int config_stage_at(const Config *, int64_t step);
/* Wherever train.dtype is auto it becomes this; the same of train.frozen_dtype. */
void config_dtype(Config *, int dtype);
void config_frozen_dtype(Config *, int dtype);
/* Samples and tokens that the first `step` steps read. */
void config_position(const Config *, int64_t step, int64_t *samples, int64_t *tokens);

/* The schedule's lengths in steps of the run or stage that c describes. Percentages are of train.steps, to the nearest
 * step; tokens are divided by those of a step and rounded up; what is not 0 is at least 1 step. */
typedef struct {
    int64_t warmup, steps, decay;
} ScheduleSteps;
ScheduleSteps config_schedule(const Config *c);

/* The resolved settings as YAML that config_read accepts. malloc'ed text. */
char *config_text(const Config *);
/* The model's part alone, as one JSON object's text (for config.json), and back. */
char *model_cfg_json(const ModelCfg *);
bool model_cfg_from_json(ModelCfg *, const char *json, size_t n, const char *where, Err *);
void model_cfg_free(ModelCfg *);
void config_free(Config *);
/* Every key, its type, range, default and meaning, as text, or as Markdown for docs/config.md. */
void config_document(FILE *, bool markdown);
