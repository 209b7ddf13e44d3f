/* tokenizer.h: converts text to token ids and back, as tokenizer.json describes it. All commands that read or print
 * text use it.
 *
 * The byte tokenizer is built in: ids 0..255 are the bytes, 256 is end-of-text, "<|endoftext|>". The others are read
 * from a Hugging Face tokenizer.json: byte pair encoding (byte-level, or of characters with byte fallback), unigram
 * models, WordPiece. A SentencePiece model (tokenizer.model), a tiktoken file and GPT-2's pair of files are converted
 * to an equivalent tokenizer.json when they are read. Encoding works in this order, as in the tokenizers library:
 * 1. Cut the added tokens that are not `normalized` out of the raw text.
 * 2. Normalise the rest (normal.h).
 * 3. Cut out the other added tokens.
 * 4. Cut the rest into pieces by the file's patterns, and encode each piece (bpe.h, unigram.h, wordpiece.h).
 * 5. Put the template's ids around the result.
 *
 * Any bytes are text, UTF-8 or not. With a byte-level tokenizer without a normalizer, and without added tokens that
 * strip blanks, decoding gives back every text unchanged. On disk a tokenizer is a tokenizer.json; one that was read is
 * written back byte for byte. */
#pragma once
#include <jansson.h>
#include "bpe.h"

enum { TOKENIZER_EOT = 256, TOKENIZER_VOCAB = 257, TOKENIZER_FILE_MAX = 64 << 20, TOKENIZER_IDS_MAX = 1 << 21 };

typedef struct {
    int vocab;               /* number of ids: one more than the highest */
    int eot;                 /* the id before every document and after the last one; -1: unknown */
    int bos;                 /* the id that the file's template puts before a text; -1: none */
    bool strip;              /* encoding puts a blank at the start of a text, which decoding removes */
    unsigned char byte[256]; /* bytes of the byte tokenizer's ids, for tokenizer_decode */
    struct TokModel *model;  /* NULL: the byte tokenizer */
} Tokenizer;

Tokenizer tokenizer_byte(void);
void tokenizer_close(Tokenizer *);

enum {
    /* find special added tokens in the text; without it they are plain text, so that no text can end a document */
    ENCODE_SPECIAL = 1,
    ENCODE_TEMPLATE = 2, /* add the ids that the file's template puts around a text, such as a beginning-of-text id */
    /* for a text that is put together from several: */
    ENCODE_LATER = 4, /* other text, or a special token, comes before it */
    ENCODE_JOINED = 8 /* text comes right before it, and already has the blank that some files put before a text */
};
/* Append the ids of n bytes of text to out. Added tokens that are not special (runs of blanks, <tool_call>) are always
 * found. EXIT_INPUT: a text of 2^30 bytes or more, or one on which the file's pattern does not terminate; `out` then
 * holds part of the ids. */
bool tokenizer_encode(const Tokenizer *, const void *text, size_t n, unsigned how, Ids *out, Err *);
/* The same for many texts in one thread: keeps buffers and a cache of pieces. */
typedef struct Encoder Encoder;
Encoder *encoder_open(const Tokenizer *);
void encoder_close(Encoder *);
bool encoder_run(Encoder *, const void *text, size_t n, unsigned how, Ids *out, Err *);

/* The bytes of one id (*n of them, not NUL-ended, owned by the tokenizer); none for an unused id. A special id gives
 * its name, "<|endoftext|>", which a caller that shows text must leave out. 0 <= id < vocab. */
const char *tokenizer_decode(const Tokenizer *, int id, size_t *n);
bool tokenizer_special(const Tokenizer *, int id);
int tokenizer_find(const Tokenizer *, const char *name); /* the id of an added token; -1: none */

/* The tokenizer.json as malloc'ed text with a newline at its end. The caller writes it. */
char *tokenizer_json(const Tokenizer *);
/* The same for tokenizer_config.json, which gives transformers the class and the end-of-text token. */
char *tokenizer_config_json(const Tokenizer *);
/* Read PATH, a tokenizer.json. EXIT_INPUT: a part that is needed but not supported (another model, normalizer,
 * decoder...); the line names what was found. */
bool tokenizer_load(Tokenizer *, const char *path, Err *);
/* The same from n bytes of JSON; `where` begins the message. */
bool tokenizer_parse(Tokenizer *, const char *json, size_t n, const char *where, Err *);
/* GPT-2's own files, DIR/encoder.json and DIR/vocab.bpe. */
bool tokenizer_load_gpt2(Tokenizer *, const char *dir, Err *);
/* A SentencePiece model of n bytes: unigram, or BPE with byte fallback (tokenizer_spm.c). EXIT_INPUT: malformed, or a
 * kind or piece that is not supported. */
bool tokenizer_parse_spm(Tokenizer *, const void *, size_t n, const char *where, Err *);
/* A tiktoken file of n bytes. `name`, the file's, decides about the pattern (tokenizer_tiktoken.c); config: the
 * tokenizer_config.json that names special tokens, may be NULL. */
bool tokenizer_parse_tiktoken(Tokenizer *, const char *name, const void *, size_t n, const json_t *config,
                              const char *where, Err *);
/* The file that tokenizer_open reads in a directory: tokenizer.json, tokenizer.model, a tiktoken file of a known name,
 * or encoder.json; malloc'ed. NULL: none, or `e` is set. */
char *tokenizer_file(const char *dir, Err *);
/* Open a tokenizer as settings name it: "byte" or "", one of those files, or a directory that holds one. eot: the added
 * token, or the number of the id, that separates documents; "" or NULL: the tokenizer's own, -1 if it has none. */
bool tokenizer_open(Tokenizer *, const char *name, const char *eot, Err *);
