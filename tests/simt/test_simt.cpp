/* test_simt.cpp: right kernels compute what they should, in every order of threads, and nothing is said of them; each
 * planted mistake is found and named. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <csignal>
#include <cstdlib>
#include <vector>
#include "kernels.h"

enum { SEEDS = 6, N = 256 };
struct Place { /* a (256) = 1, 2, ..; out (256) */
    cudaStream_t q;
    float *a, *out;
    float host[N];
};
static void copy(void *to, const void *from, size_t n) {
    cr_assert(cudaMemcpy(to, from, n, cudaMemcpyDefault) == cudaSuccess);
}
static Place open_place(uint64_t seed) {
    Place p;
    simt_seed(seed);
    simt_sample(true);
    simt_collect(true);
    simt_forget();
    cr_assert(cudaStreamCreateWithFlags(&p.q, cudaStreamNonBlocking) == cudaSuccess);
    cr_assert(cudaMalloc(&p.a, sizeof p.host) == cudaSuccess && cudaMalloc(&p.out, sizeof p.host) == cudaSuccess);
    for (int i = 0; i < N; i++) p.host[i] = (float)(i + 1);
    copy(p.a, p.host, sizeof p.host);
    return p;
}
static void close_place(Place *p) {
    cudaStreamDestroy(p->q);
    cudaFree(p->a);
    cudaFree(p->out);
}
/* Waits; nothing may have been found. Brings n numbers of `out` here. */
static void finish(Place *p, int n) {
    const SimtReport *r;
    cudaStreamSynchronize(p->q);
    if (n) copy(p->host, p->out, (size_t)n * sizeof(float));
    int found = simt_reports(&r);
    cr_assert(found == 0, "kernel %s: %s", r->kernel, r->text);
}
#define EVERY_SEED(p)                             \
    for (uint64_t seed = 0; seed < SEEDS; seed++) \
        for (Place p = open_place(seed), *once = &p; once; close_place(&p), once = nullptr)
static bool near(float a, double b) { return std::fabs((double)a - b) <= 1e-6 * (1 + std::fabs(b)); }

/* ---- right ---- */
Test(simt, sums_by_shuffles_and_a_barrier) {
    EVERY_SEED(p) {
        kernel_sum_blocks(p.q, p.a, p.out, 2, 64, 128);
        finish(&p, 2);
        cr_assert(p.host[0] == 128 * 129 / 2 && p.host[1] == 256 * 257 / 2 - 128 * 129 / 2, "%g %g", p.host[0],
                  p.host[1]);
    }
}
Test(simt, sums_inside_warps) {
    EVERY_SEED(p) {
        kernel_sum_warps(p.q, p.a, p.out, 128);
        finish(&p, 4);
        for (int w = 0; w < 4; w++) cr_assert(p.host[w] == 32 * (32 * w + 16.5f), "warp %d: %g", w, p.host[w]);
    }
}
Test(simt, votes_and_atomics) {
    EVERY_SEED(p) {
        int n = 0;
        cudaMemset(p.out, 0, 4);
        kernel_count_above(p.q, p.a, (int *)p.out, 250, 100);
        finish(&p, 0);
        copy(&n, p.out, 4);
        cr_assert(n == 150, "%d", n);
    }
}
Test(simt, named_barriers) {
    EVERY_SEED(p) {
        kernel_hand_over(p.q, p.a, p.out, 4, 64);
        finish(&p, N);
        for (int i = 0; i < N; i++)
            cr_assert(p.host[i] == 2.0f * (float)(i / 64 * 64 + 64 - i % 64), "%d: %g", i, p.host[i]);
    }
}
Test(simt, asynchronous_copies) {
    EVERY_SEED(p) {
        kernel_pipeline(p.q, p.a, p.out, 2, 32);
        finish(&p, N);
        for (int i = 0; i < N; i++) cr_assert(p.host[i] == (float)(i + 1), "%d: %g", i, p.host[i]);
    }
}
static uint16_t half_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16); /* small whole numbers are exact */
}
Test(simt, matrices_of_bf16) {
    EVERY_SEED(p) {
        uint16_t A[256], B[128];
        float a[256], b[128];
        for (int i = 0; i < 256; i++) A[i] = half_of(a[i] = (float)((i * 37 + i / 16) % 19 - 9));
        for (int i = 0; i < 128; i++) B[i] = half_of(b[i] = (float)((i * 23 + i / 16) % 13 - 6));
        copy(p.a, A, sizeof A);
        copy(p.a + 128, B, sizeof B);
        kernel_product(p.q, p.a, p.a + 128, p.out);
        finish(&p, 128);
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                float s = 0;
                for (int k = 0; k < 16; k++) s += a[i * 16 + k] * b[j * 16 + k];
                cr_assert(p.host[i * 8 + j] == s, "(%d,%d): %g, want %g", i, j, p.host[i * 8 + j], s);
            }
    }
    cr_assert(simt_estimate("product")->mma == SEEDS);
}
Test(simt, matrices_of_tf32) {
    EVERY_SEED(p) {
        float a[128], b[64];
        for (int i = 0; i < 128; i++) a[i] = (float)((i * 37 + i / 8) % 19 - 9);
        for (int i = 0; i < 64; i++)
            b[i] = (float)((i * 23 + i / 8) % 13 - 6) + 1.0f / 8192; /* beyond tf32's 10 bits */
        copy(p.a, a, sizeof a);
        copy(p.a + 128, b, sizeof b);
        kernel_product_tf32(p.q, p.a, p.a + 128, p.out);
        finish(&p, 128);
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                float s = 0;
                for (int k = 0; k < 8; k++) {
                    float t = b[k * 8 + j];
                    uint32_t u;
                    memcpy(&u, &t, 4);
                    u &= 0xFFFFE000u;
                    memcpy(&t, &u, 4);
                    s += a[i * 8 + k] * t;
                }
                cr_assert(near(p.host[i * 8 + j], s), "(%d,%d): %g, want %g", i, j, p.host[i * 8 + j], s);
            }
    }
}
Test(simt, turned_matrices) {
    EVERY_SEED(p) {
        uint16_t A[64], one[64], two[64];
        for (int i = 0; i < 64; i++) A[i] = (uint16_t)(100 + i);
        copy(p.a, A, sizeof A);
        kernel_turn(p.q, p.a, (uint32_t *)p.out, (uint32_t *)p.out + 32);
        finish(&p, 0);
        copy(one, p.out, sizeof one);
        copy(two, p.out + 32, sizeof two);
        for (int i = 0; i < 64; i++)
            cr_assert(one[i] == 100 + i % 8 * 8 + i / 8 && two[i] == one[i], "%d: %d %d", i, one[i], two[i]);
    }
}
Test(simt, vector_accesses_and_templates) {
    EVERY_SEED(p) {
        kernel_scale_vec(p.q, p.a, N);
        finish(&p, 0);
        copy(p.host, p.a, sizeof p.host);
        for (int i = 0; i < N; i++) cr_assert(p.host[i] == 3 * (float)(i + 1));
    }
    /* 16 bytes a lane: one request of 512 bytes is 16 sectors, none to spare */
    const SimtEstimate *e = simt_estimate("scale_vec<3>");
    cr_assert(e && e->launches == SEEDS && e->read == SEEDS * 1024.0 && e->written == SEEDS * 1024.0);
    cr_assert(e->sectors == e->least_sectors && e->sectors == SEEDS * 64.0, "%g %g", e->sectors, e->least_sectors);
}

/* ---- wrong ---- */
struct Planted {
    const char *name;
    SimtFault fault;
    const char *says;   /* part of the text */
    long block, thread; /* of every seed; -1: depends on the order */
    long at;            /* offset; -1 likewise */
};
static const Planted planted[] = {
    {"race_shared", SIMT_RACE_SHARED, "of shared memory (256 bytes), which thread", 0, -1, -1},
    {"race_part", SIMT_RACE_SHARED, "nothing orders the two", 0, -1, -1},
    {"race_whole", SIMT_RACE_SHARED, "nothing orders the two", 0, -1, -1},
    {"race_reuse", SIMT_RACE_SHARED, "nothing orders the two", 0, -1, -1},
    {"race_warp", SIMT_RACE_SHARED, "nothing orders the two", 0, -1, -1},
    {"race_named", SIMT_RACE_SHARED, "nothing orders the two", 0, -1, -1},
    {"race_half", SIMT_RACE_GLOBAL, "writes 2 bytes at byte", 0, -1, -1},
    {"race_blocks", SIMT_RACE_GLOBAL, "byte 0 of an allocation (1024 bytes), which thread 0 of block", -1, 0, 0},
    {"race_atomic", SIMT_RACE_GLOBAL, "nothing orders the two", 0, -1, 0},
    {"diverge_sites", SIMT_DIVERGENT, "is at the barrier of", 0, -1, -1},
    {"diverge_exit", SIMT_DIVERGENT, "14 threads of the block have ended", 0, -1, -1},
    {"diverge_mask", SIMT_DIVERGENT, "which has ended", 0, -1, -1},
    {"diverge_lane", SIMT_DIVERGENT, "reads lane 20, not of its mask 0000ffff", 0, -1, -1},
    {"deadlock", SIMT_DEADLOCK, "waits for ever at the barrier", 0, 0, -1},
    {"outside_device", SIMT_OUTSIDE, "reads 4 bytes at byte 1024 of an allocation (1024 bytes): outside", 0, 0, 1024},
    {"outside_shared", SIMT_OUTSIDE, "byte 256 of shared memory (256 bytes): outside", 0, 63, 256},
    {"unwritten_device", SIMT_UNWRITTEN, "of an allocation (1024 bytes), which nobody has written", 0, -1, -1},
    {"unwritten_shared", SIMT_UNWRITTEN, "which nobody has written", 0, -1, -1},
    {"misaligned", SIMT_MISALIGNED, "reads 16 bytes at byte", 0, -1, -1},
    {"early", SIMT_EARLY, "reads 4 bytes", 0, -1, -1},
    {"early_group", SIMT_EARLY, "reads 4 bytes", 0, -1, -1},
    {"race_copies", SIMT_RACE_SHARED, "nothing orders the two", 0, -1, -1},
    {"early_exit", SIMT_EARLY, "ends with 1 cp.async", 0, -1, -1},
};
/* Every planted mistake, in every order of threads: found, and named by kernel, block, thread, address and source. */
Test(simt, planted_mistakes_are_found) {
    for (const Planted &m : planted)
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            Place p = open_place(seed);
            const SimtReport *r, *hit = nullptr;
            kernel_wrong(m.name, p.q, p.a, p.out);
            cudaStreamSynchronize(p.q);
            int n = simt_reports(&r);
            for (int i = 0; i < n; i++)
                if (r[i].fault == m.fault && strstr(r[i].text, m.says)) hit = &r[i];
            cr_assert(hit, "%s, seed %d: not found (%d other reports: %s)", m.name, (int)seed, n, n ? r->text : "");
            cr_assert(!strcmp(hit->kernel, m.name), "%s, seed %d: kernel %s", m.name, (int)seed, hit->kernel);
            cr_assert(m.block < 0 || (hit->block.x == (unsigned)m.block && !hit->block.y && !hit->block.z),
                      "%s: block %u", m.name, hit->block.x);
            cr_assert(m.thread < 0 || hit->thread.x == (unsigned)m.thread, "%s: thread %u", m.name, hit->thread.x);
            cr_assert(m.at < 0 || hit->at == (uintptr_t)m.at, "%s: at %zu", m.name, (size_t)hit->at);
            cr_assert(hit->times >= 1 && strstr(hit->text, "kernels.cu:"), "%s: no place in the source: %s", m.name,
                      hit->text);
            close_place(&p);
        }
}
/* Nothing else is said, but that a thread which comes too soon may find what nobody has written yet. */
Test(simt, planted_mistakes_are_told_apart) {
    for (const Planted &m : planted)
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            Place p = open_place(seed);
            const SimtReport *r;
            kernel_wrong(m.name, p.q, p.a, p.out);
            cudaStreamSynchronize(p.q);
            int n = simt_reports(&r);
            for (int i = 0; i < n; i++)
                cr_assert(r[i].fault == m.fault || (m.fault == SIMT_RACE_SHARED && r[i].fault == SIMT_UNWRITTEN),
                          "%s, seed %d: also: %s", m.name, (int)seed, r[i].text);
            close_place(&p);
        }
}
Test(simt, bank_conflicts_are_counted) {
    const int strides[] = {1, 2, 32, 33};
    const double waves[] = {1, 2, 32, 1};
    for (int i = 0; i < 4; i++) {
        Place p = open_place(0);
        const SimtEstimate *e = simt_estimate("banks");
        double was = e ? e->waves : 0, least = e ? e->least_waves : 0, sectors = e ? e->sectors : 0,
               packed = e ? e->least_sectors : 0;
        kernel_banks(p.q, p.a, p.out, strides[i]);
        finish(&p, 0);
        e = simt_estimate("banks");
        cr_assert(e->waves - was == 2 * waves[i] && e->least_waves - least == 2, "stride %d: %g of %g", strides[i],
                  e->waves - was, e->least_waves - least);
        /* 128 bytes read in 4 sectors; 32 numbers written to a sector each, where 4 would do */
        cr_assert(e->sectors - sectors == 36 && e->least_sectors - packed == 8, "%g %g", e->sectors - sectors,
                  e->least_sectors - packed);
        close_place(&p);
    }
}

/* ---- launching ---- */
Test(simt, launches_outside_of_the_limits) {
    Place p = open_place(0);
    const SimtReport *r;
    kernel_sum_warps(p.q, p.a, p.out, 2048);
    cr_assert(cudaGetLastError() == cudaErrorInvalidConfiguration && cudaGetLastError() == cudaSuccess);
    cr_assert(simt_reports(&r) == 1 && r->fault == SIMT_LAUNCH && strstr(r->text, "expected 1 to 1024"), "%s", r->text);
    simt_forget();
    kernel_banks(p.q, p.a, p.out, 1024); /* 128 KB without having asked for them */
    cr_assert(cudaGetLastError() == cudaErrorInvalidConfiguration);
    cr_assert(simt_reports(&r) == 1 && strstr(r->text, "131072 bytes of shared memory, allowed are 49152"), "%s",
              r->text);
    simt_forget();
    close_place(&p);
}

/* ---- the runtime ---- */
/* Work of two streams is in no order but that of events: over the seeds an order that was only hoped for fails. */
static bool two_streams(uint64_t seed, bool event) {
    Place p = open_place(seed);
    cudaStream_t other;
    cudaEvent_t e;
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    kernel_scale_vec(p.q, p.a, N);
    if (event) cudaEventRecord(e, p.q), cudaStreamWaitEvent(other, e);
    kernel_sum_blocks(other, p.a, p.out, 1, 64, N);
    cudaStreamSynchronize(other);
    cudaStreamSynchronize(p.q);
    copy(p.host, p.out, 4);
    cudaStreamDestroy(other);
    cudaEventDestroy(e);
    close_place(&p);
    return p.host[0] == 3 * 256 * 257 / 2;
}
Test(simt, streams_without_an_event_take_any_order) {
    int right = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        cr_assert(two_streams(seed, true), "seed %d: an event does not order", (int)seed);
        right += two_streams(seed, false);
    }
    cr_assert(right > 0 && right < 20, "without an event %d of 20 are right", right);
}
Test(simt, pinned_memory_is_read_when_the_copy_runs) {
    Place p = open_place(0);
    float *pinned, plain[4] = {1, 2, 3, 4}, got[8];
    cr_assert(cudaMallocHost(&pinned, sizeof plain) == cudaSuccess);
    memcpy(pinned, plain, sizeof plain);
    cudaMemcpyAsync(p.out, pinned, sizeof plain, cudaMemcpyHostToDevice, p.q);
    cudaMemcpyAsync(p.out + 4, plain, sizeof plain, cudaMemcpyHostToDevice, p.q);
    pinned[0] = plain[0] = 9; /* too early for the one, no matter for the other */
    cudaStreamSynchronize(p.q);
    copy(got, p.out, sizeof got);
    cr_assert(got[0] == 9 && got[4] == 1, "%g %g", got[0], got[4]);
    cudaFreeHost(pinned);
    close_place(&p);
}
static cudaGraphExec_t captured(Place *p, bool join) {
    cudaStream_t other;
    cudaEvent_t fork, back;
    cudaGraph_t g;
    cudaGraphExec_t x = nullptr;
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEventCreate(&fork), cudaEventCreate(&back);
    cr_assert(cudaStreamBeginCapture(p->q, cudaStreamCaptureModeGlobal) == cudaSuccess);
    kernel_scale_vec(p->q, p->a, N);
    cudaEventRecord(fork, p->q);
    cudaStreamWaitEvent(other, fork);
    kernel_sum_blocks(other, p->a, p->out, 1, 64, 128);
    cudaEventRecord(back, other);
    kernel_sum_blocks(p->q, p->a + 128, p->out + 1, 1, 64, 128);
    if (join) cudaStreamWaitEvent(p->q, back);
    cudaError_t e = cudaStreamEndCapture(p->q, &g);
    cr_assert(e == (join ? cudaSuccess : cudaErrorStreamCaptureUnjoined));
    if (join) cr_assert(cudaGraphInstantiate(&x, g, 0) == cudaSuccess);
    cudaGraphDestroy(g);
    cudaStreamDestroy(other);
    cudaEventDestroy(fork), cudaEventDestroy(back);
    return x;
}
Test(simt, graphs_replay_what_was_captured) {
    EVERY_SEED(p) {
        cudaGraphExec_t x = captured(&p, true);
        float first;
        copy(&first, p.a, 4);
        cr_assert(first == 1, "captured work ran");
        for (int k = 1, f = 3; k <= 3; k++, f *= 3) {
            cr_assert(cudaGraphLaunch(x, p.q) == cudaSuccess);
            finish(&p, 2);
            cr_assert(p.host[0] == (float)f * 8256 && p.host[1] == (float)f * 24640, "%d: %g %g", k, p.host[0],
                      p.host[1]);
        }
        cudaGraphExecDestroy(x);
    }
}
Test(simt, captures_that_forget_a_stream_or_wait) {
    Place p = open_place(0);
    const SimtReport *r;
    captured(&p, false);
    cr_assert(simt_reports(&r) == 1 && r->fault == SIMT_HOST && strstr(r->text, "without the stream"), "%s", r->text);
    simt_forget();
    cudaGraph_t g;
    void *m;
    cudaStreamBeginCapture(p.q, cudaStreamCaptureModeGlobal);
    cr_assert(cudaStreamSynchronize(p.q) == cudaErrorStreamCaptureUnsupported);
    cr_assert(cudaMalloc(&m, 4) == cudaErrorStreamCaptureUnsupported);
    cr_assert(simt_reports(&r) == 2 && strstr(r[1].text, "cudaMalloc while a stream is captured"), "%s", r[1].text);
    cudaStreamEndCapture(p.q, &g);
    cudaGraphDestroy(g);
    simt_forget();
    close_place(&p);
}
Test(simt, copies_and_memory_given_back) {
    Place p = open_place(0);
    const SimtReport *r;
    float b[N];
    cudaMemcpy(b, p.out, 16, cudaMemcpyDeviceToHost); /* nobody wrote it */
    cr_assert(simt_reports(&r) == 1 && r->fault == SIMT_UNWRITTEN, "%s", r->text);
    simt_forget();
    cudaMemcpy(p.out + 250, p.host, 28, cudaMemcpyHostToDevice); /* one number too many */
    cr_assert(simt_reports(&r) == 1 && r->fault == SIMT_OUTSIDE && r->at == 1024, "%s", r->text);
    simt_forget();
    float *gone;
    cudaMalloc(&gone, 1024);
    cudaMemset(gone, 0, 1024);
    cudaFree(gone);
    kernel_sum_blocks(p.q, gone, p.out, 1, 32, 32);
    cudaStreamSynchronize(p.q);
    cr_assert(simt_reports(&r) >= 1 && r->fault == SIMT_OUTSIDE && !strcmp(r->kernel, "sum_blocks"), "%s", r->text);
    simt_forget();
    cr_assert(cudaFree(gone) == cudaErrorInvalidValue && cudaGetLastError() == cudaErrorInvalidValue);
    cr_assert(cudaMalloc(&gone, (size_t)1 << 50) == cudaErrorMemoryAllocation);
    close_place(&p);
}
/* Read and written by both, under one address; given back by the call that belongs to it, and by no other. */
Test(simt, mapped_memory_is_the_hosts_too) {
    Place p = open_place(0);
    const SimtReport *r;
    float *m;
    cr_assert(cudaHostAlloc(&m, 64 * sizeof *m, cudaHostAllocMapped | cudaHostAllocPortable) == cudaSuccess);
    for (int i = 0; i < 64; i++) m[i] = 1;
    kernel_sum_blocks(p.q, m, m + 32, 1, 32, 32);
    cudaStreamSynchronize(p.q);
    cr_assert(m[32] == 32 && simt_reports(&r) == 0, "%g", (double)m[32]);
    cr_assert(cudaFree(m) == cudaErrorInvalidValue && cudaFreeHost(p.a) == cudaErrorInvalidValue);
    cr_assert(cudaFreeHost(m) == cudaSuccess && cudaFreeHost(m) == cudaErrorInvalidValue);
    cudaGetLastError();
    close_place(&p);
}
/* Blocks whose registers nvcc's check does not know. */
Test(simt, large_blocks_are_listed) {
    Place p = open_place(0);
    const SimtReport *r;
    kernel_sum_blocks(p.q, p.a, p.out, 1, 512, 32);
    cr_assert(simt_reports(&r) == 1 && r->fault == SIMT_LAUNCH && strstr(r->text, "tests/simt/blocks.h"), "%s",
              simt_reports(&r) ? r->text : "nothing");
    simt_forget();
    cudaGetLastError();
    close_place(&p);
}
Test(simt, regions_name_their_pieces) {
    Place p = open_place(0);
    const SimtReport *r;
    char *m;
    cudaMalloc(&m, 8192);
    cudaMemset(m, 0, 8192);
    simt_note_close(p.q, m, 8192);
    simt_note_take(p.q, m + 1024, 128, "query");
    cudaMemcpyAsync(m + 1024, p.host, 128, cudaMemcpyHostToDevice, p.q);
    kernel_sum_blocks(p.q, (float *)(m + 1024), p.out, 1, 32, 33);
    cudaStreamSynchronize(p.q);
    cr_assert(simt_reports(&r) == 1 && r->fault == SIMT_OUTSIDE && r->at == 128 &&
                  strstr(r->text, "byte 128 of query (128 bytes)"),
              "%s", r->text);
    simt_forget();
    cudaFree(m);
    close_place(&p);
}
/* Uncollected, a finding ends the program; so does the host's hand in device memory. */
Test(simt, a_finding_ends_the_program, .init = cr_redirect_stderr, .signal = SIGABRT) {
    Place p = open_place(0);
    simt_collect(false);
    kernel_wrong("race_shared", p.q, p.a, p.out);
    cudaStreamSynchronize(p.q);
}
Test(simt, the_host_stays_out_of_device_memory, .init = cr_redirect_stderr, .signal = SIGSEGV) {
    Place p = open_place(0);
    *(volatile float *)p.a = 1;
}
