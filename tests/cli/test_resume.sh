#!/bin/bash
# A run that is killed, interrupted, out of disk or diverged loses nothing but time: what it ends with is byte for byte
# what an uninterrupted run ends with. tests/shim/world.c, preloaded, slows or fills the disk.
. tests/lib/cases.sh
${CC:-gcc} -shared -fPIC -O1 -o "$tmp/world.so" tests/shim/world.c -ldl || exit 1

# The clock's fields are last in a record; what is left must repeat.
clockless() { sed 's/,"tok_s":.*$/}/' "$1"; }
# But for what a run that was killed before its first checkpoint had written, which the next one keeps.
holds() { ls -A "$1" | grep -vE '^old-([0-9]+-)?(metrics.jsonl|samples.txt)$'; }
# $1: run folder; ends with what the uninterrupted run $2 ended with
same_end() {
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
one_line() { # file with stderr: one line of at most 300 characters that contains $2
    [ "$(wc -l <"$1")" -eq 1 ] && [ "$(wc -m <"$1")" -le 301 ] || wrong "expected one line of at most 300 characters, got: $(cat "$1")"
    grep -q -e "$2" "$1" || wrong "expected '$2' in: $(cat "$1")"
}
unfinished() { ls -A "$1" 2>/dev/null | grep -q '^\.tmp-'; }
steps_of() { ls "$1" 2>/dev/null | grep '^step-'; }

# A file that the system wrote in a moment, with all that a run can have: dropout, accumulation, samples, validation.
args="configs/tiny-window.yaml --threads 1 -q train.dtype=f32 train.batch=2 train.micro_batch=1 train.dropout=0.1 train.steps=400
    train.eval_every=8 train.eval_tokens=256 train.save_every=6 train.log_every=2 train.sample_every=10
    train.sample_prompt=And train.sample_tokens=8 train.keep_last=2 optim.warmup=5"
train() { "$prog" train $args "$@"; }
slowly() { LD_PRELOAD=$tmp/world.so WORLD_SLOW_US=${slow:-4000} exec "$prog" train $args "$@"; }

# ---- two runs with one seed
train run.dir="$tmp/ref" || wrong "reference: exit $?"
train run.dir="$tmp/again" || wrong "again: exit $?"
same_end "$tmp/again" "$tmp/ref"
n=$(clockless "$tmp/ref/metrics.jsonl" | grep -c '"loss"')
[ "$n" -eq 201 ] || wrong "$n training records, expected 201"
n=$(grep -c val_loss "$tmp/ref/metrics.jsonl")
[ "$n" -eq 50 ] || wrong "$n validation records, expected 50"
[ "$(grep -c '^== step' "$tmp/ref/samples.txt")" -eq 40 ] || wrong "samples.txt has other than 40 samples"
[ "$(steps_of "$tmp/ref" | wc -l)" -le 3 ] || wrong "keep_last 2 and best left $(steps_of "$tmp/ref" | tr '\n' ' ')"
verdict same-seed-same-bytes

for i in 1 2; do "$prog" train $args --threads 2 train.steps=6 run.dir="$tmp/two$i" || wrong "exit $?"; done
same_end "$tmp/two1" "$tmp/two2"
"$prog" train $args train.steps=6 run.seed=2 run.dir="$tmp/seed" || wrong "exit $?"
cmp -s "$tmp/seed/last/model.safetensors" "$tmp/two1/last/model.safetensors" && wrong "another seed gave the same weights"
verdict same-seed-two-threads
rm -rf "$tmp/again" "$tmp"/two? "$tmp/seed"

# ---- defaults that follow from other settings are those that the run was begun with
sed 's/, warmup: 5//; s/, min_lr: 3e-4//; s/, micro_batch: 2//' configs/tiny-window.yaml >"$tmp/open.yaml"
grep -q 'warmup\|min_lr\|micro_batch' "$tmp/open.yaml" && wrong "open.yaml gives what is to follow"
open() { "$prog" train "$tmp/open.yaml" --threads 1 -q train.dtype=f32 train.save_every=8 "$@"; }
open run.dir="$tmp/whole" train.steps=24 optim.warmup=6 optim.min_lr=1e-3 train.micro_batch=1 || wrong "whole: exit $?"
open run.dir="$tmp/part" train.steps=8 optim.schedule_steps=24 optim.warmup=6 optim.min_lr=1e-3 train.micro_batch=1 ||
    wrong "part: exit $?"
open run.dir="$tmp/part" train.steps=24 --resume auto || wrong "resumed: exit $?"
for f in last/model.safetensors last/trainer/optimizer.safetensors; do cmp "$tmp/part/$f" "$tmp/whole/$f" >>"$bad" 2>&1; done
for key in 'warmup: 6' 'min_lr: 0.001' 'micro_batch: 1'; do
    grep -q " $key\$" "$tmp/part/config.yaml" || wrong "config.yaml has no $key"
done
open run.dir="$tmp/new" train.steps=24 || wrong "new: exit $?"
for key in 'warmup: 2' 'min_lr: 0.0003' 'micro_batch: 4'; do
    grep -q " $key\$" "$tmp/new/config.yaml" || wrong "config.yaml of a new run has no $key"
done
verdict defaults-of-a-resumed-run
rm -rf "$tmp/whole" "$tmp/part" "$tmp/new"

# ---- products in bf16: near f32's losses and not the same; a resumed run keeps what it was begun with
some="train.steps=40 optim.schedule_steps=40 run.dir=$tmp"
train $some/bf16 train.dtype=bf16 || wrong "exit $?"
train $some/part train.dtype=bf16 train.steps=24 || wrong "exit $?"
train $some/part train.dtype=auto --resume auto || wrong "exit $?"
same_end "$tmp/part" "$tmp/bf16"
grep -q 'dtype: bf16' "$tmp/part/last/trainer/config.yaml" || wrong "the checkpoint does not name its dtype"
train $some/chosen train.dtype=auto train.steps=6 || wrong "exit $?"
grep -Eq 'dtype: (f32|bf16)$' <(grep -w dtype "$tmp/chosen/last/trainer/config.yaml") || wrong "auto was not resolved in the checkpoint"
train $some/f32 train.dtype=f32 || wrong "exit $?"
if train $some/bf16 train.steps=41 train.dtype=f32 --resume auto 2>"$tmp/err"; then wrong "went on in f32"; fi
one_line "$tmp/err" 'train.dtype: f32, but the run was begun with bf16'
paste <(grep -o '"loss":[^,]*' "$tmp/bf16/metrics.jsonl") <(grep -o '"loss":[^,]*' "$tmp/f32/metrics.jsonl") | tr -s ':\t' ' ' |
    awk '{ d = ($2 - $4) / $4; if (!(d * d < 0.0004)) print "loss " $2 " in bf16, " $4 " in f32"; if (d) other = 1 }
        END { if (NR < 20 || !other) print NR " losses, bf16 was not at work" }' >>"$bad"
verdict bf16
rm -rf "$tmp/bf16" "$tmp/part" "$tmp/f32"

# ---- kill -9 at 20 moments
run=$tmp/killed
RANDOM=20250117
kills=0 inside=0 before=0 tries=0 where=
exec 3>&2 2>/dev/null # the shell tells of every child that is killed
while [ $kills -lt 20 ] && [ $tries -lt 60 ]; do
    tries=$((tries + 1))
    resume=
    [ -e "$run/config.yaml" ] && resume="--resume auto"
    had=$(readlink "$run/last")
    # shellcheck disable=SC2086
    (
        [ $((tries % 4)) -eq 1 ] && slow=100
        slowly run.dir="$run" $resume 2>"$tmp/err"
    ) &
    pid=$!
    if [ $kills -eq 0 ]; then # while it starts
        sleep 0.0$((RANDOM % 90 + 10))
    elif [ $kills -lt 4 ]; then # before the first checkpoint, but with records
        until [ -s "$run/metrics.jsonl" ] || ! kill -0 $pid; do sleep 0.002; done
        sleep 0.00$((RANDOM % 10))
    elif [ $((tries % 4)) -eq 0 ]; then # wherever it is
        sleep 0.$((RANDOM % 700 + 200))
    else # a few checkpoints further, and two times of three inside the next
        until [ "$(readlink "$run/last")" != "$had" ] || ! kill -0 $pid; do sleep 0.002; done
        sleep 0.$((RANDOM % 200 + 100))
        [ $((tries % 4)) -ne 1 ] && until ls -A "$run" | grep -q '^\.tmp-step' || ! kill -0 $pid; do sleep 0.002; done
        sleep 0.0$((RANDOM % 50 + 10))
    fi
    if kill -9 $pid; then
        kills=$((kills + 1))
        wait $pid
        [ -z "$(steps_of "$run")" ] && before=$((before + 1))
        ls -A "$run" | grep -q '^\.tmp-step' && inside=$((inside + 1))
        where="$where $(readlink "$run/last" | sed 's/step-0*//')"
    fi
    wait $pid
    # records of a run that has no checkpoint yet are kept, with a note
    grep -v 'is of a run that has no checkpoint; a full copy is kept as old-' "$tmp/err" >"$tmp/err.other" &&
        wrong "try $tries: $(cat "$tmp/err.other")"
done
exec 2>&3 3>&-
echo "  $kills kills: $before before the first checkpoint, $inside while one was written; checkpoints then:$where"
[ $kills -eq 20 ] || wrong "$kills kills, expected 20"
[ $before -ge 2 ] || wrong "$before kills before the first checkpoint, expected at least 2"
[ $inside -ge 5 ] || wrong "$inside kills inside a checkpoint, expected at least 5"
train run.dir="$run" --resume auto || wrong "resume: exit $?"
same_end "$run" "$tmp/ref"
verdict kill-9-resumes-to-the-same-bytes

# A finished run has nothing to do, and adds nothing.
sums "$run" >"$tmp/before"
train run.dir="$run" --resume auto || wrong "exit $?"
cmp <(sums "$run") "$tmp/before" >>"$bad"
verdict resume-of-a-finished-run

# ---- SIGTERM and SIGINT
run=$tmp/term
for sig in TERM INT TERM; do
    resume=
    [ -e "$run/config.yaml" ] && resume="--resume auto"
    had=$(readlink "$run/last")
    (trap - INT; slow=1000 slowly run.dir="$run" $resume 2>"$tmp/err") &
    pid=$!
    until [ "$(readlink "$run/last")" != "$had" ] || ! kill -0 $pid 2>/dev/null; do sleep 0.002; done
    kill -$sig $pid
    wait $pid
    s=$?
    [ $s -eq 130 ] || wrong "$sig: exit $s, expected 130: $(cat "$tmp/err")"
    unfinished "$run" && wrong "$sig left: $(ls -A "$run")"
    [ -e "$run/lock" ] && wrong "$sig left the lock"
done
train run.dir="$run" --resume auto || wrong "resume: exit $?"
same_end "$run" "$tmp/ref"
verdict signals-save-and-exit-130

run=$tmp/twice
(slow=50000 slowly run.dir="$run" 2>"$tmp/err") &
pid=$!
until unfinished "$run" && ls -A "$run" | grep -q tmp-step || ! kill -0 $pid 2>/dev/null; do sleep 0.002; done
kill -TERM $pid
sleep 0.02
kill -TERM $pid
wait $pid
s=$?
[ $s -eq 130 ] || wrong "exit $s, expected 130"
[ -z "$(steps_of "$run")" ] || wrong "the second signal did not end it at once: $(ls -A "$run")"
train run.dir="$run" --resume auto || wrong "resume: exit $?"
same_end "$run" "$tmp/ref"
[ -s "$run/old-metrics.jsonl" ] || wrong "what the run had written before was not kept: $(ls -A "$run" | tr '\n' ' ')"
verdict second-signal-ends-at-once

# ---- folders that are in use or hold a run
run=$tmp/lock
(slow=30000 slowly run.dir="$run" 2>/dev/null) &
pid=$!
until [ -s "$run/metrics.jsonl" ]; do sleep 0.002; done
for resume in "" "--resume auto"; do
    train run.dir="$run" $resume >"$tmp/out" 2>"$tmp/err"
    s=$?
    [ $s -eq 2 ] || wrong "locked folder ($resume): exit $s, expected 2"
    one_line "$tmp/err" "in use by process $pid"
done
{ kill -9 $pid && wait $pid; } 2>/dev/null
[ -e "$run/lock" ] || wrong "kill -9 left no lock to be stale"
train run.dir="$run" >"$tmp/out" 2>"$tmp/err"
s=$?
[ $s -eq 2 ] || wrong "existing run: exit $s, expected 2"
one_line "$tmp/err" "already holds a run"
[ -s "$tmp/out" ] && wrong "a refusal printed on stdout"
train run.dir="$run" --resume auto train.steps=12 || wrong "stale lock: exit $?"
[ -e "$run/lock" ] && wrong "the lock outlived its run"
verdict lock-and-existing-run
rm -rf "$tmp/lock" "$tmp/twice" "$tmp/term" "$tmp/killed"

# ---- a disk that fills up during a checkpoint
short="train.steps=16 train.save_every=8 train.eval_every=0 train.keep_last=4"
train $short run.dir="$tmp/ref16" || wrong "exit $?"
train $short run.dir="$tmp/ref8" train.steps=8 optim.schedule_steps=16 || wrong "exit $?"
train $short run.dir="$tmp/count" train.steps=8 optim.schedule_steps=16 || wrong "exit $?"
LD_PRELOAD=$tmp/world.so WORLD_FULL_STEP=.tmp-step-000016 WORLD_FULL_LOG=$tmp/calls "$prog" train $args $short run.dir="$tmp/count" \
    --resume auto || wrong "count: exit $?"
calls=$(cat "$tmp/calls")
[ "$calls" -ge 20 ] || wrong "only $calls calls need space in a checkpoint"
full() { # the disk is full from call $1 of the checkpoint of step 16 on
    rm -rf "$tmp/full"
    cp -a "$tmp/ref8" "$tmp/full"
    sums "$tmp/full/step-000008" >"$tmp/before"
    LD_PRELOAD=$tmp/world.so WORLD_FULL_STEP=.tmp-step-000016 WORLD_FULL_CALL=$1 "$prog" train $args $short run.dir="$tmp/full" \
        --resume auto >"$tmp/out" 2>"$tmp/err"
    s=$?
    [ $s -eq 1 ] || wrong "call $1 of $calls: exit $s, expected 1"
    one_line "$tmp/err" "step-000008\|No space"
    cmp <(sums "$tmp/full/step-000008") "$tmp/before" >>"$bad" 2>&1
    ls -A "$tmp/full" | grep -q '^\.tmp-step' && wrong "call $1: left $(ls -A "$tmp/full" | tr '\n' ' ')"
    [ -e "$tmp/full/lock" ] && wrong "call $1: left the lock"
}
for k in 1 2 3 $((calls / 5)) $((calls / 3)) $((calls / 2)) $((calls * 3 / 4)) $((calls * 9 / 10)) $((calls - 12)) $((calls - 5)) \
    $((calls - 3)) $((calls - 2)) $((calls - 1)); do
    full $k
done
train $short run.dir="$tmp/full" --resume auto || wrong "resume: exit $?"
full $((calls / 2))
[ "$(readlink "$tmp/full/last")" = step-000008 ] || wrong "last is $(readlink "$tmp/full/last")"
train $short run.dir="$tmp/full" --resume auto || wrong "resume: exit $?"
same_end "$tmp/full" "$tmp/ref16"
verdict full-disk-at-every-stage

# The system's own refusal to make a file larger.
rm -rf "$tmp/full"
cp -a "$tmp/ref8" "$tmp/full"
(ulimit -f 300 && train $short run.dir="$tmp/full" --resume auto >"$tmp/out" 2>"$tmp/err")
s=$?
[ $s -eq 1 ] || wrong "file size limit: exit $s, expected 1"
one_line "$tmp/err" "step-000008"
cmp <(sums "$tmp/full/step-000008") "$tmp/before" >>"$bad" 2>&1
train $short run.dir="$tmp/full" --resume auto || wrong "resume: exit $?"
same_end "$tmp/full" "$tmp/ref16"
verdict file-size-limit

# ---- a loss that is not a number: 1 - lr decay = -9999 a step
run=$tmp/nan
wild="optim.lr=100 optim.min_lr=100 optim.warmup=0 optim.weight_decay=100 optim.clip=0 train.save_every=2 train.keep_last=9"
train $wild run.dir="$run" >"$tmp/out" 2>"$tmp/err"
s=$?
[ $s -eq 1 ] || wrong "exit $s, expected 1"
one_line "$tmp/err" "diverged"
good=$(readlink "$run/last")
grep -q "$run/$good" "$tmp/err" || wrong "the message does not name $good: $(cat "$tmp/err")"
sums "$run/$good" >"$tmp/before"
train $wild run.dir="$run" --resume auto >"$tmp/out" 2>"$tmp/err2"
s=$?
[ $s -eq 1 ] || wrong "again: exit $s, expected 1"
cmp "$tmp/err" "$tmp/err2" >>"$bad"
cmp <(sums "$run/$good") "$tmp/before" >>"$bad"
verdict divergence-keeps-the-last-checkpoint

# ---- who holds the lock ends a moment later, as ranks do whose launcher was killed; one that stays is named
run=$tmp/lock
mkdir "$run"
: >"$run/lock"
flock "$run/lock" sleep 0.3 &
until ! flock -n "$run/lock" true; do sleep 0.01; done
train run.dir="$run" train.steps=1 optim.warmup=1 >"$tmp/out" 2>"$tmp/err" || wrong "after a moment: exit $?: $(cat "$tmp/err")"
wait
mkdir "$run-2"
: >"$run-2/lock"
(flock 9 && exec sleep 30) 9<"$run-2/lock" &
holder=$!
until ! flock -n "$run-2/lock" true; do sleep 0.01; done
train run.dir="$run-2" train.steps=1 optim.warmup=1 >"$tmp/out" 2>"$tmp/err"
s=$?
[ $s -eq 2 ] || wrong "held: exit $s, expected 2"
grep -q 'its lock is held' "$tmp/err" || wrong "held: $(cat "$tmp/err")"
kill $holder 2>/dev/null
verdict a-lock-has-a-second
