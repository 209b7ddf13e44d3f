/* convert.h: a checkpoint in one layout of the cache into another: `kvsmith convert SRC DST --to TARGET`.
 *
 * A target is an entry of the table `targets`: what it does to the model's settings, and to the tensors of one layer.
 * Everything is checked before anything is written; tensors then go over one layer at a time, from the mapped source to
 * a folder of a temporary name, which is read back, compared with the source, synced and renamed. DST is whole or
 * absent.
 *
 * A rule is exact (lossless) or approximate. Exact: the same function by algebra (docs in README.md), so that logits
 * differ by rounding alone. What rounding alone does is measured: the source runs a second time over the compared text,
 * every number of the stream moved by up to one rounding before each layer and the head, and R is the largest
 * difference between the logits of its two runs. Depth, widths, the size of scores and the processor are all in R.
 * `convert_run` fails where source and target differ by more than CONVERT_MARGIN R (R counts as at least one rounding
 * of the largest logit). R is one draw of an error and the difference another, of a model whose weights were rounded
 * once more: their ratio is 0.1 to 4.4 over the tests' models and instruction sets. A tensor whose numbers are off by a
 * thousandth gives 40 and more. A rule that computes numbers and stores them narrower than F32 is approximate by that
 * rounding.
 *
 * Anonymous memory at any time: the weights of one layer of source and target as `real`, a row of d numbers for every
 * token of calibration and check, one window's activations of a block, and what the target's `memory` says; no whole
 * model. ConvertReport.memory is what was mapped. */
#pragma once
#include "../model/cost.h"
#include "../model/hf.h"

#define CONVERT_MARGIN 16.0
enum { CONVERT_CONTEXT = 512, CONVERT_CALIB_TOKENS = 16384, CONVERT_CHECK_TOKENS = 1024, CONVERT_WORDS = 32 };

typedef struct {
    const char *src, *dst, *to; /* directories; a target's name */
    const char *adapter;        /* directory of an adapter that is added to src, see model/peft.h; NULL: none */
    int nword;
    char *const *word; /* key=value settings of the target */
    const char *calib; /* a text; NULL: none */
    int context;       /* tokens of a window, at most the model's positions */
    int calib_tokens;  /* at most so many are looked at */
    int check_tokens;  /* of source and target are compared; 0: no check */
} ConvertOpts;

/* Of one text under both models; KL over the source's vocabulary. */
typedef struct {
    const char *text; /* "calibration", "built-in" or "random ids"; NULL: nothing was compared */
    int tokens;
    double logit_diff, logit_max; /* largest |difference| and |logit of the source| over the source's vocabulary */
    double kl;                    /* mean over tokens of KL(source || target), nats */
    double ppl_before, ppl_after; /* of the text */
    double top1;                  /* share of tokens where both say the same id */
    double rounding;              /* R above; 0: not measured, since the rule is approximate or no logit differs */
} ConvertCheck;
typedef struct {
    size_t params, bytes, cache_token, cache_state; /* bytes: of tensors; cache: per token, per sequence, as `info` */
} ConvertSize;
typedef struct {
    char rule[256]; /* what was done, in words and settings */
    bool exact;
    char rounded[8]; /* dtype that made an exact rule approximate; "" none */
    char note[256];  /* what the rule has to say; "" nothing */
    ConvertSize before, after;
    ConvertCheck check;
    size_t memory; /* bytes mapped at most at one time, without the files */
    double seconds;
} ConvertReport;

/* What the conversion of a model of settings `from` would be, without its files: o->src and o->dst are not looked at.
 * r: rule, exact, note, and of the sizes params and cache; *to: the settings of the result, the caller's to free. The
 * layout `same`, which reads tensors, is refused. */
bool convert_plan(const ConvertOpts *, const ModelCfg *from, Device *, ConvertReport *, ModelCfg *to, Err *);
/* EXIT_INPUT: nothing was written because of what was given; EXIT_WORLD: the disk, memory, or an exact rule that did
 * not hold; EXIT_SIGNAL: a signal that is blocked is pending. DST is absent in every case. */
bool convert_run(const ConvertOpts *, Device *, ConvertReport *, Err *);
/* The table as Markdown: name, settings, exact or approximate, what it needs. */
void convert_document(FILE *);
