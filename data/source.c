/* source.c: reads plain, gzip and zstd files as a stream, and cuts it into documents. */
#include "source.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

enum { CHUNK = 1 << 20 };
static const char STDIN[] = "-";
typedef enum { PLAIN, GZIP, ZSTD } Packing;
typedef struct {
    const SourceCfg *cfg;
    const char *path;
    int fd;
    Packing packing;
    unsigned char *in, *out; /* (CHUNK) bytes as on disk; unpacked */
    size_t nin, at;          /* of `in`: how many bytes, and how many of them are unpacked */
    bool piped, ended;       /* standard input; no more bytes come */
    bool over, inside;       /* the file is read to its end; a compressed part has begun and not ended */
    TextCheck check;
    z_stream z;
    ZSTD_DStream *zstd;
} In;

static bool see_read(const In *f, size_t n, Err *e) { return !f->cfg->read || f->cfg->read(f->cfg->ctx, n, e); }
/* Fill `in`, so that the first bytes show the kind of file. A pipe may give its bytes one by one and stall: then the
 * `read` callback is called several times a second. */
static bool source_refill(In *f, Err *e) {
    f->nin = 0, f->at = 0;
    while (f->nin < CHUNK && !f->ended) {
        struct pollfd ready = {.fd = f->fd, .events = POLLIN};
        if (f->piped && poll(&ready, 1, 200) <= 0) {
            if (!see_read(f, 0, e)) return false;
            continue;
        }
        ssize_t n = read(f->fd, f->in + f->nin, CHUNK - f->nin);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return err_errno(e, "cannot read", f->path);
        f->ended = n == 0;
        f->nin += (size_t)n;
    }
    f->over = f->nin == 0;
    return see_read(f, f->nin, e);
}

bool zstd_begins(const unsigned char *p, size_t n) {
    return n > 4 && (!memcmp(p, "\x28\xb5\x2f\xfd", 4) || (p[0] >> 4 == 5 && !memcmp(p + 1, "\x2a\x4d\x18", 3)));
}

static bool in_open(In *f, const SourceCfg *cfg, const char *path, Err *e) {
    struct stat st;
    bool piped = !strcmp(path, STDIN);
    *f = (In){.cfg = cfg, .path = piped ? "standard input" : path, .piped = piped};
    f->fd = piped ? STDIN_FILENO : TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    f->check = (TextCheck){.name = f->path, .lift = cfg->lift};
    if (f->fd < 0) return err_errno(e, "cannot open", path);
    if (fstat(f->fd, &st)) return err_errno(e, "cannot read", f->path);
    if (!piped && !S_ISREG(st.st_mode))
        return err_input(e, "%s: expected a file, found a %s", path,
                         S_ISDIR(st.st_mode) ? "directory" : "device or pipe");
    f->in = xcalloc(CHUNK, 1);
    f->out = xcalloc(CHUNK, 1);
    if (!source_refill(f, e)) return false;
    if (!f->nin) return err_input(e, "%s: is empty, expected text", f->path);
    if (f->nin > 2 && f->in[0] == 0x1f && f->in[1] == 0x8b) f->packing = GZIP;
    if (zstd_begins(f->in, f->nin)) f->packing = ZSTD;
    if (f->packing == GZIP) CHECK(inflateInit2(&f->z, 15 + 16) == Z_OK, "cannot initialise zlib");
    if (f->packing == ZSTD) {
        f->zstd = ZSTD_createDStream();
        CHECK(f->zstd && !ZSTD_isError(ZSTD_initDStream(f->zstd)), "cannot initialise zstd");
    }
    return true;
}
static void in_close(In *f) {
    if (f->packing == GZIP) inflateEnd(&f->z);
    ZSTD_freeDStream(f->zstd);
    if (f->fd > STDIN_FILENO) close(f->fd);
    free(f->in);
    free(f->out);
}

static bool gzip_step(In *f, size_t *made, Err *e) {
    f->z.next_in = f->in + f->at, f->z.avail_in = (uInt)(f->nin - f->at);
    f->z.next_out = f->out, f->z.avail_out = CHUNK;
    int r = inflate(&f->z, Z_NO_FLUSH);
    f->at = f->nin - f->z.avail_in;
    *made = CHUNK - f->z.avail_out;
    f->inside = r != Z_STREAM_END;
    if (r == Z_STREAM_END) return inflateReset(&f->z) == Z_OK || err_runtime(e, "%s: zlib cannot continue", f->path);
    return r == Z_OK || r == Z_BUF_ERROR ||
           err_input(e, "%s: damaged gzip data: %s", f->path, f->z.msg ? f->z.msg : "damaged");
}
static bool zstd_step(In *f, size_t *made, Err *e) {
    ZSTD_inBuffer in = {f->in, f->nin, f->at};
    ZSTD_outBuffer out = {f->out, CHUNK, 0};
    size_t r = ZSTD_decompressStream(f->zstd, &out, &in);
    f->at = in.pos;
    *made = out.pos;
    f->inside = r != 0;
    return !ZSTD_isError(r) || err_input(e, "%s: damaged zstd data: %s", f->path, ZSTD_getErrorName(r));
}

/* The next unpacked bytes; *n 0: there are no more. */
static bool in_next(In *f, const char **s, size_t *n, Err *e) {
    *n = 0;
    while (!*n) {
        if (f->at == f->nin && !f->over && !source_refill(f, e)) return false;
        bool last = f->over && f->at == f->nin;
        if (f->packing == PLAIN) {
            *s = (char *)f->in, *n = f->nin - f->at;
            f->at = f->nin;
        } else if (!last || f->inside) {
            *s = (char *)f->out;
            if (!(f->packing == GZIP ? gzip_step(f, n, e) : zstd_step(f, n, e))) return false;
            /* a chunk on disk may hold gigabytes */
            if (f->cfg->read && !f->cfg->read(f->cfg->ctx, 0, e)) return false;
            if (last && !*n && f->inside) return err_input(e, "%s: the compressed text is truncated", f->path);
        }
        if (last) return true;
    }
    return true;
}

/* The same, checked to be text. */
static bool text_next(In *f, const char **s, size_t *n, Err *e) {
    return in_next(f, s, n, e) && (*n ? text_check(&f->check, *s, *n, e) : text_check_end(&f->check, e));
}

/* ---- documents --------------------------------------------------------------------------------------------------- */

typedef struct {
    char *at;
    size_t n, cap;
} Held;
static void source_hold(Held *h, const char *s, size_t n) {
    if (h->n + n > h->cap) h->at = xrealloc(h->at, h->cap = zmax(2 * h->cap, h->n + n + 4096), 1);
    if (n) memcpy(h->at + h->n, s, n);
    h->n += n;
}
static void source_drop(Held *h, size_t n) {
    if (!n) return;
    h->n -= n;
    memmove(h->at, h->at + n, h->n);
}

/* Cut raw text. Bytes that could begin a separator are held until it is known whether they do. */
static bool source_raw(In *f, Held *h, Err *e) {
    const SourceCfg *c = f->cfg;
    const char *s;
    size_t n;
    for (;;) {
        if (!text_next(f, &s, &n, e)) return false;
        if (!n) break;
        source_hold(h, s, n);
        size_t done = 0;
        for (const char *cut; c->nsep && (cut = memmem(h->at + done, h->n - done, c->sep, c->nsep));) {
            if (!c->sink(c->ctx, h->at + done, (size_t)(cut - h->at) - done, true, e)) return false;
            done = (size_t)(cut - h->at) + c->nsep;
        }
        size_t wait = c->nsep ? zmin(c->nsep - 1, h->n - done) : 0, go = h->n - done - wait;
        if (go && !c->sink(c->ctx, h->at + done, go, false, e)) return false;
        source_drop(h, done + go);
    }
    return c->sink(c->ctx, h->at, h->n, true, e);
}

/* Report what a line holds instead of a text at the key. */
static bool no_text(const In *f, const json_t *j, const char *where, Err *e) {
    static const char *const talks[] = {"messages", "conversations", "instruction"};
    const char *key = f->cfg->jsonl_key;
    for (size_t i = 0; i < sizeof talks / sizeof *talks; i++)
        if (json_object_get(j, talks[i]))
            return err_input(e,
                             "%s: expected text at the key \"%.40s\", found \"%s\"; for conversations set "
                             "data.sft.template (chatml, llama3, ...)",
                             where, key, talks[i]);
    return err_input(
        e,
        "%s: expected text at the key \"%.40s\", found %s; to read another key use kvsmith data tokenize --jsonl-key",
        where, key, json_object_get(j, key) ? "something else" : "no such key");
}
static bool line_text(const In *f, const char *s, size_t n, size_t number, Err *e) {
    const SourceCfg *c = f->cfg;
    size_t blank = 0;
    while (blank < n && strchr(" \t\r", s[blank]) && s[blank]) blank++;
    if (blank == n) return true;
    char *where = xformat("%.200s line %zu", f->path, number);
    json_t *j = json_parse(s, n, where, NULL, e);
    const json_t *text = json_object_get(j, c->jsonl_key);
    bool ok = j != NULL;
    if (ok && !json_is_string(text)) ok = no_text(f, j, where, e);
    ok = ok && c->sink(c->ctx, json_string_value(text), json_string_length(text), true, e);
    json_decref(j);
    free(where);
    return ok;
}
static bool source_jsonl(In *f, Held *h, Err *e) {
    const char *s;
    size_t n, number = 0;
    for (;;) {
        if (!text_next(f, &s, &n, e)) return false;
        if (!n) break;
        size_t from = h->n, done = 0; /* no line ends before `from` */
        source_hold(h, s, n);
        for (const char *end; (end = memchr(h->at + from, '\n', h->n - from)); from = done) {
            if (!line_text(f, h->at + done, (size_t)(end - h->at) - done, ++number, e)) return false;
            done = (size_t)(end - h->at) + 1;
        }
        source_drop(h, done);
        if (h->n > SOURCE_LINE_MAX)
            return err_input(e, "%s line %zu: longer than %d bytes", f->path, number + 1, SOURCE_LINE_MAX);
    }
    return line_text(f, h->at, h->n, number + 1, e);
}

bool source_read(const SourceCfg *c, const char *path, Err *e) {
    In f;
    Held h = {0};
    source_hold(&h, "", 0);
    bool ok = in_open(&f, c, path, e) && (c->jsonl_key ? source_jsonl(&f, &h, e) : source_raw(&f, &h, e));
    in_close(&f);
    free(h.at);
    return ok;
}

const char *source_key(const char *path) {
    static const char *const tail[] = {".jsonl", ".jsonl.gz", ".jsonl.zst"};
    for (size_t i = 0, n = strlen(path), k; i < sizeof tail / sizeof *tail; i++)
        if ((k = strlen(tail[i])) < n && !strcmp(path + n - k, tail[i])) return "text";
    return NULL;
}

bool source_size(const char *path, size_t *size, Err *e) {
    struct stat st;
    *size = 0;
    if (!strcmp(path, STDIN)) return true;
    if (stat(path, &st)) return err_errno(e, "cannot open", path);
    *size = S_ISREG(st.st_mode) ? (size_t)st.st_size : 0;
    return true;
}
