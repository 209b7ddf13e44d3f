/* indexed.c: checks and maps the token files of Megatron and llm.c, and watches them for changes. */
#include "indexed.h"
#include "source.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

enum { IDX_HEADER = 34, LLMC_HEADER = 1024, LLMC_GPT2 = 20240520, LLMC_LLAMA3 = 20240801 };
static const char MAGIC[9] = "MMIDIDX\0";

const char *set_kind_name(SetKind k) {
    static const char *const names[] = {"text", "megatron", "llm.c"};
    return names[k];
}

static uint64_t indexed_load8(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static int32_t indexed_load4(const unsigned char *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static bool id_type(int code, const char *where, IdType *type, Err *e) {
    static const struct {
        int code;
        IdType type;
    } known[] = {{1, ID_8}, {2, ID_S8}, {3, ID_S16}, {4, ID_S32}, {5, ID_S64}, {8, ID_16}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].code == code) {
            *type = known[i].type;
            return true;
        }
    return err_input(e, "%s: type %d of ids; expected 1, 2, 3, 4, 5 or 8 (whole numbers)%s", where, code,
                     code == 6 || code == 7 ? "; this dataset has floats" : "");
}

/* Check that sequences follow each other in the .bin without a gap, so that it is one stream of ids. */
static bool indexed_sequences(const unsigned char *len, const unsigned char *at, size_t nseq, size_t width, size_t bin,
                              const char *where, Err *e) {
    uint64_t end = 0; /* at most bin */
    for (size_t i = 0; i < nseq; i++) {
        int32_t n = indexed_load4(len + 4 * i);
        uint64_t from = indexed_load8(at + 8 * i);
        if (n < 0) return err_input(e, "%s: sequence %zu has %d ids", where, i, n);
        if (from != end)
            return err_input(e,
                             "%s: sequence %zu begins at byte %llu of the .bin, expected %llu, where the one before "
                             "ends",
                             where, i, (unsigned long long)from, (unsigned long long)end);
        if ((uint64_t)n > (bin - end) / width)
            return err_input(e,
                             "%s: sequence %zu of %d ids from byte %llu on points past the .bin, which has %zu bytes",
                             where, i, n, (unsigned long long)from, bin);
        end += (uint64_t)n * width;
    }
    return end == bin ||
           err_input(e, "%s: its sequences need %llu bytes, but the .bin has %zu", where, (unsigned long long)end, bin);
}

static bool indexed_documents(const unsigned char *doc, size_t n, size_t nseq, const char *where, Err *e) {
    uint64_t last = 0;
    if (indexed_load8(doc) != 0)
        return err_input(e, "%s: the first document begins at sequence %llu, expected 0", where,
                         (unsigned long long)indexed_load8(doc));
    for (size_t i = 0; i < n; i++) {
        uint64_t d = indexed_load8(doc + 8 * i);
        if (d < last || d > nseq)
            return err_input(e, "%s: document %zu begins at sequence %llu, expected %llu to %zu", where, i,
                             (unsigned long long)d, (unsigned long long)last, nseq);
        last = d;
    }
    return last == nseq ||
           err_input(e, "%s: the documents end at sequence %llu, expected %zu", where, (unsigned long long)last, nseq);
}

bool megatron_check(const unsigned char *p, size_t n, size_t bin, const char *where, Docs *docs, IdType *type, Err *e) {
    if (n < IDX_HEADER || memcmp(p, MAGIC, sizeof MAGIC))
        return err_input(e, "%s: not the index of a Megatron dataset: its first 9 bytes differ from MMIDIDX", where);
    if (indexed_load8(p + 9) != 1)
        return err_input(e, "%s: version %llu of the index, expected 1", where,
                         (unsigned long long)indexed_load8(p + 9));
    if (!id_type(p[17], where, type, e)) return false;
    uint64_t nseq = indexed_load8(p + 18), ndoc = indexed_load8(p + 26), rest = n - IDX_HEADER;
    if (nseq > rest / 12 || ndoc > (rest - 12 * nseq) / 8)
        return err_input(
            e, "%s: %zu bytes are too few for %llu sequences and %llu documents; the file is truncated or damaged",
            where, n, (unsigned long long)nseq, (unsigned long long)ndoc);
    rest -= 12 * nseq + 8 * ndoc;
    if (rest && rest != nseq)
        return err_input(e, "%s: %llu bytes after the documents of %llu sequences, expected none", where,
                         (unsigned long long)rest, (unsigned long long)nseq);
    for (uint64_t i = 0; i < rest; i++)
        if (p[n - rest + i])
            return err_input(e, "%s: sequence %llu has mode %d; only mode 0 (text) is supported", where,
                             (unsigned long long)i, p[n - rest + i]);
    if (!nseq || ndoc < 2) return err_input(e, "%s: no documents in it", where);
    const unsigned char *len = p + IDX_HEADER, *at = len + 4 * nseq, *doc = at + 8 * nseq;
    size_t width = id_bytes(*type);
    *docs = (Docs){doc, at, ndoc - 1, nseq, width, bin / width};
    return indexed_sequences(len, at, nseq, width, bin, where, e) && indexed_documents(doc, ndoc, nseq, where, e);
}

static bool llmc_magic(const unsigned char *p, size_t n) {
    return n >= 8 && ((indexed_load4(p) == LLMC_GPT2 && indexed_load4(p + 4) == 1) ||
                      (indexed_load4(p) == LLMC_LLAMA3 && indexed_load4(p + 4) == 7));
}
bool llmc_check(const unsigned char *p, size_t n, const char *where, Tokens *out, Err *e) {
    if (n < LLMC_HEADER || !llmc_magic(p, n))
        return err_input(e, "%s: expected llm.c's header of %d bytes, 20240520 1 or 20240801 7 first", where,
                         LLMC_HEADER);
    IdType type = indexed_load4(p) == LLMC_GPT2 ? ID_16 : ID_32;
    int32_t count = indexed_load4(p + 8);
    size_t want = (size_t)(count < 0 ? 0 : count) * id_bytes(type);
    if (count < 1) return err_input(e, "%s: %d tokens by its header, expected at least 1", where, count);
    if (n - LLMC_HEADER != want)
        return err_input(e, "%s: the %d tokens of its header need %zu bytes, but %zu follow it", where, count, want,
                         n - LLMC_HEADER);
    *out = (Tokens){.id = p + LLMC_HEADER, .n = (size_t)count, .type = type, .name = where};
    return true;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static bool indexed_ends(const char *s, const char *tail) {
    size_t n = strlen(s), k = strlen(tail);
    return n > k && !strcmp(s + n - k, tail);
}
static bool indexed_regular(const char *path, Err *e) {
    struct stat st;
    return file_look(path, &st, e) && S_ISREG(st.st_mode);
}
/* PATH without .bin or .idx, malloc'ed. */
static char *stem_of(const char *path) {
    bool tail = indexed_ends(path, ".bin") || indexed_ends(path, ".idx");
    return xformat("%.*s", (int)(strlen(path) - (tail ? 4 : 0)), path);
}

char *set_publishing(const char *prefix) {
    char *set = xformat("%s.set", prefix), *tmp = file_unfinished(set);
    free(set);
    return tmp;
}
/* All files of the set PREFIX have their names. The renames begin when a whole line is in set_publishing(); a part of
 * it says that none of them has happened. */
static bool indexed_published(const char *prefix, const char *path, Err *e) {
    struct stat st;
    char *tmp = set_publishing(prefix), last = 0;
    bool begun = file_look(tmp, &st, e) && st.st_size > 0;
    int fd = begun ? TEMP_FAILURE_RETRY(open(tmp, O_RDONLY | O_CLOEXEC)) : -1;
    if (begun && fd < 0 && errno != ENOENT) err_errno(e, "cannot read", tmp); /* ENOENT: its writer has ended since */
    bool busy = fd >= 0 && TEMP_FAILURE_RETRY(pread(fd, &last, 1, st.st_size - 1)) == 1 && last == '\n';
    if (fd >= 0) close(fd);
    free(tmp);
    return !e->status && (!busy || err_input(e,
                                             "%s: a kvsmith data tokenize was interrupted while it renamed the files "
                                             "of this dataset, or is still running; run it again to finish",
                                             path));
}
static bool indexed_digit(char c) { return c >= '0' && c <= '9'; }
/* The same of the set that STEM.bin or a shard PREFIX_000000.bin belongs to. */
static bool all_published(const char *stem, const char *path, Err *e) {
    size_t n = strlen(stem), k = 0;
    if (!indexed_published(stem, path, e)) return false;
    while (k < 6 && k < n && indexed_digit(stem[n - 1 - k])) k++;
    if (k < 6 || n < 8 || stem[n - 7] != '_') return true;
    char *prefix = xformat("%.*s", (int)n - 7, stem);
    bool ok = indexed_published(prefix, path, e);
    free(prefix);
    return ok;
}

bool set_kind(const char *path, SetKind *kind, Err *e) {
    char *stem = stem_of(path), *idx = xformat("%s.idx", stem);
    bool bin = indexed_ends(path, ".bin"), index = indexed_regular(idx, e), set = false;
    bool known = !e->status && (!bin || all_published(stem, path, e));
    *kind = SET_MEGATRON;
    if (known) {
        set = indexed_ends(path, ".idx") || (bin && index) || (index && !indexed_regular(path, e));
        known = !e->status && (bin || !set || indexed_published(stem, path, e));
    }
    free(stem);
    free(idx);
    if (!known) return false;
    if (set) return true;
    FileMap m;
    if (!file_map(&m, path, e)) return false;
    bool ok = true, zip = (m.n > 4 && m.p[0] == 0x1f && m.p[1] == 0x8b) || zstd_begins(m.p, m.n);
    *kind = SET_TEXT;
    if (llmc_magic(m.p, m.n))
        *kind = SET_LLMC;
    else if (bin)
        ok =
            err_input(e,
                      "%s: has neither an llm.c header nor an .idx file next to it; expected one of these two datasets",
                      path);
    else if (zip)
        ok = err_input(e, "%s: is compressed; tokenize it with kvsmith data tokenize", path);
    file_unmap(&m);
    return ok;
}

/* Map a file and keep what it was. It is watched first, so that set_whole sees one that is replaced in between. */
static bool map_watched(Set *s, FileMap *m, const char *path, Err *e) {
    struct stat st;
    Watch *w = &s->watch[s->nwatch];
    int fd = TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd < 0) return err_errno(e, "cannot open", path);
    s->nwatch++;
    *w = (Watch){.path = xstrdup(path), .fd = fd};
    if (fstat(fd, &st)) return err_errno(e, "cannot read", path);
    w->dev = st.st_dev, w->ino = st.st_ino, w->size = (uint64_t)st.st_size;
    w->mtime_s = st.st_mtim.tv_sec, w->mtime_ns = st.st_mtim.tv_nsec;
    return file_map(m, path, e) &&
           (w->size == m->n || err_input(e, "%s: changed while it was opened: %llu bytes, then %zu", path,
                                         (unsigned long long)w->size, m->n));
}
/* The files that were opened are of one set: none of their names was given to another one meanwhile. */
static bool set_whole(const Set *s, Err *e) {
    const char *replaced;
    if (!set_unchanged(s, &replaced, e)) return false;
    return !replaced || err_input(e, "%s: was replaced while the dataset was opened; run the command again", replaced);
}

static uint64_t indexed_hash_bytes(uint64_t h, const unsigned char *p, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) h = (h ^ indexed_load8(p + i)) * 0x100000001B3u, h ^= h >> 29;
    for (; i < n; i++) h = (h ^ p[i]) * 0x100000001B3u;
    return h;
}
static uint64_t hash_file(uint64_t h, const FileMap *m) {
    enum { ALL = 64 << 20, BLOCK = 16 << 10, BLOCKS = 4096 };
    h = rng_mix(h, m->n);
    if (m->n <= ALL) return indexed_hash_bytes(h, m->p, m->n);
    for (size_t k = 0; k < BLOCKS; k++) /* the last one ends the file */
        h = indexed_hash_bytes(h, m->p + (size_t)((__uint128_t)(m->n - BLOCK) * k / (BLOCKS - 1)), BLOCK);
    return h;
}

bool set_open(Set *s, const char *path, SetKind kind, Err *e) {
    *s = (Set){.kind = kind};
    CHECK(kind != SET_TEXT, "%s is text", path);
    char *stem = stem_of(path), *idx = xformat("%s.idx", stem);
    s->path = kind == SET_MEGATRON ? xformat("%s.bin", stem) : xstrdup(path);
    bool ok = map_watched(s, &s->bin, s->path, e);
    if (ok && kind == SET_MEGATRON) {
        IdType type = ID_16;
        ok = map_watched(s, &s->idx, idx, e) && set_whole(s, e) &&
             megatron_check(s->idx.p, s->idx.n, s->bin.n, idx, &s->docs, &type, e);
        s->all = (Tokens){s->bin.p, s->docs.tokens, type, &s->docs, 0, s->path};
        if (ok && !s->all.n) ok = err_input(e, "%s: has no ids", s->path);
    } else if (ok) {
        ok = llmc_check(s->bin.p, s->bin.n, s->path, &s->all, e);
    }
    if (ok) s->hash = hash_file(hash_file(0xCBF29CE484222325u, &s->idx), &s->bin);
    free(stem);
    free(idx);
    if (!ok) set_close(s);
    return ok;
}

void set_close(Set *s) {
    file_unmap(&s->bin);
    file_unmap(&s->idx);
    for (int i = 0; i < s->nwatch; i++) {
        close(s->watch[i].fd);
        free(s->watch[i].path);
    }
    free(s->path);
    *s = (Set){0};
}

bool set_unchanged(const Set *s, const char **replaced, Err *e) {
    *replaced = NULL;
    for (int i = 0; i < s->nwatch; i++) {
        const Watch *w = &s->watch[i];
        struct stat st;
        if (fstat(w->fd, &st)) return err_errno(e, "cannot look at", w->path);
        if ((uint64_t)st.st_size != w->size)
            return err_runtime(e, "%s: had %llu bytes when it was opened, now %lld; do not change a file during a run",
                               w->path, (unsigned long long)w->size, (long long)st.st_size);
        if (st.st_mtim.tv_sec != w->mtime_s || st.st_mtim.tv_nsec != w->mtime_ns)
            return err_runtime(e, "%s: was written to since it was opened; do not change a file during a run", w->path);
        if (stat(w->path, &st) || (uint64_t)st.st_dev != w->dev || (uint64_t)st.st_ino != w->ino) *replaced = w->path;
    }
    return true;
}

static void on_sigbus(int number) {
    static const char line[] = "kvsmith: a mapped file (data or weights) was truncated or can no longer be read; saved "
                               "checkpoints are intact\n";
    (void)number;
    ssize_t n = write(STDERR_FILENO, line, sizeof line - 1);
    _exit(n < 0 ? EXIT_RUNTIME : EXIT_RUNTIME);
}
void set_catch_sigbus(void) {
    struct sigaction a = {.sa_handler = on_sigbus};
    sigaction(SIGBUS, &a, NULL);
}
