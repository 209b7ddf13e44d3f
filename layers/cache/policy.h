/* policy.h: which rows of attention the cache keeps: the table that --policy chooses from (docs/add-a-policy.md).
 *
 * A policy chooses among the rows of slots that keep a row of every token (policy_suits). Where a mixer decides by
 * itself (Kv.evicted) or has a window, its own rule stays. A policy acts between passes: where a sequence's length
 * reaches a multiple of `every` (a session cuts passes there; who feeds a cache without one cuts them at policy_cut),
 * or with `every` 0 once, where the caller says that a prompt ends. So the rows that stay are a function of the tokens
 * alone, however a prompt is cut. Rows that leave are freed. Rows that stay keep their positions.
 *
 * Hooks, in the order in which they run:
 *   score   in kv_append: a number for each new row, from its key and value
 *   (ask)   in every pass: the queries that the policy asks for are kept; before `select`, colstat makes of them one
 *           number for every row
 *   rows    between passes: how many rows the lanes of a slot keep
 *   select  what speaks for each row
 *   divide  how the lanes of a slot share their rows
 *   judge   in a pass after the prompt, before attention: which pages of the rows that are left the query reads
 * Policies compose: `--policy snapkv --policy adakv`. Each has a role, a list names each role at most once, and the
 * order in which a user names them means nothing. Rows are stored by a codec (codec.h) whatever the policy. */
#pragma once
#include "ops/colstat.h"
#include "ops/rope.h"
#include "ops/run.h"

typedef struct Policy Policy;
/* A request to the model, of a policy that feeds the context again. */
enum { REQUEST_MOST = 96 };
typedef struct {
    int n, tok[REQUEST_MOST];
} PolicyAsked;
/* To repeat the context, or the prompt of ASK_PROMPT; to continue it from the tokens that follow; what ends a request.
 */
enum { REQUEST_FIRST, REQUEST_NEXT, REQUEST_END, REQUESTS };
/* A policy with its settings. Whatever it selects, the first `sinks` positions of a document and its newest `window`
 * rows stay. A policy has the settings of its own table alone; the others are 0. */
typedef struct {
    const Policy *of;     /* which rows stay; NULL: none, all do */
    const Policy *layers; /* whose Policy.rows says how many; NULL: as many in all slots */
    const Policy *lanes;  /* whose Policy.divide shares them; NULL: as many in all lanes */
    const Policy *read;   /* whose Policy.bound says which of them a step reads; NULL: it reads all */
    double budget;        /* rows of a lane: up to 1 a share of the document's tokens so far, above 1 as many */
    int window, sinks;    /* inside the budget; they stay where it is smaller */
    int every;            /* tokens between two evictions; 0: one, where the prompt ends */
    int queries;          /* newest queries that are asked */
    int pool;             /* neighbouring rows whose statistics are averaged, odd */
    int peak;             /* 1: the largest instead of the mean or the sum */
    int seed;             /* of draws */
    int bits, ahead;      /* hashevict, expected */
    int chunk;            /* kvzip: tokens that are repeated at a time */
    int catalyst;         /* infinipot: 1: ASK_PROMPT instead of Policy.ask.whom */
    PolicyAsked request[REQUESTS]; /* the words that ask for it, as tokens of the model; none: nothing is asked */
    double share;                  /* meaning: the policy's own table */
    double heavy, local;           /* fastgen; heavy: qhitter */
    double slope;                  /* pyramidkv: mean budget / that of the last slot */
    double reads;                  /* rows that a step reads, as budget; of those: */
    int recent, page;              /* newest rows that are read anyway; rows of a page */
    int uneven;                    /* shadowkv: pages with a key unlike the rest, read in addition */
    double channels;               /* hybrid, infinigen: share of a key's channels that pages are judged by */
    double below;                  /* infinigen: scores that are read, below the largest by so much */
    double even;                   /* adakv: share of the rows that lanes have alike */
    int coded, code_bits;          /* tailorkv: first slots, whose rows are all read and stored in so many bits */
    int firsts;                    /* tailorkv: first positions that a step reads anyway */
} PolicyCfg;

/* What a policy wants to know about attention: of which queries, reduced how (ops/colstat.h). */
typedef struct {
    enum {
        ASK_NOBODY,
        ASK_WINDOW,  /* the newest `window` queries */
        ASK_QUERIES, /* the newest `queries` */
        ASK_ALL,     /* each query once, as soon as may be: `select` is also called where no row leaves */
        ASK_REPLAY,  /* those of tokens that repeat the context where a prompt ends (infer/replay.h): a row gets the
                        largest of what they say, and rows of all slots compete */
        ASK_PROMPT   /* those of a prompt of the policy's own, which a session feeds to a copy wherever rows are to
                        leave: a row gets the sum of what they say */
    } whom;
    ColReduce queries, heads;
    ColValue value;
    bool older; /* as ColStat.older: with ASK_WINDOW rows older than the window */
    bool peaks; /* with the setting `peak` the largest over queries, whatever `queries` names */
} PolicyAsk;

/* What `select` itself reads, in the memory of the host: copies, where that is not the cache's. */
enum {
    NEED_KEYS = 1,
    NEED_VALUES = 2,
    NEED_QUERIES = 4 /* those of `ask`, instead of their statistics */,
    NEED_TURNS = 8, /* keys and queries as their positions turned them: not mixed by a codec that rotates */
    NEED_NEW = 16   /* keys and values of those rows alone whose kept number is 0, without gaps for others */
};

/* The rows of a lane, by their positions. */
typedef struct {
    int n;
    const int *pos;
    const real *key, *value; /* (n,kdim) (n,vdim) as a pass reads them, if they are needed */
    const real *stat;        /* (n) what was asked for; NULL: nothing */
    real *kept;  /* (n) of a policy that keeps a number with each row: it reads and writes it; 0 of a new row */
    real *score; /* (n) to be written: rows with the highest stay. It holds what Policy.score said, or 0 */
    bool *stays; /* (n) sinks and window; `select` may add rows */
    int budget;  /* rows that stay, those that `stays` names included; it holds what Policy.rows said */
} PolicyLane;
typedef struct {
    const PolicyCfg *p;
    int slot, slots; /* number of the slot among those the policy suits; how many these are */
    int heads;       /* query heads that were asked, of all lanes */
    int next;        /* length of the document */
    int queries;     /* that `stat` is of, the newest */
    int lanes, kdim, vdim, threads;
    PolicyLane *lane;
    const real *q,
        *lse; /* (queries,heads,kdim) times the scale of scores, (queries,heads): oldest first; heads by lanes */
    const Rope *turn; /* how keys and queries are rotated; NULL: they are not, or not alike */
} Choice;
static inline const real *policy_query(const Choice *c, int i, int head) {
    return c->q + ((size_t)i * (size_t)c->heads + (size_t)head) * (size_t)c->kdim;
}

/* Numbers by their scores: qsort with ranked_first puts the highest first, of equal ones the lower `at`. */
typedef struct {
    real score;
    int at;
} Ranked;
int ranked_first(const void *, const void *);
/* Brings the first k of n in that order to the front, in any order among themselves. */
void ranked_select(Ranked *, int n, int k);
/* What `judge` is given: one query, and of its lane the pages that it may leave out, which are full and without recent
 * rows, oldest first. */
typedef struct {
    const PolicyCfg *p;
    int n, group, D;         /* pages; query heads of the lane; width of a key */
    int most;                /* pages that are read of them; `judge` may lower it */
    const real *q;           /* (group,D); of a policy that guesses, guessed ones */
    real scale;              /* of scores, before a softmax; no policy applies a cap */
    const real *const *page; /* (n) what `summary` wrote of each */
    real *score;             /* (n) to be written, 0 before: pages with the highest are read */
    real *each, *query;      /* (n) (2 D) scratch */
    Ranked *order;           /* (max of n, D) scratch */
} PageChoice;

/* What a policy decides. One that divides rows chooses them, too, if nothing else in the list does. */
typedef enum { POLICY_ROWS, POLICY_LAYERS, POLICY_LANES, POLICY_READS, POLICY_ROLES } PolicyRole;

struct Policy {
    const char *name, *meaning;
    const char *source; /* the paper */
    const char *lacks;  /* what of it is not here; NULL: nothing */
    PolicyRole role;
    const Key *keys; /* settings in PolicyCfg; ended by an entry without a name */
    const Key *own;  /* the same, of one that divides: those it also has where another chooses the rows; NULL: none */
    /* Of one that chooses rows: why no policy divides them among layers, among lanes; NULL: one may. */
    const char *not_layers, *not_lanes;
    /* score (N,lanes): what speaks for keeping each new row. Called in kv_append with the rows of the pass as they were
     * computed; ops and scratch as in a mixer. NULL: nothing does. */
    void (*score)(Run *, const Kv *pass, Tensor score);
    PolicyAsk ask;
    unsigned needs;           /* NEED_ bits */
    bool keeps;               /* a number with each row */
    bool novelty;             /* Run.novelty is there when `score` is called: the model computes logits of every row */
    void (*select)(Choice *); /* NULL: the scores are there, or nothing but sinks and window stays */
    /* Rows of a lane after an eviction at length n; NULL: policy_rows. `varies`: `select` may choose fewer. */
    int (*rows)(const PolicyCfg *, int n, int slot, int slots);
    /* What is kept of a full page: summary_channels D + summary_more numbers, from its keys (P,D). A step after the
     * prompt reads the pages that `judge` gives the highest scores (select.c); NULL: it reads all. */
    void (*summary)(const real *keys, int P, int D, real *out);
    int summary_channels, summary_more;
    void (*judge)(PageChoice *);
    /* `judge` is given queries that the layer before guessed (Mixer.queries). Layers whose queries nobody guesses, as
     * the first, read all rows; a model with no other is refused. */
    bool guesses;
    bool fewer;               /* `judge` may lower `most`: it is asked even where all pages could be read */
    void (*divide)(Choice *); /* after `select`: writes PolicyLane.budget, whose sum stays; NULL: lanes keep alike */
    bool varies;
};
/* Every policy, policy_NAME, in the order of tables and messages. A new one has a file of its own and a word here. */
/* clang-format off */
#define POLICIES(X) \
    X(window) X(random) X(knorm) X(h2o) X(vatp) X(scissorhands) X(tova) X(snapkv) X(pyramidkv) X(adakv) \
    X(simlayerkv) X(nacl) X(morphkv) X(fastgen) X(hashevict) X(expected) X(rocketkv) X(kvzip) X(quest) \
    X(hybrid) X(shadowkv) X(infinigen) X(tailorkv) X(infinipot) X(qhitter) X(minikv)
/* clang-format on */
#define POLICY_DECLARED(name) extern const Policy policy_##name;
POLICIES(POLICY_DECLARED)

/* Entries of tables of settings. */
#define POLICY_KEY(member, type, dflt, min, max, meaning) \
    { #member, type, offsetof(PolicyCfg, member), dflt, min, max, meaning, 0, 0 }
#define POLICY_BUDGET       POLICY_KEY(budget, KEY_FLOAT, "0.5", 0.001, 1e9, "share of the tokens, or above 1 rows")
#define POLICY_WINDOW(dflt) POLICY_KEY(window, KEY_INT, dflt, 1, 1e9, "newest rows that stay")
#define POLICY_SINKS(dflt)  POLICY_KEY(sinks, KEY_INT, dflt, 0, 1e9, "first positions that stay")
#define POLICY_EVERY(dflt, least) \
    POLICY_KEY(every, KEY_INT, dflt, least, 1e9, "tokens between two evictions; 0: one, where the prompt ends")
#define POLICY_QUERIES(dflt) POLICY_KEY(queries, KEY_INT, dflt, 1, 4096, "newest queries that are asked")
#define POLICY_ASKED_WINDOW(dflt) \
    POLICY_KEY(window, KEY_INT, dflt, 1, 4096, "newest rows that stay, whose queries are asked")
#define POLICY_POOL                                                                                \
    POLICY_KEY(pool, KEY_INT, "5", 1, 1023, "neighbouring rows whose attention is averaged, odd"), \
        POLICY_KEY(peak, KEY_INT, "0", 0, 1, "1: their largest attention instead of the mean")
#define POLICY_READS_KEYS(reads_dflt, recent_dflt, page_dflt)                                                       \
    POLICY_KEY(reads, KEY_FLOAT, reads_dflt, 0.001, 1e9, "share of the tokens that a step reads, or above 1 rows"), \
        POLICY_KEY(recent, KEY_INT, recent_dflt, 1, 1e9,                                                            \
                   "newest rows that are read anyway, in whole pages; at least a page"),                            \
        POLICY_KEY(page, KEY_INT, page_dflt, 1, 64, "rows that are read together")
#define POLICY_SHARE(dflt, most, meaning) POLICY_KEY(share, KEY_FLOAT, dflt, 0, most, meaning)

const Policy *policy_at(int i); /* NULL: there are fewer */
/* Published policies that are not here, with the reason; NULL: there are fewer. */
typedef struct {
    const char *name, *source, *why;
} PolicyAbsent;
const PolicyAbsent *policy_absent(int i);
/* Setting i of a policy, its own last; NULL: there are fewer. */
const Key *policy_key(const Policy *, int i);
/* "NAME" or "NAME:key=value,...", several of them with '+' in between; "none": of = NULL. False: `e` says what is wrong
 * with --policy. */
bool policy_parse(const char *text, PolicyCfg *, Err *e);
/* Whether a slot's rows are this policy's to choose from (of NULL: any policy's). */
bool policy_suits(const PolicyCfg *, const KvShape *);
/* False (EXIT_INPUT): it acts where a prompt ends, and the caller has no prompts. */
bool policy_unprompted(const PolicyCfg *, Err *);
/* Whether it does anything; whether it ever evicts a row; whether only where a prompt ends. */
bool policy_any(const PolicyCfg *);
bool policy_acts(const PolicyCfg *);
bool policy_once(const PolicyCfg *);
/* Tokens between two evictions; 0: there are none, or one. */
int policy_every(const PolicyCfg *);
/* A session ends a pass where the length of a document is a multiple of this; 0: nowhere. */
int policy_cut(const PolicyCfg *);
/* Whose queries it asks, of the names in PolicyAsk; whether these are of tokens fed to a copy of the sequence
 * (ASK_REPLAY, ASK_PROMPT). */
int policy_whom(const PolicyCfg *);
bool policy_feeds(const PolicyCfg *);
/* Whether an eviction at a length of n feeds tokens to a copy; rows of one of those passes at most; tokens that it may
 * add to a prompt of at most n; tokens before a chunk that a request names. */
bool policy_replays(const PolicyCfg *, int n);
enum { REPLAY_ROWS = 64, REPLAY_NAMED = 8 };
int policy_replay_tokens(const PolicyCfg *, int n);
/* Numbers that are kept of a page of keys of this width; 0: pages are not judged. */
size_t policy_summary(const PolicyCfg *, int kdim);
/* Newest queries of a sequence that are kept; 0: none. Bytes of those, and of numbers kept with a row of all lanes. */
int policy_queries(const PolicyCfg *);
/* It asks the newest queries of a prompt, once, where the prompt ends. */
bool policy_asks_last(const PolicyCfg *);
size_t policy_state_bytes(const PolicyCfg *, const KvShape *);
size_t policy_row_bytes(const PolicyCfg *, const KvShape *);
/* Whether passes compute the novelty of their tokens (Policy.novelty). */
bool policy_novelty(const PolicyCfg *);
/* The codec of the policy's own for slot number `slot` of those that it suits (KvShape.coded); NULL: as the others. */
const RowCodec *policy_codec(const PolicyCfg *, int slot);
/* Rows of a lane after an eviction at length n: the budget, but at least window and sinks; with the layers' own. */
int policy_rows(const PolicyCfg *, int n);
int policy_slot_rows(const PolicyCfg *, int n, int slot, int slots);
/* Rows of a lane at any length: evictions of the past included, n being the prompt's if there is one eviction. */
int policy_resident(const PolicyCfg *, int n, int slot, int slots);
/* Complete `stays`: the rows with the highest scores, up to the budget; of equal scores older rows. */
void policy_keep(PolicyLane *);
/* For `select`. Calls `one` for each lane, on several threads: it writes what belongs to its lane and nothing else.
 * `with`: what it reads. */
void policy_each_lane(Choice *, void (*one)(Choice *, int lane, const void *with), const void *with);
/* For `select`. score = the mean of `stat` (with `peak` the largest) over `pool` neighbouring rows (missing ones count
 * as 0), of rows older than the window. */
void policy_pool(Choice *);
/* A `summary` (D): the mean of each channel. */
void policy_means(const real *keys, int P, int D, real *out);
/* A `summary` (2,D): the smallest and the largest number of each channel. */
void policy_bounds(const real *keys, int P, int D, real *out);
/* For `judge`. out (n): the products of `query` with the first `width` values of each page's summary. */
void policy_dots(const PageChoice *, const real *query, int width, real *out);
/* For `judge`, of summaries of policy_bounds: out (2,D), whose product with a summary is sum_d max(q_d low_d, q_d
 * high_d). */
void policy_bound_query(const real *q, int D, real *out);
/* For `judge`. Each x (n) becomes e^x over the sum of all; -inf becomes 0. At least one is finite. */
void policy_softmax(real *x, int n);
/* For `select`. Of the rows that the budget has beyond those that stay, this share goes to the rows with the highest
 * scores now; older ones first of equal ones, NaN never. */
void policy_stay(PolicyLane *, double share);
/* For `select`. out[i]: the product of x (D) with vector i of POLICY_SIDE, component d of which is side[d][i], so that
 * the sums advance side by side and x is read once. */
enum { POLICY_SIDE = 16 };
static inline void policy_side(real out[POLICY_SIDE], const real *side, const real *x, int D) {
    real s[POLICY_SIDE] = {0};
    for (int d = 0; d < D; d++)
#pragma GCC unroll 16
        for (int i = 0; i < POLICY_SIDE; i++) s[i] += side[d * POLICY_SIDE + i] * x[d];
    for (int i = 0; i < POLICY_SIDE; i++) out[i] = s[i];
}
/* For `select`. score = kept += stat: what all queries so far gave each row. */
void policy_sums(Choice *);
