/* compare_html.c: the results as one page that needs nothing else: the tables of table.md, and loss over cache bytes as
 * a plot. */
#include "compare.h"

enum { WIDE = 720, HIGH = 420, LEFT = 64, TOP = 24, RIGHT = 24, BOTTOM = 44, TICKS = 6 };

static double compare_html_number(const json_t *j, const char *name) {
    const json_t *x = json_object_get(j, name);
    return json_is_number(x) ? json_number_value(x) : NAN;
}
static const char *compare_html_text(const json_t *j, const char *name) {
    const char *s = json_string_value(json_object_get(j, name));
    return s ? s : "";
}

/* ---- Markdown ------------------------------------------------------------------------------------------------------
 */

static void html_escaped(FILE *f, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) switch (s[i]) {
        case '&': fputs("&amp;", f); break;
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '"': fputs("&quot;", f); break;
        default: fputc(s[i], f);
        }
}
/* Text with `code`. */
static void html_text(FILE *f, const char *s, size_t n) {
    for (bool code = false; n; code = !code) {
        const char *tick = memchr(s, '`', n);
        size_t part = tick ? (size_t)(tick - s) : n;
        if (code) fputs("<code>", f);
        html_escaped(f, s, part);
        if (code) fputs("</code>", f);
        s += part + !!tick, n -= part + !!tick;
    }
}
static void html_cells(FILE *f, const char *line, size_t n, const char *tag) {
    const char *at = line + 1, *end = line + n;
    fputs("<tr>", f);
    for (const char *bar; at < end && (bar = memchr(at, '|', (size_t)(end - at))); at = bar + 1) {
        const char *to = bar;
        while (at < to && *at == ' ') at++;
        while (to > at && to[-1] == ' ') to--;
        fprintf(f, "<%s>", tag);
        html_text(f, at, (size_t)(to - at));
        fprintf(f, "</%s>", tag);
    }
    fputs("</tr>\n", f);
}

/* The lines of a table begin with a bar, its second one separates the head; every other line is a paragraph. */
static void html_markdown(FILE *f, const char *text) {
    int row = 0;
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        if (*line == '|') {
            if (!row) fputs("<div class=\"wide\"><table>\n<thead>", f);
            if (row != 1) html_cells(f, line, n, row ? "td" : "th");
            if (row == 1) fputs("</thead>\n<tbody>\n", f);
            row++;
        } else {
            if (row) fputs("</tbody></table></div>\n", f);
            row = 0;
            if (n) fputs("<p>", f), html_text(f, line, n), fputs("</p>\n", f);
        }
        line += n + (line[n] == '\n');
    }
    if (row) fputs("</tbody></table></div>\n", f);
}

/* ---- the plot ------------------------------------------------------------------------------------------------------
 */

typedef struct {
    const char *name;
    double loss, sd, bytes; /* sd 0: unknown */
    bool from, front;
} Point;
typedef struct {
    double left, right, low, high; /* left, right: log2 of bytes */
} Frame;

static int plot_read(const json_t *results, Point *p) {
    const json_t *x;
    size_t i;
    int n = 0;
    json_array_foreach(json_object_get(results, "rows"), i, x) {
        double sd = compare_html_number(x, "sd");
        const Point one = {.name = compare_html_text(x, "name"),
                           .loss = compare_html_number(x, "val_loss"),
                           .sd = isfinite(sd) ? sd : 0,
                           .bytes = compare_html_number(x, "bytes_per_token"),
                           .from = *compare_html_text(x, "from"),
                           .front = json_is_true(json_object_get(x, "front"))};
        if (isfinite(one.loss) && one.bytes > 0) p[n++] = one;
    }
    return n;
}
static double plot_x(const Frame *a, double bytes) {
    return LEFT + (log2(bytes) - a->left) / (a->right - a->left) * (WIDE - LEFT - RIGHT);
}
static double plot_y(const Frame *a, double loss) {
    return TOP + (a->high - loss) / (a->high - a->low) * (HIGH - TOP - BOTTOM);
}
static Frame plot_frame(const Point *p, int n) {
    Frame a = {INFINITY, -INFINITY, INFINITY, -INFINITY};
    for (int i = 0; i < n; i++) {
        a.left = fmin(a.left, log2(p[i].bytes)), a.right = fmax(a.right, log2(p[i].bytes));
        a.low = fmin(a.low, p[i].loss - p[i].sd), a.high = fmax(a.high, p[i].loss + p[i].sd);
    }
    a.left = floor(a.left - 0.2), a.right = ceil(a.right + 0.7); /* names are right of their points */
    double pad = a.high > a.low ? 0.08 * (a.high - a.low) : 0.1;
    a.low -= pad, a.high += pad;
    return a;
}

static void plot_axes(FILE *f, const Frame *a, double context) {
    int step = imax(1, (int)(a->right - a->left) / 8);
    for (int k = (int)a->left; k <= (int)a->right; k += step) {
        double x = plot_x(a, exp2(k));
        fprintf(f, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>", x, x, TOP, HIGH - BOTTOM);
        fprintf(f, "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%d\">%.10g</text>\n", x,
                HIGH - BOTTOM + 16, exp2(k));
    }
    for (int k = 0; k <= TICKS; k++) {
        double v = a->low + (a->high - a->low) * k / TICKS, y = plot_y(a, v);
        fprintf(f, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT, WIDE - RIGHT, y, y);
        fprintf(f, "<text class=\"tick\" text-anchor=\"end\" x=\"%d\" y=\"%.1f\">%.3f</text>\n", LEFT - 6, y + 4, v);
    }
    fprintf(
        f, "<text text-anchor=\"middle\" x=\"%d\" y=\"%d\">cache bytes per token after %.0f tokens, log scale</text>\n",
        (LEFT + WIDE - RIGHT) / 2, HIGH - 8, context);
    fprintf(f, "<text x=\"8\" y=\"14\">validation loss, nats per token (bars: 1 sd)</text>\n");
}

/* The front of the rows that started anew, or of those that continue another. */
static void plot_front(FILE *f, const Frame *a, const Point *p, int n, bool from) {
    double last = 0;
    fprintf(f, "<polyline class=\"front%s\" points=\"", from ? " from" : "");
    for (;;) { /* from left to right */
        int next = -1;
        for (int i = 0; i < n; i++)
            if (p[i].front && p[i].from == from && p[i].bytes > last && (next < 0 || p[i].bytes < p[next].bytes))
                next = i;
        if (next < 0) break;
        fprintf(f, "%.1f,%.1f ", plot_x(a, p[next].bytes), plot_y(a, p[next].loss));
        last = p[next].bytes;
    }
    fputs("\"/>\n", f);
}
static void plot_point(FILE *f, const Frame *a, const Point *p) {
    double x = plot_x(a, p->bytes), y = plot_y(a, p->loss);
    fprintf(f, "<line class=\"sd\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", x, x, plot_y(a, p->loss - p->sd),
            plot_y(a, p->loss + p->sd));
    fprintf(f, "<circle class=\"row%s%s\" data-row=\"", p->from ? " from" : "", p->front ? " best" : "");
    html_escaped(f, p->name, strlen(p->name));
    fprintf(f, "\" cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\"><title>", x, y);
    html_escaped(f, p->name, strlen(p->name));
    fprintf(f, ": loss %.4f, %.1f bytes per token</title></circle>", p->loss, p->bytes);
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\">", x + 8, y + 4);
    html_escaped(f, p->name, strlen(p->name));
    fputs("</text>\n", f);
}

static void html_plot(FILE *f, const json_t *results) {
    Point p[ROWS_COMPARED_MAX];
    const int n = plot_read(results, p);
    if (!n) return;
    const Frame a = plot_frame(p, n);
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"validation loss "
            "over cache bytes per token\">\n",
            WIDE, HIGH);
    plot_axes(f, &a, compare_html_number(json_object_get(results, "measure"), "context"));
    for (int from = 0; from < 2; from++) plot_front(f, &a, p, n, from);
    for (int i = 0; i < n; i++) plot_point(f, &a, &p[i]);
    fputs("</svg>\n<p>Loss and bytes of each row as measured. Filled: trained from scratch; hollow: continued from "
          "another row, with more tokens in all. Each kind has its own Pareto front (orange, joined by a line): no row "
          "of the kind has both less loss and fewer bytes. The front is of means; look at the bars before you trust a "
          "small step of it.</p>\n",
          f);
}

void compare_html(FILE *f, const char *markdown, const json_t *results) {
    const char *config = compare_html_text(results, "config");
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>", f);
    html_escaped(f, config, strlen(config));
    fputs(
        "</title>\n<style>\n"
        "body { font: 15px/1.45 sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em; color: #222; "
        "background: #fff }\n"
        ".wide { overflow-x: auto }\n"
        "table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }\n"
        "th, td { border: 1px solid #ccc; padding: 3px 7px; text-align: right; vertical-align: top }\n"
        "th:first-child, td:first-child, th:last-child, td:last-child { text-align: left }\n"
        "svg { max-width: 56em; width: 100%; font: 12px sans-serif }\n"
        ".grid { stroke: #ddd } .sd { stroke: #888 } polyline.front { fill: none; stroke: #d55e00; stroke-width: 1.5 "
        "} polyline.from { stroke-dasharray: 5 3 }\n"
        "circle.row { fill: #0072b2; stroke: #0072b2; stroke-width: 1.8 } circle.best { fill: #d55e00; stroke: #d55e00 "
        "} circle.from { fill: #fff }\n"
        "</style>\n</head>\n<body>\n<h1>",
        f);
    html_escaped(f, config, strlen(config));
    fputs("</h1>\n", f);
    html_plot(f, results);
    html_markdown(f, markdown);
    fputs("</body>\n</html>\n", f);
}
