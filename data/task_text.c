/* task_text.c: the generators of tasks of text, and the text that their ids spell. */
#include "task_text.h"
#include "task_draw.h"

/* ---- ids ---------------------------------------------------------------------------------------------------------
 * Phrases, ten digits, words. Every word and every number is spelled with a space in front; phrases bring their own.
 * What always follows the key of a needle (" is:") and the last word of a prefix has no id of its own (spell_after).
 * Of the words, the first half are keys (variables), the rest values. */
enum {
    TX_PAD,
    TX_NOISE, /* five sentences, in turn */
    TX_NIAH = TX_NOISE + 5,
    TX_PASS,
    TX_VT,
    TX_CWE,
    TX_FWE,
    TX_REPEAT,
    TX_NEEDLE,
    TX_STOP,
    TX_KEY1,
    TX_KEY2,
    TX_KEY3,
    TX_VAR,
    TX_EQ,
    TX_EQVAR,
    TX_ITEM,
    TX_DOTS,
    TX_COMMA,
    TX_AND,
    TX_ASK, /* questions begin with one of these */
    TX_ASK_NIAH = TX_ASK,
    TX_ASK_PASS,
    TX_ASK_VT,
    TX_ASK_CWE,
    TX_ASK_FWE,
    TX_ASK_REPEAT,
    TX_PRE, /* prefixes of answers begin with one of these */
    TX_PRE_NIAH = TX_PRE,
    TX_PRE_PASS,
    TX_PRE_VT,
    TX_PRE_CWE,
    TX_PRE_FWE,
    TX_PRE_REPEAT,
    TX_TEXT, /* "in the text": ends a question */
    TX_TEXT_VT,
    TX_DIGIT,
    TX_WORD = TX_DIGIT + 10,
    WORDS_LEAST = 16,
    WORDS_MOST = 70 * 70
};
/* $T: the kind of value; $N: how many are asked for. Of one answer the text says "A", "is" and no plural. */
static const char *const phrases[TX_DIGIT] = {
    [TX_PAD] = "",
    [TX_NOISE] = "\nThe grass is green.",
    [TX_NOISE + 1] = " The sky is blue.",
    [TX_NOISE + 2] = " The sun is yellow.",
    [TX_NOISE + 3] = " Here we go.",
    [TX_NOISE + 4] = " There and back again.",
    [TX_NIAH] = "Some special magic $T are hidden within the following text. Make sure to memorize it. I will quiz you "
                "about the $T afterwards.\n",
    [TX_PASS] = "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will "
                "quiz you about the important information there.\n",
    [TX_VT] = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n",
    [TX_CWE] = "Below is a numbered list of words. In these words, some appear more often than others. Memorize the "
               "ones that appear most often.\n",
    [TX_FWE] = "Read the following coded text and track the frequency of each coded word. Find the three most "
               "frequently appeared coded words.",
    [TX_REPEAT] = "Memorize the following list of words.\n",
    [TX_NEEDLE] = " One of the special magic $Ts for",
    [TX_STOP] = ".",
    [TX_KEY1] = " The pass key is",
    [TX_KEY2] = ". Remember it.",
    [TX_KEY3] = " is the pass key.",
    [TX_VAR] = " VAR",
    [TX_EQ] = " =",
    [TX_EQVAR] = " = VAR",
    [TX_ITEM] = "", /* its number */
    [TX_DOTS] = " ...",
    [TX_COMMA] = ",",
    [TX_AND] = ", and",
    [TX_ASK_NIAH] = "\nWhat are all the special magic $T for",
    [TX_ASK_PASS] = "\nWhat is the pass key?",
    [TX_ASK_VT] = "\nQuestion: Find all variables that are assigned the value",
    [TX_ASK_CWE] = "\nQuestion: What are the $N most common words in the above list?",
    [TX_ASK_FWE] = "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most "
                   "frequently appeared words in the above coded text?",
    [TX_ASK_REPEAT] = "\nQuestion: Which words are in the list, in order?",
    [TX_PRE_NIAH] = " The special magic $T for",
    [TX_PRE_PASS] = " The pass key is",
    [TX_PRE_VT] = " Answer: According to the chain(s) of variable assignment in the text above, $N variables are "
                  "assigned the value",
    [TX_PRE_CWE] = " Answer: The top $N words that appear most often in the list are:",
    [TX_PRE_FWE] = " Answer: According to the coded text above, the three most frequently appeared words are:",
    [TX_PRE_REPEAT] = " Answer: The words are:",
    [TX_TEXT] = " mentioned in the provided text?",
    [TX_TEXT_VT] = " in the text above.",
};
static int words_of(const TaskCfg *c) { return c->vocab - TX_WORD; }
static int keys_of(const TaskCfg *c) { return words_of(c) / 2; }
static int values_of(const TaskCfg *c) { return words_of(c) - keys_of(c); }
static int value_len(const TaskCfg *c) { return c->digits ? c->digits : 1; }

/* ---- writing a sample ------------------------------------------------------------------------------------------- */

typedef struct {
    const TaskCfg *c;
    Draw fill;
    int *tok, *tgt, n, noise;
} Page;
static void put(Page *p, int id) {
    if (p->n < p->c->T) p->tok[p->n] = id;
    p->n++;
}
static void ask(Page *p, int id) { /* the last one is a target alone */
    p->tgt[p->n - 1] = id;
    put(p, id);
}
static void put_noise(Page *p, int count) {
    for (; count > 0; count--)
        put(p, p->c->hay == HAY_WORDS ? TX_WORD + keys_of(p->c) + task_below(&p->fill, values_of(p->c))
                                      : TX_NOISE + p->noise++ % 5);
}
static void pad(Page *p, int count) {
    while (count-- > 0) put(p, TX_PAD);
}
/* Value `i`: a word of the deck, or a number without leading 0. Both are different for different i, as long as there
 * are enough (numbers_of, values_of). */
static uint64_t numbers_of(const TaskCfg *c) {
    uint64_t n = 9;
    for (int k = 1; k < c->digits; k++) n *= 10;
    return n;
}
static void put_value(Page *p, const int *deck, uint64_t key, int i, void (*out)(Page *, int)) {
    if (!p->c->digits) {
        out(p, deck[i % values_of(p->c)]);
        return;
    }
    const uint64_t n = numbers_of(p->c), number = n / 9 + rng_permute(rng_name(key, "numbers"), (uint64_t)i % n, n);
    char text[TASK_DIGITS_MAX + 1];
    snprintf(text, sizeof text, "%0*llu", p->c->digits, (unsigned long long)number);
    for (const char *d = text; *d; d++) out(p, TX_DIGIT + *d - '0');
}
/* Which of `items` places lines stand at, ascending; line `first` of them (-1: any) at a depth of the settings. */
static void place_lines(const TaskCfg *c, Draw *d, int items, int lines, int *where, int *first) {
    const int at = (int)lround((c->depth_min + (c->depth_max - c->depth_min) * task_unit(d)) * (items - 1));
    task_scatter(d, 0, items - 1, 1, lines - 1, where);
    for (*first = 0; *first < lines - 1 && where[*first] < at;) ++*first;
    for (int i = lines - 1; i > *first; i--) where[i] = where[i - 1] + 1;
    where[*first] = at;
}

/* ---- niah --------------------------------------------------------------------------------------------------------
 * A haystack of noise, random words or other needles holds keys x values needles. Each round asks for all values of
 * `queries` keys, by their places in the text. The first key's first needle lies at the depth of the settings. */
static int niah_round(const TaskCfg *c) { /* rows of question, prefix and answers */
    const int asked = c->queries * c->values;
    return 1 + 2 * (1 + 2 * c->queries - 1) + asked * value_len(c) + asked - 1;
}
static int needle_len(const TaskCfg *c) { return 3 + value_len(c); }
static int niah_room(const TaskCfg *c) { /* rows of noise; below 0: it does not fit */
    const int64_t room =
        (int64_t)c->T - (int64_t)c->rounds * niah_round(c) - (int64_t)c->keys * c->values * needle_len(c);
    return room < -1 ? -1 : (int)room;
}
static void put_queries(Page *p, const int *keys, int n) {
    for (int i = 0; i < n; i++) {
        if (i) put(p, i + 1 == n ? TX_AND : TX_COMMA);
        put(p, keys[i]);
    }
}
static void niah_make(Page *p, uint64_t key, int *work) {
    const TaskCfg *c = p->c;
    Draw pick = draw_make(key, "pairs"), place = draw_make(key, "place");
    const int nkeys = keys_of(c), nvalues = values_of(c), own = c->keys * c->values;
    int room = niah_room(c), lines = own, first;
    if (c->hay == HAY_NEEDLES) lines += imin(room / needle_len(c), nkeys - c->keys);
    room -= (lines - own) * needle_len(c);
    int *keys = work, *values = keys + nkeys, *line = values + nvalues, *where = line + lines;
    task_deal(&pick, keys, TX_WORD, nkeys, nkeys);
    task_deal(&pick, values, TX_WORD + nkeys, nvalues, nvalues);
    place_lines(c, &place, room + lines, lines, where, &first);
    task_deal(&place, line, 0, lines, lines);
    for (int i = 0; i < lines; i++) /* line 0 goes to the chosen place */
        if (line[i] == 0) line[i] = line[first], line[first] = 0;
    put(p, TX_NIAH);
    for (int i = 0; i < lines; i++) {
        const int k = line[i] < own ? line[i] / c->values : c->keys + line[i] - own;
        put_noise(p, where[i] - (i ? where[i - 1] + 1 : 0));
        put(p, TX_NEEDLE);
        put(p, keys[k]);
        put_value(p, values, key, line[i], put);
        put(p, TX_STOP);
    }
    put_noise(p, room + lines - 1 - where[lines - 1]);
    for (int r = 0; r < c->rounds; r++) {
        const int *q = keys + r * c->queries;
        bool more = false;
        put(p, TX_ASK_NIAH), put_queries(p, q, c->queries), put(p, TX_TEXT);
        put(p, TX_PRE_NIAH), put_queries(p, q, c->queries);
        for (int k = r * c->queries; k < (r + 1) * c->queries; k++)
            for (int i = 0; i < lines; i++) {
                if (line[i] >= own || line[i] / c->values != k) continue;
                if (more) put(p, TX_COMMA);
                put_value(p, values, key, line[i], ask);
                more = true;
            }
    }
}
static bool values_fit(const TaskCfg *c, int64_t n, const char *key, Err *e) {
    if (!c->digits && n > values_of(c))
        return err_input(e, "%s: a vocab of %d has %d words for values, but %lld are needed", key, c->vocab,
                         values_of(c), (long long)n);
    return !c->digits || (uint64_t)n <= numbers_of(c) ||
           err_input(e, "%s: %d digits give %llu values, but %lld are needed", key, c->digits,
                     (unsigned long long)numbers_of(c), (long long)n);
}
static bool niah_check(const TaskCfg *c, Err *e) {
    if (words_of(c) < WORDS_LEAST || words_of(c) > WORDS_MOST)
        return err_input(e, "vocab: expected %d to %d (%d pieces of templates, then words), got %d",
                         TX_WORD + WORDS_LEAST, TX_WORD + WORDS_MOST, TX_WORD, c->vocab);
    if (c->depth_min > c->depth_max)
        return err_input(e, "depth_min: %g is more than depth_max, %g", c->depth_min, c->depth_max);
    if (c->keys > keys_of(c))
        return err_input(e, "keys: a vocab of %d has %d words for keys, got %d", c->vocab, keys_of(c), c->keys);
    if (!values_fit(c, (int64_t)c->keys * c->values, "values", e)) return false;
    if ((int64_t)c->rounds * c->queries > c->keys)
        return err_input(e, "queries: %d rounds of %d questions need as many keys, got keys %d", c->rounds, c->queries,
                         c->keys);
    return niah_room(c) >= 1 || err_input(e,
                                          "a sample of %d tokens has no room for %d needles and %d rounds; give a "
                                          "larger T",
                                          c->T, c->keys * c->values, c->rounds);
}

/* ---- passkey -----------------------------------------------------------------------------------------------------
 * Noise with one line that says the key twice. */
static int passkey_room(const TaskCfg *c) { return c->T + 1 - 1 - (3 + 2 * value_len(c)) - 2 - value_len(c); }
static void passkey_make(Page *p, uint64_t key, int *work) {
    Draw pick = draw_make(key, "pairs"), place = draw_make(key, "place");
    int where, first, room = passkey_room(p->c);
    task_deal(&pick, work, TX_WORD + keys_of(p->c), values_of(p->c), 1);
    place_lines(p->c, &place, room + 1, 1, &where, &first);
    put(p, TX_PASS);
    put_noise(p, where);
    put(p, TX_KEY1), put_value(p, work, key, 0, put), put(p, TX_KEY2), put_value(p, work, key, 0, put), put(p, TX_KEY3);
    put_noise(p, room - where);
    put(p, TX_ASK_PASS), put(p, TX_PRE_PASS);
    put_value(p, work, key, 0, ask);
}
static bool passkey_check(const TaskCfg *c, Err *e) {
    return passkey_room(c) >= 1 ||
           err_input(e, "a pass key needs samples of at least %d tokens, got %d", c->T + 1 - passkey_room(c), c->T);
}

/* ---- vt ----------------------------------------------------------------------------------------------------------
 * `chains` chains of 1 + hops lines: a variable that is given a value, then each time one that is given the last one.
 * Lines of a chain keep their order. Each round asks for the variables of one chain. */
static int vt_room(const TaskCfg *c) {
    const int vl = value_len(c), chain = 4 + vl + 5 * c->hops, round = 3 + 2 * vl + 2 * c->hops + 1;
    const int64_t room = (int64_t)c->T - (int64_t)c->chains * chain - (int64_t)c->rounds * round;
    return room < -1 ? -1 : (int)room;
}
static void vt_make(Page *p, uint64_t key, int *work) {
    const TaskCfg *c = p->c;
    Draw pick = draw_make(key, "pairs"), place = draw_make(key, "place");
    const int nkeys = keys_of(c), nvalues = values_of(c), len = c->hops + 1, lines = c->chains * len, room = vt_room(c);
    int *names = work, *values = names + nkeys, *line = values + nvalues, *where = line + lines, *done = where + lines;
    task_deal(&pick, names, TX_WORD, nkeys, nkeys);
    task_deal(&pick, values, TX_WORD + nkeys, nvalues, nvalues);
    task_scatter(&place, 0, room + lines, 1, lines, where);
    task_deal(&place, line, 0, lines, lines);
    memset(done, 0, (size_t)c->chains * sizeof *done);
    put(p, TX_VT);
    for (int i = 0; i < lines; i++) {
        const int chain = line[i] / len, hop = done[chain]++, *name = names + chain * len + hop;
        put_noise(p, where[i] - (i ? where[i - 1] + 1 : 0));
        put(p, TX_VAR), put(p, *name);
        put(p, hop ? TX_EQVAR : TX_EQ);
        if (hop)
            put(p, name[-1]);
        else
            put_value(p, values, key, chain, put);
        put(p, TX_STOP);
    }
    put_noise(p, room + lines - 1 - where[lines - 1]);
    for (int r = 0; r < c->rounds; r++) {
        put(p, TX_ASK_VT), put_value(p, values, key, r, put), put(p, TX_TEXT_VT);
        put(p, TX_PRE_VT), put_value(p, values, key, r, put);
        for (int i = 0; i < len; i++) {
            if (i) put(p, TX_COMMA);
            ask(p, names[r * len + i]);
        }
    }
}
static bool vt_check(const TaskCfg *c, Err *e) {
    if ((int64_t)c->chains * (c->hops + 1) > keys_of(c))
        return err_input(e, "hops: a vocab of %d has %d words for variables, chains x (hops + 1) is %lld", c->vocab,
                         keys_of(c), (long long)c->chains * (c->hops + 1));
    if (c->rounds > c->chains)
        return err_input(e, "rounds: %d rounds need as many chains, got %d", c->rounds, c->chains);
    if (!values_fit(c, c->chains, "chains", e)) return false;
    return vt_room(c) >= 0 || err_input(e,
                                        "a sample of %d tokens has no room for %d chains of %d lines; give a larger "
                                        "T",
                                        c->T, c->chains, c->hops + 1);
}

/* ---- cwe ---------------------------------------------------------------------------------------------------------
 * A numbered list of words: `common` of them `times` times, others fewer. Answers: the common ones as they first
 * come. */
static int cwe_list(const TaskCfg *c) { return (c->T - 1 - 2 * c->common) / 2; }
static void cwe_make(Page *p, uint64_t key, int *work) {
    const TaskCfg *c = p->c;
    Draw pick = draw_make(key, "pairs"), place = draw_make(key, "place");
    const int n = cwe_list(c), words = words_of(c), others = words - c->common;
    int *deck = work, *list = deck + words, *met = list + n, found = 0;
    task_deal(&pick, deck, TX_WORD, words, words);
    for (int i = 0; i < n; i++)
        list[i] =
            i < c->common * c->times ? deck[i % c->common] : deck[c->common + (i - c->common * c->times) % others];
    task_shuffle(&place, list, n, n);
    put(p, TX_CWE);
    for (int i = 0; i < n; i++) put(p, TX_ITEM), put(p, list[i]);
    pad(p, c->T + 1 - p->n - 2 - (2 * c->common - 1));
    put(p, TX_ASK_CWE), put(p, TX_PRE_CWE);
    for (int i = 0; found < c->common; i++) {
        bool common = false;
        for (int k = 0; k < c->common; k++) common |= list[i] == deck[k];
        for (int k = 0; k < found; k++) common &= list[i] != met[k];
        if (!common) continue;
        if (found) put(p, TX_COMMA);
        ask(p, met[found++] = list[i]);
    }
}
static bool cwe_check(const TaskCfg *c, Err *e) {
    const int64_t rest = cwe_list(c) - (int64_t)c->common * c->times, others = words_of(c) - c->common;
    if (rest < 0)
        return err_input(e, "a list of %d words %d times has no room in a sample of %d tokens; give T=%lld", c->common,
                         c->times, c->T, 2LL * c->common * c->times + 2LL * c->common + 1);
    return (others > 0 && (rest + others - 1) / others < c->times) ||
           err_input(e,
                     "times: %lld other words fill the list so that they come as often as the common ones; give a "
                     "larger vocab or times, or a smaller T",
                     (long long)others);
}

/* ---- fwe ---------------------------------------------------------------------------------------------------------
 * Coded words of which rank k comes int(N k^-2 / zeta(2)) times; rank 1, and what is left of N, is dots. Answers: ranks
 * 2 to 4. */
/* From 53 words on rank 4 comes more often than rank 5. */
enum { FWE_LEAST = 53 };
static int fwe_count(int n, int k) { return (int)(n * 0.6079271018540267 / ((double)k * k)); }
static int fwe_list(const TaskCfg *c) { return c->T + 1 - 1 - 2 - 5; }
static int fwe_ranks(int n) {
    int k = 1;
    while (fwe_count(n, k + 1) > 0) k++;
    return k;
}
static void fwe_make(Page *p, uint64_t key, int *work) {
    const TaskCfg *c = p->c;
    Draw pick = draw_make(key, "pairs"), place = draw_make(key, "place");
    const int n = fwe_list(c), words = words_of(c);
    int *deck = work, *list = deck + words, at = 0;
    task_deal(&pick, deck, TX_WORD, words, words);
    for (int k = 2; k <= fwe_ranks(n); k++)
        for (int i = 0; i < fwe_count(n, k); i++) list[at++] = deck[k - 2];
    while (at < n) list[at++] = TX_DOTS;
    task_shuffle(&place, list, n, n);
    put(p, TX_FWE);
    for (int i = 0; i < n; i++) put(p, list[i]);
    put(p, TX_ASK_FWE), put(p, TX_PRE_FWE);
    for (int k = 0; k < 3; k++) {
        if (k) put(p, TX_COMMA);
        ask(p, deck[k]);
    }
}
static bool fwe_check(const TaskCfg *c, Err *e) {
    const int n = fwe_list(c);
    if (n < FWE_LEAST)
        return err_input(e, "frequent words need samples of at least %d tokens, got %d", c->T + FWE_LEAST - n, c->T);
    return fwe_ranks(n) - 1 <= words_of(c) || err_input(e, "vocab: %d coded words need at least %d, got %d",
                                                        fwe_ranks(n) - 1, TX_WORD + fwe_ranks(n) - 1, c->vocab);
}

/* ---- repeat ------------------------------------------------------------------------------------------------------
 * Words (different ones if there are enough), noise, then the words once more. */
static int repeat_items(const TaskCfg *c) { return c->items ? c->items : (c->T - 2) / 2; }
static void repeat_make(Page *p, uint64_t key, int *work) {
    const TaskCfg *c = p->c;
    Draw pick = draw_make(key, "pairs");
    const int n = repeat_items(c), words = words_of(c);
    int *deck = work, *list = deck + words;
    task_deal(&pick, deck, TX_WORD, words, words);
    for (int i = 0; i < n; i++) list[i] = n <= words ? deck[i] : deck[task_below(&pick, words)];
    put(p, TX_REPEAT);
    for (int i = 0; i < n; i++) put(p, list[i]);
    put_noise(p, c->T + 1 - 3 - 2 * n);
    put(p, TX_ASK_REPEAT), put(p, TX_PRE_REPEAT);
    for (int i = 0; i < n; i++) ask(p, list[i]);
}
static bool repeat_check(const TaskCfg *c, Err *e) {
    return (c->T >= 4 && 2LL * c->items + 2 <= c->T) ||
           err_input(e, "items: %d words, asked for again, need samples of at least %lld tokens, got %d",
                     imax(c->items, 1), 2LL * imax(c->items, 1) + 2, c->T);
}

/* ---- recall ------------------------------------------------------------------------------------------------------
 * Each sample is one of niah (three times in eight, with up to `keys` keys), its forms with several values or queries,
 * passkey, vt and repeat, with any haystack. */
static TaskCfg recall_draw(const TaskCfg *c, Draw *d, int *of) {
    TaskCfg one = *c;
    const int words = values_of(c);
    *of = imax(0, task_below(d, 8) - 2); /* 0 niah, 1 values, 2 queries, 3 passkey, 4 vt, 5 repeat */
    one.hay = task_below(d, 3);
    one.keys = 1 + task_below(d, c->keys), one.values = one.queries = 1;
    if (*of == 1) one.values = 1 + task_below(d, c->values);
    if (*of == 2) one.queries = 1 + task_below(d, imin(c->queries, one.keys));
    one.chains = 1 + task_below(d, c->chains), one.hops = 1 + task_below(d, c->hops);
    one.items = 1 + task_below(d, c->items);
    if (*of == 4) {
        one.rounds = imin(c->rounds, one.chains);
        while (one.chains > 1 && vt_room(&one) < 0) one.rounds = imin(one.rounds, --one.chains);
    } else {
        one.rounds = imax(1, imin(c->rounds, one.keys / one.queries));
        while ((niah_room(&one) < 1 || one.keys * one.values > words) && one.keys > one.queries) {
            one.keys--;
            one.rounds = imax(1, imin(one.rounds, one.keys / one.queries));
        }
    }
    return one;
}
static bool recall_check(const TaskCfg *c, Err *e) {
    TaskCfg least = *c;
    least.keys = c->queries, least.rounds = 1, least.chains = 1;
    return niah_check(&least, e) && passkey_check(c, e) && vt_check(&least, e) && repeat_check(c, e) &&
           (c->chains * (c->hops + 1) <= keys_of(c) ||
            err_input(e, "chains: a vocab of %d has %d words for variables", c->vocab, keys_of(c)));
}

/* ---- the tables --------------------------------------------------------------------------------------------------*/

typedef void Make(Page *, uint64_t key, int *work);
static void sample_by(const TaskCfg *c, uint64_t key, int *tok, int *tgt, void *work, Make *make) {
    Page p = {.c = c, .fill = draw_make(key, "fill"), .tok = tok, .tgt = tgt};
    make(&p, key, work);
    CHECK(p.n == c->T + 1, "%s: a sample of %d tokens for %d", c->kind->name, p.n, c->T + 1);
}
static void niah_sample(const TaskCfg *c, uint64_t key, int *tok, int *tgt, void *work) {
    sample_by(c, key, tok, tgt, work, niah_make);
}
static void passkey_sample(const TaskCfg *c, uint64_t key, int *tok, int *tgt, void *work) {
    sample_by(c, key, tok, tgt, work, passkey_make);
}
static void vt_sample(const TaskCfg *c, uint64_t key, int *tok, int *tgt, void *work) {
    sample_by(c, key, tok, tgt, work, vt_make);
}
static void cwe_sample(const TaskCfg *c, uint64_t key, int *tok, int *tgt, void *work) {
    sample_by(c, key, tok, tgt, work, cwe_make);
}
static void fwe_sample(const TaskCfg *c, uint64_t key, int *tok, int *tgt, void *work) {
    sample_by(c, key, tok, tgt, work, fwe_make);
}
static void repeat_sample(const TaskCfg *c, uint64_t key, int *tok, int *tgt, void *work) {
    sample_by(c, key, tok, tgt, work, repeat_make);
}
static void recall_sample(const TaskCfg *c, uint64_t key, int *tok, int *tgt, void *work) {
    static Make *const makes[] = {niah_make, niah_make, niah_make, passkey_make, vt_make, repeat_make};
    Draw d = draw_make(key, "family");
    int of;
    const TaskCfg one = recall_draw(c, &d, &of);
    sample_by(&one, key, tok, tgt, work, makes[of]);
}
static size_t text_work(const TaskCfg *c) { return (2 * (size_t)c->T + 2 * (size_t)c->vocab) * sizeof(int); }
static bool plain_check(const TaskCfg *c, Err *e, bool (*check)(const TaskCfg *, Err *)) {
    TaskCfg words = {.T = TASK_LEN_MAX, .vocab = c->vocab, .keys = 1, .values = 1, .queries = 1, .rounds = 1};
    words.depth_min = c->depth_min, words.depth_max = c->depth_max;
    return niah_check(&words, e) && check(c, e);
}
#define PLAIN_CHECK(name) \
    static bool name##_settings(const TaskCfg *c, Err *e) { return plain_check(c, e, name##_check); }
PLAIN_CHECK(passkey)
PLAIN_CHECK(vt)
PLAIN_CHECK(cwe)
PLAIN_CHECK(fwe)
PLAIN_CHECK(repeat)

static const char *const hays[] = {"noise", "words", "needles", NULL};
#define KEY(member, type, dflt, min, max, meaning) \
    { #member, type, offsetof(TaskCfg, member), dflt, min, max, meaning, 0, 0 }
#define VOCAB        KEY(vocab, KEY_INT, "1024", 2, TASK_VOCAB_MAX, "ids: pieces of the templates, digits, words")
#define DIGITS(dflt) KEY(digits, KEY_INT, dflt, 0, TASK_DIGITS_MAX, "digits of a value; 0: it is a word")
#define HAY \
    { "hay", KEY_CHOICE, offsetof(TaskCfg, hay), "noise", 0, 0, "what the haystack is made of", hays, 0 }
#define ROUNDS        KEY(rounds, KEY_INT, "1", 1, TASK_LEN_MAX, "questions about one context, one after the other")
#define KEYS(dflt)    KEY(keys, KEY_INT, dflt, 1, TASK_LEN_MAX, "keys in the haystack")
#define VALUES(dflt)  KEY(values, KEY_INT, dflt, 1, TASK_LEN_MAX, "values of each key")
#define QUERIES(dflt) KEY(queries, KEY_INT, dflt, 1, TASK_LEN_MAX, "keys that a question asks for")
#define DEPTHS                                                                                           \
    KEY(depth_min, KEY_FLOAT, "0", 0, 1, "where the needle asked for first may be: 0 at the beginning"), \
        KEY(depth_max, KEY_FLOAT, "1", 0, 1, "and 1: at the end of the haystack")
#define HOPS(dflt)      KEY(hops, KEY_INT, dflt, 1, TASK_LEN_MAX, "assignments of a variable to the next")
#define CHAINS(dflt)    KEY(chains, KEY_INT, dflt, 1, TASK_LEN_MAX, "chains of assignments")
#define ITEMS(dflt, of) KEY(items, KEY_INT, dflt, of, TASK_LEN_MAX, "words of the list")
#define NIAH_KEYS(k, v, q)                                                             \
    {                                                                                  \
        VOCAB, HAY, KEYS(k), VALUES(v), QUERIES(q), ROUNDS, DIGITS("7"), DEPTHS, { 0 } \
    }

static const Key niah_keys[] = NIAH_KEYS("1", "1", "1"), multikey_keys[] = NIAH_KEYS("4", "1", "1"),
                 multivalue_keys[] = NIAH_KEYS("1", "4", "1"), multiquery_keys[] = NIAH_KEYS("4", "1", "4");
static const Key passkey_keys[] = {VOCAB, HAY, DIGITS("5"), DEPTHS, {0}};
static const Key vt_keys[] = {VOCAB, HAY, HOPS("4"), CHAINS("1"), ROUNDS, DIGITS("5"), {0}};
static const Key cwe_keys[] = {VOCAB,
                               KEY(common, KEY_INT, "10", 1, TASK_LEN_MAX, "words that come most often"),
                               KEY(times, KEY_INT, "6", 2, TASK_LEN_MAX, "how often they come"),
                               {0}};
static const Key fwe_keys[] = {VOCAB, {0}};
static const Key repeat_keys[] = {VOCAB, HAY, ITEMS("0", 0), {0}};
static const Key recall_keys[] = {VOCAB,       KEYS("8"),      VALUES("2"), QUERIES("2"), ROUNDS, HOPS("1"),
                                  CHAINS("4"), ITEMS("16", 1), DIGITS("0"), DEPTHS,       {0}};

const Task task_niah = {"niah",      "a needle in a haystack, RULER's single (arXiv:2404.06654)",
                        niah_keys,   niah_check,
                        niah_sample, text_work,
                        true},
           task_niah_multikey = {"niah_multikey",
                                 "one needle of several in a haystack",
                                 multikey_keys,
                                 niah_check,
                                 niah_sample,
                                 text_work,
                                 true},
           task_niah_multivalue = {"niah_multivalue",
                                   "all values of a key in a haystack",
                                   multivalue_keys,
                                   niah_check,
                                   niah_sample,
                                   text_work,
                                   true},
           task_niah_multiquery = {"niah_multiquery",
                                   "the values of several keys in a haystack",
                                   multiquery_keys,
                                   niah_check,
                                   niah_sample,
                                   text_work,
                                   true},
           task_passkey = {"passkey",
                           "a pass key in noise, arXiv:2305.16300",
                           passkey_keys,
                           passkey_settings,
                           passkey_sample,
                           text_work,
                           true},
           task_vt = {"vt",      "variables that were assigned a value, through others",
                      vt_keys,   vt_settings,
                      vt_sample, text_work,
                      true},
           task_cwe = {"cwe", "the most common words of a list", cwe_keys, cwe_settings, cwe_sample, text_work, true},
           task_fwe = {"fwe", "the most frequent words of a coded text", fwe_keys, fwe_settings, fwe_sample, text_work,
                       true},
           task_repeat = {"repeat",      "a list of words, then the same again",
                          repeat_keys,   repeat_settings,
                          repeat_sample, text_work,
                          true},
           task_recall = {"recall",      "a mixture of niah, passkey, vt and repeat, to train on",
                          recall_keys,   recall_check,
                          recall_sample, text_work,
                          true};

/* ---- text --------------------------------------------------------------------------------------------------------*/

TaskParts task_parts(const TaskCfg *c, const int *tok) {
    TaskParts p = {-1, -1};
    for (int i = 0; i < c->T && p.prefix < 0; i++) {
        if (p.question < 0 && tok[i] >= TX_ASK && tok[i] < TX_PRE) p.question = i;
        if (p.question >= 0 && tok[i] >= TX_PRE && tok[i] < TX_TEXT) p.prefix = i;
    }
    CHECK(p.prefix > p.question, "%s: no question", c->kind->name);
    return p;
}

/* Word i of the made-up language: two syllables. */
static void spell_word(FILE *f, int i) {
    for (int k = 0; k < 2; k++, i /= 70) fprintf(f, "%c%c", "bdfghklmnprstv"[i % 70 / 5], "aeiou"[i % 5]);
}
static void spell_phrase(FILE *f, const TaskCfg *c, const char *s) {
    const bool one = c->values * c->queries == 1;
    const char *kind = c->digits ? "number" : "word";
    for (; *s; s++) {
        if (!strncmp(s, "$Ts", 3))
            fprintf(f, "%ss", kind), s += 2;
        else if (!strncmp(s, "$T", 2))
            fprintf(f, "%s%s", kind, one ? "" : "s"), s++;
        else if (!strncmp(s, "$N", 2))
            fprintf(f, "%d", c->common ? c->common : c->hops + 1), s++;
        else
            fputc(*s, f);
    }
}
/* The template of a question with one answer. */
static const char *spell_one(int id) {
    switch (id) {
    case TX_NIAH:
        return "A special magic $T is hidden within the following text. Make sure to memorize it. I will quiz you "
               "about the $T afterwards.\n";
    case TX_ASK_NIAH: return "\nWhat is the special magic $T for";
    }
    return phrases[id];
}
/* What follows the word or number that ends at row i: words of the template that have no id. `in`: the newest
 * phrase. */
static const char *spell_after(const TaskCfg *c, const int *ids, int i, int in) {
    const bool joined = ids[i + 1] == TX_COMMA || ids[i + 1] == TX_AND;
    if (in == TX_NEEDLE && ids[i - 1] == TX_NEEDLE) return " is:";
    if (in == TX_PRE_NIAH && !joined)
        return c->values * c->queries == 1 ? " mentioned in the provided text is"
                                           : " mentioned in the provided text are";
    return in == TX_PRE_VT ? ", they are:" : "";
}
char *task_spell(const TaskCfg *c, const int *ids, int from, int to) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    CHECK(f, "out of memory");
    const bool one = c->values * c->queries == 1;
    int item = 0, in = TX_PAD;
    for (int i = 0; i < to; i++) {
        const int id = ids[i];
        const bool digit = id >= TX_DIGIT && id < TX_WORD,
                   next_digit = digit && i < c->T && ids[i + 1] >= TX_DIGIT && ids[i + 1] < TX_WORD;
        const bool ends = id >= TX_DIGIT && !next_digit;
        const char *after = ends && i > 0 && i < c->T ? spell_after(c, ids, i, in) : "";
        if (id < TX_DIGIT && id != TX_COMMA && id != TX_AND) in = id;
        if (ends && (in == TX_PRE_NIAH || in == TX_PRE_VT) && *after) in = TX_PAD; /* answers follow */
        item += id == TX_ITEM;
        if (i < from) continue;
        if (digit) {
            if (i == from || ids[i - 1] < TX_DIGIT || ids[i - 1] >= TX_WORD) fputc(' ', f);
            fputc('0' + id - TX_DIGIT, f);
        } else if (id >= TX_WORD) {
            fputc(' ', f);
            spell_word(f, id - TX_WORD);
        } else if (id == TX_ITEM) {
            fprintf(f, "%s%d.", item > 1 ? " " : "", item);
        } else {
            spell_phrase(f, c, one ? spell_one(id) : phrases[id]);
        }
        fputs(after, f);
    }
    CHECK(!fclose(f), "out of memory");
    return text;
}
int task_text_least(const TaskCfg *c, int most) {
    TaskCfg t = *c;
    Err e = {0};
    int low = 0;
    t.T = most;
    if (!c->kind->check(&t, &e)) return 0;
    for (int high = most; low + 1 < high;) {
        t.T = low + (high - low) / 2, e = (Err){0};
        if (t.T >= 1 && c->kind->check(&t, &e))
            high = most = t.T;
        else
            low = t.T;
    }
    return most;
}
