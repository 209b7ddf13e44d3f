/* hints.c: the table of foreign names, and the search for a key in other sections. */
#include "hints.h"
#include <ctype.h>
#include "config_keys.h"

typedef struct {
    const char *name, *ours; /* ours NULL: nothing here is the same */
    const char *note;        /* how it differs; NULL: not at all */
} Foreign;

#define KIND "model.kinds.NAME."
static const char epochs[] = "give train.steps = epochs x tokens of the text / (train.batch x data.seq_len)",
                  micro[] = "samples at once on a rank", accumulate[] = "it is train.batch / train.micro_batch",
                  percent[] = "write a ratio as 5%", all_layers[] = "-1 means all layers", dtype[] = "f32 or bf16";
/* Names of Hugging Face's trainer and config.json, PyTorch, Lightning, Megatron, nanoGPT, LitGPT and Axolotl. Names
 * that differ only in the section are found without this table. */
static const Foreign keys_elsewhere[] = {{"learning_rate", "optim.lr", 0},
                                         {"max_lr", "optim.lr", 0},
                                         {"peak_lr", "optim.lr", 0},
                                         {"base_lr", "optim.lr", 0},
                                         {"min_learning_rate", "optim.min_lr", 0},
                                         {"lr_scheduler", "optim.schedule", 0},
                                         {"lr_scheduler_type", "optim.schedule", 0},
                                         {"scheduler", "optim.schedule", 0},
                                         {"warmup_steps", "optim.warmup", 0},
                                         {"warmup_iters", "optim.warmup", 0},
                                         {"lr_warmup_steps", "optim.warmup", 0},
                                         {"num_warmup_steps", "optim.warmup", 0},
                                         {"warmup_ratio", "optim.warmup", percent},
                                         {"wd", "optim.weight_decay", 0},
                                         {"grad_clip", "optim.clip", 0},
                                         {"max_grad_norm", "optim.clip", 0},
                                         {"gradient_clip_val", "optim.clip", 0},
                                         {"optimizer", "optim.kind", 0},
                                         {"adam_beta1", "optim.beta1", 0},
                                         {"adam_beta2", "optim.beta2", 0},
                                         {"adam_epsilon", "optim.eps", 0},
                                         {"betas", "optim.beta1", "and optim.beta2"},
                                         {"batch_size", "train.batch", 0},
                                         {"bs", "train.batch", 0},
                                         {"global_batch_size", "train.batch", 0},
                                         {"train_batch_size", "train.batch", 0},
                                         {"micro_batch_size", "train.micro_batch", micro},
                                         {"per_device_train_batch_size", "train.micro_batch", micro},
                                         {"gradient_accumulation_steps", NULL, accumulate},
                                         {"grad_accum", NULL, accumulate},
                                         {"max_steps", "train.steps", 0},
                                         {"max_iters", "train.steps", 0},
                                         {"num_steps", "train.steps", 0},
                                         {"num_iterations", "train.steps", 0},
                                         {"iterations", "train.steps", 0},
                                         {"total_steps", "train.steps", 0},
                                         {"train_steps", "train.steps", 0},
                                         {"epochs", NULL, epochs},
                                         {"epoch", NULL, epochs},
                                         {"num_epochs", NULL, epochs},
                                         {"max_epochs", NULL, epochs},
                                         {"num_train_epochs", NULL, epochs},
                                         {"max_seq_len", "data.seq_len", 0},
                                         {"max_seq_length", "data.seq_len", 0},
                                         {"seq_length", "data.seq_len", 0},
                                         {"sequence_len", "data.seq_len", 0},
                                         {"sequence_length", "data.seq_len", 0},
                                         {"block_size", "data.seq_len", 0},
                                         {"context_length", "data.seq_len", 0},
                                         {"cutoff_len", "data.seq_len", 0},
                                         {"dataset", "data.train", 0},
                                         {"datasets", "data.train", 0},
                                         {"train_file", "data.train", 0},
                                         {"train_data", "data.train", 0},
                                         {"data_path", "data.train", 0},
                                         {"val_file", "data.val", 0},
                                         {"val_data", "data.val", 0},
                                         {"output_dir", "run.dir", 0},
                                         {"out_dir", "run.dir", 0},
                                         {"save_dir", "run.dir", 0},
                                         {"save_steps", "train.save_every", 0},
                                         {"save_interval", "train.save_every", 0},
                                         {"eval_steps", "train.eval_every", 0},
                                         {"eval_interval", "train.eval_every", 0},
                                         {"logging_steps", "train.log_every", 0},
                                         {"log_interval", "train.log_every", 0},
                                         {"save_total_limit", "train.keep_last", 0},
                                         {"resume", NULL, "use the option --resume auto"},
                                         {"resume_from_checkpoint", NULL, "use the option --resume DIR"},
                                         {"precision", "train.dtype", dtype},
                                         {"bf16", "train.dtype", dtype},
                                         {"fp16", "train.dtype", dtype},
                                         {"torch_dtype", "train.dtype", dtype},
                                         {"gradient_checkpointing", "train.recompute", all_layers},
                                         {"activation_checkpointing", "train.recompute", all_layers},
                                         {"hidden_size", "model.d_model", 0},
                                         {"n_embd", "model.d_model", 0},
                                         {"embed_dim", "model.d_model", 0},
                                         {"dim", "model.d_model", 0},
                                         {"n_layer", "model.layers", 0},
                                         {"n_layers", "model.layers", 0},
                                         {"num_layers", "model.layers", 0},
                                         {"num_hidden_layers", "model.layers", 0},
                                         {"depth", "model.layers", 0},
                                         {"vocab_size", "model.vocab", 0},
                                         {"n_vocab", "model.vocab", 0},
                                         {"max_position_embeddings", "model.max_positions", 0},
                                         {"n_positions", "model.max_positions", 0},
                                         {"tie_word_embeddings", "model.tied", 0},
                                         {"tie_embeddings", "model.tied", 0},
                                         {"rms_norm_eps", "model.norm_eps", 0},
                                         {"layer_norm_eps", "model.norm_eps", 0},
                                         {"initializer_range", "model.init_std", 0},
                                         {"embedding_multiplier", "model.embed_scale", 0},
                                         {"residual_multiplier", "model.residual_scale", 0},
                                         {"logits_scaling", "model.logits_divisor", 0},
                                         {"final_logit_softcapping", "model.logits_cap", 0},
                                         {"attention", KIND "mixer", 0},
                                         {"attn", KIND "mixer", 0},
                                         {"n_head", KIND "heads", 0},
                                         {"n_heads", KIND "heads", 0},
                                         {"num_heads", KIND "heads", 0},
                                         {"num_attention_heads", KIND "heads", 0},
                                         {"n_kv_heads", KIND "kv_heads", 0},
                                         {"num_kv_heads", KIND "kv_heads", 0},
                                         {"num_key_value_heads", KIND "kv_heads", 0},
                                         {"d_head", KIND "head_dim", 0},
                                         {"head_size", KIND "head_dim", 0},
                                         {"sliding_window", KIND "window", 0},
                                         {"attention_multiplier", KIND "scale", 0},
                                         {"attn_logit_softcapping", KIND "soft_cap", 0},
                                         {"rope_theta", KIND "rope.theta", 0},
                                         {"rope_scaling", KIND "rope", 0},
                                         {"intermediate_size", "model.ffn.hidden", 0},
                                         {"ffn_hidden_size", "model.ffn.hidden", 0},
                                         {"d_ff", "model.ffn.hidden", 0},
                                         {"hidden_act", "model.ffn.kind", 0},
                                         {"base_model", "init_from", 0},
                                         {"model_name", "init_from", 0},
                                         {"model_path", "init_from", 0},
                                         {"model_name_or_path", "init_from", 0},
                                         {"pretrained", "init_from", 0},
                                         {"checkpoint", "init_from", 0},
                                         {"teacher_model", "teacher.path", 0},
                                         {"lora_r", "lora.rank", 0},
                                         {"lora_rank", "lora.rank", 0},
                                         {"lora_alpha", "lora.alpha", 0},
                                         {"lora_target_modules", "lora.targets", 0},
                                         {"target_modules", "lora.targets", 0},
                                         {"zero_stage", "dist.stage", 0},
                                         {0}};
#undef KIND
static const Foreign mixers_elsewhere[] = {{"attention", "gqa", 0},
                                           {"attn", "gqa", 0},
                                           {"self_attention", "gqa", 0},
                                           {"full_attention", "gqa", 0},
                                           {"softmax", "gqa", 0},
                                           {"mha", "gqa", 0},
                                           {"mqa", "gqa", 0},
                                           {"swa", "gqa", 0},
                                           {"sliding_attention", "gqa", 0},
                                           {"sliding_window", "gqa", 0},
                                           {"dms", "dmc", 0},
                                           {"mamba", "mamba2", 0},
                                           {"ssm", "mamba2", 0},
                                           {"ssd", "mamba2", 0},
                                           {"linear_attention", "linear", 0},
                                           {"retnet", "retention", 0},
                                           {"gated_deltanet", "gdn", 0},
                                           {"gated_delta_net", "gdn", 0},
                                           {"delta_net", "deltanet", 0},
                                           {0}};
static const Foreign ffns_elsewhere[] = {{"mlp", "gelu", 0},    {"dense", "gelu", 0},   {"silu", "swiglu", 0},
                                         {"glu", "swiglu", 0},  {"llama", "swiglu", 0}, {"experts", "moe", 0},
                                         {"mixture", "moe", 0}, {"mixtral", "moe", 0},  {0}};

/* Ignore case and treat - as _: --learning-rate. */
static bool hints_alike(const char *a, const char *b) {
    for (; *a && *b; a++, b++)
        if ((*a == '-' ? '_' : tolower((unsigned char)*a)) != *b) return false;
    return !*a && !*b;
}
static const Foreign *hints_find(const Foreign *f, const char *name) {
    for (; f->name; f++)
        if (hints_alike(name, f->name)) return f;
    return NULL;
}
const char *hint_mixer(const char *name) {
    const Foreign *f = hints_find(mixers_elsewhere, name);
    return f ? f->ours : NULL;
}
const char *hint_ffn(const char *name) {
    const Foreign *f = hints_find(ffns_elsewhere, name);
    return f ? f->ours : NULL;
}

/* ---- keys in another section ------------------------------------------------------------------------------------- */

static const Key *hints_key_of(const Key *keys, const char *name) {
    for (; keys->name; keys++)
        if (hints_alike(name, keys->name)) return keys;
    return NULL;
}
/* Find `name` below `prefix`; its dotted name goes to out. */
static bool hints_below(const Key *keys, const char *prefix, const char *name, char out[HINT_MAX]) {
    const Key *k = hints_key_of(keys, name);
    char sub[HINT_MAX];
    if (k) return snprintf(out, HINT_MAX, "%s%s", prefix, k->name), true;
    for (k = keys; k->name; k++) {
        if (k->type != KEY_TABLE) continue;
        snprintf(sub, sizeof sub, "%.150s%s.", prefix, k->name);
        if (hints_below(k->sub, sub, name, out)) return true;
    }
    return false;
}
static bool hints_anywhere(const char *name, char out[HINT_MAX]) {
    if (hints_below(config_keys, "", name, out) || hints_below(model_keys, "model.", name, out)) return true;
    for (int i = 0; mixers[i]; i++)
        if (hints_below(mixers[i]->keys, "model.kinds.NAME.", name, out)) return true;
    for (int i = 0; ffns[i]; i++)
        if (hints_below(ffns[i]->keys, "model.ffn.", name, out)) return true;
    return false;
}

/* True for a path in a run's settings: it begins with one of their sections. Paths of a comparison or of a model's
 * config.json do not. */
static bool of_a_run(const char *path, const Key *keys) {
    char section[64];
    if (keys == config_keys) return true;
    snprintf(section, sizeof section, "%.*s", (int)strcspn(path, "."), path);
    return strchr(path, '.') && hints_key_of(config_keys, section);
}

/* Inside a kind, suggest a mixer's key only if that kind has it, and then under the kind's own name. */
static bool hints_inside(const char *path, const char *section, const Key *keys, char key[HINT_MAX]) {
    size_t n = strlen(section), under = strlen("model.kinds.NAME.");
    if (strncmp(path, section, n)) return true;
    if (strncmp(key, section, n)) return true;
    const char *leaf = key + (!strcmp(section, "model.ffn.") ? n : under), *own = strrchr(path, '.');
    char first[64], full[HINT_MAX];
    snprintf(first, sizeof first, "%.*s", (int)strcspn(leaf, "."), leaf);
    if (!hints_key_of(keys, first) || own - path > 100) return false;
    snprintf(full, sizeof full, "%.*s.%s", (int)(own - path), path, leaf);
    return memcpy(key, full, sizeof full), true;
}

bool hint_key(const char *name, const char *path, const Key *keys, char out[HINT_MAX]) {
    const Foreign *f = hints_find(keys_elsewhere, name);
    char key[HINT_MAX] = "";
    if (!of_a_run(path, keys)) return false;
    if (f && !f->ours) return snprintf(out, HINT_MAX, "%s", f->note), true;
    for (const Key *k = keys; !f && k->name; k++) /* a typo of one letter is more likely than another section */
        if (strlen(name) > 3 && name_distance(name, k->name) <= 1) return false;
    if (f)
        snprintf(key, sizeof key, "%s", f->ours);
    else if (!hints_anywhere(name, key))
        return false;
    if (!hints_inside(path, "model.kinds.", keys, key) || !hints_inside(path, "model.ffn.", keys, key)) return false;
    snprintf(out, HINT_MAX, "did you mean %.120s?%s%s", key, f && f->note ? " " : "", f && f->note ? f->note : "");
    return true;
}

bool hint_option(const char *name, const char *value, char out[HINT_MAX]) {
    char key[HINT_MAX] = "", leaf[HINT_MAX];
    const Foreign *f = hints_find(keys_elsewhere, name);
    const char *dot = strrchr(name, '.');
    if (f && !f->ours) return snprintf(out, HINT_MAX, "there is no such setting; %s", f->note), true;
    if (f)
        snprintf(key, sizeof key, "%s", f->ours);
    else if (!hints_anywhere(dot ? dot + 1 : name, leaf) || (dot && strlen(name) > 100))
        return false;
    else
        snprintf(key, sizeof key, "%s", dot ? name : leaf);
    snprintf(out, HINT_MAX, "settings are written key=value: %.110s=%.40s", key, value ? value : "...");
    return true;
}
