/* trainer.h: everything that a run holds while it trains, and the steps that the loop in train.c is made of. */
#pragma once
#include "../data/loader.h"
#include "../infer/session.h"
#include "../model/config.h"
#include "../model/data_cfg.h"
#include "../model/hf.h"
#include "../model/model.h"
#include "../ops/graph.h"
#include "../optim/params.h"
#include "chat_template.h"
#include "compression.h"
#include "dist.h"
#include "journal.h"
#include "progress.h"
#include "run_dir.h"
#include "lora.h"
#include "losses.h"
#include "skip.h"
#include "teacher.h"

/* What of a run is neither settings nor numbers of the model; state.json of a checkpoint. */
typedef struct {
    int64_t step, tokens;  /* optimizer steps done, tokens read (of a text each is a target, of a task some are) */
    int64_t text_tokens;   /* ids of the training text, and Stream.hash of them: another text cannot be gone on with */
    uint64_t text_hash;    /* of a task: no ids, and task_hash */
    uint64_t teacher_hash; /* as it was loaded; 0: without a teacher */
    bool has_best, has_acc;
    double best_loss;
    int64_t best_step;
    double acc; /* of the last validation on a task */
    Skips skip;
    /* Seconds of the run, resumed parts added up, when the ranks last agreed on them: after the last step; and when the
     * stage began. share: of the last step, as optim/schedule.h has it; 0 where steps move the schedule. A file of
     * their own, clock.json, as they never repeat. */
    double elapsed, stage_began, share;
    int format; /* of the files that it was read from */
} TrainState;

enum { REGIONS_MAX = 27 };
/* Memory by lifetime, in bytes, guards included. */
typedef struct {
    int n;
    struct {
        const char *name;
        size_t bytes;
    } region[REGIONS_MAX];
    size_t total, host; /* host: of the total, what lies in this machine's memory and not in a device's */
} Regions;

typedef struct Saver Saver; /* saver.h */

typedef struct Trainer {
    Config *run;      /* all of the run, stages included */
    Config *cfg;      /* of the stage: vocab, threads and device as they are used; without stages `run` itself */
    int stage;        /* from 0 */
    const char *name; /* of the stage; NULL: the run has none */
    int64_t first, first_sample; /* steps of the stages before, samples that they read */
    bool dry;                    /* only measured */
    Device *dev;
    Tokenizer tok;
    ChatTemplate chat; /* that came with the tokenizer; not closed with the trainer */
    json_t
        *generation; /* generation_config.json of what the run starts from, whose keys checkpoints keep; NULL: none */
    char *base;      /* where the files were that init_from named when they were read; NULL: none, or an adapter. Not
                        closed with the trainer */
    HfIds source;    /* ids that begin and end a text there; none: neos 0 */
    Stream text;     /* of a task or conversations: nothing but their number and hash */
    Sft sft;
    Loader loader;
    Teacher teacher;
    Model model;
    Lora lora;
    Params params, adapters; /* the tensors of the model; of a run with adapters those, which alone are stepped */
    Comm *comm;              /* of the run (Config.comm); NULL: alone */
    Dist dist;
    Graphs *graphs; /* what the device replays; NULL: nothing */
    Arena rows;     /* of a micro-batch: */
    real *g, *nll;
    int *hit; /* of a task; else NULL */
    Losses losses;
    bool samples;
    Session session;  /* of samples */
    Arena cache_size; /* dry: peak of what the session's cache would take */
    size_t text_bytes;
    int windows;             /* of conversations, to train on */
    Compression compression; /* of the last step or validation */
    TrainState state;
    int64_t saved; /* step of the newest checkpoint, -1: none */
    Saver *saver;  /* NULL: the loop saves by itself */

    RunDir dir;
    Journal metrics, sample_file, events;
    Progress progress;
    double flops_per_token, peak_flops; /* peak_flops 0: not measured */
    size_t peak_anon;                   /* highest RssAnon seen, bytes */
    ValRecord val;                      /* of the last validation */
    int64_t val_step;                   /* -1: none yet */
    double work_s;                      /* seconds in steps since the last train record */
    int64_t work_tokens, tokens0;       /* tokens of those steps; tokens when this process began */
    Regions most[2];                    /* of a stage that is over, the largest: mapped, peaks */
    double flops;                       /* of this process in stages that are over: */
    int64_t flops_from;                 /* up to as many tokens */
    double start, before; /* now_seconds when this process began, and TrainState.elapsed of the parts before it */
    bool told_replaced;   /* that a path of the data names another file by now */
} Trainer;

/* Device, text, model, optimizer state and buffers of cfg, the model not initialised. dry: nothing is allocated but
 * bookkeeping, and the regions are measured. cfg must outlive the trainer and gets what was left to be resolved. */
bool trainer_open(Trainer *, Config *, bool dry, Err *);
/* The same for stage k of a run (config_stage); trainer_open opens the first. */
bool trainer_on_gpu(const Config *); /* run.device, or what auto stands for here */
bool trainer_open_stage(Trainer *, Config *run, int k, bool dry, Err *);
/* Whether matrices that are not trained are to be BF16 in memory by a key whose value is `dtype`: for auto where those
 * in the files of `dir` ("": none) are. EXIT_INPUT, with the key: the device cannot. */
bool trainer_stores_bf16(Trainer *, const char *key, int dtype, const char *dir, bool *yes, Err *);
/* A dry trainer's text can be read and is long enough: it is read and let go. */
bool trainer_reads(Trainer *, Err *);
void trainer_close(Trainer *);
/* What is mapped; when dry, what would be. peaks: of it, the highest use so far, which a whole run makes equal. */
void trainer_regions(const Trainer *, bool peaks, Regions *);

/* A dry trainer's regions, and those of the other ranks of this host, fit into what this machine, or the group of
 * processes it runs in, has free: EXIT_WORLD if not. The system itself promises memory that it does not have, and kills
 * who believes it. */
bool trainer_fits(const Trainer *, Err *);

/* Whether this rank writes: the run folder, journals, checkpoints, samples and progress are rank 0's. */
static inline bool trainer_writes(const Trainer *t) { return dist_rank(t->comm) == 0; }

/* One optimizer step: gradients of all micro-batches, clipping, AdamW. All ranks take it together, see dist.h. Fills
 * loss (mean nll of the batch's targets in nats, or with a teacher the weighted sum of `parts`; rows without a target
 * count nowhere), lr, grad_norm and compression of r; schedule and progress are the stage's. A step that train.skip_z
 * leaves out counts, but changes neither weights nor moments. EXIT_DIVERGED when loss or norm is not finite, or too
 * many steps in a row would be left out: weights are then as they were. */
bool trainer_step(Trainer *, TrainRecord *r, Err *);
/* Mean nll over the validation's targets in f64, and on a task the parts of them and of the samples that are right. */
bool trainer_validate(Trainer *, ValRecord *, Err *);
/* A text from the model as it is, into samples.txt. */
bool trainer_sample(Trainer *, Err *);

/* Fill peak_flops, measured in about 0.2 s; 0 where it is not, or where there is no memory to do so, of which a line is
 * printed. */
void trainer_measure_peak(Trainer *);
