/* sft.c: reads conversations, splits them into training and validation, and packs them into windows. */
#include "sft.h"
#include "jsonl.h"
#include "paths.h"

const char *const sft_learns[] = {"answers", "all", NULL}, *const sft_too_longs[] = {"cut", "drop", NULL};

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct {
    Sft *s;
    const SftSpec *spec;
    Chat chat;
    Ids ids;
    size_t cap; /* of s->at */
} Read;

/* Accept the ids after the last conversation's end as one more conversation, if a part that fits is learned. */
static bool sft_keep(Read *r, const char *where, Err *e) {
    Sft *s = r->s;
    size_t from = s->at[s->n], n = r->ids.n - from, most = (size_t)r->spec->seq_len + 1, learned = 0;
    bool cut = n > most, drop = cut && r->spec->cfg.too_long == SFT_DROP;
    if (cut) n = most;
    for (size_t i = 1; i < n; i++) learned += (r->ids.id[from + i] & CHAT_LEARN) != 0;
    drop |= !learned;
    s->dropped += drop;
    s->cut += cut && !drop;
    r->ids.n = from + (drop ? 0 : n);
    if (drop) return true;
    if (s->n == INT32_MAX - 1) return err_input(e, "%s: more than %d conversations", where, INT32_MAX - 1);
    if ((size_t)s->n + 2 > r->cap) {
        r->cap = 2 * r->cap + 1024;
        s->at = xrealloc(s->at, r->cap, sizeof *s->at);
    }
    s->at[++s->n] = r->ids.n;
    return true;
}

/* Check the first bytes before a parser complains about a line: such a file was never meant to be JSON. */
static bool sft_objects(const Jsonl *l, const char *path, Err *e) {
    const unsigned char *p = l->map.p;
    size_t i = 0;
    while (i < l->map.n && strchr(" \t\r\n", p[i]) && p[i]) i++;
    if (l->map.n - i >= 3 && !memcmp(p + i, "\xef\xbb\xbf", 3))
        return err_input(e, "%.150s: begins with a byte-order mark; remove it: sed -i '1s/^\\xEF\\xBB\\xBF//' FILE",
                         path);
    if (i < l->map.n && p[i] == '[')
        return err_input(e, "%.150s: is one JSON list; write one object per line: jq -c '.[]' FILE", path);
    return i == l->map.n || p[i] == '{' ||
           err_input(e,
                     "%.150s: expected one conversation per line, {\"messages\": [...]}, found no JSON; to train on "
                     "plain text leave out data.sft.template",
                     path);
}

static bool read_file(Read *r, const char *key, const char *path, Err *e) {
    Jsonl l;
    json_t *j;
    int64_t lines = 0;
    Err why = {0};
    bool ok = jsonl_open(&l, path, &why);
    if (!ok) {
        err_input(e, "%s: %.280s", key, why.msg);
        e->status = why.status;
        return false;
    }
    ok = sft_objects(&l, path, e);
    while (ok && (ok = jsonl_next(&l, &j, e)) && j) {
        ok = chat_encode(&r->chat, j, l.where, &r->ids, e) && sft_keep(r, l.where, e);
        json_decref(j);
        lines++;
    }
    jsonl_close(&l);
    return ok && (lines || err_input(e, "%.200s: no conversation in it; expected one JSON object per line", path));
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

const int *sft_piece(const Sft *s, const SftPart *p, int piece, int *n) {
    size_t c = (size_t)p->first + (size_t)piece;
    *n = (int)(s->at[c + 1] - s->at[c]);
    return s->id + s->at[c];
}

static void pack_part(Sft *s, SftPart *p, int first, int n, int seq_len) {
    *p = (SftPart){.first = first, .n = n};
    int *len = xcalloc((size_t)n + 1, sizeof *len);
    for (int i = 0; i < n; i++) {
        const int *id = sft_piece(s, p, i, &len[i]);
        for (int k = 1; k < len[i]; k++) p->targets += (id[k] & CHAT_LEARN) != 0;
        p->rows += (size_t)--len[i];
    }
    pack_make(&p->pack, len, n, seq_len);
    free(len);
}

static uint64_t sft_hash(const Sft *s, const SftPart *p) {
    uint64_t h = 0xCBF29CE484222325u; /* FNV-1a over lengths and ids */
    for (int i = 0, n; i < p->n; i++) {
        const int *id = sft_piece(s, p, i, &n);
        h = (h ^ (uint64_t)n) * 0x100000001B3u;
        for (int k = 0; k < n; k++) h = (h ^ (uint64_t)id[k]) * 0x100000001B3u;
    }
    return h;
}

static bool sft_enough(const Sft *s, const SftSpec *spec, int ntrain, bool own, Err *e) {
    int nval = s->n - ntrain;
    char lost[96] = "";
    if (s->dropped) snprintf(lost, sizeof lost, " (%lld were dropped, see data.sft.too_long)", (long long)s->dropped);
    if (ntrain < 1) return err_input(e, "data.train: no conversation is left to train on%s; give more", lost);
    if (own && nval < 1) return err_input(e, "data.val: no conversation is left to validate on%s", lost);
    if (!own && spec->val_fraction > 0 && nval < 1)
        return err_input(e,
                         "data.val_fraction: %g of %d conversations leaves none to validate on; give a larger "
                         "fraction, or 0 for no validation",
                         spec->val_fraction, s->n);
    return true;
}

static bool sft_fill(Read *r, Err *e) {
    Sft *s = r->s;
    const SftSpec *spec = r->spec;
    bool own = spec->val && *spec->val;
    s->at = xcalloc(r->cap = 1024, sizeof *s->at);
    Paths file = {0};
    bool ok = true;
    for (int i = 0; ok && i < spec->ntrain; i++) ok = paths_add(&file, spec->train[i], "data.train", e);
    for (int i = 0; ok && i < file.n; i++) ok = read_file(r, "data.train", file.path[i], e);
    paths_free(&file);
    if (!ok) return false;
    int ntrain = s->n;
    if (own && !read_file(r, "data.val", spec->val, e)) return false;
    if (!own) ntrain = (int)((double)s->n * (1 - spec->val_fraction));
    if (!sft_enough(s, spec, ntrain, own, e)) return false;
    s->id = xrealloc(r->ids.id, r->ids.n, sizeof *s->id);
    r->ids = (Ids){0};
    s->at = xrealloc(s->at, (size_t)s->n + 1, sizeof *s->at);
    pack_part(s, &s->train, 0, ntrain, spec->seq_len);
    pack_part(s, &s->val, ntrain, s->n - ntrain, spec->seq_len);
    s->hash = sft_hash(s, &s->train);
    if (r->chat.plain) snprintf(s->plain, sizeof s->plain, "%.*s", r->chat.nplain, r->chat.plain);
    s->bytes = s->at[s->n] * sizeof *s->id + ((size_t)s->n + 1) * (sizeof *s->at + sizeof(int)) +
               ((size_t)s->train.pack.n + (size_t)s->val.pack.n + 4) * sizeof(int);
    return true;
}

bool sft_open(Sft *s, const SftSpec *spec, const Tokenizer *t, Err *e) {
    *s = (Sft){.n = 0};
    CHECK(spec->ntrain >= 1 && spec->seq_len >= 1 && spec->val_fraction >= 0 && spec->val_fraction < 1,
          "%d files, seq_len %d, val_fraction %g", spec->ntrain, spec->seq_len, spec->val_fraction);
    Read r = {.s = s, .spec = spec};
    chat_open(&r.chat, t, spec->cfg.template, spec->cfg.learn == SFT_ALL);
    bool ok = sft_fill(&r, e);
    chat_close(&r.chat);
    ids_free(&r.ids);
    if (!ok) sft_close(s);
    return ok;
}

void sft_close(Sft *s) {
    pack_free(&s->train.pack);
    pack_free(&s->val.pack);
    free(s->id);
    free(s->at);
    *s = (Sft){0};
}
