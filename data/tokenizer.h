/* tokenizer.h: text to token ids and back.
 *
 * The byte tokenizer: ids 0..255 are the bytes, 256 is end-of-text, "<|endoftext|>". Any bytes are text, UTF-8 or not,
 * and come back unchanged; the characters "<|endoftext|>" inside a text are thirteen bytes, never the id, so no text
 * can end a document. On disk it is a Hugging Face tokenizer.json: a byte-level BPE without merges whose 256
 * one-character tokens have the value of their byte as id (characters of bytes: the map GPT-2 uses). */
#pragma once
#include "../ops/base.h"

enum { TOKENIZER_EOT = 256, TOKENIZER_VOCAB = 257, TOKENIZER_FILE_MAX = 1 << 20 };

typedef struct {
    int vocab;               /* number of ids */
    int eot;                 /* the id that stands before every document and behind the last one */
    unsigned char byte[256]; /* bytes of the ids, for tokenizer_bytes */
} Tokenizer;

Tokenizer tokenizer_byte(void);

/* Ids of n bytes of text into ids (room for n; no token is shorter than a byte). Returns how many. No end-of-text is
 * added. */
size_t tokenizer_encode(const Tokenizer *, const void *text, size_t n, int *ids);
/* The bytes of one id (*n of them, not NUL-ended, owned by the tokenizer); end-of-text gives "<|endoftext|>", which a
 * caller that shows text leaves out. 0 <= id < vocab. */
const char *tokenizer_decode(const Tokenizer *, int id, size_t *n);

/* The tokenizer.json as malloc'ed text with a newline at its end; for the caller to write. */
char *tokenizer_json(const Tokenizer *);
/* Likewise tokenizer_config.json, which tells transformers the class and the end-of-text token. */
char *tokenizer_config_json(const Tokenizer *);
/* Read PATH, a tokenizer.json. Whatever would encode in another way than the byte tokenizer (another model, merges,
 * another vocabulary, a normalizer, added tokens or templates) is EXIT_INPUT: one line with what was found. */
bool tokenizer_load(Tokenizer *, const char *path, Err *);
/* The same from n bytes of JSON; `where` begins the message. */
bool tokenizer_parse(Tokenizer *, const char *json, size_t n, const char *where, Err *);
