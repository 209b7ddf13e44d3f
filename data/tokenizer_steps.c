/* tokenizer_steps.c: reads the parts of a tokenizer.json around its model: normalizer, pre_tokenizer, post_processor
 * and decoder. */
#include <sodium.h>
#include "tok_reader.h"

static const char BLANK[] = "\xE2\x96\x81" /* U+2581 */;
enum { SEQUENCE_DEPTH = 4 };

typedef bool (*StepRead)(TokReader *, const json_t *);
/* Apply `one` to an object, or to every member of a Sequence under `list`. */
static bool steps_each(TokReader *r, const json_t *j, const char *list, int depth, StepRead one) {
    if (tok_absent(j)) return true;
    if (strcmp(tok_type(j), "Sequence")) return one(r, j);
    const json_t *v;
    size_t i;
    if (depth == SEQUENCE_DEPTH) return tok_unknown(r, list, "a deeper sequence inside sequences");
    json_array_foreach(json_object_get(j, list), i, v) if (!steps_each(r, v, list, depth + 1, one)) return false;
    return true;
}

/* A text without NUL of an object; NULL: there is none. */
static const char *steps_text(const json_t *j, const char *key) {
    const char *s = tok_text(j, key);
    return s && strlen(s) == json_string_length(json_object_get(j, key)) ? s : NULL;
}

/* ---- normalizer -------------------------------------------------------------------------------------------------- */

static bool add_norm(TokReader *r, Norm m) {
    if (r->m->nnorm == NORMS_MAX) {
        norm_free(&m);
        return tok_unknown(r, "normalizer", "a sequence of more than 16 steps");
    }
    r->m->norm[r->m->nnorm++] = m;
    return true;
}
static bool norm_read_replace(TokReader *r, const json_t *j) {
    const json_t *p = json_object_get(j, "pattern");
    const char *plain = steps_text(p, "String"), *regex = steps_text(p, "Regex"), *to = steps_text(j, "content");
    if (!to || (!regex && !(plain && *plain)))
        return tok_unknown(r, "normalizer: Replace", "one without a pattern or content");
    Norm m = {.kind = NORM_REPLACE, .text = xstrdup(to), .ntext = strlen(to)};
    if (plain) m.find = xstrdup(plain), m.nfind = strlen(plain);
    if (!plain && (!(m.cutter = cutter_open(regex, PATTERN_ONIGURUMA, r->where, r->e)) || cutter_empty(m.cutter))) {
        bool compiled = m.cutter;
        norm_free(&m);
        return compiled ? tok_unknown(r, "normalizer: Replace", "a pattern that matches nothing at all") : false;
    }
    return add_norm(r, m);
}
static bool norm_read_charsmap(TokReader *r, const json_t *j) {
    const json_t *v = json_object_get(j, "precompiled_charsmap");
    if (tok_absent(v) || (json_is_string(v) && !json_string_length(v))) return true; /* it maps nothing */
    size_t n = json_string_length(v), made = 0;
    unsigned char *table = xcalloc(n + 1, 1);
    const char *end = NULL;
    bool ok = json_is_string(v) &&
              !sodium_base642bin(table, n, json_string_value(v), n, NULL, &made, &end, sodium_base64_VARIANT_ORIGINAL);
    if (!ok || end != json_string_value(v) + n) {
        free(table);
        return err_input(r->e, "%s: expected normalizer.precompiled_charsmap in base64", r->where);
    }
    Charsmap *map = charsmap_open(table, made, r->where, r->e);
    free(table);
    return map && add_norm(r, (Norm){.kind = NORM_CHARSMAP, .map = map});
}
static bool norm_read_bert(TokReader *r, const json_t *j) {
    const bool lower = tok_truth(j, "lowercase", true);
    if (tok_truth(j, "clean_text", true) && !add_norm(r, (Norm){.kind = NORM_CLEAN})) return false;
    if (tok_truth(j, "handle_chinese_chars", true) && !add_norm(r, (Norm){.kind = NORM_CHINESE})) return false;
    if (tok_truth(j, "strip_accents", lower) && !add_norm(r, (Norm){.kind = NORM_BERT_ACCENTS})) return false;
    return !lower || add_norm(r, (Norm){.kind = NORM_LOWER});
}
static bool norm_read(TokReader *r, const json_t *j) {
    static const struct {
        const char *type;
        NormKind kind;
    } plain[] = {{"NFC", NORM_NFC},   {"NFD", NORM_NFD},         {"NFKC", NORM_NFKC},
                 {"NFKD", NORM_NFKD}, {"Lowercase", NORM_LOWER}, {"StripAccents", NORM_ACCENTS},
                 {"Nmt", NORM_NMT}};
    const char *type = tok_type(j), *prefix = steps_text(j, "prepend");
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (!strcmp(type, plain[i].type)) return add_norm(r, (Norm){.kind = plain[i].kind});
    if (!strcmp(type, "Prepend") && prefix)
        return add_norm(r, (Norm){.kind = NORM_PREPEND, .text = xstrdup(prefix), .ntext = strlen(prefix)});
    if (!strcmp(type, "Strip"))
        return add_norm(r, (Norm){.kind = NORM_STRIP,
                                  .left = tok_truth(j, "strip_left", true),
                                  .right = tok_truth(j, "strip_right", true)});
    if (!strcmp(type, "Replace")) return norm_read_replace(r, j);
    if (!strcmp(type, "Precompiled")) return norm_read_charsmap(r, j);
    if (!strcmp(type, "BertNormalizer")) return norm_read_bert(r, j);
    return tok_unknown(r, "normalizer", type);
}

/* ---- pre_tokenizer ----------------------------------------------------------------------------------------------- */

static bool add_cut(TokReader *r, Cut c) {
    if (r->m->ncut == CUTS_MAX) {
        cutter_close(c.cutter);
        return tok_unknown(r, "pre_tokenizer", "a sequence of more than 8 steps");
    }
    r->m->cut[r->m->ncut++] = c;
    return true;
}
static bool add_pattern(TokReader *r, const char *pattern, PatternKind kind, Split split, bool invert) {
    Cutter *c = cutter_open(pattern, kind, r->where, r->e);
    bool known =
        split == SPLIT_ISOLATED && !invert &&
        (!strcmp(pattern, PATTERN_GPT2) || !strcmp(pattern, PATTERN_LLAMA3) || !strcmp(pattern, PATTERN_QWEN2));
    return c &&
           add_cut(r, (Cut){.kind = CUT_PATTERN, .known = known, .cutter = c, .split_as = split, .invert = invert});
}
/* Add a pattern that matches a literal text. */
static bool add_literal(TokReader *r, const char *s, Split split, bool invert) {
    Buf p = {0};
    for (; *s; s++) {
        if (strchr("\\^$.|?*+()[]{}", *s)) buf_put(&p, "\\", 1);
        buf_put(&p, s, 1);
    }
    buf_put(&p, "", 1);
    bool ok = add_pattern(r, p.at, PATTERN_ONIGURUMA, split, invert);
    buf_free(&p);
    return ok;
}
static bool cut_read_metaspace(TokReader *r, const json_t *j) {
    const char *mark = tok_text(j, "replacement"), *scheme = tok_text(j, "prepend_scheme");
    if (!mark || strcmp(mark, BLANK))
        return tok_unknown(r, "pre_tokenizer", "Metaspace with another replacement than U+2581");
    if (!scheme) scheme = tok_truth(j, "add_prefix_space", true) ? "always" : "never";
    Prepend p = !strcmp(scheme, "always") ? PREPEND_ALWAYS : !strcmp(scheme, "first") ? PREPEND_FIRST : PREPEND_NEVER;
    if (p == PREPEND_NEVER && strcmp(scheme, "never")) return tok_unknown(r, "pre_tokenizer.prepend_scheme", scheme);
    return add_cut(r, (Cut){.kind = CUT_METASPACE, .prepend = p, .split = tok_truth(j, "split", true)});
}
static bool cut_behavior(TokReader *r, const json_t *j, const char *otherwise, Split *split) {
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
    const char *name = tok_text(j, "behavior");
    if (!name) name = otherwise;
    for (int i = 0; i < 5; i++)
        if (!strcmp(name, names[i])) {
            *split = (Split)i;
            return true;
        }
    return tok_unknown(r, "pre_tokenizer: behavior", name);
}
static bool cut_read_split(TokReader *r, const json_t *j) {
    const json_t *p = json_object_get(j, "pattern");
    const char *regex = steps_text(p, "Regex"), *plain = steps_text(p, "String");
    const bool invert = tok_truth(j, "invert", false);
    Split split;
    if (!cut_behavior(r, j, "no behavior", &split)) return false;
    if (!regex && !(plain && *plain))
        return tok_unknown(r, "pre_tokenizer: Split", "a pattern that is neither Regex nor String");
    return regex ? add_pattern(r, regex, PATTERN_ONIGURUMA, split, invert) : add_literal(r, plain, split, invert);
}

/* The library writes these in Rust; Punctuation also has all of ASCII's. */
#define PUNCTUATION "[\\p{P}!-/:-@\\[-`{-~]"
static bool cut_read(TokReader *r, const json_t *j) {
    const char *type = tok_type(j);
    Split split;
    if (!strcmp(type, "ByteLevel")) {
        r->bytes = true;
        if (tok_truth(j, "add_prefix_space", true) && !add_cut(r, (Cut){.kind = CUT_PREFIX_SPACE})) return false;
        return !tok_truth(j, "use_regex", true) ||
               add_pattern(r, PATTERN_GPT2, PATTERN_ONIGURUMA, SPLIT_ISOLATED, false);
    }
    if (!strcmp(type, "Split")) return cut_read_split(r, j);
    if (!strcmp(type, "Digits"))
        return add_pattern(r, tok_truth(j, "individual_digits", false) ? "\\p{N}" : "\\p{N}+", PATTERN_RUST,
                           SPLIT_ISOLATED, false);
    if (!strcmp(type, "Metaspace")) return cut_read_metaspace(r, j);
    if (!strcmp(type, "Whitespace")) return add_pattern(r, "\\w+|[^\\w\\s]+", PATTERN_RUST, SPLIT_REMOVED, true);
    if (!strcmp(type, "WhitespaceSplit")) return add_pattern(r, "\\s", PATTERN_RUST, SPLIT_REMOVED, false);
    if (!strcmp(type, "Punctuation"))
        return cut_behavior(r, j, "Isolated", &split) && add_pattern(r, PUNCTUATION, PATTERN_RUST, split, false);
    if (!strcmp(type, "BertPreTokenizer"))
        return add_pattern(r, "\\s", PATTERN_RUST, SPLIT_REMOVED, false) &&
               add_pattern(r, PUNCTUATION, PATTERN_RUST, SPLIT_ISOLATED, false);
    return tok_unknown(r, "pre_tokenizer", type);
}

/* ---- decoder ----------------------------------------------------------------------------------------------------- */

static bool decoder_read(TokReader *r, const json_t *j) {
    const char *type = tok_type(j), *from = tok_text(json_object_get(j, "pattern"), "String"),
               *to = tok_text(j, "content");
    if (!strcmp(type, "ByteLevel") || !strcmp(type, "Fuse")) return true;
    if (!strcmp(type, "ByteFallback")) return r->show_bytes = true;
    if (!strcmp(type, "Replace") && from && to && !strcmp(from, BLANK) && !strcmp(to, " "))
        return r->show_blanks = true;
    if (!strcmp(type, "Strip") && to && !strcmp(to, " ")) {
        r->t->strip = json_integer_value(json_object_get(j, "start")) > 0;
        return true;
    }
    if (!strcmp(type, "Metaspace")) {
        const char *scheme = tok_text(j, "prepend_scheme");
        r->t->strip = scheme ? strcmp(scheme, "never") != 0 : tok_truth(j, "add_prefix_space", true);
        return r->show_blanks = true;
    }
    if (!strcmp(type, "WordPiece")) {
        r->show_prefix = steps_text(j, "prefix");
        if (!r->show_prefix) r->show_prefix = "##";
        r->show_cleanup = tok_truth(j, "cleanup", true);
        return r->t->strip = true;
    }
    return tok_unknown(r, "decoder", type);
}

int fallback_byte(const char *name) {
    int v = -1, end = 0;
    return strlen(name) == 6 && sscanf(name, "<0x%2X>%n", (unsigned *)&v, &end) == 1 && end == 6 ? v : -1;
}
static void steps_replace(Buf *b, size_t from, const char *find, const char *to) {
    const size_t nf = strlen(find), nt = strlen(to);
    for (char *hit; b->n > from && (hit = memmem(b->at + from, b->n - from, find, nf));) {
        const size_t at = (size_t)(hit - b->at);
        memmove(hit + nt, hit + nf, b->n - at - nf); /* `to` is never longer */
        memcpy(hit, to, nt);
        b->n -= nf - nt;
        from = at + nt;
    }
}
static void steps_cleanup(Buf *b, size_t from) {
    static const char *const pair[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                          {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                          {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) steps_replace(b, from, pair[i][0], pair[i][1]);
}
void tok_show(const TokReader *r, const char *name, Buf *out) {
    const size_t from = out->n;
    const int value = r->show_bytes ? fallback_byte(name) : -1;
    const char byte = (char)value;
    if (value >= 0) {
        buf_put(out, &byte, 1);
        return;
    }
    if (r->show_prefix) {
        const size_t n = strlen(r->show_prefix);
        const bool inside = n && !strncmp(name, r->show_prefix, n);
        if (!inside) buf_put(out, " ", 1);
        name += inside ? n : 0;
    }
    buf_put(out, name, strlen(name));
    if (r->show_blanks) steps_replace(out, from, BLANK, " ");
    if (r->show_cleanup) steps_cleanup(out, from);
}

/* ---- post_processor ---------------------------------------------------------------------------------------------- */

static bool template_id(TokReader *r, const json_t *id, Ids *to) {
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= TOKENIZER_IDS_MAX)
        return tok_unknown(r, "post_processor", "a template with an id outside the vocabulary");
    ids_push(to, (int)json_integer_value(id));
    return true;
}
static bool post_read(TokReader *r, const json_t *j) {
    const char *type = tok_type(j);
    if (!strcmp(type, "ByteLevel")) return true;
    if (!strcmp(type, "BertProcessing") || !strcmp(type, "RobertaProcessing"))
        return template_id(r, json_array_get(json_object_get(j, "cls"), 1), &r->m->before) &&
               template_id(r, json_array_get(json_object_get(j, "sep"), 1), &r->m->after);
    if (strcmp(type, "TemplateProcessing")) return tok_unknown(r, "post_processor", type);
    const json_t *v, *specials = json_object_get(j, "special_tokens");
    size_t i, k;
    bool behind = false;
    json_array_foreach(json_object_get(j, "single"), i, v) {
        const json_t *s = json_object_get(v, "SpecialToken"), *id;
        if (json_object_get(v, "Sequence")) {
            behind = true;
            continue;
        }
        const char *name = tok_text(s, "id");
        const json_t *ids = json_object_get(json_object_get(specials, name ? name : ""), "ids");
        if (!json_array_size(ids)) return tok_unknown(r, "post_processor", "a template with a token that has no ids");
        json_array_foreach(ids, k, id) if (!template_id(r, id, behind ? &r->m->after : &r->m->before)) return false;
    }
    return true;
}

bool tok_read_steps(TokReader *r) {
    return steps_each(r, json_object_get(r->root, "normalizer"), "normalizers", 0, norm_read) &&
           steps_each(r, json_object_get(r->root, "pre_tokenizer"), "pretokenizers", 0, cut_read) &&
           steps_each(r, json_object_get(r->root, "post_processor"), "processors", 0, post_read) &&
           steps_each(r, json_object_get(r->root, "decoder"), "decoders", 0, decoder_read);
}
