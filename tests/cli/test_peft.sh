#!/bin/bash
# Adapters at the command line: a LoRA run writes them, every command reads them, training continues them, `peft` loads
# them. And checkpoints in bf16, from which a run continues bit for bit.
. tests/lib/cases.sh
python=${PYTHON:-python3}
run() { "$prog" "$@" >"$tmp/out" 2>"$tmp/err"; }
ok() { run "$@" || wrong "$*: exit $?: $(cat "$tmp/err")"; }
refused() { # PART COMMAND...: exit 2 and one line with PART
    local part=$1 s
    shift
    run "$@"
    s=$?
    [ $s -eq 2 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ "$(wc -m <"$tmp/err")" -le 301 ] && grep -q -e "$part" "$tmp/err" ||
        wrong "$*: exit $s, expected 2 and '$part' in: $(cat "$tmp/err")"
}
seq 1 40 | tr '\n' ' ' >"$tmp/ids"
logits() { ok logits "$@" --tokens "$tmp/ids" --out "$tmp/$name" -q --threads 1; }
one="--threads 1 -q train.dtype=f32 train.batch=2 train.micro_batch=2 train.eval_every=0 train.save_every=0 optim.warmup=0"
lora="lora.rank=3 lora.alpha=7"

ok train configs/tiny-gqa.yaml run.dir="$tmp/base" train.steps=3 $one
ok train configs/tiny-gpt2.yaml run.dir="$tmp/base2" train.steps=3 $one
ok train configs/tiny-gqa.yaml run.dir="$tmp/a" init_from="$tmp/base" $lora train.steps=4 optim.lr=0.05 $one
ok train configs/tiny-gpt2.yaml run.dir="$tmp/a2" init_from="$tmp/base2" $lora train.steps=4 optim.lr=0.05 $one \
    'lora.targets=["*q_proj.weight", "*v_proj.weight", "*down_proj.weight"]'
for f in adapter_config.json adapter_model.safetensors; do
    [ -s "$tmp/a/last/adapter/$f" ] && [ -s "$tmp/a2/last/adapter/$f" ] || wrong "no adapter/$f"
done
grep -q "\"base_model_name_or_path\": \"$(realpath "$tmp/base/last")\"" "$tmp/a/last/adapter/adapter_config.json" || wrong "base: $(cat "$tmp/a/last/adapter/adapter_config.json")"
grep -q '"fan_in_fan_out": true' "$tmp/a2/last/adapter/adapter_config.json" && grep -q '"transformer.h.1.attn.c_attn": 9' "$tmp/a2/last/adapter/adapter_config.json" ||
    wrong "gpt2: $(cat "$tmp/a2/last/adapter/adapter_config.json")"
verdict written

# The merged model, the adapter alone, and the adapter beside its base are the same model.
worst() { # the largest difference of two safetensors files of logits, by what od prints
    cmp -s "$1" "$2" && echo 0 && return
    paste <(tail -c $((4 * 40 * $3)) "$1" | od -An -v -w4 -tf4) <(tail -c $((4 * 40 * $3)) "$2" | od -An -v -w4 -tf4) |
        awk '{ d = $1 - $2; if (d < 0) d = -d; if (!(d <= w)) w = d } END { print w + 0 }'
}
for k in a:base a2:base2; do
    run=${k%:*} base=${k#*:}
    name=merged logits "$tmp/$run"
    name=alone logits "$tmp/$run/last/adapter"
    name=beside logits "$tmp/$base" --adapter "$tmp/$run/last/adapter"
    name=plain logits "$tmp/$base"
    V=$(grep -o '"vocab_size": [0-9]*' "$tmp/$run/last/config.json" | grep -o '[0-9]*')
    cmp "$tmp/alone" "$tmp/beside" >>"$bad" 2>&1
    awk -v d="$(worst "$tmp/merged" "$tmp/alone" "$V")" 'BEGIN { exit !(d < 1e-4) }' || wrong "$run: merged is off by $(worst "$tmp/merged" "$tmp/alone" "$V")"
    awk -v d="$(worst "$tmp/merged" "$tmp/plain" "$V")" 'BEGIN { exit !(d > 1e-2) }' || wrong "$run: the adapter changes $(worst "$tmp/merged" "$tmp/plain" "$V")"
    ok convert "$tmp/$run/last/adapter" "$tmp/$run-same" --to same -q
    name=same logits "$tmp/$run-same"
    awk -v d="$(worst "$tmp/same" "$tmp/alone" "$V")" 'BEGIN { exit !(d < 1e-5) }' || wrong "$run: converted is off"
done
ok convert "$tmp/base" "$tmp/mqa" --to mqa --adapter "$tmp/a/last/adapter" -q
ok info "$tmp/a/last/adapter"
ok generate "$tmp/base" --adapter "$tmp/a/last/adapter" --prompt hello --max-new 3 --dtype bf16
ok eval "$tmp/a/last/adapter" ppl --data LICENSE --context 64
verdict read

# Training continues an adapter: it begins where the other run ended.
ok train configs/tiny-gqa.yaml run.dir="$tmp/b" init_from="$tmp/base" $lora lora.init_from="$tmp/a/last/adapter" train.steps=1 optim.lr=0 optim.min_lr=0 $one
cmp "$tmp/a/last/adapter/adapter_model.safetensors" "$tmp/b/last/adapter/adapter_model.safetensors" >>"$bad" 2>&1
cmp "$tmp/a/last/model.safetensors" "$tmp/b/last/model.safetensors" >>"$bad" 2>&1
ok train configs/tiny-gqa.yaml run.dir="$tmp/c" init_from="$tmp/a/last/adapter" train.steps=1 optim.lr=0 optim.min_lr=0 $one
name=started logits "$tmp/c"
name=alone logits "$tmp/a/last/adapter"
cmp "$tmp/started" "$tmp/alone" >>"$bad" 2>&1
on="configs/tiny-gqa.yaml run.dir=$tmp/none init_from=$tmp/base $one lora.init_from=$tmp/a/last/adapter"
refused "lora.rank: 2, but module" train $on lora.rank=2
refused "matches no target, but" train $on lora.rank=3 'lora.targets=["*q_proj.weight"]'
refused "lora.targets: .*down_proj.* has no adapter" train configs/tiny-gpt2.yaml run.dir="$tmp/none" init_from="$tmp/base2" $one lora.rank=9 \
    lora.init_from="$tmp/b/last/adapter" 'lora.targets=["*down_proj.weight"]'
refused "lora.rank: required" train $on
refused "lora.init_from: adapter .* no adapter_config.json" train $on lora.rank=3 lora.init_from="$tmp/base/last"
refused "is an adapter itself" logits "$tmp/a/last/adapter" --adapter "$tmp/a/last/adapter" --tokens "$tmp/ids" --out "$tmp/no"
refused "is an adapter itself" convert "$tmp/a/last/adapter" "$tmp/no" --to same --adapter "$tmp/a/last/adapter"
refused "no adapter_config.json" info "$tmp/base" --adapter "$tmp/base"
refused "needs a model directory" info configs/tiny-gqa.yaml --adapter "$tmp/a/last/adapter"
refused "unknown option" train configs/tiny-gqa.yaml --adapter "$tmp/a/last/adapter"
[ -e "$tmp/none" ] && wrong "a refused run left $(find "$tmp/none")"
verdict continued

# Where peft could not load it, no adapter is written, and a line says why.
without() { # PART KEY=VALUE...
    local part=$1
    shift
    rm -rf "$tmp/w"
    run train "$@" run.dir="$tmp/w" lora.rank=2 train.steps=1 --threads 1 train.eval_every=0 optim.warmup=0 || wrong "$*: $(cat "$tmp/err")"
    [ -e "$tmp/w/last/adapter" ] && wrong "$*: wrote an adapter"
    [ -z "$part" ] || grep -q "but no adapter/: $part" "$tmp/out" || wrong "$*: no '$part' in: $(head -n 5 "$tmp/out")"
}
without "the base has random weights" configs/tiny-gqa.yaml
without "init_from is an adapter with its base merged" configs/tiny-gqa.yaml init_from="$tmp/a/last/adapter"
without "peft has tables in another form" configs/tiny-gqa.yaml init_from="$tmp/base" 'lora.targets=["*embed*"]'
ok train configs/tiny-window.yaml run.dir="$tmp/win" train.steps=1 $one
without "no class of transformers" configs/tiny-window.yaml init_from="$tmp/win"
without "" configs/tiny-gqa.yaml init_from="$tmp/base" lora.save=merged
verdict unwritten

# Checkpoints in bf16: half the bytes, named as such, and a run continues from them bit for bit.
bits() { # NAME CONFIG KEY=VALUE...: whole, and cut in two
    local case=$1
    shift
    rm -rf "$tmp/x" "$tmp/y" "$tmp/z"
    ok train "$@" run.dir="$tmp/x" train.steps=6 train.save_every=3 train.keep_last=9 $few train.save_dtype=bf16
    ok train "$@" run.dir="$tmp/y" train.steps=6 train.save_every=3 train.keep_last=9 $few train.save_dtype=bf16 --resume "$tmp/x/step-000003"
    for f in model.safetensors trainer/weights.safetensors trainer/optimizer.safetensors trainer/lora.safetensors; do
        [ ! -e "$tmp/x/last/$f" ] && [ ! -e "$tmp/y/last/$f" ] || cmp "$tmp/x/last/$f" "$tmp/y/last/$f" >>"$bad" 2>&1
    done
    [ -s "$tmp/x/last/trainer/weights.safetensors" ] || wrong "$case: no weights in f32"
    ok train "$@" run.dir="$tmp/z" train.steps=6 $few
    cmp "$tmp/z/last/trainer/optimizer.safetensors" "$tmp/x/last/trainer/optimizer.safetensors" >>"$bad" 2>&1
    grep -q '"torch_dtype": "bfloat16"' "$tmp/x/last/config.json" || wrong "$case: $(cat "$tmp/x/last/config.json")"
    head -c 20000 "$tmp/x/last/model.safetensors" | grep -qa '"dtype":"BF16"' || wrong "$case: no BF16 in model.safetensors"
}
# auto is measured, and a busy machine may measure another dtype the second time
few="--threads 1 -q train.dtype=f32 train.batch=2 train.micro_batch=1 train.eval_every=0 optim.warmup=0"
bits plain configs/tiny-gqa.yaml
ok info "$tmp/x"
bits async configs/tiny-gqa.yaml train.async_save=true
bits lora configs/tiny-gqa.yaml init_from="$tmp/base" $lora
bits stages configs/tiny-gqa.yaml 'stages=[{name: one, steps: 2}, {name: two, steps: 4, set: {optim.lr: 5e-4}}]'
# the same weights, rounded: of a run in f32 and of one in bf16
ok convert "$tmp/z" "$tmp/z16" --to same dtype=bf16 --check-tokens 0 -q
name=rounded logits "$tmp/z16"
name=saved logits "$tmp/x"
name=full logits "$tmp/z"
cmp "$tmp/rounded" "$tmp/saved" >>"$bad" 2>&1
cmp -s "$tmp/full" "$tmp/saved" && wrong "nothing was rounded"
# a torn file is found, and a run may change its mind
cp -rL "$tmp/x/last" "$tmp/torn"
truncate -s -4 "$tmp/torn/trainer/weights.safetensors"
st="stages=[{name: one, steps: 2}, {name: two, steps: 4, set: {optim.lr: 5e-4}}, {name: three, steps: 1}]"
refused "weights.safetensors" train configs/tiny-gqa.yaml run.dir="$tmp/none" train.steps=7 $few "$st" --resume "$tmp/torn"
ok train configs/tiny-gqa.yaml run.dir="$tmp/x" train.steps=7 $few "$st" train.save_dtype=f32 --resume auto
[ -e "$tmp/x/last/trainer/weights.safetensors" ] && wrong "f32: weights twice"
verdict bf16

# auto: the dtype of the source's files, f32 from scratch; a run keeps it, without the source too, unless another is given.
saves() { # RUN DTYPE: of the settings, of the weights, and whether the f32 weights are beside them
    grep -q "^  save_dtype: $2\$" "$tmp/$1/config.yaml" || wrong "$1: $(grep save_dtype "$tmp/$1/config.yaml"), expected $2"
    [ "$(head -c 20000 "$tmp/$1/last/model.safetensors" | grep -ao '"dtype":"[A-Z0-9]*"' | sort -u)" = "\"dtype\":\"${2^^}\"" ] || wrong "$1: $(head -c 300 "$tmp/$1/last/model.safetensors")"
    [ "$2" = bf16 ] && kept=yes || kept=no
    [ "$([ -e "$tmp/$1/last/trainer/weights.safetensors" ] && echo yes || echo no)" = $kept ] || wrong "$1: $(ls "$tmp/$1/last/trainer")"
}
memory() { grep -o '"memory":{[^}]*}' "$1"; }
auto="train configs/tiny-gqa.yaml train.steps=2 $few"
saves z f32
ok $auto run.dir="$tmp/s32" init_from="$tmp/z" && saves s32 f32
ok $auto run.dir="$tmp/s16" init_from="$tmp/z16" --plan --json && cp "$tmp/out" "$tmp/plan"
ok $auto run.dir="$tmp/s16" init_from="$tmp/z16" --json && saves s16 bf16
[ "$(memory "$tmp/plan")" = "$(memory "$tmp/out")" ] && [ -n "$(memory "$tmp/out")" ] || wrong "plan $(memory "$tmp/plan"), run $(memory "$tmp/out")"
ok $auto run.dir="$tmp/explicit" init_from="$tmp/z16" train.save_dtype=f32 --json && saves explicit f32
[ "$(memory "$tmp/plan")" = "$(memory "$tmp/out")" ] || wrong "the files' dtype is none of the memory's: $(memory "$tmp/plan"), $(memory "$tmp/out")"
ok $auto run.dir="$tmp/stage" init_from="$tmp/z16" 'stages=[{name: one, steps: 1, set: {train.save_dtype: f32}}, {name: two, steps: 1}]' && saves stage bf16
ok $auto run.dir="$tmp/sums" init_from="$tmp/z16" lora.rank=2 && saves sums bf16
ok launch -n 2 -- $auto run.dir="$tmp/ranks" init_from="$tmp/z16" && saves ranks bf16
mv "$tmp/z16" "$tmp/gone"
ok $auto run.dir="$tmp/s16" init_from="$tmp/z16" train.steps=3 --resume auto && saves s16 bf16
ok $auto run.dir="$tmp/s16" init_from="$tmp/z16" train.steps=4 train.save_dtype=f32 --resume auto && saves s16 f32
ok $auto run.dir="$tmp/s16" init_from="$tmp/z16" train.steps=5 --resume auto && saves s16 f32
verdict auto

ranks="configs/tiny-gqa.yaml train.dtype=f32 train.batch=4 train.micro_batch=2 train.eval_every=0 optim.warmup=0 train.save_dtype=bf16 dist.stage=2 -q"
ok launch -n 2 -- train $ranks run.dir="$tmp/r" train.steps=4 train.save_every=2 train.keep_last=9 train.async_save=true --threads 1
ok launch -n 2 -- train $ranks run.dir="$tmp/s" train.steps=4 --resume "$tmp/r/step-000002" --threads 1
for f in model.safetensors trainer/weights.safetensors; do cmp "$tmp/r/last/$f" "$tmp/s/last/$f" >>"$bad" 2>&1; done
verdict bf16-ranks

if ! "$python" -c 'import torch, transformers, peft, safetensors' 2>/dev/null; then
    echo "skip peft: no Python with torch, transformers and peft here"
    exit 0
fi
"$python" tests/golden/check_peft.py "$prog" "$tmp/a/last/adapter" "$tmp/a2/last/adapter" >"$tmp/log" 2>"$tmp/err"
grep -E '^(ok|not ok) ' "$tmp/log"
[ "$(grep -cE '^(ok|not ok) ' "$tmp/log")" -eq 2 ] || echo "not ok peft: it ended early: $(tail -n 1 "$tmp/err")"
