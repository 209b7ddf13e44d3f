#!/bin/bash
# The train command as its users meet it: the plan against the memory that a run takes, what it prints, when it stops,
# what it refuses, and how --resume goes on, back and elsewhere.
. tests/lib/cases.sh
train() { "$prog" train "$@" >"$tmp/out" 2>"$tmp/err"; }
# refused STATUS PART ARGUMENTS: exit status, an empty stdout, one line of at most 300 characters with PART on stderr
refused() {
    local want=$1 part=$2 s
    shift 2
    train "$@"
    s=$?
    [ $s -eq "$want" ] || wrong "train $*: exit $s, expected $want"
    [ -s "$tmp/out" ] && wrong "train $*: printed $(head -c 80 "$tmp/out")"
    [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ "$(wc -m <"$tmp/err")" -le 301 ] || wrong "train $*: not one line: $(cat "$tmp/err")"
    grep -q -e "$part" "$tmp/err" || wrong "train $*: expected '$part' in: $(cat "$tmp/err")"
}
ok() {
    train "$@"
    local s=$?
    [ $s -eq 0 ] || wrong "train $*: exit $s: $(cat "$tmp/err")"
}
memory() { grep -o '"memory":{[^}]*}' "$1" | head -n 1; } # the first: of stages, that of the largest
numbers() { memory "$1" | grep -o '"[a-z_]*":[0-9][0-9]*' | tr -d '"' | tr ':' ' '; }
field() { grep -o "\"$2\":[^,}]*" "$1" | head -n 1 | cut -d: -f2; }
clockless() { sed 's/,"tok_s":.*$/}/' "$1"; }
tiny="configs/tiny-gqa.yaml --threads 1 train.dtype=f32"

# ---- memory
plan() { # the plan of a run, then the run under its limit: $1 threads, the rest arguments
    local total peak limit threads=$1
    shift
    set -- "$@" train.dtype=f32 # auto is measured, perhaps otherwise the next time
    ok "$@" --threads "$threads" run.dir="$tmp/plan" --plan --json
    [ -e "$tmp/plan" ] && wrong "$1: --plan made the run folder"
    cp "$tmp/out" "$tmp/planned"
    total=$(grep -o '"total":[0-9]*' "$tmp/planned" | head -n 1 | cut -d: -f2)
    ok "$@" --threads "$threads" run.dir="$tmp/plan" --json -q
    if grep -q 'sft:' "$1"; then # no window need be full: each peak is at most what is planned, and not far from it
        paste <(numbers "$tmp/planned") <(numbers "$tmp/out") | awk '$1 != $3 || $4 > $2 || $4 < 0.97 * $2 { bad = 1 } END { exit bad || NR < 9 }'
    else
        [ "$(memory "$tmp/planned")" = "$(memory "$tmp/out")" ]
    fi || wrong "$*: planned $(memory "$tmp/planned"), peaks $(memory "$tmp/out")"
    [ "$(field "$tmp/out" memory_mapped)" = "$total" ] || wrong "$*: mapped $(field "$tmp/out" memory_mapped), planned $total"
    peak=$(field "$tmp/out" peak_anonymous_bytes)
    limit=$((total + total / 50 + 64 * 1024 * 1024))
    { [ "${peak:-0}" -gt $((total / 2)) ] && [ "$peak" -le $limit ]; } || wrong "$*: peak $peak, plan $total, limit $limit"
    echo "  $(basename "$1" .yaml): plan $total, resident anonymous peak $peak"
    rm -rf "$tmp/plan"
}
for c in configs/tiny-*.yaml; do
    steps="train.steps=5 train.sample_every=5"
    grep -q '^stages:' "$c" && steps=train.sample_every=50 # theirs decide
    grep -q 'task:' "$c" && steps=train.steps=5 # a task has no text to make samples of
    plan 1 "$c" $steps train.eval_every=5
done
plan 1 configs/tiny-gqa.yaml train.steps=5 train.dropout=0.1 train.recompute=-1
plan 1 configs/tiny-gqa.yaml train.steps=5 train.sample_every=2 train.sample_tokens=40 train.micro_batch=1 data.seq_len=32 \
    train.sample_prompt="In the beginning" data.val=README.md
plan 2 configs/demo.yaml train.steps=1 optim.warmup=0 train.eval_every=1 train.eval_tokens=2048 train.batch=8
verdict plan-is-the-peak

# The kernel's own account: private writable memory, mapped or touched, beyond which it gives none. Thread stacks count
# here although they are not resident; one thread has none.
ok configs/demo.yaml --plan --json
total=$(grep -o '"total":[0-9]*' "$tmp/out" | cut -d: -f2)
demo="configs/demo.yaml train.steps=1 optim.warmup=0 train.batch=8 train.eval_tokens=2048 --threads 1 -q"
(ulimit -d $(((total + total / 50) / 1024 + 65536)) || wrong "no ulimit -d" && ok $demo run.dir="$tmp/limit")
(ulimit -d $((total * 9 / 10 / 1024)) || wrong "no ulimit -d" && refused 1 "out of memory" $demo run.dir="$tmp/low")
# A large text is not held twice: the limit is the plan of 120 MB of it.
for _ in $(seq 50); do cat data/kjv.txt; done >"$tmp/large.txt"
large="$tiny run.dir=$tmp/large data.train=$tmp/large.txt data.val_fraction=0.00001 train.steps=1 optim.warmup=0 --threads 1"
ok $large --plan --json
total=$(grep -o '"total":[0-9]*' "$tmp/out" | cut -d: -f2)
(ulimit -d $(((total + total / 50) / 1024 + 65536)) || wrong "no ulimit -d" && ok $large -q)
rm -rf "$tmp/large" "$tmp/large.txt"
[ -e "$tmp/low" ] && wrong "running out of memory left $(ls -A "$tmp/low")"
verdict memory-limit
rm -rf "$tmp/limit"

# ---- what it prints
ok $tiny run.dir="$tmp/plain"
[ "$(grep -c '^step [0-9]*/20  loss ' "$tmp/out")" -eq 20 ] || wrong "plain lines: $(cat "$tmp/out")"
grep -q 'ETA' "$tmp/out" || wrong "no ETA: $(cat "$tmp/out")"
[ -s "$tmp/err" ] && wrong "stderr: $(cat "$tmp/err")"
grep -q "saved $tmp/plain/step-000020" "$tmp/out" || wrong "no last line: $(tail -n 1 "$tmp/out")"
ok $tiny run.dir="$tmp/quiet" -q
[ -s "$tmp/out" ] || [ -s "$tmp/err" ] && wrong "-q printed: $(cat "$tmp/out" "$tmp/err")"
ok $tiny run.dir="$tmp/json" --json
[ "$(wc -l <"$tmp/out")" -eq 1 ] && grep -q '^{.*}$' "$tmp/out" || wrong "--json printed: $(cat "$tmp/out")"
[ "$(field "$tmp/out" step)" = 20 ] && [ "$(field "$tmp/out" stopped)" = '"steps"' ] || wrong "json: $(cat "$tmp/out")"
cmp <(clockless "$tmp/plain/metrics.jsonl") <(clockless "$tmp/quiet/metrics.jsonl") >>"$bad" 2>&1
[ "$(ls -A "$tmp/plain" | tr '\n' ' ')" = "best config.yaml last metrics.jsonl run.jsonl step-000010 step-000020 " ] ||
    wrong "the run folder holds: $(ls -A "$tmp/plain" | tr '\n' ' ')"
[ "$(ls "$tmp/plain/last/" | tr '\n' ' ')" = "config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json trainer " ] ||
    wrong "a checkpoint holds: $(ls "$tmp/plain/last/" | tr '\n' ' ')"
grep -q '"eos_token_id": *256' "$tmp/plain/last/generation_config.json" || wrong "eos: $(cat "$tmp/plain/last/generation_config.json")"
# The resolved settings are a configuration of the same run.
ok "$tmp/plain/config.yaml" run.dir="$tmp/resolved" -q
cmp "$tmp/plain/last/model.safetensors" "$tmp/resolved/last/model.safetensors" >>"$bad" 2>&1
if script -qec true /dev/null >/dev/null 2>&1; then
    script -qec "'$prog' train $tiny run.dir='$tmp/tty'" /dev/null >"$tmp/out" 2>&1
    [ "$(tr '\r' '\n' <"$tmp/out" | grep -c '^step 20/20')" -eq 1 ] || wrong "terminal: $(cat -v "$tmp/out")"
    [ "$(grep -c 'loss.*ETA' "$tmp/out")" -le 4 ] || wrong "a terminal got lines instead of one live line: $(cat -v "$tmp/out")"
fi
verdict output

# ---- stopping by time
ok $tiny run.dir="$tmp/time" train.steps=1000000 train.max_seconds=1 train.eval_every=100000 train.log_every=100 --json -q
[ "$(field "$tmp/out" stopped)" = '"time"' ] || wrong "stopped by $(field "$tmp/out" stopped)"
awk -v s="$(field "$tmp/out" seconds)" 'BEGIN { exit !(s < 10) }' || wrong "took $(field "$tmp/out" seconds) s"
k=$(field "$tmp/out" step)
[ "$(readlink "$tmp/time/last")" = "$(printf 'step-%06d' "$k")" ] || wrong "last is $(readlink "$tmp/time/last") at step $k"
grep -q "\"step\":$k,\"val_loss\"" "$tmp/time/metrics.jsonl" || wrong "no validation at the end"
ok $tiny run.dir="$tmp/time" train.steps=$((k + 8)) train.eval_every=100000 train.log_every=100 --resume auto --json -q
[ "$(field "$tmp/out" step)" = $((k + 8)) ] || wrong "resumed to step $(field "$tmp/out" step), expected $((k + 8))"
verdict max-seconds

# ---- refusals, which leave nothing behind
new="run.dir=$tmp/none/such/run"
refused 2 "train.steps=3" train.steps=3
refused 2 "nosuch.yaml" nosuch.yaml
refused 2 "train.stebs" $tiny "$new" train.stebs=3
refused 2 "train.steps" $tiny "$new" train.steps=0
refused 2 "micro_batch" $tiny "$new" train.micro_batch=3
refused 2 "nosuch.txt" $tiny "$new" data.train=nosuch.txt
head -c 90 data/kjv.txt >"$tmp/short.txt"
refused 2 "data.train" $tiny "$new" data.train="$tmp/short.txt" data.val=README.md data.seq_len=100
refused 2 "max_positions\|seq_len" $tiny "$new" data.seq_len=100 model.max_positions=99
refused 1 "iB of memory" $tiny "$new" train.batch=131072 train.micro_batch=131072 model.layers=250
refused 2 "run.dir" $tiny run.dir=
refused 2 "vocab" $tiny "$new" model.vocab=200
refused 2 "init_from" $tiny "$new" init_from="$tmp"
refused 2 "sample_prompt" $tiny "$new" train.sample_every=1 train.sample_prompt="$(printf '%080d' 0)"
refused 2 "nosuch" $tiny "$new" --resume "$tmp/nosuch"
refused 2 "trainer/state.json" $tiny "$new" --resume "$tmp"
refused 2 "bogus" $tiny "$new" --bogus
refused 2 "threads" $tiny "$new" --threads=-1
[ -e "$tmp/none" ] && wrong "refusals left: $(find "$tmp/none")"
echo text >"$tmp/file"
refused 2 "run folder" $tiny run.dir="$tmp/file/run"
mkdir "$tmp/mine"
echo precious >"$tmp/mine/metrics.jsonl"
refused 2 "already holds a run" $tiny run.dir="$tmp/mine"
mv "$tmp/mine/metrics.jsonl" "$tmp/mine/lock"
refused 2 "expected a lock" $tiny run.dir="$tmp/mine"
[ "$(cat "$tmp/mine/lock")" = precious ] || wrong "a file named lock was lost"
sed 's/^/  /; s/^  run/{/' configs/tiny-gqa.yaml >"$tmp/broken.yaml"
refused 2 "broken.yaml" "$tmp/broken.yaml" "$new"
verdict refusals

# ---- resuming
cp -a "$tmp/plain" "$tmp/r"
refused 2 "optim.lr" $tiny run.dir="$tmp/r" --resume auto optim.lr=1e-2 train.steps=30
refused 2 "train.steps" $tiny run.dir="$tmp/r" --resume auto train.steps=10
refused 2 "optim.clip" $tiny run.dir="$tmp/r" --resume auto optim.clip=3 train.steps=30
truncate -s -1 "$tmp/r/last/model.safetensors"
refused 2 "model.safetensors" $tiny run.dir="$tmp/r" --resume auto train.steps=30
cmp <(clockless "$tmp/r/metrics.jsonl") <(clockless "$tmp/plain/metrics.jsonl") >>"$bad" 2>&1
[ "$(readlink "$tmp/r/last")" = step-000020 ] || wrong "a refusal moved last to $(readlink "$tmp/r/last")"
# Back to step 10: the same future comes again, the old one stays aside.
ok $tiny run.dir="$tmp/r" --resume "$tmp/r/step-000010" -q
cmp "$tmp/r/last/model.safetensors" "$tmp/plain/last/model.safetensors" >>"$bad" 2>&1
cmp <(clockless "$tmp/r/metrics.jsonl") <(clockless "$tmp/plain/metrics.jsonl") >>"$bad" 2>&1
[ -d "$tmp/r/old-step-000020" ] || wrong "nothing was set aside: $(ls -A "$tmp/r")"
# From another run's checkpoint, in a new folder.
ok $tiny run.dir="$tmp/else/where" --resume "$tmp/plain/step-000010" -q
cmp "$tmp/else/where/last/model.safetensors" "$tmp/plain/last/model.safetensors" >>"$bad" 2>&1
[ "$(grep -c '"loss"' "$tmp/else/where/metrics.jsonl")" -eq 10 ] || wrong "records: $(cat "$tmp/else/where/metrics.jsonl")"
# One that was set aside; and one with nothing left to do, in a new folder: both end with a checkpoint of their own.
cp -r "$tmp/plain" "$tmp/aside"
ok $tiny run.dir="$tmp/aside" --resume "$tmp/aside/step-000010" train.steps=15 optim.schedule_steps=20 -q
ok $tiny run.dir="$tmp/aside" --resume "$tmp/aside/old-step-000020" -q
[ "$(readlink "$tmp/aside/last")" = step-000020 ] || wrong "last is $(readlink "$tmp/aside/last") after resuming what was set aside"
ok $tiny run.dir="$tmp/done" --resume "$tmp/plain/step-000020" -q
cmp "$tmp/done/last/model.safetensors" "$tmp/plain/last/model.safetensors" >>"$bad" 2>&1
# What lies beside the model is looked at, too.
cp -r "$tmp/done/step-000020" "$tmp/damaged"
truncate -s -5 "$tmp/damaged/trainer/optimizer.safetensors"
"$prog" info "$tmp/damaged" >"$tmp/out" 2>"$tmp/err" && wrong "info took a damaged optimizer.safetensors"
grep -q optimizer.safetensors "$tmp/err" || wrong "info said: $(cat "$tmp/err")"
# On another text the same steps would be other ones.
head -c 200000 data/kjv.txt >"$tmp/text"
ok $tiny run.dir="$tmp/text.run" data.train="$tmp/text" train.steps=10 -q
head -c 190000 data/kjv.txt >"$tmp/text"
refused 2 "another text" $tiny run.dir="$tmp/text.run" data.train="$tmp/text" --resume auto
# A reader of the progress lines who leaves ends nothing but the lines.
"$prog" train $tiny run.dir="$tmp/pipe" 2>/dev/null | head -n 1 >/dev/null
cmp "$tmp/pipe/last/model.safetensors" "$tmp/plain/last/model.safetensors" >>"$bad" 2>&1
if [ "$(id -u)" -ne 0 ]; then # root reads everything
    chmod 222 "$tmp/pipe/metrics.jsonl"
    refused 2 "metrics.jsonl" $tiny run.dir="$tmp/pipe" --resume auto
fi
# Further than planned at first, from a folder without a run, and with its metrics torn or gone.
ok $tiny run.dir="$tmp/new" --resume auto -q train.steps=12 optim.schedule_steps=20
printf '{"step":12,"lo' >>"$tmp/new/metrics.jsonl"
ok $tiny run.dir="$tmp/new" --resume auto -q optim.schedule_steps=20
cmp "$tmp/new/last/model.safetensors" "$tmp/plain/last/model.safetensors" >>"$bad" 2>&1
# The first end, at step 12, was validated; nothing else differs.
cmp <(clockless "$tmp/new/metrics.jsonl" | sed '/"step":12,"val/d') <(clockless "$tmp/plain/metrics.jsonl") >>"$bad" 2>&1
rm "$tmp/new/metrics.jsonl" "$tmp/new/last" "$tmp/new/best"
ok $tiny run.dir="$tmp/new" --resume auto -q optim.schedule_steps=20
[ "$(readlink "$tmp/new/last")" = step-000020 ] && [ "$(readlink "$tmp/new/best")" = step-000020 ] || wrong "links: $(ls -l "$tmp/new")"
verdict resume

# ---- init_from
ok $tiny run.dir="$tmp/init" init_from="$tmp/plain/best" train.steps=1 optim.lr=0 optim.min_lr=0 optim.warmup=0 -q
cmp "$tmp/init/last/model.safetensors" "$tmp/plain/best/model.safetensors" >>"$bad" 2>&1
ok $tiny run.dir="$tmp/init3" init_from="$tmp/plain" train.steps=1 optim.lr=0 optim.min_lr=0 optim.warmup=0 -q
cmp "$tmp/init3/last/model.safetensors" "$tmp/plain/best/model.safetensors" >>"$bad" 2>&1
refused 2 "model.safetensors\|init_from\|shape" $tiny run.dir="$tmp/init2" init_from="$tmp/plain/best" model.d_model=32
[ -e "$tmp/init2" ] && wrong "a refused init_from left $(ls -A "$tmp/init2")"
verdict init-from

# ---- threads that the user binds: the program starts itself again, and must not pass on the one processor of its first thread.
here=$(env -u OMP_NUM_THREADS nproc)
if [ "$here" -lt 2 ]; then
    echo "skip bound-threads: one processor here"
else
    unset_omp=(env -u OMP_NUM_THREADS -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT -u OMP_PLACES -u GOMP_CPU_AFFINITY)
    bound() { # NAME=value, then words behind the program: on how many processors its threads are bound
        "${unset_omp[@]}" "$1" OMP_DISPLAY_AFFINITY=true OMP_AFFINITY_FORMAT='bound %A' "$prog" "${@:2}" 2>&1 >/dev/null |
            grep '^bound [0-9]*$' | sort -u | wc -l
    }
    tiny_bench="bench train configs/tiny-gqa.yaml --seconds 0.01"
    n=$(bound OMP_PROC_BIND=true $tiny_bench)
    [ "$n" -eq "$here" ] || wrong "threads on $n processors of $here"
    n=$(bound OMP_PROC_BIND=true $tiny_bench --threads 2)
    [ "$n" -eq 2 ] || wrong "two threads on $n processors"
    # Ranks of two threads each: bound to nothing (a thread that is free to go anywhere tells of several processors).
    n=$(bound OMP_PROC_BIND=true launch -n 2 -- train configs/tiny-gqa.yaml run.dir="$tmp/bound" train.steps=5 --threads 2)
    [ "$n" -eq 0 ] || wrong "ranks are bound to $n processors"
    [ -e "$tmp/bound/last" ] || wrong "ranks did not train"
    # Of the processors that the user names, whether the program starts itself again or not.
    one=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*\([0-9]*\).*/\1/p' /proc/self/status)
    for policy in A=B OMP_WAIT_POLICY=passive; do
        n=$("${unset_omp[@]}" "$policy" GOMP_CPU_AFFINITY="$one" "$prog" $tiny_bench | grep -c ' 1 threads$')
        [ "$n" -eq 1 ] || wrong "$policy: more threads than the one processor that is named"
    done
    n=$("${unset_omp[@]}" OMP_NUM_THREADS=3 "$prog" $tiny_bench | grep -c ' 3 threads$')
    [ "$n" -eq 1 ] || wrong "other than the 3 threads of OMP_NUM_THREADS"
    verdict bound-threads
fi
