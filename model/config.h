/* config.h: the settings of a run, as the schema tables in config.c describe them. */
#pragma once
#include "../data/task.h"
#include "../layers/mixer.h"

enum { LAYERS_MAX = 256, KINDS_MAX = 32, PATHS_MAX = 64 };
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
    bool tied;
    int nkinds, nffn;
    Kind kind[KINDS_MAX];
    FfnKind ffn[KINDS_MAX];  /* as listed; layer l has ffn[l % nffn] */
    int pattern[LAYERS_MAX]; /* layer -> kind, tiled out */
    int kv_from[LAYERS_MAX]; /* layer -> the layer whose K/V it reads; itself: owner */
} ModelCfg;

typedef struct {
    char path[KEY_TEXT_MAX];
} Path;
typedef struct {
    char dir[KEY_TEXT_MAX];
    int64_t seed;
    int device, threads;
} RunCfg;
typedef struct {
    int ntrain;
    Path train[PATHS_MAX];  /* text files */
    TaskCfg task;           /* kind NULL: text; else T is seq_len, and no file is read */
    char val[KEY_TEXT_MAX]; /* "" = the last val_fraction of train */
    double val_fraction;
    int tokenizer, seq_len;
    char separator[KEY_TEXT_MAX]; /* text between two documents of a file; "" = a file is one document */
    int64_t val_samples;          /* of the task */
} DataCfg;
typedef struct {
    int64_t steps;
    double max_seconds, stop_at_acc; /* stop_at_acc 0: off */
    int batch, micro_batch, dtype;
    double dropout;
    int recompute; /* first layers whose activations are recomputed in backward; -1 all */
    int64_t eval_every, save_every, sample_every, log_every, eval_tokens;
    int keep_last;
    bool keep_best;
    char sample_prompt[KEY_TEXT_MAX];
    int sample_tokens;
} TrainCfg;
typedef struct {
    int kind; /* adamw */
    double lr, min_lr, weight_decay, clip, beta1, beta2, eps;
    int64_t warmup, schedule_steps; /* schedule_steps 0: train.steps */
    int schedule;                   /* 0 cosine, 1 constant */
} OptimCfg;
typedef struct {
    RunCfg run;
    ModelCfg model;
    char init_from[KEY_TEXT_MAX];
    DataCfg data;
    TrainCfg train;
    OptimCfg optim;
} Config;

/* The order of the choices in config.c. */
enum { DEVICE_AUTO, DEVICE_CPU };
enum { DTYPE_AUTO, DTYPE_F32 };
enum { TOKENIZER_BYTE };
enum { OPTIM_ADAMW };
enum { SCHEDULE_COSINE, SCHEDULE_CONSTANT };

/* Read a YAML file, then `key=value` overrides in order, check everything (layer map excluded), fill defaults. */
bool config_read(Config *, const char *path, int noverride, char *const override[], Err *);
/* The same from memory. `where` names it in messages. On failure there is nothing to free. */
bool config_parse(Config *, const char *text, size_t n, const char *where, int noverride, char *const override[],
                  Err *);
/* What only training needs: run.dir and one of data.train and data.task are given. */
bool config_trainable(const Config *, Err *);
/* May a run begun with `saved` go on with `now`? Only run.*, train.steps, train.max_seconds, train.stop_at_acc,
 * train.*_every, data.val and the schedule's lengths (optim.warmup, optim.schedule_steps) may differ; the message names
 * the first other key that does. A vocab of 0 agrees with any. */
bool config_resumable(const Config *saved, const Config *now, Err *);
/* The resolved settings as YAML that config_read accepts. malloc'ed text. */
char *config_text(const Config *);
/* The model's part alone, as one JSON object's text (for config.json), and back. */
char *model_cfg_json(const ModelCfg *);
bool model_cfg_from_json(ModelCfg *, const char *json, size_t n, const char *where, Err *);
void model_cfg_free(ModelCfg *);
void config_free(Config *);
/* Every key, its type, range, default and meaning, as text, or as Markdown for docs/config.md. */
void config_document(FILE *, bool markdown);
