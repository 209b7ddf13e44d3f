#include "plan.h"
#include "model/cost.h"
#include "train/feed.h"
#include "train/adapt/freeze.h"
#include "ops/file.h"

json_t *regions_json(const Regions *r) {
    json_t *j = json_object();
    for (int i = 0; i < r->n; i++)
        json_object_set_new(j, r->region[i].name, json_integer((json_int_t)r->region[i].bytes));
    json_object_set_new(j, "total", json_integer((json_int_t)r->total));
    return j;
}

/* 1234567 -> "1,234,567" */
static const char *plan_grouped(size_t v, char buf[32]) {
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%zu", v), at = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0) buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = 0;
    return buf;
}

static size_t trained(const Trainer *t) { return t->lora.n ? lora_params(&t->lora) : freeze_count(&t->model); }
const char *plan_trained(const Trainer *t, char buf[96]) {
    char some[32], all[32];
    size_t n = model_params(&t->model), of = trained(t);
    *buf = 0;
    if (of != n)
        snprintf(buf, 96, "trained %s of %s, %.1f %%", plan_grouped(of, some), plan_grouped(n, all),
                 100.0 * (double)of / (double)n);
    return buf;
}

/* Counted for a ring. The gradients of the last micro-batch are sent during its backward pass, which is two thirds of
 * it; at stage 2 those of every one. Weights are sent during the forward pass of the first one of the next step. */
typedef struct {
    double compute, gradients, weights, step; /* seconds */
    double tok_s, efficiency;                 /* of all ranks; of what they compute without any exchange */
} Times;
static Times times_of(const Trainer *t, const DistTraffic *x) {
    const DistCfg *c = &t->run->cfg->dist;
    int W = t->dist.world;
    double tokens = (double)t->cfg->train.batch * t->cfg->data.seq_len;
    Times y = {.compute = tokens / W * t->flops_per_token / c->flops,
               .gradients = (double)x->gradients / c->link + (double)x->gradient_hops * c->latency,
               .weights = (double)x->weights / c->link + (double)x->weight_hops * c->latency};
    double hides = y.compute * 2 / 3 / (t->dist.stage >= 2 ? 1 : t->dist.micros);
    y.step = y.compute + fmax(0, y.weights - y.compute / 3 / t->dist.micros) + fmax(0, y.gradients - hides);
    y.tok_s = tokens / y.step;
    y.efficiency = y.compute / y.step;
    return y;
}
static bool plan_timed(const Trainer *t) { return t->run->cfg->dist.flops > 0 && t->run->cfg->dist.link > 0; }

static json_t *ranks_json(const Trainer *t) {
    DistTraffic x = dist_traffic(&t->dist);
    json_t *j = json_pack("{s:i, s:i, s:I, s:I, s:I}", "ranks", t->dist.world, "stage", t->dist.stage, "sent_gradients",
                          (json_int_t)x.gradients, "sent_weights", (json_int_t)x.weights, "calls", (json_int_t)x.calls);
    if (!plan_timed(t)) return j;
    Times y = times_of(t, &x);
    json_object_set_new(j, "estimate",
                        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "compute_s", y.compute, "gradients_s", y.gradients,
                                  "weights_s", y.weights, "step_s", y.step, "tok_s", y.tok_s, "efficiency",
                                  y.efficiency));
    return j;
}

static void ranks_text(const Trainer *t, FILE *f) {
    static const char *const keeps[] = {"each keeps everything", "each keeps its part of the moments",
                                        "each keeps its part of moments and gradients"};
    DistTraffic x = dist_traffic(&t->dist);
    char a[32], b[32];
    fprintf(f, "ranks             %d, %d micro-batches each; stage %d: %s\n", t->dist.world, t->dist.micros,
            t->dist.stage, keeps[t->dist.stage]);
    fprintf(f, "a rank sends      %s bytes of gradients and %s of weights a step, in %lld calls\n",
            plan_grouped(x.gradients, a), plan_grouped(x.weights, b), (long long)x.calls);
    if (!plan_timed(t)) return;
    Times y = times_of(t, &x);
    fprintf(f,
            "estimate          %.4g s a step (compute %.4g, at the same time gradients %.4g, weights %.4g), %.4g "
            "tok/s, %.1f %% of compute alone\n                  at dist.flops %.3g, dist.link %.3g and dist.latency "
            "%.3g, with ring collectives\n",
            y.step, y.compute, y.gradients, y.weights, y.tok_s, 100 * y.efficiency, t->run->cfg->dist.flops,
            t->run->cfg->dist.link, t->run->cfg->dist.latency);
}

static json_t *stage_json(const Trainer *t, const Regions *r, const Passes *p) {
    const Config *c = t->cfg;
    Cost cost = cost_model(&t->model, c->data.seq_len);
    int64_t per_step = (int64_t)c->train.batch * c->data.seq_len;
    return json_pack("{s:I, s:I, s:f, s:I, s:I, s:I, s:f, s:o}", "params", (json_int_t)cost.params, "trained_params",
                     (json_int_t)trained(t), "flops_per_token", t->flops_per_token, "tokens_per_step",
                     (json_int_t)per_step, "steps", (json_int_t)c->train.steps, "tokens",
                     (json_int_t)(per_step * c->train.steps), "passes", p->passes, "memory", regions_json(r));
}

static void memory_line(FILE *f, const char *name, size_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    char a[32];
    double v = (double)bytes;
    int unit = 0;
    while (v >= 1024 && unit < 4) v /= 1024, unit++;
    fprintf(f, "  %-20s %20s %8.*f %s\n", name, plan_grouped(bytes, a), unit ? 2 : 0, v, units[unit]);
}
static void plan_stage_text(const Trainer *t, const Regions *r, const Passes *p, FILE *f) {
    const Config *c = t->cfg;
    Cost cost = cost_model(&t->model, c->data.seq_len);
    int64_t per_step = (int64_t)c->train.batch * c->data.seq_len;
    char a[32], b[32];
    fprintf(f, "parameters        %s\n", plan_grouped(cost.params, a));
    if (trained(t) != cost.params)
        fprintf(f, "trained           %s (%.1f %%)\n", plan_grouped(trained(t), a),
                100.0 * (double)trained(t) / (double)cost.params);
    fprintf(f, "tokens per step   %s = %d samples of %d, %d at once\n", plan_grouped((size_t)per_step, a),
            c->train.batch, c->data.seq_len, c->train.micro_batch);
    fprintf(f, "tokens            %s in %s steps\n", plan_grouped((size_t)(per_step * c->train.steps), a),
            plan_grouped((size_t)c->train.steps, b));
    if (p->passes > 0) {
        char say[160];
        feed_passes_say(p, say);
        fprintf(f, "passes            %s\n", say);
    }
    fprintf(f,
            "FLOPs per token   %s forward and backward: 3 (2 N + attention), N = %s elements of matrices;\n            "
            "      attention at seq_len tokens, causal and windows counted exactly\n",
            plan_grouped((size_t)cost.itemised, a), plan_grouped(cost.matmul, b));
    if (t->teacher.on)
        fprintf(f, "teacher           %s FLOPs per token more, forward: 2 N + attention of its own\n",
                plan_grouped((size_t)t->teacher.flops, a));
    if (t->dist.world > 1) ranks_text(t, f);
    fprintf(f, t->dist.world > 1 ? "memory of rank 0, which needs most, bytes\n" : "memory, bytes\n");
    for (int i = 0; i < r->n; i++) {
        const char *name = r->region[i].name;
        memory_line(f, strcmp(name, "tokens") ? name : "ids of the text", r->region[i].bytes);
    }
    memory_line(f, "total", r->total);
}

bool plan_print(Trainer *t, Config *run, bool json, FILE *f, Err *e) {
    json_t *stages = json_array();
    Regions most = {0};
    TrainRun planned;
    bool ok = true;
    train_run_begin(&planned, run);
    for (int k = 0; ok && k < config_stages(run); k++) {
        Regions r;
        if (!(ok = trainer_open(t, &planned, k, true, e))) break;
        trainer_regions(t, false, &r);
        if (r.total > most.total) regions_copy(&most, &r);
        Passes passes;
        ok = feed_passes(t, (int64_t)t->cfg->train.batch * t->cfg->train.steps, &passes, e);
        json_t *j = stage_json(t, &r, &passes);
        if (t->name) json_object_set_new(j, "name", json_string(t->name));
        if (t->dist.world > 1) json_object_set_new(j, "dist", ranks_json(t));
        json_array_append_new(stages, j);
        if (t->name && !json) fprintf(f, "%sstage %s\n", k ? "\n" : "", t->name);
        if (ok && !json) plan_stage_text(t, &r, &passes, f);
        if (ok && !run->quiet) feed_warn(t, &passes);
        regions_free(&r);
        trainer_close(t);
    }
    if (ok && json && run->nstages) {
        int64_t samples, tokens;
        config_position(run, run->train.steps, &samples, &tokens);
        json_t *j =
            json_pack("{s:O, s:I, s:I, s:o, s:O}", "params", json_object_get(json_array_get(stages, 0), "params"),
                      "steps", (json_int_t)run->train.steps, "tokens", (json_int_t)tokens, "memory",
                      regions_json(&most), "stages", stages);
        json_dumpf(j, f, JSON_COMPACT);
        json_decref(j);
    } else if (ok && json) {
        json_dumpf(json_array_get(stages, 0), f, JSON_COMPACT);
    }
    if (ok && json) fputc('\n', f);
    json_decref(stages);
    regions_free(&most);
    train_run_end(&planned);
    t->run = NULL; /* it named `planned` */
    return ok;
}
