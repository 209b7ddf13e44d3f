/* dirs.h: model directories for the tests of files: the golden ones, copies with one thing changed, their logits. */
#pragma once
#include "check.h"
#include "model/files/hf.h"
#include "model/workspace.h"
#include <jansson.h>

#define GOLDEN "tests/golden/llama/"
enum { DIR_NAMES = 10 };
extern const char *const dir_names[DIR_NAMES]; /* below GOLDEN */

/* A refusal is EXIT_INPUT, one line of at most 300 characters that contains `part`, and `path` unless that is NULL. */
void dir_refused(const char *what, const char *path, const Err *, const char *part);

/* A model read from a directory. */
typedef struct {
    Device *dev;
    ModelCfg cfg;
    Model model;
} Dir;
void dir_open(Dir *, const char *dir);
void dir_close(Dir *);
/* (B*T,V) logits of B documents of T tokens each, in one pass. */
real *dir_logits(Model *, const int *tok, int B, int T);
/* (T,V) logits of one document that a cache is fed in pieces, each up to the next of cuts, which begin with 0 and end
 * with T. The cache is left open for a look at its rows. */
real *dir_in_pieces(Model *, const int *tok, int T, const int *cuts, Cache *);
/* Our n logits of the input of DIR/golden.safetensors with the weights of `o`; *want: those that transformers computed.
 */
real *dir_golden(Dir *o, const char *dir, real **want, int *n);
real *dir_golden_of(Dir *, const char *dir, const char *name, real **want,
                    int *n); /* by that tensor; NULL: not there */

/* A copy of a golden directory (links) without its config.json, which is returned as JSON for dir_config to write. */
char *dir_stage(const char *golden, json_t **config);
void dir_config(const char *dir, const json_t *);
/* Set a key to JSON text, or remove it (NULL). "a/b": key b of the object a. */
void dir_edit(json_t *, const char *key, const char *value);
/* The staged DIR with one key set or removed is read; part: or refused, by a line with this and `where`. */
void dir_tried(const char *dir, json_t *, const char *name, const char *key, const char *value, const char *part,
               const char *where);
char *dir_settings(const char *dir); /* model_cfg_json of what hf_config_read makes of it */
/* Write DIR/model.safetensors again from the golden one with the tensor `name` changed; `added`: the new name. */
typedef enum { DROP, WIDER, TURNED, RENAMED, ADDED, SAME } Change;
void dir_rewrite(const char *dir, const char *golden, const char *name, Change how, const char *added);
