/* teacher.h: another model, frozen, whose logits and layers a run learns from: `teacher` of the settings.
 *
 * Any model that hf_load reads, of the same token ids. It runs forward on the run's device, on the same micro-batch,
 * just before the student; what it leaves (rows before its head, layers' outputs) stands in a region of its own, and
 * its logits are made chunk by chunk beside the student's: see Teach in model/model.h for the losses. */
#pragma once
#include "../model/model.h"
#include "journal.h"

typedef struct Trainer Trainer;
typedef struct {
    bool on;
    char dir[4096];
    ModelCfg cfg;
    Model model;
    Arena rows; /* of a micro-batch: what `teach` points at */
    Teach teach;
    Tensor mix[LAYERS_MAX], out[LAYERS_MAX];
    uint64_t hash; /* of its settings' shape and all its numbers, never 0; 0 when dry */
    double flops;  /* forward, per token */
} Teacher;

/* Opens t->teacher if t->cfg has one that a loss needs, with t's device, vocabulary and tokenizer, and makes it known
 * to the options of the student's model. dry: only measured, after the same checks. EXIT_INPUT, with the key: no model,
 * other token ids, fewer positions than data.seq_len; of losses on layers another width or number of layers. */
bool teacher_open(Trainer *t, ModelOpts *student, Err *e);
void teacher_close(Teacher *);
/* The checkpoint's teacher (0: none) is this one. */
bool teacher_same(const Trainer *t, uint64_t saved, const char *dir, Err *e);

/* One micro-batch: the teacher's pass and the student's with its gradients; adds the rows' losses to `sums`, those of a
 * device to nothing: they stay where Teach has them, for losses.h. */
void teacher_step(Trainer *t, TrainLosses *sums);
/* Sums over targets become means, and of those the weighted sum is returned. */
double teacher_loss(const Teacher *, TrainLosses *, double lm, int64_t targets);
