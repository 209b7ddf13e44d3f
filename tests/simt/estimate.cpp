/* estimate.cpp: what a kernel would cost a device: bytes asked for, sectors of 32 bytes, passes over the banks of
 * shared memory, matrix products. Requests of a warp are put together from the accesses of its lanes: the k-th time
 * that a lane comes past a place in the program belongs with the k-th time of the others. */
#include "core.h"
#include <algorithm>
#include <cstdlib>
#include <map>
#include <unordered_map>

enum { SAMPLED = 4 /* blocks of a launch */, MOST = 1 << 15 /* accesses of a lane */ };
struct Access {
    const void *pc;
    uintptr_t at;
    uint16_t size;
    bool shared;
};
struct Sample { /* sums over the sampled blocks of this launch */
    double sectors, least_sectors, waves, least_waves;
};
static std::map<std::string, SimtEstimate> estimates;
static SimtEstimate *now;
static std::vector<Access> trace[THREADS_MAX];
static Sample sample;
static long sampled, ran;
static bool wanted;
Asked asked;

void simt_sample(bool on) { wanted = on; }

static void settle() { /* the launch before this one */
    long of = ran;
    ran = 0;
    if (now) now->read += asked.read, now->written += asked.written;
    asked.read = asked.written = 0;
    if (!now || !sampled) return;
    double f = (double)of / (double)sampled;
    now->sectors += sample.sectors * f;
    now->least_sectors += sample.least_sectors * f;
    now->waves += sample.waves * f;
    now->least_waves += sample.least_waves * f;
    sampled = 0;
    sample = {};
}
void estimate_launch(const Launch *l) {
    settle();
    /* "(sum<64>)" and "sum<64>" are one */
    std::string name = l->name;
    if (name.size() > 2 && name[0] == '(') name = name.substr(1, name.size() - 2);
    now = &estimates[name];
    snprintf(now->kernel, sizeof now->kernel, "%s", name.c_str());
    now->launches++;
    now->threads += (long)core.threads * (long)l->grid.x * l->grid.y * l->grid.z;
    now->smem = std::max(now->smem, l->smem);
}
void estimate_block(unsigned long) {
    asked.each = wanted && sampled < SAMPLED;
    now->blocks++;
    ran++;
}
void estimate_access(const Thread *t, uintptr_t a, size_t n, bool shared, const void *pc) {
    if (trace[t->id].size() < MOST) trace[t->id].push_back({pc, a, (uint16_t)n, shared});
}
void estimate_mma() { now->mma++; }
/* Bytes that no kernel asks for: copies, fillings, operands of the libraries, each once. */
static double others;
void estimate_others(double bytes) { others += bytes; }
extern "C" double simt_bytes(); /* all that was asked of the device's memory so far */
double simt_bytes() {
    settle();
    double all = others;
    for (const auto &x : estimates) all += x.second.read + x.second.written;
    return all;
}

static void global_request(const Access *a, int n) {
    static std::vector<uintptr_t> sectors, bytes;
    sectors.clear(), bytes.clear();
    for (int i = 0; i < n; i++)
        for (uintptr_t b = a[i].at; b < a[i].at + a[i].size; b++) bytes.push_back(b);
    std::sort(bytes.begin(), bytes.end());
    bytes.erase(std::unique(bytes.begin(), bytes.end()), bytes.end());
    for (uintptr_t b : bytes)
        if (sectors.empty() || sectors.back() != b / 32) sectors.push_back(b / 32);
    sample.sectors += (double)sectors.size();
    sample.least_sectors += (double)((bytes.size() + 31) / 32);
}
/* 32 banks of 4 bytes. Lanes of one word share it. Requests of 8 and 16 bytes a lane go by half and quarter warps. */
static void shared_request(const Access *a, const int *lane, int n) {
    int each = a[0].size <= 4 ? 32 : a[0].size == 8 ? 16 : 8;
    for (int part = 0; part < 32; part += each) {
        uintptr_t words[64];
        int count = 0, most = 0, use[32] = {};
        for (int i = 0; i < n; i++)
            for (unsigned k = 0; lane[i] / each == part / each && k < (a[i].size + 3u) / 4; k++)
                if (count < 64) words[count++] = a[i].at / 4 + k;
        std::sort(words, words + count);
        count = (int)(std::unique(words, words + count) - words);
        for (int i = 0; i < count; i++) most = std::max(most, ++use[words[i] % 32]);
        sample.waves += most;
        sample.least_waves += count > 0;
    }
}
void estimate_block_end() {
    if (!asked.each) return;
    asked.each = false;
    sampled++;
    for (int w = 0; w < core.warps; w++) {
        /* requests in the order of (place, time) */
        std::map<std::pair<const void *, int>, std::vector<std::pair<int, Access>>> requests;
        for (int l = 0; l < WARP && w * WARP + l < core.threads; l++) {
            std::unordered_map<const void *, int> times;
            for (const Access &a : trace[w * WARP + l]) requests[{a.pc, times[a.pc]++}].push_back({l, a});
        }
        for (auto &r : requests) {
            Access a[WARP];
            int lane[WARP], n = 0;
            for (auto &x : r.second) lane[n] = x.first, a[n++] = x.second;
            if (a[0].shared)
                shared_request(a, lane, n);
            else
                global_request(a, n);
        }
    }
    for (int i = 0; i < core.threads; i++) trace[i].clear();
}

const SimtEstimate *simt_estimate(const char *kernel) {
    if (!wanted) {
        fprintf(stderr, "simt: the estimate of %s is asked for, but simt_sample was not\n", kernel);
        abort();
    }
    settle();
    auto it = estimates.find(kernel);
    return it == estimates.end() ? nullptr : &it->second;
}
/* For tests in C: launches so far of all kernels whose names begin so. */
extern "C" unsigned long simt_launches(const char *begin) {
    unsigned long n = 0;
    for (auto &x : estimates)
        if (x.first.compare(0, strlen(begin), begin) == 0) n += (unsigned long)x.second.launches;
    return n;
}
void simt_print_estimates(FILE *f) {
    settle();
    fprintf(f, "%-28s %8s %9s %12s %12s %8s %8s %10s %8s\n", "kernel", "launches", "blocks", "read B", "written B",
            "sectors", "banks", "mma", "smem B");
    for (auto &x : estimates) {
        const SimtEstimate *e = &x.second;
        fprintf(f, "%-28s %8ld %9ld %12.0f %12.0f %7.2fx %7.2fx %10ld %8zu\n", e->kernel, e->launches, e->blocks,
                e->read, e->written, e->least_sectors > 0 ? e->sectors / e->least_sectors : 1,
                e->least_waves > 0 ? e->waves / e->least_waves : 1, e->mma, e->smem);
    }
}
