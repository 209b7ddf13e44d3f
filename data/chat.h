/* chat.h: one conversation to ids, and which of them a model shall learn to say.
 *
 * A conversation is a JSON object, {"messages": [{"role": "system" | "user" | "assistant", "content": TEXT}, ...]}, or
 * the same in ShareGPT's words, {"conversations": [{"from": "system" | "human" | "gpt", "value": TEXT}, ...]}, where a
 * "system" text beside the list comes first, or
 * an instruction, {"instruction": TEXT, "input": TEXT (may be left out), "output": TEXT}. A message with "weight": 0 is
 * not learned. A template puts texts around the messages; "<|...|>" in them are markers: the tokenizer's added token of
 * that name where it has one, else plain text.
 *
 * Ids. What stands between two markers that are tokens is encoded as one text, but an answer begins a text of its own:
 * so it does when a model is asked for it. Special tokens are made by the template alone: what looks like one inside a
 * message is text. Other added tokens are found there. A conversation whose first id is not special begins as a text
 * does in kvsmith generate: with the tokenizer's beginning-of-text, else its end-of-text id.
 *
 * Learned are an assistant's text and the template's marker behind it, or everything but the first id. Sources of the
 * formats: OpenAI's chatml.md; meta-llama/Meta-Llama-3-8B-Instruct tokenizer_config.json (texts are stripped);
 * tatsu-lab/stanford_alpaca train.py, with a line end behind "### Response:" as later trainers have it. */
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
    const char *plain; /* the first marker that was no token of the tokenizer; NULL: none */
    int nplain;        /* its length */
    Buf text, join;    /* room */
} Chat;
void chat_open(Chat *, const Tokenizer *, int template, bool all);
void chat_close(Chat *);
/* Append the ids of a conversation, CHAT_LEARN set where learned. EXIT_INPUT: not such an object, a role that is none
 * of the three, no message of the assistant that is learned, tools; `where` begins the message, and out may have grown.
 */
bool chat_encode(Chat *, const json_t *conversation, const char *where, Ids *out, Err *);
/* The template as Jinja, malloc'ed. transformers' apply_chat_template makes of messages by it the text that chat_encode
 * encodes, and with add_generation_prompt the text that a model is asked with. Its ids are the same, too, where all
 * markers are tokens, but for an answer that begins with white space, a message that spells a special token, and a
 * tokenizer that puts a blank before the first text alone (Metaspace "first") after a beginning-of-text. bos_token and
 * eos_token are those of tokenizer_config_json. An instruction is its two messages; one with an input is known by the
 * text that stands before it. */
char *chat_jinja(const Tokenizer *, int template);
/* The id that ends an answer by a template and is not end-of-text; -1: none, or it is plain text. */
int chat_stop(const Tokenizer *, int template);
