/* The collectives between ranks that are threads: sums in order, faults, and what the lines say of them. */
#include "ops/tensor.h"
#include "train/comm/comm_threads.h"
#include "tests/lib/check.h"

enum { MOST = 8 };
typedef struct {
    float sum[MOST][1000], part[MOST][MOST * 125], all[MOST][MOST * 3], one[MOST][7];
    uint16_t half[MOST][100];
    double wide[MOST][5];
    uint64_t log[MOST], calls[MOST];
    size_t sent[MOST];
} Seen;
static float number(int rank, size_t i) { return (float)rng_normal(rng_mix(7, (uint64_t)rank), i); }

static bool every_kind(Comm *c, void *ctx, Err *e) {
    Seen *s = ctx;
    int r = c->rank, W = c->world;
    for (size_t i = 0; i < 1000; i++) s->sum[r][i] = number(r, i);
    for (size_t i = 0; i < (size_t)W * 125; i++) s->part[r][i] = number(r, i);
    for (size_t i = 0; i < 3; i++) s->all[r][(size_t)r * 3 + i] = number(r, i);
    for (size_t i = 0; i < 7; i++) s->one[r][i] = number(r, i);
    for (size_t i = 0; i < 100; i++) s->half[r][i] = bf16_from(number(r, i));
    for (size_t i = 0; i < 5; i++) s->wide[r][i] = (double)number(r, i) / 3;
    bool ok = comm_start(c, (CommCall){COMM_REDUCE, "sum", s->sum[r], 1000, F32, 0, NULL}, e) &&
              comm_start(c, (CommCall){COMM_REDUCE_SCATTER, "part", s->part[r], 125, F32, 0, NULL}, e) &&
              comm_wait(c, e) && comm_do(c, (CommCall){COMM_GATHER, "all", s->all[r], 3, F32, 0, NULL}, e) &&
              comm_do(c, (CommCall){COMM_BROADCAST, "one", s->one[r], 7, F32, W - 1, NULL}, e) &&
              comm_do(c, (CommCall){COMM_REDUCE, "half", s->half[r], 100, BF16, 0, NULL}, e) &&
              comm_do(c, (CommCall){COMM_REDUCE, "wide", s->wide[r], 5, F64, 0, NULL}, e) && comm_barrier(c, "end", e);
    s->log[r] = c->log;
    s->calls[r] = c->calls;
    s->sent[r] = c->sent;
    return ok;
}

Test(comm_threads, sums_are_in_the_order_of_ranks) {
    for (int W = 2; W <= MOST; W++) {
        Seen *s = xcalloc(1, sizeof *s);
        Err e[MOST];
        cr_assert(comm_threads_run(W, 20, NULL, 0, every_kind, s, e), "%s", e[0].msg);
        for (int r = 0; r < W; r++) {
            for (size_t i = 0; i < 1000; i++) {
                float x = number(0, i);
                for (int k = 1; k < W; k++) x += number(k, i);
                cr_assert_eq(memcmp(&s->sum[r][i], &x, 4), 0);
                if (i / 125 == (size_t)r) cr_assert_eq(memcmp(&s->part[r][i], &x, 4), 0);
            }
            for (size_t i = 0; i < (size_t)W * 3; i++) cr_assert_eq(s->all[r][i], number((int)i / 3, i % 3));
            for (size_t i = 0; i < 7; i++) cr_assert_eq(s->one[r][i], number(W - 1, i));
            for (size_t i = 0; i < 100; i++) {
                float x = 0;
                for (int k = 0; k < W; k++) x += bf16_to(bf16_from(number(k, i)));
                cr_assert_eq(s->half[r][i], bf16_from(x));
            }
            for (size_t i = 0; i < 5; i++) {
                double x = 0;
                for (int k = 0; k < W; k++) x += (double)number(k, i) / 3;
                cr_assert_eq(s->wide[r][i], x);
            }
            cr_assert_eq(s->log[r], s->log[0]);
            cr_assert_eq(s->calls[r], 7);
            size_t w = (size_t)W, ring = 2 * (w - 1) * 4000 / w + (w - 1) * 500 + (w - 1) * 12 + 28 +
                                         2 * (w - 1) * 200 / w + 2 * (w - 1) * 40 / w;
            cr_assert_eq(s->sent[r], ring, "%zu bytes, expected %zu", s->sent[r], ring);
        }
        free(s);
    }
}

Test(comm_threads, rounding_to_bf16) {
    cr_assert_eq(bf16_from(1.0f), 0x3F80);
    cr_assert_eq(bf16_from(1.00390625f), 0x3F80); /* half way: to even */
    cr_assert_eq(bf16_from(1.01171875f), 0x3F82);
    cr_assert_eq(bf16_from(INFINITY), 0x7F80);
    cr_assert(isnan(bf16_to(bf16_from(NAN))));
}

static bool ten(Comm *c, void *ctx, Err *e) {
    float x[4] = {1, 2, 3, 4};
    bool tell = *(bool *)ctx;
    for (int i = 0; i < 10; i++)
        if (!comm_do(c, (CommCall){COMM_REDUCE, i % 2 ? "odd" : "even", x, 4, F32, 0, NULL}, e)) {
            if (tell) comm_stop(c);
            return false;
        }
    return true;
}

Test(comm_threads, a_rank_that_is_late_is_waited_for) {
    Err e[3];
    CommFault late = {FAULT_DELAY, 1, 4, 0.15, 0};
    double begun = now_seconds();
    cr_assert(comm_threads_run(3, 20 * check_slow(), &late, 1, ten, &(bool){false}, e), "%s", e[0].msg);
    cr_assert_geq(now_seconds() - begun, 0.15);
}

Test(comm_threads, a_rank_that_is_gone_is_named_by_all_within_the_deadline) {
    for (CommFaultKind kind = FAULT_DIE; kind <= FAULT_HANG; kind++) {
        Err e[4];
        CommFault gone = {kind, 2, 5, 0, 0};
        double begun = now_seconds();
        cr_assert_not(comm_threads_run(4, check_slow(), &gone, 1, ten, &(bool){false}, e));
        double took = now_seconds() - begun;
        cr_assert(took >= 0.99 * check_slow() && took < 10 * check_slow(), "%g s", took);
        for (int r = 0; r < 4; r++) {
            cr_assert_eq(e[r].status, EXIT_RUNTIME);
            char who[96];
            snprintf(who, sizeof who, "rank %d on thread-%d: reduce \"even\" (call 5): rank 2 is missing", r, r);
            if (r != 2) cr_assert(strstr(e[r].msg, who), "%s", e[r].msg);
        }
        if (kind == FAULT_HANG) cr_assert(strstr(e[2].msg, "the others gave up on this rank"), "%s", e[2].msg);
    }
}

/* Whoever comes after that touches no buffer: the others' may be gone. */
static bool lends(Comm *c, void *ctx, Err *e) {
    double(*x)[2] = ctx;
    x[c->rank][0] = 1;
    bool ok = comm_do(c, (CommCall){COMM_REDUCE, "x", x[c->rank], 2, F64, 0, NULL}, e);
    if (!ok && c->rank != 1) x[c->rank][0] = 7; /* what it is used for next */
    return ok;
}
Test(comm_threads, who_was_given_up_touches_nothing) {
    Err e[3];
    double x[3][2] = {{0}};
    CommFault hang = {FAULT_HANG, 1, 1, 0, 0};
    cr_assert_not(comm_threads_run(3, 0.2, &hang, 1, lends, x, e));
    cr_assert(x[0][0] == 7 && x[1][0] == 1 && x[2][0] == 7, "%g %g %g", x[0][0], x[1][0], x[2][0]);
}

Test(comm_threads, a_rank_that_tells_is_not_waited_for) {
    Err e[4];
    CommFault gone = {FAULT_DIE, 2, 5, 0, 0};
    double begun = now_seconds();
    cr_assert_not(comm_threads_run(4, 60 * check_slow(), &gone, 1, ten, &(bool){true}, e));
    cr_assert_leq(now_seconds() - begun, 10 * check_slow());
    for (int r = 0; r < 4; r++)
        if (r != 2) cr_assert(strstr(e[r].msg, "rank 2 stopped with an error"), "%s", e[r].msg);
}

static bool two_names(Comm *c, void *ctx, Err *e) {
    float x[2] = {0};
    const CommCall *call = ctx;
    CommCall mine = call[c->rank == 1];
    mine.buf = x;
    return comm_do(c, mine, e);
}
Test(comm_threads, calls_that_differ_are_named) {
    static const CommCall base = {COMM_REDUCE, "layer 3", NULL, 2, F32, 0, NULL};
    const struct {
        CommCall other;
        const char *part;
    } cases[] = {
        {{COMM_REDUCE, "layer 4", NULL, 2, F32, 0, NULL}, "rank 1 reduce \"layer 4\""},
        {{COMM_BROADCAST, "layer 3", NULL, 2, F32, 0, NULL}, "rank 1 broadcast \"layer 3\""},
        {{COMM_REDUCE, "layer 3", NULL, 1, F32, 0, NULL}, "(call 1, 1 F32"},
        {{COMM_REDUCE, "layer 3", NULL, 2, BF16, 0, NULL}, "2 BF16"},
        {{COMM_REDUCE, "layer 3", NULL, 2, F32, 1, NULL}, "root 1)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Err e[3];
        CommCall both[2] = {base, cases[i].other};
        cr_assert_not(comm_threads_run(3, 20, NULL, 0, two_names, both, e));
        for (int r = 0; r < 3; r++) {
            cr_assert_eq(e[r].status, EXIT_RUNTIME);
            cr_assert(strstr(e[r].msg, "rank 0 calls reduce \"layer 3\"") && strstr(e[r].msg, cases[i].part), "%s",
                      e[r].msg);
        }
    }
}

static bool shares(Comm *c, void *ctx, Err *e) {
    double(*x)[2] = ctx;
    x[c->rank][0] = 1;
    return comm_do(c, (CommCall){COMM_REDUCE, "x", x[c->rank], 2, F64, 0, NULL}, e);
}
Test(comm_threads, a_flipped_bit_is_on_one_rank_alone) {
    Err e[3];
    double x[3][2] = {{0}};
    CommFault flip = {FAULT_CORRUPT, 1, 1, 0, 52};
    cr_assert(comm_threads_run(3, 20, &flip, 1, shares, x, e));
    cr_assert(x[0][0] == 3 && x[2][0] == 3 && x[1][0] != 3, "%g %g %g", x[0][0], x[1][0], x[2][0]);
}
