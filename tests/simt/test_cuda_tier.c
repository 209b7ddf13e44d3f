/* test_cuda_tier.c: rows of a device's cache with the host: the same bits as without a limit, whatever is fed, forked
 * or rewound and in whatever order queues run; the bytes of the tier on disk; limits, and what is refused. */
#include "layers/cache/codec.h"
#include "ops/host.h"
#include "tests/lib/rig.h"
#include "tests/lib/tier_story.h"

/* Of the emulation: the order in which queues, blocks and threads run. A wait that is missing shows in one of them: 0
 * runs what computes as soon as it may, 1 the copies, others draw. */
void simt_seed(uint64_t seed) __attribute__((weak));
enum { SEEDS = 3 };

typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
} Side;
static void side_open(Side *d, const char *device, const char *name, ModelOpts o) {
    const Animal *a = &zoo[zoo_find(name)];
    Err e = {0};
    *d = (Side){0};
    o.poison = true;
    cr_assert(model_cfg_from_json(&d->cfg, a->json, strlen(a->json), a->name, &e), "%s: %s", a->name, e.msg);
    cr_assert(device_open(&d->dev, device, 1, &e), "%s", e.msg);
    cr_assert(model_open(&d->m, d->dev, &d->cfg, o, &e), "%s: %s", a->name, e.msg);
    model_init(&d->m, 7);
}
static void side_close(Side *d) { zoo_close(&d->cfg, &d->m, NULL, d->dev); }
static KvDisk told(Side *d, const KvTier *tier, real *out) {
    Session s;
    tier_session(&s, &d->m, tier, TIER_PAGE);
    memset(out, 0, TIER_STORY * (size_t)d->cfg.vocab * sizeof *out);
    cr_assert(tier_story(&s, out) <= TIER_STORY);
    const KvDisk disk = session_disk(&s);
    /* a pass that copies rows is not captured */
    if (device_apart(d->dev)) cr_assert((s.cache.graphs == NULL) == (disk.slots > 0));
    session_close(&s);
    return disk;
}
/* A device without a limit, and with one in every order; `chooses`: rows move, or are read, by decisions, in which the
 * CPU may differ, and a device moves them together. Returns the bytes that it read with all slots in the tier. */
static size_t same_bits(const char *name, ModelOpts o, bool chooses) {
    Side cuda, cpu;
    side_open(&cuda, "cuda", name, o), side_open(&cpu, "cpu", name, o);
    const size_t n = TIER_STORY * (size_t)cuda.cfg.vocab;
    const int slots = tier_row_slots(&cuda.m);
    size_t read = 0;
    real *want = xcalloc(n, sizeof *want), *got = xcalloc(n, sizeof *got);
    told(&cuda, NULL, want);
    for (int seed = 0; seed < SEEDS; seed++) {
        const bool alone = seed == 2;
        const KvTier tier = {.memory = TIER_PLENTY, .alone = alone, .least = alone ? (slots + 1) / 2 : slots};
        KvTier disk = tier;
        char what[200];
        disk.dir = check_dir();
        if (simt_seed) simt_seed((uint64_t)seed);
        const KvDisk d = told(&cuda, &tier, got);
        snprintf(what, sizeof what, "%s, seed %d, %d of %d slots with the host%s", name, seed, tier.least, slots,
                 alone ? ", alone" : "");
        CHECK_BYTES(what, got, want, n * sizeof *got);
        if (!alone) read = d.read;
        const KvDisk c = told(&cpu, &disk, got);
        cr_assert(d.host && !c.host && d.slots == c.slots && d.slots == tier.least && d.file == c.file && d.read &&
                      d.written,
                  "%s: %d slots of %zu bytes, on disk %d of %zu", what, d.slots, d.file, c.slots, c.file);
        cr_assert(chooses || (d.read == c.read && d.written == c.written),
                  "%s: %zu bytes read, %zu written; on disk %zu and %zu", what, d.read, d.written, c.read, c.written);
    }
    if (simt_seed) simt_seed(0);
    free(want), free(got);
    side_close(&cuda), side_close(&cpu);
    return read;
}
static size_t kept_bits(const char *name, const char *policy, const char *codec) {
    PolicyCfg p;
    RowCodec c;
    Err e = {0};
    ModelOpts o = {.policy = policy ? &p : NULL, .codec = codec ? &c : NULL};
    if (policy) cr_assert(policy_parse(policy, &p, &e), "%s", e.msg);
    if (codec) cr_assert(codec_parse(codec, &c, &e), "%s", e.msg);
    return same_bits(name, o, policy != NULL);
}
Test(cuda_tier, attention_gives_the_same_bits, .timeout = 300) {
    static const char *const names[] = {"gqa", "window with sinks", "untied, two kinds", "mla"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) same_bits(names[i], (ModelOpts){0}, false);
}
Test(cuda_tier, slots_that_layers_share_give_the_same_bits, .timeout = 300) {
    static const char *const names[] = {"shared by pairs (CLA)", "publisher and readers (YOCO)", "owner after readers",
                                        "mla, shared latents"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) same_bits(names[i], (ModelOpts){0}, false);
}
Test(cuda_tier, recurrences_between_give_the_same_bits, .timeout = 300) {
    static const char *const names[] = {"kda and nope attention", "gated retention, publisher and reader (YOCO)",
                                        "layers of one part: mamba2, squared ReLU, attention, experts"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) same_bits(names[i], (ModelOpts){0}, false);
}
Test(cuda_tier, rows_that_mixers_evict_give_the_same_bits, .timeout = 300) {
    static const char *const names[] = {"dmc", "dms", "mla, latents that evict, published and shared"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) same_bits(names[i], (ModelOpts){0}, true);
}
Test(cuda_tier, codecs_and_policies_give_the_same_bits, .timeout = 300) {
    static const struct {
        const char *policy, *codec;
    } how[] = {{NULL, "bf16"},
               {NULL, "int8"},
               {NULL, "fp8"},
               {NULL, "int4"},
               {"knorm:budget=0.5,window=3,sinks=1,every=4", NULL},
               {"h2o:budget=0.5,window=3,every=4", "int8"},
               {"snapkv:budget=0.4,window=4", NULL},
               {"expected:budget=0.5,window=3,sinks=1", NULL},
               {"morphkv:budget=0.5,window=3,every=4", NULL}};
    for (size_t i = 0; i < sizeof how / sizeof *how; i++)
        kept_bits(i % 2 ? "gqa" : "mla, shared latents", how[i].policy, how[i].codec);
}
Test(cuda_tier, selected_pages_give_the_same_bits, .timeout = 300) {
    /* the same pages, of which one policy leaves none out */
    const size_t some = kept_bits("gqa", "quest:reads=6,recent=4,page=3", NULL),
                 all = kept_bits("gqa", "quest:reads=1,recent=4,page=3", NULL);
    cr_assert(some < all, "%zu bytes read, %zu with all pages", some, all);
    kept_bits("mla, shared latents", "hybrid:reads=6,recent=4,page=3", "int8");
    kept_bits("shared by pairs (CLA)", "quest:reads=6,recent=4,page=3", "bf16");
    kept_bits("gqa", "infinigen:reads=6,recent=4,page=3", NULL);
    kept_bits("untied, two kinds", "tailorkv:reads=6,recent=4,page=1,sinks=1,coded=1,bits=4", NULL);
}

/* The limit is of the device's memory, and asks for as few slots as may be; what is too little is refused with the
 * number that is enough. */
Test(cuda_tier, the_limit_is_of_the_devices_memory) {
    Side d;
    Session s;
    Err e = {0};
    KvTier tier = {.memory = TIER_PLENTY};
    side_open(&d, "cuda", "untied, two kinds", (ModelOpts){0});
    const SessionOpts o = {.nseq = 1, .max_tokens = 4000, .document = -1};
    d.m.opts.tier = &tier;
    cr_assert(session_open(&s, &d.m, o, &e), "%s", e.msg);
    const KvDisk whole = session_disk(&s);
    cr_assert(whole.slots == 0 && whole.file == 0 && whole.of > 2);
    session_close(&s);
    tier.memory = whole.memory - 1, tier.alone = true;
    cr_assert(session_open(&s, &d.m, o, &e), "%s", e.msg);
    KvDisk some = session_disk(&s);
    cr_assert(some.slots > 0 && some.slots < some.of && some.memory <= tier.memory && some.file > 0,
              "%d of %d slots, %zu bytes, the limit is %zu", some.slots, some.of, some.memory, tier.memory);
    session_close(&s);
    tier.memory = 1000;
    cr_assert(!session_open(&s, &d.m, o, &e) && e.status == EXIT_INPUT);
    const char *at = strstr(e.msg, "needs ");
    size_t least = 0;
    cr_assert(strstr(e.msg, "with the rows of all layers in the host's memory") && at &&
                  sscanf(at, "needs %zu bytes", &least) == 1,
              "%s", e.msg);
    tier.memory = least;
    e = (Err){0};
    cr_assert(session_open(&s, &d.m, o, &e), "%s", e.msg);
    some = session_disk(&s);
    cr_assert(some.slots == some.of && some.memory <= least);
    session_close(&s);
    tier.memory = least - 1;
    cr_assert(!session_open(&s, &d.m, o, &e) && e.status == EXIT_INPUT, "%s", e.msg);
    side_close(&d);
}
static bool tier_refused(Device *dev, KvTier tier, KvShape shape, const char *part) {
    Cache c;
    Err e = {0};
    if (kv_open_tier(&c, dev, NULL, &tier, &shape, 1, 1, 8, 8, 0, true, false, &e)) {
        kv_close(&c);
        return false;
    }
    cr_assert(e.status == EXIT_INPUT && strstr(e.msg, part), "expected %s: %s", part, e.msg);
    return true;
}
Test(cuda_tier, what_does_not_go_together_is_refused) {
    const KvShape s = {.lanes = 1, .kdim = 4, .vdim = 4};
    const KvTier host = {.memory = 1 << 20}, disk = {.memory = 1 << 20, .dir = check_dir()};
    Device *cuda, *cpu;
    RowCodec kivi;
    Err e = {0};
    cr_assert(device_open(&cuda, "cuda", 1, &e) && device_open(&cpu, "cpu", 1, &e), "%s", e.msg);
    cr_assert(codec_parse("kivi4", &kivi, &e), "%s", e.msg);
    const KvShape blocks = {.lanes = 1, .kdim = 32, .vdim = 32, .codec = &kivi};
    cr_assert(tier_refused(cuda, disk, s, "go to the host's memory; leave it out"));
    cr_assert(tier_refused(cpu, host, s, "give --cache-disk DIR, too"));
    cr_assert(tier_refused(NULL, host, s, "give --cache-disk DIR, too"));
    cr_assert(tier_refused(cuda, host, blocks, "cannot be read on device"));
    cr_assert(!tier_refused(cuda, host, s, "") && !tier_refused(cpu, disk, s, ""));
    device_close(cuda), device_close(cpu);
}
/* More than the host pins: one line, and nothing is left open. Here that is a limit of the emulation, of 1 GiB. */
Test(cuda_tier, a_host_without_memory_is_a_run_time_failure) {
    enum { SLOTS = 12 };
    KvShape s[SLOTS];
    Device *cuda;
    Cache c;
    Err e = {0};
    const KvTier tier = {.memory = TIER_PLENTY, .alone = true, .least = SLOTS};
    cr_assert(device_open(&cuda, "cuda", 1, &e), "%s", e.msg);
    if (!rig_emulated(cuda)) cr_skip("how much a machine pins is its own affair");
    for (int i = 0; i < SLOTS; i++) s[i] = (KvShape){.lanes = 1, .kdim = 4096, .vdim = 4096};
    cr_assert(!kv_open_tier(&c, cuda, NULL, &tier, s, SLOTS, 1, 3000, 8, 0, false, false, &e));
    cr_assert(e.status == EXIT_RUNTIME && strstr(e.msg, "cannot pin") && strstr(e.msg, "--cache-memory"), "%s", e.msg);
    e = (Err){0};
    cr_assert(kv_open_tier(&c, cuda, NULL, &tier, s, 2, 1, 300, 8, 0, false, false, &e), "%s", e.msg);
    kv_close(&c);
    device_close(cuda);
}
