/* test_kvquant.c: pieces of KVQuant: how far a number may be off, a number apart, keys that are turned back, numbers
 * that are not finite; what the codecs' settings say. The bytes are compared with NumPy's in test_blocks.c. */
#include <math.h>
#include "layers/cache/cache.h"
#include "layers/cache/codec.h"
#include "tests/lib/rig.h"

enum { N = 64 };
static const char *const names[] = {"kvquant4", "kvquant3", "kvquant2"};
static RowCodec codec_of(const char *text) {
    RowCodec c;
    Err e = {0};
    cr_assert(codec_parse(text, &c, &e), "%s", e.msg);
    return c;
}
static void coded(const RowCodec *c, const real *x, real *y, int n) {
    char *piece = xcalloc(c->piece_bytes(c, n), 1);
    c->piece_encode(c, piece, x, n), c->piece_decode(c, y, piece, n);
    free(piece);
}
/* The largest gap between two levels, and from an outer level to the end of the range, in units of the scale. */
static double widest(const RowCodec *c) {
    const int top = (1 << c->bits) - 1;
    double gap = 2 * (256 - c->levels[top]);
    for (int q = 0; q < top; q++) gap = fmax(gap, c->levels[q + 1] - c->levels[q]);
    return gap / 256;
}

/* Half the widest gap of levels, and what rounding of scale (1/128), zero (1/128) and the number apart (1/256 of it)
 * adds. Widths of one group and of several, the last shorter; numbers near zero and far from it. */
Test(kvquant, no_number_is_off_by_more_than_its_levels_allow) {
    for (int k = 0; k < 3; k++)
        for (int draw = 0; draw < 400; draw++) {
            char text[60];
            snprintf(text, sizeof text, "%s:group=%d,apart=%s", names[k], draw % 2 ? 32 : 64,
                     draw / 2 % 2 ? "yes" : "no");
            const RowCodec c = codec_of(text);
            const int n = 1 + draw * 7 % 130;
            real x[130], y[130];
            const double mean = (double[]){0, 3, -40, 1e4}[draw % 4], size = (double[]){1, 1e-6, 1e6}[draw % 3];
            for (int i = 0; i < n; i++) x[i] = (real)(size * (mean + rng_normal((uint64_t)draw, (uint64_t)i)));
            coded(&c, x, y, n);
            for (int at = 0; at < n; at += c.group) {
                const int m = imin(c.group, n - at);
                double least = INFINITY, most = -INFINITY, far = 0;
                for (int i = at; i < at + m; i++)
                    least = fmin(least, (double)x[i]), most = fmax(most, (double)x[i]),
                    far = fmax(far, fabs((double)x[i]));
                const double s = fmax((most - least) / 2, far / 128) * (1 + 1.0 / 128),
                             bound = s * (widest(&c) / 2 + 1.0 / 128) + far / 256;
                for (int i = at; i < at + m; i++)
                    cr_assert(fabs((double)(x[i] - y[i])) <= bound, "%s, draw %d: %g became %g, bound %g", text, draw,
                              (double)x[i], (double)y[i], bound);
            }
        }
}
/* One number a hundred times the others costs them nothing where it is apart, and all their bits where it is not. */
Test(kvquant, one_number_apart_leaves_the_scale_to_the_others) {
    for (int k = 0; k < 3; k++)
        for (int draw = 0; draw < 20; draw++) {
            char text[60];
            real x[N], y[N];
            double off[2];
            const int far = draw * 13 % N;
            for (int i = 0; i < N; i++) x[i] = (real)(2 * rng_uniform((uint64_t)draw, (uint64_t)i) - 1);
            x[far] = draw % 2 ? 100 : -100;
            for (int apart = 0; apart < 2; apart++) {
                snprintf(text, sizeof text, "%s:apart=%s", names[k], apart ? "yes" : "no");
                const RowCodec c = codec_of(text);
                coded(&c, x, y, N);
                off[apart] = 0;
                for (int i = 0; i < N; i++)
                    if (i != far) off[apart] = fmax(off[apart], fabs((double)(x[i] - y[i])));
                cr_assert(!apart || y[far] == x[far], "%s: %g became %g", text, (double)x[far], (double)y[far]);
            }
            const RowCodec c = codec_of(names[k]);
            cr_assert(off[1] < widest(&c) / 2 + 1.0 / 64 && off[0] > 2 * off[1],
                      "%s: %g with a number apart, %g without", names[k], off[1], off[0]);
        }
}
Test(kvquant, what_is_not_finite_does_not_come_back_finite) {
    static const double odd[] = {NAN, INFINITY, -INFINITY, 0x1p121};
    for (int k = 0; k < 3; k++)
        for (int o = 0; o < 4; o++)
            for (int at = 0; at < N; at += 9) {
                const RowCodec c = codec_of(names[k]);
                real x[N], y[N];
                for (int i = 0; i < N; i++) x[i] = (real)i;
                x[at] = (real)odd[o];
                coded(&c, x, y, N);
                for (int i = 0; i < N; i++)
                    cr_assert(isnan((double)y[i]), "%s: %g at %d gave %g", names[k], odd[o], at, (double)y[i]);
            }
}
Test(kvquant, zeros_and_equal_numbers) {
    for (int k = 0; k < 3; k++)
        for (int n = 1; n <= N; n++) {
            const RowCodec c = codec_of(names[k]);
            real x[N], y[N];
            for (int i = 0; i < n; i++) x[i] = 0;
            coded(&c, x, y, n);
            for (int i = 0; i < n; i++) cr_assert(y[i] == 0, "%s: %g of %d zeros", names[k], (double)y[i], n);
            for (int i = 0; i < n; i++) x[i] = -7;
            coded(&c, x, y, n);
            for (int i = 0; i < n; i++)
                cr_assert(fabs((double)y[i] + 7) < 7.0 / 128, "%s: %g of %d equal numbers", names[k], (double)y[i], n);
        }
}

/* Keys that are one vector, rotated by their positions: before the rotation each element is the same in all rows. A
 * cache whose keys are turned back gives them as they were but for 1 in 128; one that is not told so does not. */
Test(kvquant, keys_are_stored_as_before_their_rotation, .timeout = 60) {
    enum { D = 16, ROWS = 128 };
    for (int draw = 0; draw < 8; draw++) {
        double worst[2] = {0, 0};
        for (int turned = 0; turned < 2; turned++) {
            const RowCodec codec = codec_of(turned ? "kvquant4:turned=yes" : "kvquant4:turned=no");
            const KvShape shape = {.lanes = 1, .kdim = D, .vdim = 4, .codec = &codec};
            Rope turn = {.n = draw % 2 ? D : D - 6,
                         .at = draw % 2 ? 0 : draw / 2 % 2 * 6,
                         .interleaved = draw / 4,
                         .factor = 1};
            Cache c;
            Rig g;
            Err e = {0};
            for (int i = 0; i < turn.n / 2; i++) turn.f[i] = pow(1000, -2.0 * i / turn.n);
            rig_open(&g, rig_first(), 1, 1 << 20);
            cr_assert(kv_open(&c, &shape, 1, 1, 2 * ROWS, ROWS, 0, true, false, &e), "%s", e.msg);
            kv_turns(kv_slot(&c, 0), &turn);
            real key[ROWS][D];
            for (int j = 0; j < ROWS; j++) {
                for (int k = 0; k < D; k++) key[j][k] = (real)rng_normal(3, (uint64_t)k);
                for (int i = 0; i < turn.n / 2; i++) {
                    const int a = turn.at + (turn.interleaved ? 2 * i : i), b = a + (turn.interleaved ? 1 : turn.n / 2);
                    const double x = (double)key[j][a], y = (double)key[j][b], at = j * turn.f[i];
                    key[j][a] = (real)(x * cos(at) - y * sin(at)), key[j][b] = (real)(x * sin(at) + y * cos(at));
                }
            }
            for (int at = 0; at < ROWS; at += N) {
                int off[2] = {0, N}, seq = 0, of[N] = {0}, pos[N], first[N];
                uint64_t id = 0;
                for (int i = 0; i < N; i++) pos[i] = at + i, first[i] = at ? -1 : 0;
                const Batch b = {1, N, off, &seq, of, pos, first, &id, at > 0, NULL};
                Mark mark = arena_mark(&g.mem);
                Kv kv = {.s = shape, .k = EMPTY(&g, "k", N, 1, D), .v = EMPTY(&g, "v", N, 1, 4)};
                memcpy(kv.k.p, key[at], N * sizeof key[0]);
                memset(kv.v.p, 0, tensor_bytes(kv.v));
                g.run.batch = &b;
                cr_assert(kv_begin(&c, &b, &e), "%s", e.msg);
                rig_use(&g, (Table){"baseline", &ops_cpu_baseline, NULL}, 1);
                CALL(&g, (kv_append(&g.run, kv_slot(&c, 0), &kv, NULL), 0));
                kv_end(&c, &b, NULL);
                arena_release(&g.mem, mark);
            }
            /* What attention reads, element by element. */
            const Lanes *t = kv_lanes(kv_slot(&c, 0));
            for (int block = 0; block < 2; block++) {
                const char *in = lanes_block(t, t->table[block]);
                real panel[D][N];
                for (int k = 0; k < D; k++)
                    codec.piece_decode(&codec, panel[k], in + (size_t)k * codec.piece_bytes(&codec, N), N);
                if (t->turns) rows_turn(t->turns, panel[0], 1);
                cr_assert((t->turns != NULL) == turned);
                for (int k = 0; k < D; k++)
                    for (int j = 0; j < N; j++)
                        worst[turned] = fmax(worst[turned], fabs((double)(panel[k][j] - key[block * N + j][k])));
            }
            kv_close(&c);
            rig_close(&g);
        }
        cr_assert(worst[1] < 0.06 && worst[0] > 2 * worst[1], "draw %d: off by %g turned, %g not", draw, worst[1],
                  worst[0]);
    }
}

Test(kvquant, settings) {
    Err e = {0};
    char text[CODEC_TEXT_MAX];
    RowCodec c = codec_of("kvquant2:turned=no,group=32,apart=no");
    cr_assert(!c.turned && !c.apart && c.group == 32);
    codec_settings(&c, ',', text);
    cr_assert_str_eq(text, "group=32,apart=no,turned=no");
    cr_assert(!codec_parse("kvquant2:rotate=yes", &c, &e));
    cr_assert_str_eq(
        e.msg, "--cache-dtype kvquant2: expected group=32, group=64, apart=yes or apart=no, turned=yes or turned=no, "
               "got 'rotate=yes'");
    for (int i = 0; codec_at(i); i++) { /* what is written of settings is read as the same */
        char whole[200];
        RowCodec again;
        codec_settings(codec_at(i), ',', text);
        snprintf(whole, sizeof whole, "%s%s%s", codec_at(i)->name, *text ? ":" : "", text);
        cr_assert(codec_parse(whole, &again, &e), "%s", e.msg);
        cr_assert(again.group == codec_at(i)->group && again.rotate == codec_at(i)->rotate &&
                  again.apart == codec_at(i)->apart && again.turned == codec_at(i)->turned);
    }
}
