/* zoo.h: small models of every mixer in all its forms, and passes to run them on. The generic tests loop over it. */
#pragma once
#include "model/workspace.h"
#include "check.h"

typedef struct {
    const char *name, *json; /* the model's settings, as in config.json */
} Animal;
extern const Animal zoo[];
int zoo_count(void);
int zoo_find(const char *name);
/* A mixer of it decides which rows its cache keeps: rounding may turn a decision, and training draws them. */
bool zoo_decides(const Animal *);
/* Parse and open; initial weights by seed, larger than a user's so that every nonlinearity is felt; a third of the way
 * into a stage of training. Workspace NULL: no passes. */
void zoo_open(const Animal *, ModelCfg *, Model *, Workspace *, Device **, ModelOpts);
/* Every weight moves by up to one rounding: see check_rounding. */
void model_nudge(Model *);
void zoo_close(ModelCfg *, Model *, Workspace *, Device *);
/* A model and its workspace together, or neither. */
bool zoo_model(Model *, Workspace *, Device *, const ModelCfg *, ModelOpts, Err *);

/* A loss on what mixers report: sum over sequences of (1.3 - sum/count)^2; stat_ctx: where it adds its value. */
StatLoss zoo_stat_loss;

enum { ZOO_ROWS = 24, ZOO_SEQS = 3 };
/* Rows of a pass with room for everything. seq s of `whole` has documents at the rows where first[i] = i. */
typedef struct {
    Batch b;
    int off[ZOO_SEQS + 1], seq[ZOO_SEQS], of[ZOO_ROWS], pos[ZOO_ROWS], first[ZOO_ROWS], tok[ZOO_ROWS], tgt[ZOO_ROWS];
    uint64_t id[ZOO_SEQS];
} Pass;
/* Three packed sequences of 7, 8 and 6 rows with 2, 1 and 3 documents, one of a single row. */
void zoo_whole(Pass *, int vocab);
/* The rows from[s]..from[s]+n[s]-1 of each sequence of `whole`, as a pass that continues what lies before; sequences
 * with n 0 stay in the pass, idle. map[i] (may be NULL): the row of `whole` that row i of the pass is. */
void zoo_part(Pass *part, const Pass *whole, const int from[ZOO_SEQS], const int n[ZOO_SEQS], int *map);
