/* choice_set.h: the items of eval choices as ids; the rules stand in choices.h. */
#pragma once
#include "../data/jsonl.h"
#include "../data/tokenizer.h"

typedef struct {
    int *id;     /* (n) context and continuation, as they are used; the context has at least one */
    int n, cont; /* cont: of the continuation, >= 1 */
    double len;  /* characters that its ll is divided by */
    double ll;
    bool greedy; /* every id of it is the likeliest where it stands */
} Ask;
typedef struct {
    int64_t first; /* of its asks */
    int n, gold, choice, choice_norm;
} Item;
/* Asks that follow each other with the same ids before their continuations. */
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
    int prefix;  /* the id that is the context where there is none; -1: none is known */
    int context; /* ids of a window */
} ChoiceRule;
/* Read at most `limit` items (0: all). EXIT_INPUT: see eval_choices; the set is to be freed then, too. */
bool choice_set_read(ChoiceSet *, const ChoiceRule *, Jsonl *, int64_t limit, Err *);
void choice_set_free(ChoiceSet *);
