/* kvsmith bench comm: the collectives between the ranks that it is started as, against a copy of memory in the same
 * run. Every collective's result is checked before it is timed. */
#include "model/cli.h"
#include "train/dist/dist.h"
#include "ranks.h"
#include <jansson.h>
#include <unistd.h>

int cmd_bench_comm(int argc, char **argv);

enum {
    KEY_BYTES = 1000,
    KEY_SECONDS,
    KEY_LAUNCHER,
    KEY_COMM,
    KEY_DEADLINE,
    RUNS_MAX = 1000,
    RUNS_LEAST = 3,
    COPY_LEAST = 32 << 20,
    COPY_DEVICE = 1 << 20 /* --bytes gives a larger one */
};
typedef struct {
    size_t bytes;
    double seconds, deadline;
    RanksFrom from;
    CommBy by;
} Args;

static bool one_of(const char *arg, const char *option, int n, const char *(*name)(int), int *out, Err *e) {
    char list[160] = "";
    for (int i = 0; i < n; i++) {
        if (!strcmp(arg, name(i))) {
            *out = i;
            return true;
        }
        size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", name(i));
    }
    return err_input(e, "%s: expected one of %s, got '%.60s'", option, list, arg);
}
static const char *from_name(int i) { return ranks_from_name((RanksFrom)i); }
static const char *cmd_bench_comm_by_name(int i) { return comm_by_name((CommBy)i); }

static bool cmd_bench_comm_take(void *ctx, int key, const char *arg, Err *e) {
    Args *a = ctx;
    int64_t v = 0;
    int i = 0;
    switch (key) {
    case KEY_BYTES:
        if (!cli_int(arg, "--bytes", 4096, (int64_t)1 << 34, &v, e)) return false;
        a->bytes = (size_t)v;
        return true;
    case KEY_SECONDS: return cli_real(arg, "--seconds", 0.001, 600, &a->seconds, e);
    case KEY_DEADLINE: return cli_real(arg, "--deadline", 0.1, 1e6, &a->deadline, e);
    case KEY_LAUNCHER:
        if (!one_of(arg, "--launcher", NRANKS_FROM, from_name, &i, e)) return false;
        a->from = (RanksFrom)i;
        return true;
    case KEY_COMM:
        if (!one_of(arg, "--comm", NCOMM_BY, cmd_bench_comm_by_name, &i, e)) return false;
        a->by = (CommBy)i;
        return true;
    }
    return strcmp(arg, "comm") ? err_input(e, "bench comm: unexpected word '%.60s'", arg) : true;
}
static const struct argp_option options[] = {
    {"bytes", KEY_BYTES, "N", 0, "Largest buffer, in bytes (default 64 MiB)", 0},
    {"seconds", KEY_SECONDS, "S", 0, "Approximate time of each measurement (default 0.3)", 0},
    {"launcher", KEY_LAUNCHER, "NAME", 0,
     "Launcher that started the ranks: auto, launch, torchrun, slurm, openmpi, mpich (default auto)", 0},
    {"comm", KEY_COMM, "NAME", 0, "Transport: auto, shm, mpi, nccl (default auto; nccl needs --device cuda)", 0},
    {"deadline", KEY_DEADLINE, "S", 0, "Seconds that a rank waits for another (default: the launcher's, else 300)", 0},
    {0}};
static const CliSpec spec = {
    .args = "comm",
    .doc =
        "Measures the collectives between ranks: kvsmith launch -n N -- bench comm, or under mpirun, srun or torchrun. "
        "A rate is the bytes that each rank sends in a ring (2 (N-1)/N of the buffer for a sum), divided by the median "
        "time. The percentage compares it with a memory copy by all ranks at once in the same run, counting bytes "
        "read. With --device cuda, buffers are in each rank's GPU memory; a single rank needs --comm nccl.",
    .options = options,
    .take = cmd_bench_comm_take,
    .min_args = 0,
    .max_args = 1};
const CliSpec *bench_comm_spec(void);
const CliSpec *bench_comm_spec(void) { return &spec; }

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct {
    Comm *c;
    double seconds, copy; /* copy: bytes/s of a rank */
    Device *at;           /* whose memory buf and other are; NULL: the host's */
    float *buf, *other, *host;
    json_t *out;
    bool print;
} Bench;

/* The value at i with which rank r begins: small integers, so that sums are exact. */
static float cmd_bench_comm_value(int r, size_t i) { return (float)((i * 7 + (size_t)r * 13) % 1000); }

static void cmd_bench_comm_give(Bench *b, size_t n) {
    if (b->at) device_write(b->at, b->buf, b->host, n * sizeof *b->host);
}
static bool cmd_bench_comm_right(Bench *b, CommCall call, Err *e) {
    Comm *c = b->c;
    size_t parts = call.kind == COMM_GATHER || call.kind == COMM_REDUCE_SCATTER ? (size_t)c->world : 1;
    size_t n = call.count * parts;
    for (size_t i = 0; i < n; i++) b->host[i] = cmd_bench_comm_value(c->rank, i);
    cmd_bench_comm_give(b, n);
    if (!comm_do(c, call, e)) return false;
    if (b->at) device_read(b->at, b->host, b->buf, n * sizeof *b->host);
    bool sums = call.kind == COMM_REDUCE || call.kind == COMM_REDUCE_SCATTER;
    size_t from = call.kind == COMM_REDUCE_SCATTER ? (size_t)c->rank * call.count : 0;
    size_t to = call.kind == COMM_REDUCE_SCATTER ? from + call.count : n;
    for (size_t i = from; i < to; i++) {
        float want = 0;
        for (int r = 0; sums && r < c->world; r++) want += cmd_bench_comm_value(r, i);
        if (!sums) want = cmd_bench_comm_value(call.kind == COMM_GATHER ? (int)(i / call.count) : call.root, i);
        if (b->host[i] != want)
            return err_runtime(e, "rank %d: %s of %zu values: value %zu is %g, expected %g", c->rank,
                               comm_kind_name(call.kind), call.count, i, (double)b->host[i], (double)want);
    }
    return true;
}

/* Rank 0 decides the number of runs. */
static bool runs_for(Bench *b, double once, int *runs, Err *e) {
    double n = fmin(RUNS_MAX, fmax(RUNS_LEAST, b->seconds / fmax(once, 1e-9)));
    if (!comm_do(b->c, (CommCall){COMM_BROADCAST, "number of runs", &n, 1, F64, 0, NULL}, e)) return false;
    *runs = (int)n;
    return true;
}
static bool cmd_bench_comm_measure(Bench *b, CommCall call, size_t bytes, Err *e) {
    double t[RUNS_MAX];
    int runs = 1;
    if (!cmd_bench_comm_right(b, call, e)) return false;
    memset(b->host, 0, bytes);
    cmd_bench_comm_give(b, bytes / sizeof *b->host);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < runs; i++) {
            double begun = now_seconds();
            if (!comm_do(b->c, call, e)) return false;
            t[i] = now_seconds() - begun;
        }
        if (!pass && !runs_for(b, t[0], &runs, e)) return false;
    }
    qsort(t, (size_t)runs, sizeof *t, by_size);
    double median = t[runs / 2], rate = (double)comm_bytes(&call, b->c->world) / median;
    if (b->print)
        printf("%-15s %12zu %12.1f %9.3f %7.1f %%  (%d runs)\n", comm_kind_name(call.kind), bytes, median * 1e6,
               rate / 1e9, 100 * rate / b->copy, runs);
    json_array_append_new(b->out, json_pack("{s:s, s:I, s:f, s:i, s:f, s:f}", "collective", comm_kind_name(call.kind),
                                            "bytes", (json_int_t)bytes, "seconds", median, "runs", runs, "bytes_per_s",
                                            rate, "percent_of_copy", 100 * rate / b->copy));
    return true;
}

static bool measure_copy(Bench *b, size_t bytes, Err *e) {
    double t[RUNS_MAX];
    int runs = 1;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < runs; i++) {
            if (!comm_barrier(b->c, "copies", e)) return false;
            double begun = now_seconds();
            if (b->at) {
                device_copy(b->at, b->other, b->buf, bytes);
                device_sync(b->at);
            } else {
                memcpy(b->other, b->buf, bytes);
            }
            t[i] = now_seconds() - begun;
        }
        if (!pass && !runs_for(b, t[0], &runs, e)) return false;
    }
    qsort(t, (size_t)runs, sizeof *t, by_size);
    b->copy = (double)bytes / t[runs / 2];
    return true;
}

static bool measure_all(Bench *b, size_t most, Err *e) {
    static const CommKind kinds[] = {COMM_REDUCE, COMM_REDUCE_SCATTER, COMM_GATHER, COMM_BROADCAST};
    size_t W = (size_t)b->c->world;
    if (!measure_copy(b, zmax(most, b->at ? COPY_DEVICE : COPY_LEAST), e)) return false;
    if (b->print)
        printf("%d ranks by %s, %d on this host; a copy of memory by all ranks at once: %.3f GB/s each\n"
               "%-15s %12s %12s %9s %9s\n",
               b->c->world, b->c->ops->name, b->c->locals, b->copy / 1e9, "collective", "bytes", "us", "GB/s",
               "of a copy");
    for (size_t bytes = 4096; bytes <= most; bytes = bytes < most && bytes * 16 > most ? most : bytes * 16)
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            bool parts = kinds[i] == COMM_REDUCE_SCATTER || kinds[i] == COMM_GATHER;
            size_t n = bytes / sizeof(float) / (parts ? W : 1);
            CommCall call = {kinds[i], "bench", b->buf, n, F32, (int)W - 1, b->at};
            if (n && !cmd_bench_comm_measure(b, call, n * (parts ? W : 1) * sizeof(float), e)) return false;
        }
    return cmd_bench_comm_measure(b, (CommCall){.kind = COMM_BARRIER, .name = "bench", .dtype = F32}, 0, e);
}

static bool memory_open(Bench *b, size_t room, int local, bool device, Err *e) {
    char name[16];
    b->host = malloc(room);
    if (!device) {
        b->buf = b->host;
        b->other = malloc(room);
    } else {
        snprintf(name, sizeof name, "cuda:%d", local);
        if (!device_open(&b->at, name, 1, e)) return false;
        const Memory *m = device_memory(b->at, false);
        b->buf = m->take(m, room);
        b->other = m->take(m, room);
    }
    if (!b->host || !b->buf || !b->other)
        return err_runtime(e, "bench comm: no memory for two buffers of %zu bytes", room);
    memset(b->host, 0, room);
    cmd_bench_comm_give(b, room / sizeof *b->host);
    if (!device) memset(b->other, 0, room);
    return true;
}
static void memory_close(Bench *b) {
    const Memory *m = b->at ? device_memory(b->at, false) : NULL;
    free(b->host);
    if (m && b->buf) m->give(m, b->buf);
    if (m && b->other) m->give(m, b->other);
    if (!m) free(b->other);
    device_close(b->at);
}

static bool cmd_bench_comm_bench(const Args *a, const Cli *cli, const Ranks *r, Comm *c, Err *e) {
    Bench b = {.c = c, .seconds = a->seconds, .out = json_array(), .print = c->rank == 0 && !cli->json};
    char say[256];
    size_t room = zmax(a->bytes, c->device ? COPY_DEVICE : COPY_LEAST); /* out of the caches */
    bool ok = memory_open(&b, room, c->local, c->device, e);
    if (ok && b.print && !cli->quiet) printf("%s%s%s\n", ranks_say(r, say), *c->note ? ", " : "", c->note);
    ok = ok && dist_same(c, "a version of kvsmith", rng_name(0, KVSMITH_VERSION), e) && measure_all(&b, a->bytes, e) &&
         comm_barrier(c, "end", e);
    if (ok && cli->json && !c->rank) {
        json_t *j = json_pack("{s:s, s:i, s:i, s:s, s:f, s:o}", "comm", c->ops->name, "ranks", c->world, "local_ranks",
                              c->locals, "started_by", ranks_from_name(r->from), "copy_bytes_per_s", b.copy, "results",
                              json_incref(b.out));
        json_dumpf(j, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(j);
    }
    json_decref(b.out);
    memory_close(&b);
    return ok;
}

int cmd_bench_comm(int argc, char **argv) {
    Args a = {.bytes = (size_t)64 << 20, .seconds = 0.3};
    Cli cli;
    Err e = {0};
    Ranks r;
    Comm *c = NULL;
    int status = 0;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    bool ok = ranks_find(&r, a.from, environ, &e);
    bool device = cli.device && !strcmp(cli.device, "cuda");
    if (ok && r.world == 1 && a.by != COMM_NCCL)
        ok = err_input(&e, "bench comm: needs at least two ranks: kvsmith launch -n 2 -- bench comm");
    ok = ok &&
         ranks_open(
             &r,
             &(RanksHow){.by = a.by, .device = device, .deadline = a.deadline, .config = rng_name(0, KVSMITH_VERSION)},
             &c, &e) &&
         cmd_bench_comm_bench(&a, &cli, &r, c, &e);
    if (!ok) {
        status = cli_fail(&e);
        comm_stop(c);
    }
    comm_close(c);
    return status;
}
