/* optimizers.c: the registry. One line per optimizer; AdamW comes first, so that settings of zeros mean it. */
#include "optimizer.h"

/* clang-format off */
#define OPTIMIZERS(X) \
    X(adamw) /* decoupled weight decay */ \
    X(muon)  /* orthogonalised momentum for the matrices of hidden layers */ \
    X(lion)  /* the sign of a mean of gradients, one state */ \
    X(schedule_free) /* AdamW with a mean of its iterates in place of a schedule */

#define DECLARE(name) extern const Optimizer name##_optimizer;
OPTIMIZERS(DECLARE)
#define ENTRY(name) &name##_optimizer,
const Optimizer *const optimizers[] = {OPTIMIZERS(ENTRY) NULL};
#define NAME(name) #name,
const char *const optimizer_names[] = {OPTIMIZERS(NAME) NULL};
