/* text_check.c: recognises other kinds of files by their first bytes, and checks UTF-8. */
#include "text_check.h"

/* ---- other kinds of files ---------------------------------------------------------------------------------------- */

typedef struct {
    const char *magic;
    size_t n;
    const char *what, *todo;
} Magic;
#define MAGIC(bytes) bytes, sizeof bytes - 1
static const char export[] = "write its text as JSONL, a line {\"text\": ...} for each document";
static const Magic magics[] = {
    {MAGIC("PAR1"), "a Parquet table", export},
    {MAGIC("ARROW1"), "an Arrow file", export},
    {MAGIC("\xff\xff\xff\xff"), "an Arrow stream, as Hugging Face datasets keeps", export},
    {MAGIC("SQLite format 3"), "an SQLite database", export},
    {MAGIC("%PDF-"), "a PDF document", "extract its text first, for example with pdftotext"},
    {MAGIC("PK\x03\x04"), "a ZIP archive (or a document in one, .docx, .epub)", "unpack it and give the text in it"},
    {MAGIC("\x1f\x8b"), "gzip", "unpack it, or give it to kvsmith data tokenize"},
    {MAGIC("\x28\xb5\x2f\xfd"), "zstd", "unpack it, or give it to kvsmith data tokenize"},
    {MAGIC("\xfd"
           "7zXZ"),
     "xz", "unpack it (xz -d)"},
    {MAGIC("BZh91AY&SY"), "bzip2", "unpack it (bzip2 -d)"},
    {MAGIC("7z\xbc\xaf\x27\x1c"), "a 7z archive", "unpack it and give the text in it"},
    {MAGIC("\x7f"
           "ELF"),
     "a program", "give a text"},
    {MAGIC("GGUF"), "a GGUF model", "give a text"},
    {MAGIC("\x93NUMPY"), "a NumPy array", export},
    {MAGIC("\x89PNG"), "a picture", "give a text"},
    {MAGIC("\xff\xd8\xff"), "a picture", "give a text"},
    {MAGIC("\xff\xfe"), "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"},
    {MAGIC("\xfe\xff"), "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"},
};

static bool text_check_magic(const TextCheck *c, const unsigned char *p, size_t n, Err *e) {
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
        const Magic *m = &magics[i];
        if (n >= m->n && !memcmp(p, m->magic, m->n))
            return err_input(e, "%.120s: looks like %s, expected text in UTF-8; %s", c->name, m->what, m->todo);
    }
    return true;
}

/* ---- characters -------------------------------------------------------------------------------------------------- */

static bool text_check_refuse(const TextCheck *c, size_t at, const char *found, const char *todo, Err *e) {
    return err_input(e, "%.120s: byte %zu %s, expected text in UTF-8; %s%s%s", c->name, at, found, todo,
                     *c->lift ? ", or accept any bytes with " : "", c->lift);
}
static bool not_utf8(const TextCheck *c, size_t at, Err *e) {
    return text_check_refuse(c, at, "does not continue as UTF-8",
                             "convert the file (from Latin-1: iconv -f LATIN1 -t UTF-8)", e);
}

/* Bytes from `i` on that are ASCII and not NUL, by words of eight. */
static size_t text_check_plain(const unsigned char *p, size_t n, size_t i) {
    const uint64_t high = 0x8080808080808080u, ones = 0x0101010101010101u;
    for (uint64_t w; i + 8 <= n; i += 8) {
        memcpy(&w, p + i, 8);
        if ((w | (w - ones)) & high) break;
    }
    while (i < n && p[i] && p[i] < 0x80) i++;
    return i;
}

/* Note what must follow the first byte of a non-ASCII character; false: no character begins with it. */
static bool text_check_lead(TextCheck *c, unsigned char b) {
    c->low = 0x80, c->high = 0xbf;
    if (b >= 0xc2 && b <= 0xdf) {
        c->more = 1;
    } else if (b >= 0xe0 && b <= 0xef) {
        c->more = 2;
        if (b == 0xe0) c->low = 0xa0;
        if (b == 0xed) c->high = 0x9f;
    } else if (b >= 0xf0 && b <= 0xf4) {
        c->more = 3;
        if (b == 0xf0) c->low = 0x90;
        if (b == 0xf4) c->high = 0x8f;
    } else {
        return false;
    }
    return true;
}

bool text_check(TextCheck *c, const void *bytes, size_t n, Err *e) {
    const unsigned char *p = bytes;
    if (!c->lift) return true;
    if (!c->at && !text_check_magic(c, p, n, e)) return false;
    for (size_t i = 0; i < n; i++) {
        if (!c->more) {
            i = text_check_plain(p, n, i);
            if (i == n) break;
            if (!p[i]) return text_check_refuse(c, c->at + i, "is NUL: it looks like a binary file", "give a text", e);
            c->begin = c->at + i;
            if (!text_check_lead(c, p[i])) return not_utf8(c, c->begin, e);
            continue;
        }
        if (p[i] < c->low || p[i] > c->high) return not_utf8(c, c->begin, e);
        c->low = 0x80, c->high = 0xbf;
        c->more--;
    }
    c->at += n;
    return true;
}

bool text_check_end(const TextCheck *c, Err *e) { return !c->lift || !c->more || not_utf8(c, c->begin, e); }
