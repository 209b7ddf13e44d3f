#!/bin/bash
# Runs that time moves (optim.schedule_by: time), and what a run writes down of itself: when, where and by what it was
# started, its seconds, its passes over the data.
. tests/lib/cases.sh
export OMP_NUM_THREADS=1
tiny="train configs/tiny-gqa.yaml --threads 1 train.eval_every=0 train.save_every=0"
ok() { "$prog" "$@" >"$tmp/out" 2>"$tmp/err" || wrong "$*: exit $?: $(cat "$tmp/err")"; }
field() { grep -o "\"$2\": *[^,}]*" "$1" | tail -n 1 | sed 's/^[^:]*: *//'; } # the last one of a file
all() { grep -o "\"$2\":[^,}]*" "$1" | cut -d: -f2; }
is() { [ "$2" = "$3" ] || wrong "$1: $2, expected $3"; }
holds() { awk "BEGIN { exit !($1) }" || wrong "not so: $2: $1"; }
# rates FILE: go down from some record on, never up again.
falls() {
    all "$1" lr | awk 'NR > 1 && $1 < last { down = 1 } NR > 1 && $1 > last && down { bad = 1 } { last = $1 } END { exit bad }' ||
        wrong "$1: rates that fall and rise: $(all "$1" lr | tr '\n' ' ')"
}

# ---- the end of the time is the end of the schedule
timed="optim.schedule_by=time optim.lr=1e-2 optim.min_lr=1e-3 train.log_every=1"
ok $tiny $timed run.dir="$tmp/time" train.steps=1000000 train.max_seconds=2 optim.warmup=10% --json -q
is stopped "$(field "$tmp/out" stopped)" '"time"'
is "last rate" "$(field "$tmp/time/metrics.jsonl" lr)" 0.001
is "rates at min_lr behind the warmup" "$(all "$tmp/time/metrics.jsonl" lr | grep -c '^0.001$')" 1
falls "$tmp/time/metrics.jsonl"
all "$tmp/time/metrics.jsonl" lr | awk '$1 > m { m = $1 } END { exit !(m > 0.004) }' || wrong "the warmup never ended"
holds "$(field "$tmp/time/metrics.jsonl" elapsed) >= 2" "all of the time was used"
# Whichever is first: here the steps, whose rates are those of a run that steps alone move.
ok $tiny $timed run.dir="$tmp/steps" train.max_seconds=1000000 -q
ok $tiny $timed run.dir="$tmp/plain" optim.schedule_by=steps -q
cmp <(all "$tmp/steps/metrics.jsonl" lr) <(all "$tmp/plain/metrics.jsonl" lr) >>"$bad" 2>&1
cmp "$tmp/steps/last/model.safetensors" "$tmp/plain/last/model.safetensors" >>"$bad" 2>&1
cmp "$tmp/steps/last/trainer/state.json" "$tmp/plain/last/trainer/state.json" >>"$bad" 2>&1
ok $tiny $timed run.dir="$tmp/plain" train.steps=24 train.max_seconds=1000000 -q --resume auto # the clock may change hands
is steps "$(tail -n 1 "$tmp/plain/metrics.jsonl" | cut -c1-10)" '{"step":24'
"$prog" $tiny $timed run.dir="$tmp/none" >"$tmp/out" 2>"$tmp/err"
is "without a time: status" $? 2
grep -q 'optim.schedule_by.*train.max_seconds' "$tmp/err" && [ "$(wc -l <"$tmp/err")" -eq 1 ] || wrong "$(cat "$tmp/err")"
verdict by-time

# ---- resumed: the seconds before count, and a run that ended by its time has none left
run="$tmp/resumed"
again="$timed run.dir=$run train.steps=1000000 train.max_seconds=2 train.save_every=1 train.keep_last=1000 -q"
ok $tiny $again
half=$((($(all "$run/metrics.jsonl" elapsed | wc -l) + 1) / 2)) # steps
step=$(printf 'step-%06d' "$half")
seconds=$(field "$run/$step/trainer/clock.json" elapsed)
holds "$seconds > 0.01" "the checkpoint's clock"
ok $tiny $again --resume "$run/$step" --json
is stopped "$(field "$tmp/out" stopped)" '"time"'
holds "$(field "$run/metrics.jsonl" elapsed) >= 2" "all of the time was used"
is "last rate" "$(field "$run/metrics.jsonl" lr)" 0.001
falls "$run/metrics.jsonl"
all "$run/metrics.jsonl" elapsed | awk '$1 < last { bad = 1 } { last = $1 } END { exit bad }' || wrong "seconds went back"
end=$(field "$tmp/out" step)
ok $tiny $again --resume auto --json
is "step of a run that had ended" "$(field "$tmp/out" step)" "$end"
is stopped "$(field "$tmp/out" stopped)" '"time"'
verdict by-time-resumed

# ---- stages: the one that time ends decays to its end
cat >"$tmp/stages.yaml" <<YAML
$(sed '/^train:/,$d' configs/tiny-gqa.yaml)
train: {max_seconds: 3, batch: 2, micro_batch: 2, log_every: 1, eval_every: 0, save_every: 0}
optim: {lr: 1e-2, min_lr: 1e-3, warmup: 2, schedule_by: time}
stages: [{name: a, steps: 8}, {name: b, steps: 1000000}]
YAML
ok train "$tmp/stages.yaml" --threads 1 run.dir="$tmp/stages" -q
is "first rate of b" "$(grep '^{"step":9,' "$tmp/stages/metrics.jsonl" | grep -o '"lr":[^,]*')" "$(grep '^{"step":1,' "$tmp/stages/metrics.jsonl" | grep -o '"lr":[^,]*')"
is "last rate of b" "$(field "$tmp/stages/metrics.jsonl" lr)" 0.001
verdict by-time-stages

# ---- ranks: one clock; weights are compared after every step
"$prog" launch -n 2 -- $tiny $timed run.dir="$tmp/ranks" train.batch=4 train.micro_batch=2 train.steps=1000000 train.max_seconds=3 \
    dist.check_every=1 -q >"$tmp/out" 2>"$tmp/err" || wrong "two ranks: exit $?: $(cat "$tmp/err")"
is "last rate" "$(field "$tmp/ranks/metrics.jsonl" lr)" 0.001
falls "$tmp/ranks/metrics.jsonl"
is ranks "$(field "$tmp/ranks/run.jsonl" ranks)" 2
verdict by-time-ranks

# ---- what a run was
run="$tmp/was"
ok $tiny run.dir="$run" train.steps=3 optim.warmup=1 train.log_every=1 -q
ok $tiny train.steps=5 optim.warmup=1 run.dir="$run" train.log_every=1 -q --resume auto
ok $tiny train.steps=5 optim.warmup=1 run.dir="$run" train.log_every=1 -q --resume auto # nothing left to do
is "starts" "$(wc -l <"$run/run.jsonl")" 2
sed -n 1p "$run/run.jsonl" >"$tmp/first"
sed -n 2p "$run/run.jsonl" >"$tmp/second"
want="[\"train\",\"configs/tiny-gqa.yaml\",\"--threads\",\"1\",\"train.eval_every=0\",\"train.save_every=0\",\"run.dir=$run\",\"train.steps=3\",\"optim.warmup=1\",\"train.log_every=1\",\"-q\"]"
grep -qF "\"command\":$want" "$tmp/first" || wrong "command: $(cat "$tmp/first")"
grep -qF '"--resume","auto"]' "$tmp/second" || wrong "command: $(cat "$tmp/second")"
is version "$(field "$tmp/first" version)" "\"$("$prog" --version | sed -n '1s/^kvsmith //p')\""
is host "$(field "$tmp/first" host)" "\"$(uname -n)\""
is threads "$(field "$tmp/first" threads)" 1
is step "$(field "$tmp/second" step)" 3
is resumed "$(field "$tmp/first" resumed)" null
is resumed "$(field "$tmp/second" resumed)" "\"$run/step-000003\""
grep -qE '"started":"20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]Z"' "$tmp/first" || wrong "started: $(cat "$tmp/first")"
grep -qE '"commit":("[0-9a-f]{7,40}\+?"|null)' "$tmp/first" || wrong "commit: $(cat "$tmp/first")"
built=$(sed -n 's/.*"\(.*\)".*/\1/p' "$build/commit.h" 2>/dev/null) # empty: made from an archive, without git
[ -z "$built" ] || grep -qF "\"commit\":\"$built\"" "$tmp/first" || wrong "built from $built: $(cat "$tmp/first")"
grep -q '"isa":"..*","threads"' "$tmp/first" || wrong "isa: $(cat "$tmp/first")"
# A pass over the data is as many samples as there are windows: tokens / seq_len of them.
head -c 2001 data/kjv.txt >"$tmp/text"
ok $tiny run.dir="$tmp/epochs" data.train="$tmp/text" data.val_fraction=0 data.seq_len=20 train.batch=25 train.micro_batch=5 train.steps=6 optim.warmup=0 train.log_every=1 -q
is epochs "$(all "$tmp/epochs/metrics.jsonl" epoch | tr '\n' ' ')" "0.25 0.5 0.75 1 1.25 1.5 "
verdict what-a-run-was

# ---- what it prints
ok $tiny run.dir="$tmp/print" train.steps=20 optim.warmup=0 train.log_every=1
grep -q ', 1 thread (' "$tmp/out" || wrong "one thread: $(head -n 1 "$tmp/out")"
is "signs of life" "$(grep -c '^first step' "$tmp/out")" 1
grep '^step ' "$tmp/out" | grep -q ' mfu ' && wrong "a peak was measured for 20 steps: $(cat "$tmp/out")"
ok $tiny run.dir="$tmp/long" train.steps=100000 train.max_seconds=0.3 train.log_every=1
grep '^step ' "$tmp/out" | grep -q ' mfu [0-9.]*%  ETA ' || wrong "no mfu: $(cat "$tmp/out")"
# A narrow terminal: what does not fit is left out, but for the ETA; a first step of a second shows how far it is.
if script -qec true /dev/null >/dev/null 2>&1; then
    script -qec "stty cols 45; '$prog' $tiny run.dir='$tmp/tty' train.batch=1024 train.micro_batch=1 train.steps=2 optim.warmup=0" /dev/null |
        tr '\r' '\n' | sed 's/\x1b\[K//g' >"$tmp/out"
    grep '^step ' "$tmp/out" | grep -v validation >"$tmp/lines"
    grep -q '^step 2/2 .*ETA 0s$' "$tmp/lines" && [ "$(grep -c 'ETA [0-9a-z]*$' "$tmp/lines")" -eq "$(wc -l <"$tmp/lines")" ] ||
        wrong "45 columns: $(cat "$tmp/out")"
    awk 'length($0) > 44 { exit 1 }' "$tmp/lines" || wrong "longer than 44: $(cat "$tmp/lines")"
    grep -q '^first step: micro-batch [0-9]* of 1024 ' "$tmp/out" || wrong "no life in the first step: $(cat "$tmp/out")"
fi
verdict output
