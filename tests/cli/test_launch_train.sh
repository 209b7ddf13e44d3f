#!/bin/bash
# Training as several ranks: the bytes of one rank, whoever started them; killed, stopped and interrupted runs lose nothing
# but time; ranks that were given different things are refused.
. tests/lib/cases.sh
export OMP_NUM_THREADS=1
clockless() { sed 's/,"tok_s":.*$/}/' "$1"; }
same_end() { # run folders; moments that several ranks wrote are read and written again by one
    local a=$1 f
    if [ ! -e "$1/last/trainer/optimizer.safetensors" ]; then
        a=$1.again
        "$prog" $args --resume "$1/last" run.dir="$a" >>"$bad" 2>&1
    fi
    for f in model.safetensors trainer/optimizer.safetensors config.json; do cmp "$a/last/$f" "$2/last/$f" >>"$bad" 2>&1; done
    cmp "$1/last/trainer/state.json" "$2/last/trainer/state.json" >>"$bad" 2>&1
    cmp <(clockless "$1/metrics.jsonl") <(clockless "$2/metrics.jsonl") >>"$bad" 2>&1
    ls -A "$1" | grep -q '^\.tmp-' && wrong "$1 holds: $(ls -A "$1" | tr '\n' ' ')"
}
args="train configs/tiny-gqa.yaml --threads 1 -q train.batch=4 train.micro_batch=2 train.dtype=f32 train.dropout=0.1 train.steps=60
    train.eval_every=20 train.eval_first=true train.eval_tokens=256 train.save_every=5 train.log_every=1 train.keep_last=2 dist.check_every=7"
"$prog" $args run.dir="$tmp/ref" || wrong "reference: exit $?"
"$prog" launch -n 2 -- $args run.dir="$tmp/two" >"$tmp/out" 2>"$tmp/err" || wrong "exit $?: $(cat "$tmp/err")"
[ -s "$tmp/out" ] && wrong "-q, and stdout has: $(cat "$tmp/out")"
same_end "$tmp/two" "$tmp/ref"
"$prog" launch -n 2 -- $args run.dir="$tmp/zero" dist.stage=2 || wrong "stage 2: exit $?"
same_end "$tmp/zero" "$tmp/ref"
verdict two-ranks-are-one

# ---- a random rank is killed or stopped at a random moment; the run begins again by itself. At stages 1 and 2, with and
# without async_save, ranks are hit while all of them write a checkpoint, too.
RANDOM=3
trials=${LAUNCH_TRIALS:-6} # three at a time
trial() { # number, rank, milliseconds
    local t=$1 kind=KILL ids
    [ $((t % 2)) -eq 1 ] && kind=STOP
    "$prog" launch -n 2 --deadline "$(patience 3)" --max-restarts 2 -- $args run.dir="$tmp/trial$t" dist.stage=$((t % 3)) \
        train.async_save=$([ $((t % 4)) -ge 2 ] && echo true || echo false) >"$tmp/trial$t.out" 2>"$tmp/trial$t.err" &
    local pid=$!
    for _ in $(seq "$(patience 500)"); do # the first record: it trains
        [ -s "$tmp/trial$t/metrics.jsonl" ] && break
        sleep 0.02
    done
    sleep "0.$3"
    ids=($(ranks_of $pid))
    [ ${#ids[@]} -eq 2 ] && kill -$kind "${ids[$2]}" # else it is done already
    wait $pid || echo "trial $t, $kind of rank $2 after 0.$3 s: exit $?: $(cat "$tmp/trial$t.err")" >>"$bad"
    grep -q 'restart 1 of 2' "$tmp/trial$t.err" && echo "$t" >>"$tmp/restarted"
}
for t in $(seq $trials); do
    trial $t $((RANDOM % 2)) "$(printf '%03d' $((RANDOM % 150)))" &
    [ $((t % 3)) -eq 0 ] && wait
done
wait
for t in $(seq $trials); do same_end "$tmp/trial$t" "$tmp/ref"; done
[ "$(wc -l <"$tmp/restarted")" -ge $((trials / 2)) ] || wrong "only $(wc -l <"$tmp/restarted") of $trials runs were hit while they trained"
verdict goes-on-after-failures

# A restart before the first checkpoint begins where the run did, not at step 1; a later one goes on from its own folder.
cp -r "$tmp/ref/step-000055" "$tmp/origin"
again() { # checkpoint, run folder; what else the environment holds
    KVSMITH_RANK=0 KVSMITH_WORLD=1 KVSMITH_FD=0 KVSMITH_RESTART=1 KVSMITH_JOB=77 env ${3:-X=} "$prog" $args --resume "$1" run.dir="$2" >"$tmp/out" 2>&1
}
again "$tmp/origin" "$tmp/again" || wrong "exit $?: $(cat "$tmp/out")"
head -n 1 "$tmp/again/metrics.jsonl" | grep -q '^{"step":56,' || wrong "a restart began at $(head -n 1 "$tmp/again/metrics.jsonl")"
cmp "$tmp/again/last/model.safetensors" "$tmp/ref/last/model.safetensors" >>"$bad" 2>&1
[ -e "$tmp/again/.job" ] && wrong "a finished run keeps its mark"
# The folder is the launcher's own once its run has begun there; what it held before is not gone on from.
printf 77 >"$tmp/again/.job"
rm -r "$tmp/origin"/*
again "$tmp/origin" "$tmp/again" || wrong "exit $?: $(cat "$tmp/out")" # from step 60, its own: nothing is left to do
cp -r "$tmp/ref" "$tmp/own"
again "$tmp/own/step-000055" "$tmp/own" || wrong "exit $?: $(cat "$tmp/out")"
[ -e "$tmp/own/old-step-000060" ] || wrong "went on from step 60 of the run before: $(ls "$tmp/own")"
verdict restarts-where-it-began

# ---- a signal to the launcher
long="$args train.steps=100000 optim.schedule_steps=60"
"$prog" launch -n 2 -- $long run.dir="$tmp/term" 2>"$tmp/err" &
pid=$!
for _ in $(seq "$(patience 500)"); do
    [ -e "$tmp/term/last" ] && break
    sleep 0.02
done
kill -INT $pid
wait $pid
rc=$?
[ $rc -eq 130 ] && [ ! -s "$tmp/err" ] || wrong "exit $rc: $(cat "$tmp/err")"
[ "$(readlink "$tmp/term/last")" = "$(ls "$tmp/term" | grep '^step-' | tail -n 1)" ] || wrong "last is $(readlink "$tmp/term/last") of $(ls "$tmp/term")"
verdict interrupted

# ---- one line, whoever says it
for words in "$args run.dir=$tmp/ref" "$args run.dir=$tmp/new train.stepz=3" "$args run.dir=$tmp/new train.batch=2"; do
    "$prog" launch -n 3 --max-restarts 5 -- $words >"$tmp/out" 2>"$tmp/err"
    rc=$?
    [ $rc -eq 2 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ ! -s "$tmp/out" ] || wrong "$words: exit $rc: $(cat "$tmp/err")"
done
[ -e "$tmp/new" ] && wrong "a refused run left its folder"
"$prog" launch -n 2 -- $args run.dir="$tmp/new" --plan --json >"$tmp/out" 2>"$tmp/err" || wrong "plan: exit $?: $(cat "$tmp/err")"
[ "$(wc -l <"$tmp/out")" -eq 1 ] || wrong "plan: $(wc -l <"$tmp/out") lines"
verdict refusals

# ---- what diverged would diverge again
wild="optim.lr=100 optim.min_lr=100 optim.warmup=0 optim.weight_decay=100 optim.clip=0 train.save_every=2"
for stage in 0 1; do
    "$prog" launch -n 2 --max-restarts 5 -- $args $wild dist.stage=$stage run.dir="$tmp/wild$stage" >"$tmp/out" 2>"$tmp/err"
    rc=$?
    [ $rc -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q '^kvsmith: training diverged.*last checkpoint is intact' "$tmp/err" || wrong "stage $stage: exit $rc: $(cat "$tmp/err")"
done
verdict divergence-is-not-tried-again

# ---- the share of the processors is no setting
"$prog" launch -n 2 -- ${args/--threads 1/} train.steps=5 run.dir="$tmp/share" || wrong "exit $?"
grep -q '^  threads: 0$' "$tmp/share/config.yaml" || wrong "$(grep threads: "$tmp/share/config.yaml")"
verdict threads-are-the-ranks-own

# ---- ranks that are not given the same, as another launcher may start them: each in a folder of its own
mkdir "$tmp/r0" "$tmp/r1" # the same names, and as it comes other text behind them
head -c 20000 data/kjv.txt >"$tmp/r0/text.txt"
tac "$tmp/r0/text.txt" >"$tmp/r1/text.txt"
config=$(realpath configs/tiny-gqa.yaml)
pair() { # what rank 0 is given more, what rank 1 is given more
    for r in 0 1; do
        local more=$1
        [ $r -eq 1 ] && more=$2
        (cd "$tmp/r$r" && env RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID="pair$$" timeout "$(patience 60)" "$prog" train \
            "$config" --threads 1 -q data.train=text.txt data.tokenizer=byte run.dir="$tmp/pair" dist.deadline=$(patience 2) $more >out 2>err
            echo $? >rc) &
    done
    wait
    rc0=$(cat "$tmp/r0/rc") rc1=$(cat "$tmp/r1/rc")
}
pair "" ""
[ "$rc0 $rc1" = "2 2" ] && grep -q 'rank 1 of 2 has data different from' "$tmp/r0/err" && grep -q 'rank 1 of 2 has data different' "$tmp/r1/err" ||
    wrong "data: exit $rc0, $rc1: $(cat "$tmp/r0/err" "$tmp/r1/err")"
cp "$tmp/r0/text.txt" "$tmp/r1/text.txt"
pair "" "optim.lr=0.01"
[ "$rc0 $rc1" = "1 2" ] && grep -q 'rank 1: configuration .* differs' "$tmp/r1/err" && grep -q 'another configuration was refused' "$tmp/r0/err" ||
    wrong "settings: exit $rc0, $rc1: $(cat "$tmp/r0/err" "$tmp/r1/err")"
[ -e "$tmp/pair" ] && wrong "a refused run left its folder"
pair "train.steps=6" "train.steps=6"
[ "$rc0 $rc1" = "0 0" ] && [ -e "$tmp/pair/last/model.safetensors" ] || wrong "the same: exit $rc0, $rc1: $(cat "$tmp/r0/err" "$tmp/r1/err")"
verdict given-different-things

# ---- MPI
if [ ! -e "$build/kvsmith-mpi.so" ] || ! command -v mpirun >/dev/null 2>&1; then
    echo "skip mpi: no Open MPI here"
else
    mpi=(mpirun --allow-run-as-root --oversubscribe --mca btl self,vader)
    "${mpi[@]}" -np 2 "$prog" $args run.dir="$tmp/mpi" >"$tmp/out" 2>"$tmp/err" </dev/null || wrong "exit $?: $(cat "$tmp/err")"
    same_end "$tmp/mpi" "$tmp/ref"
    # by a shell, not as two programs of one job, at which Open MPI 5.0.7's mpirun crashes
    "${mpi[@]}" -np 2 sh -c 'r=$OMPI_COMM_WORLD_RANK; [ "$r" = 1 ] && set -- "$@" optim.lr=0.5; exec "$@"' sh \
        "$prog" $args run.dir="$tmp/no" >"$tmp/out" 2>"$tmp/err" </dev/null
    rc=$?
    [ $rc -ne 0 ] && grep -q 'rank 1 of 2 has settings different from' "$tmp/err" || wrong "settings: exit $rc: $(cat "$tmp/err")"
    [ -e "$tmp/no" ] && wrong "a refused run left its folder"
    verdict mpi
fi
