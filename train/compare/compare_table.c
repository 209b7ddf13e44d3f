/* compare_table.c: the results as a Markdown table. */
#include "compare_loss.h"

static double compare_table_number(const json_t *j, const char *name) {
    const json_t *x = json_object_get(j, name);
    return json_is_number(x) ? json_number_value(x) : NAN;
}
static const char *compare_table_text(const json_t *j, const char *name) {
    const char *s = json_string_value(json_object_get(j, name));
    return s ? s : "";
}

/* 1234567 -> "1,234,567"; what is not known: "-" */
static const char *compare_table_grouped(double v, char buf[32]) {
    char digits[24];
    if (!isfinite(v)) return "-";
    int n = snprintf(digits, sizeof digits, "%.0f", v), at = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0 && digits[i - 1] != '-') buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = 0;
    return buf;
}
static void compare_table_cell(FILE *f, double v) {
    char buf[32];
    fprintf(f, " %s |", compare_table_grouped(v, buf));
}
static void cell_at(FILE *f, double v, int digits) {
    if (isfinite(v))
        fprintf(f, " %.*f |", digits, v);
    else
        fputs(" - |", f);
}

static void compare_table_heads(FILE *f, const json_t *r) {
    const json_t *m = json_object_get(r, "measure"), *x;
    char a[32], b[32];
    size_t i;
    int columns = 0;
    fprintf(f,
            "| row | parameters | FFN width | lr | loss, nats/token | to the best | cache B/token at %s | by formula | "
            "state B |",
            compare_table_grouped(compare_table_number(m, "context"), a));
    columns += 9;
    json_array_foreach(json_object_get(m, "contexts"), i, x) {
        fprintf(f, " cache B at %s |", compare_table_grouped(json_number_value(x), a));
        columns++;
    }
    json_array_foreach(json_object_get(m, "batches"), i, x) {
        fprintf(f, " prefill tok/s, batch %s | decode tok/s, batch %s |",
                compare_table_grouped(json_number_value(x), a), compare_table_grouped(json_number_value(x), b));
        columns += 2;
    }
    fputs(" training tok/s | tokens | training s | notes |\n|---|", f);
    for (int k = 0; k < columns + 3; k++) fputs(k == columns + 2 ? "---|" : "---:|", f);
    fputc('\n', f);
}

static void compare_table_loss(FILE *f, const json_t *row, double best) {
    double mean = compare_table_number(row, "val_loss"), sd = compare_table_number(row, "sd");
    const char *rank = compare_table_text(row, "rank");
    if (!isfinite(mean)) {
        fputs(" - | - |", f);
        return;
    }
    fprintf(f, isfinite(sd) ? " %.4f ± %.4f |" : " %.4f |", mean, sd);
    if (!strcmp(rank, "best"))
        fputs(" lowest |", f);
    else
        fprintf(f, " %+.4f%s |", mean - best, !strcmp(rank, "tie") ? ", tie" : "");
}

static const char *edge_name(const json_t *row) {
    const json_t *first = json_array_get(json_object_get(row, "tuning"), 0);
    return compare_table_number(first, "lr") == compare_table_number(row, "lr") ? "lowest" : "highest";
}

/* How far a row without marks is from its control; those with marks have a table of it. */
static void control_note(FILE *f, const json_t *r, const json_t *row, const char **sep) {
    const char *name = compare_table_text(row, "reference");
    const json_t *x;
    size_t i;
    if (!*name || json_object_get(row, "marks")) return;
    json_array_foreach(json_object_get(r, "rows"), i, x) {
        double off = 100 * (compare_table_number(row, "val_loss") / compare_table_number(x, "val_loss") - 1);
        if (strcmp(compare_table_text(x, "name"), name) || !isfinite(off)) continue;
        fprintf(f, "%s%+.2f %% to %s", *sep, off, name);
        *sep = "; ";
    }
}

/* How far the bytes of a row that merges or evicts were counted. */
static void counted_note(FILE *f, const json_t *r, const json_t *row, const char **sep) {
    const json_t *contexts = json_object_get(json_object_get(r, "measure"), "contexts"), *x;
    json_int_t upto = 0, most = 0;
    char a[32];
    size_t i;
    json_array_foreach(json_object_get(row, "cache_counted"), i, x) {
        json_int_t n = json_integer_value(x), at = json_integer_value(json_array_get(contexts, i));
        upto = n > upto ? n : upto, most = at > most ? at : most;
    }
    if (!upto) return;
    fprintf(f, "%scache counted up to %s tokens", *sep, compare_table_grouped((double)upto, a));
    if (most > upto) fputs(", beyond that in proportion", f);
    *sep = "; ";
}

static void compare_table_notes(FILE *f, const json_t *r, const json_t *row) {
    const char *sep = " ";
    double finished = compare_table_number(row, "finished"), diverged = compare_table_number(row, "diverged"),
           cut = compare_table_number(row, "cut"), before = compare_table_number(row, "tokens_before");
    size_t seeds = json_array_size(json_object_get(r, "seeds")), i;
    char a[32];
    const json_t *x;
    int lost = 0;
    if (*compare_table_text(row, "from")) {
        fprintf(f, "%sfrom %s, which had %s tokens before", sep, compare_table_text(row, "from"),
                compare_table_grouped(before, a));
        sep = "; ";
    }
    control_note(f, r, row, &sep);
    counted_note(f, r, row, &sep);
    if (!json_equal(json_object_get(row, "lrs"), json_object_get(r, "lrs")))
        fprintf(f, "%slearning rates of its own", sep), sep = "; ";
    json_array_foreach(json_object_get(row, "tuning"), i, x) lost +=
        !strcmp(compare_table_text(x, "state"), "diverged");
    if (lost)
        fprintf(f, "%s%d of %zu learning rates diverged", sep, lost, json_array_size(json_object_get(row, "tuning"))),
            sep = "; ";
    if (json_is_true(json_object_get(row, "lr_at_edge")) && json_is_number(json_object_get(row, "lr")))
        fprintf(f, "%sits learning rate is the %s of those tried", sep, edge_name(row)), sep = "; ";
    if (diverged > 0) fprintf(f, "%s%.0f of %zu seeds diverged", sep, diverged, seeds), sep = "; ";
    if (cut > 0) fprintf(f, "%s%.0f runs cut by time", sep, cut), sep = "; ";
    if (finished > 0 && compare_table_number(row, "train_threads") != compare_table_number(r, "threads"))
        fprintf(f, "%strained with another number of threads", sep), sep = "; ";
    if (finished + diverged < (double)seeds) {
        fprintf(f, "%s%.0f of %zu runs done", sep, finished, seeds), sep = "; ";
    } else if (finished == 1) {
        fprintf(f, "%sone run: no sd, no order", sep), sep = "; ";
    }
    fputs(" |\n", f);
}

static void compare_table_line(FILE *f, const json_t *r, const json_t *row, double best) {
    const json_t *m = json_object_get(r, "measure"), *cache = json_object_get(row, "cache"), *x, *y;
    double context = compare_table_number(m, "context"), lr = compare_table_number(row, "lr");
    char name[32];
    size_t i, k;
    fprintf(f, "| %s |", compare_table_text(row, "name"));
    compare_table_cell(f, compare_table_number(row, "params"));
    compare_table_cell(f, compare_table_number(row, "hidden"));
    fprintf(f, " %s |", isfinite(lr) ? compare_lr_name(lr, name) : "-");
    compare_table_loss(f, row, best);
    cell_at(f, compare_table_number(row, "cache_measured") / context, 1);
    cell_at(f, compare_table_number(cache, "formula") / context, 1);
    compare_table_cell(f, compare_table_number(cache, "state_bytes"));
    const json_t *at = json_object_get(row, "cache_at");
    json_array_foreach(at ? at : json_object_get(cache, "at"), i, x) compare_table_cell(f, json_number_value(x));
    json_array_foreach(json_object_get(m, "batches"), i, x) {
        double prefill = NAN, decode = NAN;
        json_array_foreach(json_object_get(row, "speed"), k,
                           y) if (compare_table_number(y, "batch") == json_number_value(x))
            prefill = compare_table_number(y, "prefill_tok_s"),
            decode = compare_table_number(y, "decode_tok_s");
        compare_table_cell(f, prefill);
        compare_table_cell(f, decode);
    }
    compare_table_cell(f, compare_table_number(row, "step_tok_s"));
    compare_table_cell(f, compare_table_number(row, "tokens"));
    compare_table_cell(f, compare_table_number(row, "train_seconds"));
    compare_table_notes(f, r, row);
}

void compare_table(FILE *f, const json_t *r) {
    const json_t *m = json_object_get(r, "measure"), *x;
    char a[32], b[32];
    double best = NAN;
    size_t i;
    json_array_foreach(json_object_get(r, "rows"), i, x) if (!strcmp(compare_table_text(x, "rank"), "best")) best =
        compare_table_number(x, "val_loss");
    fprintf(f, "%s, %.0f threads, %s; kvsmith %s; `%s`. ", compare_table_text(r, "machine"),
            compare_table_number(r, "threads"), compare_table_text(r, "dtype"), compare_table_text(r, "version"),
            compare_table_text(r, "config"));
    fprintf(f,
            "Every row: %s parameters within %g %% by the width of the feed-forward part, the same text of %s tokens",
            compare_table_grouped(compare_table_number(r, "match_params"), a),
            100 * compare_table_number(r, "tolerance"),
            compare_table_grouped(compare_table_number(r, "text_tokens"), b));
    fprintf(f, ", at most %s tokens", compare_table_grouped(compare_table_number(r, "budget_tokens"), a));
    if (compare_table_number(r, "max_passes") > 0) fprintf(f, ", %g passes", compare_table_number(r, "max_passes"));
    if (compare_table_number(r, "max_seconds") > 0) fprintf(f, " and %g s", compare_table_number(r, "max_seconds"));
    fprintf(f, " a run; the best of %zu learning rates at seed %.0f", json_array_size(json_object_get(r, "lrs")),
            compare_table_number(r, "tune_seed"));
    if (compare_table_number(r, "tune_tokens") > 0)
        fprintf(f, " after %s tokens", compare_table_grouped(compare_table_number(r, "tune_tokens"), a));
    if (compare_table_number(r, "widen") > 0)
        fprintf(f, ", with at most %.0f more on a side while the best is at an edge", compare_table_number(r, "widen"));
    fprintf(f, ", then %zu other seeds.\n\n", json_array_size(json_object_get(r, "seeds")));
    compare_table_heads(f, r);
    json_array_foreach(json_object_get(r, "rows"), i, x) compare_table_line(f, r, x, best);
    fprintf(
        f,
        "\nLoss: mean ± sd (n - 1) of the final validation over the seeds. A tie is less than 2 sd above the "
        "lowest loss, by the larger sd of the two; ties and rows with fewer than two runs have no order. Cache: "
        "counted in a session after %s tokens of the validation text, states included; the formula assumes that no "
        "row is merged or evicted. Cache B at a context: by the formula, and counted for rows that merge or evict, as "
        "far as the validation text and the model's positions reach. Speeds: medians of %.0f repetitions, rows "
        "interleaved; a prompt of %s tokens, "
        "then %s tokens decoded. Training tok/s: the median of steps on random tokens, measured with the other "
        "speeds; training s: mean time of the runs without validation and saving.\n",
        compare_table_grouped(compare_table_number(m, "context"), a), compare_table_number(m, "repeats"),
        compare_table_grouped(compare_table_number(m, "prompt"), b),
        compare_table_grouped(compare_table_number(m, "decode"), (char[32]){0}));
    compare_losses_table(f, r);
    compare_marks_table(f, r);
}
