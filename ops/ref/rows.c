/* rows.c: rows and columns from one tensor to another, and rows as the cache stores them. */
#include "ref.h"

void ref_spread(Run *r, Tensor y, Tensor x, const int *row) {
    for (int j = 0; j < y.n[0]; j++)
        for (int c = 0; c < y.n[1]; c++) put2(y, j, c, get2(x, row[j], c));
}
void ref_collect(Run *r, Into y, Tensor x, const int *place, int k) {
    for (int i = 0; i < y.t.n[0]; i++)
        for (int c = 0; c < y.t.n[1]; c++) {
            double sum = 0;
            for (int j = 0; j < k; j++) sum += get2(x, place[i * k + j], c);
            put_into2(y, i, c, sum);
        }
}
void ref_gather(Run *r, Tensor y, Tensor x, RowList from, RowList to) {
    const long w = to.n ? count(y) / to.n : 0;
    for (int m = 0; m < to.n; m++)
        for (int f = 0; f < from.n; f++)
            for (long c = 0; from.idx[f] == to.idx[m] && c < w; c++) put(y, m * w + c, get(x, f * w + c));
}
void ref_move(Run *r, Tensor y, const size_t *to, Tensor x, const size_t *from, int n, int w) {
    for (int i = 0; i < n; i++)
        for (int c = 0; c < w; c++) put(y, (long)to[i] + c, get(x, (long)from[i] + c));
}
void ref_columns(Run *r, Tensor y, int to, Tensor x, int from, int n) {
    const long rows = count(y) / size_of(y, 0), each = count(x) / size_of(x, 0), k = each ? rows / each : 1;
    for (long i = 0; i < rows; i++)
        for (int c = 0; c < n; c++) put2(y, i, to + c, get2(x, i / k, from + c));
}
void ref_columns_backward(Run *r, Into dx, int from, Tensor dy, int to, int n) {
    const long rows = count(dy) / size_of(dy, 0), each = count(dx.t) / size_of(dx.t, 0), k = each ? rows / each : 1;
    for (long m = 0; m < each; m++)
        for (int c = 0; c < n; c++) {
            double sum = 0;
            for (long i = m * k; i < (m + 1) * k; i++) sum += get2(dy, i, to + c);
            put_into2(dx, m, from + c, sum);
        }
}
void ref_mean_rows(Run *r, Tensor y, Tensor w, int each, int at, int k) {
    const long d = y.rank > 1 ? y.n[1] : 1;
    for (long g = 0; g < y.n[0]; g++)
        for (long c = 0; c < d; c++) {
            double sum = 0;
            for (long i = g * k; i < (g + 1) * k; i++) sum += get(w, (i * each + at) * d + c);
            put(y, g * d + c, sum / k);
        }
}

/* `w` elements of x from `from` on as `real`s, which codecs take. */
static void reals_of(Tensor x, long from, int w, real *to) {
    for (int c = 0; c < w; c++) to[c] = (real)get(x, from + c);
}
void ref_encode_rows(Run *r, Tensor data, const size_t *to, Tensor x, const size_t *from, int n, int w,
                     const RowCodec *codec) {
    real part[w];
    for (int i = 0; i < n; i++) {
        reals_of(x, (long)from[i], w, part);
        codec->encode(codec, (char *)data.p + to[i], part, w);
    }
}
void ref_recode_rows(Run *r, Tensor x, const RowCodec *codec) {
    const int w = size_of(x, 0);
    real row[w];
    char *coded = xcalloc(codec->bytes(codec, w), 1);
    for (long i = 0; i < count(x) / w; i++) {
        reals_of(x, i * w, w, row);
        codec->encode(codec, coded, row, w);
        codec->decode(codec, row, coded, w);
        for (int c = 0; c < w; c++) put(x, i * w + c, row[c]);
    }
    free(coded);
}
