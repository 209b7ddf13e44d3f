/* data_cfg.h: the settings of `data`: their struct and their tables. model/config/config.h holds a DataCfg. */
#pragma once
#include "sft.h"
#include "task.h"

enum { PATHS_MAX = 256 };
typedef struct {
    char path[KEY_TEXT_MAX];
    double weight; /* 0: not given */
} Path;
typedef struct {
    int ntrain;
    Path train[PATHS_MAX]; /* text files and sets of ids; all have a weight, or none has */
    TaskCfg task;          /* kind NULL: text; else T is seq_len, and no file is read */
    /* not a setting: a directory with the same tokenizer, used if `tokenizer` no longer exists; or NULL */
    const char *tokenizer_copy;
    char val[KEY_TEXT_MAX]; /* "" = the last val_fraction of train */
    double val_fraction;
    char tokenizer[KEY_TEXT_MAX],
        eot[KEY_TEXT_MAX]; /* "byte" or a path; the token between documents, "" = the tokenizer's */
    int seq_len;
    char separator[KEY_TEXT_MAX]; /* text between two documents of a file; "" = a file is one document */
    int encoding;                 /* of text files: ENCODING_UTF8 or ENCODING_BYTES */
    int64_t val_samples;          /* for a task */
    SftCfg sft;                   /* template CHAT_NONE: the files are plain text */
} DataCfg;
enum { ENCODING_UTF8, ENCODING_BYTES };

extern const Key data_keys[], path_keys[]; /* those of data.task are the task's (task.h) */
