/* config_keys.c: the key tables of a run's settings: names, types, ranges, defaults and meanings. docs/config.md is
 * generated from them. */
#include "config_keys.h"

static const char *const graphs[] = {"auto", "off", NULL};
static const char *const lora_saves[] = {"both", "merged", NULL};
static const char *const libraries[] = {"transformers", "fla", NULL};
static const char *const devices[] = {"auto", "cpu", "cuda", NULL}, *const dtypes[] = {"auto", "f32", "bf16", NULL},
                         *const reduces[] = {"f32", "bf16", NULL},
                         *const attentions[] = {"auto", "own", "cudnn", "cudnn_unordered", NULL},
                         *const transports[] = {"auto", "shm", "mpi", "nccl", NULL},
                         *const starters[] = {"auto", "alone", "launch", "torchrun", "slurm", "openmpi", "mpich", NULL},
                         *const norms[] = {"rms", "layer", NULL}, *const norm_places[] = {"pre", "post", "both", NULL},
                         *const positions[] = {"none", "learned", NULL};

#define AT(member) offsetof(RunCfg, member)
const Key run_keys[] = {
    {"dir", KEY_TEXT, AT(dir), "", 0, 0, "folder of the run: settings, checkpoints, metrics; training needs it", 0, 0},
    {"seed", KEY_LONG, AT(seed), "1", 0, 9e15, "seed of the initial weights, the order of the data and all noise", 0,
     0},
    {"device", KEY_CHOICE, AT(device), "auto", 0, 0,
     "where to compute; auto: cuda if the program was built with CUDA and a GPU can be used, else cpu", devices, 0},
    {"threads", KEY_INT, AT(threads), "0", 0, 1024,
     "CPU threads; 0: OMP_NUM_THREADS, else one per processor that this process may use", 0, 0},
    {"isa", KEY_TEXT, AT(isa), "auto", 0, 0,
     "instruction set of the CPU kernels: auto (the best available), baseline, avx2, avx512, avx512bf16, amx, neon, "
     "neonbf16",
     0, 0},
    {"tuning", KEY_TEXT, AT(tuning), "", 0, 0,
     "file with the fastest algorithms of a GPU's matrix products (kvsmith bench tune writes it); empty: none", 0, 0},
    {"graph", KEY_CHOICE, AT(graph), "auto", 0, 0,
     "auto: a GPU captures the passes of a step as CUDA graphs and replays them, if the model launches the same "
     "kernels in every pass; off: it launches kernel by kernel. Results are the same",
     graphs, 0},
    {0}};
#undef AT
#define AT(member) offsetof(ModelCfg, member)
const Key model_keys[] = {
    {"d_model", KEY_INT, AT(d_model), NULL, 1, 65536, "width of the residual stream", 0, 0},
    {"layers", KEY_INT, AT(layers), NULL, 1, LAYERS_MAX, "number of layers", 0, 0},
    {"vocab", KEY_INT, AT(vocab), "0", 0, VOCAB_MAX, "token ids; 0: as many as the tokenizer or the task has", 0, 0},
    {"max_positions", KEY_INT, AT(max_positions), "0", 0, POSITIONS_MAX, "longest context; 0: data.seq_len", 0, 0},
    {"norm", KEY_CHOICE, AT(norm), "rms", 0, 0, "norms of the blocks and of the head; layer: LayerNorm with biases",
     norms, 0},
    {"norm_place", KEY_CHOICE, AT(norm_place), "pre", 0, 0,
     "pre: mixer and feed-forward part read a norm of the stream; post: they read the stream, and a norm of what they "
     "make is added to it; both",
     norm_places, 0},
    {"norm_plus_one", KEY_BOOL, AT(norm_plus_one), "false", 0, 0,
     "norms of blocks, head, queries and keys multiply by 1 + weight, and begin at weight 0", 0, 0},
    {"norm_eps", KEY_FLOAT, AT(norm_eps), "1e-5", 1e-12, 0.1, "added to the mean square in norms", 0, 0},
    {"positions", KEY_CHOICE, AT(positions), "none", 0, 0,
     "learned: a vector for each of max_positions is added to the embedding", positions, 0},
    {"parallel", KEY_BOOL, AT(parallel), "false", 0, 0,
     "mixer and feed-forward part both read the block's input: x + mixer(norm x) + ffn(norm x)", 0, 0},
    {"init_std", KEY_FLOAT, AT(init_std), "0.02", 0, 10,
     "standard deviation of initial weights; outputs to the residual stream get 1/sqrt(2 layers) of it", 0, 0},
    {"embed_scale", KEY_FLOAT, AT(embed_scale), "1", 1e-6, 1e6,
     "factor on the embedding before the first layer; sqrt(d_model) in some families", 0, 0},
    {"residual_scale", KEY_FLOAT, AT(residual_scale), "1", 1e-6, 1e6,
     "factor on what mixer and feed-forward part add to the stream", 0, 0},
    {"logits_divisor", KEY_FLOAT, AT(logits_divisor), "1", 1e-6, 1e6, "the head's products are divided by it", 0, 0},
    {"logits_cap", KEY_FLOAT, AT(logits_cap), "0", 0, 1e6,
     "soft cap: logits z become cap tanh(z / cap); 0: they stay as they are", 0, 0},
    {"tied", KEY_BOOL, AT(tied), "true", 0, 0, "the head is the embedding", 0, 0},
    {"library", KEY_CHOICE, AT(library), "transformers", 0, 0,
     "whose classes load the saved model; fla: those of flash-linear-attention, if one of them computes this model",
     libraries, 0},
    {"kinds", KEY_OTHER, 0, "", 0, 0, "map of names to layers: {mixer: NAME, its settings}", 0, 0},
    {"pattern", KEY_OTHER, 0, "", 0, 0,
     "list of kinds or mixers, repeated and cut at `layers`; may be left out when there is one kind", 0, 0},
    {"kv_from", KEY_OTHER, 0, "", 0, 0, "map of layers (from 0) to the earlier layer whose keys and values they read",
     0, 0},
    {"ffn", KEY_OTHER, 0, NULL, 0, 0,
     "{kind: NAME, its settings}; or a list of them, repeated like pattern; or a map of names to them, for ffn_pattern",
     0, 0},
    {"ffn_pattern", KEY_OTHER, 0, "", 0, 0,
     "list of names of ffn, or none, repeated and cut at `layers`; may be left out when there is one", 0, 0},
    {0}};
#undef AT
#define AT(member) offsetof(CompressionCfg, member)
static const Key compression_keys[] = {
    {"target", KEY_FLOAT, AT(target), "1", 1, 1e6,
     "target compression ratio over all layers and heads (4: a quarter of the rows); 1: no such loss", 0, 0},
    {"weight", KEY_FLOAT, AT(weight), "1.0", 0, 1e6, "weight of this loss, added to the mean loss of the targets", 0,
     0},
    {"ramp", KEY_BOOL, AT(ramp), "true", 0, 0, "the target grows linearly from 1 during the stage", 0, 0},
    {"exact", KEY_BOOL, AT(exact), "false", 0, 0,
     "meet the target in evaluation: decisions count without their noise, and too much compression costs as too little "
     "does",
     0, 0},
    {0}};
#undef AT
#define AT(member) offsetof(TrainCfg, member)
const Key train_keys[] = {
    {"steps", KEY_LONG, AT(steps), "2000", 1, 1e12, "optimizer steps; with stages, their sum", 0, 0},
    {"max_seconds", KEY_FLOAT, AT(max_seconds), "0", 0, 1e9, "stop and save after this time; 0: never", 0, 0},
    {"stop_at_acc", KEY_FLOAT, AT(stop_at_acc), "0", 0, 1,
     "stop and save when validation accuracy on a task reaches this fraction; 0: never", 0, 0},
    {"batch", KEY_INT, AT(batch), "64", 1, 1 << 20, "samples per step", 0, 0},
    {"micro_batch", KEY_INT, AT(micro_batch), "8", 1, 1 << 20,
     "samples computed at once; divides batch. Default: 8, or the largest divisor of batch (of a rank's part) below it",
     0, 0},
    {"dtype", KEY_CHOICE, AT(dtype), "auto", 0, 0,
     "dtype of the inputs of matrix products and, with bf16 on a GPU or a CPU with AVX-512-BF16, of most activations "
     "in memory; weights, their gradients and sums are f32, moments have optim.state_dtype. auto: bf16 on a GPU, and "
     "on a CPU that has an instruction for it (AVX-512-BF16, AMX, BFDOT)",
     dtypes, 0},
    {"attention", KEY_CHOICE, AT(attention), "auto", 0, 0,
     "attention kernels on a GPU in bf16: own, or cuDNN's if it is installed and supports the shape (runs repeat to "
     "the bit; cudnn_unordered: sums of the backward pass in any order). auto: own",
     attentions, 0},
    {"dropout", KEY_FLOAT, AT(dropout), "0", 0, 0.95, "dropout probability", 0, 0},
    {"recompute", KEY_INT, AT(recompute), "0", -1, LAYERS_MAX,
     "first layers whose activations the backward pass recomputes; -1: all", 0, 0},
    {"eval_every", KEY_LONG, AT(eval_every), "200", 0, 1e12, "steps between validations; 0: none", 0, 0},
    {"eval_first", KEY_BOOL, AT(eval_first), "false", 0, 0, "also validate before the first step", 0, 0},
    {"save_every", KEY_LONG, AT(save_every), "500", 0, 1e12, "steps between checkpoints; 0: only at the end", 0, 0},
    {"sample_every", KEY_LONG, AT(sample_every), "0", 0, 1e12, "steps between samples of text; 0: none", 0, 0},
    {"log_every", KEY_LONG, AT(log_every), "10", 1, 1e12, "steps between training records", 0, 0},
    {"eval_tokens", KEY_LONG, AT(eval_tokens), "65536", 0, 1e15, "most tokens of a validation on text; 0: all", 0, 0},
    {"keep_last", KEY_INT, AT(keep_last), "2", 1, 1000000, "newest checkpoints to keep", 0, 0},
    {"keep_best", KEY_BOOL, AT(keep_best), "true", 0, 0, "also keep the checkpoint with the lowest validation loss", 0,
     0},
    {"save_dtype", KEY_CHOICE, AT(save_dtype), "auto", 0, 0,
     "dtype of model.safetensors; bf16: trainer/weights.safetensors then holds the f32 weights from which a resumed "
     "run continues. auto: bf16 if the matrices of init_from are bf16 in its files, else f32; a resumed run keeps its "
     "own",
     dtypes, 0},
    {"async_save", KEY_BOOL, AT(async_save), "false", 0, 0,
     "write checkpoints asynchronously: a thread writes a copy while training continues", 0, 0},
    {"tensorboard", KEY_BOOL, AT(tensorboard), "false", 0, 0, "also write the records as TensorBoard events, RUN/tb", 0,
     0},
    {"skip_z", KEY_FLOAT, AT(skip_z), "0", 0, 1e6,
     "skip a step whose loss or gradient norm is more than this many standard deviations above the mean; 0: skip none",
     0, 0},
    {"skip_window", KEY_INT, AT(skip_window), "128", 2, 1024,
     "number of accepted steps over which mean and deviation are computed", 0, 0},
    {"skip_most", KEY_INT, AT(skip_most), "10", 1, 1000000, "number of skipped steps in a row that ends the run", 0, 0},
    {"freeze", KEY_TEXTS, AT(freeze), "[]", 0, 0,
     "globs of tensors' names (\"*.mlp.*\") that are not trained: no step, no decay, no moments", 0, 0},
    {"train_only", KEY_TEXTS, AT(train_only), "[]", 0, 0, "globs of the only tensors that are trained; none: all", 0,
     0},
    {"frozen_dtype", KEY_CHOICE, AT(frozen_dtype), "auto", 0, 0,
     "dtype in memory of the matrices that the run never trains (freeze, train_only; with lora all): f32, or bf16, to "
     "which other dtypes are rounded. auto: bf16 if the matrices of init_from are bf16 in its files, which loses "
     "nothing, else f32",
     dtypes, 0},
    {"sample_prompt", KEY_TEXT, AT(sample_prompt), "", 0, 0, "how samples begin", 0, 0},
    {"sample_tokens", KEY_INT, AT(sample_tokens), "200", 1, 1 << 20, "tokens of a sample", 0, 0},
    {"compression", KEY_TABLE, AT(compression), "", 0, 0,
     "a loss that makes mixers which merge or evict rows keep fewer", 0, compression_keys},
    {0}};
#undef AT
#define AT(member) offsetof(DistCfg, member)
const Key dist_keys[] = {
    {"stage", KEY_INT, AT(stage), "0", 0, 2,
     "what is sharded over the ranks (ZeRO stage); 0: nothing, 1: the optimizer's moments, 2: also gradients", 0, 0},
    {"reduce", KEY_CHOICE, AT(reduce), "f32", 0, 0, "dtype of the gradients that ranks send to each other", reduces, 0},
    {"check_every", KEY_LONG, AT(check_every), "100", 0, 1e12,
     "steps between comparisons of the ranks' weights by checksum; 0: none", 0, 0},
    {"launcher", KEY_CHOICE, AT(launcher), "auto", 0, 0,
     "launcher that started the ranks; auto: the one whose variables are in the environment; contradictions are "
     "refused",
     starters, 0},
    {"comm", KEY_CHOICE, AT(comm), "auto", 0, 0,
     "how ranks communicate; auto: nccl between GPUs; between CPUs mpi under mpirun and across hosts, else shared "
     "memory; nccl given for a single rank still uses the library",
     transports, 0},
    {"store", KEY_TEXT, AT(store), "", 0, 0,
     "file that all ranks see, for the rendezvous of nccl; null: MPI, on one host a socket, else MASTER_ADDR and "
     "MASTER_PORT",
     0, 0},
    {"deadline", KEY_FLOAT, AT(deadline), "0", 0, 1e6,
     "seconds that a rank waits for another; 0: the deadline of `launch`, else 300", 0, 0},
    {"flops", KEY_FLOAT, AT(flops), "0", 0, 1e18,
     "for --plan: FLOPs per second that a rank reaches in training; 0: estimate no times", 0, 0},
    {"link", KEY_FLOAT, AT(link), "0", 0, 1e18,
     "for --plan: bytes per second that a rank sends while others send; 0: estimate no times", 0, 0},
    {"latency", KEY_FLOAT, AT(latency), "5e-6", 0, 1, "for --plan: seconds of a message in addition to its bytes", 0,
     0},
    {0}};
#undef AT
#define AT(member) offsetof(TeacherLosses, member)
static const Key losses_keys[] = {
    {"lm", KEY_FLOAT, AT(lm), "1.0", 0, 1e6, "cross-entropy of the targets, as without a teacher", 0, 0},
    {"kl", KEY_FLOAT, AT(kl), "1.0", 0, 1e6,
     "forward divergence KL(teacher || model) of the logits, times temperature^2", 0, 0},
    {"rkl", KEY_FLOAT, AT(rkl), "0", 0, 1e6, "reverse divergence KL(model || teacher), times temperature^2", 0, 0},
    {"attention", KEY_FLOAT, AT(attention), "0", 0, 1e6,
     "squared error of what each layer's mixer adds to the residual stream, relative to the teacher's; mean over "
     "layers",
     0, 0},
    {"hidden", KEY_FLOAT, AT(hidden), "0", 0, 1e6, "the same for the residual stream after each layer", 0, 0},
    {0}};
#undef AT
#define AT(member) offsetof(TeacherCfg, member)
const Key teacher_keys[] = {{"path", KEY_TEXT, AT(path), "", 0, 0,
                             "model directory or run folder, of any layout, with the same token ids; null: none", 0, 0},
                            {"losses", KEY_TABLE, AT(losses), "", 0, 0,
                             "weights of the losses; their weighted sum is minimised, mean over targets", 0,
                             losses_keys},
                            {"temperature", KEY_FLOAT, AT(temperature), "1.0", 0.01, 1000,
                             "temperature that divides both models' logits in kl and rkl", 0, 0},
                            {"dtype", KEY_CHOICE, AT(dtype), "auto", 0, 0,
                             "dtype of its matrices in memory: f32, or bf16, to which other dtypes are rounded. auto: "
                             "bf16 if they are bf16 in its files, which loses nothing, else f32",
                             dtypes, 0},
                            {0}};
#undef AT
#define AT(member) offsetof(LoraCfg, member)
const Key lora_keys[] = {{"rank", KEY_INT, AT(rank), "0", 0, 65536,
                          "rank of the adapters B A; 0: no adapters, the whole model is trained", 0, 0},
                         {"alpha", KEY_FLOAT, AT(alpha), "16", 1e-6, 1e6, "alpha / rank is the factor on B A", 0, 0},
                         {"targets", KEY_TEXTS, AT(targets), "[\"*_proj.weight\"]", 0, 0,
                          "globs of the matrices that have adapters", 0, 0},
                         {"save", KEY_CHOICE, AT(save), "both", 0, 0,
                          "both: checkpoints contain the merged model and, if transformers supports the model, "
                          "adapter/ as PEFT writes it; merged: only the model",
                          lora_saves, 0},
                         {"init_from", KEY_TEXT, AT(init_from), "", 0, 0,
                          "PEFT adapter directory to continue, of the same rank and targets; null: a new adapter", 0,
                          0},
                         {0}};
#undef AT
#define AT(member) offsetof(Stage, member)
const Key stage_keys[] = {{"name", KEY_TEXT, AT(name), NULL, 0, 0,
                           "name in records and messages: letters, digits, - and _", 0, 0},
                          {"steps", KEY_LONG, AT(steps), NULL, 1, 1e12, "optimizer steps", 0, 0},
                          {"set", KEY_OTHER, 0, "", 0, 0,
                           "map of dotted keys (optim.lr: 3e-5) to their values in this stage", 0, 0},
                          {0}};
#undef AT
#define AT(member) offsetof(Config, member)
const Key config_keys[] = {
    {"run", KEY_TABLE, AT(run), "", 0, 0, "the run", 0, run_keys},
    {"model", KEY_OTHER, AT(model), NULL, 0, 0, "the shape of the model", 0, 0},
    {"init_from", KEY_TEXT, AT(init_from), "", 0, 0,
     "model directory or run folder whose weights the run starts from; also its model and tokenizer unless given; "
     "null: random weights",
     0, 0},
    {"init_change", KEY_TEXTS, AT(init_change), "[]", 0, 0,
     "settings of the model that may differ from init_from's although no tensor's shape shows it (rope.theta, window)",
     0, 0},
    {"teacher", KEY_TABLE, AT(teacher), "", 0, 0, "a model to learn from", 0, teacher_keys},
    {"lora", KEY_TABLE, AT(lora), "", 0, 0, "low-rank adapters (LoRA) on frozen weights; checkpoints contain the sum",
     0, lora_keys},
    {"stages", KEY_OTHER, 0, "", 0, 0, "list of stages of the run, in order", 0, 0},
    {"data", KEY_TABLE, AT(data), "", 0, 0, "the text, or the task", 0, data_keys},
    {"train", KEY_TABLE, AT(train), "", 0, 0, "the loop", 0, train_keys},
    {"optim", KEY_TABLE, AT(optim), "", 0, 0, "the optimizer", 0, optim_keys},
    {"dist", KEY_TABLE, AT(dist), "", 0, 0, "several ranks", 0, dist_keys},
    {0}};
#undef AT
