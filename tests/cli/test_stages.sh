#!/bin/bash
# Runs of several stages: what a border changes and what it does not, killed and resumed at any moment and on the border
# itself; weights taken from elsewhere by init_from.
. tests/lib/cases.sh
${CC:-gcc} -shared -fPIC -O1 -o "$tmp/world.so" tests/shim/world.c -ldl || exit 1
train() { "$prog" train "$@" >"$tmp/out" 2>"$tmp/err"; }
ok() {
    train "$@"
    local s=$?
    [ $s -eq 0 ] || wrong "train $*: exit $s: $(cat "$tmp/err")"
}
refused() { # PART ARGUMENTS: exit 2, an empty stdout, one line of at most 300 characters with PART
    local part=$1 s
    shift
    train "$@"
    s=$?
    [ $s -eq 2 ] || wrong "train $*: exit $s, expected 2"
    [ -s "$tmp/out" ] && wrong "train $*: printed $(head -c 80 "$tmp/out")"
    [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ "$(wc -m <"$tmp/err")" -le 301 ] || wrong "train $*: not one line: $(cat "$tmp/err")"
    grep -q -e "$part" "$tmp/err" || wrong "train $*: expected '$part' in: $(cat "$tmp/err")"
}
clockless() { sed 's/,"tok_s":.*$/}/' "$1"; }
same_numbers() { # two checkpoints
    for f in model.safetensors trainer/optimizer.safetensors; do cmp "$1/$f" "$2/$f" >>"$bad" 2>&1; done
}
# But for what a run that was killed before its first checkpoint had written, which the next one keeps.
holds() { ls -A "$1" | grep -vE '^old-([0-9]+-)?(metrics.jsonl|samples.txt)$'; }
same_end() { # $1: run folder; ends with what the uninterrupted run $2 ended with
    local f
    same_numbers "$1/last" "$2/last"
    for f in last/config.json last/trainer/state.json samples.txt; do cmp "$1/$f" "$2/$f" >>"$bad" 2>&1; done
    cmp <(clockless "$1/metrics.jsonl") <(clockless "$2/metrics.jsonl") >>"$bad" 2>&1
    for f in last best; do
        [ "$(readlink "$1/$f")" = "$(readlink "$2/$f")" ] || wrong "$f is $(readlink "$1/$f"), expected $(readlink "$2/$f")"
    done
    [ "$(holds "$1")" = "$(holds "$2")" ] || wrong "$1 holds: $(holds "$1" | tr '\n' ' '), expected: $(holds "$2" | tr '\n' ' ')"
}
# field FILE STEP NAME: of the training record of a step
field() { grep "^{\"step\":$2,.*\"loss\"" "$1" | grep -o "\"$3\":[^,}]*" | head -n 1 | cut -d: -f2; }
is() { [ "$2" = "$3" ] || wrong "$1: $2, expected $3"; }

# auto is measured, and a busy machine may measure another dtype the second time
tiny="configs/tiny-stages.yaml --threads 1 -q train.dtype=f32"

# ---- what a border changes
ok $tiny run.dir="$tmp/a" train.keep_last=9
m=$tmp/a/metrics.jsonl
is "stage at 15" "$(field "$m" 15 stage)" '"short"'
is "stage at 16" "$(field "$m" 16 stage)" '"long"'
is "lr at 1" "$(field "$m" 1 lr)" 0.0005
is "lr at 15" "$(field "$m" 15 lr)" 0.003
is "lr at 16" "$(field "$m" 16 lr)" 0.001
is "lr at 25" "$(field "$m" 25 lr)" 0.0001
is "tokens at 15" "$(field "$m" 15 tokens)" 3840
is "tokens at 25" "$(field "$m" 25 tokens)" 6400
is "records" "$(grep -c '"loss"' "$m")" 25
is "validations" "$(grep -c '"val_loss"' "$m")" 5
is "validations of the second stage" "$(grep -c '"stage":"long","val_loss"' "$m")" 2
[ -d "$tmp/a/step-000015" ] || wrong "the first stage's end was not saved: $(ls "$tmp/a" | tr '\n' ' ')"
grep -q '"model_type": "llama"' "$tmp/a/step-000015/config.json" || wrong "the first stage has no window"
grep -q '"sliding_window": 48' "$tmp/a/step-000020/config.json" || wrong "the second stage has no window of 48"
grep -q '"samples": 160' "$tmp/a/last/trainer/state.json" || wrong "samples: $(cat "$tmp/a/last/trainer/state.json")"
ok $tiny run.dir="$tmp/again"
cmp "$tmp/a/last/model.safetensors" "$tmp/again/last/model.safetensors" >>"$bad"
ok "$tmp/a/config.yaml" --threads 1 -q run.dir="$tmp/resolved"
same_numbers "$tmp/resolved/last" "$tmp/a/last"
"$prog" train configs/tiny-stages.yaml --threads 1 run.dir="$tmp/shown" >"$tmp/out" 2>&1 || wrong "exit $?"
is "lines of the second stage" "$(grep -c '^step [0-9]*/25 long  loss ' "$tmp/out")" 10
grep -q '^stage long: steps 16 to 25$' "$tmp/out" || wrong "no line for the stage: $(cat "$tmp/out")"
ok configs/tiny-stages.yaml --threads 1 run.dir="$tmp/none" --plan
is "stages planned" "$(grep -c '^stage ' "$tmp/out")" 2
[ -e "$tmp/none" ] && wrong "--plan left $(ls -A "$tmp/none")"
# The summary counts what this process did, in all its stages.
ok $tiny train.keep_last=9 run.dir="$tmp/json" --resume "$tmp/a/step-000010" --json
number() { grep -o "\"$1\":[^,}]*" "$tmp/out" | head -n 1 | cut -d: -f2; }
is "tokens by their speed" "$(awk -v r="$(number tok_s)" -v s="$(number seconds)" 'BEGIN { printf "%.0f", r * s }')" 3840
verdict border

# A best checkpoint is the best of its stage: losses under other settings are another measure.
ok $tiny run.dir="$tmp/best" stages='[{name: a, steps: 5}, {name: b, steps: 5, set: {optim.lr: 0.2, train.eval_every: 0}}]'
[ -e "$tmp/best/best" ] && wrong "best is $(readlink "$tmp/best/best"), of a stage that is over"
ok $tiny run.dir="$tmp/best2" stages='[{name: a, steps: 5}, {name: b, steps: 5, set: {optim.lr: 2, optim.warmup: 0, optim.clip: 0}}]'
is "best" "$(readlink "$tmp/best2/best")" step-000010
"$prog" generate "$tmp/best2" --max-new 2 --json >"$tmp/out" 2>&1 || wrong "generate: $(cat "$tmp/out")"
verdict best-of-the-stage

# ---- what it does not: weights, moments, steps of the optimizer, order of the text, noise
sed 's/{steps: 20, /{/' configs/tiny-window.yaml >"$tmp/window.yaml" # stages bring their own
plain="$tmp/window.yaml --threads 1 -q train.dtype=f32 train.batch=2 train.micro_batch=1 train.dropout=0.1 train.eval_every=8
    train.eval_tokens=256 train.save_every=7 train.log_every=1 train.sample_every=10 train.sample_prompt=And
    train.sample_tokens=8 optim.warmup=0 optim.schedule=constant"
ok $plain run.dir="$tmp/whole" train.steps=24
for cut in '[{name: a, steps: 8}, {name: b, steps: 16}]' \
    '[{name: a, steps: 16}, {name: b, steps: 7, set: {train.micro_batch: 1, train.recompute: -1}}, {name: c, steps: 1, set: {train.sample_every: 1}}]'; do
    rm -rf "$tmp/cut"
    ok $plain run.dir="$tmp/cut" stages="$cut"
    same_numbers "$tmp/cut/last" "$tmp/whole/last"
    # But for the name, and the validation that ends each stage.
    for f in whole cut; do clockless "$tmp/$f/metrics.jsonl" | grep '"loss"' | sed 's/,"stage":"[a-z]*"//' >"$tmp/$f.records"; done
    cmp "$tmp/cut.records" "$tmp/whole.records" >>"$bad" 2>&1
done
cmp <(head -n 2 "$tmp/cut/samples.txt") <(head -n 2 "$tmp/whole/samples.txt") >>"$bad"
ok $plain run.dir="$tmp/text" stages='[{name: a, steps: 8}, {name: b, steps: 8, set: {data.train: README.md, data.seq_len: 32}}]'
verdict a-border-alone-changes-nothing

# ---- kill -9 at up to 16 moments of four stages
args="$plain train.save_every=6 train.keep_last=2"
stages='stages=[{name: a, steps: 20, set: {optim.warmup: 3}}, {name: b, steps: 15, set: {data.train: README.md, train.batch: 4,
    train.micro_batch: 2}}, {name: c, steps: 5, set: {data.seq_len: 16, train.recompute: -1, train.sample_every: 2}}, {name: d, steps: 30,
    set: {model.kinds.local.window: 9, optim.schedule: wsd, optim.decay_steps: 10}}]'
slowly() { LD_PRELOAD=$tmp/world.so WORLD_SLOW_US=${slow:-3000} exec "$prog" train $args "$stages" "$@"; }
ok $args "$stages" run.dir="$tmp/ref"
is "stages seen" "$(grep -o '"stage":"[a-d]"' "$tmp/ref/metrics.jsonl" | sort -u | wc -l)" 4
run=$tmp/killed
RANDOM=20250211
kills=0 tries=0 where=
exec 3>&2 2>/dev/null # the shell tells of every child that is killed
while [ $kills -lt 16 ] && [ $tries -lt 40 ]; do
    tries=$((tries + 1))
    resume=
    [ -e "$run/config.yaml" ] && resume="--resume auto"
    had=$(readlink "$run/last")
    # shellcheck disable=SC2086
    (slowly run.dir="$run" $resume 2>"$tmp/err") &
    pid=$!
    if [ $kills -gt 1 ]; then
        until [ "$(readlink "$run/last")" != "$had" ] || ! kill -0 $pid; do sleep 0.002; done
    fi
    [ $((tries % 3)) -eq 0 ] && until ls -A "$run" | grep -q '^\.tmp-step' || ! kill -0 $pid; do sleep 0.002; done
    sleep 0.$((RANDOM % 20))$((RANDOM % 10))
    if kill -9 $pid; then
        kills=$((kills + 1))
        wait $pid
        where="$where $(readlink "$run/last" | sed 's/step-0*//')"
    fi
    wait $pid
    # killed before its first checkpoint, a run tells that its metrics were kept aside
    [ -n "$had" ] || sed -i '/is of a run that has no checkpoint; a full copy is kept/d' "$tmp/err"
    [ -s "$tmp/err" ] && wrong "try $tries: $(cat "$tmp/err")"
    [ "$(readlink "$run/last")" = step-000070 ] && break
done
exec 2>&3 3>&-
echo "  $kills kills; checkpoints then:$where"
[ $kills -ge 6 ] || wrong "$kills kills, expected at least 6"
ok $args "$stages" run.dir="$run" --resume auto
same_end "$run" "$tmp/ref"
verdict kill-9-resumes-to-the-same-bytes

# From every checkpoint there is, those at the borders (20, 35, 40) among them; and by a signal.
ok $args "$stages" train.keep_last=99 run.dir="$tmp/all"
for s in 6 20 35 36 40 42 70; do
    rm -rf "$tmp/from"
    step=$(printf 'step-%06d' $s)
    [ -d "$tmp/all/$step" ] || wrong "no checkpoint of step $s: $(ls "$tmp/all" | tr '\n' ' ')"
    ok $args "$stages" run.dir="$tmp/from" train.keep_last=99 --resume "$tmp/all/$step"
    same_numbers "$tmp/from/last" "$tmp/all/last"
    cmp "$tmp/from/last/config.json" "$tmp/all/last/config.json" >>"$bad"
    is "records from $s" "$(grep -c '"loss"' "$tmp/from/metrics.jsonl" 2>/dev/null)" $((70 - s))
done
run=$tmp/term
for s in 20 35; do # as soon as the border's checkpoint stands
    resume=
    [ -e "$run/config.yaml" ] && resume="--resume auto"
    # shellcheck disable=SC2086
    (slowly run.dir="$run" $resume 2>"$tmp/err") &
    pid=$!
    until [ "$(readlink "$run/last")" = "$(printf 'step-%06d' $s)" ] || ! kill -0 $pid 2>/dev/null; do sleep 0.002; done
    kill -TERM $pid
    wait $pid
    rc=$?
    [ $rc -eq 130 ] || wrong "signal at $s: exit $rc, expected 130: $(cat "$tmp/err")"
done
ok $args "$stages" run.dir="$run" --resume auto
same_end "$run" "$tmp/ref"
verdict resume-at-the-border

# ---- what may be another when a run goes on
rm -rf "$tmp/from"
cp -a "$tmp/a" "$tmp/b"
rm -r "$tmp/b/step-000020" "$tmp/b/step-000025"
resume="$tiny train.keep_last=9 --resume auto"
refused "stage short: optim.lr" $resume run.dir="$tmp/b" optim.lr=1
refused "stages.0.steps: 14" $resume run.dir="$tmp/b" stages.0.steps=14
refused "stages.0.name: x" $resume run.dir="$tmp/b" stages.0.name=x
refused "stages: none" $resume run.dir="$tmp/b" stages=null train.steps=20
ok $resume run.dir="$tmp/b" stages.1.steps=12
is "longer last stage" "$(readlink "$tmp/b/last")" step-000027
refused "stages.1.steps: 11" $resume run.dir="$tmp/b" stages.1.steps=11
refused "stage long: optim.min_lr" $resume run.dir="$tmp/b" stages.1.steps=13 stages.1.set.optim.min_lr=1e-5
# A text that is too short, or that is not there, is not found at the end of the stage before.
new="run.dir=$tmp/none/such"
head -c 40 data/kjv.txt >"$tmp/short.txt"
refused "stage long: .*data.seq_len" $tiny "$new" stages.1.set.data="{train: $tmp/short.txt, val: README.md}"
refused "stage long: .*nosuch.txt" $tiny "$new" stages.1.set.data.train=nosuch.txt
refused "stage long: has the tensor model.layers.0.self_attn.k_proj.weight .* a stage may not change" $tiny "$new" \
    stages.1.set.model.kinds.full.kv_heads=1
refused "stage long: has the tensor model.norm.weight" $tiny "$new" stages.1.set.model.layers=1
refused "stage long: .*optim.lrr: unknown key" $tiny "$new" stages.1.set.optim.lrr=1
refused "stage long: train.compression.target: 2, but no layer" $tiny "$new" stages.1.set.train.compression=2
refused "the stages have 25 together" $tiny "$new" train.steps=26
[ -e "$tmp/none" ] && wrong "refusals left: $(find "$tmp/none")"
verdict refusals

# ---- a retrofit: dmc from the weights of a gqa model, in three stages
dmc="configs/tiny-dmc.yaml --threads 1 -q train.keep_last=9"
ok configs/tiny-gqa.yaml --threads 1 -q run.dir="$tmp/gqa" train.steps=60
ok $dmc run.dir="$tmp/dmc" init_from="$tmp/gqa"
m=$tmp/dmc/metrics.jsonl
grep '"stage":"zero"' "$m" | grep -q '"cr' && wrong "plain attention reported a compression"
[ "$(grep '"stage":"retrofit".*"loss"' "$m" | grep -c '"cr":[0-9.]*,"cr_loss":[0-9.e-]*,"lr"')" -eq 15 ] || wrong "records: $(cat "$m")"
cr() { grep "^{\"step\":$1,.*val_loss" "$m" | grep -o '"cr":[0-9.]*' | cut -d: -f2; }
# In training decisions are noisy: that is where the target holds.
trained=$(grep '"stage":"fix".*"loss"' "$m" | grep -o '"cr":[0-9.]*' | cut -d: -f2 | awk '{ s += 1 - 1 / $1 } END { print 1 / (1 - s / NR) }')
echo "  compression, target 2: $trained at the end of training; in validation $(cr 50) $(cr 100) $(cr 150) $(cr 170) $(cr 220)"
awk -v a="$(cr 50)" -v b="$(cr 220)" -v t="$trained" 'BEGIN { exit !(a < 1.5 && b >= 1.7 && t >= 1.95) }' || wrong "compression $trained"
bytes() {
    "$prog" generate "$tmp/dmc/step-$1" --prompt "In the beginning God created the heaven and the earth." --max-new 150 --temperature 0 \
        --ignore-eos --context 300 --json -q 2>>"$bad" | grep -o '"cache_bytes": *[0-9]*' | grep -o '[0-9]*'
}
echo "  bytes of the cache after 205 tokens: $(bytes 000020), $(bytes 000220)"
awk -v a="$(bytes 000020)" -v b="$(bytes 000220)" 'BEGIN { exit !(b > 0 && a >= 1.7 * b) }' || wrong "cache: $(bytes 000020), then $(bytes 000220)"
ok $dmc run.dir="$tmp/dmc2" init_from="$tmp/gqa" --resume "$tmp/dmc/step-000170"
same_numbers "$tmp/dmc2/last" "$tmp/dmc/last"
ok $dmc run.dir="$tmp/dmc3" init_from="$tmp/gqa" stages='[{name: still, steps: 1, set: {optim.lr: 0, model.kinds.full.phase: soft}}]'
cmp "$tmp/dmc3/last/model.safetensors" "$tmp/gqa/last/model.safetensors" >>"$bad"
refused "stage zero: train.compression.target: 2, but no layer" $dmc "$new" stages.0.set="{train.compression: 2}"
verdict retrofit

# ---- init_from
gqa="configs/tiny-gqa.yaml --threads 1 -q"
still="train.steps=1 optim.lr=0 optim.min_lr=0 optim.warmup=0"
ok $gqa run.dir="$tmp/src" train.steps=10
for from in "$tmp/src" "$tmp/src/last" "$tmp/src/step-000010/"; do
    rm -rf "$tmp/init"
    ok $gqa run.dir="$tmp/init" $still init_from="$from"
    cmp "$tmp/init/last/model.safetensors" "$tmp/src/last/model.safetensors" >>"$bad" 2>&1
done
# From the working directory, as texts are; another layout of the same tensors; the optimizer begins anew.
here=$PWD
rm -rf "$tmp/init"
(cd "$tmp" && "$prog" train "$here/configs/tiny-gqa.yaml" --threads 1 -q run.dir=init $still init_from=src/last \
    data.train="$here/data/kjv.txt" model.kinds.full.window=20 init_change=window) 2>"$tmp/err" || wrong "relative: $(cat "$tmp/err")"
cmp "$tmp/init/last/model.safetensors" "$tmp/src/last/model.safetensors" >>"$bad" 2>&1
ok $gqa run.dir="$tmp/one" train.steps=1 optim.warmup=0 init_from="$tmp/src"
[ "$(field "$tmp/one/metrics.jsonl" 1 loss)" != "$(field "$tmp/src/metrics.jsonl" 1 loss)" ] || wrong "init_from changed nothing"
cmp -s "$tmp/one/last/trainer/optimizer.safetensors" "$tmp/src/last/trainer/optimizer.safetensors" && wrong "moments were taken over"
# Killed before its first checkpoint, it begins there again; later the source is no longer asked for.
rm -r "$tmp/one"/step-* "$tmp/one/last" "$tmp/one/best"
ok $gqa run.dir="$tmp/one" train.steps=1 optim.warmup=0 init_from="$tmp/src" --resume auto
mv "$tmp/src" "$tmp/gone"
ok $gqa run.dir="$tmp/one" train.steps=2 optim.warmup=0 init_from="$tmp/src" --resume auto
mv "$tmp/gone" "$tmp/src"
verdict init-from

# What a source can lack. $1: what is done to a copy of it; $2: what the refusal names
broken() {
    rm -rf "$tmp/copy"
    cp -rL "$tmp/src/last" "$tmp/copy"
    (cd "$tmp/copy" && eval "$1")
    diff -rq "$tmp/copy" "$tmp/src/last/" >/dev/null && wrong "the damage changed nothing: $1"
    refused "^kvsmith: init_from: .*$2" $gqa "$new" init_from="$tmp/copy"
}
broken "truncate -s -4 model.safetensors" "model.safetensors"
broken "truncate -s 100 model.safetensors" "model.safetensors"
broken "truncate -s 7 model.safetensors" "model.safetensors"
broken ": >model.safetensors" "model.safetensors"
broken "rm model.safetensors" "model.safetensors"
broken "printf '\377\377\377\377\377\377\377\177' | dd of=model.safetensors conv=notrunc status=none" "model.safetensors"
broken "sed -i 's/model.norm.weight/model.nerm.weight/' model.safetensors" "model.norm.weight"
broken "sed -i 's/\"F32\"/\"I32\"/' model.safetensors" "dtype\|I32"
broken "rm tokenizer.json" "tokenizer.json"
broken "truncate -s 100 tokenizer.json" "tokenizer.json"
broken "sed -i 's/\"merges\": *\[\]/\"merges\": [\"a b\"]/' tokenizer.json" "tokenizer.json"
broken "rm config.json" "config.json"
broken "echo '[' >config.json" "config.json"
broken "sed -i 's/\"vocab_size\": 257/\"vocab_size\": 300/' config.json" "vocabulary of 300, model.vocab is 257"
refused "init_from: .*nosuch" $gqa "$new" init_from="$tmp/nosuch"
refused "init_from: .*model.layers.2" $gqa "$new" init_from="$tmp/src" model.layers=3
refused "init_from: .*model.layers.1" $gqa "$new" init_from="$tmp/src" model.layers=1
refused "init_from: .*k_proj" $gqa "$new" init_from="$tmp/src" model.kinds.full.kv_heads=4
refused "init_from: .*vocabulary of 257, model.vocab is 300" $gqa "$new" init_from="$tmp/src" model.vocab=300
refused "init_from: .*lm_head" $gqa "$new" init_from="$tmp/src" model.tied=false
[ -e "$tmp/none" ] && wrong "refusals left: $(find "$tmp/none")"
verdict init-from-refusals
