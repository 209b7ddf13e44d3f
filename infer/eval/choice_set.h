/* choice_set.h: the items of `eval choices` as ids; choices.c reads them before scoring. The rules are in choices.h. */
#pragma once
#include "data/jsonl.h"
#include "data/tokenizer.h"

typedef struct {
    int *id;     /* (n) context and continuation, as used; the context has at least one */
    int n, cont; /* cont: of the continuation, >= 1 */
    double len;  /* characters by which its ll is divided */
    double ll;
    bool greedy; /* every id of it is the likeliest at its place */
} Ask;
typedef struct {
    int64_t first; /* of its asks */
    int n, gold, choice, choice_norm;
} Item;
/* Consecutive asks with the same ids before their continuations. */
typedef struct {
    int64_t first;
    int n;
} Group;
typedef struct {
    Ask *ask;
    Item *item;
    Group *group;
    int64_t nask, nitem, ngroup, ask_cap, item_cap, cut; /* cut: asks whose context lost ids at its beginning */
    int longest;                                         /* inputs of an ask, at most */
} ChoiceSet;

typedef struct {
    const Tokenizer *t;
    int prefix;  /* the id that replaces an empty context; -1: none is known */
    int context; /* ids of a window */
} ChoiceRule;
/* Reads at most `limit` items (0: all). EXIT_INPUT: see eval_choices; free the set then, too. */
bool choice_set_read(ChoiceSet *, const ChoiceRule *, Jsonl *, int64_t limit, Err *);
void choice_set_free(ChoiceSet *);
