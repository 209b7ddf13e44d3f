/* chat.h: turns one conversation into ids, and marks those that a model shall learn to say. sft.c calls chat_encode
 * for every conversation of a file.
 *
 * A conversation is a JSON object of one of three forms:
 *   {"messages": [{"role": "system" | "user" | "assistant", "content": TEXT}, ...]}
 *   {"conversations": [{"from": "system" | "human" | "gpt", "value": TEXT}, ...]}    ShareGPT; a "system" text next to
 *                                                                                    the list comes first
 *   {"instruction": TEXT, "input": TEXT (optional), "output": TEXT}                  an instruction
 * - A message with "weight": 0 is not learned.
 * - A template puts texts around the messages. "<|...|>" in them are markers: the tokenizer's added token of that name
 *   if it has one, else plain text.
 * - Text between two markers that are tokens is encoded as one text. An answer begins a new text, as it does when a
 *   model is asked for it.
 * - Only the template makes special tokens: what looks like one inside a message is text. Other added tokens are found
 *   in messages.
 * - If the first id of a conversation is not special, it begins as a text does in kvsmith generate: with the
 *   tokenizer's beginning-of-text id, else its end-of-text id.
 * - Learned are an assistant's text and the template's marker after it, or everything but the first id.
 *
 * Sources of the formats: OpenAI's chatml.md; meta-llama/Meta-Llama-3-8B-Instruct tokenizer_config.json (texts are
 * stripped); tatsu-lab/stanford_alpaca train.py, with a line end after "### Response:" as in later trainers. */
#pragma once
#include <jansson.h>
#include "pretoken.h"
#include "tokenizer.h"

/* The order of chat_templates. */
enum { CHAT_NONE, CHAT_CHATML, CHAT_LLAMA3, CHAT_ALPACA, CHAT_PLAIN };
extern const char *const chat_templates[]; /* names, NULL-ended */

enum { CHAT_LEARN = 1 << 30 }; /* set in an id that is to be predicted; ids are below TOKENIZER_IDS_MAX */

typedef struct {
    const Tokenizer *t;
    Encoder *enc;
    int template;
    bool all;          /* learn everything */
    const char *plain; /* the first marker that is no token of the tokenizer; NULL: none */
    int nplain;        /* its length */
    Buf text, join;    /* work space */
} Chat;
void chat_open(Chat *, const Tokenizer *, int template, bool all);
void chat_close(Chat *);
/* Append the ids of a conversation, with CHAT_LEARN set in those to learn. EXIT_INPUT: not such an object, another
 * role, no assistant message to learn, tools; `where` begins the message, and `out` may have grown. */
bool chat_encode(Chat *, const json_t *conversation, const char *where, Ids *out, Err *);
/* The template as Jinja, malloc'ed, for the tokenizer_config.json of a trained model. With it, transformers'
 * apply_chat_template makes the text that chat_encode encodes; with add_generation_prompt, the text that a model is
 * asked with.
 * - If all markers are tokens, the ids are equal too, with these exceptions: an answer that begins with white space, a
 *   message that spells a special token, and a tokenizer that puts a blank before the first text only (Metaspace
 *   "first") after a beginning-of-text.
 * - bos_token and eos_token are those of tokenizer_config_json.
 * - An instruction is given as two messages; the text before its input identifies an instruction with one. */
char *chat_jinja(const Tokenizer *, int template);
/* The id that ends an answer of a template, if it is not end-of-text; -1: none, or it is plain text. */
int chat_stop(const Tokenizer *, int template);
