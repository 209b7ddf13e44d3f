/* test_sets.c: sets of token ids: read (files written by numpy, tests/golden/make_sets.py), refused, written, mixed. */
#include "tests/lib/check.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "data/loader.h"
#include "data/set_write.h"
#include "data/text.h"

#define SETS "tests/golden/sets/"

static void refused(bool ok, const Err *e, int status, const char *part) {
    cr_assert(!ok, "accepted; expected an error with '%s'", part);
    cr_assert_eq(e->status, status, "status %d, expected %d: %s", e->status, status, e->msg);
    cr_assert(strlen(e->msg) > 0 && !strchr(e->msg, '\n'), "message '%s'", e->msg);
    cr_assert(strstr(e->msg, part), "message '%s' does not contain '%s'", e->msg, part);
}
static void open_set(Set *s, const char *path) {
    SetKind kind;
    Err e = {0};
    cr_assert(set_kind(path, &kind, &e), "%s", e.msg);
    cr_assert(kind != SET_TEXT, "%s is taken for text", path);
    cr_assert(set_open(s, path, kind, &e), "%s", e.msg);
}

/* The documents of make_sets.py. */
static const int ids[] = {1, 2, 3, 0, 4, 0, 5, 6, 7, 8, 9, 0, 10, 11, 12, 0}, begins[] = {0, 4, 6, 12, 16};
static const int bare[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, bare_begins[] = {0, 3, 4, 9, 12};
static const int before[] = {0, 1, 2, 3, 0, 4, 0, 5, 6, 7, 8, 9, 0, 10, 11, 12};

/* ---- reading --------------------------------------------------------------------------------------------------------
 */

static void expect_set(const char *path, IdType type, const int *want, size_t n, const int *begin, size_t ndoc) {
    Set s;
    open_set(&s, path);
    cr_assert(s.all.type == type && s.all.n == n, "%s: %s, %zu ids", path, id_name(s.all.type), s.all.n);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(token_at(&s.all, i), want[i], "%s: id %zu is %lld, expected %d", path, i,
                     (long long)token_at(&s.all, i), want[i]);
    cr_assert_eq(!begin, !s.all.docs, "%s", path);
    for (size_t d = 0; begin && d <= ndoc; d++) cr_assert_eq((int)docs_start(&s.docs, d), begin[d], "%s: %zu", path, d);
    for (size_t at = 0; begin && at < n; at++) {
        size_t d = 0;
        while (d < ndoc && (size_t)begin[d] < at) d++;
        size_t next = d < ndoc ? (size_t)begin[d] : SIZE_MAX;
        cr_assert_eq(tokens_next_doc(&s.all, at), next, "%s: behind %zu", path, at);
        Tokens part = tokens_slice(s.all, 3, 8); /* ids 3 .. 10 */
        size_t in = next != SIZE_MAX && next < 11 && next >= 3 ? next : SIZE_MAX;
        if (at >= 3 && at < 11) cr_assert_eq(tokens_next_doc(&part, at - 3), in == SIZE_MAX ? in : in - 3);
    }
    set_close(&s);
}
Test(sets, golden) {
    const struct {
        const char *name;
        IdType type;
    } kind[] = {{"uint8", ID_8},   {"int8", ID_S8},   {"int16", ID_S16},
                {"int32", ID_S32}, {"int64", ID_S64}, {"uint16", ID_16}};
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++)
        for (int how = 0; how < 3; how++) {
            static const char *const tail[] = {"", ".bin", ".idx"};
            char *path = xformat(SETS "%s%s", kind[i].name, tail[how]);
            expect_set(path, kind[i].type, ids, 16, begins, 4);
            free(path);
        }
    expect_set(SETS "several.idx", ID_S32, ids, 16, begins, 4);
    expect_set(SETS "bare", ID_16, bare, 12, bare_begins, 4);
    expect_set(SETS "gpt2.bin", ID_16, before, 16, NULL, 0);
    expect_set(SETS "llama3.bin", ID_32, before, 16, NULL, 0);
    Set s;
    Err e = {0};
    refused(set_open(&s, SETS "float32", SET_MEGATRON, &e), &e, EXIT_INPUT, "type 7 of ids");
}

static char *copy_of(const char *from, const char *name) {
    size_t n;
    char *bytes = check_read(from, &n), *path = check_path(name);
    check_write(path, bytes, n);
    free(bytes);
    return path;
}

Test(sets, kinds_of_paths) {
    SetKind k;
    Err e = {0};
    char *text = check_path("a.txt"), *bin = check_path("b.bin"), *gz = check_path("c.gz"), *zst = check_path("d"),
         *none = check_path("none"), *idx = check_path("none.idx"), *named = check_path("llmc");
    check_write(text, "words", 5);
    check_write(bin, "words", 5);
    check_write(gz, "\x1f\x8b\x08zz", 5);
    check_write(zst, "\x28\xb5\x2f\xfdz", 5);
    cr_assert(set_kind(text, &k, &e) && k == SET_TEXT);
    refused(set_kind(bin, &k, &e), &e, EXIT_INPUT, "has neither an llm.c header nor an .idx file next to it");
    refused(set_kind(gz, &k, &e), &e, EXIT_INPUT, "compressed");
    refused(set_kind(zst, &k, &e), &e, EXIT_INPUT, "kvsmith data tokenize");
    refused(set_kind(none, &k, &e), &e, EXIT_INPUT, "No such file");
    copy_of(SETS "gpt2.bin", "llmc"); /* known by its header */
    cr_assert(set_kind(named, &k, &e) && k == SET_LLMC);
    Set s;
    cr_assert(set_kind(idx, &k, &e) && k == SET_MEGATRON);
    refused(set_open(&s, idx, k, &e), &e, EXIT_INPUT, "none.bin: No such file");
    copy_of(SETS "uint16.bin", "x.bin");
    refused(set_kind(check_path("x.bin"), &k, &e), &e, EXIT_INPUT, "nor an .idx file next to it");
    refused(set_kind(check_dir(), &k, &e), &e, EXIT_INPUT, "found a directory");
}

/* ---- hostile --------------------------------------------------------------------------------------------------------
 */

static void put8(char *p, size_t at, uint64_t v) { memcpy(p + at, &v, 8); }
static void put4(char *p, size_t at, uint32_t v) { memcpy(p + at, &v, 4); }
/* A copy of exact size lets the sanitizers see a read past it. */
static bool check_idx(const char *p, size_t n, size_t bin, Err *e) {
    unsigned char *exact = malloc(n ? n : 1);
    memcpy(exact, p, n);
    Docs d;
    IdType t;
    *e = (Err){0};
    bool ok = megatron_check(exact, n, bin, "x.idx", &d, &t, e);
    free(exact);
    return ok;
}

Test(sets, hostile_index) {
    size_t n;
    char *idx = check_read(SETS "uint16.idx", &n), *p = malloc(n + 64);
    Err e;
    cr_assert(check_idx(idx, n, 32, &e), "%s", e.msg);
    for (size_t cut = 0; cut < n; cut++) refused(check_idx(idx, cut, 32, &e), &e, EXIT_INPUT, "x.idx");
    for (size_t bin = 0; bin < 64; bin++)
        if (bin != 32)
            refused(check_idx(idx, n, bin, &e), &e, EXIT_INPUT,
                    bin < 32 ? "points past the .bin" : "32 bytes, but the .bin has");
    const uint64_t huge[] = {
        5,          1000,       1ull << 31,         1ull << 32, 1ull << 60, (1ull << 61) + 4, (1ull << 63) - 1,
        1ull << 63, UINT64_MAX, UINT64_MAX / 12 + 5};
    const size_t seqs = 18, docs = 26, len = 34, at = len + 16, doc = at + 32;
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        const size_t where[] = {seqs, docs};
        for (int k = 0; k < 2; k++) {
            if (k && huge[i] == 5) continue; /* as it stands */
            memcpy(p, idx, n), put8(p, where[k], huge[i]);
            refused(check_idx(p, n, 32, &e), &e, EXIT_INPUT, "are too few for");
        }
        memcpy(p, idx, n), put8(p, at + 8, huge[i]);
        refused(check_idx(p, n, 32, &e), &e, EXIT_INPUT, "sequence 1 begins at byte");
        memcpy(p, idx, n), put8(p, doc + 8, huge[i]);
        refused(check_idx(p, n, 32, &e), &e, EXIT_INPUT, "document");
        memcpy(p, idx, n), put4(p, len + 12, (uint32_t)huge[i]);
        if (huge[i] == 5 || (uint32_t)huge[i] == 4) continue;
        bool ok = check_idx(p, n, 32, &e);
        refused(ok, &e, EXIT_INPUT,
                (int32_t)(uint32_t)huge[i] < 0 ? "sequence 3 has -"
                : (uint32_t)huge[i] > 4        ? "points past"
                                               : "need 24 bytes, but");
    }
    const struct {
        size_t at;
        uint64_t v;
        int bytes;
        const char *says;
    } bad[] = {{0, 'X', 1, "first 9 bytes"},
               {8, 1, 1, "first 9 bytes"},
               {9, 2, 8, "version 2"},
               {17, 0, 1, "type 0"},
               {17, 9, 1, "type 9"},
               {17, 6, 1, "dataset has floats"},
               {at, 2, 8, "sequence 0 begins"},
               {at + 8, 6, 8, "sequence 1 begins"},
               {doc, 1, 8, "first document begins"},
               {doc + 8, 3, 8, "document 2 begins at sequence 2"},
               {doc + 32, 3, 8, "documents end at"},
               {doc + 32, 5, 8, "document 4 begins at sequence 5"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memcpy(p, idx, n);
        memcpy(p + bad[i].at, &bad[i].v, (size_t)bad[i].bytes);
        refused(check_idx(p, n, 32, &e), &e, EXIT_INPUT, bad[i].says);
    }
    memcpy(p, idx, n), memset(p + n, 0, 8);
    cr_assert(check_idx(p, n + 4, 32, &e), "modes of text: %s", e.msg);
    refused(check_idx(p, n + 3, 32, &e), &e, EXIT_INPUT, "3 bytes after the documents");
    p[n + 2] = 1;
    refused(check_idx(p, n + 4, 32, &e), &e, EXIT_INPUT, "sequence 2 has mode 1");
    memset(p + 18, 0, 16);
    refused(check_idx(p, 34, 0, &e), &e, EXIT_INPUT, "no documents");
    free(idx);
    free(p);
}

Test(sets, hostile_llmc) {
    size_t n;
    char *golden = check_read(SETS "gpt2.bin", &n), *p = malloc(n);
    Tokens t;
    Err e = {0};
    cr_assert(llmc_check((unsigned char *)golden, n, "x", &t, &e), "%s", e.msg);
    for (size_t cut = 0; cut < n; cut += cut < 1000 ? 37 : 1) {
        unsigned char *exact = malloc(cut ? cut : 1);
        memcpy(exact, golden, cut);
        refused(llmc_check(exact, cut, "x.bin", &t, &e), &e, EXIT_INPUT, "x.bin");
        free(exact);
    }
    const struct {
        size_t at;
        uint32_t v;
        const char *says;
    } bad[] = {{0, 1, "expected llm.c's header"},
               {4, 2, "expected llm.c's header"},
               {4, 7, "expected llm.c's header"},
               {8, 0, "0 tokens by its header"},
               {8, UINT32_MAX, "-1 tokens"},
               {8, 1u << 31, "-2147483648 tokens"},
               {8, INT32_MAX, "need 4294967294 bytes"},
               {8, 15, "need 30 bytes, but 32 follow"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memcpy(p, golden, n), put4(p, bad[i].at, bad[i].v);
        refused(llmc_check((unsigned char *)p, n, "x.bin", &t, &e), &e, EXIT_INPUT, bad[i].says);
    }
    free(golden);
    free(p);
}

/* What happens to a file while it is mapped. */
Test(sets, files_that_change) {
    const char *now;
    Err e = {0};
    char *bin = copy_of(SETS "uint16.bin", "a.bin"), *idx = copy_of(SETS "uint16.idx", "a.idx");
    struct timespec later[2] = {{.tv_sec = 2000000000}, {.tv_sec = 2000000000}};
    Set s, t;
    open_set(&s, bin);
    cr_assert(set_unchanged(&s, &now, &e) && !now);
    copy_of(SETS "uint16.bin", "b.bin");
    cr_assert(!rename(check_path("b.bin"), bin));
    cr_assert(set_unchanged(&s, &now, &e) && now && !strcmp(now, bin), "%s", e.msg); /* the mapped one still stands */
    cr_assert(!unlink(bin));
    cr_assert(set_unchanged(&s, &now, &e) && now, "%s", e.msg);
    set_close(&s);
    bin = copy_of(SETS "uint16.bin", "a.bin");
    open_set(&s, bin);
    cr_assert(!utimensat(AT_FDCWD, idx, later, 0));
    refused(set_unchanged(&s, &now, &e), &e, EXIT_RUNTIME, "a.idx: was written to since it was opened");
    set_close(&s);
    open_set(&s, bin);
    cr_assert(!truncate(bin, 30));
    refused(set_unchanged(&s, &now, &e), &e, EXIT_RUNTIME, "a.bin: had 32 bytes when it was opened, now 30");
    set_close(&s);
    refused(set_open(&t, bin, SET_MEGATRON, &e), &e, EXIT_INPUT, "points past the .bin");
}

/* A page that is gone is one line and EXIT_RUNTIME, not a killed process. */
Test(sets, a_page_that_is_gone) {
    char *path = check_path("big"), *says = check_path("stderr"), line[256] = "";
    check_write(path, "x", 1);
    cr_assert(!truncate(path, 1 << 20));
    pid_t pid = fork();
    if (!pid) {
        FileMap m;
        int fd = open(says, O_WRONLY | O_CREAT, 0600);
        if (!file_map(&m, path, NULL) || dup2(fd, STDERR_FILENO) < 0) _exit(99);
        set_catch_sigbus();
        if (truncate(path, 0)) _exit(98);
        _exit(m.p[1 << 19] ? 96 : 97);
    }
    int status;
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_RUNTIME, "status %x", status);
    FILE *f = fopen(says, "r");
    cr_assert(f && fgets(line, sizeof line, f) && strstr(line, "a mapped file") && fgetc(f) == EOF, "%s", line);
}

/* Another id anywhere gives another hash. */
Test(sets, hash_sees_every_byte) {
    size_t n;
    char *bytes = check_read(SETS "uint16.bin", &n);
    char *bin = copy_of(SETS "uint16.bin", "h.bin");
    copy_of(SETS "uint16.idx", "h.idx");
    Set s;
    open_set(&s, bin);
    uint64_t was = s.hash;
    set_close(&s);
    for (size_t i = 0; i < n; i++) {
        bytes[i] ^= 1;
        check_write(bin, bytes, n);
        bytes[i] ^= 1;
        open_set(&s, bin);
        cr_assert_neq(s.hash, was, "byte %zu", i);
        set_close(&s);
    }
    free(bytes);
}

/* ---- writing --------------------------------------------------------------------------------------------------------
 */

static void write_set(const char *prefix, SetWriteCfg cfg, const int *id, const int *begin, size_t ndoc) {
    Err e = {0};
    SetWriter *w = set_write_open(&cfg, prefix, &e);
    cr_assert(w, "%s", e.msg);
    SetWritten sum;
    for (size_t d = 0; d < ndoc; d++) {
        int n = begin[d + 1] - begin[d], half = n / 2; /* in two pieces */
        cr_assert(set_write_ids(w, id + begin[d], (size_t)half, &e) &&
                      set_write_ids(w, id + begin[d] + half, (size_t)(n - half), &e) && set_write_document(w, &e),
                  "%s", e.msg);
    }
    cr_assert(set_write_commit(w, &sum, &e), "%s", e.msg);
    cr_assert_eq(sum.documents, (int64_t)ndoc);
    cr_assert_eq(sum.tokens, begin[ndoc]);
    set_write_close(w);
}
static void expect_file(const char *path, const char *golden) {
    size_t n, m;
    char *got = check_read(path, &n), *want = check_read(golden, &m);
    cr_assert_eq(n, m, "%s: %zu bytes, expected %zu", path, n, m);
    CHECK_BYTES(path, got, want, n);
    free(got);
    free(want);
}
Test(sets, written_as_numpy_writes) {
    static const int first[] = {0, 4, 6, 12, 16};
    write_set(check_path("m"), (SetWriteCfg){SET_MEGATRON, 100, 0}, ids, begins, 4);
    expect_file(check_path("m.bin"), SETS "uint16.bin");
    expect_file(check_path("m.idx"), SETS "uint16.idx");
    write_set(check_path("w"), (SetWriteCfg){SET_MEGATRON, 65500, 0}, ids, begins, 4); /* from there on int32 */
    expect_file(check_path("w.bin"), SETS "int32.bin");
    expect_file(check_path("w.idx"), SETS "int32.idx");
    write_set(check_path("b"), (SetWriteCfg){SET_MEGATRON, 65499, 0}, bare, bare_begins, 4);
    expect_file(check_path("b.bin"), SETS "bare.bin");
    expect_file(check_path("b.idx"), SETS "bare.idx");
    write_set(check_path("g"), (SetWriteCfg){SET_LLMC, 65536, 0}, before, first, 4);
    expect_file(check_path("g.bin"), SETS "gpt2.bin");
    write_set(check_path("l"), (SetWriteCfg){SET_LLMC, 65537, 0}, before, first, 4);
    expect_file(check_path("l.bin"), SETS "llama3.bin");
    cr_assert_eq(check_entries(check_dir()), 8, "%d files", check_entries(check_dir()));
}

Test(sets, written_in_shards) {
    static const int first[] = {0, 4, 6, 12, 16};
    write_set(check_path("s"), (SetWriteCfg){SET_LLMC, 100, 7}, before, first, 4);
    cr_assert_eq(check_entries(check_dir()), 3);
    size_t seen = 0;
    for (int i = 0; i < 3; i++) {
        char *name = xformat("s_%06d.bin", i);
        Set s;
        open_set(&s, check_path(name));
        cr_assert_eq(s.all.n, i < 2 ? 7 : 2);
        for (size_t k = 0; k < s.all.n; k++) cr_assert_eq(token_at(&s.all, k), before[seen++]);
        set_close(&s);
        free(name);
    }
    cr_assert_eq(seen, 16);
}

/* What a killed writer has left goes, all of it; what another one writes at the moment stays, and the second is
 * told. */
Test(sets, one_writer_of_a_name) {
    static const char *const left[] = {"x.set", "x.bin", "x.idx", "x.lengths", "x_000000.bin", "x_000300.bin"};
    Err e = {0};
    SetWritten sum;
    SetWriteCfg cfg = {SET_MEGATRON, 100, 0};
    char *prefix = check_path("x"), *bin = check_path("x.bin"), *got;
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        char *path = check_path(left[i]), *tmp = file_unfinished(path);
        check_write(tmp, "left", 4);
        free(path), free(tmp);
    }
    SetWriter *w = set_write_open(&cfg, prefix, &e);
    cr_assert(w && set_write_ids(w, ids, 16, &e) && set_write_document(w, &e), "%s", e.msg);
    refused(set_write_open(&cfg, prefix, &e) != NULL, &e, EXIT_INPUT, "another process is writing it");
    refused(set_write_open(&(SetWriteCfg){SET_LLMC, 100, 1}, prefix, &e) != NULL, &e, EXIT_INPUT, "another process");
    cr_assert(set_write_commit(w, &sum, &e), "%s", e.msg);
    set_write_close(w);
    cr_assert_eq(check_entries(check_dir()), 2, "%d entries", check_entries(check_dir()));
    size_t n;
    got = check_read(bin, &n);
    cr_assert_eq(n, 2 * 16);
    free(got), free(bin), free(prefix);
}

Test(sets, nothing_stays_of_what_fails) {
    Err e = {0};
    SetWritten sum;
    char *prefix = check_path("x"), *deep = check_path("none/x");
    SetWriter *w = set_write_open(&(SetWriteCfg){SET_MEGATRON, 100, 0}, prefix, &e);
    cr_assert(w && set_write_ids(w, ids, 16, &e) && set_write_document(w, &e));
    cr_assert(check_entries(check_dir()) >= 1);
    set_write_close(w);
    cr_assert_eq(check_entries(check_dir()), 0);
    w = set_write_open(&(SetWriteCfg){SET_MEGATRON, 100, 0}, prefix, &e);
    refused(set_write_commit(w, &sum, &e), &e, EXIT_INPUT, "there is nothing to write");
    set_write_close(w);
    w = set_write_open(&(SetWriteCfg){SET_LLMC, 100, 1}, prefix, &e);
    int zeros[SET_SHARDS_MAX + 1] = {0};
    refused(set_write_ids(w, zeros, SET_SHARDS_MAX + 1, &e), &e, EXIT_INPUT, "more than 512 shards");
    set_write_close(w);
    cr_assert_eq(check_entries(check_dir()), 0);
    refused(set_write_open(&(SetWriteCfg){SET_LLMC, 100, 0}, deep, &e) != NULL, &e, EXIT_INPUT, "No such file");
}

/* A writer says in one line that renames begin. A kill inside that line leaves a part of it: the old set is whole. */
Test(sets, part_of_a_word_renames_nothing) {
    static const int first[] = {0, 4, 6, 12, 16};
    static const char word[] = "publishing 1 0\n";
    char *prefix = check_path("x"), *bin = check_path("x.bin"), *tmp = set_publishing(prefix);
    write_set(prefix, (SetWriteCfg){SET_MEGATRON, 65500, 0}, before, first, 4);
    for (size_t n = 0; n < sizeof word; n++) {
        Err e = {0};
        SetKind kind;
        check_write(tmp, word, n);
        if (n + 1 < sizeof word)
            cr_assert(set_kind(bin, &kind, &e) && kind == SET_MEGATRON, "%zu bytes: %s", n, e.msg);
        else
            refused(set_kind(bin, &kind, &e), &e, EXIT_INPUT, "was interrupted");
    }
    free(prefix), free(bin), free(tmp);
}

/* ---- blends ---------------------------------------------------------------------------------------------------------
 */

static Blend blend_ok(int n, const double *weight) {
    Blend b;
    Err e = {0};
    cr_assert(blend_weights(&b, n, weight, &e), "%s", e.msg);
    b.of = xcalloc(b.D, sizeof *b.of);
    b.rank = xcalloc(b.D, sizeof *b.rank);
    blend_fill(&b);
    return b;
}
static void blend_free(Blend *b) {
    free(b->of);
    free(b->rank);
}

/* Counted from the beginning, every set stays within 1 - 1/(2n - 2) samples of its share; numbers of samples of a set
 * are 0, 1, 2, ... . */
static void expect_blend(int n, const double *weight) {
    Blend b = blend_ok(n, weight);
    double sum = 0, worst = 0, bound = n > 1 ? 1 - 1 / (2.0 * n - 2) : 0;
    uint64_t count[PARTS_MAX] = {0}, most = zmin(3 * (size_t)b.D + 7, 200000);
    for (int i = 0; i < n; i++) sum += weight[i];
    for (uint64_t s = 0; s < most; s++) {
        int part = -1;
        uint64_t k = 0;
        blend_at(&b, s, &part, &k);
        cr_assert(part >= 0 && part < n);
        cr_assert_eq(k, count[part], "sample %llu is number %llu of set %d, expected %llu", (unsigned long long)s,
                     (unsigned long long)k, part, (unsigned long long)count[part]);
        count[part]++;
        for (int i = 0; i < n; i++) worst = fmax(worst, fabs((double)count[i] - (double)(s + 1) * weight[i] / sum));
    }
    cr_assert(worst <= bound + 1e-6, "%d sets: off by %g samples, at most %g", n, worst, bound);
    blend_free(&b);
}
Test(sets, blends_keep_their_shares) {
    const double w[][5] = {
        {1},       {1, 1},    {0.7, 0.2, 0.1}, {1, 2, 3, 4, 5}, {0.999, 0.001}, {1000, 1, 1, 1}, {0.333, 0.667},
        {3, 3, 3}, {0.125, 7}};
    const int n[] = {1, 2, 3, 5, 2, 4, 2, 3, 2};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) expect_blend(n[i], w[i]);
    for (uint64_t seed = 0; seed < 150; seed++) {
        double r[PARTS_MAX];
        int k = 2 + (int)(rng_uniform(seed, 0) * (seed % 3 ? 8 : 62));
        for (int i = 0; i < k; i++) {
            r[i] = floor(1 + 60 * pow(rng_uniform(seed, (uint64_t)i + 1), 3)) / (seed % 2 ? 1 : 100);
        }
        expect_blend(k, r);
    }
}
Test(sets, blends_refused) {
    Blend b;
    Err e = {0};
    refused(blend_weights(&b, 2, (double[]){1, 1.0 / 3}, &e), &e, EXIT_INPUT, "more than 6 digits");
    refused(blend_weights(&b, 2, (double[]){1, 0.0000001}, &e), &e, EXIT_INPUT, "more than 6 digits");
    refused(blend_weights(&b, 2, (double[]){1, 1048576}, &e), &e, EXIT_INPUT, "repeat after 1048577 samples");
    cr_assert(blend_weights(&b, 2, (double[]){1, 1048575}, &e) && b.D == 1048576);
    cr_assert(blend_weights(&b, 3, (double[]){0.5, 0.25, 1.25}, &e) && b.D == 8 && b.w[0] == 2 && b.w[1] == 1);
}

/* ---- windows --------------------------------------------------------------------------------------------------------
 */

/* Rows against the definition: a row begins a document at its window's first row, at end-of-text, and where the index
 * says so unless end-of-text stands before. */
static void expect_rows(const char *path, const int *id, size_t n, const int *begin, size_t ndoc, int T) {
    Set s;
    open_set(&s, path);
    Mix m = {.n = 1, .part = &s.all, .vocab = 13};
    Loader l;
    Err e = {0};
    cr_assert(loader_open(&l, 1, T, true, &e), "%s", e.msg);
    uint64_t W = loader_windows(&m, T), seen = 0;
    cr_assert_eq(W, (n - 1) / (size_t)T);
    for (uint64_t k = 0; k < W; k++) {
        cr_assert(loader_train(&l, &m, 0, 5, k, 1, &e), "%s", e.msg);
        size_t w = 0;
        for (; w < W; w++) {
            bool same = true;
            for (int i = 0; i <= T && same; i++)
                same = id[w * (size_t)T + (size_t)i] == (i < T ? l.tok[i] : l.tgt[T - 1]);
            if (same) break;
        }
        cr_assert(w < W, "%s: no such window", path);
        seen |= 1u << w;
        int first = 0;
        for (int i = 0; i < T; i++) {
            size_t at = w * (size_t)T + (size_t)i;
            bool starts = false;
            for (size_t d = 0; begin && d < ndoc; d++) starts |= (size_t)begin[d] == at;
            if (id[at] == 0 || (starts && i && id[at - 1] != 0)) first = i;
            cr_assert_eq(l.batch.first[i], first, "%s T %d window %zu row %d: first %d, expected %d", path, T, w, i,
                         l.batch.first[i], first);
            cr_assert_eq(l.batch.pos[i], i - first);
            cr_assert_eq(l.tgt[i], id[at + 1]);
        }
    }
    cr_assert_eq(seen, (1u << W) - 1);
    loader_close(&l);
    set_close(&s);
}
Test(sets, documents_of_rows) {
    for (int T = 1; T <= 11; T++) {
        expect_rows(SETS "uint16", ids, 16, begins, 4, T);
        expect_rows(SETS "several", ids, 16, begins, 4, T);
        expect_rows(SETS "bare", bare, 12, bare_begins, 4, T);
        expect_rows(SETS "llama3.bin", before, 16, NULL, 0, T);
    }
}

Test(sets, ids_outside_are_refused) {
    Set s;
    open_set(&s, SETS "uint16");
    Mix m = {.n = 1, .part = &s.all, .vocab = 12}; /* 12 stands there, and is no target of the first window */
    Loader l;
    Err e = {0};
    cr_assert(loader_open(&l, 3, 5, true, &e));
    refused(loader_train(&l, &m, 0, 1, 0, 3, &e), &e, EXIT_INPUT, "token 14 is id 12, expected 0 to 11");
    cr_assert(loader_val(&l, &m, 0, 0, 0, 1, &e), "%s", e.msg);
    loader_close(&l);
    set_close(&s);
}

static Stream *stream_ok(StreamSpec spec) {
    Stream *s = xcalloc(1, sizeof *s);
    Err e = {0};
    Tokenizer t = tokenizer_byte();
    cr_assert(stream_open(s, &spec, &t, &e), "%s", e.msg);
    return s;
}
static void stream_end(Stream *s) {
    stream_close(s);
    free(s);
}

/* Which window of which part each sample reads, found by its content; parts hold disjoint ids. */
enum { T = 4, PARTS = 3 };
static void find_window(const Stream *s, const Loader *l, int *part, size_t *w) {
    for (*part = 0; *part < s->train.n; ++*part) {
        const Tokens *t = &s->part[*part];
        for (*w = 0; *w < (t->n - 1) / T; ++*w) {
            bool same = true;
            for (size_t i = 0; i < T; i++) same &= l->tok[i] == token_at(t, *w * T + i);
            if (same) return;
        }
    }
    cr_assert(false, "a sample of nothing");
}
static const char *mixed_files(const char *path[PARTS]) {
    int id[200], begin[41];
    for (int i = 0; i < 200; i++) id[i] = i + 40;
    for (int i = 0; i <= 40; i++) begin[i] = 5 * i;
    path[0] = check_path("meg");
    write_set(path[0], (SetWriteCfg){SET_MEGATRON, 257, 0}, id, begin, 12);            /* 60 ids from 40 */
    write_set(check_path("llm"), (SetWriteCfg){SET_LLMC, 257, 0}, id + 60, begin, 20); /* 100 from 100 */
    path[1] = check_path("llm.bin");
    path[2] = check_path("text");
    check_write(path[2], "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14\x15\x16",
                22);
    return NULL;
}

Test(sets, an_epoch_reads_all_parts) {
    const char *path[PARTS];
    mixed_files(path);
    Stream *s = stream_ok((StreamSpec){.ntrain = 3, .train = path, .seq_len = T});
    cr_assert(s->train.n == 3 && s->val.n == 0 && s->tokens == 60 + 100 + 24);
    uint64_t W = loader_windows(&s->train, T);
    cr_assert_eq(W, 59 / T + 99 / T + 23 / T);
    Loader l;
    Err e = {0};
    cr_assert(loader_open(&l, 1, T, true, &e));
    for (int epoch = 0; epoch < 3; epoch++) {
        int seen[PARTS][32] = {0};
        for (uint64_t k = 0; k < W; k++) {
            int part;
            size_t w;
            cr_assert(loader_train(&l, &s->train, 256, 1, (uint64_t)epoch * W + k, 1, &e), "%s", e.msg);
            find_window(s, &l, &part, &w);
            cr_assert(!seen[part][w]++, "epoch %d: window %zu of part %d twice", epoch, w, part);
        }
    }
    loader_close(&l);
    stream_end(s);
}

Test(sets, a_blend_reads_each_part_by_its_weight) {
    const char *path[PARTS];
    const double weight[] = {0.5, 0.2, 0.3};
    mixed_files(path);
    Stream *s = stream_ok((StreamSpec){.ntrain = 3, .train = path, .weight = weight, .seq_len = T});
    cr_assert(s->train.blend && s->blend.D == 10);
    Loader one, many;
    Err e = {0};
    cr_assert(loader_open(&one, 1, T, true, &e) && loader_open(&many, 8, T, true, &e));
    int count[PARTS] = {0}, seen[PARTS][32] = {0};
    for (uint64_t k = 0; k < 400; k++) {
        int part;
        size_t w;
        cr_assert(loader_train(&one, &s->train, 256, 1, k, 1, &e), "%s", e.msg);
        if (k % 8 == 0) cr_assert(loader_train(&many, &s->train, 256, 1, k, 8, &e)); /* batches change nothing */
        CHECK_BYTES("tok", one.tok, many.tok + k % 8 * T, T * sizeof(int));
        CHECK_BYTES("first", one.batch.pos, many.batch.pos + k % 8 * T, T * sizeof(int));
        find_window(s, &one, &part, &w);
        int W = (int)((s->part[part].n - 1) / T), turn = count[part] / W;
        cr_assert_eq(seen[part][w], turn, "part %d: window %zu for the %d. time in turn %d", part, w, seen[part][w],
                     turn);
        seen[part][w]++, count[part]++;
        for (int i = 0; i < PARTS; i++)
            cr_assert(fabs(count[i] - (double)(k + 1) * weight[i]) <= 0.75 + 1e-9, "%d of %llu samples are of part %d",
                      count[i], (unsigned long long)k + 1, i);
    }
    loader_close(&one);
    loader_close(&many);
    stream_end(s);
}

Test(sets, validation_of_parts) {
    const char *path[PARTS];
    mixed_files(path);
    Stream *s = stream_ok((StreamSpec){.ntrain = 3, .train = path, .val_fraction = 0.2, .seq_len = T});
    cr_assert(s->val.n == 3 && s->part[0].n == 48 && s->tail[0].n == 12 && s->part[1].n == 80 && s->tail[1].n == 20);
    cr_assert(token_at(&s->tail[0], 0) == 88 && token_at(&s->tail[1], 0) == 180); /* behind what is trained on */
    size_t all = s->tail[0].n + s->tail[1].n + s->tail[2].n - 3;
    Loader l;
    Err e = {0};
    cr_assert(loader_open(&l, 2, T, true, &e));
    const int64_t most[] = {0, 1, 2, 5, 17, 1000};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        uint64_t W = loader_val_windows(&s->val, T, most[i]);
        int64_t rows = 0, want = most[i] && most[i] < (int64_t)all ? most[i] : (int64_t)all;
        for (uint64_t w = 0; w < W; w++) {
            cr_assert(loader_val(&l, &s->val, 256, most[i], w, 1, &e), "%s", e.msg);
            rows += l.batch.N;
        }
        cr_assert_eq(rows, want, "%lld predictions, expected %lld", (long long)rows, (long long)want);
    }
    loader_close(&l);
    uint64_t hash = s->hash;
    stream_end(s);
    const char *turned[] = {path[1], path[0], path[2]};
    s = stream_ok((StreamSpec){.ntrain = 3, .train = turned, .val_fraction = 0.2, .seq_len = T});
    cr_assert_neq(s->hash, hash);
    stream_end(s);
    s = stream_ok((StreamSpec){.ntrain = 2, .train = path, .val = path[2], .seq_len = T});
    cr_assert(s->val.n == 1 && s->tail[0].n == 24 && s->tokens == 160);
    stream_end(s);
    s = stream_ok((StreamSpec){.ntrain = 1, .train = path + 2, .val = path[0], .seq_len = T});
    cr_assert(s->val.n == 1 && s->tail[0].n == 60 && s->tail[0].docs);
    stream_end(s);
    Tokenizer t = tokenizer_byte();
    Stream bad;
    refused(stream_open(&bad, &(StreamSpec){.ntrain = 3, .train = path, .seq_len = 30}, &t, &e), &e, EXIT_INPUT,
            "24 tokens to train on (0 to validate on) in ");
}
