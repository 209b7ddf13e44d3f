/* config.h: the settings of a run (struct Config) and the functions that read, check, compare and write them.
 * Training, `compare` and the readers of models call them. The key tables are in config_keys.c. */
#pragma once
#include "data/data_cfg.h"
#include "layers/mixer.h"
#include "optim/optim_cfg.h"
#include "tree.h"

enum { LAYERS_MAX = 256, KINDS_MAX = LAYERS_MAX, STAGES_MAX = 64, STAGE_NAME_MAX = 32 };
typedef struct {
    char name[64];
    const Mixer *mixer;
    void *cfg; /* mixer->cfg_size bytes, LayerCfg first */
} Kind;
typedef struct {
    char name[64]; /* "": model.ffn gives no names */
    const Ffn *ffn;
    void *cfg;
} FfnKind;
/* The shape of a model: everything that config.json must hold. vocab 0: the number of ids of data.tokenizer or
 * data.task; the code that opens the data sets it. max_positions is resolved: data.seq_len unless given. */
typedef struct {
    int d_model, layers, vocab, max_positions;
    double norm_eps, init_std, embed_scale, residual_scale, logits_divisor, logits_cap;
    int norm, norm_place, positions;
    bool tied, parallel, norm_plus_one;
    int library; /* LIBRARY_TRANSFORMERS, LIBRARY_FLA */
    int nkinds, nffn;
    Kind kind[KINDS_MAX];
    FfnKind ffn[KINDS_MAX];      /* as listed */
    int pattern[LAYERS_MAX];     /* layer -> kind, tiled out */
    int ffn_pattern[LAYERS_MAX]; /* layer -> feed-forward part, tiled out */
    int kv_from[LAYERS_MAX];     /* layer -> the layer whose K/V it reads; itself: owner */
} ModelCfg;

enum { LIBRARY_TRANSFORMERS, LIBRARY_FLA };

/* What the settings of every layer begin with. */
static inline LayerCfg layer_base(const ModelCfg *m, bool owner) {
    return (LayerCfg){.d_model = m->d_model,
                      .max_positions = m->max_positions,
                      .norm_eps = m->norm_eps,
                      .norm_plus_one = m->norm_plus_one,
                      .owner = owner};
}

typedef struct {
    char dir[KEY_TEXT_MAX];
    int64_t seed;
    int device, threads;
    char isa[KEY_TEXT_MAX], tuning[KEY_TEXT_MAX];
    int graph; /* GRAPH_AUTO, GRAPH_OFF */
} RunCfg;
enum { GRAPH_AUTO, GRAPH_OFF };
/* The loss on the cache statistics that mixers report, see train/compression.h. */
typedef struct {
    double target, weight; /* target 1: none */
    bool ramp, exact;
} CompressionCfg;
/* Losses against another model (the teacher); path "": none. */
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
    int save_dtype; /* of model.safetensors */
    bool keep_best, async_save, tensorboard, eval_first;
    double skip_z; /* 0: off; see train/skip.h */
    int skip_window, skip_most;
    Texts freeze, train_only; /* globs over tensor names; see train/adapt/freeze.h */
    int frozen_dtype;         /* dtype in memory of matrices that are never trained */
    char sample_prompt[KEY_TEXT_MAX];
    int sample_tokens;
    CompressionCfg compression;
} TrainCfg;
/* Low-rank adapters, see train/adapt/lora.h; rank 0: none. */
typedef struct {
    int rank;
    double alpha;
    Texts targets;
    int save;
    char init_from[KEY_TEXT_MAX];
} LoraCfg;
/* Several ranks, see train/dist/dist.h. */
typedef struct {
    int stage, reduce;
    int64_t check_every;
    double flops, link, latency, deadline;
    int launcher, comm; /* RanksFrom and CommBy of train/comm/ranks.h */
    char store[KEY_TEXT_MAX];
} DistCfg;
typedef struct Config Config;
/* One stage of a run, see config_stages below. */
typedef struct {
    char name[KEY_TEXT_MAX]; /* fewer than STAGE_NAME_MAX letters, digits, - and _; "" in a run without stages */
    int64_t first, steps;    /* steps of the run before this stage, and steps of the stage */
    char *set;               /* the settings that it changes, as a YAML map in one line */
    Config *cfg;             /* its full settings: those of the run with `set` applied, train.steps = steps */
} Stage;
struct Config {
    RunCfg run;
    ModelCfg model;
    char init_from[KEY_TEXT_MAX];
    Texts init_change; /* settings that may differ from those of init_from; see source.h */
    TeacherCfg teacher;
    LoraCfg lora;
    DataCfg data;
    TrainCfg train;
    OptimCfg optim;
    DistCfg dist;
    int nstages; /* 0: the run is one stage */
    Stage *stage;
    bool quiet;        /* not a setting: no progress is printed while data is opened */
    int threads;       /* not a setting: this rank's share of the processors; 0: run.threads */
    unsigned follows;  /* not a setting: which defaults were derived from other settings (config_defaults.c) */
    struct Comm *comm; /* not a setting: the ranks of the run (train/comm/comm.h); NULL: a single rank */
};

/* Values of the choices, in the order of config_keys.c. */
enum { NORM_RMS, NORM_LAYER };
enum { NORM_PRE, NORM_POST, NORM_BOTH };
enum { POSITIONS_NONE, POSITIONS_LEARNED };
enum { LORA_BOTH, LORA_MERGED };
enum { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };
enum { DTYPE_AUTO, DTYPE_F32, DTYPE_BF16 };
enum { REDUCE_F32, REDUCE_BF16 };

/* Replace ${here} at the start of texts in a file's tree by the file's folder. EXIT_INPUT: the folder does not
 * exist. */
bool config_here(Node *root, const char *path, Err *);
/* Read a YAML file, apply `key=value` overrides in order, check everything (except the layer map) and fill defaults.
 * - A text in the file that begins with ${here} names a path in the file's own folder; other paths are relative to the
 *   working directory.
 * - A value of ??? is refused: the user must give one.
 * - Without a whole `model`, the model of init_from is taken (source.h), and its tokenizer unless data.tokenizer is
 *   given. The settings then contain it in full. */
bool config_read(Config *, const char *path, int noverride, char *const override[], Err *);
/* The same from memory. `where` names the text in messages. On failure there is nothing to free. */
bool config_parse(Config *, const char *text, size_t n, const char *where, int noverride, char *const override[],
                  Err *);
/* The same from a tree, which it takes over. NULL: returns the error that is already in the Err. */
bool config_tree(Config *, Node *root, int noverride, char *const override[], Err *);
/* Check the conditions of training: run.dir and one of data.train and data.task are given, and the settings of a
 * teacher are used. */
bool config_trainable(const Config *, Err *);
/* Can a run that was started with `saved` and has done `step` steps continue with `now`? The message names the first
 * key that must not differ.
 *
 * These may differ: run.*, train.steps, train.attention, train.max_seconds, train.stop_at_acc, train.*_every,
 * train.eval_first, train.async_save, train.save_dtype, train.tensorboard, train.skip_*, train.keep_*, data.val,
 * optim.schedule_by, optim.warmup, optim.schedule_steps, optim.decay_steps. teacher.path may differ too: a checkpoint
 * stores a hash of the teacher's weights.
 * - The rule holds for the current stage. Earlier stages must have as many steps as before; later ones may differ.
 * - A vocab of 0 and a dtype of auto agree with any value. */
bool config_resumable(const Config *saved, const Config *now, int64_t step, Err *);
/* The two describe the same run: they differ only in run.dir, run.device, run.threads, run.tuning, run.graph,
 * train.max_seconds and train.keep_*. The message names the first other key that differs. */
bool config_same_run(const Config *saved, const Config *now, Err *);

/* Derive the defaults that the user left open (optim.warmup, train.micro_batch, optim.min_lr) for a run of `world`
 * ranks. Each rank gets equally many micro-batches if train.batch allows it. */
void config_ranks(Config *, int world);
/* On resume, copy those defaults from the settings that the run was started with. Must be called before
 * config_resumable. */
void config_adopt(Config *now, const Config *saved);

/* A run goes through its stages in order. Each has the settings of the run, changed by its `set`. Steps are counted
 * through all stages, and train.steps is their sum. Warmup, schedule and Run.progress are a stage's own. */
int config_stages(const Config *); /* >= 1 */
/* a view; without stages k = 0 is the run itself and its cfg is the argument */
Stage config_stage(const Config *, int k);
/* The stage that holds the last of `step` steps: at a boundary the stage that ends there. */
int config_stage_at(const Config *, int64_t step);
/* Set train.dtype, train.frozen_dtype or train.save_dtype in all places where it is auto. */
void config_dtype(Config *, int dtype);
void config_frozen_dtype(Config *, int dtype);
void config_save_dtype(Config *, int dtype);
/* Samples and tokens that the first `step` steps read. */
void config_position(const Config *, int64_t step, int64_t *samples, int64_t *tokens);

/* The schedule's lengths in steps of the run or stage that c describes. Percentages are of train.steps, to the nearest
 * step. Tokens are divided by those of a step and rounded up. A value that is not 0 is at least 1 step. */
typedef struct {
    int64_t warmup, steps, decay;
} ScheduleSteps;
ScheduleSteps config_schedule(const Config *c);

/* The resolved settings as YAML that config_read accepts. malloc'ed text. */
char *config_text(const Config *);
/* The model's part alone as the text of a JSON object (for config.json), and back. */
char *model_cfg_json(const ModelCfg *);
bool model_cfg_from_json(ModelCfg *, const char *json, size_t n, const char *where, Err *);
void model_cfg_free(ModelCfg *);
void config_free(Config *);
/* Print every key with its type, range, default and meaning, as text or as Markdown (docs/config.md). */
void config_document(FILE *, bool markdown);
