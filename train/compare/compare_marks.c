/* compare_marks.c: the losses of conversions, right after them and at the marks, compared with the model that continued
 * without a conversion. */
#include "compare.h"
#include "infer/engine.h"

static double seeds_mean(const RunRecord *x, int seeds, bool first, int *n) {
    double sum = 0;
    *n = 0;
    for (int k = 0; k < seeds; k++) {
        double v = first ? x[k].first_loss : x[k].val_loss;
        if (x[k].state != RUN_FINISHED || !isfinite(v)) continue;
        sum += v;
        ++*n;
    }
    return *n ? sum / *n : NAN;
}

/* The report of the first seed's conversion, and the mean over the seeds of what each changed. */
static void conversions_json(const Compare *c, const CompareRow *row, json_t *j) {
    double kl[SEEDS_MAX];
    int n = 0;
    json_object_set_new(j, "convert", json_null());
    json_object_set_new(j, "to", json_string(row->to));
    for (int k = 0; k < c->seeds.n; k++) {
        json_t *said = compare_convert_record(c, row, c->seeds.v[k]), *report = json_object_get(said, "report"),
               *x = json_object_get(json_object_get(report, "check"), "kl");
        if (report && json_is_null(json_object_get(j, "convert"))) json_object_set(j, "convert", report);
        if (json_is_number(x)) kl[n++] = json_number_value(x);
        json_decref(said);
    }
    const Spread s = compare_spread(n, kl);
    json_object_set_new(j, "convert_kl", engine_number(s.mean));
    json_object_set_new(j, "convert_kl_sd", engine_number(s.sd));
}

void compare_marks_json(const Compare *c, int i, const RowResult *r, json_t *j) {
    const CompareRow *row = &c->row[i];
    json_t *marks = json_array();
    if (row->convert) conversions_json(c, row, j);
    if (!row->marks.n) {
        json_decref(marks);
        return;
    }
    int n;
    double first = seeds_mean(r->mark[0], c->seeds.n, true, &n);
    json_object_set_new(j, "first_loss", engine_number(first));
    for (int m = 0; m < row->marks.n; m++) {
        double mean = seeds_mean(r->mark[m], c->seeds.n, false, &n), x[SEEDS_MAX];
        int count = 0;
        for (int k = 0; k < c->seeds.n; k++)
            if (r->mark[m][k].state == RUN_FINISHED) x[count++] = r->mark[m][k].val_loss;
        json_array_append_new(marks, json_pack("{s:f, s:I, s:I, s:o, s:o, s:i}", "percent", row->marks.v[m], "steps",
                                               (json_int_t)row->mark_steps[m], "decay_steps",
                                               (json_int_t)(row->mark_steps[m] - row->mark_hold[m]), "val_loss",
                                               engine_number(mean), "sd", engine_number(compare_spread(count, x).sd),
                                               "finished", n));
    }
    json_object_set_new(j, "marks", marks);
}

/* ---- the table -----------------------------------------------------------------------------------------------------
 */

static double compare_marks_number(const json_t *j, const char *name) {
    const json_t *x = json_object_get(j, name);
    return json_is_number(x) ? json_number_value(x) : NAN;
}
static const char *compare_marks_text(const json_t *j, const char *name) {
    const char *s = json_string_value(json_object_get(j, name));
    return s ? s : "";
}

static double loss_at(const json_t *row, double percent) {
    const json_t *x;
    size_t i;
    if (!(percent > 0)) return compare_marks_number(row, "first_loss");
    json_array_foreach(json_object_get(row, "marks"), i,
                       x) if (compare_marks_number(x, "percent") == percent) return compare_marks_number(x, "val_loss");
    return NAN;
}

static void compare_marks_cell(FILE *f, double v, double reference) {
    if (!isfinite(v))
        fputs(" - |", f);
    else if (!isfinite(reference))
        fprintf(f, " %.4f |", v);
    else
        fprintf(f, " %.4f (%+.2f %%) |", v, 100 * (v / reference - 1));
}

void compare_marks_table(FILE *f, const json_t *r) {
    const json_t *rows = json_object_get(r, "rows"), *x, *m, *y;
    double at[MARKS_MAX * 4];
    int n = 0;
    size_t i, k;
    json_array_foreach(rows, i, x) json_array_foreach(json_object_get(x, "marks"), k, m) {
        double p = compare_marks_number(m, "percent");
        int to = 0;
        while (to < n && at[to] < p) to++;
        if ((to < n && at[to] == p) || n == MARKS_MAX * 4) continue;
        memmove(at + to + 1, at + to, (size_t)(n - to) * sizeof *at);
        at[to] = p, n++;
    }
    if (!n) return;
    fputs("\nLosses after a conversion and after training on, by percent of the first row's steps.\n\n"
          "| row | conversion | KL of it | cache B/token by formula | at 0 % |",
          f);
    for (int p = 0; p < n; p++) fprintf(f, " at %g %% |", at[p]);
    fputs("\n|---|---|---:|---:|---:|", f);
    for (int p = 0; p < n; p++) fputs("---:|", f);
    fputc('\n', f);
    double context = compare_marks_number(json_object_get(r, "measure"), "context");
    json_array_foreach(rows, i, x) {
        const json_t *report = json_object_get(x, "convert"), *control = NULL;
        if (!json_object_get(x, "marks")) continue;
        json_array_foreach(rows, k, y) if (!strcmp(compare_marks_text(y, "name"), compare_marks_text(x, "reference")))
            control = y;
        double kl = compare_marks_number(x, "convert_kl");
        fprintf(f, "| %s | %s%s |", compare_marks_text(x, "name"),
                *compare_marks_text(report, "rule") ? compare_marks_text(report, "rule") : compare_marks_text(x, "to"),
                json_is_true(json_object_get(report, "exact")) ? " (lossless)" : "");
        fprintf(f, isfinite(kl) ? " %.4f |" : " - |", kl);
        fprintf(f, " %.1f |", compare_marks_number(json_object_get(x, "cache"), "formula") / context);
        compare_marks_cell(f, compare_marks_number(x, "first_loss"), control ? loss_at(control, 0) : NAN);
        for (int p = 0; p < n; p++) compare_marks_cell(f, loss_at(x, at[p]), control ? loss_at(control, at[p]) : NAN);
        fputc('\n', f);
    }
    fputs("\nA mark is a run of that many percent of the steps, one per seed; its learning rate is constant, then "
          "decays linearly. In brackets: the difference from the same mark of the row's control, which continues from "
          "the same weights without a conversion, with the same teacher or none. At 0 %: validation before the first "
          "step. KL: mean per token, source to "
          "result, on the last part of the calibration text, which calibration does not see.\n",
          f);
}
