/* policies_write.c: the table of compared policies in Markdown, and their plot in SVG. */
#include "policies.h"

static double number(const json_t *row, const char *name) { return json_number_value(json_object_get(row, name)); }
static const char *text(const json_t *row, const char *name) { return json_string_value(json_object_get(row, name)); }
static bool asks(const json_t *row, const char *form) { return !strcmp(text(row, "question"), form); }
static bool dense(const json_t *row) { return !strcmp(text(row, "policy"), "none"); }

static void table_of(FILE *f, const json_t *results, const char *form) {
    const json_t *rows = json_object_get(results, "rows"), *tasks, *row;
    const char *name;
    json_t *x;
    size_t i;
    bool any = false;
    json_array_foreach(rows, i, row) {
        if (!asks(row, form)) continue;
        tasks = json_object_get(row, "tasks");
        if (!any) {
            fprintf(f, "\nThe prompt ends %s the question.\n\n| policy | budget | accuracy, %% | ± |",
                    strcmp(form, "aware") ? "before" : "after");
            json_object_foreach((json_t *)tasks, name, x) fprintf(f, " %s |", name);
            fputs(
                " KL | top-1, % | resident bytes | of dense, % | bytes read | prompt | rows/s |\n|---|---:|---:|---:|",
                f);
            for (size_t k = json_object_size(tasks); k; k--) fputs("---:|", f);
            fputs("---:|---:|---:|---:|---:|---:|---:|\n", f);
        }
        any = true;
        fprintf(f, "| `%s` | %g | %.1f | ", dense(row) ? "dense" : text(row, "policy"), number(row, "budget"),
                100 * number(row, "accuracy"));
        if (json_is_number(json_object_get(row, "accuracy_sd")))
            fprintf(f, "%.1f |", 100 * number(row, "accuracy_sd"));
        else
            fputs("- |", f);
        json_object_foreach((json_t *)tasks, name, x) fprintf(f, " %.1f |", 100 * json_number_value(x));
        fprintf(f, " %.4f | %.1f | %.0f | %.1f | %.0f | %+.0f %% | %.0f |\n", number(row, "kl"),
                100 * number(row, "top1"), number(row, "resident_bytes"), 100 * number(row, "resident_share"),
                number(row, "read_bytes"), 100 * number(row, "prompt_overhead"), number(row, "decode_tok_s"));
    }
}
void policies_table(FILE *f, const json_t *results) {
    fprintf(f,
            "%lld seeds of %lld samples of each task. Accuracy is the mean over tasks of the fraction of right "
            "answers of a sample, ± its standard deviation over seeds; KL in nats and top-1 against the dense cache; "
            "bytes of a sequence where its prompt has ended, and read by each row after it; seconds of a prompt "
            "compared with the dense cache's; rows a second after prompts, all sequences together.\n",
            (long long)json_integer_value(json_object_get(results, "seeds")),
            (long long)json_integer_value(json_object_get(results, "samples")));
    table_of(f, results, "aware");
    table_of(f, results, "agnostic");
}

/* ---- the plot ----------------------------------------------------------------------------------------------------*/

enum { W = 380, H = 300, LEFT = 56, TOP = 40, GAP = 40, NAMES = 190 };
static const char *const colors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
                                     "#56b4e9", "#7f7f7f", "#8c564b", "#17becf", "#bcbd22"};
enum { COLORS = sizeof colors / sizeof *colors };

static double plot_x(double share, int panel) { return LEFT + panel * (W + GAP) + fmin(1.05, share) / 1.05 * W; }
static double plot_y(double accuracy) { return TOP + (1 - accuracy) * H; }

static void plot_panel(FILE *f, const json_t *rows, const char *form, int panel) {
    const json_t *row;
    const char *last = "";
    size_t i;
    int line = -1;
    fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#888\"/>\n",
            LEFT + panel * (W + GAP), TOP, W, H);
    fprintf(f,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" font-weight=\"bold\">prompt ends %s the question</text>\n",
            LEFT + panel * (W + GAP) + W / 2, TOP - 10, panel ? "before" : "after");
    for (int k = 0; k <= 4; k++) {
        fprintf(f, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", LEFT + panel * (W + GAP),
                LEFT + panel * (W + GAP) + W, plot_y(k / 4.), plot_y(k / 4.));
        if (!panel)
            fprintf(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n", LEFT - 6, plot_y(k / 4.) + 4,
                    25 * k);
        if (k)
            fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d %%</text>\n", plot_x(k / 4., panel),
                    TOP + H + 16, 25 * k);
    }
    json_array_foreach(rows, i, row) {
        if (!asks(row, form)) continue;
        const double x = plot_x(number(row, "resident_share"), panel), y = plot_y(number(row, "accuracy"));
        if (dense(row)) {
            fprintf(f, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#000\" stroke-dasharray=\"2 3\"/>\n",
                    LEFT + panel * (W + GAP), LEFT + panel * (W + GAP) + W, y, y);
            continue;
        }
        const bool begins = strcmp(last, text(row, "policy"));
        if (begins && line >= 0) fputs("\"/>\n", f);
        if (begins) line++;
        const char *color = colors[line % COLORS];
        if (begins && !panel)
            fprintf(f, "<text x=\"%d\" y=\"%d\" fill=\"%s\">%s</text>\n", LEFT + 2 * W + 2 * GAP, TOP + 12 + 16 * line,
                    color, text(row, "policy"));
        if (begins)
            fprintf(f,
                    "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"%s marker-mid=\"url(#d)\" "
                    "marker-start=\"url(#d)\" "
                    "marker-end=\"url(#d)\" d=\"M",
                    color, line / COLORS % 2 ? " stroke-dasharray=\"6 3\"" : "");
        fprintf(f, " %.1f %.1f", x, y);
        last = text(row, "policy");
    }
    if (line >= 0) fputs("\"/>\n", f);
}
void policies_plot(FILE *f, const json_t *results) {
    const json_t *rows = json_object_get(results, "rows");
    fprintf(
        f,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<defs><marker id=\"d\" refX=\"3\" "
        "refY=\"3\" markerWidth=\"6\" markerHeight=\"6\" markerUnits=\"userSpaceOnUse\"><circle cx=\"3\" cy=\"3\" "
        "r=\"2.5\" fill=\"context-stroke\"/></marker></defs>\n",
        LEFT + 2 * W + 2 * GAP + NAMES, TOP + H + 44);
    plot_panel(f, rows, "aware", 0);
    plot_panel(f, rows, "agnostic", 1);
    fprintf(f,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">resident bytes of the dense cache's (dotted: its accuracy)"
            "</text>\n</svg>\n",
            LEFT + W + GAP / 2, TOP + H + 36);
}
