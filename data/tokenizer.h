/* tokenizer.h: text to token ids and back, as tokenizer.json describes it.
 *
 * Two kinds. The byte tokenizer is built in: ids 0..255 are the bytes, 256 is end-of-text, "<|endoftext|>". Byte pair
 * encoding is read from a Hugging Face tokenizer.json (byte-level, or SentencePiece-like with byte fallback) or from
 * GPT-2's pair of files. Order of work, as the tokenizers library has it: added tokens that are not `normalized` are
 * cut out of the raw text; what lies between is normalised (NFC, a prefix, blanks to U+2581); the other added tokens
 * are cut out; the rest is cut into pieces by the file's pattern; each piece is merged (bpe.h); the template puts its
 * ids around.
 *
 * Any bytes are text, UTF-8 or not; with a byte-level tokenizer without NFC, and without added tokens that
 * strip blanks, every text comes back unchanged. On disk a
 * tokenizer is a tokenizer.json; one that was read is written back byte for byte. */
#pragma once
#include "bpe.h"

enum { TOKENIZER_EOT = 256, TOKENIZER_VOCAB = 257, TOKENIZER_FILE_MAX = 64 << 20, TOKENIZER_IDS_MAX = 1 << 21 };

typedef struct {
    int vocab;               /* number of ids: one more than the highest */
    int eot;                 /* the id that stands before every document and behind the last one; -1: none is known */
    int bos;                 /* the id that the file's template puts before a text; -1: none */
    bool strip;              /* a blank at the start of a decoded text was put there by encoding */
    unsigned char byte[256]; /* bytes of the byte tokenizer's ids, for tokenizer_decode */
    struct TokModel *model;  /* NULL: the byte tokenizer */
} Tokenizer;

Tokenizer tokenizer_byte(void);
void tokenizer_close(Tokenizer *);

enum {
    ENCODE_SPECIAL = 1,  /* special added tokens in the text are found; without it their characters are text like any
                            other, so that no text can end a document */
    ENCODE_TEMPLATE = 2, /* with what the file's template puts around a text, such as a beginning-of-text id */
    /* of a text that is put together from several: */
    ENCODE_LATER = 4, /* other text, or a special token, stands before it */
    ENCODE_JOINED = 8 /* text stands right before it, which has got the blank that some files put before a text */
};
/* Append the ids of n bytes of text to out. Added tokens that are not special (runs of blanks, <tool_call>) are always
 * found. EXIT_INPUT: a text of 2^30 bytes or more, or one on which the file's
 * pattern does not come to an end; out then holds part of the ids. */
bool tokenizer_encode(const Tokenizer *, const void *text, size_t n, unsigned how, Ids *out, Err *);
/* The same by one thread for many texts: buffers and a cache of pieces are kept. */
typedef struct Encoder Encoder;
Encoder *encoder_open(const Tokenizer *);
void encoder_close(Encoder *);
bool encoder_run(Encoder *, const void *text, size_t n, unsigned how, Ids *out, Err *);

/* The bytes of one id (*n of them, not NUL-ended, owned by the tokenizer). Of an id that nothing uses: none. A special
 * id gives its name, "<|endoftext|>", which a caller that shows text leaves out. 0 <= id < vocab. */
const char *tokenizer_decode(const Tokenizer *, int id, size_t *n);
bool tokenizer_special(const Tokenizer *, int id);
int tokenizer_find(const Tokenizer *, const char *name); /* the id of an added token; -1: none */

/* The tokenizer.json as malloc'ed text with a newline at its end; for the caller to write. */
char *tokenizer_json(const Tokenizer *);
/* Likewise tokenizer_config.json, which tells transformers the class and the end-of-text token. */
char *tokenizer_config_json(const Tokenizer *);
/* Read PATH, a tokenizer.json. A part that would be needed and is not known here (another model, normalizer,
 * decoder...) is EXIT_INPUT: one line with what was found. */
bool tokenizer_load(Tokenizer *, const char *path, Err *);
/* The same from n bytes of JSON; `where` begins the message. */
bool tokenizer_parse(Tokenizer *, const char *json, size_t n, const char *where, Err *);
/* A tokenizer as settings name it: "byte" or "", a tokenizer.json, a directory that holds one or GPT-2's pair. eot: the
 * added token, or the number of the id, that shall separate documents; "" or NULL: what the tokenizer says, -1 when it
 * does not. */
bool tokenizer_open(Tokenizer *, const char *name, const char *eot, Err *);
/* GPT-2's own files, DIR/encoder.json and DIR/vocab.bpe. */
bool tokenizer_load_gpt2(Tokenizer *, const char *dir, Err *);
