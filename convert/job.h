/* job.h: what the driver and the targets share. Private to convert/. */
#pragma once
#include "../model/schema.h"
#include "../layers/gqa/gqa.h"
#include "convert.h"
#include "flow.h"

typedef struct Job Job;
typedef struct Target {
    const char *name, *exact, *needs, *about; /* for the table of rules */
    const Key *keys;
    size_t cfg_size;
    /* Edit the model's settings (model_cfg_json's) into the target's; set j->exact, j->moves, j->calibrates, j->rule.
     * Refuse what cannot be held. Reads j->cfg, j->from, j->a. */
    bool (*plan)(Job *, json_t *model, Err *);
    /* Tensors of layer l whose numbers change: each is asked for by job_out and filled; all others are copied from the
     * source's of the same name. */
    bool (*layer)(Job *, int l, Err *);
    /* Shown every window of layer l that calibrates, when j->calibrates. */
    void (*see)(Job *, const FlowView *);
    /* The last layer whose windows are shown before `layer` is asked for l; NULL: l. */
    int (*until)(const Job *, int l);
    size_t (*memory)(const Job *, int l); /* bytes that `see` and `layer` take from j->work; NULL: none */
    void (*done)(Job *);                  /* frees what cfg owns; NULL: nothing */
} Target;
extern const Target *const targets[]; /* NULL-ended */

struct Job {
    const ConvertOpts *o;
    Device *dev;
    const Target *target;
    void *cfg; /* target->cfg_size bytes */
    char src[4096];
    HfFiles files, out; /* the source's; names and places in the target's */
    ModelCfg from, to;
    Model a, b; /* dry: shapes and costs */
    Windows win;
    bool exact;      /* by algebra */
    bool moves;      /* numbers are moved or repeated, never computed: no rounding in any dtype */
    bool calibrates; /* the rule looks at calibration windows */
    /* dtype of every tensor of the target; -1: as in the source */
    int as;
    size_t shard;        /* 0: one file */
    double unit;         /* flow_unit of the target's files */
    int together;        /* layers of the source that one layer of the target is made of, at most; 0: one */
    bool fold;           /* the last norm's gain goes into the head */
    Arena layer, work;   /* tensors of one layer, given back after it; the target's own memory */
    struct Piece *piece; /* of the layer under way */
    int npiece;
    Err *err; /* of job_in */
    bool failed;
    ConvertReport *report;
};

/* The source's tensor "model.layers.l.NAME" in memory until the layer is done; ABSENT where the source has none. */
Tensor job_in(Job *, int l, const char *name);
/* The target's, to be filled; ABSENT where the target has none. */
Tensor job_out(Job *, int l, const char *name);
/* The target's, which begins as the source's of that name (or as an earlier step left it), to be changed in place. */
Tensor job_edit(Job *, int l, const char *name);
/* Whether the tensor stands in the target's declarations of layer l. */
bool job_has(const Job *, int l, const char *name);
const GqaCfg *job_gqa(const Model *, int l); /* settings of a layer whose mixer is gqa; NULL: another mixer */
/* Every kind of the settings whose mixer is `mixer`; NULL after the last. Start with NULL. */
json_t *job_kind(json_t *model, const char *mixer, json_t *after);
