/* test_moe_model.c: mixtures of experts as parts of models: costs, names in files, settings, the optimizer. */
#include "../layers/ffn/ffn.h"
#include "../model/cost.h"
#include "../model/hf.h"
#include "../model/safetensors.h"
#include "../optim/step.h"
#include "../optim/clip.h"
#include "../ops/device.h"
#include "zoo.h"
#include <sys/stat.h>

static int animal(const char *name) {
    int i = 0;
    while (i < zoo_count() && strcmp(zoo[i].name, name)) i++;
    cr_assert(i < zoo_count(), "no animal %s", name);
    return i;
}
Test(moe, a_token_costs_its_own_experts) {
    ModelCfg cfg;
    Model m;
    Device *dev;
    zoo_open(&zoo[animal("mixture, sigmoid, groups, shared")], &cfg, &m, &dev, (ModelOpts){0});
    Cost c = cost_model(&m, 10);
    size_t d = 12, F = 5, expert = 3 * d * F, rest = 11 * d + d + 2 * (2 * d + 4 * d * d), router = 8 * d, bias = 8;
    cr_assert_eq(c.params, rest + 2 * (router + bias + 8 * expert + 3 * d * 2 * F));
    cr_assert_eq(c.active, rest + 2 * (router + bias + 3 * expert + 3 * d * 2 * F));
    cr_assert_eq(c.matmul, c.active - 2 * bias - 5 * d);
    cr_assert(c.all_half == 6.0 * (double)c.active + 6.0 * 2 * 12 * 10);
    zoo_close(&cfg, &m, dev);
    zoo_open(&zoo[0], &cfg, &m, &dev, (ModelOpts){0});
    c = cost_model(&m, 10);
    cr_assert_eq(c.active, c.params);
    zoo_close(&cfg, &m, dev);
}

/* Files hold the names that DeepSeek-V3 has, and give the same model back. */
Test(moe, saved_and_loaded) {
    ModelCfg cfg, cfg2;
    Model m, back;
    Device *dev;
    Err e = {0};
    St st;
    char *dir = check_path("mixture");
    const Animal *a = &zoo[animal("mixture, sigmoid, groups, shared")];
    zoo_open(a, &cfg, &m, &dev, (ModelOpts){.max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS});
    cr_assert(mkdir(dir, 0777) == 0 && hf_save(dir, &m, NULL, REAL, &e), "%s", e.msg);
    cr_assert(st_open_dir(&st, dir, &e), "%s", e.msg);
    const char *names[] = {"gate.weight", "gate.e_score_correction_bias", "experts.7.down_proj.weight",
                           "shared_experts.up_proj.weight"};
    for (int i = 0; i < 4; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.1.mlp.%s", names[i]);
        cr_assert(st_find(&st, name), "no %s", name);
    }
    st_close(&st);
    cr_assert(hf_config_read(dir, &cfg2, &e), "%s", e.msg);
    cr_assert(model_open(&back, dev, &cfg2, (ModelOpts){.max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS}, &e) &&
                  hf_load(dir, &back, &e),
              "%s", e.msg);
    Pass p;
    real nll[ZOO_ROWS], again[ZOO_ROWS];
    zoo_whole(&p, cfg.vocab);
    model_loss(&m, &p.b, p.tok, p.tgt, nll);
    model_loss(&back, &p.b, p.tok, p.tgt, again);
    CHECK_BYTES("losses", again, nll, sizeof(real) * (size_t)p.b.N);
    model_close(&back);
    model_cfg_free(&cfg2);
    zoo_close(&cfg, &m, dev);
    free(dir);
}

Test(moe, refused_settings) {
    static const struct {
        const char *settings, *part;
    } bad[] = {
        {"experts: 4, top_k: 5, hidden: 8", "top_k: 5 is more than experts, 4"},
        {"experts: 6, top_k: 2, hidden: 8, groups: 4", "groups: 4 does not divide experts, 6"},
        {"experts: 6, top_k: 2, hidden: 8, groups: 3, top_groups: 4", "top_groups: 4 is more than groups, 3"},
        {"experts: 6, top_k: 3, hidden: 8, groups: 3, top_groups: 1", "top_k: 3 is more than the 2 experts"},
        {"experts: 4, top_k: 2, hidden: 0", "hidden"},
        {"experts: 0, top_k: 1, hidden: 8", "experts"},
        {"experts: 4, top_k: 0, hidden: 8", "top_k"},
        {"experts: 600, top_k: 1, hidden: 8", "experts"},
        {"experts: 4, hidden: 8", "top_k: required"},
        {"experts: 4, top_k: 2, hidden: 8, router: tanh", "router"},
        {"experts: 4, top_k: 2, hidden: 8, scale: 0", "scale"},
        {"experts: 4, top_k: 2, hidden: 8, shared: -1", "shared"},
        {"experts: 4, top_k: 2, hidden: 1048576, shared: 2", "shared: 2 experts of hidden 1048576"},
        {"experts: 4, top_k: 2, hidden: 8, expert: 3", "did you mean experts?"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *text = xformat("model: {d_model: 32, layers: 2, max_positions: 8, kinds: {a: {mixer: gqa, heads: 2}}, "
                             "ffn: {kind: moe, %s}}",
                             bad[i].settings);
        Err e = {0};
        Config *c = xcalloc(1, sizeof *c);
        cr_assert(!config_parse(c, text, strlen(text), "x.yaml", 0, NULL, &e), "%s", bad[i].settings);
        cr_assert(e.status == EXIT_INPUT && strstr(e.msg, bad[i].part) && strstr(e.msg, "model.ffn"), "%s: %s",
                  bad[i].settings, e.msg);
        free(c);
        free(text);
    }
}

/* The optimizer's side: a step of fixed size against the sign, whatever the clipping, the learning rate and the size;
 * zero stays; it counts in no norm; training from a skewed state reaches the whole model. */
Test(moe, balancing_is_no_gradient) {
    real w[PARAM_ROLES][5] = {{1, 2, 3, -4, 5}, {1000, -1, 0, (real)0.125, -30}, {0}, {0}},
         u[PARAM_ROLES][2] = {{1, 1}, {3, 4}, {0}, {0}};
    Params s = {0};
    Device *dev;
    Err e = {0};
    Arena scratch = {0};
    for (int role = 0; role < PARAM_ROLES; role++) {
        Fields f = params_visitor(&s, (ParamRole)role);
        Tensor bias = {.p = w[role]}, plain = {.p = u[role]};
        field(&f, &bias, "bias", FIELD_BALANCE, 1, 5); /* rank 2, and still not decayed */
        field(&f, &plain, "plain", 0, 2);
    }
    params_check(&s, NULL);
    cr_assert(!param_decays(&s.p[0]));
    cr_assert(device_open(&dev, "cpu", 1, &e) && arena_open(&scratch, "scratch", 1 << 16, true, &e), "%s", e.msg);
    Run run = run_make(dev, &scratch);
    Clip clip = clip_norm(&run, &s, 1);
    cr_assert(fabs(clip.norm - 5) < 1e-12, "norm %g", clip.norm);
    AdamwCfg a = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.5, .balance = 0.25};
    for (int t = 1; t <= 2; t++) optimizer_step(&run, &s, &(OptimizerCfg){.adamw = a}, 1e-3, clip.scale, t);
    const real want[] = {(real)0.5, (real)2.5, 3, (real)-4.5, (real)5.5};
    CHECK_BYTES("bias", w[0], want, sizeof want);
    cr_assert(u[0][0] < 1 && u[0][0] > (real)0.99);
    params_free(&s);
    arena_close(&scratch);
    device_close(dev);
}
