/* indexed.c: see indexed.h. */
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

static uint64_t load8(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static int32_t load4(const unsigned char *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* ---- checks ---------------------------------------------------------------------------------------------------------
 */

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
                     code == 6 || code == 7 ? ", and this is a set of floats" : "");
}

/* Sequences follow each other in the .bin without a gap, so that it is one stream of ids. */
static bool sequences(const unsigned char *len, const unsigned char *at, size_t nseq, size_t width, size_t bin,
                      const char *where, Err *e) {
    uint64_t end = 0; /* at most bin */
    for (size_t i = 0; i < nseq; i++) {
        int32_t n = load4(len + 4 * i);
        uint64_t from = load8(at + 8 * i);
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
           err_input(e, "%s: its sequences take %llu bytes, but the .bin has %zu", where, (unsigned long long)end, bin);
}

static bool documents(const unsigned char *doc, size_t n, size_t nseq, const char *where, Err *e) {
    uint64_t last = 0;
    if (load8(doc) != 0)
        return err_input(e, "%s: the first document begins at sequence %llu, expected 0", where,
                         (unsigned long long)load8(doc));
    for (size_t i = 0; i < n; i++) {
        uint64_t d = load8(doc + 8 * i);
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
        return err_input(e, "%s: not the index of a Megatron set: its first 9 bytes are other than MMIDIDX", where);
    if (load8(p + 9) != 1)
        return err_input(e, "%s: version %llu of the index, expected 1", where, (unsigned long long)load8(p + 9));
    if (!id_type(p[17], where, type, e)) return false;
    uint64_t nseq = load8(p + 18), ndoc = load8(p + 26), rest = n - IDX_HEADER;
    if (nseq > rest / 12 || ndoc > (rest - 12 * nseq) / 8)
        return err_input(e,
                         "%s: %zu bytes are too few for %llu sequences and %llu documents; it is cut short or damaged",
                         where, n, (unsigned long long)nseq, (unsigned long long)ndoc);
    rest -= 12 * nseq + 8 * ndoc;
    if (rest && rest != nseq)
        return err_input(e, "%s: %llu bytes behind the documents of %llu sequences, expected none", where,
                         (unsigned long long)rest, (unsigned long long)nseq);
    for (uint64_t i = 0; i < rest; i++)
        if (p[n - rest + i])
            return err_input(e, "%s: sequence %llu is of mode %d; only text, mode 0, can be read", where,
                             (unsigned long long)i, p[n - rest + i]);
    if (!nseq || ndoc < 2) return err_input(e, "%s: no documents in it", where);
    const unsigned char *len = p + IDX_HEADER, *at = len + 4 * nseq, *doc = at + 8 * nseq;
    size_t width = id_bytes(*type);
    *docs = (Docs){doc, at, ndoc - 1, nseq, width, bin / width};
    return sequences(len, at, nseq, width, bin, where, e) && documents(doc, ndoc, nseq, where, e);
}

static bool llmc_magic(const unsigned char *p, size_t n) {
    return n >= 8 && ((load4(p) == LLMC_GPT2 && load4(p + 4) == 1) || (load4(p) == LLMC_LLAMA3 && load4(p + 4) == 7));
}
bool llmc_check(const unsigned char *p, size_t n, const char *where, Tokens *out, Err *e) {
    if (n < LLMC_HEADER || !llmc_magic(p, n))
        return err_input(e, "%s: expected llm.c's header of %d bytes, 20240520 1 or 20240801 7 first", where,
                         LLMC_HEADER);
    IdType type = load4(p) == LLMC_GPT2 ? ID_16 : ID_32;
    int32_t count = load4(p + 8);
    size_t want = (size_t)(count < 0 ? 0 : count) * id_bytes(type);
    if (count < 1) return err_input(e, "%s: %d tokens by its header, expected at least 1", where, count);
    if (n - LLMC_HEADER != want)
        return err_input(e, "%s: %d tokens by its header take %zu bytes, but %zu follow it", where, count, want,
                         n - LLMC_HEADER);
    *out = (Tokens){.id = p + LLMC_HEADER, .n = (size_t)count, .type = type, .name = where};
    return true;
}

/* ---- files ----------------------------------------------------------------------------------------------------------
 */

static bool ends(const char *s, const char *tail) {
    size_t n = strlen(s), k = strlen(tail);
    return n > k && !strcmp(s + n - k, tail);
}
static bool regular(const char *path, Err *e) {
    struct stat st;
    return file_look(path, &st, e) && S_ISREG(st.st_mode);
}
/* PATH without .bin or .idx. malloc'ed. */
static char *stem_of(const char *path) {
    bool tail = ends(path, ".bin") || ends(path, ".idx");
    return xformat("%.*s", (int)(strlen(path) - (tail ? 4 : 0)), path);
}

bool set_kind(const char *path, SetKind *kind, Err *e) {
    char *stem = stem_of(path), *idx = xformat("%s.idx", stem);
    bool bin = ends(path, ".bin"), index = regular(idx, e);
    free(stem);
    free(idx);
    *kind = SET_MEGATRON;
    if (e->status) return false;
    bool set = ends(path, ".idx") || (bin && index) || (index && !regular(path, e));
    if (e->status) return false;
    if (set) return true;
    FileMap m;
    if (!file_map(&m, path, e)) return false;
    bool ok = true, zip = (m.n > 4 && m.p[0] == 0x1f && m.p[1] == 0x8b) || zstd_begins(m.p, m.n);
    *kind = SET_TEXT;
    if (llmc_magic(m.p, m.n))
        *kind = SET_LLMC;
    else if (bin)
        ok = err_input(e, "%s: neither llm.c's header in it nor an .idx beside it; expected a set of one of the two",
                       path);
    else if (zip)
        ok = err_input(e, "%s: is compressed; make tokens of it with kvsmith data tokenize", path);
    file_unmap(&m);
    return ok;
}

static bool watch(Set *s, const char *path, size_t size, Err *e) {
    struct stat st;
    Watch *w = &s->watch[s->nwatch];
    int fd = TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0) return err_errno(e, "cannot open", path);
    s->nwatch++;
    *w = (Watch){.path = xstrdup(path), .fd = fd};
    if (fstat(fd, &st)) return err_errno(e, "cannot read", path);
    w->dev = st.st_dev, w->ino = st.st_ino, w->size = (uint64_t)st.st_size;
    w->mtime_s = st.st_mtim.tv_sec, w->mtime_ns = st.st_mtim.tv_nsec;
    return w->size == size || err_input(e, "%s: changed while it was opened: %zu bytes, then %llu", path, size,
                                        (unsigned long long)w->size);
}

static uint64_t hash_bytes(uint64_t h, const unsigned char *p, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) h = (h ^ load8(p + i)) * 0x100000001B3u, h ^= h >> 29;
    for (; i < n; i++) h = (h ^ p[i]) * 0x100000001B3u;
    return h;
}
static uint64_t hash_file(uint64_t h, const FileMap *m) {
    enum { ALL = 64 << 20, BLOCK = 16 << 10, BLOCKS = 4096 };
    h = rng_mix(h, m->n);
    if (m->n <= ALL) return hash_bytes(h, m->p, m->n);
    for (size_t k = 0; k < BLOCKS; k++) /* the last one ends the file */
        h = hash_bytes(h, m->p + (size_t)((__uint128_t)(m->n - BLOCK) * k / (BLOCKS - 1)), BLOCK);
    return h;
}

bool set_open(Set *s, const char *path, SetKind kind, Err *e) {
    *s = (Set){.kind = kind};
    CHECK(kind != SET_TEXT, "%s is text", path);
    char *stem = stem_of(path), *idx = xformat("%s.idx", stem);
    s->path = kind == SET_MEGATRON ? xformat("%s.bin", stem) : xstrdup(path);
    bool ok = file_map(&s->bin, s->path, e) && watch(s, s->path, s->bin.n, e);
    if (ok && kind == SET_MEGATRON) {
        IdType type = ID_16;
        ok = file_map(&s->idx, idx, e) && watch(s, idx, s->idx.n, e) &&
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
            return err_world(e,
                             "%s: had %llu bytes when it was opened, now %lld; a file that is read must stay as it is",
                             w->path, (unsigned long long)w->size, (long long)st.st_size);
        if (st.st_mtim.tv_sec != w->mtime_s || st.st_mtim.tv_nsec != w->mtime_ns)
            return err_world(e, "%s: was written to since it was opened; a file that is read must stay as it is",
                             w->path);
        if (stat(w->path, &st) || (uint64_t)st.st_dev != w->dev || (uint64_t)st.st_ino != w->ino) *replaced = w->path;
    }
    return true;
}

static void on_sigbus(int number) {
    static const char line[] = "kvsmith: a file was cut, or cannot be read any more, while it was mapped (data or "
                               "weights); what was saved before is intact\n";
    (void)number;
    ssize_t n = write(STDERR_FILENO, line, sizeof line - 1);
    _exit(n < 0 ? EXIT_WORLD : EXIT_WORLD);
}
void set_catch_sigbus(void) {
    struct sigaction a = {.sa_handler = on_sigbus};
    sigaction(SIGBUS, &a, NULL);
}
