#include "check.h"
#include <criterion/hooks.h>
#include <criterion/types.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static double at(CheckView a, size_t i) {
    return a.dtype == F64 ? ((const double *)a.p)[i] : (double)((const float *)a.p)[i];
}
void check_log(const char *what, double error, double bound, size_t where, size_t n) {
    const char *path = getenv("CHECK_LOG");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    char line[400]; /* in one write: tests run side by side */
    const char *test = criterion_current_test ? criterion_current_test->name : "";
    const char *suite = criterion_current_test ? criterion_current_test->category : "";
    int len = snprintf(line, sizeof line, "%.60s/%.80s\t%.120s\t%.6g\t%.6g\t%zu\t%zu\n", suite, test, what, error,
                       bound, where, n);
    setvbuf(f, NULL, _IONBF, 0);
    fwrite(line, 1, (size_t)imin(len, (int)sizeof line - 1), f);
    fclose(f);
}
static bool verdict(bool ok, const char *msg) {
    const char *v = getenv("CHECK_VERBOSE");
    if (ok && v && *v == '1') fprintf(stderr, "%s\n", msg);
    return ok;
}

typedef struct {
    double err, max;
    size_t at;
} Worst;
/* max_i |got - want|, where a NaN on either side beats every number. */
static Worst worst(CheckView got, CheckView want, size_t n) {
    Worst w = {-1, 0, 0};
    for (size_t i = 0; i < n; i++) {
        double g = at(got, i), x = at(want, i), d = g == x ? 0 : fabs(g - x);
        if (fabs(x) > w.max) w.max = fabs(x);
        if (!(d <= w.err) && !isnan(w.err)) w.err = d, w.at = i;
    }
    return w;
}
static bool judge(char msg[512], const char *what, Worst w, CheckView got, CheckView want, size_t n, double bound,
                  const char *index) {
    cr_assert(n > 0, "%s: nothing to compare", what);
    snprintf(msg, 512, "%s: worst error %.3g at %s of %zu: got %.9g, want %.9g; bound %.3g", what, w.err, index, n,
             at(got, w.at), at(want, w.at), bound);
    check_log(what, w.err, bound, w.at, n);
    return verdict(w.err <= bound, msg);
}

bool check_close(char msg[512], const char *what, CheckView got, CheckView want, size_t n, double tol) {
    Worst w = worst(got, want, n);
    char index[32];
    snprintf(index, sizeof index, "%zu", w.at);
    return judge(msg, what, w, got, want, n, tol, index);
}
bool check_relative(char msg[512], const char *what, CheckView got, CheckView want, size_t n, double tol) {
    Worst w = worst(got, want, n);
    char index[32];
    snprintf(index, sizeof index, "%zu", w.at);
    return judge(msg, what, w, got, want, n, tol * w.max, index);
}
bool check_tensor(char msg[512], const char *what, Tensor got, Tensor want, double tol) {
    char a[64], b[64], index[96];
    bool same = got.rank == want.rank && !memcmp(got.n, want.n, sizeof(int) * (size_t)got.rank);
    cr_assert(same, "%s: shape %s, want %s", what, tensor_shape(got, a), tensor_shape(want, b));
    CheckView g = {got.p, got.dtype}, x = {want.p, want.dtype};
    size_t n = tensor_count(got);
    Worst w = worst(g, x, n);
    size_t rest = w.at, unit = n;
    int len = 0;
    for (int i = 0; i < got.rank; i++) {
        unit /= (size_t)got.n[i];
        len += snprintf(index + len, sizeof index - (size_t)len, "%c%zu", i ? ',' : '(', rest / unit);
        rest %= unit;
    }
    snprintf(index + len, sizeof index - (size_t)len, ")");
    return judge(msg, what, w, g, x, n, tol * w.max, index);
}
bool check_rms(char msg[512], const char *what, CheckView got, CheckView want, size_t n, double tol) {
    double d2 = 0, w2 = 0;
    for (size_t i = 0; i < n; i++) {
        double g = at(got, i), x = at(want, i);
        d2 += (g - x) * (g - x), w2 += x * x;
    }
    cr_assert(n > 0 && w2 > 0, "%s: nothing to compare with", what);
    Worst w = worst(got, want, n);
    double rms = sqrt(d2 / w2);
    snprintf(msg, 512, "%s: relative RMS error %.3g, bound %.3g; worst at %zu of %zu: got %.9g, want %.9g", what, rms,
             tol, w.at, n, at(got, w.at), at(want, w.at));
    check_log(what, rms, tol, w.at, n);
    return verdict(rms <= tol, msg);
}
double check_rounding(CheckView a, CheckView nudged, size_t n) {
    Worst w = worst(nudged, a, n);
    double unit = a.dtype == F64 ? 0x1p-53 : 0x1p-24;
    cr_assert(w.err > 0 && w.max > 0, "nothing was nudged");
    return fmin(16 * fmax(w.err, unit * w.max), 1e-3 * w.max);
}
void check_as_bf16(Tensor t) {
    for (size_t i = 0; i < tensor_count(t); i++) R(t)[i] = (real)bf16_to(bf16_from((float)R(t)[i]));
}

bool check_bytes(char msg[512], const char *what, const void *got, const void *want, size_t n) {
    const unsigned char *g = got, *w = want;
    for (size_t i = 0; i < n; i++)
        if (g[i] != w[i]) {
            snprintf(msg, 512, "%s: byte %zu of %zu: got 0x%02x, want 0x%02x", what, i, n, g[i], w[i]);
            return false;
        }
    return true;
}

/* ---- time ---- */
#ifdef __SANITIZE_ADDRESS__
enum { UNDER_ASAN = true };
#else
enum { UNDER_ASAN = false };
#endif
double check_slow(void) {
    const char *v = getenv("TEST_SLOW");
    return fmax(1, v ? atof(v) : 1) * (UNDER_ASAN ? 4 : 1);
}
bool check_sampled(int i) { return !UNDER_ASAN || i % 3 == 0; }
ReportHook(PRE_ALL)(struct criterion_test_set *all) {
    FOREACH_SET(struct criterion_suite_set * s, all->suites) {
        FOREACH_SET(struct criterion_test * t, s->tests) t->data->timeout *= check_slow();
    }
}

double check_normal(uint64_t key, uint64_t i) {
    enum { N = 4096 };
    static double table[N]; /* one test is one process */
    if (table[0] == 0)
        for (int k = N - 1; k >= 0; k--) table[k] = rng_normal(0x6e6f726d, (uint64_t)k);
    uint64_t h = rng_mix(key, i);
    return 0.8 * table[h % N] + 0.6 * table[h / N % N];
}

/* ---- files ---- */
/* One test is one process, which is what makes a static right here. */
static char dir[512];
static int rm(const char *path, const struct stat *st, int flag, struct FTW *at) {
    (void)st, (void)flag, (void)at;
    return remove(path);
}
static pid_t dir_owner;
static void dir_remove(void) {
    if (getpid() == dir_owner) nftw(dir, rm, 16, FTW_DEPTH | FTW_PHYS);
}
const char *check_dir(void) {
    if (*dir) return dir;
    const char *base = getenv("CHECK_TMP"); /* the runner's, which it removes whole */
    if (!base) base = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/kvsmith-test-XXXXXX", base ? base : "/tmp");
    cr_assert(mkdtemp(dir), "cannot make %s", dir);
    dir_owner = getpid();
    atexit(dir_remove);
    return dir;
}
char *check_path(const char *name) { return xformat("%s/%s", check_dir(), name); }
void check_write(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    cr_assert(f, "cannot write %s", path);
    size_t put = fwrite(bytes, 1, n, f);
    cr_assert(fclose(f) == 0 && put == n, "cannot write %s", path);
}
static char *slurp(FILE *f, size_t *n) {
    size_t cap = 4096, len = 0;
    char *p = xcalloc(cap + 1, 1);
    for (size_t got; (got = fread(p + len, 1, cap - len, f)) > 0;)
        if ((len += got) == cap) p = xrealloc(p, (cap *= 2) + 1, 1);
    p[len] = 0;
    fclose(f);
    if (n) *n = len;
    return p;
}
char *check_read(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    cr_assert(f, "cannot read %s", path);
    return slurp(f, n);
}
bool check_exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}
int check_entries(const char *path) {
    DIR *d = opendir(path);
    cr_assert(d, "cannot list %s", path);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(d);
    return n;
}

/* ---- running the program ---- */
Ran check_run_argv(const char *const argv[]) {
    const char *prog = argv[0];
    if (!strcmp(prog, "kvsmith")) {
        prog = getenv("KVSMITH");
        if (!prog) prog = KVSMITH_PATH;
    }
    FILE *out = tmpfile(), *err = tmpfile();
    cr_assert(out && err, "no temporary files");
    fflush(NULL);
    pid_t pid = fork();
    cr_assert(pid >= 0, "cannot fork");
    if (pid == 0) {
        int null = open("/dev/null", O_RDONLY);
        dup2(null, 0), dup2(fileno(out), 1), dup2(fileno(err), 2);
        execvp(prog, (char *const *)argv);
        fprintf(stderr, "cannot run %s\n", prog);
        _exit(127);
    }
    int st;
    cr_assert(waitpid(pid, &st, 0) == pid, "lost the child");
    Ran r = {.status = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st)};
    rewind(out), rewind(err);
    r.out = slurp(out, &r.out_n), r.err = slurp(err, &r.err_n);
    return r;
}
bool check_refused(char msg[512], Ran r, int status, const char *part) {
    const char *end = memchr(r.err, '\n', r.err_n);
    size_t chars = 0;
    for (size_t i = 0; i < r.err_n; i++) chars += ((unsigned char)r.err[i] & 0xc0) != 0x80;
    const char *why = r.status != status                   ? "exit status"
                      : r.out_n                            ? "something on stdout"
                      : !end || end + 1 != r.err + r.err_n ? "not one line"
                      : chars > 301                        ? "longer than 300 characters"
                      : part && !strstr(r.err, part)       ? "text missing"
                                                           : NULL;
    if (why)
        snprintf(msg, 512, "%s: status %d, want %d with '%s'; stderr: %.300s", why, r.status, status, part ? part : "",
                 r.err);
    return !why;
}
