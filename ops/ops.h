/* ops.h: the table of everything that a backend computes, and the device to which it belongs. Models, mixers,
 * optimizers and the cache call its ops as r->ops->NAME(r, ...); commands, training and tests open devices.
 *
 * ops.def has each op's formula, arguments, shapes and dtypes, and which arguments are overwritten or added to. Common
 * to all: outputs come first; tensors are row-major and live in the device's memory, `const int *` arguments in the
 * host's; arguments must not overlap unless ops.def says so; while the Run only measures, an op requests its scratch
 * and computes nothing. An op returns nothing: a wrong argument is a CHECK, and a failure of a GPU ends the program
 * with status 1 where the host waits for it. On a GPU an op only starts its work; device_sync or device_read waits. */
#pragma once
#include "colstat.h"
#include "def.h"
#include "recur.h"
#include "rope.h"

/* Rows off[e]..off[e+1]-1 belong to group e, e < n; off[0] = 0. Not read while measuring. */
typedef struct {
    int n;
    const int *off;
} Groups;
/* Where noise enters: part of its key. */
typedef enum { DROP_EMBED, DROP_MIXER, DROP_FFN, NOISE_DECISION } DropSite;

/* Numbers stored as BF16 are rounded up or down by chance, so that the mean of what is stored is the number: with
 * x between the neighbours a < b, b is taken with the chance (x - a) / (b - a). The chance is drawn
 * from rng_mix(key, place), its lowest 16 bits (of a second moment: the next 16), where place is that in the whole
 * tensor: `at` + that in the argument. Source: arXiv:1502.02551. */
typedef struct {
    uint64_t key, at;
} Rounding;

/* The elementwise rules that Ops.adamw knows. A rule is a value here and a loop in ops/cpu/update.c and
 * ops/cuda/kernels/update.cu. */
typedef enum { UPDATE_ADAMW, UPDATE_LION, UPDATE_SCHEDULE_FREE, UPDATE_RULES } UpdateRule;
/* One optimizer step of one tensor, with g scaled by gscale first.
 *   UPDATE_ADAMW          step t >= 1 with decoupled decay (arXiv:1711.05101):
 *                         m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
 *                         w -= lr (m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + decay w)
 *   UPDATE_LION           (arXiv:2302.06675; v, x, eps and t are not read)
 *                         w -= lr (sign(b1 m + (1-b1) g) + decay w); m = b2 m + (1-b2) g
 *   UPDATE_SCHEDULE_FREE  (arXiv:2405.15682; t is not read) with w = y, the point where g was taken, and m = z:
 *                         v = b2 v + (1-b2) g^2; z -= lr (g / (sqrt(v) + eps) + decay y);
 *                         x = (1-share) x + share z; y = (1-b1) z + b1 x
 * Of AdamW m and v may both be BF16, of Lion m, of the third v: w takes its step by the values before rounding.
 * square: NULL, or on the device the square of a norm n, of which g is scaled as well: by most/n where most > 0 and
 * n > most. Where it is not finite nothing of the tensor changes. */
typedef struct {
    Tensor w, g, m, v;
    double lr, b1, b2, eps, decay, gscale;
    int64_t t;
    Rounding round;
    const double *square;
    double most;
    UpdateRule rule; /* one call may mix them */
    Tensor x;        /* of UPDATE_SCHEDULE_FREE, as is share */
    double share;
} AdamwStep;

/* What becomes of the head's products before they are logits: z -> cap tanh(scale z / cap), or scale z where cap is
 * 0. Its derivative, from the logit: scale (1 - (logit/cap)^2). */
typedef struct {
    double scale, cap;
} LogitMap;
#define LOGITS_PLAIN ((LogitMap){1, 0})
static inline bool logits_plain(LogitMap m) { return m.scale == 1 && m.cap == 0; }
/* Weights of the losses of linear_distill, and the temperature T > 0 of the latter two; the maps of both models'
 * logits. */
typedef struct {
    double lm, kl, rkl, temperature;
    LogitMap map, teacher_map;
} Distill;

/* How hidden numbers decide about rows (layers/dmc/dmc.h): the decision's settings, what importances have added to
 * them, and query heads to a lane. */
typedef struct {
    double gain, offset, temperature, eps;
    int group;
    bool itself; /* a row decides about itself, one row later, and not about its predecessor */
} Decide;
/* One of several matrices that share an input, or the gradients of one: y = x w^T + bias. */
typedef struct {
    Tensor y, w, bias; /* (N,O) (O,I) (O), bias optional */
} Projection;
enum { LINEAR_MANY = 8 };
enum { HEAD_WIDEST = 1024 }; /* numbers of a head that is normed and rotated in one */

struct Ops {
    const char *name; /* "cpu" */
#define DEF(result, op, flops, ...) result (*op)(Run * OP_EACH(OP_PARAM, __VA_ARGS__));
#include "ops.def"
};

/* For an op that can only add. */
static inline void begin_sum(Run *r, Into x) {
    if (x.overwrite) r->ops->zero(r, x.t);
}

/* Open a backend by name: "cpu", or "cuda" in a program that was built with it (ops/cuda/known_gaps.h: its slow ops).
 * threads 0: as many as there are processors this process may run on. */
bool device_open(Device **, const char *name, int threads, Err *);
void device_close(Device *);
const Ops *device_ops(const Device *);
int device_threads(const Device *);
/* What the kernels were chosen for: the instruction set "avx512bf16+amx", "avx512bf16", "neon", ... "baseline"; of
 * "cuda" its name. */
const char *device_isa(const Device *);
/* Where the tensors of its ops live, for arena_open_at; NULL: in the host's memory. host_too: memory that the host may
 * use as well, between device_sync and the next op: pinned, and read by ops over the bus. */
const Memory *device_memory(Device *, bool host_too);
void device_sync(Device *); /* wait until all work that was started is done */
void device_write(Device *, void *to, const void *from, size_t bytes); /* `to` on the device; `from` is free at once */
void device_read(Device *, void *to, const void *from, size_t bytes);  /* `from` on the device; waits */
void device_copy(Device *, void *to, const void *from, size_t bytes);  /* both on the device, apart from each other */
void device_zero(Device *, void *p, size_t bytes);
/* Seconds that `work` takes: of the CPU by its clock, of "cuda" by the device's own, from the first kernel to the last.
 * Waits before and after. */
double device_seconds(Device *, void (*work)(void *), void *ctx);
struct Tuning; /* tuning.h */
/* Use the choices of a file (tuning.h), which changes no result but its last bits. For a file of another device or
 * library, or a damaged one, one line is printed on stderr and the file is ignored. False (EXIT_INPUT): no such file,
 * or the device is the CPU. */
bool device_tuning(Device *, const char *path, Err *);
/* Measure the algorithms for every product that was asked for since the device was opened, `seconds` for each, keep the
 * fastest, and write them to `path` (NULL: nowhere). The caller frees `out`. False: EXIT_INPUT for the CPU,
 * EXIT_RUNTIME when nothing could be measured or written. */
bool device_tune(Device *, double seconds, const char *path, struct Tuning *out, Err *);
/* Reports the properties of a device, one call for each: a number, or a text where it is not NULL. The CPU reports its
 * instruction set and threads, "cuda" what ops/cuda/cuda.h lists. */
typedef void DeviceSee(void *ctx, const char *name, long long number, const char *text);
void device_facts(Device *, DeviceSee *, void *ctx);
/* Sets whether matrix products round their operands to bf16 and add in f32, forward and backward; a device is opened
 * with f32. It holds for linear and linear_groups, and for ops made of them, from BF16_LEAST weights on. All else stays
 * f32, in memory too, with these exceptions:
 * - attend and attend_backward round their operands as well: on CUDA up to 256 elements a head, on a CPU that has the
 *   instruction for a multiple of 16.
 * - There, activations of training are BF16 in memory where a layer supports it (device_bf16_acts, layers/mixer.h).
 * - On CUDA the number of rows may change a bit, because the library chooses another kernel.
 * Measure passes again afterwards: those measured before have too little scratch. EXIT_INPUT in the double build. */
bool device_bf16(Device *, bool on, Err *);
/* True if a pass keeps activations in BF16 (ops.def says which ops support it): while device_bf16 is on, on CUDA and on
 * a CPU that has the instruction. */
bool device_bf16_acts(const Device *);
/* Chooses the kernels of attention in bf16 in training: our own, with which a device is opened, or cuDNN's where it is
 * installed and has a plan for the pass. It plans while a pass is measured, so measure passes again afterwards.
 * ATTENTION_CUDNN repeats its results to the bit, as all else does; UNORDERED does not, for less workspace and time.
 * Where cuDNN cannot, one line on stderr says so and our own kernels compute. EXIT_INPUT: the CPU, or operands in
 * f32. */
typedef enum { ATTENTION_AUTO, ATTENTION_OWN, ATTENTION_CUDNN, ATTENTION_CUDNN_UNORDERED } AttentionBy;
bool device_attention(Device *, AttentionBy, Err *);
/* True if products in bf16 make a training step faster: on a CPU, if it multiplies bf16 (AVX-512-BF16, AMX, BFDOT); on
 * CUDA always, as each GPU that can be opened has matrix units for it, 2 to 16 times as fast as f32 as specified.
 * Nothing is measured, so that every run on a machine decides alike, a busy one, too. */
bool device_bf16_pays(Device *);
/* A Run on this device with nothing but ops, dev, scratch and host (the same) set. */
Run run_make(Device *, Arena *scratch);
