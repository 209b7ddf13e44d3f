#!/bin/bash
# Checkpoints written by a thread of their own (train.async_save): the bytes are those of the loop's own, a killed,
# interrupted or failing save loses nothing but time, and training does not wait. tests/shim/world.c slows or fills the disk.
. tests/lib/cases.sh
${CC:-gcc} -shared -fPIC -O1 -o "$tmp/world.so" tests/shim/world.c -ldl || exit 1

clockless() { sed 's/,"tok_s":.*$/}/' "$1"; }
# But for what a run that was killed before its first checkpoint had written, which the next one keeps.
holds() { ls -A "$1" | grep -vE '^old-([0-9]+-)?(metrics.jsonl|samples.txt)$'; }
same_end() { # $1: run folder; ends with what the run $2 ended with
    local f
    for f in last/model.safetensors last/trainer/optimizer.safetensors last/config.json last/trainer/state.json samples.txt; do
        cmp "$1/$f" "$2/$f" >>"$bad" 2>&1
    done
    cmp <(clockless "$1/metrics.jsonl") <(clockless "$2/metrics.jsonl") >>"$bad" 2>&1
    for f in last best; do
        [ "$(readlink "$1/$f")" = "$(readlink "$2/$f")" ] || wrong "$f is $(readlink "$1/$f"), expected $(readlink "$2/$f")"
    done
    [ "$(holds "$1")" = "$(holds "$2")" ] || wrong "$1 holds: $(holds "$1" | tr '\n' ' '), expected: $(holds "$2" | tr '\n' ' ')"
}
sums() { (cd "$1" && find . -type f -exec sha256sum {} + | sort); }
lines() { # file, number of lines: each at most 300 characters behind the program's name; with the rest of the words in it
    [ "$(wc -l <"$1")" -eq "$2" ] || wrong "expected $2 lines, got: $(cat "$1")"
    awk 'length > 320' "$1" | grep -q . && wrong "too long: $(cat "$1")"
    local f=$1
    shift 2
    for w in "$@"; do grep -q -e "$w" "$f" || wrong "expected '$w' in: $(cat "$f")"; done
}

args="configs/tiny-window.yaml --threads 1 -q train.dtype=f32 train.batch=2 train.micro_batch=1 train.dropout=0.1 train.steps=120
    train.eval_every=8 train.eval_tokens=256 train.save_every=6 train.log_every=2 train.sample_every=10
    train.sample_prompt=And train.sample_tokens=8 train.keep_last=2 optim.warmup=5"
train() { "$prog" train $args train.async_save=true "$@"; }
slowly() { LD_PRELOAD=$tmp/world.so WORLD_SLOW_US=${slow:-4000} exec "$prog" train $args train.async_save=true "$@"; }

# ---- the same bytes
"$prog" train $args run.dir="$tmp/ref" || wrong "reference: exit $?"
train run.dir="$tmp/async" || wrong "exit $?"
same_end "$tmp/async" "$tmp/ref"
for async in true false; do
    "$prog" train $args train.keep_last=99 train.steps=30 train.async_save=$async run.dir="$tmp/all-$async" || wrong "exit $?"
    sed -i '/^  dir: /d; /^  async_save: /d' "$tmp/all-$async"/config.yaml "$tmp/all-$async"/step-*/trainer/config.yaml
    rm "$tmp/all-$async"/{metrics,run}.jsonl "$tmp/all-$async"/step-*/trainer/clock.json # the clock is in them
done
[ "$(find "$tmp/all-true" -name '*.safetensors' | wc -l)" -ge 10 ] || wrong "too few checkpoints: $(ls "$tmp/all-true")"
diff -r "$tmp/all-true" "$tmp/all-false" >>"$bad" 2>&1
for kind in "optim.kind=muon" "optim.state_dtype=bf16"; do
    for async in true false; do
        "$prog" train $args train.steps=12 $kind train.async_save=$async run.dir="$tmp/$kind-$async" || wrong "exit $?"
    done
    same_end "$tmp/$kind-true" "$tmp/$kind-false"
done
for async in true false; do
    "$prog" train configs/tiny-stages.yaml --threads 1 -q train.dtype=f32 train.async_save=$async run.dir="$tmp/stages-$async" || wrong "exit $?"
done
cmp "$tmp/stages-true/last/trainer/optimizer.safetensors" "$tmp/stages-false/last/trainer/optimizer.safetensors" >>"$bad" 2>&1
cmp <(clockless "$tmp/stages-true/metrics.jsonl") <(clockless "$tmp/stages-false/metrics.jsonl") >>"$bad" 2>&1
verdict async-writes-the-same-bytes
rm -rf "$tmp"/all-* "$tmp"/optim* "$tmp"/stages-*

# ---- its bytes in the plan, and in what the run maps
for more in "optim.kind=adamw" "optim.kind=muon optim.state_dtype=bf16"; do
    region() { "$prog" train $args $more "$@" --plan --json run.dir="$tmp/none" | grep -o "\"$key\":[0-9]*" | head -n 1 | cut -d: -f2; }
    sum=0
    for key in weights first_moments second_moments; do sum=$((sum + $(region))); done
    key=checkpoint_copy
    [ "$(region train.async_save=true)" = "$sum" ] || wrong "$more: the copy takes $(region train.async_save=true), the numbers $sum"
    [ -z "$(region)" ] || wrong "a copy without async_save: $(region)"
    key=total
    with=$(region train.async_save=true) without=$(region)
    [ "$((with - without))" = "$sum" ] || wrong "$more: totals $with and $without differ by other than $sum"
    train $more train.steps=6 run.dir="$tmp/plan" --json >"$tmp/out" || wrong "exit $?"
    grep -q "\"checkpoint_copy\":$sum" "$tmp/out" && grep -q "\"memory_mapped\":$with" "$tmp/out" || wrong "planned $with: $(cat "$tmp/out")"
    rm -r "$tmp/plan"
done
verdict copy-is-planned

# ---- training does not wait: records are written while the first checkpoint is
run=$tmp/slow
(slow=100000 slowly train.steps=12 train.log_every=1 train.eval_every=0 train.sample_every=0 run.dir="$run" 2>"$tmp/err") &
pid=$!
until ls -A "$run" 2>/dev/null | grep -q '^\.tmp-step-000006' || ! kill -0 $pid 2>/dev/null; do sleep 0.002; done
until grep -q '^{"step":9,' "$run/metrics.jsonl" || [ -e "$run/step-000006" ]; do sleep 0.002; done
[ -e "$run/step-000006" ] && wrong "training waited for the checkpoint"
ls -A "$run" | grep -q '^\.tmp-step-000006' || wrong "no checkpoint under way: $(ls -A "$run")"
wait $pid || wrong "exit $?: $(cat "$tmp/err")"
[ -e "$run/step-000012" ] && [ "$(readlink "$run/last")" = step-000012 ] || wrong "the end was not saved: $(ls -A "$run")"
verdict training-goes-on

# ---- kill -9 at 16 moments, most of them inside a save
run=$tmp/killed
RANDOM=20250211
kills=0 inside=0 tries=0 where=
exec 3>&2 2>/dev/null
while [ $kills -lt 16 ] && [ $tries -lt 50 ]; do
    tries=$((tries + 1))
    resume=
    [ -e "$run/config.yaml" ] && resume="--resume auto"
    had=$(readlink "$run/last")
    (slowly run.dir="$run" $resume 2>"$tmp/err") &
    pid=$!
    if [ $((tries % 5)) -eq 0 ]; then # wherever it is
        sleep 0.$((RANDOM % 300 + 100))
    else
        [ $((tries % 5)) -eq 1 ] || until [ "$(readlink "$run/last")" != "$had" ] || ! kill -0 $pid; do sleep 0.002; done
        until ls -A "$run" | grep -q '^\.tmp-step' || ! kill -0 $pid; do sleep 0.002; done
        sleep 0.0$((RANDOM % 40 + 10))
    fi
    if kill -9 $pid; then
        kills=$((kills + 1))
        wait $pid
        ls -A "$run" | grep -q '^\.tmp-step' && inside=$((inside + 1))
        for d in "$run"/step-*; do # what can be seen is whole
            [ -e "$d" ] || continue
            "$prog" info "$d" >"$tmp/out" && [ -s "$d/trainer/state.json" ] || wrong "try $tries: $d is not whole"
        done
        where="$where $(readlink "$run/last" | sed 's/step-0*//')"
    fi
    wait $pid
    # records of a run that has no checkpoint yet are kept, with a note
    grep -v 'is of a run that has no checkpoint; a full copy is kept as old-' "$tmp/err" >"$tmp/err.other" &&
        wrong "try $tries: $(cat "$tmp/err.other")"
done
exec 2>&3 3>&-
echo "  $kills kills, $inside while a checkpoint was written; checkpoints then:$where"
[ $kills -eq 16 ] || wrong "$kills kills, expected 16"
[ $inside -ge 5 ] || wrong "$inside kills inside a checkpoint, expected at least 5"
train run.dir="$run" --resume auto || wrong "resume: exit $?"
same_end "$run" "$tmp/ref"
verdict kill-9-during-a-save
rm -rf "$run"

# ---- a signal waits for what is under way, and saves
run=$tmp/term
for sig in TERM INT; do
    resume=
    [ -e "$run/config.yaml" ] && resume="--resume auto"
    had=$(readlink "$run/last")
    (trap - INT; slow=8000 slowly run.dir="$run" $resume 2>"$tmp/err") &
    pid=$!
    until [ "$(readlink "$run/last")" != "$had" ] && ls -A "$run" | grep -q '^\.tmp-step' || ! kill -0 $pid 2>/dev/null; do sleep 0.002; done
    kill -$sig $pid
    wait $pid
    s=$?
    [ $s -eq 130 ] || wrong "$sig: exit $s, expected 130: $(cat "$tmp/err")"
    ls -A "$run" | grep -q '^\.tmp-' && wrong "$sig left: $(ls -A "$run")"
    n=$(tail -n 1 "$run/metrics.jsonl" | grep -o '^{"step":[0-9]*' | cut -d: -f2)
    at=$(readlink "$run/last" | sed 's/step-0*//')
    [ "$at" -ge "$n" ] || wrong "$sig: records up to $n, last checkpoint of $at"
done
train run.dir="$run" --resume auto || wrong "resume: exit $?"
same_end "$run" "$tmp/ref"
verdict signals-wait-and-save
rm -rf "$run"

# ---- a disk that is full for a while, or for good
short="train.steps=32 train.save_every=8 train.eval_every=0 train.keep_last=4"
train $short run.dir="$tmp/ref32" || wrong "exit $?"
full() { # $1: step of whose checkpoint the calls are counted; $2: the call that fails; $3: how many from there on (0: all)
    rm -rf "$tmp/full"
    LD_PRELOAD=$tmp/world.so WORLD_FULL_STEP=.tmp-step-0000$1 WORLD_FULL_CALL=$2 WORLD_FULL_COUNT=$3 WORLD_FULL_THREAD=1 \
        WORLD_FULL_LOG=$tmp/calls "$prog" train $args train.async_save=true $short run.dir="$tmp/full" >"$tmp/out" 2>"$tmp/err"
    s=$?
}
full 16 999999 0
calls=$(cat "$tmp/calls") # of the three checkpoints from step 16 on
[ $s -eq 0 ] && [ "$calls" -ge 60 ] || wrong "exit $s, $calls calls need space in three checkpoints"
one=$((calls / 3))
for k in 1 2 $((one / 3)) $((one - 6)); do # once: told, and the next save is well
    full 16 $k 1
    [ $s -eq 0 ] || wrong "call $k: exit $s: $(cat "$tmp/err")"
    lines "$tmp/err" 1 "checkpoint of step 16: .*No space left" "the next save tries again"
    ls -A "$tmp/full" | grep -q '^\.tmp-step' && wrong "call $k left $(ls -A "$tmp/full")"
    [ -e "$tmp/full/step-000016" ] && wrong "call $k: the failed checkpoint is there"
    [ -e "$tmp/full/step-000008" ] && [ -e "$tmp/full/step-000024" ] || wrong "call $k: holds $(ls "$tmp/full")"
    mkdir "$tmp/full/step-000016"
    same_end "$tmp/full" "$tmp/ref32"
done
full 32 1 1 # the last one is tried again at once
[ $s -eq 0 ] || wrong "exit $s: $(cat "$tmp/err")"
lines "$tmp/err" 1 "checkpoint of step 32: .*No space left"
same_end "$tmp/full" "$tmp/ref32"
verdict one-failed-save-is-told-and-tried-again

for at in 16 32; do # for good: the second failure ends the run
    full $at 3 0
    [ $s -eq 1 ] || wrong "from $at: exit $s, expected 1"
    lines "$tmp/err" 2 "checkpoint of step $at: .*No space left" "failed again" "last checkpoint is intact: .*step-0000$(printf %02d $((at - 8)))"
    ls -A "$tmp/full" | grep -q '^\.tmp-step' && wrong "from $at: left $(ls -A "$tmp/full")"
    [ -e "$tmp/full/lock" ] && wrong "from $at: left the lock"
    [ "$(readlink "$tmp/full/last")" = "step-0000$(printf %02d $((at - 8)))" ] || wrong "last is $(readlink "$tmp/full/last")"
    train $short run.dir="$tmp/full" --resume auto || wrong "resume: exit $?"
    same_end "$tmp/full" "$tmp/ref32"
done
verdict two-failures-end-the-run

# A best checkpoint that could not be written is none: the one before stays, with its link, until a better one stands.
run=$tmp/best
best="train.steps=24 train.save_every=0 train.eval_every=4 train.keep_last=1 train.eval_tokens=256"
LD_PRELOAD=$tmp/world.so WORLD_FULL_STEP=.tmp-step-000012 WORLD_FULL_CALL=2 WORLD_FULL_COUNT=1 WORLD_FULL_THREAD=1 "$prog" train $args \
    train.async_save=true $best run.dir="$run" 2>"$tmp/err" || wrong "exit $?: $(cat "$tmp/err")"
lines "$tmp/err" 1 "checkpoint of step 12:"
b=$(readlink "$run/best")
[ -e "$run/$b/model.safetensors" ] || wrong "best is $b: $(ls "$run")"
grep -q "\"step\": $(echo "$b" | sed 's/step-0*//')\$" "$run/last/trainer/state.json" || wrong "best is $b, the state says $(cat "$run/last/trainer/state.json")"
verdict a-lost-best-is-none

# ---- weights that are not numbers end the run, and what was under way is kept
run=$tmp/nan
wild="optim.lr=100 optim.min_lr=100 optim.warmup=0 optim.weight_decay=100 optim.clip=0 train.save_every=2 train.keep_last=9"
train $wild run.dir="$run" >"$tmp/out" 2>"$tmp/err"
s=$?
[ $s -eq 1 ] || wrong "exit $s, expected 1"
lines "$tmp/err" 1 "diverged" "$run/$(readlink "$run/last")"
verdict divergence-keeps-the-save-under-way
