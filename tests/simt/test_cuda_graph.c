/* test_cuda_graph.c: a run whose passes are recorded and replayed beside one whose kernels are launched one by one: the
 * same bits of losses, norms, weights and moments, for every configuration. */
#include "tests/lib/check.h"
#include "tests/lib/trial.h"
#include "ops/cuda/cuda.h"
#include "ops/device.h"
#include "ops/host.h"
#include "train/capture.h"

typedef struct {
    double loss[8], norm[8], cr[8];
    unsigned long waits[8]; /* of the host, in each step */
    size_t n;
    char *bytes; /* weights and moments */
    long replayed;
    bool apart; /* norm and step are one recording */
} Trained;
static void keep(Trained *to, Device *dev, Tensor t) {
    if (!present(t)) return;
    size_t n = tensor_bytes(t);
    Tensor view = view_open(dev, t, true);
    to->bytes = xrealloc(to->bytes, to->n + n, 1);
    memcpy(to->bytes + to->n, view.p, n);
    to->n += n;
    view_close(dev, t, view, false);
}
static void keep_all(Trained *to, const Trainer *t) {
    const Params *all[] = {&t->params, &t->adapters};
    for (int a = 0; a < 2; a++)
        for (int i = 0; i < all[a]->n; i++) {
            const Param *p = &all[a]->p[i];
            for (int role = 0; role < PARAM_ROLES; role++) keep(to, t->dev, p->t[role]);
            for (int k = 0; k < STATES_MAX; k++) keep(to, t->dev, p->state[k].t);
        }
}
static Trainer *begin(Config *cfg, const char *file, int stage, const char *graph, int n, const char *const over[]) {
    Err e = {0};
    size_t bytes;
    Trainer *t = xcalloc(1, sizeof *t);
    char *text = check_read(file, &bytes), *key = xformat("run.graph=%s", graph);
    const char *with[16] = {"run.device=cuda", "run.threads=1",       "train.dtype=f32",    "data.seq_len=8",
                            "train.batch=2",   "train.micro_batch=1", "train.eval_every=0", key};
    for (int i = 0; i < n; i++) with[8 + i] = over[i];
    cr_assert(config_parse(cfg, text, bytes, "yaml", 8 + n, (char *const *)with, &e), "%s: %s", file, e.msg);
    cr_assert(trial_trainer(t, cfg, stage, false, &e), "%s: %s", file, e.msg);
    model_init(&t->model, 3);
    if (t->lora.n) lora_begin(&t->lora, 3);
    t->run->state.step = t->first;
    free(text), free(key);
    return t;
}
static Trained train(const char *file, int stage, int steps, const char *graph, int n, const char *const over[]) {
    Trained out = {0};
    Config cfg;
    Err e = {0};
    TrainRecord r;
    Trainer *t = begin(&cfg, file, stage, graph, n, over);
    for (int k = 0; k < steps; k++) {
        unsigned long before = cuda_waits(t->dev->cuda);
        cr_assert(trainer_step(t, &r, &e), "%s: %s", file, e.msg);
        out.waits[k] = cuda_waits(t->dev->cuda) - before;
        out.loss[k] = r.loss, out.norm[k] = r.grad_norm, out.cr[k] = r.reports ? r.cr : 0;
    }
    keep_all(&out, t);
    out.replayed = graphs_replayed(capture_graphs(t->stepper));
    out.apart = t->stepper->on_device;
    trial_trainer_close(t);
    config_free(&cfg);
    free(t);
    return out;
}
/* most: whether forward and backward are replayed, too. */
static void same_stage(const char *file, int stage, int steps, bool most, int n, const char *const over[]) {
    Trained plain = train(file, stage, steps, "off", n, over), graph = train(file, stage, steps, "auto", n, over);
    CHECK_BYTES(file, graph.loss, plain.loss, sizeof plain.loss);
    CHECK_BYTES(file, graph.norm, plain.norm, sizeof plain.norm);
    CHECK_BYTES(file, graph.cr, plain.cr, sizeof plain.cr);
    cr_assert(graph.n == plain.n && plain.n > 1000);
    CHECK_BYTES(file, graph.bytes, plain.bytes, plain.n);
    /* Of each kind of work the first two are not. */
    long want = (graph.apart ? 2 : 3) * (steps - 2) + (most ? 2 * steps - 2 : 0);
    cr_assert(plain.replayed == 0 && graph.replayed == want, "%s: %ld replayed of %ld", file, graph.replayed, want);
    free(plain.bytes), free(graph.bytes);
}
static void same(const char *name, int n, const char *const over[]) {
    char *file = xformat("configs/tiny-%s.yaml", name);
    same_stage(file, 0, 4, strcmp(name, "moe") != 0, n, over);
    free(file);
}
#define SAME(title, ...)                                                                   \
    Test(cuda_graph, title, .timeout = 300) {                                              \
        static const char *const names[] = {__VA_ARGS__};                                  \
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) same(names[i], 0, NULL); \
    }
SAME(attention, "gqa", "mha", "window", "share")
SAME(latent_and_shared_rows, "mla", "yoco", "qknorm")
SAME(other_blocks, "gpt2", "neox", "blend")
SAME(delta_rules, "kda", "gdn", "deltanet")
SAME(recurrences, "gla", "retention", "gated_retention")
SAME(lines_and_steps, "linear", "mamba2")
Test(cuda_graph, tasks, .timeout = 300) {
    static const char *const over[] = {"data.seq_len=16"};
    same("mqar", 1, over);
}
/* The host decides about rows in the middle of a pass, by its numbers: those passes are done as they come. */
SAME(experts, "moe")
/* Noise, factors that fall from step to step, a sum that the host asks for in the middle of the pass. */
Test(cuda_graph, decisions, .timeout = 300) {
    for (int stage = 0; stage < 2; stage++) same_stage("configs/tiny-dmc.yaml", stage, 4, true, 0, NULL);
    same("dms", 0, NULL);
}
Test(cuda_graph, muon_dropout_bf16_moments_recomputation, .timeout = 300) {
    static const char *const over[] = {"optim.state_dtype=bf16", "train.dropout=0.1", "train.recompute=1",
                                       "optim.clip=0.1"};
    same("muon", 4, over);
}
Test(cuda_graph, other_optimizers, .timeout = 300) {
    static const char *const lion[] = {"optim.kind=lion", "optim.state_dtype=bf16"}, *const free_[] = {
                                                                                         "optim.kind=schedule_free",
                                                                                         "optim.schedule=constant"};
    same("gqa", 2, lion);
    same("gqa", 2, free_);
}
Test(cuda_graph, products_in_bf16, .timeout = 300) {
    static const char *const over[] = {"train.dtype=bf16", "model.d_model=64"};
    same("gqa", 2, over);
}
/* The rows at which a level's blocks begin are other ones in every step. */
Test(cuda_graph, levels, .timeout = 300) {
    static const char *const over[] = {"model.kinds.line.levels=3", "data.seq_len=16", "train.batch=2",
                                       "train.micro_batch=1"},
                             *const kda[] = {"model.kinds.kda.levels=3", "data.seq_len=16", "train.batch=2",
                                             "train.micro_batch=1"};
    same("gdn", 4, over);
    same("kda", 4, kda);
}
/* By chunks, of rows where they lie. */
Test(cuda_graph, recurrences_in_bf16, .timeout = 300) {
    static const char *const over[] = {"train.dtype=bf16", "data.seq_len=72", "train.batch=2", "train.micro_batch=1"};
    same("kda", 4, over);
    same("mamba2", 4, over);
}

/* A step waits once, for the losses of all micro-batches, which are read by one copy behind everything else, however
 * many there are, recorded or not; where the host decides about it, for the norm before. The losses are those of a
 * micro-batch of all samples but for the order of sums, and each one's own rows: none is another's. */
Test(cuda_graph, a_step_waits_once, .timeout = 300) {
    enum { SAMPLES = 5, STEPS = 4 };
    static const char *const over[] = {"train.batch=5", "train.micro_batch=1", "train.skip_z=1000"},
                             *const whole[] = {"train.batch=5", "train.micro_batch=5"}, *const how[] = {"off", "auto"};
    Trained one = train("configs/tiny-gqa.yaml", 0, STEPS, "off", 2, whole);
    for (int k = 0; k < 4; k++) {
        const unsigned long waits = k < 2 ? 1 : 2;
        Trained many = train("configs/tiny-gqa.yaml", 0, STEPS, how[k % 2], k < 2 ? 2 : 3, over);
        cr_assert(many.apart == (k < 2));
        for (int i = 0; i < STEPS; i++)
            cr_assert(many.waits[i] == waits && one.waits[i] == 1, "step %d: %lu and %lu waits, graphs %s", i,
                      many.waits[i], one.waits[i], how[k % 2]);
        CHECK_RELATIVE("loss", many.loss, one.loss, STEPS, 1e-5);
        CHECK_RELATIVE("norm", many.norm, one.norm, STEPS, 1e-4);
        free(many.bytes);
    }
    free(one.bytes);
}
/* Clipped on the device or by the host: the same bits, adapters and moments in bf16 included. */
Test(cuda_graph, clipped_there_as_here, .timeout = 300) {
    static const char *const files[] = {"configs/tiny-gqa.yaml", "configs/tiny-moe.yaml", "configs/tiny-gqa.yaml",
                                        "configs/tiny-gqa.yaml"};
    static const char *const over[][4] = {
        {"optim.clip=0.1", "optim.state_dtype=bf16", "optim.lr=1e-3", "train.skip_z=1000"},
        {"optim.clip=0", "optim.balance_rate=0.01", "optim.lr=1e-3", "train.skip_z=1000"},
        {"optim.clip=1000", "optim.lr=1e-2", "optim.state_dtype=f32", "train.skip_z=1000"},
        {"optim.clip=0.1", "lora.rank=2", "lora.alpha=6", "train.skip_z=1000"}};
    for (int k = 0; k < 4; k++) {
        Trained there = train(files[k], 0, 4, "auto", 3, over[k]), here = train(files[k], 0, 4, "auto", 4, over[k]);
        cr_assert(there.apart && !here.apart && there.n == here.n && there.n > 1000);
        CHECK_BYTES(files[k], there.norm, here.norm, sizeof here.norm);
        CHECK_BYTES(files[k], there.bytes, here.bytes, here.n);
        free(there.bytes), free(here.bytes);
    }
}
/* A gradient that is not finite is found behind the step, which has then changed nothing. */
Test(cuda_graph, a_step_that_diverges_leaves_weights, .timeout = 300) {
    for (int k = 0; k < 2; k++) {
        Config cfg;
        Err e = {0};
        TrainRecord r;
        Trainer *t = begin(&cfg, "configs/tiny-gqa.yaml", 0, k ? "auto" : "off", 0, NULL);
        cr_assert(t->stepper->on_device);
        for (int i = 0; i < 3; i++) cr_assert(trainer_step(t, &r, &e), "%s", e.msg);
        const float wild = INFINITY;
        Tensor norm = t->model.w.norm;
        Trained before = {0}, after = {0};
        device_write(t->dev, norm.p, &wild, sizeof wild);
        keep_all(&before, t);
        cr_assert(!trainer_step(t, &r, &e) && strstr(e.msg, "diverged at step 4"), "%s", e.msg);
        keep_all(&after, t);
        /* but for the gradients, which are among what is kept: they are the step's own */
        size_t at = 0;
        for (int i = 0; i < t->params.n; i++) {
            const Param *p = &t->params.p[i];
            for (int k = 0; k < PARAM_ROLES + STATES_MAX; k++) {
                size_t n = tensor_bytes(k < PARAM_ROLES ? p->t[k] : p->state[k - PARAM_ROLES].t);
                if (k != PARAM_GRAD && n) CHECK_BYTES(p->name, after.bytes + at, before.bytes + at, n);
                at += n;
            }
        }
        cr_assert(at == before.n && at == after.n);
        free(before.bytes), free(after.bytes);
        trial_trainer_close(t);
        config_free(&cfg);
        free(t);
    }
}

/* Windows of conversations differ in length. Micro-batches of as many rows are one recording wherever their sequences
 * begin, which the device is told with the ids. */
Test(cuda_graph, packed_windows_share_recordings, .timeout = 300) {
    enum { CONVERSATIONS = 8, STEPS = 7 };
    char *chat = check_path("chat.jsonl"), *data = xformat("data.train=%s", chat), text[4000];
    size_t n = 0;
    for (int i = 0; i < CONVERSATIONS; i++) /* windows of two lengths, as no two conversations fit into one */
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "{\"messages\":[{\"role\":\"user\",\"content\":\"%c\"},"
                              "{\"role\":\"assistant\",\"content\":\"%s\"}]}\n",
                              'a' + i, i % 2 ? "yes, certainly" : "indeed");
    check_write(chat, text, n);
    const char *over[] = {data,
                          "data.sft.template=plain",
                          "data.val_fraction=0",
                          "data.seq_len=32",
                          "train.batch=2",
                          "train.micro_batch=2",
                          "model.d_model=16",
                          "model.layers=1"};
    Trained got[2] = {0};
    int orders = 0, keys = 0, again = 0; /* in which two lengths stand; their sums, that came before */
    for (int k = 0; k < 2; k++) {
        Config cfg;
        Err e = {0};
        TrainRecord r;
        Trainer *t = begin(&cfg, "configs/tiny-sft.yaml", 0, k ? "auto" : "off", 8, over);
        for (int i = 0, seen[65] = {0}; i < STEPS; i++) {
            const Batch *b = &t->loader.batch;
            cr_assert(trainer_step(t, &r, &e), "%s", e.msg);
            cr_assert(b->B == 2);
            int first = b->off[1], second = b->N - first;
            keys += k && !seen[b->N], again += k && seen[b->N]++ >= 2;
            orders |= first == second ? 0 : first < second ? 1 : 2;
        }
        keep_all(&got[k], t);
        if (k) {
            long begun = graphs_begun(capture_graphs(t->stepper)),
                 replayed = graphs_replayed(capture_graphs(t->stepper));
            cr_assert(orders == 3 && keys >= 2 && again > 0, "orders %d, %d sums of lengths, %d again", orders, keys,
                      again);
            cr_assert(begun == 2 + keys && replayed == again + 2 * (STEPS - 2), "%ld begun, %ld replayed", begun,
                      replayed);
        }
        trial_trainer_close(t);
        config_free(&cfg);
        free(t);
    }
    cr_assert(got[0].n == got[1].n && got[0].n > 1000);
    CHECK_BYTES("weights", got[1].bytes, got[0].bytes, got[0].n);
    free(got[0].bytes), free(got[1].bytes), free(chat), free(data);
}
/* Passes that never come again have no memory on the device, and leave the recordings of others where they are. */
typedef struct {
    Device *dev;
    real *x;
    int n;
} Adding;
static void adding(void *ctx) {
    const Adding *a = ctx;
    real one[64] = {1};
    device_write(a->dev, a->x, one, (size_t)a->n * sizeof *one);
    cuda_axpby(a->dev->cuda, (size_t)a->n, a->x + 64, 1, a->x, 1);
}
Test(cuda_graph, passes_that_come_once_take_nothing, .timeout = 60) {
    enum { STEPS = 40 };
    Err e = {0};
    Adding a = {.n = 1};
    Arena mem;
    real sum;
    cr_assert(device_open(&a.dev, "cuda", 1, &e), "%s", e.msg);
    cr_assert(arena_open_at(&mem, device_memory(a.dev, false), "numbers", 4096, true, &e), "%s", e.msg);
    a.x = arena_take(&mem, 128 * sizeof *a.x, "numbers");
    device_zero(a.dev, a.x + 64, 64 * sizeof *a.x);
    Graphs *g = graphs_open(a.dev);
    for (int i = 0; i < STEPS; i++) {
        a.n = 1;
        graphs_run(g, 1, adding, &a);
        for (int k = 0; k < 14; k++) { /* more than are kept */
            unsigned long before = cuda_waits(a.dev->cuda);
            a.n = 2 + k;
            graphs_run(g, (uint64_t)(100 + 14 * i + k), adding, &a);
            cr_assert(cuda_waits(a.dev->cuda) == before, "a pass that came once makes the host wait");
        }
    }
    cr_assert(graphs_replayed(g) == STEPS - 2 && graphs_begun(g) == 1 + 14 * STEPS, "%ld replayed, %ld begun",
              graphs_replayed(g), graphs_begun(g));
    device_read(a.dev, &sum, a.x + 64, sizeof sum);
    cr_assert(sum == 15 * STEPS, "%g", (double)sum);
    graphs_close(g);
    arena_close(&mem);
    device_close(a.dev);
}
/* A run that is interrupted goes on from its checkpoint as one that never recorded anything. */
static void run_of(const char *dir, const char *graph, const char *steps, bool resume) {
    char *at = xformat("run.dir=%s", dir), *how = xformat("run.graph=%s", graph),
         *many = xformat("train.steps=%s", steps);
    Ran r = RUN("train", "configs/tiny-gqa.yaml", "--device", "cuda", "--threads", "1", "data.seq_len=16",
                "train.batch=2", "train.micro_batch=1", "train.eval_every=3", "train.eval_tokens=32",
                "train.save_every=3", "train.dtype=f32", "train.dropout=0.1", "optim.warmup=2",
                "optim.schedule_steps=6", at, how, many, resume ? "--resume" : "--threads", resume ? "auto" : "1");
    cr_assert(r.status == 0, "%d: %s", r.status, r.err);
    const char *said = !strcmp(graph, "off") ? "kernels are launched one by one: run.graph is off\n"
                                             : "steps are replayed as CUDA graphs\n";
    char *all = xformat("%s%s", r.out, r.err);
    const char *at_said = strstr(all, said);
    cr_assert(at_said && !strstr(at_said + 1, said), "%s", all);
    free(all);
    free(r.out), free(r.err), free(at), free(how), free(many);
}
Test(cuda_graph, resumed_in_the_middle, .timeout = 300) {
    static const char *const files[] = {"model.safetensors", "trainer/optimizer.safetensors"};
    char *one = check_path("plain"), *two = check_path("graph");
    run_of(one, "off", "6", false);
    run_of(two, "auto", "3", false);
    run_of(two, "auto", "6", true);
    for (int f = 0; f < 2; f++) {
        size_t na, nb;
        char *a = xformat("%s/last/%s", one, files[f]), *b = xformat("%s/last/%s", two, files[f]),
             *x = check_read(a, &na), *y = check_read(b, &nb);
        cr_assert(na == nb && na > 1000);
        CHECK_BYTES(files[f], y, x, na);
        free(a), free(b), free(x), free(y);
    }
    /* Text of it, greedy and drawn: the CPU's, that of kernels launched one by one, and that of replays. */
    char *model = xformat("%s/last", two), *many = check_path("prompts.jsonl");
    const char *prompts = "{\"prompt\": \"In the\"}\n{\"prompt\": \"And\"}\n{\"prompt\": \"the LORD\"}\n";
    check_write(many, prompts, strlen(prompts));
    static const char *const how[][2] = {{"cpu", "auto"}, {"cuda", "off"}, {"cuda", "auto"}};
    static const char *const draw[][6] = {{"--temperature", "0", "--top-k", "0", "--repetition-penalty", "1"},
                                          {"--temperature", "1.2", "--top-k", "30", "--repetition-penalty", "1.1"},
                                          {"--temperature", "0.9", "--top-p", "0.9", "--min-p", "0.02"},
                                          {"--temperature", "1", "--min-p", "0.1", "--seed", "7"}};
    for (size_t d = 0; d < sizeof draw / sizeof *draw; d++) {
        Ran r[3];
        for (int k = 0; k < 3; k++) {
            r[k] = RUN("generate", model, "--device", how[k][0], "--graph", how[k][1], "--batch-file", many, "--batch",
                       "2", "--max-new", "7", "--threads", "1", "-q", draw[d][0], draw[d][1], draw[d][2], draw[d][3],
                       draw[d][4], draw[d][5]);
            cr_assert(r[k].status == 0 && *r[k].out, "%s", r[k].err);
            cr_assert(!strcmp(r[k].out, r[0].out), "%zu, %s %s: %s\nand\n%s", d, how[k][0], how[k][1], r[k].out,
                      r[0].out);
        }
        for (int k = 0; k < 3; k++) free(r[k].out), free(r[k].err);
    }
    CHECK_REFUSED(RUN("generate", model, "--graph", "on"), EXIT_INPUT, "--graph: expected auto or off, got 'on'");
    free(model), free(many), free(one), free(two);
}
