#include "journal.h"
#include "infer/text.h"
#include "ops/file.h"
#include "ops/oom.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* The step that a whole line begins, -1: none (it belongs to the record before), -2: torn. */
static int64_t line_step(const char *line, size_t n, const char *mark) {
    size_t m = strlen(mark);
    if (!n || line[n - 1] != '\n') return -2;
    if (n <= m || memcmp(line, mark, m)) return -1;
    int64_t v = 0;
    size_t i = m;
    for (; i < n && i < m + 18 && line[i] >= '0' && line[i] <= '9'; i++) v = v * 10 + (line[i] - '0');
    return i > m ? v : -1;
}

/* Bytes of the records up to `step`. *odd: they are followed by more than later records and a torn last line. */
static size_t journal_kept(const char *p, size_t n, const char *mark, int64_t step, bool lines, bool *odd) {
    size_t end = 0;
    bool cut = false;
    *odd = false;
    for (size_t at = 0, next; at < n; at = next) {
        const char *line = memchr(p + at, '\n', n - at);
        next = line ? (size_t)(line - p) + 1 : n;
        int64_t s = line_step(p + at, next - at, mark);
        /* a line without a mark belongs to the record before, where records have several */
        const bool strange = s == -1 && (!lines || at == 0), torn = s == -2;
        cut |= s > step || strange || torn;
        *odd |= strange || (cut && s >= 0 && s <= step);
        if (!cut) end = next;
    }
    return end;
}

static bool journal_failed(Journal *j, Err *e) {
    return err_runtime(e, "cannot write %s: %s", j->path, strerror(errno));
}

/* All of it is in RUN under a name of its own before any of it is cut. */
static bool keep_aside(const RunDir *d, const char *name, const FileMap *m, const char *why, Err *e) {
    char *to = run_dir_aside(d, name, e);
    if (!to) return false;
    char *path = run_dir_file(d, to);
    bool ok = file_write(path, m->p, m->n, e);
    if (ok) fprintf(stderr, "kvsmith: note: %s/%s %s; a full copy is kept as %s\n", d->path, name, why, to);
    free(path);
    free(to);
    return ok;
}

bool journal_open(Journal *j, const RunDir *d, const char *name, const char *mark, int64_t step, bool wanted, Err *e) {
    struct stat st;
    FileMap m = {0};
    char *path = run_dir_file(d, name);
    bool there = file_look(path, &st, e), ok = !e->status, odd = false;
    size_t keep = 0;
    *j = (Journal){0};
    ok = ok && (!there || !lstat(path, &st) || err_errno(e, "cannot look at", path));
    /* journal_append refuses what is not a regular file. */
    if (ok && there && S_ISREG(st.st_mode) && (ok = file_map(&m, path, e))) {
        keep = journal_kept((const char *)m.p, m.n, mark, step, !strcmp(mark, SAMPLES_MARK), &odd);
        bool lost = step < 0 && m.n && memchr(m.p, '\n', m.n);
        if (odd || lost)
            ok = keep_aside(d, name, &m,
                            odd ? "had lines that no run writes there" : "is of a run that has no checkpoint", e);
        file_unmap(&m);
    }
    if (ok && (there || wanted)) ok = journal_append(j, d->fd, name, path, keep, e);
    free(path);
    return ok;
}

bool journal_append(Journal *j, int at, const char *name, const char *path, size_t keep, Err *e) {
    *j = (Journal){.path = xstrdup(path)};
    int fd = file_own(at, name, O_WRONLY | O_CREAT | O_APPEND, path, e);
    if (fd < 0) return false;
    if (!(j->f = fdopen(fd, "a"))) {
        close(fd);
        return journal_failed(j, e);
    }
    return !TEMP_FAILURE_RETRY(ftruncate(fd, (off_t)keep)) || journal_failed(j, e);
}

bool journal_put(Journal *j, const char *text, size_t n, Err *e) {
    for (size_t at = 0; at < n;) { /* not by stdio, which gives up where it is interrupted */
        ssize_t w = write(fileno(j->f), text + at, n - at);
        if (w == 0) errno = EIO; /* it would be 0 for ever */
        if (w <= 0 && errno != EINTR) return journal_failed(j, e);
        if (w > 0) at += (size_t)w;
    }
    return true;
}

bool journal_sync(Journal *j, Err *e) {
    return !j->f || !TEMP_FAILURE_RETRY(fsync(fileno(j->f))) || journal_failed(j, e);
}

void journal_close(Journal *j) {
    if (j->f) fclose(j->f);
    free(j->path);
    *j = (Journal){0};
}

/* ,"stage":"NAME" or nothing: names hold no character that JSON would escape. */
static const char *journal_stage_text(char out[64], const char *stage) {
    *out = 0;
    if (stage) snprintf(out, 64, ",\"stage\":\"%.40s\"", stage);
    return out;
}
static const char *cr_text(char out[64], bool reports, double cr) {
    *out = 0;
    if (reports) snprintf(out, 64, isfinite(cr) ? ",\"cr\":%.10g" : ",\"cr\":null", cr);
    return out;
}

static void journal_part(char out[256], const char *name, bool has, double v) {
    size_t n = strlen(out);
    if (has) snprintf(out + n, 256 - n, ",\"%s\":%.10g", name, v);
}
static const char *parts_text(char out[256], const TrainLosses *l) {
    *out = 0;
    journal_part(out, "lm", l->teacher, l->lm);
    journal_part(out, "kl", l->has_kl, l->kl);
    journal_part(out, "rkl", l->has_rkl, l->rkl);
    journal_part(out, "attention", l->has_attention, l->attention);
    journal_part(out, "hidden", l->has_hidden, l->hidden);
    return out;
}

bool journal_train(Journal *j, const TrainRecord *r, Err *e) {
    char mfu[32] = "null", cr_loss[48] = "", epoch[48] = "", stage[64], cr[64], skip[128] = "", parts[256], line[900];
    if (r->mfu >= 0) snprintf(mfu, sizeof mfu, "%.4g", r->mfu);
    if (r->has_epoch) snprintf(epoch, sizeof epoch, ",\"epoch\":%.10g", r->epoch);
    if (r->reports) snprintf(cr_loss, sizeof cr_loss, ",\"cr_loss\":%.10g", r->cr_loss);
    if (r->skipped) {
        char a[32] = "null", b[32] = "null";
        if (isfinite(r->loss_z)) snprintf(a, sizeof a, "%.10g", r->loss_z);
        if (isfinite(r->norm_z)) snprintf(b, sizeof b, "%.10g", r->norm_z);
        snprintf(skip, sizeof skip, ",\"skipped\":true,\"loss_z\":%s,\"norm_z\":%s", a, b);
    }
    int n = snprintf(line, sizeof line,
                     METRICS_MARK "%lld%s,\"loss\":%.10g%s%s%s,\"lr\":%.10g,\"grad_norm\":%.10g%s,\"tokens\":%lld%s,"
                                  "\"tok_s\":%.6g,\"mfu\":%s,\"elapsed\":%.3f}\n",
                     (long long)r->step, journal_stage_text(stage, r->stage), r->loss, parts_text(parts, &r->parts),
                     cr_text(cr, r->reports, r->cr), cr_loss, r->lr, r->grad_norm, skip, (long long)r->tokens, epoch,
                     r->tok_s, mfu, r->elapsed);
    return journal_put(j, line, (size_t)n, e);
}

bool journal_val(Journal *j, const ValRecord *r, Err *e) {
    char stage[64], cr[64], acc[96] = "", line[320];
    if (r->task) snprintf(acc, sizeof acc, ",\"val_acc\":%.10g,\"val_acc_all\":%.10g", r->acc, r->acc_all);
    int n = snprintf(line, sizeof line, METRICS_MARK "%lld%s,\"val_loss\":%.10g%s,\"val_tokens\":%lld%s}\n",
                     (long long)r->step, journal_stage_text(stage, r->stage), r->loss, cr_text(cr, r->reports, r->cr),
                     (long long)r->tokens, acc);
    return journal_put(j, line, (size_t)n, e);
}

static void journal_shown(FILE *f, const char *text, size_t n) {
    char *clean = utf8_clean(text, n, &n);
    text = clean;
    fputs("  ", f);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '\n')
            fputs("\n  ", f);
        else if ((c < 32 && c != '\t') || c == 127)
            fprintf(f, "\\x%02x", c);
        else
            fputc(c, f);
    }
    fputc('\n', f);
    free(clean);
}

bool journal_sample(Journal *j, int64_t step, const char *prompt, const char *text, size_t n, Err *e) {
    char *record = NULL;
    size_t size = 0;
    FILE *f = oom_stream(&record, &size);
    fprintf(f, SAMPLES_MARK "%lld", (long long)step);
    if (*prompt) fprintf(f, " (prompt of %zu bytes)", strlen(prompt));
    fputs(" ==\n", f);
    journal_shown(f, text, n);
    fclose(f);
    bool ok = journal_put(j, record, size, e);
    free(record);
    return ok;
}
