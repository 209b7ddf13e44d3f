#include "config_keys.h"

static const char *const graphs[] = {"auto", "off", NULL}, *const encodings[] = {"utf8", "bytes", NULL};
static const char *const save_dtypes[] = {"f32", "bf16", NULL};
static const char *const lora_saves[] = {"both", "merged", NULL};
static const char *const devices[] = {"auto", "cpu", "cuda", NULL}, *const dtypes[] = {"auto", "f32", "bf16", NULL},
                         *const optimizers[] = {"adamw", "muon", NULL}, *const states[] = {"f32", "bf16", NULL},
                         *const reduces[] = {"f32", "bf16", NULL},
                         *const attentions[] = {"auto", "own", "cudnn", "cudnn_unordered", NULL},
                         *const transports[] = {"auto", "shm", "mpi", "nccl", NULL},
                         *const starters[] = {"auto", "alone", "launch", "torchrun", "slurm", "openmpi", "mpich", NULL},
                         *const norms[] = {"rms", "layer", NULL}, *const positions[] = {"none", "learned", NULL},
                         *const schedules[] = {"cosine", "constant", "linear", "wsd", NULL};
static const char *const schedule_bys[] = {"steps", "time", NULL};

#define AT(member) offsetof(RunCfg, member)
const Key run_keys[] = {
    {"dir", KEY_TEXT, AT(dir), "", 0, 0, "folder of the run: settings, checkpoints, metrics; training needs it", 0, 0},
    {"seed", KEY_LONG, AT(seed), "1", 0, 9e15, "key of the initial weights, the order of the data and all noise", 0, 0},
    {"device", KEY_CHOICE, AT(device), "auto", 0, 0,
     "where to compute; auto: cuda in a program that was built with it where a GPU can be used, else cpu", devices, 0},
    {"threads", KEY_INT, AT(threads), "0", 0, 1024, "CPU threads; 0: one for each processor this process may use", 0,
     0},
    {"isa", KEY_TEXT, AT(isa), "auto", 0, 0,
     "instruction set of the CPU's kernels: auto (the best there is), baseline, avx2, avx512, avx512bf16, amx, neon, "
     "neonbf16",
     0, 0},
    {"tuning", KEY_TEXT, AT(tuning), "", 0, 0,
     "file of measured choices for the products of device cuda (kvsmith bench tune); empty: none", 0, 0},
    {"graph", KEY_CHOICE, AT(graph), "auto", 0, 0,
     "auto: device cuda records the passes of a step and replays them, where a model's passes are alike; off: every "
     "kernel is launched by itself. Results are the same",
     graphs, 0},
    {0}};
#undef AT
#define AT(member) offsetof(ModelCfg, member)
const Key model_keys[] = {
    {"d_model", KEY_INT, AT(d_model), NULL, 1, 65536, "width of the residual stream", 0, 0},
    {"layers", KEY_INT, AT(layers), NULL, 1, LAYERS_MAX, "number of layers", 0, 0},
    {"vocab", KEY_INT, AT(vocab), "0", 0, VOCAB_MAX, "token ids; 0: as many as the tokenizer or the task has", 0, 0},
    {"max_positions", KEY_INT, AT(max_positions), "0", 0, POSITIONS_MAX, "longest context; 0: data.seq_len", 0, 0},
    {"norm", KEY_CHOICE, AT(norm), "rms", 0, 0, "the norms of blocks and head; layer: LayerNorm with biases", norms, 0},
    {"norm_eps", KEY_FLOAT, AT(norm_eps), "1e-5", 1e-12, 0.1, "added to the mean square in norms", 0, 0},
    {"positions", KEY_CHOICE, AT(positions), "none", 0, 0,
     "learned: a vector for each of max_positions is added to the embedding", positions, 0},
    {"parallel", KEY_BOOL, AT(parallel), "false", 0, 0,
     "mixer and feed-forward part both read the block's input: x + mixer(norm x) + ffn(norm x)", 0, 0},
    {"init_std", KEY_FLOAT, AT(init_std), "0.02", 0, 10,
     "deviation of initial weights; outputs to the residual stream get 1/sqrt(2 layers) of it", 0, 0},
    {"embed_scale", KEY_FLOAT, AT(embed_scale), "1", 1e-6, 1e6,
     "factor on the embedding as it enters the first layer; sqrt(d_model) in some families", 0, 0},
    {"tied", KEY_BOOL, AT(tied), "true", 0, 0, "the head is the embedding", 0, 0},
    {"kinds", KEY_OTHER, 0, "", 0, 0, "map of names to layers: {mixer: NAME, its settings}", 0, 0},
    {"pattern", KEY_OTHER, 0, "", 0, 0,
     "list of kinds or mixers, repeated and cut at `layers`; may be left out when there is one kind", 0, 0},
    {"kv_from", KEY_OTHER, 0, "", 0, 0, "map of layers (from 0) to the earlier layer whose keys and values they read",
     0, 0},
    {"ffn", KEY_OTHER, 0, NULL, 0, 0, "{kind: NAME, its settings}, or a list of them, repeated like pattern", 0, 0},
    {0}};
#undef AT
#define AT(member) offsetof(SftCfg, member)
static const Key sft_keys[] = {{"template", KEY_CHOICE, AT(template), "none", 0, 0,
                                "what stands around the messages; none: the files are plain text", chat_templates, 0},
                               {"learn", KEY_CHOICE, AT(learn), "answers", 0, 0,
                                "what has a loss; answers: the assistant's texts and the marker behind each",
                                sft_learns, 0},
                               {"too_long", KEY_CHOICE, AT(too_long), "cut", 0, 0,
                                "a conversation of more than seq_len + 1 tokens loses those behind, or is dropped",
                                sft_too_longs, 0},
                               {0}};
#undef AT
#define AT(member) offsetof(DataCfg, member)
const Key path_keys[] = {{"path", KEY_TEXT, offsetof(Path, path), NULL, 0, 0,
                          "a text file, a pattern, a folder, a Megatron set (.bin with its .idx) or an "
                          "llm.c .bin, from the working directory",
                          0, 0},
                         {"weight", KEY_FLOAT, offsetof(Path, weight), "0", 0, 1e6,
                          "its part of the samples, as a ratio to the other weights; 0: none has one", 0, 0},
                         {0}};
const Key data_keys[] = {
    {"train", KEY_OTHER, 0, "", 0, 0,
     "a text file (.jsonl: one {\"text\": ...} a line), a pattern in quotes (\"data/*.txt\"), a folder of .txt and "
     ".jsonl "
     "files, a Megatron set (.bin with .idx) or an llm.c .bin, or a list of these; each a path or {path: PATH, "
     "weight: W}; training needs it or a task",
     0, 0},
    {"task", KEY_OTHER, 0, "", 0, 0, "instead of text, {name: TASK, its settings}, or TASK alone: see below", 0, 0},
    {"val", KEY_TEXT, AT(val), "", 0, 0, "a text file or a set for validation; null: the end of what is trained on", 0,
     0},
    {"val_fraction", KEY_FLOAT, AT(val_fraction), "0.1", 0, 0.5, "part of the training text kept back when val is null",
     0, 0},
    {"tokenizer", KEY_TEXT, AT(tokenizer), "byte", 0, 0,
     "byte: 256 bytes and <|endoftext|>; else a tokenizer.json, or a directory with one or with GPT-2's encoder.json "
     "and "
     "vocab.bpe",
     0, 0},
    {"eot", KEY_TEXT, AT(eot), "", 0, 0,
     "the token that stands between documents, by its name or id; null: the tokenizer's own end-of-text", 0, 0},
    {"seq_len", KEY_INT, AT(seq_len), "256", 1, 1 << 20, "tokens of a training sample", 0, 0},
    {"val_samples", KEY_LONG, AT(val_samples), "256", 1, 1e9, "samples of a validation on a task", 0, 0},
    {"sft", KEY_TABLE, AT(sft), "", 0, 0,
     "the files are conversations, a JSON object a line: {messages: [{role, content}]} or {instruction, input, output}",
     0, sft_keys},
    {"separator", KEY_TEXT, AT(separator), "", 0, 0, "text between two documents of a file; null: a file is one", 0, 0},
    {"encoding", KEY_CHOICE, AT(encoding), "utf8", 0, 0,
     "of text files; utf8: one that is not text in UTF-8 is refused; bytes: any bytes are text", encodings, 0},
    {0}};
#undef AT
#define AT(member) offsetof(CompressionCfg, member)
static const Key compression_keys[] = {
    {"target", KEY_FLOAT, AT(target), "1", 1, 1e6,
     "rows that a cache would hold for each that it shall hold, over all layers and heads; 1: no such loss", 0, 0},
    {"weight", KEY_FLOAT, AT(weight), "1.0", 0, 1e6, "of this loss beside the mean of the targets' losses", 0, 0},
    {"ramp", KEY_BOOL, AT(ramp), "true", 0, 0, "the target grows from 1 through the stage, as a line", 0, 0},
    {0}};
#undef AT
#define AT(member) offsetof(TrainCfg, member)
const Key train_keys[] = {
    {"steps", KEY_LONG, AT(steps), "2000", 1, 1e12, "optimizer steps; the sum of the stages where there are any", 0, 0},
    {"max_seconds", KEY_FLOAT, AT(max_seconds), "0", 0, 1e9, "stop and save after this time; 0: never", 0, 0},
    {"stop_at_acc", KEY_FLOAT, AT(stop_at_acc), "0", 0, 1,
     "stop and save when a validation on a task answers this part of the questions; 0: never", 0, 0},
    {"batch", KEY_INT, AT(batch), "64", 1, 1 << 20, "samples of a step", 0, 0},
    {"micro_batch", KEY_INT, AT(micro_batch), "8", 1, 1 << 20,
     "samples computed at once; divides batch. Default: 8, or the largest divisor of batch (of a rank's part) below it",
     0, 0},
    {"dtype", KEY_CHOICE, AT(dtype), "auto", 0, 0,
     "number type of the operands of matrix products and, with bf16 on device cuda or a processor with AVX-512-BF16, "
     "of "
     "most activations in memory; weights, their gradients and sums are f32, moments as optim.state_dtype says. auto: "
     "bf16 where this processor is faster with it, measured as the run "
     "begins; device cuda: bf16",
     dtypes, 0},
    {"attention", KEY_CHOICE, AT(attention), "auto", 0, 0,
     "kernels of attention, device cuda in bf16: our own, or cuDNN's where it is installed and serves the shape (every "
     "run repeats to the bit; cudnn_unordered: backward passes with sums in any order). auto: own",
     attentions, 0},
    {"dropout", KEY_FLOAT, AT(dropout), "0", 0, 0.95, "probability of dropping", 0, 0},
    {"recompute", KEY_INT, AT(recompute), "0", -1, LAYERS_MAX,
     "first layers whose activations are computed again in the backward pass; -1: all", 0, 0},
    {"eval_every", KEY_LONG, AT(eval_every), "200", 0, 1e12, "steps between validations; 0: none", 0, 0},
    {"eval_first", KEY_BOOL, AT(eval_first), "false", 0, 0,
     "also validate before the first step, as the weights that a run starts from are", 0, 0},
    {"save_every", KEY_LONG, AT(save_every), "500", 0, 1e12, "steps between checkpoints; 0: at the end alone", 0, 0},
    {"sample_every", KEY_LONG, AT(sample_every), "0", 0, 1e12, "steps between samples of text; 0: none", 0, 0},
    {"log_every", KEY_LONG, AT(log_every), "10", 1, 1e12, "steps between training records", 0, 0},
    {"eval_tokens", KEY_LONG, AT(eval_tokens), "65536", 0, 1e15, "most tokens of a validation on text; 0: all", 0, 0},
    {"keep_last", KEY_INT, AT(keep_last), "2", 1, 1000000, "newest checkpoints to keep", 0, 0},
    {"keep_best", KEY_BOOL, AT(keep_best), "true", 0, 0, "also keep the one of the lowest validation loss", 0, 0},
    {"save_dtype", KEY_CHOICE, AT(save_dtype), "f32", 0, 0,
     "of model.safetensors; bf16: trainer/weights.safetensors then holds the f32 weights that a resumed run continues "
     "from",
     save_dtypes, 0},
    {"async_save", KEY_BOOL, AT(async_save), "false", 0, 0,
     "write checkpoints while training goes on, from a copy of the numbers", 0, 0},
    {"tensorboard", KEY_BOOL, AT(tensorboard), "false", 0, 0, "also write the records as TensorBoard events, RUN/tb", 0,
     0},
    {"skip_z", KEY_FLOAT, AT(skip_z), "0", 0, 1e6,
     "leave out a step whose loss or gradient norm is more than so many deviations above the mean; 0: none", 0, 0},
    {"skip_window", KEY_INT, AT(skip_window), "128", 2, 1024, "accepted steps that mean and deviation are of", 0, 0},
    {"skip_most", KEY_INT, AT(skip_most), "10", 1, 1000000, "steps left out in a row that end the run", 0, 0},
    {"freeze", KEY_TEXTS, AT(freeze), "[]", 0, 0,
     "globs of tensors' names (\"*.mlp.*\") that are not trained: no step, no decay, no moments", 0, 0},
    {"train_only", KEY_TEXTS, AT(train_only), "[]", 0, 0, "globs of those that are, all others are not; none: all", 0,
     0},
    {"frozen_dtype", KEY_CHOICE, AT(frozen_dtype), "auto", 0, 0,
     "number type in memory of the matrices that the run never trains (freeze, train_only; with lora all): f32, or "
     "bf16, "
     "to which other numbers are rounded. auto: bf16 where the matrices in the files of init_from are bf16, which "
     "loses "
     "nothing, else f32",
     dtypes, 0},
    {"sample_prompt", KEY_TEXT, AT(sample_prompt), "", 0, 0, "how samples begin", 0, 0},
    {"sample_tokens", KEY_INT, AT(sample_tokens), "200", 1, 1 << 20, "tokens of a sample", 0, 0},
    {"compression", KEY_TABLE, AT(compression), "", 0, 0,
     "a loss for caches that hold fewer rows, of mixers that merge them", 0, compression_keys},
    {0}};
#undef AT
#define AT(member) offsetof(OptimCfg, member)
const Key optim_keys[] = {
    {"kind", KEY_CHOICE, AT(kind), "adamw", 0, 0,
     "optimizer; muon: Muon for the matrices of hidden layers, AdamW for everything else", optimizers, 0},
    {"state_dtype", KEY_CHOICE, AT(state_dtype), "f32", 0, 0,
     "number type of the optimizer's moments; bf16: half the bytes, rounded up or down by chance", states, 0},
    {"muon_momentum", KEY_FLOAT, AT(muon_momentum), "0.95", 0, 0.9999999, "Muon's momentum", 0, 0},
    {"muon_nesterov", KEY_BOOL, AT(muon_nesterov), "true", 0, 0, "look ahead by one gradient", 0, 0},
    {"muon_steps", KEY_INT, AT(muon_steps), "5", 1, 20, "steps of its orthogonalising iteration", 0, 0},
    {"muon_scale", KEY_FLOAT, AT(muon_scale), "0.2", 1e-6, 1e3,
     "size of its update, times sqrt(max(rows, columns)); 0.2 matches AdamW's", 0, 0},
    {"lr", KEY_FLOAT, AT(lr), "1e-3", 0, 100, "highest learning rate", 0, 0},
    {"min_lr", KEY_FLOAT, AT(min_lr), "1e-4", 0, 100,
     "learning rate at the end of cosine, linear and wsd. Default: lr / 10", 0, 0},
    {"weight_decay", KEY_FLOAT, AT(weight_decay), "0.1", 0, 100, "decoupled decay of matrices, times the learning rate",
     0, 0},
    {"clip", KEY_FLOAT, AT(clip), "1.0", 0, 1e9, "largest norm of the gradient; 0: any", 0, 0},
    {"beta1", KEY_FLOAT, AT(beta1), "0.9", 0, 0.9999999, "decay of the mean of gradients", 0, 0},
    {"beta2", KEY_FLOAT, AT(beta2), "0.95", 0, 0.9999999, "decay of the mean of their squares", 0, 0},
    {"eps", KEY_FLOAT, AT(eps), "1e-8", 1e-20, 1, "added to the root of the latter", 0, 0},
    {"balance_rate", KEY_FLOAT, AT(balance_rate), "1e-3", 0, 1,
     "step of the balancing biases of moe routers (bias_balance), up or down; 0: they stay", 0, 0},
    {"warmup", KEY_LENGTH, AT(warmup), "100", 0, 1e12,
     "linear growth of the learning rate; N%: of the run or stage. Default: 100 steps, at most a tenth of them all", 0,
     0},
    {"schedule_steps", KEY_LENGTH, AT(schedule_steps), "0", 0, 1e12,
     "after which cosine, linear and wsd end; 0: with the run or stage", 0, 0},
    {"schedule_by", KEY_CHOICE, AT(schedule_by), "steps", 0, 0,
     "what moves the schedule; time: the share of train.max_seconds that has elapsed where that is more than the share "
     "of steps done, so that a run that time ends has decayed to min_lr. Time never repeats, so neither does the run: "
     "only with steps is it the same to the bit when it is run again",
     schedule_bys, 0},
    {"decay_steps", KEY_LENGTH, AT(decay_steps), "0", 0, 1e12, "wsd's decay, the last of schedule_steps", 0, 0},
    {"groups", KEY_OTHER, 0, "", 0, 0,
     "list of tensors with rates of their own, the first that matches counts: see below", 0, 0},
    {"schedule", KEY_CHOICE, AT(schedule), "cosine", 0, 0, "learning rate after warmup", schedules, 0},
    {0}};
#undef AT
#define AT(member) offsetof(DistCfg, member)
const Key dist_keys[] = {
    {"stage", KEY_INT, AT(stage), "0", 0, 2,
     "what each rank keeps 1/ranks of; 0: nothing, 1: the optimizer's moments, 2: gradients, too (ZeRO)", 0, 0},
    {"reduce", KEY_CHOICE, AT(reduce), "f32", 0, 0, "number type of the gradients that ranks send to each other",
     reduces, 0},
    {"check_every", KEY_LONG, AT(check_every), "100", 0, 1e12,
     "steps between comparisons of the ranks' weights by checksum; 0: none", 0, 0},
    {"launcher", KEY_CHOICE, AT(launcher), "auto", 0, 0,
     "who started the ranks; auto: whose variables are in the environment, which must not contradict each other",
     starters, 0},
    {"comm", KEY_CHOICE, AT(comm), "auto", 0, 0,
     "how ranks talk; auto: nccl between devices; on processors mpi under mpirun and over several hosts, else shared "
     "memory; nccl given for a single rank sends all through the library",
     transports, 0},
    {"store", KEY_TEXT, AT(store), "", 0, 0,
     "file that all ranks see, by which those of nccl meet; null: by MPI, on one host by a socket, else by MASTER_ADDR "
     "and MASTER_PORT",
     0, 0},
    {"deadline", KEY_FLOAT, AT(deadline), "0", 0, 1e6,
     "seconds that a rank waits for another; 0: what `launch` was given, else 300", 0, 0},
    {"flops", KEY_FLOAT, AT(flops), "0", 0, 1e18,
     "of --plan: FLOPs per second that a rank reaches in training; 0: no times are estimated", 0, 0},
    {"link", KEY_FLOAT, AT(link), "0", 0, 1e18,
     "of --plan: bytes per second that a rank sends while others do; 0: no times are estimated", 0, 0},
    {"latency", KEY_FLOAT, AT(latency), "5e-6", 0, 1, "of --plan: seconds that a message takes beside its bytes", 0, 0},
    {0}};
#undef AT
#define AT(member) offsetof(TeacherLosses, member)
static const Key losses_keys[] = {
    {"lm", KEY_FLOAT, AT(lm), "1.0", 0, 1e6, "cross-entropy of the targets, as without a teacher", 0, 0},
    {"kl", KEY_FLOAT, AT(kl), "1.0", 0, 1e6,
     "forward divergence KL(teacher || model) of the logits, times temperature^2", 0, 0},
    {"rkl", KEY_FLOAT, AT(rkl), "0", 0, 1e6, "reverse divergence KL(model || teacher), times temperature^2", 0, 0},
    {"attention", KEY_FLOAT, AT(attention), "0", 0, 1e6,
     "squared error of what each layer's mixer adds to the stream, relative to the teacher's; mean over layers", 0, 0},
    {"hidden", KEY_FLOAT, AT(hidden), "0", 0, 1e6, "the same of the stream behind each layer", 0, 0},
    {0}};
#undef AT
#define AT(member) offsetof(TeacherCfg, member)
const Key teacher_keys[] = {{"path", KEY_TEXT, AT(path), "", 0, 0,
                             "model directory or run folder, of any layout, with the same token ids; null: none", 0, 0},
                            {"losses", KEY_TABLE, AT(losses), "", 0, 0,
                             "weights; what is minimised is the weighted sum, mean over targets", 0, losses_keys},
                            {"temperature", KEY_FLOAT, AT(temperature), "1.0", 0.01, 1000,
                             "that both models' logits are divided by in kl and rkl", 0, 0},
                            {"dtype", KEY_CHOICE, AT(dtype), "auto", 0, 0,
                             "number type of its matrices in memory: f32, or bf16, to which other numbers are rounded. "
                             "auto: bf16 where they are bf16 in its files, which loses nothing, else f32",
                             dtypes, 0},
                            {0}};
#undef AT
#define AT(member) offsetof(LoraCfg, member)
const Key lora_keys[] = {{"rank", KEY_INT, AT(rank), "0", 0, 65536,
                          "of the adapters B A; 0: no adapters, all of the model is trained", 0, 0},
                         {"alpha", KEY_FLOAT, AT(alpha), "16", 1e-6, 1e6, "alpha / rank is the factor on B A", 0, 0},
                         {"targets", KEY_TEXTS, AT(targets), "[\"*_proj.weight\"]", 0, 0,
                          "globs of the matrices that have adapters", 0, 0},
                         {"save", KEY_CHOICE, AT(save), "both", 0, 0,
                          "both: checkpoints hold the merged model and, where transformers has the model, "
                          "adapter/ in the form of peft; merged: the model alone",
                          lora_saves, 0},
                         {"init_from", KEY_TEXT, AT(init_from), "", 0, 0,
                          "adapter directory of peft to continue, of the same rank and targets; null: a new one", 0, 0},
                         {0}};
#undef AT
#define AT(member) offsetof(OptimGroup, member)
const Key group_keys[] = {{"match", KEY_TEXT, AT(match), NULL, 0, 0, "glob of tensors' names", 0, 0},
                          {"lr_scale", KEY_FLOAT, AT(lr_scale), "1", 0, 1e4, "factor of the learning rate", 0, 0},
                          {"weight_decay", KEY_FLOAT, AT(weight_decay), "optim.weight_decay", 0, 100, "of its matrices",
                           0, 0},
                          {0}};
#undef AT
#define AT(member) offsetof(Stage, member)
const Key stage_keys[] = {{"name", KEY_TEXT, AT(name), NULL, 0, 0, "for records and messages: letters, digits, - and _",
                           0, 0},
                          {"steps", KEY_LONG, AT(steps), NULL, 1, 1e12, "optimizer steps", 0, 0},
                          {"set", KEY_OTHER, 0, "", 0, 0,
                           "map of dotted keys (optim.lr: 3e-5) to their values in this stage", 0, 0},
                          {0}};
#undef AT
#define AT(member) offsetof(Config, member)
const Key config_keys[] = {{"run", KEY_TABLE, AT(run), "", 0, 0, "the run", 0, run_keys},
                           {"model", KEY_OTHER, AT(model), NULL, 0, 0, "the shape of the model", 0, 0},
                           {"init_from", KEY_TEXT, AT(init_from), "", 0, 0,
                            "model directory or run folder whose weights to start from, and whose model and tokenizer "
                            "where those are not given; null: random",
                            0, 0},
                           {"init_change", KEY_TEXTS, AT(init_change), "[]", 0, 0,
                            "settings of the model that may differ from init_from's although no tensor shows it "
                            "(rope.theta, window)",
                            0, 0},
                           {"teacher", KEY_TABLE, AT(teacher), "", 0, 0, "a model to learn from", 0, teacher_keys},
                           {"lora", KEY_TABLE, AT(lora), "", 0, 0,
                            "low-rank adapters on frozen weights; what is saved is their sum", 0, lora_keys},
                           {"stages", KEY_OTHER, 0, "", 0, 0, "list of parts of the run, in order", 0, 0},
                           {"data", KEY_TABLE, AT(data), "", 0, 0, "the text, or the task", 0, data_keys},
                           {"train", KEY_TABLE, AT(train), "", 0, 0, "the loop", 0, train_keys},
                           {"optim", KEY_TABLE, AT(optim), "", 0, 0, "the optimizer", 0, optim_keys},
                           {"dist", KEY_TABLE, AT(dist), "", 0, 0, "several ranks", 0, dist_keys},
                           {0}};
#undef AT
