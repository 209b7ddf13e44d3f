/* convert.h: converts a checkpoint from one KV-cache layout to another: `kvsmith convert SRC DST --to TARGET`. The
 * command `convert` calls it.
 *
 * A target is an entry of the table `targets`: how it changes the model's settings and the tensors of one layer.
 * Everything is checked before anything is written. Tensors are then converted one layer at a time, from the mapped
 * source to a folder with a temporary name, which is read back, compared with the source, synced and renamed. DST is
 * complete or absent.
 *
 * A rule is lossless (`exact`) or approximate. Lossless: the same function by algebra (formulas in README.md), so
 * logits differ only by rounding. The effect of rounding alone is measured: the source runs a second time over the
 * compared text, with every element of the stream moved by up to one rounding before each layer and the head, and R is
 * the largest difference between the logits of its two runs. Depth, widths, the size of scores and the processor are
 * all in R. `convert_run` fails if source and target differ by more than CONVERT_MARGIN R (R counts as at least one
 * rounding of the largest logit). R is one draw of an error and the difference another, of a model whose weights were
 * rounded once more: their ratio is 0.1 to 4.4 over the tests' models and instruction sets. A tensor whose values are
 * off by a thousandth gives 40 and more. A rule that computes values and stores them in a dtype below F32 is
 * approximate by that rounding.
 *
 * Anonymous memory at any time: the weights of one layer of source and target as `real`, a row of d elements for every
 * token of calibration and check, one window's activations of a block, and the target's `memory`; no whole model.
 * ConvertReport.memory is what was mapped. */
#pragma once
#include "model/cost.h"
#include "model/files/hf.h"

#define CONVERT_MARGIN 16.0
enum { CONVERT_CONTEXT = 512, CONVERT_CALIB_TOKENS = 16384, CONVERT_CHECK_TOKENS = 1024, CONVERT_WORDS = 32 };

typedef struct {
    const char *src, *dst, *to; /* directories (dst of --to gguf: a file); a target's name */
    const char *adapter;        /* directory of an adapter that is added to src, see model/files/peft.h; NULL: none */
    int nword;
    char *const *word; /* key=value settings of the target */
    const char *calib; /* a text; NULL: none */
    int context;       /* tokens per window, at most the model's positions */
    int calib_tokens;  /* calibration tokens, at most */
    int check_tokens;  /* tokens on which source and target are compared; 0: no check */
} ConvertOpts;

/* Both models on one text; KL over the source's vocabulary. */
typedef struct {
    const char *text; /* "calibration", "built-in" or "random ids"; NULL: nothing was compared */
    int tokens;
    double logit_diff, logit_max; /* largest |difference| and |logit of the source| over the source's vocabulary */
    double kl;                    /* mean over tokens of KL(source || target), nats */
    double ppl_before, ppl_after; /* of the text */
    double top1;                  /* fraction of tokens for which both predict the same id */
    double rounding;              /* R above; 0: not measured, because the rule is approximate or no logit differs */
} ConvertCheck;
typedef struct {
    size_t params, bytes, cache_token, cache_state; /* bytes: of tensors; cache: per token, per sequence, as `info` */
} ConvertSize;
typedef struct {
    char rule[256]; /* the rule that was applied, in words and settings */
    bool exact;
    char rounded[8]; /* dtype that made a lossless rule approximate; "" none */
    char note[256];  /* a note of the rule; "" none */
    ConvertSize before, after;
    ConvertCheck check;
    bool foreign;  /* DST is a file of another program, which nothing here reads */
    size_t memory; /* most bytes mapped at one time, without the files */
    double seconds;
} ConvertReport;

/* Computes what the conversion of a model with settings `from` would be, without its files: ignores o->src and o->dst.
 * r: rule, exact, note, and of the sizes params and cache; *to: the settings of the result, which the caller frees.
 * Refuses the layout `same`, which reads tensors. */
bool convert_plan(const ConvertOpts *, const ModelCfg *from, Device *, ConvertReport *, ModelCfg *to, Err *);
/* EXIT_INPUT: nothing was written because of bad input; EXIT_RUNTIME: the disk, memory, or a lossless rule that did not
 * hold; EXIT_SIGNAL: a blocked signal is pending. DST is absent in every case. */
bool convert_run(const ConvertOpts *, Device *, ConvertReport *, Err *);
/* The table as Markdown: name, settings, lossless or approximate, requirements. */
void convert_document(FILE *);
