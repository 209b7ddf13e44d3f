/* pool.h: documents to token ids by several threads, in order and in bounded memory.
 *
 * A document is cut into jobs where no tokenizer's pattern that is known here can reach across: before a blank between
 * two ASCII letters, where the patterns of GPT-2, Llama-3 and Qwen2 always end one piece and begin the next whatever
 * stands around (bytes: anywhere). So the ids are those of the whole document encoded at once, and depend on neither
 * the number of threads nor on how the text came in. With other tokenizers (blanks that merges or added tokens may
 * span, other patterns) a document is one job. Special tokens in the text are text; other added tokens are found. */
#pragma once
#include "tokenizer.h"

/* Ids of a stretch of a document, in order; begin, end: it is the document's first, its last. Nothing is kept. */
typedef bool PoolSink(void *ctx, const Ids *, bool begin, bool end, size_t bytes, Err *);
typedef struct {
    const Tokenizer *t;
    int threads;
    size_t most; /* bytes of a stretch that cannot be cut; a longer one is EXIT_INPUT */
    PoolSink *sink;
    void *ctx;
} PoolCfg;

typedef struct Pool Pool;
Pool *pool_open(const PoolCfg *);
void pool_close(Pool *);
/* More of the document that is being read; end: it ends here. A document of no bytes is dropped. The sink is called now
 * and then, by the calling thread. EXIT_INPUT: a stretch too long, a pattern that does not come to an end, and what the
 * sink says. */
bool pool_text(Pool *, const char *s, size_t n, bool end, Err *);
bool pool_flush(Pool *, Err *); /* all that came so far goes to the sink; call between documents */
/* At most so many ids for each byte of text, and for each document besides. */
size_t pool_most_ids(const Tokenizer *);
