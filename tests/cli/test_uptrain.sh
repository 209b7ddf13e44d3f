#!/bin/bash
# Training from a teacher, with frozen tensors and with adapters: the memory against the plan, what is recorded, killed
# and resumed runs, borders of stages, tasks and conversations, and what is refused.
. tests/lib/cases.sh
train() { "$prog" train "$@" >"$tmp/out" 2>"$tmp/err"; }
ok() {
    train "$@"
    local s=$?
    [ $s -eq 0 ] || wrong "train $*: exit $s: $(cat "$tmp/err")"
}
refused() { # PART ARGUMENTS: exit 2, an empty stdout, one line of at most 300 characters with PART, nothing written
    local part=$1 s
    shift
    train "$@" run.dir="$tmp/none/run"
    s=$?
    [ $s -eq 2 ] || wrong "train $*: exit $s, expected 2"
    [ -s "$tmp/out" ] && wrong "train $*: printed $(head -c 80 "$tmp/out")"
    [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ "$(wc -m <"$tmp/err")" -le 301 ] || wrong "train $*: not one line: $(cat "$tmp/err")"
    grep -q -e "$part" "$tmp/err" || wrong "train $*: expected '$part' in: $(cat "$tmp/err")"
    [ -e "$tmp/none" ] && wrong "train $*: left $(find "$tmp/none")"
}
clockless() { sed 's/,"tok_s":.*$/}/' "$1"; }
memory() { grep -o '"memory":{[^}]*}' "$1" | head -n 1; }
# field FILE STEP NAME: of the training record of a step
field() { grep "^{\"step\":$2,.*\"loss\"" "$1" | grep -o "\"$3\":[^,}]*" | head -n 1 | cut -d: -f2; }
same_end() { # two run folders
    local f
    for f in model.safetensors trainer/optimizer.safetensors trainer/lora.safetensors; do
        [ ! -e "$1/last/$f" ] && [ ! -e "$2/last/$f" ] || cmp "$1/last/$f" "$2/last/$f" >>"$bad" 2>&1
    done
    cmp <(clockless "$1/metrics.jsonl") <(clockless "$2/metrics.jsonl") >>"$bad" 2>&1
}
one="--threads 1 -q"

ok configs/tiny-mha.yaml run.dir="$tmp/mha" train.steps=40 $one
"$prog" convert "$tmp/mha" "$tmp/gqa" --to gqa kv_heads=2 -q >"$tmp/out" 2>&1 || wrong "convert: $(cat "$tmp/out")"
up="configs/uptrain.yaml init_from=$tmp/gqa teacher.path=$tmp/mha $one"
stock="configs/tiny-gqa.yaml $one teacher.path=$tmp/mha"

# ---- stages: what each is taught, and what moves
ok $up run.dir="$tmp/a" train.keep_last=9
m=$tmp/a/metrics.jsonl
grep -q '^{"step":3,"stage":"layers","loss":[^,]*,"lm":[^,]*,"attention":[^,]*,"lr"' "$m" || wrong "layers: $(sed -n 3p "$m")"
grep -q '^{"step":13,"stage":"logits","loss":[^,]*,"lm":[^,]*,"kl":[^,]*,"lr"' "$m" || wrong "logits: $(grep '"step":13' "$m")"
grep -q '^{"step":23,"stage":"text","loss":[^,]*,"lr"' "$m" || wrong "text: $(grep '"step":23' "$m")"
[ "$(field "$m" 3 loss)" = "$(field "$m" 3 attention)" ] && [ "$(field "$m" 13 loss)" = "$(field "$m" 13 kl)" ] || wrong "a loss is not its part"
awk -v a="$(field "$m" 1 attention)" -v b="$(field "$m" 10 attention)" 'BEGIN { exit !(b < 0.7 * a) }' || wrong "attention from $(field "$m" 1 attention) to $(field "$m" 10 attention)"
"$prog" info "$tmp/a" >/dev/null 2>"$tmp/err" || wrong "info: $(cat "$tmp/err")"
grep -q '"model_type": "llama"' "$tmp/a/last/config.json" || wrong "no plain model was saved"
# Bit for bit at any break: within a stage, and at a border where moments of frozen tensors begin.
ok $up run.dir="$tmp/b" train.save_every=1 train.keep_last=99
for k in 04 10 13 20; do
    ok $up run.dir="$tmp/c" train.save_every=1 train.keep_last=99 --resume "$tmp/b/step-0000$k"
    cmp "$tmp/a/last/model.safetensors" "$tmp/c/last/model.safetensors" >>"$bad" 2>&1
    cmp "$tmp/a/last/trainer/optimizer.safetensors" "$tmp/c/last/trainer/optimizer.safetensors" >>"$bad" 2>&1
    rm -rf "$tmp/c"
done
verdict stages

# ---- a teacher
all="teacher.losses={lm: 0.5, kl: 1, rkl: 0.5, attention: 1, hidden: 1}"
same="configs/uptrain.yaml $one init_from=null stages=null teacher.path=$tmp/mha train.steps=6"
ok $same "$all" run.dir="$tmp/t"
ok $same "$all" run.dir="$tmp/t2" train.steps=3
mv "$tmp/mha" "$tmp/moved"
ok $same "$all" run.dir="$tmp/t2" --resume auto teacher.path="$tmp/moved"
mv "$tmp/moved" "$tmp/mha"
cmp "$tmp/t/last/model.safetensors" "$tmp/t2/last/model.safetensors" >>"$bad" 2>&1
for k in lm kl rkl attention hidden; do [ -n "$(field "$tmp/t/metrics.jsonl" 6 $k)" ] || wrong "no $k in $(tail -n 2 "$tmp/t/metrics.jsonl")"; done
# The same model teaches nothing. Other layouts and number types teach, too.
ok configs/tiny-mha.yaml $one run.dir="$tmp/self" train.steps=1 optim.warmup=0 init_from="$tmp/mha" teacher.path="$tmp/mha" "$all"
for k in kl rkl attention hidden; do [ "$(field "$tmp/self/metrics.jsonl" 1 $k)" = 0 ] || wrong "$k of itself: $(field "$tmp/self/metrics.jsonl" 1 $k)"; done
ok configs/tiny-kda.yaml $one run.dir="$tmp/kda" train.steps=3 optim.warmup=0 teacher.path="$tmp/mha" --dtype bf16
ok $same "$all" run.dir="$tmp/f32" train.dtype=f32
ok $same "$all" run.dir="$tmp/bf16" train.dtype=bf16 train.recompute=-1
awk -v a="$(field "$tmp/bf16/metrics.jsonl" 1 loss)" -v b="$(field "$tmp/f32/metrics.jsonl" 1 loss)" \
    'BEGIN { d = a - b; exit !(d != 0 && d < 0.02 * b && -d < 0.02 * b) }' || wrong "bf16 and f32: $(field "$tmp/bf16/metrics.jsonl" 1 loss), $(field "$tmp/f32/metrics.jsonl" 1 loss)"
awk -v a="$(field "$tmp/f32/metrics.jsonl" 1 kl)" -v b="$(field "$tmp/f32/metrics.jsonl" 6 kl)" 'BEGIN { exit !(b < 0.98 * a) }' ||
    wrong "kl from $(field "$tmp/f32/metrics.jsonl" 1 kl) to $(field "$tmp/f32/metrics.jsonl" 6 kl)"
# Tasks and conversations.
ok configs/tiny-mqar.yaml $one run.dir="$tmp/mqar"
ok configs/tiny-mqar.yaml $one run.dir="$tmp/mqar2" teacher.path="$tmp/mqar" 'teacher.losses={kl: 1, attention: 1}'
grep -q '"kl":0\.' "$tmp/mqar2/metrics.jsonl" && grep -q val_acc "$tmp/mqar2/metrics.jsonl" || wrong "task: $(tail -n 2 "$tmp/mqar2/metrics.jsonl")"
ok configs/tiny-sft.yaml $one run.dir="$tmp/sft" train.steps=3 optim.warmup=0
ok configs/tiny-sft.yaml $one run.dir="$tmp/sft2" train.steps=3 optim.warmup=0 teacher.path="$tmp/sft" teacher.losses.hidden=1
grep -q '"hidden":0\.' "$tmp/sft2/metrics.jsonl" || wrong "conversations: $(tail -n 2 "$tmp/sft2/metrics.jsonl")"
verdict teacher

# ---- adapters
lora="configs/tiny-mha.yaml $one init_from=$tmp/mha teacher.path=$tmp/mha lora.rank=4 optim.warmup=0"
ok $lora run.dir="$tmp/l" train.steps=12
ok $lora run.dir="$tmp/l2" train.steps=7 optim.schedule_steps=12 train.async_save=true
ok $lora run.dir="$tmp/l2" train.steps=12 optim.schedule_steps=12 --resume auto
sed -i '/"step":7,"val_loss"/d' "$tmp/l2/metrics.jsonl" # the first end was validated
same_end "$tmp/l" "$tmp/l2"
[ -s "$tmp/l/last/trainer/lora.safetensors" ] || wrong "no adapters were saved"
ok configs/tiny-mha.yaml $one run.dir="$tmp/l3" init_from="$tmp/l" train.steps=1 optim.warmup=0 # a plain model
cp -r "$tmp/l/last/" "$tmp/torn"
truncate -s -9 "$tmp/torn/trainer/lora.safetensors"
refused "lora.safetensors" $lora train.steps=20 optim.schedule_steps=12 --resume "$tmp/torn"
rm "$tmp/torn/trainer/lora.safetensors"
refused "lora.safetensors" $lora train.steps=20 optim.schedule_steps=12 --resume "$tmp/torn"
ok configs/tiny-muon.yaml $one run.dir="$tmp/l4" lora.rank=2 optim.state_dtype=bf16 train.steps=6
ok configs/tiny-muon.yaml $one run.dir="$tmp/l5" lora.rank=2 optim.state_dtype=bf16 train.steps=6 --resume "$tmp/l4/step-000006"
verdict adapters

# ---- memory
plan() { # the plan of a run is what it takes
    ok "$@" run.dir="$tmp/plan" --plan --json
    [ -e "$tmp/plan" ] && wrong "--plan made the run folder"
    cp "$tmp/out" "$tmp/planned"
    ok "$@" run.dir="$tmp/plan" --json -q
    [ "$(memory "$tmp/planned")" = "$(memory "$tmp/out")" ] || wrong "$*: planned $(memory "$tmp/planned"), peaks $(memory "$tmp/out")"
    rm -rf "$tmp/plan"
}
few="--threads 1 train.dtype=f32 train.steps=3 optim.warmup=0 train.eval_every=3"
plan configs/tiny-mha.yaml $few teacher.path="$tmp/mha" "$all"
plan configs/tiny-mha.yaml $few teacher.path="$tmp/mha" "$all" train.recompute=-1 train.dropout=0.1
plan configs/tiny-gqa.yaml $few teacher.path="$tmp/mha" lora.rank=8 train.async_save=true
grep -q '"adapter_copy":' "$tmp/planned" && grep -q '"teacher_weights":' "$tmp/planned" || wrong "regions: $(memory "$tmp/planned")"
plan configs/tiny-gqa.yaml $few 'train.freeze=["*.mlp.*"]' optim.kind=muon
plan configs/tiny-gqa.yaml $few teacher.path="$tmp/mha" 'teacher.losses={lm: 0, kl: 0, rkl: 1}'
plan configs/uptrain.yaml --threads 1 train.dtype=f32 init_from="$tmp/gqa" teacher.path="$tmp/mha"
verdict plan-is-the-peak

# ---- refusals
ok configs/tiny-gqa.yaml $one run.dir="$tmp/wide" train.steps=1 optim.warmup=0
ok configs/tiny-mha.yaml $one run.dir="$tmp/deep" train.steps=1 optim.warmup=0 model.layers=3
ok configs/tiny-mha.yaml $one run.dir="$tmp/vocab" train.steps=1 optim.warmup=0 model.vocab=300
refused "teacher.path: .*nosuch" $stock teacher.path="$tmp/nosuch"
refused "teacher.path: .*x: File name too long" $stock teacher.path="$(printf 'x%.0s' $(seq 400))"
refused "teacher.path: .*vocabulary of 300" $stock teacher.path="$tmp/vocab"
refused "teacher.path: .*vocabulary of 32" $stock teacher.path="$tmp/mqar"
cp -r "$tmp/mha/last/" "$tmp/other"
sed -i 's/endoftext/end/' "$tmp/other/tokenizer.json"
refused "teacher.path: .*tokenizer" $stock teacher.path="$tmp/other"
cp -r "$tmp/mha/last/" "$tmp/cut"
truncate -s -7 "$tmp/cut/model.safetensors"
refused "teacher.path: .*model.safetensors" $stock teacher.path="$tmp/cut"
refused "positions" $stock data.seq_len=65 train.micro_batch=1
refused "d_model 32.*teacher.losses.attention" $stock teacher.losses.attention=1
refused "teacher.losses.hidden" configs/tiny-mha.yaml $one teacher.path="$tmp/deep" teacher.losses.hidden=1
refused "teacher.losses: all are 0" $stock 'teacher.losses={lm: 0, kl: 0}'
refused "teacher.losses.lm" $stock 'teacher.losses={lm: 2, kl: 0}'
refused "teacher.path: required" configs/tiny-gqa.yaml $one teacher.losses.kl=2
refused "teacher.temperature" $stock teacher.temperature=0
refused "teacher.losses.kl" $stock teacher.losses.kl=-1
refused "teacher.losses.kI" $stock teacher.losses.kI=1
refused "nosuch.*matches no tensor" $stock 'train.freeze=["*.mlp.*", "nosuch*"]'
refused "train_only.*nosuch" $stock 'train.train_only=nosuch'
refused "no tensor is left" $stock 'train.freeze=["*"]'
refused "train.freeze" $stock 'train.freeze=[{a: b}]'
refused "train.freeze" $stock 'train.freeze=[""]'
refused "train.freeze" $stock 'train.freeze={a: b}'
refused "train.freeze" $stock "train.freeze=$(printf 'x%.0s' $(seq 300))"
refused "train.freeze: 65" $stock "train.freeze=[$(printf 'x,%.0s' $(seq 64))x]"
refused "optim.groups.0.match.*nosuch" $stock 'optim.groups=[{match: nosuch}]'
refused "optim.groups.0.match" $stock 'optim.groups=[{match: "*.mlp.*"}]' 'train.freeze=["*.mlp.*"]'
refused "optim.groups.0.match" $stock 'optim.groups=[{lr_scale: 2}]'
refused "optim.groups.0" $stock 'optim.groups=[{match: ""}]'
refused "optim.groups.0.lr_scale" $stock 'optim.groups=[{match: "*", lr_scale: -1}]'
refused "optim.groups" $stock 'optim.groups={match: "*"}'
refused "optim.groups.0" $stock 'optim.groups=[1]'
refused "lora.targets.*nosuch" $stock lora.rank=2 'lora.targets=["*q_proj*", nosuch]'
refused "lora.targets" $stock lora.rank=2 'lora.targets=[]'
refused "lora.targets.*norm" $stock lora.rank=2 'lora.targets=["*norm*"]'
refused "lora.rank: 33" $stock lora.rank=33
refused "lora.rank: required" $stock lora.alpha=2
refused "train.freeze.*lora.rank" $stock lora.rank=2 'train.freeze=["*.mlp.*"]'
refused "optim.groups.0.match.*adapter" $stock lora.rank=2 'optim.groups=[{match: "*embed*"}]'
refused "lora: the mixer dmc" configs/tiny-dmc.yaml $one lora.rank=2
refused "lora" $up 'stages=[{name: a, steps: 2}, {name: b, steps: 2, set: {lora.rank: 2}}]'
# Going on with another teacher, with one more or with one less would be another run.
same_dir() { train $same "$all" run.dir="$tmp/t" train.steps=9 --resume auto "$@"; }
for over in teacher.path="$tmp/deep" teacher.path=null "teacher.temperature=2"; do
    same_dir "$over" && wrong "resumed with $over"
    [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q "teacher" "$tmp/err" || wrong "$over: $(cat "$tmp/err")"
done
train $same "$all" run.dir="$tmp/t" train.steps=9 --resume auto teacher.path="$tmp/gqa" && wrong "resumed with another teacher"
grep -q "differs from the teacher" "$tmp/err" || wrong "another teacher: $(cat "$tmp/err")"
cmp "$tmp/t/last/model.safetensors" "$tmp/t2/last/model.safetensors" >>"$bad" 2>&1
verdict refusals
