/* tokenizer_spm.c: converts a SentencePiece model (tokenizer.model) to an equivalent tokenizer.json.
 *
 * The file is a protobuf, ModelProto of sentencepiece_model.proto: pieces (1: text 1, score 2, type 3), trainer_spec
 * (2: model_type 3, byte_fallback 35, ids of unknown, begin, end and padding 40 to 43) and normalizer_spec (3: charsmap
 * 2, add_dummy_prefix 3, remove_extra_whitespaces 4, escape_whitespaces 5). The JSON does what transformers' converter
 * makes of the same file: normal pieces merge by their scores, pieces of the user are cut out first and stay whole,
 * control pieces and the unknown one are special tokens. It encodes as SentencePiece does, with one exception: of a
 * table of characters the shortest entry counts (charsmap.h), not the longest. */
#include <sodium.h>
#include "ops/file.h"
#include "splits.h"
#include "pretoken.h"
#include "tokenizer.h"
#include "wire.h"

enum { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER, PIECE_UNUSED, PIECE_BYTE };
enum { SPM_UNIGRAM = 1, SPM_BPE };
typedef struct {
    const unsigned char *at;
    size_t n;
    float score;
    int type;
} SpmPiece;
typedef struct {
    const char *where;
    SpmPiece *piece;
    json_t **name; /* (npiece) */
    int npiece, cap, kind, unknown, bos;
    bool fallback, prefix, squeeze, escape;
    const unsigned char *map;
    size_t nmap;
    Err *e;
} Spm;

static bool spm_no(const Spm *s, const char *what) {
    return err_input(s->e, "%s: %s is not supported", s->where, what);
}
static bool spm_broken(const Spm *s, const char *part) {
    return err_input(s->e, "%s: not a SentencePiece model: %s is truncated or malformed", s->where, part);
}

static bool spm_piece(Spm *s, const WireField *in) {
    SpmPiece p = {.type = PIECE_NORMAL};
    WireField f;
    Wire w = wire_of(in->at, in->n);
    while (wire_next(&w, &f)) {
        const uint32_t bits = (uint32_t)f.value;
        if (f.number == 1 && f.type == 2) p.at = f.at, p.n = f.n;
        if (f.number == 2 && f.type == 5) memcpy(&p.score, &bits, 4);
        if (f.number == 3 && f.type == 0) p.type = f.value <= PIECE_BYTE ? (int)f.value : 0;
    }
    json_t *name = p.n ? json_stringn((const char *)p.at, p.n) : NULL;
    if (w.broken || !name || memchr(p.at, 0, p.n) || !isfinite(p.score)) {
        json_decref(name);
        return err_input(s->e, "%s: piece %d: expected UTF-8 text without NUL, a score and a type", s->where,
                         s->npiece);
    }
    if (s->npiece == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 1024;
        s->piece = xrealloc(s->piece, (size_t)s->cap, sizeof *s->piece);
        s->name = xrealloc(s->name, (size_t)s->cap, sizeof(json_t *));
    }
    s->name[s->npiece] = name;
    s->piece[s->npiece++] = p;
    if (p.type == 0 || p.type == PIECE_UNUSED) return spm_no(s, p.type ? "an unused piece" : "a piece of unknown type");
    return s->npiece <= TOKENIZER_IDS_MAX || spm_no(s, "a vocabulary of more than 2^21 pieces");
}
static void spm_trainer(Spm *s, Wire *w) {
    WireField f;
    while (wire_next(w, &f)) {
        if (f.type != 0) continue;
        if (f.number == 3) s->kind = f.value <= 4 ? (int)f.value : 0;
        if (f.number == 35) s->fallback = f.value;
        if (f.number == 41) s->bos = (int32_t)f.value;
    }
}
static void spm_normalizer(Spm *s, Wire *w) {
    WireField f;
    while (wire_next(w, &f)) {
        if (f.number == 2 && f.type == 2) s->map = f.at, s->nmap = f.n;
        if (f.number == 3 && f.type == 0) s->prefix = f.value;
        if (f.number == 4 && f.type == 0) s->squeeze = f.value;
        if (f.number == 5 && f.type == 0) s->escape = f.value;
    }
}
static bool spm_read(Spm *s, const void *p, size_t n) {
    Wire w = wire_of(p, n), in;
    WireField f;
    while (wire_next(&w, &f)) {
        if (f.type != 2) continue;
        in = wire_of(f.at, f.n);
        if (f.number == 1 && !spm_piece(s, &f)) return false;
        if (f.number == 2) spm_trainer(s, &in);
        if (f.number == 3) spm_normalizer(s, &in);
        if (in.broken) return spm_broken(s, f.number == 2 ? "trainer_spec" : "normalizer_spec");
    }
    if (w.broken || !s->npiece) return spm_broken(s, s->npiece ? "the message" : "the list of pieces");
    if (s->kind != SPM_UNIGRAM && s->kind != SPM_BPE) return spm_no(s, "a model type other than unigram and BPE");
    if (!s->escape) return spm_no(s, "a model that keeps blanks (escape_whitespaces: false)");
    s->unknown = -1;
    for (int i = s->npiece; i-- > 0;)
        if (s->piece[i].type == PIECE_UNKNOWN) s->unknown = i;
    if (s->unknown < 0) return spm_broken(s, "the unknown piece");
    if (s->bos >= s->npiece || s->bos < 0 || s->piece[s->bos].type != PIECE_CONTROL) s->bos = -1;
    return s->kind != SPM_BPE || s->fallback || spm_no(s, "a BPE model without byte_fallback");
}

/* ---- the JSON ---------------------------------------------------------------------------------------------------- */

/* Append to `list` an object of "type" and, if `key` is given, one more value. */
static void spm_step(json_t *list, const char *type, const char *key, json_t *value) {
    json_t *j = json_pack("{ss}", "type", type);
    if (key) json_object_set_new(j, key, value);
    json_array_append_new(list, j);
}
static void spm_replace(json_t *list, const char *kind, const char *find, const char *to) {
    spm_step(list, "Replace", "pattern", json_pack("{ss}", kind, find));
    json_object_set_new(json_array_get(list, json_array_size(list) - 1), "content", json_string(to));
}
#define MARK "\xE2\x96\x81" /* U+2581 */
static json_t *spm_normalize(const Spm *s) {
    json_t *list = json_array();
    if (s->nmap) {
        const size_t n = sodium_base64_encoded_len(s->nmap, sodium_base64_VARIANT_ORIGINAL);
        char *text = xcalloc(n, 1);
        sodium_bin2base64(text, n, s->map, s->nmap, sodium_base64_VARIANT_ORIGINAL);
        spm_step(list, "Precompiled", "precompiled_charsmap", json_string(text));
        free(text);
    }
    if (s->squeeze) {
        spm_replace(list, "Regex", "\\A +|[ " MARK "]+\\z", ""); /* SentencePiece also drops marks at the end */
        spm_replace(list, "Regex", " {2,}", " ");
    }
    spm_replace(list, "String", " ", MARK);
    if (s->prefix) spm_step(list, "Prepend", "prepend", json_string(MARK));
    return json_pack("{ssso}", "type", "Sequence", "normalizers", list);
}

static int spm_longest(const void *a, const void *b) {
    const SpmPiece *x = *(SpmPiece *const *)a, *y = *(SpmPiece *const *)b;
    return x->n != y->n ? (x->n < y->n ? 1 : -1) : memcmp(x->at, y->at, x->n);
}
/* Cut out the user's pieces, the longest first. NULL: there are none. */
static json_t *spm_cut(const Spm *s) {
    SpmPiece **user = xcalloc((size_t)s->npiece, sizeof(SpmPiece *));
    size_t n = 0;
    Buf p = {0};
    for (int i = 0; i < s->npiece; i++)
        if (s->piece[i].type == PIECE_USER) user[n++] = &s->piece[i];
    qsort(user, n, sizeof(SpmPiece *), spm_longest);
    for (size_t i = 0; i < n; i++) {
        if (i) buf_put(&p, "|", 1);
        for (size_t k = 0; k < user[i]->n; k++) {
            const char c = (char)user[i]->at[k];
            if (strchr("\\^$.|?*+()[]{}", c)) buf_put(&p, "\\", 1);
            buf_put(&p, &c, 1);
        }
    }
    json_t *j = n ? json_pack("{ss s{ss%} ss sb}", "type", "Split", "pattern", "Regex", p.at, p.n, "behavior",
                              "Isolated", "invert", 0)
                  : NULL;
    buf_free(&p);
    free(user);
    return j;
}

typedef struct {
    float score;
    int id;
} SpmRank;
static int spm_rank_order(const void *a, const void *b) {
    const SpmRank *x = a, *y = b;
    return x->score != y->score ? (x->score > y->score ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}
static json_t *spm_merges(const Spm *s) {
    Token *token = xcalloc((size_t)s->npiece, sizeof *token);
    SpmRank *rank = xcalloc((size_t)s->npiece, sizeof *rank);
    int *order = xcalloc((size_t)s->npiece, sizeof *order), n = 0;
    for (int i = 0; i < s->npiece; i++) {
        if (s->piece[i].type != PIECE_NORMAL) continue;
        token[i] = (Token){.at = (const char *)s->piece[i].at, .n = (uint32_t)s->piece[i].n};
        rank[n++] = (SpmRank){s->piece[i].score, i};
    }
    qsort(rank, (size_t)n, sizeof *rank, spm_rank_order);
    for (int i = 0; i < n; i++) order[i] = rank[i].id;
    json_t *list = splits_merges(token, s->npiece, order, n, true, s->name);
    free(order), free(rank), free(token);
    return list;
}

static json_t *spm_model(const Spm *s, bool user) {
    if (s->kind == SPM_UNIGRAM) {
        json_t *list = json_array();
        for (int i = 0; i < s->npiece; i++)
            json_array_append_new(list, json_pack("[Of]", s->name[i], (double)s->piece[i].score));
        return json_pack("{ss si so sb}", "type", "Unigram", "unk_id", s->unknown, "vocab", list, "byte_fallback",
                         s->fallback);
    }
    json_t *vocab = json_object();
    for (int i = 0; i < s->npiece; i++) {
        const char *name = json_string_value(s->name[i]);
        if (json_object_get(vocab, name)) {
            err_input(s->e, "%s: the piece '%.60s' is there twice", s->where, name);
            json_decref(vocab);
            return NULL;
        }
        json_object_set_new(vocab, name, json_integer(i));
    }
    return json_pack("{ss sn sO sn sn sb sb sb so so}", "type", "BPE", "dropout", "unk_token", s->name[s->unknown],
                     "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 1, "byte_fallback", 1,
                     "ignore_merges", user, "vocab", vocab, "merges", spm_merges(s));
}

static char *spm_json(const Spm *s) {
    json_t *cut = spm_cut(s), *model = spm_model(s, cut), *added = json_array(), *show = json_array();
    for (int i = 0; i < s->npiece; i++)
        if (s->piece[i].type == PIECE_CONTROL || s->piece[i].type == PIECE_UNKNOWN)
            json_array_append_new(added,
                                  json_pack("{si sO sb sb sb sb sb}", "id", i, "content", s->name[i], "single_word", 0,
                                            "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    spm_replace(show, "String", MARK, " ");
    if (s->fallback) spm_step(show, "ByteFallback", NULL, NULL);
    spm_step(show, "Fuse", NULL, NULL);
    if (s->prefix) {
        spm_step(show, "Strip", "content", json_string(" "));
        json_t *strip = json_array_get(show, json_array_size(show) - 1);
        json_object_set_new(strip, "start", json_integer(1));
        json_object_set_new(strip, "stop", json_integer(0));
    }
    json_t *post = NULL;
    if (s->bos >= 0)
        post = json_pack("{ss s[{s{sOsi}}{s{sssi}}] s[{s{sssi}}{s{sssi}}] s{s{sOs[i]s[O]}}}", "type",
                         "TemplateProcessing", "single", "SpecialToken", "id", s->name[s->bos], "type_id", 0,
                         "Sequence", "id", "A", "type_id", 0, "pair", "Sequence", "id", "A", "type_id", 0, "Sequence",
                         "id", "B", "type_id", 1, "special_tokens", json_string_value(s->name[s->bos]), "id",
                         s->name[s->bos], "ids", s->bos, "tokens", s->name[s->bos]);
    json_t *j = model
                    ? json_pack("{ss sn sn so so so? so? s{ssso} so}", "version", "1.0", "truncation", "padding",
                                "added_tokens", added, "normalizer", spm_normalize(s), "pre_tokenizer", cut,
                                "post_processor", post, "decoder", "type", "Sequence", "decoders", show, "model", model)
                    : NULL;
    CHECK(j || !model, "building JSON failed");
    if (!j) json_decref(cut), json_decref(added), json_decref(show), json_decref(post);
    char *text = j ? json_dumps(j, JSON_INDENT(1)) : NULL;
    json_decref(j);
    return text;
}

bool tokenizer_parse_spm(Tokenizer *t, const void *p, size_t n, const char *where, Err *e) {
    Spm s = {.where = where, .kind = SPM_UNIGRAM, .bos = 1, .prefix = true, .squeeze = true, .escape = true, .e = e};
    *t = (Tokenizer){.eot = -1, .bos = -1};
    if (n > TOKENIZER_FILE_MAX)
        return err_input(e, "%s: a file of %zu bytes; expected a SentencePiece model of at most %d", where, n,
                         TOKENIZER_FILE_MAX);
    char *text = spm_read(&s, p, n) ? spm_json(&s) : NULL;
    CHECK(text || e->status, "building JSON failed");
    bool ok = text && tokenizer_parse(t, text, strlen(text), where, e);
    for (int i = 0; i < s.npiece; i++) json_decref(s.name[i]);
    free(text), free(s.name), free(s.piece);
    return ok;
}
