/* job.h: a Job is one conversion in progress, and a Target one layout. The driver (convert.c) and the targets share
 * them. Private to convert/. */
#pragma once
#include "model/config/schema.h"
#include "layers/gqa/gqa.h"
#include "layers/mla/mla.h"
#include "convert.h"
#include "flow.h"
#include "recipe.h"

typedef struct Job Job;
typedef struct Target {
    const char *name, *exact, *needs, *about; /* for the table of rules */
    const Key *keys;
    size_t cfg_size;
    /* Edit the model's settings (model_cfg_json's) into the target's; set j->exact, j->moves, j->calibrates, j->rule.
     * Refuse what the target does not support. Reads j->cfg, j->from, j->a. */
    bool (*plan)(Job *, json_t *model, Err *);
    /* Tensors of layer l whose values change: get each with job_out and fill it; all others are copied from the
     * source's of the same name. */
    bool (*layer)(Job *, int l, Err *);
    /* Called for every calibration window of layer l, if j->calibrates. */
    void (*see)(Job *, const FlowView *);
    /* The last layer whose windows are shown before `layer` is called for l; NULL: l. */
    int (*until)(const Job *, int l);
    /* Writes o->dst, a file of another program, whole or not at all, and fills the report's `after` and `exact`. NULL:
     * the driver writes a model directory and compares it with the source. */
    bool (*write)(Job *, Err *);
    size_t (*memory)(const Job *, int l); /* bytes of j->work that `see` and `layer` need; NULL: none */
    void (*done)(Job *);                  /* frees what cfg owns; NULL: nothing */
} Target;
extern const Target *const targets[]; /* NULL-ended */

/* A tensor of the current layer. */
typedef struct {
    char *name;
    bool out; /* of the target */
    Tensor t;
} JobPiece;
struct Job {
    const ConvertOpts *o;
    Device *dev;
    const Target *target;
    void *cfg; /* target->cfg_size bytes */
    char src[4096];
    HfFiles files, out; /* the source's; names and offsets in the target's */
    ModelCfg from, to;
    Model a, b; /* dry: shapes and costs */
    Windows win;
    bool exact;      /* lossless by algebra */
    bool moves;      /* values are moved or repeated, never computed: no rounding in any dtype */
    bool calibrates; /* the rule needs calibration windows */
    /* dtype of every tensor of the target; -1: as in the source */
    int as;
    size_t shard;      /* 0: one file */
    double unit;       /* flow_unit of the target's files */
    int together;      /* most layers of the source from which one layer of the target is computed; 0: one */
    Retrofit retrofit; /* of targets whose training has stages; steps 0: of no other */
    bool fold;         /* the last norm's gain goes into the head */
    Arena layer, work; /* tensors of one layer, released after it; the target's own memory */
    JobPiece *piece;   /* of the current layer */
    int npiece;
    Err *err; /* of job_in */
    bool failed;
    ConvertReport *report;
};

/* The source's tensor "model.layers.l.NAME" in memory until the layer is done; ABSENT if the source has none. */
Tensor job_in(Job *, int l, const char *name);
/* The target's, to be filled; ABSENT if the target has none. */
Tensor job_out(Job *, int l, const char *name);
/* The target's, which begins as the source's of that name (or as an earlier step left it), to be changed in place. */
Tensor job_edit(Job *, int l, const char *name);
/* The declaration of a model's tensor of layer l, without elements; ABSENT: none has the name. */
Tensor job_declared(const Model *, int l, const char *name);
/* The entry of a tensor in the source's files, and its place in it; NULL: there is none. */
const StEntry *job_entry(const Job *, const char *path, Tensor, StPlace *);
/* The layer is over: its tensors are forgotten and their memory is free again. job_layer_drop only forgets them, when
 * the job ends. */
void job_layer_done(Job *);
void job_layer_drop(Job *);
/* True if the target's declarations of layer l have the tensor. */
bool job_has(const Job *, int l, const char *name);
/* EXIT_SIGNAL: the user has interrupted the program; asked between tensors. */
bool job_interrupted(Err *);
/* What a model costs, with tensors of that many values and bytes. */
ConvertSize job_size(const Model *, size_t params, size_t bytes);
const GqaCfg *job_gqa(const Model *, int l); /* settings of a layer whose mixer is gqa; NULL: another mixer */
const MlaCfg *job_mla(const Model *, int l); /* of one whose mixer is mla */
/* Every kind of the settings whose mixer is `mixer`; NULL after the last. Start with NULL. */
json_t *job_kind(json_t *model, const char *mixer, json_t *after);
