/* test_cuda_ranks.c: ranks with an emulated device each, over the emulated NCCL: what they compute, what is saved, and
 * what ends them. */
#include "tests/lib/check.h"
#include "ops/host.h"
#include "train/comm/comm_nccl.h"
#include "train/save/shards.h"
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

static const char yaml[] = "run: {dir: none, seed: 3, threads: 1}\n"
                           "model:\n"
                           "  d_model: 8\n"
                           "  layers: 2\n"
                           "  max_positions: 16\n"
                           "  kinds: {full: {mixer: gqa, heads: 2, kv_heads: 1, head_dim: 4}}\n"
                           "  ffn: {kind: swiglu, hidden: 12}\n"
                           "data: {train: '%s', val_fraction: 0.1, seq_len: 8}\n"
                           "train: {dtype: f32, steps: 3, batch: 2, micro_batch: 1, eval_every: 3, eval_tokens: 32, "
                           "save_every: 0, log_every: 1}\n"
                           "optim: {lr: 0.02, min_lr: 0.002, warmup: 2, clip: 0.5, weight_decay: 0.1, "
                           "schedule_steps: 50}\n"
                           "dist: {check_every: 2}\n";
static char *config_file(void) {
    char body[4000], *text = check_path("text.txt"), *p = check_path("run.yaml");
    for (size_t i = 0; i < sizeof body; i++) body[i] = "the cache keeps the keys\nand the values stay\n"[i % 45];
    check_write(text, body, sizeof body);
    char *all = xformat(yaml, text);
    check_write(p, all, strlen(all));
    free(all), free(text);
    return p;
}
enum { WORDS = 40 };
/* `ranks` of the program's `train` (0: without a launcher) into the folder `name`; NULL ends the words. */
static Ran train(const char *name, int ranks, const char *deadline, ...) {
    char *cfg = config_file(), *dir = check_path(name), *own = xformat("run.dir=%s", dir), n[8];
    const char *argv[WORDS] = {"kvsmith"};
    int k = 1;
    snprintf(n, sizeof n, "%d", ranks);
    if (ranks) {
        const char *launch[] = {"launch", "-n", n, "--deadline", deadline, "--"};
        for (size_t i = 0; i < sizeof launch / sizeof *launch; i++) argv[k++] = launch[i];
    }
    argv[k++] = "train";
    argv[k++] = cfg;
    argv[k++] = own;
    va_list more;
    va_start(more, deadline);
    for (const char *s; (s = va_arg(more, const char *));) {
        cr_assert(k < WORDS - 1);
        argv[k++] = s;
    }
    va_end(more);
    Ran r = check_run_argv(argv);
    free(cfg), free(dir), free(own);
    return r;
}
static char *good(Ran r) {
    cr_assert(r.status == 0, "%d: %s", r.status, r.err);
    free(r.err);
    return r.out;
}
static char *file_of(const char *name, const char *file) {
    char *dir = check_path(name), *p = xformat("%s/last/%s", dir, file);
    free(dir);
    return p;
}
/* Moments in files of as many ranks as there are. */
static void moments_of(Moments *m, const char *name) {
    char *file[8], *path = NULL;
    int n = 1;
    Err e = {0};
    for (; n <= 8; n++, free(path)) {
        char *shard = shard_name(0, n);
        path = file_of(name, shard);
        free(shard);
        if (check_exists(path)) break;
    }
    cr_assert_leq(n, 8, "%s has no moments", name);
    free(path);
    for (int k = 0; k < n; k++) {
        char *shard = shard_name(k, n);
        file[k] = file_of(name, shard);
        free(shard);
    }
    cr_assert(moments_open(m, name, file, n, &e), "%s", e.msg);
    for (int k = 0; k < n; k++) free(file[k]);
}
/* b's are whole. */
static void same_bytes(const char *a, const char *b) {
    char *pa = file_of(a, "model.safetensors"), *pb = file_of(b, "model.safetensors");
    size_t na, nb;
    char *x = check_read(pa, &na), *y = check_read(pb, &nb);
    cr_assert(na == nb, "%s: %zu bytes, %s: %zu", pa, na, pb, nb);
    CHECK_BYTES(pa, x, y, na);
    free(x), free(y), free(pa), free(pb);
    Moments ma, mb;
    Err e = {0};
    moments_of(&ma, a), moments_of(&mb, b);
    for (int i = 0; i < mb.st.n; i++) {
        const StEntry *s = &mb.st.entry[i];
        bool half = !strcmp(s->dtype, "BF16");
        int dim[RANK_MAX] = {0};
        for (int k = 0; k < s->rank; k++) dim[k] = (int)s->shape[k];
        void *got = xcalloc(s->bytes, 1);
        Tensor t = tensor_make(got, half ? BF16 : F32, s->rank, dim);
        cr_assert(moments_fit(&ma, "", s->name, t, &e) && moments_read(&ma, "", s->name, 0, t, &e), "%s", e.msg);
        CHECK_BYTES(s->name, got, s->p, s->bytes);
        free(got);
    }
    cr_assert(moments_all_used(&ma, &e), "%s", e.msg);
    moments_close(&ma), moments_close(&mb);
}
static void near(const char *a, const char *b, double tol) {
    char *pa = file_of(a, "model.safetensors"), *pb = file_of(b, "model.safetensors");
    size_t na, nb;
    char *x = check_read(pa, &na), *y = check_read(pb, &nb);
    uint64_t head;
    memcpy(&head, x, 8);
    cr_assert(na == nb && na > head + 8);
    size_t n = (na - 8 - head) / sizeof(float);
    memmove(x, x + 8 + head, n * sizeof(float)), memmove(y, y + 8 + head, n * sizeof(float));
    CHECK_RMS(pa, (float *)(void *)x, (float *)(void *)y, n, tol);
    free(x), free(y), free(pa), free(pb);
}

/* W ranks with a micro-batch each against one that does W and sends all to itself, bit for bit, at each stage; and that
 * against one that has no Comm, whose micro-batches add up where their gradients lie. */
#define MUON "optim.kind=muon", "optim.state_dtype=bf16"
Test(cuda_ranks, as_many_ranks_as_micro_batches_end_with_the_same_bytes, .timeout = 300) {
    free(good(train("plain", 0, "", "-q", "run.device=cuda", NULL)));
    free(good(train("one0", 0, "", "-q", "run.device=cuda", "dist.comm=nccl", NULL)));
    near("one0", "plain", 1e-5);
    for (int s = 0; s < 3; s++) {
        char name[16], stage[20];
        snprintf(name, sizeof name, "two%d", s);
        snprintf(stage, sizeof stage, "dist.stage=%d", s);
        char *said = good(train(name, 2, "60", "run.device=cuda", stage, NULL));
        cr_assert(strstr(said, "by nccl (NCCL 2.28.9, ") && strstr(said, "libnccl-emulated.so)"), "%s", said);
        free(said);
        same_bytes(name, "one0");
    }
}
Test(cuda_ranks, three_ranks_with_matrices_that_have_owners, .timeout = 300) {
    free(good(
        train("one", 0, "", "-q", "run.device=cuda", "dist.comm=nccl", "train.batch=3", MUON, "dist.stage=1", NULL)));
    free(good(train("three", 3, "60", "-q", "run.device=cuda", "train.batch=3", MUON, "dist.stage=2", NULL)));
    same_bytes("three", "one");
}
/* Two micro-batches a rank, and the CPU's ranks beside them, with gradients that travel in half. */
Test(cuda_ranks, gradients_in_bf16_are_the_cpus, .timeout = 300) {
    static const char *const stages[] = {"dist.stage=0", "dist.stage=2"};
    for (int k = 0; k < 2; k++) {
        char a[16], b[16];
        snprintf(a, sizeof a, "cpu%d", k), snprintf(b, sizeof b, "cuda%d", k);
        free(good(train(a, 2, "60", "-q", "train.batch=4", "dist.reduce=bf16", stages[k], NULL)));
        free(good(train(b, 2, "60", "-q", "run.device=cuda", "train.batch=4", "dist.reduce=bf16", stages[k], NULL)));
        near(b, a, 2e-4);
    }
}
Test(cuda_ranks, saved_on_two_resumed_on_one_and_back, .timeout = 300) {
    free(good(train("all", 0, "", "-q", "run.device=cuda", "dist.comm=nccl", "train.steps=4", NULL)));
    free(good(train("run", 2, "60", "-q", "run.device=cuda", "dist.stage=2", "train.async_save=true", "train.steps=2",
                    NULL)));
    free(good(train("run", 0, "", "-q", "run.device=cuda", "train.steps=3", "--resume", "auto", NULL)));
    free(good(
        train("run", 2, "60", "-q", "run.device=cuda", "dist.stage=1", "train.steps=4", "--resume", "auto", NULL)));
    near("run", "all", 1e-5);
    free(good(train("cpu", 2, "60", "-q", "dist.stage=1", "train.steps=2", NULL)));
    free(good(
        train("cpu", 2, "60", "-q", "run.device=cuda", "dist.stage=2", "train.steps=4", "--resume", "auto", NULL)));
    near("cpu", "all", 1e-4);
}

/* What a rank maps is what --plan says of it. Of the scratch a pass may use less than was measured: ids that it has
 * been given once are not copied again by an op. */
Test(cuda_ranks, memory_is_as_planned, .timeout = 120) {
    char *plan =
             good(train("plan", 0, "", "run.device=cuda", "dist.stage=2", "--plan", "--ranks", "2", "--json", NULL)),
         *run = good(train("plan", 2, "60", "run.device=cuda", "dist.stage=2", "train.steps=1", "--json", NULL));
    json_t *p = json_loads(plan, 0, NULL), *r = json_loads(run, 0, NULL);
    const char *key;
    json_t *want, *planned = json_object_get(p, "memory"), *had = json_object_get(r, "memory");
    cr_assert(json_object_size(planned) > 8 && json_object_size(planned) == json_object_size(had), "%s\n%s", plan, run);
    json_object_foreach(planned, key, want) {
        double used = json_number_value(json_object_get(had, key)), most = json_number_value(want);
        bool less = !strcmp(key, "scratch") || !strcmp(key, "total");
        cr_assert(less ? used <= most && used > 0.9 * most : used == most, "%s: planned %s\n%s", key, plan, run);
    }
    cr_assert(json_equal(json_object_get(planned, "total"), json_object_get(r, "memory_mapped")), "%s\n%s", plan, run);
    cr_assert(json_object_get(planned, "losses_and_norms"));
    json_decref(p), json_decref(r), free(plan), free(run);
}

/* By files in place of a socket; nothing is left of them. */
Test(cuda_ranks, ranks_meet_by_a_file, .timeout = 120) {
    char *at = check_path("meeting"), *store = xformat("dist.store=%s", at), *first = xformat("%s.1", at);
    check_write(at, "left by somebody", 16);
    check_write(first, "kvsmfile", 8);
    free(good(train("run", 2, "60", "-q", "run.device=cuda", "train.steps=1", store, NULL)));
    cr_assert(!check_exists(at) && !check_exists(first));
    free(at), free(store), free(first);
}

/* Ranks as torchrun starts them on two hosts, the second with the device `local`; status of rank 0, both outputs. */
static Ran two_hosts(const char *local, const char *address) {
    char *cfg = config_file(), *dir = check_path("hosts");
    const char *program = getenv("KVSMITH");
    char *line =
        xformat("k='%s train %s run.dir=%s run.device=cuda train.steps=1 dist.deadline=20'; export WORLD_SIZE=2 %s "
                "MASTER_PORT=%d; RANK=1 LOCAL_RANK=%s $k & RANK=0 LOCAL_RANK=0 $k; s=$?; wait; exit $s",
                program ? program : "build/simt/kvsmith", cfg, dir, address, 20000 + (int)(getpid() % 20000), local);
    Ran r = check_run_argv((const char *const[]){"sh", "-c", line, NULL});
    free(cfg), free(dir), free(line);
    return r;
}
Test(cuda_ranks, hosts_meet_by_an_address, .timeout = 120) {
    Ran r = two_hosts("1", "MASTER_ADDR=127.0.0.1");
    cr_assert(r.status == 0 && strstr(r.out, "rank 0 of 2 (RANK, WORLD_SIZE of torchrun), by nccl ("), "%s%s", r.out,
              r.err);
    free(r.out), free(r.err);
    r = two_hosts("1", "x=y");
    cr_assert(r.status == EXIT_INPUT &&
                  strstr(r.err, "need a rendezvous: set MASTER_ADDR and MASTER_PORT, or dist.store"),
              "%s", r.err);
    free(r.out), free(r.err);
    r = two_hosts("0", "MASTER_ADDR=127.0.0.1");
    cr_assert(r.status == EXIT_RUNTIME && strstr(r.err, "(call 0): NCCL: invalid usage: two ranks have one device"),
              "%s", r.err);
    free(r.out), free(r.err);
}

/* ---- failures -------------------------------------------------------------------------------------------------------
 */
static void broken(const char *fault, const char *says, const char *rank1) {
    setenv("SIMT_NCCL_FAULT", fault, 1);
    double begun = now_seconds();
    Ran r = train("run", 3, "4", "-q", "run.device=cuda", "train.batch=3", "train.save_every=1", "dist.stage=1", NULL);
    double took = now_seconds() - begun;
    unsetenv("SIMT_NCCL_FAULT");
    cr_assert(r.status == EXIT_RUNTIME && took < 60 * check_slow(), "%s: status %d after %g s: %s", fault, r.status,
              took, r.err);
    char *zero = strstr(r.err, "kvsmith: rank 0 on "), *two = strstr(r.err, "[rank 2] kvsmith: rank 2 on ");
    cr_assert(zero && two && strstr(zero, says) && strstr(two, says), "%s: %s", fault, r.err);
    cr_assert(strstr(zero, "(call ") && strstr(r.err, rank1), "%s: %s", fault, r.err);
    for (char *s = r.err, *end; (end = strchr(s, '\n')); s = end + 1)
        cr_assert(end - s <= 320, "%s: a line of %td characters: %s", fault, end - s, r.err);
    free(r.out), free(r.err);
    char *dir = check_path("run"), *rm = xformat("rm -rf '%s'", dir);
    cr_assert_eq(system(rm), 0);
    free(dir), free(rm);
}
#define LATE    "did not finish within 4 s"
#define EVICTED "NCCL: remote process exited"
Test(cuda_ranks, a_rank_that_fails_ends_the_others, .timeout = 300) {
    broken("error:1:30", EVICTED, "rank 1 on ");
    broken("die:1:60", EVICTED, "rank 1 was killed by signal 9");
    broken("die:1:0", LATE, "rank 1 was killed by signal 9");
}
Test(cuda_ranks, a_rank_that_hangs_ends_the_others, .timeout = 300) {
    broken("hang:1:45", LATE, "[rank 1] kvsmith: rank 1 on ");
    broken("stop:1:45", LATE, "rank 1 (process ");
    broken("hang:1:0", LATE, "barrier 'start of NCCL' (call 0): " LATE);
}
/* Whoever is stuck inside of the library is ended by its own watch. */
Test(cuda_ranks, a_library_that_does_not_return, .timeout = 120) {
    setenv("SIMT_NCCL_FAULT", "stuck:0:20", 1);
    Ran r = train("run", 0, "", "-q", "run.device=cuda", "dist.comm=nccl", "dist.deadline=1", NULL);
    unsetenv("SIMT_NCCL_FAULT");
    cr_assert(r.status == EXIT_RUNTIME && strstr(r.err, "(call 20): did not finish within 4 s, and this rank is stuck"),
              "%d %s", r.status, r.err);
    free(r.out), free(r.err);
}
/* After a failure the launcher begins again from the newest checkpoint. */
Test(cuda_ranks, a_restart_goes_on_from_the_checkpoint, .timeout = 300) {
    free(good(train("all", 2, "60", "-q", "run.device=cuda", "train.steps=4", NULL)));
    char *cfg = config_file(), *dir = check_path("run"), *own = xformat("run.dir=%s", dir);
    setenv("SIMT_NCCL_FAULT", "die:1:40", 1); /* fewer calls are left to the last start */
    Ran r = RUN("launch", "-n", "2", "--deadline", "10", "--max-restarts", "3", "--", "train", cfg, own, "-q",
                "run.device=cuda", "train.steps=4", "train.save_every=1");
    unsetenv("SIMT_NCCL_FAULT");
    cr_assert(r.status == 0 && strstr(r.err, "restart 1 of 3"), "%d %s", r.status, r.err);
    free(r.out), free(r.err), free(cfg), free(dir), free(own);
    same_bytes("run", "all");
}

/* Of several ranks each may say it. */
static void refused(Ran r, int status, const char *part) {
    cr_assert(r.status == status && strstr(r.err, part), "%d %s", r.status, r.err);
    free(r.out), free(r.err);
}
Test(cuda_ranks, what_cannot_be_is_said, .timeout = 120) {
    refused(train("run", 2, "20", "-q", "dist.comm=nccl", NULL), EXIT_INPUT,
            "dist.comm: nccl needs one GPU per rank: set run.device=cuda");
    CHECK_REFUSED(train("run", 0, "", "-q", "dist.comm=nccl", NULL), EXIT_INPUT, "set run.device=cuda");
    refused(train("run", 2, "20", "-q", "run.device=cuda", "dist.comm=shm", NULL), EXIT_INPUT,
            "dist.comm: shm sends from host memory");
    setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
    refused(train("run", 3, "20", "-q", "run.device=cuda", "train.batch=3", NULL), EXIT_RUNTIME,
            "device cuda: 3 ranks on this host, but this rank sees 2 GPUs; each rank uses the GPU with its index");
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    CHECK_REFUSED(train("run", 0, "", "-q", "run.device=cuda", "dist.comm=nccl", NULL), EXIT_RUNTIME,
                  "device cuda: no device: no CUDA-capable device is detected");
    unsetenv("CUDA_VISIBLE_DEVICES");
    char *dir = check_path("run");
    cr_assert(!check_exists(dir), "a run that did not begin left its folder");
    /* The program without its library. */
    char *alone = check_path("kvsmith"), *cfg = config_file(), *own = xformat("run.dir=%s", dir);
    const char *program = getenv("KVSMITH");
    char *cp = xformat("cp '%s' '%s'", program ? program : "build/simt/kvsmith", alone);
    cr_assert_eq(system(cp), 0);
    CHECK_REFUSED(check_run_argv(
                      (const char *const[]){alone, "train", cfg, own, "-q", "run.device=cuda", "dist.comm=nccl", NULL}),
                  EXIT_RUNTIME, "NCCL: libnccl-emulated.so was not found next to kvsmith");
    cr_assert(!check_exists(dir));
    free(alone), free(cfg), free(own), free(cp), free(dir);
}

/* In this process, a rank alone: what travels is nobody's until the wait, what was computed before goes along, and two
 * calls may be under way. */
Test(cuda_ranks, what_travels_is_not_there_before_the_wait, .timeout = 60) {
    enum { N = 300, TIMES = 40 };
    Comm *c = NULL;
    Device *dev = NULL;
    Err e = {0};
    CommNcclOpen o = {.world = 1, .locals = 1, .deadline = 20};
    cr_assert(comm_nccl_open(&o, &c, &e) && device_open(&dev, "cuda:0", 1, &e), "%s", e.msg);
    const Memory *m = device_memory(dev, false);
    float *x[3], host[N], back[N];
    for (int k = 0; k < 3; k++) cr_assert((x[k] = m->take(m, sizeof host)));
    int early = 0;
    for (int t = 0; t < TIMES; t++) {
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < N; i++) host[i] = (float)(t * 1000 + k * 300 + i);
            device_write(dev, x[k], host, sizeof host);
            CommCall call = {.kind = k % 2 ? COMM_GATHER : COMM_REDUCE,
                             .name = "numbers",
                             .buf = x[k],
                             .count = N,
                             .dtype = F32,
                             .at = dev};
            cr_assert(comm_start(c, call, &e), "%s", e.msg);
        }
        device_read(dev, back, x[2], sizeof back);
        early += !(back[N - 1] == host[N - 1]);
        cr_assert(comm_wait(c, &e), "%s", e.msg);
        for (int k = 0; k < 3; k++) {
            device_read(dev, back, x[k], sizeof back);
            for (int i = 0; i < N; i++)
                cr_assert(back[i] == (float)(t * 1000 + k * 300 + i), "time %d: number %d of %d is %g", t, i, k,
                          (double)back[i]);
        }
    }
    cr_assert(early > TIMES / 20, "of %d early reads %d saw it", TIMES, early);
    cr_assert_eq(c->calls, 3 * TIMES);
    for (int k = 0; k < 3; k++) m->give(m, x[k]);
    device_close(dev);
    comm_close(c);
}

/* Every collective on the devices' memory, several sizes, results checked by the program. */
Test(cuda_ranks, collectives_on_devices_are_right, .timeout = 120) {
    for (int n = 1; n <= 3; n++) {
        char ranks[4];
        snprintf(ranks, sizeof ranks, "%d", n);
        char *out = good(RUN("launch", "-n", ranks, "--", "bench", "comm", "--comm", "nccl", "--device", "cuda",
                             "--bytes", "70000", "--seconds", "0.001", "--json"));
        json_t *j = json_loads(out, 0, NULL);
        cr_assert(j && json_integer_value(json_object_get(j, "ranks")) == n &&
                      json_array_size(json_object_get(j, "results")) > 8,
                  "%s", out);
        json_decref(j), free(out);
    }
    CHECK_REFUSED(RUN("bench", "comm", "--comm", "nccl"), EXIT_INPUT, "set run.device=cuda");
}
