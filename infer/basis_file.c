/* basis_file.c: see basis_file.h. */
#include "basis_file.h"

BasisFile basis_file(int most) { return (BasisFile){.most = most, .own = xcalloc((size_t)most + 1, sizeof(void *))}; }
void basis_file_free(BasisFile *f) {
    for (int i = 0; i < f->n; i++) free(f->own[i]);
    free(f->own);
    st_list_free(&f->list);
    *f = (BasisFile){0};
}
void *basis_file_add(BasisFile *f, const char *name, Dtype dtype, int rank, const int shape[]) {
    const Tensor t = tensor_make(NULL, dtype, rank, shape);
    CHECK(f->n < f->most, "%d tensors and %s", f->n, name);
    void *x = f->own[f->n++] = xcalloc(tensor_bytes(t) + 1, 1);
    st_add(&f->list, name, tensor_make(x, dtype, rank, shape), dtype);
    return x;
}
static int basis_file_order(const void *a, const void *b) {
    return strcmp(((const StItem *)a)->name, ((const StItem *)b)->name);
}
static void basis_file_checksum(const BasisFile *f, char out[17]) {
    StItem *item = xcalloc((size_t)f->n + 1, sizeof *item);
    uint64_t h = 0;
    memcpy(item, f->list.item, (size_t)f->n * sizeof *item);
    qsort(item, (size_t)f->n, sizeof *item, basis_file_order);
    for (int i = 0; i < f->n; i++) h = basis_checksum(h, item[i].name, item[i].t.p, tensor_bytes(item[i].t));
    snprintf(out, 17, "%016llx", (unsigned long long)h);
    free(item);
}
bool basis_file_write(BasisFile *f, const char *path, const char *kind, uint64_t model, size_t tokens,
                      const char *settings, Err *e) {
    char sum[17], of[17], read[24];
    basis_file_checksum(f, sum);
    snprintf(of, sizeof of, "%016llx", (unsigned long long)model);
    snprintf(read, sizeof read, "%zu", tokens);
    const char *const meta[] = {"kind",   kind,    "checksum",
                                sum,      "model", of,
                                "tokens", read,    settings ? "settings" : NULL,
                                settings, NULL};
    return st_write(path, &f->list, meta, e);
}
