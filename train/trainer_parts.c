/* trainer_parts.c: what the files below the trainer ask of it: the parameters that this rank steps, the dtype of frozen
 * matrices. */
#include "trainer.h"
#include "model/files/hf.h"
#include "ops/host.h"

const Params *trainer_state(const Trainer *t) {
    return t->dist.stage ? &t->dist.own : t->lora.n ? &t->adapters : &t->params;
}
const Arena *trainer_state_memory(const Trainer *t) { return t->dist.stage ? t->dist.state : t->optim; }

/* Matrices stored in bf16 need products with bf16 inputs: the f32 products of CUDA do not convert them. */
bool trainer_stores_bf16(Trainer *t, const char *key, int dtype, const char *dir, bool *yes, Err *e) {
    const bool able = !device_apart(t->dev) || t->cfg->train.dtype == DTYPE_BF16;
    Err why = {0};
    *yes = dtype == DTYPE_BF16 || (dtype == DTYPE_AUTO && able && *dir && hf_is_bf16(dir, &why));
    if (why.status) return *e = why, false;
    return able || !*yes ||
           err_input(e, "%s: on a GPU bf16 needs matrix products in bf16, but train.dtype is f32; set it to f32", key);
}
