/* teacher.h: the teacher of a run: another, frozen model whose logits and layers the student learns from (`teacher` of
 * the settings). The trainer opens it with a stage and runs it before every micro-batch.
 *
 * It may be any model that hf_load reads, with the same token ids. It runs forward on the run's device, on the same
 * micro-batch, just before the student. Its outputs (rows before its head, layers' outputs) are kept in a region of
 * their own; its logits are computed chunk by chunk together with the student's. teach.h has the losses. */
#pragma once
#include "train/report/journal.h"
#include "regions.h"
#include "teach.h"

typedef struct Trainer Trainer;
typedef struct {
    bool on;
    char dir[4096];
    ModelCfg cfg;
    Model model;
    Workspace work;
    Arena rows; /* of a micro-batch: `teach` points to them */
    Teach teach;
    LossHook loss; /* of `teach` */
    Tensor mix[LAYERS_MAX], out[LAYERS_MAX];
    uint64_t hash; /* of the shape of its settings and of all elements, never 0; 0 when dry */
    double flops;  /* forward, per token */
} Teacher;

/* Opens t->teacher if t->cfg has one that a loss needs, with t's device, vocabulary and tokenizer, and enters it in the
 * options of the student's model. dry: only measured, after the same checks. EXIT_INPUT, with the key: no model, other
 * token ids, fewer positions than data.seq_len; for losses on layers, another width or number of layers. */
bool teacher_open(Trainer *t, ModelOpts *student, Err *e);
void teacher_close(Teacher *);
void teacher_regions(const Teacher *, Regions *); /* none without a teacher */
/* Checks that the checkpoint's teacher (0: none) is this one. */
bool teacher_same(const Trainer *t, uint64_t saved, const char *dir, Err *e);

/* One micro-batch: the teacher's pass, then the student's with its gradients. Adds the rows' losses to `sums`; on a GPU
 * the losses stay where Teach has them, for losses.h. */
void teacher_step(Trainer *t, TrainLosses *sums);
/* Divides sums over targets into means and returns their weighted sum. */
double teacher_loss(const Teacher *, TrainLosses *, double lm, int64_t targets);
