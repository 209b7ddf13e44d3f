#!/bin/bash
# Starting from a model that exists: init_from without a model, deviations from it, the settings that a conversion
# leaves, values that the user must give, presets.
. tests/lib/cases.sh
here=$PWD
one="--threads 1 -q"
ok() {
    "$prog" train "$@" >"$tmp/out" 2>"$tmp/err" || wrong "train $*: exit $?, $(cat "$tmp/err")"
}
refused() { # what the one line holds, then the words
    local part=$1 rc
    shift
    "$prog" train "$@" >"$tmp/out" 2>"$tmp/err"
    rc=$?
    [ $rc -eq 2 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ "$(wc -m <"$tmp/err")" -le 301 ] && grep -q -- "$part" "$tmp/err" ||
        wrong "train $*: exit $rc, no '$part' in: $(cat "$tmp/err")"
    [ -e "$tmp/no" ] && wrong "train $*: left $(ls -A "$tmp/no")"
}
lines() { # those of the last run on stderr are these
    [ "$(cat "$tmp/err")" = "$1" ] || wrong "on stderr: $(cat "$tmp/err"); expected: $1"
}

ok configs/tiny-gqa.yaml run.dir="$tmp/src" train.steps=10 $one
cat >"$tmp/bare.yaml" <<END
init_from: $tmp/src
data: {train: data/kjv.txt, seq_len: 64}
train: {steps: 1, batch: 4, micro_batch: 2, eval_tokens: 1024}
optim: {lr: 0, min_lr: 0, warmup: 0}
END
bare="$tmp/bare.yaml --threads 1"

# ---- the model and the tokenizer are the source's
ok $bare run.dir="$tmp/a" -q
lines ""
cmp "$tmp/a/last/model.safetensors" "$tmp/src/last/model.safetensors" >>"$bad" 2>&1
cmp "$tmp/a/last/tokenizer.json" "$tmp/src/last/tokenizer.json" >>"$bad" 2>&1
cmp <(grep -v '^ *"kvsmith_' "$tmp/a/last/config.json") <(grep -v '^ *"kvsmith_' "$tmp/src/last/config.json") >>"$bad" 2>&1
# The settings that the run leaves hold it whole: it continues without the source.
mv "$tmp/src" "$tmp/gone"
ok "$tmp/a/config.yaml" --threads 1 -q --resume auto train.steps=2
[ "$(readlink "$tmp/a/last")" = step-000002 ] || wrong "not resumed: $(ls "$tmp/a")"
refused "init_from: model $tmp/src: No such file" $bare run.dir="$tmp/no"
mv "$tmp/gone" "$tmp/src"
verdict source

# Every type that is read. Their tokens are not text here, so a task is what they are trained on.
for dir in tests/golden/families/*/ tests/golden/llama/llama3-untied tests/golden/mla/direct tests/golden/mla/yarn; do
    [ -e "$dir/config.json" ] || continue
    rm -rf "$tmp/f"
    ok $bare init_from="$dir" data='{task: {name: copy, vocab: 16}, seq_len: 24}' run.dir="$tmp/f" -q
    was=$(grep '"model_type"' "$dir/config.json")
    was=${was/qwen3_5_moe_text/qwen3_next} # which can hold all its models
    case $dir in */glm4_moe_lite-plain/) was=${was/glm4_moe_lite/deepseek_v3} ;; esac # which can hold this one
    [ "$(grep '"model_type"' "$tmp/f/last/config.json")" = "$was" ] ||
        wrong "$dir became $(grep '"model_type"' "$tmp/f/last/config.json")"
done
verdict families

# ---- deviations: printed where they are named, else refused
refused "model.kinds.full.rope.theta: 500000, but $tmp/src.* has 10000, .*init_change='\[rope.theta\]'" $bare run.dir="$tmp/no" model.kinds.full.rope.theta=500000
refused "model.kinds.full.window: 20, but .* has 0" $bare run.dir="$tmp/no" model.kinds.full.window=20
refused "model.norm_eps: 1e-06, but .* has 1e-05" $bare run.dir="$tmp/no" model.norm_eps=1e-6
refused "model.kinds.full.rope.type: none, but .* has default" $bare run.dir="$tmp/no" model.kinds.full.rope=none
refused "model.embed_scale: 2" $bare run.dir="$tmp/no" model.embed_scale=2 "init_change=[rope, scale]"
refused "model.parallel: true" $bare run.dir="$tmp/no" model.parallel=true
refused "model.kinds.full.heads: 2, but .* has 4" $bare run.dir="$tmp/no" 'model.kinds.full={heads: 2, kv_heads: 1, head_dim: 32}'
refused "model.kinds.full.rope.theta: 500000" $bare run.dir="$tmp/no" --plan model.kinds.full.rope.theta=500000
ok $bare run.dir="$tmp/b" model.kinds.full.rope.theta=500000 model.norm_eps=1e-6 'init_change=[rope.theta, norm_eps]'
lines "model.norm_eps: 1e-06 (source: 1e-05)
model.kinds.full.rope.theta: 500000 (source: 10000)"
grep -q '^ *theta: 500000$' "$tmp/b/config.yaml" && grep -q '"rope_theta": *5e5' "$tmp/b/last/config.json" || wrong "the deviation is not in the run"
rm -rf "$tmp/b"
ok $bare run.dir="$tmp/b" model.kinds.full.rope='{type: yarn, factor: 2}' init_change=rope
grep -q '^model.kinds.full.rope.type: yarn (source: default)$' "$tmp/err" || wrong "rope: $(cat "$tmp/err")"
rm -rf "$tmp/b"
ok $bare run.dir="$tmp/b" model.max_positions=128 # changes no function of the tensors
lines "model.max_positions: 128 (source: 64)"
verdict deviations

# A model that is given whole and equals the source deviates in nothing, also where a default stands for a number.
rm -rf "$tmp/b"
ok configs/tiny-gqa.yaml --threads 1 run.dir="$tmp/b" init_from="$tmp/src" train.steps=1 optim.warmup=0
lines ""
rm -rf "$tmp/b"
ok $bare run.dir="$tmp/b" model='{d_model: 48, layers: 2, kinds: {other: {mixer: gqa, heads: 4, kv_heads: 2, head_dim: 0, rope: {low_freq_factor: 3}}}, ffn: {kind: swiglu, hidden: 96}}' \
    model.kinds.other.head_dim=16 data.tokenizer="$tmp/src"
lines ""
refused "model.kinds.full.rope.theta: 500, " configs/tiny-gqa.yaml run.dir="$tmp/no" init_from="$tmp/src" model.kinds.full.rope.theta=500
# Another layout of the same tensors: whole, or by its name alone, with the settings that both have.
rm -rf "$tmp/b"
ok configs/tiny-dmc.yaml --threads 1 run.dir="$tmp/b" init_from="$tmp/src" stages=null train.steps=1 optim.warmup=0 train.compression=1
lines "model.kinds.full.mixer: dmc (source: gqa)
model.kinds.full.window: 12 (source: 0)"
refused "model.kinds.full.rope.theta: 77, " configs/tiny-dmc.yaml run.dir="$tmp/no" init_from="$tmp/src" model.kinds.full.rope.theta=77
rm -rf "$tmp/b"
ok $bare run.dir="$tmp/b" model.kinds.full.mixer=dmc
lines "model.kinds.full.mixer: dmc (source: gqa)"
grep -q 'kv_heads: 2' "$tmp/b/config.yaml" || wrong "the other layout has lost the heads"
refused "model.kinds.ful: init_from has no kind of that name (it has full)" $bare run.dir="$tmp/no" model.kinds.ful.window=3
refused "ffn.0.*hidden\|gate_proj.weight" $bare run.dir="$tmp/no" model.ffn.hidden=64
refused "model: expected a map" $bare run.dir="$tmp/no" model=7
# Feed-forward parts that replace the source's also replace its pattern; names replace a part without one.
parts='model={ffn: {dense: {kind: swiglu, hidden: 9}, wide: {kind: moe, hidden: 8, experts: 4, top_k: 2}}, ffn_pattern: [dense, wide]}'
for given in 'qwen2_moe-step model.ffn=[{kind: swiglu, hidden: 16}]' 'qwen2_moe-step model.ffn=none' "qwen2_moe-step $parts" "qwen2 $parts"; do
    printf 'init_from: tests/golden/families/%s\ndata: {train: README.md, seq_len: 8}\n' "${given%% *}" >"$tmp/ffn.yaml"
    "$prog" config "$tmp/ffn.yaml" run.dir="$tmp/no" "${given#* }" >"$tmp/out" 2>"$tmp/err" || wrong "$given: $(cat "$tmp/err")"
done
verdict layouts

# ---- values that must be given
printf 'run: {dir: %s}\ndata:\n  train: ???\n' "$tmp/no" >"$tmp/ask.yaml"
refused "ask.yaml:3: data.train: ??? is a placeholder for a value that must be given; add data.train=VALUE" "$tmp/ask.yaml"
refused "model: required" "$tmp/ask.yaml" data.train=data/kjv.txt
verdict required

# ---- what a conversion leaves: it trains from any working directory, also after it was moved; its source teaches it
"$prog" convert "$tmp/src" "$tmp/c" --to mqa >"$tmp/out" 2>"$tmp/err" || wrong "convert: $(cat "$tmp/err")"
grep -qF "train it further: kvsmith train $tmp/c/train.yaml" "$tmp/out" || wrong "convert prints: $(cat "$tmp/out")"
refused "train.yaml:[0-9]*: data.train: ??? is a placeholder for a value that must be given" "$tmp/c/train.yaml"
mv "$tmp/c" "$tmp/moved"
few="train.steps=3 train.batch=2 train.eval_tokens=512 --threads 1 -q"
(cd / && "$prog" train "$tmp/moved/train.yaml" data.train="$here/data/kjv.txt" lora.rank=2 $few) >"$tmp/out" 2>"$tmp/err" || wrong "train.yaml: $(cat "$tmp/err")"
lines ""
grep -q "^  path: .*/src/step-000010$" "$tmp/moved/run/config.yaml" && grep -q '"kl":' "$tmp/moved/run/metrics.jsonl" || wrong "no teacher: $(cat "$tmp/moved/train.yaml")"
(cd "$tmp/moved" && "$prog" train train.yaml data.train="$here/data/kjv.txt" lora.rank=2 $few train.steps=4 --resume auto) 2>"$tmp/err" || wrong "resumed: $(cat "$tmp/err")"
"$prog" generate "$tmp/moved/run" --prompt "In the " --max-new 5 --threads 1 -q >"$tmp/out" 2>"$tmp/err" && [ -s "$tmp/out" ] || wrong "generate: $(cat "$tmp/err")"
# Nothing lost, nothing to teach; a rounding is no loss. Words that YAML would take for something else.
odd="$tmp/a: b {#'\"c"
"$prog" convert "$tmp/src" "$odd" --to same dtype=bf16 -q >"$tmp/out" 2>"$tmp/err" || wrong "convert: $(cat "$tmp/err")"
grep -q '^teacher' "$odd/train.yaml" && wrong "a teacher of nothing: $(cat "$odd/train.yaml")"
ok "$odd/train.yaml" data.train=data/kjv.txt $few
"$prog" convert "$odd" "$tmp/odd2" --to swa window=9 -q >"$tmp/out" 2>"$tmp/err" || wrong "convert: $(cat "$tmp/err")"
ok "$tmp/odd2/train.yaml" data.train=data/kjv.txt $few
# Of a model of a task, the task.
ok configs/tiny-mqar.yaml run.dir="$tmp/mqar" train.steps=2 optim.warmup=0 $one
"$prog" convert "$tmp/mqar" "$tmp/mqar2" --to mqa -q >"$tmp/out" 2>"$tmp/err" || wrong "convert: $(cat "$tmp/err")"
ok "$tmp/mqar2/train.yaml" train.steps=2 train.batch=2 $one
verdict train-yaml

# ---- rotations that depend on the length: training, eval and logits plan for theirs (tests/layers/test_lengths.c: the numbers)
long='model.kinds.full.rope={type: longrope, original_max_positions: 32, short_factor: [1, 1, 1, 1, 1, 1, 1, 1], long_factor: [1, 2, 3, 4, 5, 6, 7, 8]}'
ones='model.kinds.full.rope.long_factor=[1, 1, 1, 1, 1, 1, 1, 1]'
few="train.steps=2 optim.warmup=0 train.dtype=f32 model.max_positions=128 $one"
ok configs/tiny-gqa.yaml run.dir="$tmp/long32" "$long" data.seq_len=32 $few
ok configs/tiny-gqa.yaml run.dir="$tmp/ones32" "$long" "$ones" data.seq_len=32 $few
ok configs/tiny-gqa.yaml run.dir="$tmp/long64" "$long" data.seq_len=64 $few
ok configs/tiny-gqa.yaml run.dir="$tmp/ones64" "$long" "$ones" data.seq_len=64 $few
cmp "$tmp/long32/last/model.safetensors" "$tmp/ones32/last/model.safetensors" >>"$bad" 2>&1
cmp -s "$tmp/long64/last/model.safetensors" "$tmp/ones64/last/model.safetensors" && wrong "64 tokens are trained with the short factors"
cp -rL "$tmp/long32/last" "$tmp/ones"
sed -i '/"long_factor"/,/\]/s/[2-8]\(\.0\)\?\b/1.0/' "$tmp/ones/config.json"
cmp -s "$tmp/ones/config.json" "$tmp/long32/last/config.json" && wrong "the factors are as they were: $(cat "$tmp/ones/config.json")"
nll() { "$prog" eval "$1" ppl --data README.md --context "$2" --threads 1 --json 2>"$tmp/err" | grep -o '"nll": *[0-9.]*'; }
[ -n "$(nll "$tmp/ones" 32)" ] && [ "$(nll "$tmp/long32" 32)" = "$(nll "$tmp/ones" 32)" ] || wrong "eval at 32: $(nll "$tmp/long32" 32), $(nll "$tmp/ones" 32)"
[ "$(nll "$tmp/long32" 33)" != "$(nll "$tmp/ones" 33)" ] || wrong "eval at 33 has the short factors"
for T in 32 33; do
    seq 1 $T | tr '\n' ' ' >"$tmp/ids"
    for m in long32/last ones; do "$prog" logits "$tmp/$m" --tokens "$tmp/ids" --out "$tmp/${m%%/*}-$T" --threads 1 -q 2>>"$bad"; done
done
cmp "$tmp/long32-32" "$tmp/ones-32" >>"$bad" 2>&1
cmp -s "$tmp/long32-33" "$tmp/ones-33" && wrong "33 ids have the short factors"
# Beyond the positions of the training: dynamic scales, for others a line says so, and logits are refused.
nll "$tmp/long32" 200 >/dev/null
lines "kvsmith: note: a context of 200 tokens exceeds the 128 positions that the model was trained on"
ok configs/tiny-gqa.yaml run.dir="$tmp/dyn" 'model.kinds.full.rope={type: dynamic, factor: 4}' train.steps=1 optim.warmup=0 $one
[ "$(nll "$tmp/dyn" 64)" != "$(nll "$tmp/dyn" 150)" ] || wrong "no nll"
lines ""
seq 1 150 | tr '\n' ' ' >"$tmp/ids"
"$prog" logits "$tmp/dyn" --tokens "$tmp/ids" --out "$tmp/o" --threads 1 -q 2>"$tmp/err" || wrong "dynamic: $(cat "$tmp/err")"
"$prog" logits "$tmp/src" --tokens "$tmp/ids" --out "$tmp/o" --threads 1 -q 2>"$tmp/err"
[ $? -eq 2 ] && grep -q "lines of 150 ids, but the model has 64 positions" "$tmp/err" || wrong "150 of 64: $(cat "$tmp/err")"
verdict lengths

# ---- presets: what --plan counts
text="data.train=data/kjv.txt"
for size in 124m:124 350m:350 1b:1000; do
    counts=
    for layout in gqa mla kda-hybrid window; do
        ok "configs/${size%:*}-$layout.yaml" $text data.tokenizer=byte model.vocab=50304 --plan --json -q
        counts="$counts $(grep -o '"params": *[0-9]*' "$tmp/out" | grep -o '[0-9]*')"
        refused "data.tokenizer: ???" "configs/${size%:*}-$layout.yaml" $text --plan
    done
    echo "$counts" | awk -v want="${size#*:}e6" '{
        low = high = $1
        for (i = 1; i <= NF; i++) { if ($i < low) low = $i; if ($i > high) high = $i }
        exit !(NF == 4 && low >= 0.9 * want && high <= 1.1 * want && high <= 1.05 * low) }' || wrong "$size: $counts parameters"
done
verdict presets

# Of a conversion of Llama 3 8B: directories of headers alone, files without numbers.
model() { # FOLDER kv_heads
    tests/synthetic_llama.sh "$1" 4096 32 32 "$2" 14336 128256 && cp "$tmp/src/last/tokenizer.json" "$1"
}
model "$tmp/llama" 8 && model "$tmp/to-mqa" 1
"$prog" convert "$tmp/llama" --to mla rank=512 rope=32 --calib README.md --plan --json >"$tmp/plan" 2>"$tmp/err" || wrong "plan: $(cat "$tmp/err")"
mkdir "$tmp/to-mla"
printf '{"model_type": "kvsmith", "kvsmith": %s' "$(sed 's/.*"model": *//' "$tmp/plan")" >"$tmp/to-mla/config.json"
cp "$tmp/src/last/tokenizer.json" "$tmp/to-mla"
awk 'function put(name, a, b) {
    bytes = 2 * a * (b ? b : 1)
    printf ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%.0f,%.0f]}", name, b ? a "," b : a, at, at + bytes
    at += bytes
}
BEGIN {
    d = 4096; F = 14336
    printf "{\"__metadata__\":{\"format\":\"pt\"}"
    put("model.embed_tokens.weight", 128256, d); put("lm_head.weight", 128256, d); put("model.norm.weight", d)
    for (l = 0; l < 32; l++) {
        p = "model.layers." l "."
        put(p "input_layernorm.weight", d); put(p "post_attention_layernorm.weight", d)
        put(p "self_attn.q_proj.weight", d, d); put(p "self_attn.o_proj.weight", d, d)
        put(p "self_attn.kv_a_proj_with_mqa.weight", 512 + 8 * 32, d); put(p "self_attn.kv_b_proj.weight", 32 * (96 + 128), 512)
        put(p "mlp.gate_proj.weight", F, d); put(p "mlp.up_proj.weight", F, d); put(p "mlp.down_proj.weight", d, F)
    }
    printf "}"
    printf "%.0f\n", at >"/dev/stderr"
}' >"$tmp/header" 2>"$tmp/bytes"
n=$(wc -c <"$tmp/header")
while [ $((n % 8)) -ne 0 ]; do printf ' ' >>"$tmp/header" && n=$((n + 1)); done
{
    for k in 0 8 16 24 32 40 48 56; do printf "\\x$(printf %02x $((n >> k & 255)))"; done
    cat "$tmp/header"
} >"$tmp/to-mla/model.safetensors"
truncate -s "$((8 + n + $(cat "$tmp/bytes")))" "$tmp/to-mla/model.safetensors"
for layout in mqa mla; do
    up="configs/llama3-8b-$layout-uptrain.yaml init_from=$tmp/to-$layout teacher.path=$tmp/llama $text --plan -q"
    ok $up --json
    grep -q '"teacher_weights": *[1-9]' "$tmp/out" && grep -o '"params": *[0-9]*' "$tmp/out" | awk -F: '{ exit !($2 > 7.4e9 && $2 < 8.1e9) }' ||
        wrong "llama3-8b-$layout: $(cat "$tmp/out")"
    ok $up lora.rank=16
    refused "init_from: ???" "configs/llama3-8b-$layout-uptrain.yaml" $text --plan
    refused "teacher.path: ???" "configs/llama3-8b-$layout-uptrain.yaml" $text init_from="$tmp/to-$layout" --plan
done
verdict uptrain-presets
