/* data_cfg.c: the key tables of `data`. */
#include "data_cfg.h"
#include "chat.h"

static const char *const encodings[] = {"utf8", "bytes", NULL};

#define AT(member) offsetof(SftCfg, member)
static const Key sft_keys[] = {{"template", KEY_CHOICE, AT(template), "none", 0, 0,
                                "chat template around the messages; none: the files are plain text", chat_templates, 0},
                               {"learn", KEY_CHOICE, AT(learn), "answers", 0, 0,
                                "tokens with a loss; answers: the assistant's texts and the marker after each",
                                sft_learns, 0},
                               {"too_long", KEY_CHOICE, AT(too_long), "cut", 0, 0,
                                "a conversation of more than seq_len + 1 tokens is cut at the end or dropped",
                                sft_too_longs, 0},
                               {0}};
#undef AT
#define AT(member) offsetof(DataCfg, member)
const Key path_keys[] = {{"path", KEY_TEXT, offsetof(Path, path), NULL, 0, 0,
                          "a text file, a glob pattern, a folder, a Megatron dataset (.bin with its .idx) or an llm.c "
                          ".bin, relative to the working directory",
                          0, 0},
                         {"weight", KEY_FLOAT, offsetof(Path, weight), "0", 0, 1e6,
                          "its share of the samples, relative to the other weights; 0: no weights are given", 0, 0},
                         {0}};
const Key data_keys[] = {
    {"train", KEY_OTHER, 0, "", 0, 0,
     "a text file (.jsonl: one {\"text\": ...} a line), a glob pattern in quotes (\"data/*.txt\"), a folder of .txt "
     "and .jsonl files, a Megatron dataset (.bin with .idx) or an llm.c .bin, or a list of these; each a path or "
     "{path: PATH, weight: W}; training needs it or a task",
     0, 0},
    {"task", KEY_OTHER, 0, "", 0, 0, "instead of text, {name: TASK, its settings}, or TASK alone: see below", 0, 0},
    {"val", KEY_TEXT, AT(val), "", 0, 0,
     "a text file or a token dataset for validation; null: the end of the training text", 0, 0},
    {"val_fraction", KEY_FLOAT, AT(val_fraction), "0.1", 0, 0.5,
     "fraction of the training text that is kept for validation when val is null", 0, 0},
    {"tokenizer", KEY_TEXT, AT(tokenizer), "byte", 0, 0,
     "byte: 256 bytes and <|endoftext|>; else a tokenizer.json, or a directory that has one or GPT-2's encoder.json "
     "and vocab.bpe",
     0, 0},
    {"eot", KEY_TEXT, AT(eot), "", 0, 0,
     "the token that separates documents, by name or id; null: the tokenizer's end-of-text", 0, 0},
    {"seq_len", KEY_INT, AT(seq_len), "256", 1, 1 << 20, "tokens of a training sample", 0, 0},
    {"val_samples", KEY_LONG, AT(val_samples), "256", 1, 1e9, "samples of a validation on a task", 0, 0},
    {"sft", KEY_TABLE, AT(sft), "", 0, 0,
     "the files are conversations, a JSON object a line: {messages: [{role, content}]} or {instruction, input, output}",
     0, sft_keys},
    {"separator", KEY_TEXT, AT(separator), "", 0, 0,
     "text that separates documents of a file; null: a file is one document", 0, 0},
    {"encoding", KEY_CHOICE, AT(encoding), "utf8", 0, 0,
     "encoding of text files; utf8: refuse a file that is not UTF-8 text; bytes: accept any bytes", encodings, 0},
    {0}};
#undef AT
