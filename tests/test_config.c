/* Settings: what is refused and how, what defaults are, that texts read back to what they say. */
#include "check.h"
#include "../model/config_keys.h"
#include <dirent.h>
#include <jansson.h>

#define MODEL "model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {kind: swiglu, hidden: 64}}\n"
static const char small[] = MODEL;

/* Config is large; one of each on the heap would be lost by a failed assertion anyway. */
static Config one, two;

static bool parse(Config *c, const char *text, const char *override, Err *e) {
    char *over[] = {(char *)override};
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

/* ---- refusals ------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *text, *says;
} files[] = {
    /* names */
    {"modle: {}\n" MODEL, "run.yaml:1: modle: unknown key; did you mean model?"},
    {MODEL "train:\n  stepz: 3\n", "run.yaml:3: train.stepz: unknown key; did you mean steps?"},
    {MODEL "train: {qqqqqqqqqqq: 3}", "unknown key; known: steps, max_seconds"},
    {MODEL "stages: [{name: ramp}]", "run.yaml:2: stages: unknown key; known: run, model, init_from, data, train, optim"},
    {MODEL "teacher: {path: x}", "teacher: unknown key"},
    {MODEL "optim: {state_dtype: f32}", "optim.state_dtype: unknown key"},
    {"model:\n  d_model: 32\n  layers: 2\n  ffn: {kind: swiglu, hidden: 8}\n  kinds:\n    local: {mixer: gqa, heads: 2,\n"
     "      widow: 3}\n",
     "run.yaml:7: model.kinds.local.widow: unknown key; did you mean window?"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2, rope: {tetha: 3}}}}",
     "model.kinds.a.rope.tetha: unknown key; did you mean theta?"},
    {MODEL "data: {train: [{path: x, weight: 2}]}", "data.train.0.weight: unknown key; known: path"},
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
    {"model: {d_model: 8, layers: 2, kinds: {a: {mixer: gqa, heads: 2}, b: {mixer: gqa, heads: 2}}, ffn: {kind: swiglu, "
     "hidden: 8}}",
     "model.pattern: required"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}}", "model.ffn: required"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {hidden: 3}}", "model.ffn.kind: required"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: [{kind: swiglu}]}",
     "model.ffn.0.hidden: required"},
    /* wrong type */
    {"[]", "expected a map of settings, got a list"},
    {"text", "expected a map of settings, got a plain value"},
    {MODEL "train: 3", "run.yaml:2: train: expected a map of settings, got 3"},
    {MODEL "train: [1]", "train: expected a map of settings, got a list"},
    {"model: null", "model.d_model: required"},
    {MODEL "train: {steps: [3]}", "train.steps: expected a whole number from 1 to 1000000000000, got a list"},
    {MODEL "train: {steps: \"3\"}", "train.steps: expected a whole number from 1 to 1000000000000, got \"3\""},
    {MODEL "train: {steps: null}", "got null"},
    {MODEL "train: {keep_best: yes}", "train.keep_best: expected true or false, got yes"},
    {MODEL "train: {keep_best: 1}", "expected true or false, got 1"},
    {MODEL "run: {dir: {a: b}}", "run.dir: expected text, got a map"},
    {MODEL "run: {dir: \"a\\x07b\"}", "run.dir: text holds the control character 7"},
    {MODEL "run: {device: gpu}", "run.device: expected one of auto, cpu, got gpu"},
    {MODEL "data: {train: {file: x}}", "data.train.file: unknown key"},
    {MODEL "data: {train: []}", "data.train: 0 files"},
    {MODEL "data: {train: ['']}", "data.train.0: expected the path"},
    {MODEL "data: {train: [[x]]}", "data.train.0: expected a map"},
    {"model: {d_model: 32, layers: 2, kinds: [a]}", "model.kinds: expected a map of kinds, got a list"},
    {"model: {d_model: 32, layers: 2, kinds: {a: gqa}}", "model.kinds.a: expected a map {mixer: NAME, settings...}"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: [gqa]}}}", "model.kinds.a.mixer: expected a name, got a list"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, pattern: {a: b}}", "model.pattern: expected a"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, pattern: []}", "model.pattern: expected a"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, pattern: [[a]]}", "model.pattern: expected"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, kv_from: [1]}", "model.kv_from: expected a map"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: swiglu}", "model.ffn: expected {kind"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: []}", "model.ffn: expected {kind"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: [x]}", "model.ffn.0: expected {kind"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2, rope: {type: longrope, short_factor: 3}}}}",
     "rope.short_factor: expected a list of numbers, got 3"},
    {"model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2, rope: {short_factor: [1, x]}}}}",
     "rope.short_factor.1: expected a number"},
    /* broken YAML and what we do not take */
    {MODEL "run: {dir: x", "run.yaml:3: broken YAML"},
    {MODEL "run:\n  dir: x\n seed: 1\n", "run.yaml:4: broken YAML"},
    {MODEL "\trun: 1", "broken YAML"},
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
    {MODEL "run: {dir: \"a\\0b\"}", "run.yaml:2: text holds a NUL byte"},
    {MODEL "run: {dir: \xff}", "run.yaml:2: byte 113 is not UTF-8"},
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
    {"train.stepps=3", "command line: train.stepps: unknown key; did you mean steps?"},
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
    {"stages=[]", "stages: unknown key"},
    /* numbers */
    {"train.steps=0", "train.steps: expected a whole number from 1 to 1000000000000, got 0"},
    {"train.steps=-1", "got -1"},
    {"train.steps=1e3", "got 1e3"},
    {"train.steps=3.0", "got 3.0"},
    {"train.steps=3 ", "train.steps=3 "}, /* accepted: see good_overrides; replaced below */
    {"train.steps=3x", "got 3x"},
    {"train.steps=0x10", "got 0x10"},
    {"train.steps=010", "got 010"},
    {"train.steps=1_000", "got 1_000"},
    {"train.steps=+3", "got +3"},
    {"train.steps=600M", "got 600M"},
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
    {"model.max_positions=128", "data.seq_len: 256 is more than model.max_positions, 128"},
    {"data.seq_len=1048576", "train.micro_batch: 8 samples"}, /* 8 * 2^20 = 2^23 fits: see below */
    {"optim.warmup=2001", "optim.warmup: 2001 is more than train.steps, 2000"},
    {"optim={warmup: 20, schedule_steps: 10}", "20 is more than optim.schedule_steps, 10"},
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
/* Two of the above are there to show that the test itself can tell: they must be accepted. */
static bool fine(const char *override) {
    return !strcmp(override, "train.steps=3 ") || !strcmp(override, "data.seq_len=1048576");
}
ParameterizedTestParameters(config, refuses_override) {
    static size_t index[sizeof overrides / sizeof *overrides];
    for (size_t i = 0; i < sizeof index / sizeof *index; i++) index[i] = i;
    return cr_make_param_array(size_t, index, sizeof index / sizeof *index);
}
ParameterizedTest(size_t *i, config, refuses_override) {
    const char *o = overrides[*i].override;
    Err e = {0};
    bool ok = parse(&one, small, o, &e);
    if (fine(o)) return;
    refused(o, ok, &e, overrides[*i].says);
    is_clean(&one);
}
