/* source.h: documents out of files of any size, as a stream in bounded memory. All that reads text goes through it:
 * training, `data tokenize`, `data train-bpe`, `eval ppl`.
 *
 * A file is plain, gzip or zstd, known by its first bytes (several compressed parts may follow each other). Raw text is
 * cut into documents at a separator, JSONL at line ends, a document being the text at one key of each line's object;
 * lines of white space are passed over. "-" is standard input. */
#pragma once
#include "../ops/file.h"
#include "text_check.h"

enum { SOURCE_LINE_MAX = 32 << 20 }; /* bytes of a line of JSONL */
/* A stretch of a document; end: its last. The stretch is gone when the sink returns. */
typedef bool SourceSink(void *ctx, const char *s, size_t n, bool end, Err *);
typedef struct {
    const char *sep; /* NULL or nsep 0: a file is one document */
    size_t nsep;
    const char *jsonl_key; /* NULL: raw text */
    SourceSink *sink;
    bool (*read)(void *ctx, size_t bytes, Err *); /* so many more bytes of the file as it lies on disk; 0 at each MiB
                                                     unpacked and while a pipe has none; may be NULL */
    void *ctx;
    const char *lift; /* see TextCheck: the setting that lets any bytes be text; NULL: they are */
} SourceCfg;

/* All of a file through the sink. EXIT_INPUT: not there, not regular, empty, cut short or damaged, not text
 * (text_check.h), a line that is too long, no JSON object, or without text at the key; and what sink and read say. EXIT_WORLD: a read error. Memory: some
 * MiB, and for JSONL a few times the longest line; a zstd file adds its window, at most 128 MiB. */
bool source_read(const SourceCfg *, const char *path, Err *);
/* A zstd frame, or one to be skipped, with which pzstd's files begin. */
bool zstd_begins(const unsigned char *, size_t n);
/* The key of the text in a file that its name says is JSONL (.jsonl, .jsonl.gz, .jsonl.zst): "text"; NULL: raw text. */
const char *source_key(const char *path);
/* Bytes of a regular file, for progress; of standard input 0. */
bool source_size(const char *path, size_t *size, Err *);
