/* source.h: reads documents from files of any size, as a stream in bounded memory. Everything that reads text calls
 * it: training, `data tokenize`, `data train-bpe`, `eval ppl`.
 *
 * - A file is plain, gzip or zstd, identified by its first bytes; several compressed parts may follow each other.
 * - Raw text is cut into documents at a separator. JSONL is cut at line ends; a document is the text at one key of
 *   each line's object. Blank lines are skipped.
 * - "-" is standard input. */
#pragma once
#include "ops/file.h"
#include "text_check.h"

enum { SOURCE_LINE_MAX = 32 << 20 }; /* bytes of the longest line of JSONL */
/* Receives a stretch of a document; end: its last one. The stretch is only valid during the call. */
typedef bool SourceSink(void *ctx, const char *s, size_t n, bool end, Err *);
typedef struct {
    const char *sep; /* NULL or nsep 0: a file is one document */
    size_t nsep;
    const char *jsonl_key; /* NULL: raw text */
    SourceSink *sink;
    /* called with the number of bytes read from disk; with 0 after each MiB unpacked and while a pipe is empty; may be
     * NULL */
    bool (*read)(void *ctx, size_t bytes, Err *);
    void *ctx;
    const char *lift; /* see TextCheck: the setting that accepts any bytes as text; NULL: they are accepted */
} SourceCfg;

/* Send the whole file through the sink. EXIT_RUNTIME: a read error.
 * - EXIT_INPUT: the file does not exist, is not regular, empty, cut short, damaged or not text (text_check.h); a line
 *   is too long, is not a JSON object or has no text at the key; or an error of sink or read.
 * - Memory: some MiB, and for JSONL a few times the longest line; a zstd file adds its window, at most 128 MiB. */
bool source_read(const SourceCfg *, const char *path, Err *);
/* The bytes begin a zstd frame, or a skippable frame, with which pzstd's files begin. */
bool zstd_begins(const unsigned char *, size_t n);
/* The key of the text in a file whose name says that it is JSONL (.jsonl, .jsonl.gz, .jsonl.zst): "text". NULL: raw
 * text. */
const char *source_key(const char *path);
/* Bytes of a regular file, for progress; 0 for standard input. */
bool source_size(const char *path, size_t *size, Err *);
