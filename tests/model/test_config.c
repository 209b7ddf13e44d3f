/* Settings: what is refused and how, what defaults are, that texts read back to what they say. */
#include "tests/lib/check.h"
#include "model/config/config_keys.h"

#define MODEL "model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {kind: swiglu, hidden: 64}}\n"
static const char small[] = MODEL;

/* Config is large; one of each on the heap would be lost by a failed assertion anyway. */
static Config one, two;

static bool parse(Config *c, const char *text, const char *override, Err *e) {
    char *over[] = {(char *) override};
    return config_parse(c, text, strlen(text), "run.yaml", override ? 1 : 0, over, e);
}
/* The rule of errors: status 2, one line of at most 300 characters. */
static void refused(const char *input, bool ok, const Err *e, const char *says) {
    cr_assert(!ok, "accepted: %.200s", input);
    cr_assert_eq(e->status, EXIT_INPUT, "%.200s: status %d, %s", input, e->status, e->msg);
    size_t n = strlen(e->msg);
    cr_assert(n > 0 && n <= 300 && !strpbrk(e->msg, "\n\r\t"), "%.200s: '%s'", input, e->msg);
    cr_assert(strstr(e->msg, says), "%.200s\n  says     %s\n  expected %s", input, e->msg, says);
}
static void is_clean(const Config *c) {
    static const Config zero;
    CHECK_BYTES("after a failure", c, &zero, sizeof zero);
}

/* ---- refusals ------------------------------------------------------------------------------------------------ */

static const struct {
    const char *text, *says;
} files[] = {
    /* names */
    {"modle: {}\n" MODEL, "run.yaml:1: modle: unknown key; did you mean model?"},
    {MODEL "train:\n  stepz: 3\n", "run.yaml:3: train.stepz: unknown key; did you mean train.steps?"},
    {MODEL "train: {qqqqqqqqqqq: 3}", "unknown key; known: steps, max_seconds"},
    {MODEL "tokens: [{name: ramp}]", "run.yaml:2: tokens: unknown key; known: run, model, init_from, init_change, "
                                     "teacher, lora, stages, data, train, optim, dist"},
    {MODEL "pupil: {path: x}", "pupil: unknown key"},
    {MODEL "optim: {moment_dtype: f32}", "optim.moment_dtype: unknown key"},
    {"model:\n  d_model: 32\n  layers: 2\n  ffn: {kind: swiglu, hidden: 8}\n  kinds:\n    local: {mixer: gqa, heads: "
     "2,\n"
     "      widow: 3}\n",
     "run.yaml:7: model.kinds.local.widow: unknown key; did you mean model.kinds.local.window?"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2, rope: {tetha: 3}}}}",
     "model.kinds.a.rope.tetha: unknown key; did you mean model.kinds.a.rope.theta?"},
    {MODEL "data: {train: [{path: x, wait: 2}]}", "data.train.0.wait: unknown key; known: path, weight"},
    {MODEL "data: {train: [{path: x, weight: 2}, y]}", "data.train.1: has not a weight, but the first has one"},
    {MODEL "data: {train: [x, {path: y, weight: 2}]}", "data.train.1: has a weight, but the first has none"},
    {MODEL "data: {train: [{path: x, weight: -1}]}", "data.train.0.weight: expected a number from 0 to 1000000"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqqa, heads: 2}}}", "unknown name 'gqqa'; did you mean gqa?"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {heads: 2}}}", "model.kinds.a.mixer: required"},
    {"model: {d_model: 32, layers: 2, kinds: {a b: {mixer: gqa, heads: 2}}}", "the name of a kind"},
    {"model: {d_model: 32, layers: 2, kinds: {a.b: {mixer: gqa, heads: 2}}}", "the name of a kind"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {kind: swigul, hidden: 8}}",
     "model.ffn.kind: unknown name 'swigul'; did you mean swiglu?"},
    {"model: {d_model: 32, layers: 2, kinds: {loc: {mixer: gqa, heads: 2}}, pattern: [loc, lok]}",
     "model.pattern: unknown name 'lok'; did you mean loc?"},
    /* missing */
    {"", "model: required"},
    {"run:\n", "model: required"},
    {"model: {layers: 2}", "run.yaml:1: model.d_model: required"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa}}}", "model.kinds.a.heads: required"},
    {"model: {d_model: 32, layers: 2, pattern: [gqa]}", "model.kinds.gqa.heads: required"},
    {"model: {d_model: 32, layers: 2}", "model.pattern: required"},
    {"model: {d_model: 8, layers: 2, kinds: {a: {mixer: gqa, heads: 2}, b: {mixer: gqa, heads: 2}}, ffn: {kind: "
     "swiglu, "
     "hidden: 8}}",
     "model.pattern: required"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}}", "model.ffn: required"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {hidden: 3}}",
     "model.ffn.kind: required"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2, rope_dims: 5}}, ffn: {kind: gelu, hidden: 8}}",
     "rope_dims: expected an even number up to head_dim (16), got 5"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2, rope_dims: 18}}, ffn: {kind: gelu, hidden: 8}}",
     "rope_dims: expected an even number up to head_dim (16), got 18"},
    {"model: {d_model: 1026, layers: 2, kinds: {a: {mixer: gqa, heads: 1, rope: none, qk_norm: true}}, ffn: {kind: "
     "gelu, "
     "hidden: 8}}",
     "head_dim: with qk_norm expected at most 1024, got 1026"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2, rope: none, rope_dims: 4}}, ffn: {kind: gelu, "
     "hidden: 8}}",
     "rope_dims: expected 0 without a rotation"},
    {"model: {d_model: 32, layers: 2, norm_place: post, parallel: true, kinds: {a: {mixer: gqa, heads: 2}}, ffn: "
     "{kind: "
     "gelu, hidden: 8}}",
     "model.norm_place: post and both need parallel: false and norm: rms, got parallel: true"},
    {"model: {d_model: 32, layers: 2, norm_place: both, norm: layer, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {kind: "
     "gelu, hidden: 8}}",
     "model.norm_place: post and both need parallel: false and norm: rms, got norm: layer"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2, qk_norm: true, qk_norm_wide: true}}, ffn: "
     "{kind: geglu, hidden: 8}}",
     "qk_norm_wide: it is another norm in the place of qk_norm's; set one of them"},
    {"model: {d_model: 32, layers: 2, norm: group, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {kind: gelu, hidden: 8}}",
     "model.norm"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: [{kind: swiglu}]}",
     "model.ffn.0.hidden: required"},
    /* wrong type */
    {"[]", "expected a map of settings, got a list"},
    {"text", "expected a map of settings, got a plain value"},
    {MODEL "train: 3", "run.yaml:2: train: expected a map of settings, got a plain value"},
    {MODEL "train: [1]", "train: expected a map of settings, got a list"},
    {"model: null", "model.d_model: required"},
    {MODEL "train: {steps: [3]}", "train.steps: expected a whole number from 1 to 1000000000000, got a list"},
    {MODEL "train: {steps: \"3\"}", "train.steps: expected a whole number from 1 to 1000000000000, got \"3\""},
    {MODEL "train: {steps: null}", "got null"},
    {MODEL "train: {keep_best: yes}", "train.keep_best: expected true or false, got yes"},
    {MODEL "train: {keep_best: 1}", "expected true or false, got 1"},
    {MODEL "run: {dir: {a: b}}", "run.dir: expected text, got a map"},
    {MODEL "run: {dir: \"a\\x07b\"}", "run.dir: text contains the control character 7"},
    {MODEL "run: {device: gpu}", "run.device: expected one of auto, cpu, cuda, got gpu"},
    {MODEL "data: {train: {file: x}}", "data.train.file: unknown key"},
    {MODEL "data: {train: []}", "data.train: 0 files"},
    {MODEL "data: {train: ['']}", "data.train.0: expected the path"},
    {MODEL "data: {train: [[x]]}", "data.train.0: expected a map"},
    {"model: {d_model: 32, layers: 2, kinds: [a]}", "model.kinds: expected a map of kinds, got a list"},
    {"model: {d_model: 32, layers: 2, kinds: {a: gqa}}", "model.kinds.a: expected a map {mixer: NAME, settings...}"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: [gqa]}}}", "model.kinds.a.mixer: expected a name, got a list"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, pattern: {a: b}}",
     "model.pattern: expected a"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, pattern: []}", "model.pattern: expected a"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, pattern: [[a]]}", "model.pattern: expected"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, kv_from: [1]}",
     "model.kv_from: expected a map"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: swiglu}", "model.ffn: expected {kind"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: []}", "model.ffn: expected {kind"},
    {"model: {d_model: 32, layers: 3, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {d: {kind: swiglu, hidden: 8}, e: "
     "{kind: gelu, hidden: 6}}}",
     "model.ffn_pattern: required"},
    {"model: {d_model: 32, layers: 3, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {d: {kind: swiglu, hidden: 8}, e: "
     "{kind: gelu, hidden: 6}}, ffn_pattern: [d, x]}",
     "model.ffn_pattern: unknown name 'x'"},
    {"model: {d_model: 32, layers: 3, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {d: {kind: swiglu, hidden: 8}, e: "
     "{kind: gelu, hidden: 6}}, ffn_pattern: []}",
     "model.ffn_pattern: expected a list of 1 to 256"},
    {"model: {d_model: 32, layers: 3, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {d: {kind: swiglu, hidden: 8}, e: "
     "{kind: gelu, hidden: 6}}, ffn_pattern: [[d]]}",
     "model.ffn_pattern: expected names of model.ffn"},
    {"model: {d_model: 32, layers: 3, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {kind: swiglu, hidden: 8}, ffn_pattern: "
     "[swiglu]}",
     "model.ffn gives no names"},
    {"model: {d_model: 32, layers: 3, kinds: {a: {mixer: gqa, heads: 2}}, ffn: [{kind: swiglu, hidden: 8}, none], "
     "ffn_pattern: [none]}",
     "model.ffn gives no names"},
    {"model: {d_model: 32, layers: 3, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {d: {kind: swiglu}}, ffn_pattern: [d]}",
     "model.ffn.d.hidden: required"},
    {"model: {d_model: 32, layers: 3, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {d: {kind: none, hidden: 3}}, "
     "ffn_pattern: [d]}",
     "model.ffn.d.hidden: unknown"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: [x]}", "model.ffn.0: expected {kind"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2, rope: {type: longrope, short_factor: 3}}}}",
     "rope.short_factor: expected a list of numbers, got 3"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2, rope: {short_factor: [1, x]}}}}",
     "rope.short_factor.1: expected a number"},
    {MODEL "data: {seq_len: 1048576}\ntrain: {batch: 32, micro_batch: 32}",
     "run.yaml:3: train.micro_batch: 32 samples of data"},
    /* broken YAML and what we do not take */
    {MODEL "run: {dir: x", "run.yaml:3: broken YAML"},
    {MODEL "run:\n  dir: x\n seed: 1\n", "run.yaml:4: broken YAML"},
    {MODEL "\trun: 1",
     "run.yaml:2: broken YAML: while scanning for the next token, found character that cannot start any "
     "token; a tab is here; YAML indents with spaces only"},
    {MODEL "run:\n  seed:1\n  dir: x\n", "not allowed in this context; a space must follow the ':' of a key"},
    {"model: {d_model:32, layers: 2}", "model.d_model:32: unknown key; a space must follow the ':'"},
    {"base: {}\nrows: []\n", "run.yaml: this is a comparison; use kvsmith compare run.yaml"},
    {"{\"architectures\": [\"x\"], \"model_type\": \"llama\"}", "this is a model's config.json, not settings"},
    {MODEL "run: {dir: \"x}", "broken YAML"},
    {MODEL "run: {dir: @x}", "broken YAML"},
    {MODEL "run: {seed: 1, seed: 1}", "run.yaml:2: seed: duplicate key"},
    {MODEL MODEL, "run.yaml:2: model: duplicate key"},
    {MODEL "run: &a {dir: x}", "anchors (&name)"},
    {MODEL "run: {dir: &a x}", "run.yaml:2: anchors (&name)"},
    {MODEL "data: {train: &a [*a]}", "anchors (&name)"},
    {MODEL "run: {dir: *a}", "aliases (*name)"},
    {MODEL "run: !!map {dir: x}", "tags (!name)"},
    {MODEL "run: {seed: !!int 1}", "tags (!name)"},
    {MODEL "run: ! {seed: 1}", "tags (!name)"},
    {MODEL "---\nrun: {seed: 2}\n", "a second document"},
    {"%YAML 1.1\n---\n" MODEL, "directives"},
    {"%TAG ! tag:x,2000:\n---\n" MODEL, "directives"},
    {MODEL "? [a, b]\n: c\n", "a key must be a single word"},
    {MODEL "? {a: b}\n: c\n", "a key must be a single word"},
    {MODEL "<<: {run: x}\n", "<<: unknown key"},
    {MODEL "run: {dir: \"a\\0b\"}", "run.yaml:2: text contains a NUL byte"},
    {MODEL "run: {dir: \xff}", "is not UTF-8; expected UTF-8 text"},
    {MODEL "run: {dir: \xc0\xaf}", "is not UTF-8"},
    {MODEL "run: {dir: \xed\xa0\x80}", "is not UTF-8"},
    {MODEL "run: {dir: \xf4\x90\x80\x80}", "is not UTF-8"},
    {MODEL "run: {dir: \xe2\x82", "is not UTF-8"},
    {MODEL "run: {dir: \x01}", "run.yaml:2: broken YAML: control characters are not allowed"},
};
ParameterizedTestParameters(config, refuses_file) {
    static size_t index[sizeof files / sizeof *files];
    for (size_t i = 0; i < sizeof index / sizeof *index; i++) index[i] = i;
    return cr_make_param_array(size_t, index, sizeof index / sizeof *index);
}
ParameterizedTest(size_t *i, config, refuses_file) {
    Err e = {0};
    refused(files[*i].text, parse(&one, files[*i].text, NULL, &e), &e, files[*i].says);
    is_clean(&one);
}

static const struct {
    const char *override, *says;
} overrides[] = {
    {"train.stepps=3", "command line: train.stepps: unknown key; did you mean train.steps?"},
    {"nothing", "command line: expected key=value, got 'nothing'"},
    {"=3", "expected key=value"},
    {"", "expected key=value"},
    {"train..steps=3", "an empty name in the key"},
    {".train=3", "an empty name in the key"},
    {"train.=3", "an empty name in the key"},
    {"train.steps.x=3", "train.steps: expected a whole number from 1 to 1000000000000, got a map"},
    {"model.d_model.x=3", "model.d_model: is a plain value here and has no 'x'"},
    {"model.kinds.a.rope=yarn", "model.kinds.a: rope.factor: type yarn needs"},
    {"run.dir=&x y", "command line: run.dir: anchors (&name)"},
    {"run.dir=*x", "command line: run.dir: aliases (*name)"},
    {"run.dir=!x y", "command line: run.dir: tags (!name)"},
    {"run={dir: a, dir: b}", "command line: run: dir: duplicate key"},
    {"run.dir=[", "command line: run.dir: broken YAML"},
    {"run.dir=\xff", "run.dir: byte 0 is not UTF-8"},
    {"run.dir=--- a\n--- b", "a second document"},
    {"stage=[]", "stage: unknown key; did you mean stages?"},
    /* numbers */
    {"train.steps=0", "train.steps: expected a whole number from 1 to 1000000000000, got 0"},
    {"train.steps=-1", "got -1"},
    {"train.steps=1.5e0", "got 1.5e0"},
    {"train.steps=1e-3", "got 1e-3"},
    {"train.steps=1.2345k", "got 1.2345k"},
    {"train.steps=1e13", "got 1e13"},
    {"train.batch=9G", "got 9G"},
    {"train.steps=10K", "got 10K"},
    {"train.steps=1e3k", "got 1e3k"},
    {"train.steps=_10", "got _10"},
    {"train.steps=1__0", "got 1__0"},
    {"train.steps=10_", "got 10_"},
    {"train.steps=1_k", "got 1_k"},
    {"train.steps=0_1", "got 0_1"},
    {"run.seed=9223372036854775808", "got 9223372036854775808"},
    {"run.seed=1e99999999999999999999", "got 1e99"},
    {"train.steps='3'", "got \"3\"; write the number without quotes"},
    {"train.steps=3.0", "got 3.0"},
    {"train.steps=3x", "got 3x"},
    {"train.steps=0x10", "got 0x10"},
    {"train.steps=010", "got 010"},
    {"train.steps=+3", "got +3"},
    {"train.batch=600M", "got 600M"},
    {"train.steps=1000000000001", "got 1000000000001"},
    {"train.steps=99999999999999999999999", "got 99999999999999999999999"},
    {"train.batch=99999999999", "train.batch: expected a whole number from 1 to 1048576"},
    {"run.seed=18446744073709551616", "run.seed: expected a whole number"},
    {"optim.lr=.nan", "optim.lr: expected a number from 0 to 100, got .nan"},
    {"optim.lr=nan", "got nan"},
    {"optim.lr=.inf", "got .inf"},
    {"optim.lr=1e999", "got 1e999"},
    {"optim.lr=1e-999", "got 1e-999"},
    {"optim.lr=-1e-3", "got -1e-3"},
    {"optim.lr=1e", "got 1e"},
    {"optim.lr=1.", "got 1."},
    {"optim.lr=.5", "got .5"},
    {"optim.lr=0x1p3", "got 0x1p3"},
    {"optim.lr=01.5", "got 01.5"},
    {"optim.lr=1,5", "got 1,5"},
    {"optim.lr=101", "got 101"},
    {"optim.lr='1e-3'", "got \"1e-3\""},
    {"data.val_fraction=0.51", "data.val_fraction: expected a number from 0 to 0.5, got 0.51"},
    {"model.d_model=0", "model.d_model: expected a whole number from 1 to 65536"},
    {"model.layers=257", "model.layers: expected a whole number from 1 to 256"},
    {"train.log_every=0", "train.log_every"},
    /* what does not agree */
    {"train.micro_batch=5", "train.micro_batch: 5 does not divide train.batch, 64"},
    {"model.max_positions=128", "run.yaml: data.seq_len: 256 (default) is more than model.max_positions, 128"},
    {"optim.warmup=2001", "optim.warmup: 2001 is more than train.steps, 2000"},
    {"optim.schedule_by=time", "optim.schedule_by: time needs train.max_seconds"},
    {"optim={warmup: 20, schedule_steps: 10}", "20 is more than optim.schedule_steps, 10"},
    {"optim.warmup=-1", "optim.warmup: expected steps, a percentage or tokens (200, 10%, 2Mtok), got -1"},
    {"optim.warmup=1.5", "got 1.5"},
    {"optim.warmup=1.0", "got 1.0"},
    {"optim.warmup='100'", "got \"100\""},
    {"optim.warmup=1000000000001", "got 1000000000001"},
    {"optim.warmup='%'", "got \"%\""},
    {"optim.warmup=10 %", "got 10 %"},
    {"optim.warmup=10%%", "got 10%%"},
    {"optim.warmup=-10%", "got -10%"},
    {"optim.warmup=10001%", "got 10001%"},
    {"optim.warmup=nan%", "got nan%"},
    {"optim.warmup=tok", "got tok"},
    {"optim.warmup=2mtok", "got 2mtok"},
    {"optim.warmup=2M", "optim.warmup: 2000000 is more than train.steps, 2000 (default)"},
    {"optim.warmup=2 Mtok", "got 2 Mtok"},
    {"optim.warmup=0.5tok", "got 0.5tok"},
    {"optim.warmup=1.0000001Mtok", "got 1.0000001Mtok"},
    {"optim.warmup=1000001Gtok", "got 1000001Gtok"},
    {"optim.warmup=1e999tok", "got 1e999tok"},
    {"optim.warmup=1000000000000000000000000000000000000000tok", "got 1000000000000000000000000000000000000000"},
    {"optim.warmup=", "got null"},
    {"optim.warmup=[1]", "got a list"},
    {"optim.warmup=100.1%", "optim.warmup: 2002 is more than train.steps, 2000"},
    {"optim={warmup: 0, schedule: wsd, decay_steps: 0%}", "schedule wsd needs the length of its decay"},
    {"optim={warmup: 0, schedule: wsd, schedule_steps: 50%, decay_steps: 51%}",
     "1020 steps of decay after 0 of optim.warmup are more than optim.schedule_steps, 1000"},
    {"optim={warmup: 65537tok, schedule_steps: 65536tok}", "5 is more than optim.schedule_steps, 4"},
    {"train.skip_z=0.5", "train.skip_z: expected 0 (none) or at least 1 deviation, got 0.5"},
    {"train.skip_z=-1", "train.skip_z: expected a number from 0"},
    {"train.skip_window=1", "train.skip_window: expected a whole number from 2 to 1024, got 1"},
    {"train.skip_window=1025", "got 1025"},
    {"train.skip_most=0", "train.skip_most: expected a whole number from 1"},
    {"train.async_save=1", "train.async_save: expected true or false, got 1"},
    {"train.tensorboard=yes", "train.tensorboard: expected true or false, got yes"},
    {"optim.state_dtype=f16", "optim.state_dtype: expected one of f32, bf16, got f16"},
    {"optim.min_lr=0.01", "optim.min_lr: 0.01 is more than optim.lr, 0.001"},
    {"train.recompute=3", "train.recompute: 3 is more than model.layers, 2"},
    {"train={steps: 1000000000000, batch: 1048576, micro_batch: 8}", "train.steps: steps x batch x seq_len"},
    {"model.kinds.a.kv_heads=3", "model.kinds.a: kv_heads"},
    {"model.kinds.a.heads=3", "model.kinds.a: heads"},
    {"model.kinds.a.sinks=3", "model.kinds.a: sinks"},
    {"model.kv_from={0: 0}", "model.kv_from.0: layer 0 can read an earlier layer only, got 0"},
    {"model.kv_from={0: 1}", "can read an earlier layer only, got 1"},
    {"model.kv_from={2: 0}", "model.kv_from: expected a whole number from 0 to 1, got 2"},
    {"model.kv_from={-1: 0}", "got -1"},
    {"model.kv_from={x: 0}", "got x"},
    {"model.kv_from={1: 5}", "model.kv_from.1: expected a whole number from 0 to 1, got 5"},
    {"model.pattern.5=a", "model.pattern"},
};
ParameterizedTestParameters(config, refuses_override) {
    static size_t index[sizeof overrides / sizeof *overrides];
    for (size_t i = 0; i < sizeof index / sizeof *index; i++) index[i] = i;
    return cr_make_param_array(size_t, index, sizeof index / sizeof *index);
}
ParameterizedTest(size_t *i, config, refuses_override) {
    const char *o = overrides[*i].override;
    Err e = {0};
    refused(o, parse(&one, small, o, &e), &e, overrides[*i].says);
    is_clean(&one);
}

/* Too large, too deep, too many: refused before they cost anything, names shortened so that the message stays. */
Test(config, refuses_size) {
    size_t n = TREE_BYTES + 1;
    char *text = malloc(n + 1);
    Err e = {0};
    memset(text, ' ', n);
    text[n] = 0;
    refused("spaces", parse(&one, text, NULL, &e), &e, "1048577 bytes; expected at most 1048576");
    for (size_t k = 0; k < 2; k++) { /* brackets in flow, dashes in blocks */
        for (size_t i = 0; i + 1 < n; i++) text[i] = k ? "- "[i & 1] : '[';
        text[n - 1] = 0;
        refused("deep", parse(&one, text, NULL, &e), &e, "nested too deeply");
    }
    strcpy(text, "a: [");
    for (int i = 0; i <= TREE_NODES; i++) strcat(text + 2 * i, "1,");
    strcat(text, "]");
    refused("wide", parse(&one, text, NULL, &e), &e, "too many values");
    size_t at = 0;
    for (int i = 0; i <= TREE_NODES / 2; i++) at += (size_t)sprintf(text + at, "k%d: 1\n", i);
    refused("many keys", parse(&one, text, NULL, &e), &e, "too many values");
    memset(text, 'k', 5000);
    strcpy(text + 1000, ": 1");
    refused("a long key", parse(&one, text, NULL, &e), &e, "unknown key");
    strcpy(text, MODEL "run: {dir: ");
    memset(text + strlen(text), 'x', KEY_TEXT_MAX);
    strcpy(text + sizeof MODEL + 10 + KEY_TEXT_MAX, "}");
    refused("a long text", parse(&one, text, NULL, &e), &e, "run.dir: text is longer than 1023 bytes");
    memset(text, 'p', 600);
    text[600] = 0;
    cr_assert(!config_parse(&one, "{", 1, text, 0, NULL, &e));
    refused("a long file name", false, &e, "broken YAML");
    memset(text, 'o', 600);
    strcpy(text + 300, "=1");
    char *over[] = {text};
    cr_assert(!config_parse(&one, small, strlen(small), "run.yaml", 1, over, &e));
    refused("a long override", false, &e, "is too long");
    strcpy(text, MODEL "run: {seed: ");
    memset(text + strlen(text), '9', 2000);
    refused("a long number", parse(&one, text, NULL, &e), &e, "run.");
    free(text);
    static char kinds[1 << 14] = "model: {d_model: 8, layers: 1, kinds: {";
    for (int i = 0; i <= KINDS_MAX; i++) sprintf(kinds + strlen(kinds), "k%d: {mixer: gqa, heads: 1}, ", i);
    strcat(kinds, "}}");
    refused("257 kinds", parse(&one, kinds, NULL, &e), &e, "more than 256 kinds");
    cr_assert(!config_parse(&one, "a\0b", 3, "run.yaml", 0, NULL, &e));
    refused("a NUL", false, &e, "run.yaml:1: byte 1 is NUL");
}

Test(config, refuses_path) {
    Err e = {0};
    refused("missing", config_read(&one, check_path("none.yaml"), 0, NULL, &e), &e, "none.yaml");
    refused("a folder", config_read(&one, check_dir(), 0, NULL, &e), &e, check_dir());
    check_write(check_path("empty.yaml"), "", 0);
    refused("empty", config_read(&one, check_path("empty.yaml"), 0, NULL, &e), &e, "model: required");
}

/* Cut at every byte, changed at many: an answer or one line, never more. The sanitizer build looks on. */
Test(config, survives_damage) {
    size_t n;
    char *text = check_read("configs/tiny-qknorm.yaml", &n), *copy = malloc(n + 1);
    int accepted = 0, total = 0;
    for (size_t i = 0; i < n + 3000; i++, total++) {
        size_t m = i < n ? i : n;
        memcpy(copy, text, m);
        for (int k = 0; i >= n && k < 1 + (int)(i % 3); k++)
            copy[(size_t)(rng_uniform(1, 4 * i + (size_t)k) * (double)n)] =
                "\0\xff[]{}:,-&*!|>'\"%#?~ \n\t0a.e"[(size_t)(rng_uniform(2, 4 * i + (size_t)k) * 27)];
        Err e = {0};
        if (config_parse(&one, copy, m, "run.yaml", 0, NULL, &e)) {
            accepted++;
            config_free(&one);
        } else {
            refused("damaged", false, &e, "run.yaml");
        }
    }
    cr_assert(accepted > 20 && accepted < total / 2, "%d of %d accepted", accepted, total);
    free(copy);
    free(text);
}

/* ---- what is read -------------------------------------------------------------------------------------------- */

Test(config, defaults) {
    Err e = {0};
    cr_assert(parse(&one, small, NULL, &e), "%s", e.msg);
    const Config *c = &one;
    cr_assert(!*c->run.dir && c->run.seed == 1 && c->run.device == DEVICE_AUTO && c->run.threads == 0);
    cr_assert(c->model.d_model == 32 && c->model.layers == 2 && c->model.vocab == 0 && c->model.max_positions == 256);
    cr_assert(c->model.norm_eps == 1e-5 && c->model.init_std == 0.02 && c->model.tied);
    cr_assert(c->model.nkinds == 1 && !strcmp(c->model.kind[0].name, "a") && c->model.nffn == 1);
    cr_assert(c->model.kind[0].mixer == mixer_find("gqa") && c->model.ffn[0].ffn == ffn_find("swiglu"));
    cr_assert(c->model.pattern[1] == 0 && c->model.kv_from[0] == 0 && c->model.kv_from[1] == 1);
    cr_assert(!*c->init_from && c->data.ntrain == 0 && !*c->data.val && c->data.val_fraction == 0.1);
    cr_assert(!strcmp(c->data.tokenizer, "byte") && c->data.seq_len == 256 && !*c->data.separator);
    cr_assert(c->train.steps == 2000 && c->train.max_seconds == 0 && c->train.batch == 64 && c->train.micro_batch == 8);
    cr_assert(c->train.dtype == DTYPE_AUTO && c->train.dropout == 0 && c->train.recompute == 0);
    cr_assert(c->train.eval_every == 200 && c->train.save_every == 500 && c->train.keep_best);
    cr_assert(c->optim.kind == 0 /* adamw */ && c->optim.lr == 1e-3 && c->optim.min_lr == 1e-4 &&
              c->optim.warmup.n == 100);
    cr_assert(c->optim.schedule == SCHEDULE_COSINE && c->optim.schedule_steps.n == 0 && c->optim.weight_decay == 0.1);
    cr_assert(c->optim.clip == 1 && c->optim.beta1 == 0.9 && c->optim.beta2 == 0.95 && c->optim.eps == 1e-8);
    config_free(&one);
}

/* Lengths of the schedule in each unit; written and read again they are the same. A step is 64 x 256 tokens. */
Test(config, lengths_of_the_schedule) {
    static const struct {
        char *over;
        int64_t warmup, steps, decay;
        const char *written;
    } cases[] = {
        {"optim={warmup: 3}", 3, 2000, 0, "warmup: 3\n"},
        {"optim={warmup: 10%}", 200, 2000, 0, "warmup: 10%\n"},
        {"optim={warmup: '0.5%'}", 10, 2000, 0, "warmup: 0.5%\n"},
        {"optim={warmup: 0.0001%}", 1, 2000, 0, "warmup: 0.0001%\n"},
        {"optim={warmup: 1%, schedule: wsd, decay_steps: 33.33%}", 20, 2000, 667, "decay_steps: 33.33%\n"},
        {"optim={warmup: 0%}", 0, 2000, 0, "warmup: 0%\n"},
        {"optim={warmup: 16384tok}", 1, 2000, 0, "warmup: 16384tok\n"},
        {"optim={warmup: 16385tok}", 2, 2000, 0, "warmup: 16385tok\n"},
        {"optim={warmup: 1tok}", 1, 2000, 0, "warmup: 1tok\n"},
        {"optim={warmup: 1.6384Mtok}", 100, 2000, 0, "warmup: 1638400tok\n"},
        {"optim={warmup: 32ktok, schedule_steps: 0.01Gtok}", 2, 611, 0, "schedule_steps: 10000000tok\n"},
        {"optim={warmup: 2e6tok, schedule_steps: 150%}", 123, 3000, 0, "schedule_steps: 150%\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Err e = {0};
        cr_assert(config_parse(&one, small, strlen(small), "run.yaml", 1, &cases[i].over, &e), "%s", e.msg);
        char *text = config_text(&one);
        cr_assert(strstr(text, cases[i].written), "%s: wrote %s", cases[i].over, text);
        cr_assert(config_parse(&two, text, strlen(text), "again", 0, NULL, &e), "%s", e.msg);
        for (int again = 0; again < 2; again++) {
            ScheduleSteps s = config_schedule(again ? &two : &one);
            cr_assert(s.warmup == cases[i].warmup && s.steps == cases[i].steps && s.decay == cases[i].decay,
                      "%s: %lld, %lld, %lld", cases[i].over, (long long)s.warmup, (long long)s.steps,
                      (long long)s.decay);
        }
        free(text);
        config_free(&one), config_free(&two);
    }
}

Test(config, overrides) {
    static char *const over[] = {"run.dir=out/a b",
                                 "train.steps=7",
                                 "train.steps=9",
                                 "optim.warmup=0",
                                 "data.train=[{path: x.txt}, y.txt, \"a, b: c\"]",
                                 "model.kinds.local={mixer: gqa, heads: 4, window: 8}",
                                 "model.kinds.local.window=64",
                                 "model.kinds.gqa={heads: 1}",
                                 "model.pattern=[local, a, gqa]",
                                 "model.layers=5",
                                 "model.kv_from.4=1",
                                 "model.ffn.hidden=12",
                                 "model.kinds.local.rope=none",
                                 "optim.lr=2e-3",
                                 "data.val=",
                                 "data.separator=\"\\n\\n\"",
                                 "train.sample_prompt=Hello, world = x",
                                 "run.seed=9000000000000000"};
    Err e = {0};
    cr_assert(config_parse(&one, small, strlen(small), "run.yaml", sizeof over / sizeof *over, over, &e), "%s", e.msg);
    const ModelCfg *m = &one.model;
    cr_assert(!strcmp(one.run.dir, "out/a b") && one.train.steps == 9 && one.optim.lr == 2e-3);
    cr_assert(one.data.ntrain == 3 && !strcmp(one.data.train[0].path, "x.txt") &&
              !strcmp(one.data.train[1].path, "y.txt") && !strcmp(one.data.train[2].path, "a, b: c"));
    cr_assert(!*one.data.val && !strcmp(one.data.separator, "\n\n") && one.run.seed == 9000000000000000);
    cr_assert(!strcmp(one.train.sample_prompt, "Hello, world = x"));
    static const char *const want[] = {"local", "a", "gqa", "local", "a"};
    for (int l = 0; l < 5; l++) {
        cr_assert_str_eq(m->kind[m->pattern[l]].name, want[l]);
        cr_assert_eq(m->kv_from[l], l == 4 ? 1 : l);
    }
    char *text = config_text(&one);
    cr_assert(strstr(text, "window: 64") && strstr(text, "hidden: 12") && strstr(text, "type: none"), "%s", text);
    free(text);
    config_free(&one);
}

Test(config, trainable) {
    Err e = {0};
    cr_assert(parse(&one, small, "data.train=x", &e));
    refused("no folder", config_trainable(&one, &e), &e, "run.dir");
    config_free(&one);
    cr_assert(parse(&one, small, "run.dir=x", &e));
    refused("no text", config_trainable(&one, &e), &e, "data.train");
    config_free(&one);
    cr_assert(parse(&one, MODEL "run: {dir: x}", "data.train=x", &e) && config_trainable(&one, &e));
    config_free(&one);
}

/* ---- JSON ---------------------------------------------------------------------------------------------------- */

#define JMODEL                                                                                                     \
    "\"d_model\":32,\"layers\":2,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":2}},\"ffn\":[{\"kind\":\"swiglu\"," \
    "\"hidden\":8}]"
static const struct {
    const char *json, *says;
} jsons[] = {
    {"", "broken JSON"},
    {"{", "broken JSON"},
    {"{} x", "broken JSON"},
    {"[]", "expected an object, got a list"},
    {"3", "expected an object"},
    {"null", "expected an object, got null"},
    {"{}", "config.json: d_model: required"},
    {"{" JMODEL "}", "max_positions: required"},
    {"{" JMODEL ",\"max_positions\":8}", "vocab: required"},
    {"{" JMODEL ",\"max_positions\":8,\"vocab\":0}", "vocab: required"},
    {"{" JMODEL ",\"max_positions\":8,\"vocab\":5,\"vocab\":5}", "duplicate"},
    {"{" JMODEL ",\"max_positions\":8,\"vocab\":5,\"vocabs\":5}", "vocabs: unknown key; did you mean vocab?"},
    {"{" JMODEL ",\"max_positions\":8,\"vocab\":\"5\"}", "vocab: expected a whole number"},
    {"{" JMODEL ",\"max_positions\":8,\"vocab\":5.0}", "vocab: expected a whole number from 0 to 16777216, got 5.0"},
    {"{" JMODEL ",\"max_positions\":8,\"vocab\":99999999999999999999}", "broken JSON"},
    {"{" JMODEL ",\"max_positions\":8,\"vocab\":2147483648}", "vocab: expected a whole number"},
    {"{" JMODEL ",\"max_positions\":8,\"vocab\":5,\"norm_eps\":1e999}", "broken JSON"},
    {"{" JMODEL ",\"max_positions\":8,\"vocab\":5,\"tied\":\"true\"}", "tied: expected true or false"},
    {"{" JMODEL ",\"max_positions\":8,\"vocab\":5,\"pattern\":[\"a\\u0000b\"]}", "broken JSON"},
    {"{" JMODEL ",\"max_positions\":8,\"vocab\":5,\"pattern\":[\"b\"]}", "pattern: unknown name 'b'"},
    {"{" JMODEL ",\"max_positions\":8,\"vocab\":5,\"kv_from\":{\"1\":1}}", "can read an earlier layer only"},
    {"{" JMODEL ",\"max_positions\":8,\"vocab\":5,\"x\":\"\xff\"}", "is not UTF-8"},
};
ParameterizedTestParameters(config, refuses_json) {
    static size_t index[sizeof jsons / sizeof *jsons];
    for (size_t i = 0; i < sizeof index / sizeof *index; i++) index[i] = i;
    return cr_make_param_array(size_t, index, sizeof index / sizeof *index);
}
ParameterizedTest(size_t *i, config, refuses_json) {
    static ModelCfg m;
    Err e = {0};
    const char *j = jsons[*i].json;
    refused(j, model_cfg_from_json(&m, j, strlen(j), "config.json", &e), &e, jsons[*i].says);
    cr_assert(m.nkinds == 0 && m.nffn == 0 && m.d_model == 0);
}
Test(config, json_depth) {
    static ModelCfg m;
    char j[4001];
    Err e = {0};
    memset(j, '[', 4000);
    refused("deep", model_cfg_from_json(&m, j, 4000, "config.json", &e), &e, "config.json");
    strcpy(j, "{\"pattern\": ");
    memset(j + 12, '[', 40), memset(j + 52, ']', 40);
    strcpy(j + 92, "}");
    refused("40 lists", model_cfg_from_json(&m, j, 93, "config.json", &e), &e, "nested too deeply");
}
Test(config, json_survives_damage) {
    Err e = {0};
    cr_assert(config_read(&one, "configs/tiny-share.yaml", 1, (char *[]){"model.vocab=9"}, &e), "%s", e.msg);
    char *json = model_cfg_json(&one.model);
    size_t n = strlen(json);
    char *copy = malloc(n + 1);
    static ModelCfg m;
    int accepted = 0;
    for (size_t i = 0; i < n + 3000; i++) {
        size_t k = i < n ? i : n;
        memcpy(copy, json, k);
        if (i >= n) copy[(size_t)(rng_uniform(5, i) * (double)n)] = "\0\xff[]{}:,\"-0129.eE"[i % 18];
        e = (Err){0};
        if (model_cfg_from_json(&m, copy, k, "config.json", &e)) {
            model_cfg_free(&m);
            accepted++;
        } else {
            refused("damaged", false, &e, "config.json");
        }
    }
    cr_assert(accepted > 20 && accepted < 2000, "%d", accepted);
    free(copy), free(json);
    config_free(&one);
}

/* ---- resuming ------------------------------------------------------------------------------------------------ */

static const struct {
    const char *override, *refuses; /* the key named; NULL: may differ */
} resumes[] = {
    {NULL, NULL},
    {"run.dir=elsewhere", NULL},
    {"run.threads=3", NULL},
    {"run.seed=5", NULL},
    {"train.steps=300", NULL},
    {"train.max_seconds=3", NULL},
    {"train.eval_every=3", NULL},
    {"train.save_every=3", NULL},
    {"train.sample_every=3", NULL},
    {"train.log_every=3", NULL},
    {"data.val=v.txt", NULL},
    {"optim.warmup=3", NULL},
    {"optim.schedule_steps=300", NULL},
    {"optim.decay_steps=3", NULL},
    {"optim.warmup=3%", NULL},
    {"train.async_save=true", NULL},
    {"train.tensorboard=true", NULL},
    {"train.skip_z=3", NULL},
    {"train.skip_window=3", NULL},
    {"train.skip_most=3", NULL},
    {"train.keep_last=3", NULL},
    {"train.keep_best=false", NULL},
    {"model.vocab=0", NULL},
    {"model.vocab=258", "model.vocab: 258, but the run was begun with 257"},
    {"model.layers=4", "model.layers: 4, but the run was begun with 3"},
    {"model.tied=false", "model.tied: false"},
    {"model.kinds.local.window=17", "model.kinds.local.window: 17"},
    {"model.kinds.extra={mixer: gqa, heads: 2}", "model.kinds.extra: a map, but the run was begun with nothing"},
    {"model.pattern=[full]", "model.pattern.0: full"},
    {"model.kv_from={1: 0}", "model.kv_from.1: 0, but the run was begun with nothing"},
    {"model.ffn.hidden=97", "model.ffn.hidden: 97"},
    {"data.train=other.txt", "data.train.0: other.txt"},
    {"data.train=[data/kjv.txt, b]", "data.train: a list of 2, but the run was begun with 1"},
    {"data.val_fraction=0.2", "data.val_fraction: 0.2"},
    {"data.seq_len=32", "model.max_positions: 32"},
    {"train.batch=8", "train.batch: 8"},
    {"train.frozen_dtype=auto", NULL},
    {"train.frozen_dtype=bf16", "train.frozen_dtype: bf16, but the run was begun with auto"},
    {"teacher.dtype=bf16", NULL},
    {"train.micro_batch=1", "train.micro_batch: 1"},
    {"train.dropout=0.1", "train.dropout: 0.1"},
    {"optim.lr=1", "optim.lr: 1"},
    {"optim.schedule=constant", "optim.schedule: constant"},
    {"train.compression.target=2", "train.compression.target: 2, but the run was begun with 1"},
    {"optim.state_dtype=bf16", "optim.state_dtype: bf16, but the run was begun with f32"},
    {"init_from=x", "init_from: x, but the run was begun with null"},
};
ParameterizedTestParameters(config, resumable) {
    static size_t index[sizeof resumes / sizeof *resumes];
    for (size_t i = 0; i < sizeof index / sizeof *index; i++) index[i] = i;
    return cr_make_param_array(size_t, index, sizeof index / sizeof *index);
}
ParameterizedTest(size_t *i, config, resumable) {
    Err e = {0};
    char *over[] = {"model.vocab=257", (char *)resumes[*i].override};
    cr_assert(config_read(&one, "configs/tiny-window.yaml", 1, over, &e), "%s", e.msg);
    cr_assert(config_read(&two, "configs/tiny-window.yaml", over[1] ? 2 : 1, over, &e), "%s", e.msg);
    bool ok = config_resumable(&one, &two, 12, &e);
    if (resumes[*i].refuses)
        refused(over[1], ok, &e, resumes[*i].refuses);
    else
        cr_assert(ok, "%s", e.msg);
    config_free(&one);
    config_free(&two);
}
