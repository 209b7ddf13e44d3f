#!/bin/bash
# Ranks of one run: kvsmith launch, its signals, statuses and restarts, and what is left of a run whose rank is killed or
# stopped at a random moment; the same ranks by mpirun and by a launcher that only sets torchrun's variables.
. tests/lib/cases.sh
export OMP_NUM_THREADS=1
launch() { "$prog" launch "$@"; } # in the foreground only: `&` would start a shell
# No process of ours may outlive a launcher; each has this variable.
export LAUNCH_TEST=$$.$RANDOM
orphans() {
    for p in $(processes kvsmith ''); do
        tr '\0' '\n' 2>/dev/null <"/proc/$p/environ" | grep -qx "LAUNCH_TEST=$LAUNCH_TEST" && echo "$p"
    done 2>/dev/null
}
wait_for_ranks() { # launcher's id, number: the ids
    for _ in $(seq "$(patience 1000)"); do
        ids=($(ranks_of "$1"))
        [ ${#ids[@]} -ge "$2" ] && break
        sleep 0.02
    done
    [ ${#ids[@]} -ge "$2" ] || wrong "$2 ranks expected, got ${#ids[@]}"
}

launch -n 3 -- bench comm --seconds 0.01 --bytes 300000 --json >"$tmp/out" 2>"$tmp/err" || wrong "exit $?: $(cat "$tmp/err")"
grep -q '"ranks":3' "$tmp/out" && [ "$(wc -l <"$tmp/out")" -eq 1 ] || wrong "stdout: $(cat "$tmp/out")"
[ -s "$tmp/err" ] && wrong "stderr: $(cat "$tmp/err")"
launch -n 2 -- bench comm --seconds 0.01 --bytes 300000 >"$tmp/out" 2>"$tmp/err" || wrong "exit $?"
grep -q '^rank 0 of 2 (KVSMITH_RANK' "$tmp/out" && [ "$(grep -c '^rank ' "$tmp/out")" -eq 1 ] || wrong "$(cat "$tmp/out")"
# This launcher's ranks are what count, wherever it stands itself.
RANK=7 WORLD_SIZE=9 LOCAL_RANK=1 SLURM_PROCID=3 SLURM_NTASKS=4 launch -n 2 -- bench comm --seconds 0.01 --bytes 4096 >/dev/null 2>"$tmp/err" ||
    wrong "inside others: exit $?: $(cat "$tmp/err")"
# Whoever starts it may leave SIGCHLD ignored.
timeout "$(patience 60)" env --ignore-signal=CHLD "$prog" launch -n 2 -- bench comm --seconds 0.01 --bytes 4096 >/dev/null 2>"$tmp/err" ||
    wrong "SIGCHLD ignored: exit $?: $(cat "$tmp/err")"
verdict launch

refused() { # part, then the words
    local part=$1
    shift
    "$prog" "$@" >"$tmp/out" 2>"$tmp/err"
    rc=$?
    [ $rc -eq 2 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ ! -s "$tmp/out" ] && grep -qF -- "$part" "$tmp/err" ||
        wrong "$*: exit $rc: $(cat "$tmp/err"), expected '$part'"
}
refused "expected -- train" launch
refused "expected train ..., bench comm ..., generate ... or logits" launch -n 2 -- eval x
refused "without --cache-ranks every rank of generate would do the same" launch -n 2 -- generate x
refused "expected a whole number from 1" launch -n 0 -- bench comm
refused "expected a number from 0.1" launch --deadline 0 -- bench comm
refused "--max-restarts" launch --max-restarts -1 -- bench comm
refused "after the command" launch --threads 1 -- bench comm
refused "needs at least two ranks" bench comm
for v in "RANK=1" "RANK=1 WORLD_SIZE=2" "RANK=5 WORLD_SIZE=2 LOCAL_RANK=0" "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 RANK=1 WORLD_SIZE=2 LOCAL_RANK=1"; do
    env $v "$prog" bench comm >"$tmp/out" 2>"$tmp/err"
    rc=$?
    [ $rc -eq 2 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] || wrong "$v: exit $rc: $(cat "$tmp/err")"
done
# What is wrong with what all were given is said once.
refused "--bytes: expected" launch -n 3 -- bench comm --bytes x
refused "dist.launcher" launch -n 2 -- bench comm --launcher slurm
refused "shm" launch -n 2 -- bench comm --comm carrier-pigeon
verdict refusals

# ---- SIGKILL and SIGSTOP of a random rank at a random moment: the others say who, in time, and nothing is left.
RANDOM=20
trials=${LAUNCH_TRIALS:-12} # half and half; six at a time
trial() { # number
    local t=$1 kind=KILL victim=$2 delay=$3 out=$tmp/trial$1 start rc ids
    [ $((t % 2)) -eq 1 ] && kind=STOP
    "$prog" launch -n 3 --deadline "$(patience 4)" -- bench comm --seconds "$(patience 30)" --bytes 2000000 >"$out.out" 2>"$out.err" &
    local pid=$!
    wait_for_ranks $pid 3
    sleep "0.$delay"
    kill -$kind "${ids[$victim]}" 2>/dev/null
    start=$(date +%s%N)
    wait $pid
    rc=$?
    local ms=$((($(date +%s%N) - start) / 1000000))
    [ $rc -eq 1 ] || echo "trial $t ($kind of rank $victim after 0.$delay s): exit $rc: $(cat "$out.err")" >>"$out.bad"
    [ $ms -lt "$(patience 30000)" ] || echo "trial $t: $ms ms" >>"$out.bad"
    # The launcher's last line names it. The two others name it, and their collective or, early on, the start.
    tail -n 1 "$out.err" | grep -q "^kvsmith: rank $victim .*\(killed by signal 9\|was stopped\)" || echo "trial $t ($kind): $(cat "$out.err")" >>"$out.bad"
    [ "$(grep -cE "kvsmith: rank [0-2] on [^ ]+: [a-z-]+ '.*\(call [0-9]+\): rank $victim" "$out.err")" -eq 2 ] ||
        echo "trial $t ($kind of rank $victim after 0.$delay s), expected two lines that name it: $(cat "$out.err")" >>"$out.bad"
    kill -0 "${ids[$victim]}" 2>/dev/null && echo "trial $t: rank $victim is left" >>"$out.bad"
}
for t in $(seq $trials); do
    trial "$t" $((RANDOM % 3)) "$(printf '%03d' $((RANDOM % 600)))" &
    [ $((t % 6)) -eq 0 ] && wait
done
wait
cat "$tmp"/trial*.bad >>"$bad" 2>/dev/null
for _ in $(seq "$(patience 100)"); do
    [ -z "$(orphans)" ] && break
    sleep 0.05
done
[ -z "$(orphans)" ] || wrong "left: $(orphans)"
verdict killed-and-stopped

# ---- the launcher is killed: so are its ranks
"$prog" launch -n 3 -- bench comm --seconds "$(patience 30)" >/dev/null 2>&1 &
pid=$!
wait_for_ranks $pid 3
kill -KILL $pid
wait $pid 2>/dev/null
for _ in $(seq "$(patience 100)"); do
    [ -z "$(orphans)" ] && break
    sleep 0.05
done
[ -z "$(orphans)" ] || wrong "left: $(orphans)"
verdict no-orphans

# ---- restarts
"$prog" launch -n 2 --deadline "$(patience 4)" --max-restarts 2 -- bench comm --seconds 0.2 --bytes 100000000 >"$tmp/out" 2>"$tmp/err" &
pid=$!
for i in 1 2; do
    sleep 0.3
    wait_for_ranks $pid 2
    kill -KILL "${ids[0]}"
    for _ in $(seq "$(patience 200)"); do
        grep -q "restart $i of 2" "$tmp/err" && break
        sleep 0.05
    done
    grep -q "restart $i of 2" "$tmp/err" || wrong "no restart $i: $(cat "$tmp/err")"
done
sleep 0.3
wait_for_ranks $pid 2
kill -KILL "${ids[1]}"
wait $pid
rc=$?
[ $rc -eq 1 ] && tail -n 1 "$tmp/err" | grep -q 'no restarts left' || wrong "exit $rc: $(cat "$tmp/err")"
verdict restarts

# ---- an interrupted launcher hands the signal on; what does not catch it is ended by it
"$prog" launch -n 2 --max-restarts 3 -- bench comm --seconds "$(patience 30)" >/dev/null 2>"$tmp/err" &
pid=$!
wait_for_ranks $pid 2
sleep 0.2
kill -TERM $pid
wait $pid
rc=$?
[ $rc -eq 1 ] && ! grep -q 'restart 1' "$tmp/err" || wrong "exit $rc: $(cat "$tmp/err")"
[ -z "$(orphans)" ] || wrong "left: $(orphans)"
verdict interrupted

# ---- ranks that somebody else starts: they meet by a local name
fake() { # ranks, a name for the job, then words
    local n=$1 job=$2 r
    shift 2
    for r in $(seq 0 $((n - 1))); do
        env RANK="$r" WORLD_SIZE="$n" LOCAL_RANK="$r" LOCAL_WORLD_SIZE="$n" TORCHELASTIC_RUN_ID="$job" "$prog" "$@" >"$tmp/fake$r" 2>&1 &
        eval "fake$r=$!"
    done
    for r in $(seq 0 $((n - 1))); do eval "wait \$fake$r" || wrong "rank $r: exit $?: $(cat "$tmp/fake$r")"; done
}
fake 3 one$$ bench comm --seconds 0.01 --bytes 100000
grep -q '^3 ranks by shm' "$tmp/fake0" || wrong "$(cat "$tmp/fake0")"
[ -s "$tmp/fake1" ] && wrong "rank 1 says: $(cat "$tmp/fake1")"
env RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 "$prog" bench comm --deadline 0.3 >"$tmp/out" 2>"$tmp/err"
rc=$?
[ $rc -eq 1 ] && grep -q 'rank 0 was not found on this host within 0.3 s' "$tmp/err" || wrong "alone: exit $rc: $(cat "$tmp/err")"
env RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 "$prog" bench comm >"$tmp/out" 2>"$tmp/err"
rc=$?
[ $rc -eq 2 ] && grep -q 'mpi' "$tmp/err" || wrong "two hosts: exit $rc: $(cat "$tmp/err")"
verdict torchrun-variables

# ---- MPI
if [ ! -e "$build/kvsmith-mpi.so" ] || ! command -v mpirun >/dev/null 2>&1; then
    echo "skip mpi: no Open MPI here"
else
    mpi=(mpirun --allow-run-as-root --oversubscribe --mca btl self,vader)
    "${mpi[@]}" -np 3 "$prog" bench comm --seconds 0.01 --bytes 9000000 >"$tmp/out" 2>"$tmp/err" </dev/null || wrong "exit $?: $(cat "$tmp/err")"
    grep -q '^3 ranks by mpi, 3 on this host' "$tmp/out" || wrong "$(cat "$tmp/out" "$tmp/err")"
    "${mpi[@]}" -np 2 "$prog" bench comm --comm shm --seconds 0.01 --bytes 4096 >"$tmp/out" 2>"$tmp/err" </dev/null || wrong "shm: exit $?: $(cat "$tmp/err")"
    grep -q '^2 ranks by shm' "$tmp/out" || wrong "$(cat "$tmp/out" "$tmp/err")"
    # A stopped rank is named at the deadline, and all are ended.
    "${mpi[@]}" -np 3 "$prog" bench comm --seconds "$(patience 30)" --deadline "$(patience 4)" >"$tmp/out" 2>"$tmp/err" </dev/null &
    pid=$!
    for _ in $(seq "$(patience 200)"); do
        [ "$(processes kvsmith $pid | wc -l)" -eq 3 ] && [ -s "$tmp/out" ] && break
        sleep 0.05
    done
    for p in $(processes kvsmith $pid); do
        tr '\0' '\n' <"/proc/$p/environ" | grep -qx OMPI_COMM_WORLD_RANK=1 && kill -STOP "$p"
    done
    wait $pid
    rc=$?
    [ $rc -eq 1 ] || wrong "stopped: exit $rc"
    grep -qE "kvsmith: rank [02] on [^ ]+: .*rank 1 did not arrive within $(patience 4) s" "$tmp/err" || wrong "stopped: $(cat "$tmp/err")"
    [ -z "$(orphans)" ] || wrong "left: $(orphans)"
    # A program that was built without it says how to have it.
    mkdir "$tmp/bin" && cp "$prog" "$tmp/bin/kvsmith"
    env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 "$tmp/bin/kvsmith" bench comm >"$tmp/out" 2>"$tmp/err"
    rc=$?
    [ $rc -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q 'libopenmpi-dev' "$tmp/err" || wrong "without: exit $rc: $(cat "$tmp/err")"
    verdict mpi
fi
