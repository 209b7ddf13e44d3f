/* warp.cpp: what lanes of a warp do together: synchronise, shuffle, vote, load and multiply matrices. */
#include "core.h"

static const char *const names[] = {"__syncwarp", "shuffle", "vote", "mma", "ldmatrix", "movmatrix"};

static bool same_call(const Call *a, const Call *b) {
    return a->mask == b->mask && a->kind == b->kind && a->a == b->a && a->b == b->b && a->line == b->line &&
           a->file == b->file;
}
/* The lanes of the mask are all here, at the same call; or the first reason why not. As long as lanes are missing, only
 * one of those that wait is compared. */
static bool gathered(const Thread *t, bool *broken) {
    const unsigned others = t->call.mask & ~(1u << t->id % WARP), here = others & core.waiting[t->warp];
    *broken = false;
    if (!(others & core.ended[t->warp]) && here != others) {
        if (!here) return false;
        const Call *one = &core.thread[t->warp * WARP + __builtin_ctz(here)].call;
        if (!(one->mask >> (t->id % WARP) & 1) || same_call(&t->call, one)) return false;
    }
    const Thread *first = &core.thread[t->warp * WARP];
    bool all = true;
    for (int i = 0; i < WARP; i++) {
        if (!(t->call.mask >> i & 1)) continue;
        const Thread *o = first + i;
        if (first->id + i >= core.threads || o->state == DONE) {
            report(SIMT_DIVERGENT, t->call.pc, (uintptr_t)t->call.line, "%s of %s:%d names lane %d, which %s",
                   names[t->call.kind], t->call.file, t->call.line, i,
                   first->id + i >= core.threads ? "does not exist" : "has ended");
            *broken = true;
            return false;
        }
        if (o == t) continue;
        if (o->state != AT_WARP) {
            all = false;
            continue;
        }
        const Call *a = &t->call, *b = &o->call;
        if (!(b->mask >> (t->id % WARP) & 1)) { /* in another group, which may yet go on */
            all = false;
            continue;
        }
        if (!same_call(a, b)) {
            report(SIMT_DIVERGENT, a->pc, (uintptr_t)a->line,
                   "%s of %s:%d, mask %08x, meets lane %d at %s of %s:%d, mask %08x", names[a->kind], a->file, a->line,
                   a->mask, i, names[b->kind], b->file, b->line, b->mask);
            *broken = true;
            return false;
        }
    }
    return all;
}
/* The current thread's deposit, which the caller fills in where it stays: it is read in other pieces than it is
 * written, which processors do slowly soon after. */
static Call *deposit(CallKind kind, unsigned mask, SIMT_AT_DEF, const void *pc) {
    Call *c = &core.now->call;
    c->kind = kind, c->mask = mask, c->a = c->b = c->arg = 0;
    c->file = file, c->line = line, c->in = nullptr, c->out = nullptr, c->pc = pc;
    return c;
}
static void warp_call(Together run) {
    Thread *t = core.now, *first = &core.thread[t->warp * WARP];
    const Call &c = t->call;
    const unsigned mask = c.mask;
    bool broken;
    if (!(c.mask >> (t->id % WARP) & 1)) {
        report(SIMT_DIVERGENT, c.pc, (uintptr_t)c.line, "%s of %s:%d: a lane that its own mask %08x leaves out",
               names[c.kind], c.file, c.line, c.mask);
        broken = true;
    } else if (gathered(t, &broken)) {
        Call *lane[WARP] = {};
        for (int i = 0; i < WARP; i++)
            if (mask >> i & 1) lane[i] = &first[i].call;
        run(lane, c.mask);
        if (c.kind == CALL_SYNC) order_join_lanes(first, c.mask);
        for (int i = 0; i < WARP; i++)
            if (mask >> i & 1) first[i].state = READY;
        core.waiting[t->warp] &= ~mask;
        core.asleep[t->warp] &= ~mask;
        return;
    }
    if (broken) core.abandoned = true; /* what the lanes would receive means nothing */
    core.waiting[t->warp] |= 1u << t->id % WARP;
    wait_here(AT_WARP);
}

static void nothing(Call *const *, unsigned) {}
void __syncwarp(unsigned mask, SIMT_AT_DEF) {
    deposit(CALL_SYNC, mask, file, line, __builtin_return_address(0));
    warp_call(nothing);
}

/* ---- shuffles and votes ---- */
/* All lanes, 4 bytes each: what is mostly done. */
static bool shuffle_whole(Call *const *lane) {
    const Call *c = lane[0];
    const int last = (c->b >> 8) - 1;
    uint32_t v[WARP];
    if ((c->b & 255) != 4) return false;
    for (int i = 0; i < WARP; i++) memcpy(&v[i], lane[i]->in, 4);
    for (int i = 0; i < WARP; i++) {
        const int own = i & last, base = i & ~last, arg = lane[i]->arg;
        int from = i;
        if (c->a == SHFL_INDEX) from = base + (arg & last);
        if (c->a == SHFL_UP && own >= arg) from = i - arg;
        if (c->a == SHFL_DOWN && own + arg <= last) from = i + arg;
        if (c->a == SHFL_XOR && (own ^ arg) <= last) from = base + (own ^ arg);
        memcpy(lane[i]->out, &v[from], 4);
    }
    return true;
}
static void shuffle(Call *const *lane, unsigned mask) {
    if (mask == ~0u && shuffle_whole(lane)) return;
    for (int i = 0; i < WARP; i++) {
        Call *c = lane[i];
        if (!c) continue;
        int width = c->b >> 8, size = c->b & 255, from = i, base = i & ~(width - 1), own = i & (width - 1);
        switch ((SimtShuffle)c->a) {
        case SHFL_INDEX: from = base + (c->arg & (width - 1)); break;
        case SHFL_UP: from = own - c->arg < 0 ? i : i - c->arg; break;
        case SHFL_DOWN: from = own + c->arg >= width ? i : i + c->arg; break;
        case SHFL_XOR: from = (own ^ c->arg) >= width ? i : base + (own ^ c->arg); break;
        }
        if (!(mask >> from & 1)) {
            report(SIMT_DIVERGENT, c->pc, (uintptr_t)c->line, "shuffle of %s:%d reads lane %d, not of its mask %08x",
                   c->file, c->line, from, mask);
            from = i;
        }
        memcpy(c->out, lane[from]->in, (size_t)size);
    }
}
void simt_shuffle(SimtShuffle kind, unsigned mask, const void *in, void *out, size_t size, int arg, int width,
                  SIMT_AT_DEF) {
    if (width < 1 || width > WARP || (width & (width - 1))) {
        report(SIMT_DIVERGENT, nullptr, (uintptr_t)line, "shuffle of %s:%d: width %d is no power of 2 up to 32", file,
               line, width);
        width = WARP;
    }
    Call *c = deposit(CALL_SHUFFLE, mask, file, line, __builtin_return_address(0));
    c->a = (int)kind, c->b = width << 8 | (int)size, c->in = in, c->out = out, c->arg = arg;
    warp_call(shuffle);
}
static void ballot(Call *const *lane, unsigned) {
    unsigned v = 0;
    for (int i = 0; i < WARP; i++)
        if (lane[i] && lane[i]->arg) v |= 1u << i;
    for (int i = 0; i < WARP; i++)
        if (lane[i]) *(unsigned *)lane[i]->out = v;
}
unsigned __ballot_sync(unsigned mask, int predicate, SIMT_AT_DEF) {
    unsigned out = 0;
    Call *c = deposit(CALL_BALLOT, mask, file, line, __builtin_return_address(0));
    c->out = &out, c->arg = predicate != 0;
    warp_call(ballot);
    return out;
}

/* ---- matrices: layouts of PTX ISA, "Matrix Fragments" ---- */
static const unsigned FULL = 0xFFFFFFFFu;
struct Mma {
    const uint32_t *a, *b;
    const float *c;
};
static float from_bf16(uint32_t bits) {
    float f;
    bits <<= 16;
    memcpy(&f, &bits, 4);
    return f;
}
static float from_tf32(uint32_t bits) { /* the hardware reads 19 bits */
    float f;
    bits &= 0xFFFFE000u;
    memcpy(&f, &bits, 4);
    return f;
}
/* D (16,8) = A (16,K) B (K,8) + C; sums over k ascending, or as sums.cpp says. */
static void multiply(Call *const *lane, const float *A, const float *B, int K) {
    if (simt_truncates()) {
        for (int l = 0; l < WARP; l++) {
            const Mma *m = (const Mma *)lane[l]->in;
            float *d = (float *)lane[l]->out;
            for (int i = 0; i < 4; i++) {
                int row = l / 4 + (i & 2) * 4, col = l % 4 * 2 + (i & 1);
                double product[16];
                for (int k = 0; k < K; k++) product[k] = (double)A[row * K + k] * (double)B[k * 8 + col];
                d[i] = simt_truncated_sum(m->c[i], product, K);
            }
        }
        estimate_mma();
        return;
    }
    typedef float Four __attribute__((vector_size(16)));
    union {
        float f[16][8];
        Four v[16][2];
    } sum;
    for (int l = 0; l < WARP; l++)
        for (int i = 0; i < 4; i++) sum.f[l / 4 + (i & 2) * 4][l % 4 * 2 + (i & 1)] = ((const Mma *)lane[l]->in)->c[i];
    for (int row = 0; row < 16; row++) {
        Four low = sum.v[row][0], high = sum.v[row][1];
        for (int k = 0; k < K; k++) {
            const float a = A[row * K + k];
            const float *b = B + k * 8;
            low += a * (Four){b[0], b[1], b[2], b[3]};
            high += a * (Four){b[4], b[5], b[6], b[7]};
        }
        sum.v[row][0] = low, sum.v[row][1] = high;
    }
    for (int l = 0; l < WARP; l++)
        for (int i = 0; i < 4; i++) ((float *)lane[l]->out)[i] = sum.f[l / 4 + (i & 2) * 4][l % 4 * 2 + (i & 1)];
    estimate_mma();
}
static void mma_bf16(Call *const *lane, unsigned) {
    float A[16 * 16], B[16 * 8];
    for (int l = 0; l < WARP; l++) {
        const Mma *m = (const Mma *)lane[l]->in;
        for (int i = 0; i < 8; i++)
            A[(l / 4 + (i >> 1 & 1) * 8) * 16 + l % 4 * 2 + (i & 1) + (i >> 2) * 8] =
                from_bf16(m->a[i / 2] >> 16 * (i & 1) & 0xFFFF);
        for (int i = 0; i < 4; i++)
            B[(l % 4 * 2 + (i & 1) + (i >> 1) * 8) * 8 + l / 4] = from_bf16(m->b[i / 2] >> 16 * (i & 1) & 0xFFFF);
    }
    multiply(lane, A, B, 16);
}
static void mma_tf32(Call *const *lane, unsigned) {
    float A[16 * 8], B[8 * 8];
    for (int l = 0; l < WARP; l++) {
        const Mma *m = (const Mma *)lane[l]->in;
        for (int i = 0; i < 4; i++) A[(l / 4 + (i & 1) * 8) * 8 + l % 4 + (i >> 1) * 4] = from_tf32(m->a[i]);
        for (int i = 0; i < 2; i++) B[(l % 4 + i * 4) * 8 + l / 4] = from_tf32(m->b[i]);
    }
    multiply(lane, A, B, 8);
}
static void mma(float d[4], const uint32_t *a, const uint32_t *b, const float *c, int K, SIMT_AT_DEF, const void *pc) {
    Mma m = {a, b, c};
    float out[4]; /* d may be c */
    Call *call = deposit(CALL_MMA, FULL, file, line, pc);
    call->a = K, call->in = &m, call->out = out;
    warp_call(K == 16 ? mma_bf16 : mma_tf32);
    memcpy(d, out, sizeof out);
}
void simt_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], SIMT_AT_DEF) {
    mma(d, a, b, c, 16, file, line, __builtin_return_address(0));
}
void simt_mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], SIMT_AT_DEF) {
    mma(d, a, b, c, 8, file, line, __builtin_return_address(0));
}

/* Lane l brings the address of row l%8 of matrix l/8; each row is 8 numbers of 16 bits. */
static void ldmatrix(Call *const *lane, unsigned) {
    int count = lane[0]->a, turned = lane[0]->b;
    for (int l = 0; l < WARP; l++)
        for (int m = 0; m < count; m++) {
            uint16_t half[2];
            for (int i = 0; i < 2; i++) {
                int row = turned ? l % 4 * 2 + i : l / 4, col = turned ? l / 4 : l % 4 * 2 + i;
                memcpy(&half[i], (const uint16_t *)lane[m * 8 + row]->in + col, 2);
            }
            ((uint32_t *)lane[l]->out)[m] = (uint32_t)half[1] << 16 | half[0];
        }
}
void simt_ldmatrix(uint32_t *out, const void *row, int count, bool turned, SIMT_AT_DEF) {
    const void *pc = __builtin_return_address(0);
    static const uint16_t none[8] = {};
    if (core.now->id % WARP < count * 8) {
        if (!in_smem((uintptr_t)row)) {
            report(SIMT_OUTSIDE, pc, (uintptr_t)row, "ldmatrix of %s:%d reads what is not shared memory", file, line);
            row = none;
        } else
            observe(row, 16, ACCESS_READ, pc);
    } else
        row = none; /* the address of these lanes is not used */
    uint32_t v[4];
    Call *c = deposit(CALL_LDMATRIX, FULL, file, line, pc);
    c->a = count, c->b = turned, c->in = row, c->out = v;
    warp_call(ldmatrix);
    memcpy(out, v, (size_t)count * 4);
}
static void movmatrix(Call *const *lane, unsigned) {
    for (int l = 0; l < WARP; l++) {
        uint16_t half[2];
        for (int i = 0; i < 2; i++) { /* element (row l/4, col l%4*2+i) of the result is (col, row) of the source */
            int row = l % 4 * 2 + i, col = l / 4;
            memcpy(&half[i], (const uint16_t *)lane[row * 4 + col / 2]->in + col % 2, 2);
        }
        *(uint32_t *)lane[l]->out = (uint32_t)half[1] << 16 | half[0];
    }
}
uint32_t simt_movmatrix(uint32_t v, SIMT_AT_DEF) {
    uint32_t out;
    Call *c = deposit(CALL_MOVMATRIX, FULL, file, line, __builtin_return_address(0));
    c->in = &v, c->out = &out;
    warp_call(movmatrix);
    return out;
}
