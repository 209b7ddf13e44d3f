/* pool.h: tokenizes documents with several threads, in order and in bounded memory. stream_open and `data tokenize`
 * send text through it.
 *
 * - A document is cut into jobs at places that no tokenizer pattern known here can reach across: before a blank
 *   between two ASCII letters, where the patterns of GPT-2, Llama-3 and Qwen2 always end one piece and begin the next
 *   (bytes: anywhere). So the ids are those of the whole document encoded at once, whatever the number of threads and
 *   however the text arrived.
 * - With other tokenizers (blanks that merges or added tokens may span, other patterns) a document is one job.
 * - Special tokens in the text are text; other added tokens are found. */
#pragma once
#include "tokenizer.h"

/* Receives the ids of a stretch of a document, in order. begin, end: it is the document's first, its last stretch. The
 * ids are only valid during the call. */
typedef bool PoolSink(void *ctx, const Ids *, bool begin, bool end, size_t bytes, Err *);
typedef struct {
    const Tokenizer *t;
    int threads;
    size_t most; /* bytes of the longest stretch that cannot be cut; a longer one is EXIT_INPUT */
    PoolSink *sink;
    void *ctx;
} PoolCfg;

typedef struct Pool Pool;
Pool *pool_open(const PoolCfg *);
void pool_close(Pool *);
/* Add text to the current document; end: the document ends here. An empty document is dropped. The calling thread
 * calls the sink now and then. EXIT_INPUT: a stretch too long, a pattern that does not terminate, or the sink's own
 * error. */
bool pool_text(Pool *, const char *s, size_t n, bool end, Err *);
bool pool_flush(Pool *, Err *); /* send everything so far to the sink; must be called between documents */
/* The most ids for each byte of text, and in addition for each document. */
size_t pool_most_ids(const Tokenizer *);
