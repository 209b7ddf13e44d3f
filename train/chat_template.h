/* chat_template.h: the Jinja template for chats. One that a tokenizer brings along is copied into checkpoints as it is,
 * for others to use, and never interpreted; a run on conversations writes that of its own template instead. */
#pragma once
#include "../ops/file.h"

typedef struct {
    char *jinja; /* chat_template.jinja; NULL: none */
    size_t n;
    json_t *value; /* "chat_template" of tokenizer_config.json; NULL: none */
} ChatTemplate;
/* Of the directory of a tokenizer, or nothing. EXIT_INPUT: files of more than 16 MiB, a tokenizer_config.json that is
 * no JSON object. */
bool chat_template_read(ChatTemplate *, const char *dir, Err *);
/* Readers would take another text than `jinja` from it; none: no. */
bool chat_template_differs(const ChatTemplate *, const char *jinja);
/* One that is `jinja`, a copy, in both files. */
ChatTemplate chat_template_of(const char *jinja);
void chat_template_free(ChatTemplate *);
/* The text of a tokenizer_config.json with the value put in; takes `config`, malloc'ed as the result. */
char *chat_template_config(const ChatTemplate *, char *config);
/* DIR/chat_template.jinja, where there was one. */
bool chat_template_write(const ChatTemplate *, const char *dir, Err *);
