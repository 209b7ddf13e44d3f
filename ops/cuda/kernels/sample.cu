/* sample.cu: one block draws a token from a row of logits, in the steps of infer/sampler.h. Nothing is sorted. There
 * are three sets: the k most probable, those with a mass below p before them, and those up to the draw. Each is
 * described by a border, which is found bit by bit from sums over everything on one side of it. */
#include "kernel.h"
#include <stdint.h>
struct SampleRow { /* ops/sample.h, which is C */
    uint64_t key, draw;
    double temperature, penalty, top_p, min_p;
    int top_k, slot;
};
struct Sampled {
    int token, at;
    float value;
};

static_assert(sizeof(SampleRow) == 56 && sizeof(Sampled) == 12, "as ops/sample.h has them");

DEVICE int ones(unsigned u) { return PTX_FORM(__builtin_popcount(u), __popc(u)); }
DEVICE int lowest(unsigned u) { return PTX_FORM(__builtin_ctz(u), __ffs((int)u) - 1); }
template <class T> DEVICE T block_most(T v, T *part) { /* the greatest, returned to all threads */
    for (int d = 16; d; d >>= 1) {
        T other = __shfl_xor_sync(FULL_WARP, v, d);
        if (other > v) v = other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (int w = 1; w < WARPS; w++)
        if (part[w] > v) v = part[w];
    __syncthreads();
    return v;
}
/* Greater values have greater keys. */
DEVICE uint64_t key_of(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u >> 63 ? ~u : u | (uint64_t)1 << 63;
}
struct Logits {
    const float *x;
    const unsigned char *seen;
    double penalty;
};
DEVICE double logit(const Logits &l, int v) {
    double x = (double)l.x[v];
    x = l.seen && l.seen[v] ? x > 0 ? x / l.penalty : x * l.penalty : x;
    return x + 0.0; /* makes one zero of the two */
}
/* The values that are left, ascending in id; all of [0,V) while `id` is NULL. */
struct Left {
    int n;
    const double *p;
    const int *id;
};
DEVICE int count_from(const Logits &l, int V, uint64_t border, int *part) { /* keys >= border */
    int n = 0;
    for (int v = (int)threadIdx.x; v < V; v += BLOCK) n += key_of(logit(l, v)) >= border;
    return block_sum(n, part);
}
DEVICE int count_equal(const Logits &l, int end, uint64_t key, int *part) { /* among ids below `end` */
    int n = 0;
    for (int v = (int)threadIdx.x; v < end; v += BLOCK) n += key_of(logit(l, v)) == key;
    return block_sum(n, part);
}
DEVICE double mass_from(const Left &s, uint64_t border, double *part) { /* of keys >= border */
    double sum = 0;
    for (int i = (int)threadIdx.x; i < s.n; i += BLOCK) sum += key_of(s.p[i]) >= border ? s.p[i] : 0;
    return block_sum(sum, part);
}
/* The j-th value with this key, in order of id; returned to all threads. */
DEVICE int nth_equal(const Left &s, uint64_t key, int j, int *part) {
    int lane = (int)threadIdx.x % 32;
    __syncthreads();
    if (threadIdx.x < 32) {
        int found = -1;
        for (int base = 0; base < s.n && found < 0; base += 32) {
            int i = base + lane;
            bool hit = i < s.n && key_of(s.p[i]) == key;
            unsigned hits = __ballot_sync(FULL_WARP, hit);
            int before = ones(hits & ((1u << lane) - 1));
            unsigned at = __ballot_sync(FULL_WARP, hit && before == j);
            if (at) found = base + lowest(at);
            j -= ones(hits);
        }
        if (lane == 0) part[0] = found;
    }
    __syncthreads();
    int found = part[0];
    __syncthreads();
    return found;
}
/* A set: all keys above `key`, and the first `ties` in order of id of those equal to it. */
struct Border {
    uint64_t key;
    int ties; /* how many of them are in the set */
};
enum { ALL = 0x7FFFFFFF };

/* The k greatest logits. */
DEVICE Border greatest(const Logits &l, int V, int k, int *part, int *end) {
    Border b = {0, ALL};
    int n = V;
    for (int bit = 63; bit >= 0 && n != k; bit--) {
        uint64_t up = b.key | (uint64_t)1 << bit;
        int m = count_from(l, V, up, part);
        if (m >= k) b.key = up, n = m;
    }
    *end = V; /* among those equal to the border, ids below this */
    if (n == k) return b;
    int equal = count_equal(l, V, b.key, part), wanted = k - (n - equal), lo = 0, hi = V;
    while (hi - lo > 1) { /* invariant: count below lo < wanted <= count below hi */
        int mid = lo + (hi - lo) / 2;
        if (count_equal(l, mid, b.key, part) >= wanted)
            hi = mid;
        else
            lo = mid;
    }
    *end = hi;
    return b;
}
/* Gather the weights, in order of id, of those within the border that are at least `least`. Returns how many. */
DEVICE int gather_weights(const Logits &l, int V, double top, double temperature, Border b, int end, double least,
                          bool positive, double *p, int *id, int *part) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, each = (V + WARPS * 32 - 1) / (WARPS * 32) * 32,
        from = warp * each, to = from + each < V ? from + each : V, total = 0, at = 0;
    for (int pass = 0; pass < 2; pass++) {
        int n = 0;
        for (int base = from; base < to; base += 32) {
            int v = base + lane;
            bool stays = false;
            double w = 0;
            if (v < to) {
                double x = logit(l, v);
                uint64_t key = key_of(x);
                w = exp((x - top) / temperature);
                stays = (key > b.key || (key == b.key && v < end)) && w >= least && (!positive || w > 0);
            }
            unsigned who = __ballot_sync(FULL_WARP, stays);
            if (pass && stays) {
                int i = at + n + ones(who & ((1u << lane) - 1));
                p[i] = w, id[i] = v;
            }
            n += ones(who);
        }
        if (pass) break;
        __syncthreads();
        if (lane == 0) part[warp] = n;
        __syncthreads();
        for (int k = 0; k < WARPS; k++) {
            at += k < warp ? part[k] : 0;
            total += part[k];
        }
    }
    __syncthreads();
    return total;
}
/* Sum of the weights within the border. */
DEVICE double total_of(const Logits &l, int V, double top, double temperature, Border b, int end, double *part) {
    double sum = 0;
    for (int v = (int)threadIdx.x; v < V; v += BLOCK) {
        double x = logit(l, v);
        uint64_t key = key_of(x);
        if (key > b.key || (key == b.key && v < end)) sum += exp((x - top) / temperature);
    }
    return block_sum(sum, part);
}
DEVICE double weight_of(uint64_t key) { /* weights are not negative */
    double x;
    uint64_t bits = key & ~((uint64_t)1 << 63);
    memcpy(&x, &bits, sizeof x);
    return x;
}
/* The smallest set, in order of decreasing weight, in which less than `limit` comes before the last one. */
DEVICE Border heaviest(const Left &s, double limit, double *part) {
    uint64_t over = 0; /* the greatest key above which the mass is `limit` or more */
    bool any = mass_from(s, 1, part) >= limit;
    for (int bit = 63; bit >= 0 && any; bit--) {
        uint64_t up = over | (uint64_t)1 << bit;
        if (up + 1 > up && mass_from(s, up + 1, part) >= limit) over = up;
    }
    if (!any) return {0, ALL};
    Border b = {over + 1, 0};
    double before = mass_from(s, b.key + 1, part), equal = mass_from(s, b.key, part) - before, one = weight_of(b.key);
    int n = one > 0 ? (int)(equal / one + 0.5) : 0;
    while (before < limit && b.ties < n) before += one, b.ties++;
    return b;
}
/* The index of the first one, in order of id, up to which the mass exceeds `target`; the last one if there is none. */
DEVICE int first_beyond(const Left &s, double target, double *part, int *found) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, each = (s.n + WARPS * 32 - 1) / (WARPS * 32) * 32,
        from = warp * each, to = from + each < s.n ? from + each : s.n;
    double own = 0, before = 0;
    for (int i = from + lane; i < to; i += 32) own += s.p[i];
    own = warp_sum(own);
    __syncthreads();
    if (lane == 0) part[warp] = own;
    if (threadIdx.x == 0) *found = s.n - 1; /* if rounding puts the target beyond all of them */
    __syncthreads();
    for (int k = 0; k < warp; k++) before += part[k];
    bool mine = from < to && before <= target && target < before + own;
    int place = to - 1;
    for (int base = from; base < to && mine; base += 32) {
        double x = base + lane < to ? s.p[base + lane] : 0;
        for (int d = 1; d < 32; d *= 2) {
            double left = __shfl_up_sync(FULL_WARP, x, d);
            if (lane >= d) x += left;
        }
        unsigned who = __ballot_sync(FULL_WARP, base + lane < to && before + x > target);
        if (who) {
            place = base + lowest(who);
            break;
        }
        before += __shfl_sync(FULL_WARP, x, 31);
    }
    if (mine && lane == 0) *found = place;
    __syncthreads();
    int at = *found;
    __syncthreads();
    return at;
}
/* The same in order of decreasing weight, among the keys within the border. */
DEVICE int first_beyond_by_rank(const Left &s, Border b, double target, double *part, int *found) {
    uint64_t key = 0; /* the greatest key from which on the mass exceeds it; never below the border, where it does */
    for (int bit = 63; bit >= 0; bit--) {
        uint64_t up = key | (uint64_t)1 << bit;
        if (mass_from(s, up, part) > target) key = up;
    }
    double before = mass_from(s, key + 1, part), one = weight_of(key);
    double equal = mass_from(s, key, part) - before;
    int n = one > 0 ? (int)(equal / one + 0.5) : 1, j = 0;
    if (key == b.key && b.ties < n) n = b.ties;
    while (j + 1 < n && target >= before + (double)(j + 1) * one) j++;
    return nth_equal(s, key, j, found);
}

__global__ void sample(int V, const SampleRow *rows, const float *logits, unsigned char *seen, double *weights,
                       int *ids, Sampled *out) {
    SMEM_DYN(double, part);
    int *ints = (int *)(part + WARPS), *found = ints + WARPS, t = (int)threadIdx.x;
    const SampleRow r = rows[blockIdx.x];
    unsigned char *own = seen && r.penalty != 1 ? seen + (size_t)r.slot * (size_t)V : nullptr;
    Logits l = {logits + (size_t)blockIdx.x * (size_t)V, own, r.penalty};
    double *p = weights + (size_t)blockIdx.x * (size_t)V;
    int *id = ids + (size_t)blockIdx.x * (size_t)V;
    Sampled *to = out + blockIdx.x;

    /* values that are not numbers, and the greatest value */
    double top = -INFINITY;
    int bad = V, best = V;
    for (int v = t; v < V; v += BLOCK) {
        float raw = l.x[v];
        if ((raw != raw || raw == INFINITY) && v < bad) bad = v;
        double x = logit(l, v);
        if (x > top) top = x, best = v;
    }
    bad = V - block_most(V - bad, ints);
    double all = block_most(top, part);
    best = V - block_most(top == all ? V - best : 0, ints);
    if (bad < V || all == -INFINITY) {
        if (t == 0) *to = {bad < V ? -1 : -2, bad < V ? bad : 0, bad < V ? l.x[bad] : 0};
        return;
    }
    top = all;
    int token = best;
    if (r.temperature != 0) {
        bool some = r.top_k > 0 && r.top_k < V, mass = r.top_p < 1;
        int m = some ? r.top_k : V, end = V;
        Border b = {0, ALL};
        if (some) b = greatest(l, V, r.top_k, ints, &end);
        double least = r.min_p, total = 0;
        if (mass) {
            total = total_of(l, V, top, r.temperature, b, end, part);
            least =
                0.5 * (1 - r.top_p) / m * total; /* all values below it together weigh less than 1 - p of the total */
        }
        Left s = {gather_weights(l, V, top, r.temperature, b, end, least, !mass, p, id, ints), p, id};
        Border in = {0, ALL};
        if (mass) {
            in = heaviest(s, r.top_p * total, part);
            uint64_t floor = key_of(r.min_p);
            if (floor > in.key) in = {floor, ALL};
            if (key_of(0.0) >= in.key) in = {key_of(0.0) + 1, ALL};
        }
        /* some of those equal to the border are outside */
        double sum = mass_from(s, in.key + 1, part), equal = mass_from(s, in.key, part) - sum;
        sum += in.ties == ALL ? equal : weight_of(in.key) * in.ties;
        double u = ((double)(mix(r.key, r.draw) >> 11) + 0.5) * 0x1p-53;
        int at =
            some || mass ? first_beyond_by_rank(s, in, u * sum, part, found) : first_beyond(s, u * sum, part, found);
        token = id[at];
    }
    if (t == 0) {
        *to = {token, 0, 0};
        if (own) own[token] = 1;
    }
}
extern "C" void cuda_sample(Cuda *c, int n, int V, const SampleRow *rows, const float *logits, unsigned char *seen,
                            double *p, int *id, Sampled *out) {
    if (n > 0)
        LAUNCH(sample, dim3((unsigned)n), dim3(BLOCK), WARPS * sizeof(double) + (WARPS + 2) * sizeof(int), c->stream, V,
               rows, logits, seen, p, id, out);
}
