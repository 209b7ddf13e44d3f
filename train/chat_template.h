/* chat_template.h: reads, compares and writes the Jinja template for chats. Training loads it with the tokenizer, and
 * checkpoints write it.
 *
 * A template that a tokenizer has is copied into checkpoints unchanged, for other programs, and never interpreted. A
 * run on conversations writes the template of data.sft instead. */
#pragma once
#include "ops/file.h"

typedef struct {
    char *jinja; /* chat_template.jinja; NULL: none */
    size_t n;
    json_t *value; /* "chat_template" of tokenizer_config.json; NULL: none */
} ChatTemplate;
/* Reads it from the directory of a tokenizer; both NULL if there is none. EXIT_INPUT: a file of more than 16 MiB, or a
 * tokenizer_config.json that is no JSON object. */
bool chat_template_read(ChatTemplate *, const char *dir, Err *);
/* True if readers would format chats differently with it than with `jinja`. False if there is none. */
bool chat_template_differs(const ChatTemplate *, const char *jinja);
/* Makes one that is a copy of `jinja`, in both files. */
ChatTemplate chat_template_of(const char *jinja);
void chat_template_free(ChatTemplate *);
/* Returns the text of a tokenizer_config.json with the value put in; owns and frees `config`. The result is
 * malloc'ed. */
char *chat_template_config(const ChatTemplate *, char *config);
/* Writes DIR/chat_template.jinja, if there was one. */
bool chat_template_write(const ChatTemplate *, const char *dir, Err *);
