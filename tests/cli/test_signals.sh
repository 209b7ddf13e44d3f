#!/bin/bash
# How commands end that are asked to, or that lose what they were given: signals, closed and full outputs, few descriptors,
# ranks that die as they start, calls that are interrupted. docs/guide.md has the table of signals.
. tests/lib/cases.sh
export OMP_NUM_THREADS=1
train="train configs/tiny-gqa.yaml --threads 1 train.log_every=1 train.eval_every=0"
long="$train -q train.steps=1000000 train.save_every=0"
now() { date +%s%N; }
ms_since() { echo $((($(now) - $1) / 1000000)); }
one_line() { # what, want, got: one line of ours in $tmp/err, and in it $4
    [ "$3" -eq "$2" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q "^kvsmith: .*$4" "$tmp/err" || wrong "$1: exit $3: $(cat "$tmp/err")"
}
${CC:-gcc} -shared -fPIC -O1 -o "$tmp/shim.so" tests/shim/signals.c -ldl || wrong 'no shim'

# ---- ranks that die before they are at the shared memory
for n in 5 6 7 8 9 10; do
    (for ((fd = 3; fd < 255; fd++)); do eval "exec $fd>&-"; done # what this script was started with
    ulimit -n $n && exec timeout "$(patience 20)" "$prog" launch -n 3 -- bench comm --seconds 0.01 --bytes 4096) >"$tmp/out" 2>"$tmp/err"
    one_line "ulimit -n $n" 1 $? 'Too many open files'
done
verdict few-descriptors

deadline=$(patience 10)
trial() { # milliseconds after the first rank is there, number
    local t=$2 pid kids=() start rc end=$((SECONDS + deadline))
    "$prog" launch -n 3 --deadline $deadline -- bench comm --seconds 100 --bytes 2000000 >"$tmp/early$t.out" 2>"$tmp/early$t.err" &
    pid=$!
    while [ $SECONDS -lt $end ]; do
        { read -r -a kids <"/proc/$pid/task/$pid/children"; } 2>/dev/null
        [ ${#kids[@]} -ge $((t % 3 + 1)) ] && break
    done
    [ "$1" = 0 ] || sleep "0.0$1"
    kill -KILL "${kids[t % 3]}" 2>/dev/null
    start=$(now)
    wait $pid
    rc=$?
    [ $rc -eq 1 ] && [ "$(ms_since "$start")" -lt "$(patience 1500)" ] && grep -q "^kvsmith: rank $((t % 3)) was killed by signal 9" "$tmp/early$t.err" ||
        wrong "rank $((t % 3)) killed after $1 ms: exit $rc after $(ms_since "$start") ms: $(cat "$tmp/early$t.err")"
}
if [ -e "/proc/$$/task/$$/children" ]; then
    t=0
    for after in 0 0 0 0 0 0 10 20 50; do
        trial $after $t
        t=$((t + 1))
    done
    verdict killed-early
else
    echo "skip killed-early: this kernel does not list the children of a process"
fi

# ---- closed and full outputs
"$prog" $train train.steps=6 run.dir="$tmp/run" >/dev/full 2>"$tmp/err"
one_line 'full' 1 $? 'standard output: No space left on device'
"$prog" $train train.steps=6 run.dir="$tmp/run2" >&- 2>"$tmp/err"
one_line 'closed' 1 $? 'standard output: Bad file descriptor'
# What is opened never gets the number of an output that is closed.
"$prog" $train -q train.steps=6 run.dir="$tmp/run3" <&- >&- 2>&- || wrong "all closed: exit $?"
for f in config.json model.safetensors trainer/state.json; do cmp "$tmp/run/last/$f" "$tmp/run3/last/$f" >>"$bad" 2>&1; done
start=$(now)
timeout "$(patience 60)" "$prog" launch -n 2 -- bench comm --seconds 0.01 --bytes 4096 <&- >&- 2>&-
rc=$?
[ $rc -eq 1 ] && [ "$(ms_since "$start")" -lt "$(patience 20000)" ] || wrong "launch, closed: exit $rc after $(ms_since "$start") ms"
timeout "$(patience 60)" "$prog" launch -n 2 -- $train -q train.batch=4 train.micro_batch=2 train.steps=6 run.dir="$tmp/run4" <&- >&- 2>&- ||
    wrong "launch train, closed: exit $?"
verdict outputs

mkfifo "$tmp/gone"
exec 8<>"$tmp/gone" 9>"$tmp/gone" 8<&- # a pipe whose reader is gone from the start
env --default-signal=PIPE "$prog" generate "$tmp/run" --prompt a --max-new 40 --ignore-eos 2>"$tmp/err" >&9
rc=$?
[ "$rc" -eq 141 ] && [ ! -s "$tmp/err" ] || wrong "generate | head: exit $rc: $(cat "$tmp/err")"
env --ignore-signal=PIPE "$prog" generate "$tmp/run" --prompt a --max-new 40 --ignore-eos 2>"$tmp/err" >&9
one_line 'generate | head, SIGPIPE ignored' 1 $? 'standard output: Broken pipe'
exec 9>&-
# Training and its launcher outlive who reads their lines.
"$prog" launch -n 2 -- $train train.batch=4 train.micro_batch=2 train.steps=40 run.dir="$tmp/run5" 2>&1 | head -n 1 >/dev/null
[ -e "$tmp/run5/step-000040" ] || wrong "launch | head: exit ${PIPESTATUS[0]}, $(ls "$tmp/run5" | tr '\n' ' ')"
verdict pipes

# ---- SIGXFSZ
printf '1 2 3\n4 5 6\n' >"$tmp/tokens"
(ulimit -f 1 && exec "$prog" logits "$tmp/run" --tokens "$tmp/tokens" --out "$tmp/out.safetensors") >"$tmp/out" 2>"$tmp/err"
one_line logits 1 $? 'File too large'
[ -z "$(ls "$tmp" | grep '^out\.safetensors')" ] || wrong "logits left $(ls "$tmp" | grep '^out\.safetensors')"
(ulimit -f 1 && exec "$prog" launch -n 2 -- bench comm) >"$tmp/out" 2>"$tmp/err"
one_line launch 1 $? 'shared memory of .* bytes: File too large'
verdict file-size-limit

# ---- SIGHUP and SIGUSR1
trains() { # run folder: it has begun to train
    for _ in $(seq "$(patience 1000)"); do
        [ -s "$1/metrics.jsonl" ] && return
        sleep 0.02
    done
    wrong "$1 does not train: $(cat "$tmp/err")"
}
saved() { # run folder, exit status
    [ "$2" -eq 130 ] && [ "$(ls -d "$1"/step-* 2>/dev/null | wc -l)" -eq 1 ] || wrong "$1: exit $2, holds $(ls -A "$1" | tr '\n' ' '): $(cat "$tmp/err")"
}
# Whoever runs this may have them ignored, as nohup does.
for s in HUP USR1 'HUP HUP HUP' 'USR1 TERM'; do # as a shell and the system do, and a batch system at its limit
    dir=$tmp/end-${s// /-}
    env --default-signal=HUP,USR1,TERM "$prog" $long run.dir="$dir" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    trains "$dir"
    for x in $s; do kill -$x $pid 2>/dev/null; done
    wait $pid
    saved "$dir" $?
done
for s in HUP USR1; do
    dir=$tmp/launch-$s
    env --default-signal=HUP,USR1 "$prog" launch -n 2 --max-restarts 3 -- $long train.batch=4 train.micro_batch=2 run.dir="$dir" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    trains "$dir"
    kill -$s $pid
    wait $pid
    saved "$dir" $?
done
# nohup
env --ignore-signal=HUP "$prog" launch -n 2 -- $long train.batch=4 train.micro_batch=2 run.dir="$tmp/nohup" >"$tmp/out" 2>"$tmp/err" &
pid=$!
trains "$tmp/nohup"
kill -HUP $pid $(processes '' $pid)
sleep 0.3
kill -0 $pid 2>/dev/null || wrong "nohup: SIGHUP ended it: $(cat "$tmp/err")"
kill -TERM $pid
wait $pid
saved "$tmp/nohup" $?
# Those that have nothing to save, here while they wait for input that does not come.
mkfifo "$tmp/fifo"
exec 7<>"$tmp/fifo"
for s in HUP USR1 INT; do
    for c in "generate $tmp/run --prompt-file -" "data tokenize - --tokenizer byte -o $tmp/set"; do
        env --default-signal=HUP,USR1,INT "$prog" $c <&7 >"$tmp/out" 2>"$tmp/err" &
        pid=$!
        for _ in $(seq "$(patience 200)"); do # until it is past its start: it has all the libraries, and catches
            grep -q '^Name:.*kvsmith' /proc/$pid/status 2>/dev/null && grep -qE '^Sig(Cgt|Blk):.*[1-9a-f]' /proc/$pid/status && break
            sleep 0.02
        done
        kill -$s $pid
        wait $pid
        rc=$?
        [ $rc -eq 130 ] && [ ! -s "$tmp/err" ] || wrong "${c%% *}, SIG$s: exit $rc: $(cat "$tmp/err")"
    done
done
# What is ignored (nohup) stays so, also where signals are blocked and looked for.
env --ignore-signal=HUP "$prog" data tokenize - --tokenizer byte -o "$tmp/kept" <"$tmp/fifo" 7>&- >"$tmp/out" 2>"$tmp/err" &
pid=$!
printf 'some text\n' >&7
for _ in $(seq "$(patience 200)"); do
    grep -q '^Name:.*kvsmith' /proc/$pid/status 2>/dev/null && grep -q '^SigBlk:.*[1-9a-f]' /proc/$pid/status && break
    sleep 0.02
done
kill -HUP $pid
printf 'and more of it\n' >&7
exec 7>&-
wait $pid || wrong "data tokenize, SIGHUP ignored: exit $?: $(cat "$tmp/err")"
[ -z "$(ls "$tmp" | grep '^set')" ] || wrong "data tokenize left $(ls "$tmp" | grep '^set')"
verdict hangup-and-usr1

# ---- calls that are interrupted, as file systems over a network or of a program of the user's may say
LD_PRELOAD=$tmp/shim.so SHIM_EINTR=all "$prog" $train -q train.steps=6 run.dir="$tmp/run7" 2>"$tmp/err" || wrong "interrupted: exit $?: $(cat "$tmp/err")"
cmp "$tmp/run/last/model.safetensors" "$tmp/run7/last/model.safetensors" >>"$bad" 2>&1
# The same of every call that waits, over commands that have other ones: ranks on one machine, a set, a conversion, decoding.
inter() { # arguments; the kinds of calls that were interrupted are gathered in $tmp/kinds
    LD_PRELOAD=$tmp/shim.so SHIM_EINTR=all SHIM_TOLD=6 "$prog" "$@" >"$tmp/out" 2>"$tmp/err" 6>>"$tmp/kinds" || wrong "interrupted, $*: exit $?: $(cat "$tmp/err")"
}
"$prog" launch -n 2 -- $train -q train.batch=4 train.micro_batch=2 train.steps=6 run.dir="$tmp/run8" 2>"$tmp/err" || wrong "launch: exit $?: $(cat "$tmp/err")"
inter launch -n 2 -- $train -q train.batch=4 train.micro_batch=2 train.steps=6 run.dir="$tmp/run9"
cmp "$tmp/run8/last/model.safetensors" "$tmp/run9/last/model.safetensors" >>"$bad" 2>&1
cmp <(sed 's/,"tok_s":.*//' "$tmp/run8/metrics.jsonl") <(sed 's/,"tok_s":.*//' "$tmp/run9/metrics.jsonl") >>"$bad" 2>&1
cp "$tmp/run9/metrics.jsonl" "$tmp/was" && inter $train -q train.steps=8 train.batch=4 train.micro_batch=2 run.dir="$tmp/run9" --resume auto
cmp <(head -n "$(wc -l <"$tmp/was")" "$tmp/run9/metrics.jsonl") "$tmp/was" >>"$bad" 2>&1
head -c 20000 data/kjv.txt >"$tmp/text.txt"
for format in megatron llmc; do
    "$prog" data tokenize "$tmp/text.txt" --tokenizer byte -o "$tmp/plain" --format $format -q >"$tmp/out" 2>"$tmp/err" || wrong "tokenize: $(cat "$tmp/err")"
    inter data tokenize - --tokenizer byte -o "$tmp/cut" --format $format -q <"$tmp/text.txt"
    cmp "$tmp/plain.bin" "$tmp/cut.bin" >>"$bad" 2>&1
done
inter convert "$tmp/run/last" "$tmp/mqa" --to mqa --threads 1 -q
inter info "$tmp/mqa"
inter generate "$tmp/mqa" --prompt-file "$tmp/tokens" --max-new 4 --threads 1 -q
# Ranks that find each other by a local name; over the network: tests/train/test_rendezvous_eintr.c.
meet() { RANK=$1 WORLD_SIZE=2 LOCAL_RANK=$1 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=eintr$$ inter bench comm --seconds 0.01 --bytes 4096; }
meet 1 &
meet 0
wait $!
for kind in open openat fsync flock read write pread pwrite ftruncate poll recvmsg sendmsg connect accept4 waitpid; do
    grep -qx $kind "$tmp/kinds" || wrong "no $kind was interrupted: $(sort -u "$tmp/kinds" | tr '\n' ' ')"
done
verdict interrupted-calls

# ---- little memory
size=12583104 # of the matrices that the peak is measured with
LD_PRELOAD=$tmp/shim.so SHIM_NO_MAP=$size "$prog" $train train.steps=100000 train.max_seconds=0.3 run.dir="$tmp/run6" --json >"$tmp/out" 2>"$tmp/err" || wrong "no room to measure: exit $?: $(cat "$tmp/err")"
grep -q '"mfu":null,"peak_flops":null' "$tmp/out" || wrong "$(cat "$tmp/out")"
[ "$(wc -l <"$tmp/err")" -ge 1 ] && grep -q '^mfu (fraction of peak FLOP/s) is not reported: out of memory: 12.0 MiB for bench' "$tmp/err" || wrong "$(cat "$tmp/err")"
[ -s "$tmp/run6/last/model.safetensors" ] || wrong "without a peak nothing was trained: $(ls -A "$tmp/run6")"
(ulimit -v 2000000 && exec "$prog" generate "$tmp/run" --prompt-file /dev/zero) >"$tmp/out" 2>"$tmp/err"
one_line 'prompt of /dev/zero' 2 $? '/dev/zero: more than 64 MiB from a pipe or device'
truncate -s 3T "$tmp/sparse" 2>/dev/null || truncate -s 3G "$tmp/sparse"
"$prog" generate "$tmp/run" --prompt-file "$tmp/sparse" >"$tmp/out" 2>"$tmp/err"
one_line 'sparse prompt' 2 $? 'more than 1024 MiB'
verdict little-memory
