/* trainer.h: TrainRun and Trainer, everything that a run and a stage hold while they train, and the steps from which
 * the loop in train.c is made. */
#pragma once
#include "data/loader.h"
#include "infer/session.h"
#include "model/config/config.h"
#include "model/config/data_spec.h"
#include "model/files/hf.h"
#include "model/workspace.h"
#include "optim/params.h"
#include "chat_template.h"
#include "compression.h"
#include "train/dist/dist.h"
#include "train/report/journal.h"
#include "train/report/progress.h"
#include "regions.h"
#include "train/save/run_dir.h"
#include "train/adapt/lora.h"
#include "losses.h"
#include "skip.h"
#include "stepper.h"
#include "teacher.h"

/* The state of a run besides settings and tensors; a checkpoint's state.json. */
typedef struct {
    int64_t step, tokens;  /* optimizer steps done, tokens read (in a text each is a target, in a task some are) */
    int64_t text_tokens;   /* ids of the training text, and Stream.hash of them: resuming needs the same text */
    uint64_t text_hash;    /* of a task: no ids, and task_hash */
    uint64_t teacher_hash; /* as it was loaded; 0: without a teacher */
    bool has_best, has_acc;
    double best_loss;
    int64_t best_step;
    double acc; /* of the last validation on a task */
    Skips skip;
    /* Seconds of the run, resumed parts included, as the ranks last agreed: after the last step, and when the stage
     * began. share: of the last step, as in optim/schedule.h; 0 if steps drive the schedule. They are in a file of
     * their own, clock.json, because they never repeat. */
    double elapsed, stage_began, share;
    double averaged; /* sum of Optimizer.weight over the steps; 0 if it has none */
    int format;      /* of the files from which it was read */
} TrainState;

typedef struct Saver Saver;   /* saver.h */
typedef struct Feeder Feeder; /* feed.h */

/* Lives as long as the run, whatever its stages: where it writes, what it has counted, its ranks. The command `train`
 * begins one and opens the trainers of its stages on it, one after the other. */
typedef struct {
    Config *cfg; /* all of the run, stages included */
    Comm *comm;  /* its ranks (Config.comm); NULL: alone */
    TrainState state;
    int64_t saved; /* step of the newest checkpoint, -1: none */

    /* The start of the run, for its checkpoints. */
    ChatTemplate chat;  /* that came with the tokenizer */
    json_t *generation; /* generation_config.json, whose keys checkpoints keep; NULL: none */
    char *base;         /* resolved directory of init_from when it was read; NULL: none, or an adapter */
    HfIds source;       /* ids that begin and end a text there; none: neos 0 */

    RunDir dir;
    Journal metrics, sample_file, events;
    Progress progress;
    ValRecord val;    /* of the last validation */
    int64_t val_step; /* -1: none yet */

    /* Of this process alone, with stages that are over. */
    double start, before; /* now_seconds when it began, and TrainState.elapsed of the parts of the run before it */
    int64_t tokens0;      /* tokens when it began */
    double flops;         /* of stages that are over: */
    int64_t flops_from;   /* up to as many tokens */
    size_t peak_anon;     /* highest RssAnon seen, in bytes */
    Regions most[2];      /* of the largest stage that is over: mapped, peaks */
} TrainRun;
/* Starts the clock; reads and writes nothing yet. cfg must outlive the run. */
void train_run_begin(TrainRun *, Config *);
/* Closes the journals and the folder. Close its trainer before. */
void train_run_end(TrainRun *);

/* Lives as long as a stage of the run: its settings and all that is opened for them. A run without stages is one
 * stage. */
typedef struct Trainer {
    TrainRun *run;
    Config *cfg;      /* of the stage: vocab, threads and device as they are used; without stages that of the run */
    int stage;        /* from 0 */
    const char *name; /* of the stage; NULL: the run has none */
    int64_t first, first_sample; /* steps of the stages before, samples that they read */
    bool dry;                    /* only measured */
    Device *dev;
    Tokenizer tok;
    Stream text; /* of a task or conversations: only their number and hash */
    Sft sft;
    const Feeder *feeder; /* the source of its batches, see feed.h */
    Loader loader;
    Teacher teacher;
    Model model;
    Workspace work; /* of its passes, and of the session of samples */
    Lora lora;
    Params params, adapters; /* the tensors of the model; in a run with adapters A and B, the only ones stepped */
    Dist dist;
    Arena optim[STATES_MAX]; /* the optimizer's state, if ranks do not share it */
    bool stepping;           /* weights are at the point where steps are taken, for an optimizer with Optimizer.other */
    Stepper *stepper;        /* how it computes and steps; dry: NULL */
    Arena rows;              /* of a micro-batch: */
    real *g, *nll;
    int *hit; /* of a task; else NULL */
    Losses losses;
    Saver *saver; /* NULL: the loop saves by itself */
    bool samples;
    Session session;  /* of samples */
    Arena cache_size; /* dry: peak of the memory that the session's cache would need */
    size_t text_bytes;
    int windows;                        /* of conversations, to train on */
    Compression compression;            /* of the last step or validation */
    double flops_per_token, peak_flops; /* peak_flops 0: not measured */
    double work_s;                      /* seconds in steps since the last train record */
    int64_t work_tokens;                /* tokens of those steps */
    bool told_replaced;                 /* a warning was printed that a path of the data was replaced */
} Trainer;

/* Opens device, text, model, optimizer state and buffers of stage k of the run (config_stage), without initialising the
 * model. dry: allocates only bookkeeping and measures the regions. Resolves the open settings. Forgets the trainer's
 * previous contents; on failure it is closed. */
bool trainer_open(Trainer *, TrainRun *, int k, bool dry, Err *);
bool trainer_on_gpu(const Config *); /* run.device, with auto resolved */
/* Decides whether matrices that are not trained are stored in BF16, by a key whose value is `dtype`; auto: if those in
 * the files of `dir` ("": none) are. EXIT_INPUT, with the key: the device cannot. */
bool trainer_stores_bf16(Trainer *, const char *key, int dtype, const char *dir, bool *yes, Err *);
/* Checks that a dry trainer's text can be read and is long enough: reads it and frees it. */
bool trainer_reads(Trainer *, Err *);
void trainer_close(Trainer *); /* the run stays */
/* The parameters that this rank steps, with the optimizer's state for them, and the regions of that. */
const Params *trainer_state(const Trainer *);
const Arena *trainer_state_memory(const Trainer *); /* (STATES_MAX) */
/* Lists what is mapped; when dry, what would be. peaks: with the highest use so far, which equals the size after a
 * whole run. The caller frees the list. */
void trainer_regions(const Trainer *, bool peaks, Regions *);
/* Checks that a dry trainer's regions, and those of the other ranks of this host, fit into the free memory of this
 * machine or of the process group: EXIT_RUNTIME if not. The system itself promises memory that it does not have, and
 * kills the process that uses it. */
bool trainer_fits(const Trainer *, Err *);

/* True if this rank writes: the run folder, journals, checkpoints, samples and progress are rank 0's. */
static inline bool trainer_writes(const Trainer *t) { return dist_rank(t->run->comm) == 0; }

/* ---- what the loop in train.c is made of (step.c) -------------------------------------------------------------------
 */
/* One optimizer step: gradients of all micro-batches, clipping, the update. All ranks call it together, see dist.h.
 * Sets loss (mean nll of the batch's targets in nats, or with a teacher the weighted sum of `parts`; rows without a
 * target do not count), lr, grad_norm and compression of r; schedule and progress are the stage's. A step that
 * train.skip_z skips counts, but changes neither weights nor moments. EXIT_DIVERGED if loss or norm is not finite, or
 * if too many steps in a row would be skipped: weights are then unchanged. */
bool trainer_step(Trainer *, TrainRecord *r, Err *);
/* Makes the weights complete as they are evaluated and saved. Call before reading weights other than in a step. All
 * ranks. */
bool trainer_weights(Trainer *, Err *);
/* Mean nll over the validation's targets in f64, and on a task the fraction of targets and of samples that are
 * right. */
bool trainer_validate(Trainer *, ValRecord *, Err *);
/* Writes a text generated by the current model into samples.txt. */
bool trainer_sample(Trainer *, Err *);

/* Sets peak_flops, measured in about 0.2 s by products of matrices of PEAK_SIDE; 0 in a stage of less than 0.2 TFLOP, a
 * second or two, which is not worth it, and with a printed line if memory is short. */
enum { PEAK_SIDE = 1024 };
void trainer_measure_peak(Trainer *);
