/* test_tier.c: rows on disk: the same bits as rows in memory, whatever is fed, forked or rewound; bytes that follow
 * from the rows; memory below the limit; disks that are full, fail or are not there. */
#include "layers/cache/codec.h"
#include "tests/lib/speaker.h"
#include "tests/lib/tier_story.h"
#include "train/bench/bench_decode.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

enum { T = TIER_TOKENS, PAGE = TIER_PAGE, CHUNK = TIER_CHUNK, SEQS = TIER_SEQS, STORY = TIER_STORY };
static const size_t PLENTY = TIER_PLENTY;

/* ---- bits --------------------------------------------------------------------------------------------------------*/

/* Compares counts of slots on disk, every `each`-th, with and without reading ahead, with a cache in memory. */
static int same_story(Model *m, const char *name, int each) {
    const size_t n = (size_t)(STORY * m->cfg.vocab);
    real *want = xcalloc(n, sizeof *want), *got = xcalloc(n, sizeof *got);
    Session s;
    int tried = 0, slots = tier_row_slots(m);
    tier_session(&s, m, NULL, PAGE);
    cr_assert(tier_story(&s, want) <= STORY);
    session_close(&s);
    for (int least = 1; least <= slots; least = least < slots ? imin(least + each, slots) : slots + 1)
        for (int alone = 0; alone < 2; alone++, tried++) {
            const KvTier tier = {.memory = PLENTY, .dir = check_dir(), .alone = alone, .least = least};
            char what[160];
            tier_session(&s, m, &tier, PAGE);
            memset(got, 0, n * sizeof *got);
            tier_story(&s, got);
            const int rows = tier_rows(&s);
            const KvDisk d = session_disk(&s);
            cr_assert(d.slots == least && d.of == slots && (d.read > 0) == (rows > 0) && d.written > 0,
                      "%s: %d of %d on disk", name, d.slots, d.of);
            snprintf(what, sizeof what, "%s, %d of %d slots on disk%s", name, least, slots, alone ? ", alone" : "");
            CHECK_BYTES(what, got, want, n * sizeof *got);
            session_close(&s);
        }
    m->opts.tier = NULL;
    free(want), free(got);
    return tried;
}
Test(tier, every_mixer_gives_the_same_bits, .timeout = 300) {
    int tried = 0;
    for (int i = 0; i < zoo_count(); i++) {
        ModelCfg cfg;
        Model m;
        Device *dev;
        zoo_open(&zoo[i], &cfg, &m, NULL, &dev, (ModelOpts){.max_rows = 0});
        tried += same_story(&m, zoo[i].name, 1);
        zoo_close(&cfg, &m, NULL, dev);
    }
    cr_assert(tried > 2 * zoo_count(), "%d caches", tried);
}
Test(tier, codecs_and_policies_give_the_same_bits, .timeout = 300) {
    static const char *const animals[] = {"gqa", "untied, two kinds", "mla", "shared by pairs (CLA)",
                                          "publisher and readers (YOCO)"};
    static const struct {
        const char *policy, *codec;
        bool bf16;
    } how[] = {{NULL, "bf16", false},
               {NULL, "int8", false},
               {NULL, "fp8", false},
               {NULL, "int4", false},
               {NULL, "int3:group=32", false},
               {NULL, "int2:group=64", false},
               {NULL, NULL, REAL == F32},
               {"knorm:budget=0.5,window=3,sinks=1,every=4", NULL, false},
               {"h2o:budget=0.5,window=3,every=4", "int8", false},
               {"snapkv:budget=0.4,window=4", NULL, false},
               {"snapkv:budget=0.4,window=4+pyramidkv+adakv", "int4", false},
               {"expected:budget=0.5,window=3,sinks=1", NULL, false},
               {"morphkv:budget=0.5,window=3,every=4", NULL, false},
               {"kvzip:budget=0.5,sinks=1,chunk=8", NULL, false},
               {"quest:reads=6,recent=4,page=3", NULL, false},
               {"infinigen:reads=6,recent=4,page=3", NULL, false},
               {"tailorkv:reads=6,recent=4,page=1,sinks=1,coded=1,bits=4", NULL, false},
               {"infinipot:budget=8,window=3,every=4", NULL, false}};
    bool met[sizeof how / sizeof *how] = {0};
    int tried = 0;
    for (size_t a = 0; a < sizeof animals / sizeof *animals; a++)
        for (size_t k = 0; k < sizeof how / sizeof *how; k++) {
            Speaker x;
            Keeping keep = {.policy = how[k].policy, .codec = how[k].codec, .bf16 = how[k].bf16};
            char name[200];
            snprintf(name, sizeof name, "%s, %s, %s", animals[a], how[k].policy ? how[k].policy : "no policy",
                     how[k].codec ? how[k].codec : "no codec");
            if (!speaker_keeping(&x, &zoo[zoo_find(animals[a])], &keep, 1)) continue;
            tried += same_story(&x.m, name, 8) > 0, met[k] = true;
            speaker_close(&x);
        }
    cr_assert(tried > 50, "%d combinations", tried);
    for (size_t k = 0; k < sizeof how / sizeof *how; k++)
        cr_assert(met[k] || (how[k].bf16 == false && !how[k].policy && !how[k].codec), "no model has %s",
                  how[k].policy ? how[k].policy : "a codec");
}

/* ---- bytes -------------------------------------------------------------------------------------------------------*/

/* Eight layers with full rows, of which the third and the sixth have a window. */
#define EIGHT(heads)                                                                                                 \
    "{\"d_model\":12,\"vocab\":11,\"max_positions\":8192,\"init_std\":0.4,\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":" \
    "10}],\"layers\":8,\"tied\":true,\"kinds\":{"                                                                    \
    "\"a\":{\"mixer\":\"gqa\"," heads "},\"w\":{\"mixer\":\"gqa\"," heads ",\"window\":9,\"sinks\":2}},\"pattern\":" \
    "[\"a\",\"a\",\"w\",\"a\",\"a\",\"w\",\"a\",\"a\"]}"
static const Animal eight = {"eight layers", EIGHT("\"heads\":4,\"kv_heads\":2,\"head_dim\":4")};

static int ceiling(int a, int b) { return (a + b - 1) / b; }
/* A step reads whole pages of the rows before it and writes its own rows, of the slots on disk: by arithmetic. */
Test(tier, bytes_follow_from_the_rows) {
    ModelCfg cfg;
    Model m;
    Device *dev;
    Err e = {0};
    const KvTier tier = {.memory = PLENTY, .dir = check_dir(), .least = 8};
    const size_t row = 2 * 2 * 4 * sizeof(real); /* lanes, key and value, width */
    zoo_open(&eight, &cfg, &m, NULL, &dev, (ModelOpts){.max_rows = 0});
    Session s;
    tier_session(&s, &m, &tier, PAGE);
    int tok[T];
    for (int i = 0; i < T; i++) tok[i] = i % 11;
    size_t read = 0, written = 0;
    for (int at = 0, n; at < 40; at += n) {
        n = at ? 1 : CHUNK;
        cr_assert(session_extend(&s, 1, &(Feed){0, n, tok + at}, WANT_LAST, ABSENT, &e), "%s", e.msg);
        const KvDisk d = session_disk(&s);
        /* of a window the newest 8 rows and 2 sinks, in the pages in which they lie */
        const int lo = imax(0, at - 8), sinks = imin(2, lo), first = lo / PAGE,
                  window = at ? ceiling(at, PAGE) - first + (sinks && first > (sinks - 1) / PAGE) : 0;
        read += (size_t)((6 * ceiling(at, PAGE) + 2 * window) * PAGE) * row;
        written += (size_t)(8 * n) * row;
        cr_assert(d.read == read && d.written == written,
                  "after %d tokens: %zu bytes read, expected %zu; %zu written, expected %zu", at + n, d.read, read,
                  d.written, written);
    }
    /* Two sequences that share pages: each page is read once; the page that is written to is copied first. */
    KvDisk before = session_disk(&s);
    session_fork(&s, 0, 1);
    cr_assert(session_extend(&s, 2, (Feed[]){{0, 1, tok}, {1, 1, tok + 1}}, WANT_LAST, ABSENT, &e), "%s", e.msg);
    KvDisk d = session_disk(&s);
    /* 40 rows fill 8 pages: new ones follow, none is copied. The windows' rows are 32..39 and 0..1. */
    cr_assert(d.read - before.read == (size_t)((6 * 8 + 2 * 3) * PAGE) * row, "%zu", d.read - before.read);
    cr_assert(d.written - before.written == 2 * 8 * row);
    session_fork(&s, 0, 1); /* with 41 rows: the last page of each lane is copied once */
    before = session_disk(&s);
    cr_assert(session_extend(&s, 2, (Feed[]){{0, 1, tok}, {1, 1, tok + 1}}, WANT_LAST, ABSENT, &e), "%s", e.msg);
    d = session_disk(&s);
    cr_assert(d.written - before.written == 2 * 8 * row + 8 * PAGE * row, "%zu", d.written - before.written);
    session_close(&s);
    zoo_close(&cfg, &m, NULL, dev);
}

/* Where a policy selects pages of 3 rows a step reads those alone, and once each page that may be left out from now on,
 * whose keys it sums up: by arithmetic, without reading ahead. Pages that the layer before guesses are all read ahead,
 * and so are all rows of the first layer, which nobody guesses. */
Test(tier, steps_read_the_pages_that_they_select) {
    enum { P = 3, RECENT = 4, READS = 10, LAYERS = 4, PROMPT = 24, STEPS = 20 };
    static const Animal four = {"four layers",
                                "{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"init_std\":0.4,\"layers\":4,"
                                "\"tied\":true,\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":10}],\"kinds\":{\"a\":{"
                                "\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4}},\"pattern\":[\"a\"]}"};
    static const char *const how[] = {"quest:reads=10,recent=4,page=3", "infinigen:reads=10,recent=4,page=3,below=1e9"};
    const size_t page = P * 2 * 4 * sizeof(real); /* of a lane: keys and values of four elements */
    for (int k = 0; k < 4; k++) {
        const bool guesses = k / 2, alone = k % 2 == 0;
        Speaker x;
        Err e = {0};
        const KvTier tier = {.memory = PLENTY, .dir = check_dir(), .alone = alone, .least = LAYERS};
        Keeping keep = {.policy = how[guesses]};
        cr_assert(speaker_keeping(&x, &four, &keep, 1));
        Session s;
        int tok[PROMPT], exact = 0;
        real logits[11];
        for (int i = 0; i < PROMPT; i++) tok[i] = (i * 7 + i / 5) % 11;
        tier_session(&s, &x.m, &tier, PAGE);
        cr_assert(session_extend(&s, 1, &(Feed){0, PROMPT, tok}, WANT_LAST, ABSENT, &e), "%s", e.msg);
        cr_assert(session_prompt_ends(&s, 0, &e), "%s", e.msg);
        for (int i = 0, before = 0; i < STEPS; i++) {
            const int pos = PROMPT + i, all = (pos + P - 1) / P;
            const KvDisk from = session_disk(&s);
            cr_assert(session_extend(&s, 1, &(Feed){0, 1, tok + i}, WANT_LAST, TENSOR(logits, REAL, 1, 11), &e), "%s",
                      e.msg);
            const KvDisk to = session_disk(&s);
            int older = 0; /* pages that may be left out */
            while ((older + 1) * P - 1 < pos - RECENT && (older + 1) * P <= pos) older++;
            const int most = imin(older, (READS - RECENT + P - 1) / P), each = all - older + most,
                      fresh = older - before, selects = LAYERS - guesses;
            const size_t least = (size_t)(2 * (selects * each + guesses * all)) * page,
                         extra = (size_t)(2 * selects * fresh) * page, read = to.read - from.read,
                         late = to.late - from.late;
            before = older;
            cr_assert(read >= least && (!alone || read <= least + extra),
                      "%s, step %d%s: %zu bytes read, %zu expected and up to %zu for new summaries", how[guesses], i,
                      alone ? ", alone" : "", read, least, extra);
            if (alone) cr_assert_eq(late, read);
            if (alone && !fresh) exact++;
            if (!alone && guesses && i)
                cr_assert(read <= least + extra && late <= extra, "step %d: %zu bytes read, %zu late", i, read, late);
        }
        cr_assert(!alone || exact > STEPS / 2, "%d steps are known exactly", exact);
        session_close(&s);
        speaker_close(&x);
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------*/

/* The fewest slots that the limit asks for, the largest first and not all in one place; what is too little is refused
 * with the number that is enough. */
Test(tier, the_limit_decides_which_slots) {
    ModelCfg cfg;
    Model m;
    Device *dev;
    KvTier tier = {.memory = PLENTY, .dir = check_dir()};
    Session s;
    Err e = {0};
    zoo_open(&eight, &cfg, &m, NULL, &dev, (ModelOpts){.max_rows = 0});
    tier_session(&s, &m, &tier, PAGE);
    const KvDisk whole = session_disk(&s);
    cr_assert(whole.slots == 0 && whole.of == 8 && whole.file == 0);
    session_close(&s);
    const SessionOpts o = {
        .nseq = SEQS, .max_tokens = T, .chunk = CHUNK, .page_rows = PAGE, .document = -1, .want_all = true};
    m.opts.tier = &tier;
    int last = 0, seen[9] = {0};
    for (size_t limit = whole.memory; last < 8; limit -= 64) {
        tier.memory = limit;
        if (!session_open(&s, &m, o, &e)) break;
        const KvDisk d = session_disk(&s);
        cr_assert(d.memory <= limit && d.slots >= last, "%zu bytes of %zu, %d slots on disk", d.memory, limit, d.slots);
        int full = 0, windows = 0, run = 0, longest = 0;
        for (int i = 0; i < 8; i++) {
            const bool disk = kv_lanes(kv_slot(&s.cache, i))->data.p == NULL, window = i == 2 || i == 5;
            *(window ? &windows : &full) += disk;
            if (!window) run = disk ? run + 1 : 0, longest = imax(longest, run);
        }
        cr_assert(full + windows == d.slots && (!windows || full == 6), "%d full slots, %d with a window", full,
                  windows);
        /* the slots in memory divide those on disk evenly, and the first is in memory */
        cr_assert(longest == (full == 0   ? 0
                              : full == 6 ? 6
                                          : ceiling(full, 6 - full)),
                  "%d of 6: %d in a row", full, longest);
        seen[last = d.slots] = 1;
        session_close(&s);
    }
    int distinct = 0;
    for (int n = 0; n <= 8; n++) distinct += seen[n];
    /* one or two on disk need as much as none: two buffers of their size */
    cr_assert(distinct >= 5 && seen[0] && seen[3] && seen[6], "%d placements", distinct);
    tier.memory = 1000;
    e = (Err){0};
    cr_assert(!session_open(&s, &m, o, &e));
    const char *at = strstr(e.msg, "needs ");
    size_t least = 0;
    cr_assert(e.status == EXIT_INPUT && at && sscanf(at, "needs %zu bytes", &least) == 1, "%s", e.msg);
    for (int less = 0; less < 2; less++) {
        Err why = {0};
        tier.memory = least - (size_t)less;
        const bool ok = session_open(&s, &m, o, &why);
        cr_assert(ok == !less && (ok || why.status == EXIT_INPUT), "%zu bytes: %s", tier.memory, why.msg);
        if (ok) session_close(&s);
    }
    zoo_close(&cfg, &m, NULL, dev);
}

static size_t anonymous(void) {
    char line[200];
    size_t kb = 0;
    FILE *f = fopen("/proc/self/status", "re");
    cr_assert(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %zu kB", &kb) == 1) break;
    fclose(f);
    return kb << 10;
}
/* Anonymous memory of a context of 6,000 tokens in which every row has been written and read. */
static size_t memory_of(Model *m, const KvTier *tier, KvDisk *disk) {
    Decode d;
    Err e = {0};
    const size_t before = anonymous();
    m->opts.tier = tier;
    cr_assert(decode_open(&d, m, (DecodeOpts){.B = 1, .prompt = 6000, .room = 3, .chunk = 64, .fill = true}, &e), "%s",
              e.msg);
    cr_assert(decode_fill(&d, &e), "%s", e.msg);
    for (int i = 0; i < 3; i++) cr_assert(decode_step(&d, &e), "%s", e.msg);
    const size_t now = anonymous(), scratch = d.s.own.scratch.size;
    *disk = session_disk(&d.s);
    decode_close(&d);
    return now - before - zmin(scratch, now - before);
}
Test(tier, memory_stays_below_the_limit, .timeout = 60) {
    static const Animal large = {"large", EIGHT("\"heads\":4,\"kv_heads\":2,\"head_dim\":64")};
    const size_t slack = 4 << 20; /* pages of 2 MB reach beyond a region; a buffer has 6 MB */
    ModelCfg cfg;
    Model m;
    Device *dev;
    KvDisk disk;
    zoo_open(&large, &cfg, &m, NULL, &dev, (ModelOpts){.max_rows = 0});
    m.opts.poison = false; /* which writes to memory that nobody uses */
    const size_t whole = memory_of(&m, NULL, &disk), dense = (size_t)6 * 6000 * 2 * 2 * 64 * sizeof(real);
    cr_assert(whole >= dense, "%zu bytes in memory, of rows alone %zu", whole, dense);
    for (int divide = 2; divide <= 3; divide++) {
        const KvTier tier = {.memory = dense / (size_t)divide + (1 << 20), .dir = check_dir(), .alone = divide == 3};
        const size_t have = memory_of(&m, &tier, &disk);
        cr_assert(disk.slots > 2 && disk.memory <= tier.memory && have <= tier.memory + slack,
                  "%zu bytes of anonymous memory, the limit is %zu; %d slots on disk", have, tier.memory, disk.slots);
    }
    zoo_close(&cfg, &m, NULL, dev);
}

/* ---- disks -------------------------------------------------------------------------------------------------------*/

/* The descriptor of the session's file, which has no name. */
static int unnamed(void) {
    DIR *d = opendir("/proc/self/fd");
    int fd = -1;
    for (struct dirent *x; d && (x = readdir(d));) {
        char link[300], to[PATH_MAX] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%s", x->d_name);
        const ssize_t n = readlink(link, to, sizeof to - 1);
        to[n > 0 ? n : 0] = 0;
        if (!strncmp(to, check_dir(), strlen(check_dir())) && strstr(to, "(deleted)")) fd = atoi(x->d_name);
    }
    closedir(d);
    cr_assert(fd >= 0, "no file without a name in %s", check_dir());
    return fd;
}
/* A disk that fails in the middle: the call ends with one line that names it, and so do later ones. */
Test(tier, a_disk_that_fails_ends_the_call, .timeout = 30) {
    static const struct {
        const char *path, *what;
        int how;
    } fault[] = {{"/dev/null", "read", O_RDWR}, {"/dev/full", "write", O_RDWR}, {"/dev/null", "write", O_RDONLY}};
    ModelCfg cfg;
    Model m;
    Device *dev;
    zoo_open(&eight, &cfg, &m, NULL, &dev, (ModelOpts){.max_rows = 0});
    for (int alone = 0; alone < 2; alone++)
        for (size_t k = 0; k < sizeof fault / sizeof *fault; k++) {
            const KvTier tier = {.memory = PLENTY, .dir = check_dir(), .alone = alone, .least = 8};
            Session s;
            Err e = {0}, again = {0};
            int tok[T] = {1, 2, 3, 4, 5, 6, 7, 8};
            tier_session(&s, &m, &tier, PAGE);
            cr_assert_eq(check_entries(check_dir()), 0, "a file with a name");
            if (k == 0) cr_assert(session_extend(&s, 1, &(Feed){0, 20, tok}, WANT_LAST, ABSENT, &e), "%s", e.msg);
            int fd = open(fault[k].path, fault[k].how), own = unnamed();
            cr_assert(fd >= 0 && dup2(fd, own) == own);
            close(fd);
            cr_assert(!session_extend(&s, 1, &(Feed){0, 3, tok}, WANT_LAST, ABSENT, &e), "%s %s goes unnoticed",
                      fault[k].path, fault[k].what);
            cr_assert(e.status == EXIT_RUNTIME && strstr(e.msg, fault[k].what) && strstr(e.msg, check_dir()) &&
                          strstr(e.msg, "--cache-disk"),
                      "%s", e.msg);
            cr_assert_eq(session_length(&s, 0), 0);
            cr_assert(!session_extend(&s, 1, &(Feed){1, 3, tok}, WANT_LAST, ABSENT, &again) &&
                          again.status == EXIT_RUNTIME && !strcmp(again.msg, e.msg),
                      "%s", again.msg);
            session_close(&s);
        }
    zoo_close(&cfg, &m, NULL, dev);
}
Test(tier, folders_that_cannot_be_used) {
    ModelCfg cfg;
    Model m;
    Device *dev;
    Session s;
    zoo_open(&eight, &cfg, &m, NULL, &dev, (ModelOpts){.max_rows = 0});
    char *missing = check_path("missing"), *file = check_path("file");
    check_write(file, "x", 1);
    const char *const dirs[] = {missing, file, ""};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
        for (int least = 0; least < 2; least++) { /* also where nothing goes there */
            const KvTier tier = {.memory = PLENTY, .dir = dirs[i], .least = least};
            Err e = {0};
            m.opts.tier = &tier;
            cr_assert(!session_open(&s, &m, (SessionOpts){.nseq = 1, .max_tokens = T}, &e), "'%s'", dirs[i]);
            cr_assert(e.status == EXIT_INPUT && strstr(e.msg, "cannot create a file in"), "%s", e.msg);
        }
    free(missing), free(file);
    zoo_close(&cfg, &m, NULL, dev);
}
