#!/bin/bash
# --cache-ranks: generate and logits of several processes give the text and the logits of one; a rank that is killed or
# stopped ends the others in time; what is refused.
. tests/lib/cases.sh
export OMP_NUM_THREADS=1
run() { "$prog" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; }
refused() { # part of the line, arguments
    local part=$1
    shift
    run "$@"
    rc=$?
    [ $rc -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -qF -- "$part" "$tmp/err" || wrong "$*: exit $rc: $(cat "$tmp/err")"
}
words="One two three four five six seven eight nine ten eleven twelve"
run train configs/tiny-gqa.yaml --threads 1 -q run.dir="$tmp/run" model.max_positions=4096 train.steps=6 || wrong "train: exit $?, $(cat "$tmp/err")"
model=$tmp/run
say() { run "$@" --max-new 40 --ignore-eos --temperature 0.8 --seed 4 --json; }
tokens() { grep -o '"tokens":\[[^]]*\]' "$tmp/out"; }
for i in 1 2 3; do echo "{\"prompt\": \"$words $words and number $i\"}"; done >"$tmp/batch"
echo '{"prompt": "x"}' >>"$tmp/batch"
say generate "$model" --prompt "$words" && tokens >"$tmp/one" || wrong "generate: $(cat "$tmp/err")"
say generate "$model" --batch-file "$tmp/batch" --chunk 16 && tokens >"$tmp/many" || wrong "batch: $(cat "$tmp/err")"
bytes=$(grep -o '"cache_bytes":[0-9]*' "$tmp/out" | head -n 1 | cut -d: -f2)
[ -s "$tmp/one" ] && [ "$(wc -l <"$tmp/many")" -eq 4 ] || wrong "no tokens: $(cat "$tmp/out")"
for how in "2 rows" "3 rows" "2 prompt" "3 prompt"; do
    n=${how% *} divided=${how#* }
    say launch -n $n -- generate "$model" --prompt "$words" --cache-ranks $divided || wrong "$how: exit $?, $(cat "$tmp/err")"
    tokens | cmp -s - "$tmp/one" || wrong "$how: another text: $(tokens)"
    [ "$(wc -l <"$tmp/out")" -eq 1 ] && [ ! -s "$tmp/err" ] || wrong "$how: $(cat "$tmp/out" "$tmp/err")"
    say launch -n $n -- generate "$model" --batch-file "$tmp/batch" --chunk 32 --cache-ranks $divided || wrong "batch, $how: exit $?, $(cat "$tmp/err")"
    tokens | cmp -s - "$tmp/many" || wrong "batch, $how: another text: $(tokens)"
    part=$(grep -o '"cache_bytes":[0-9]*' "$tmp/out" | head -n 1 | cut -d: -f2)
    # a row more or less, of each layer
    awk -v n=$n -v all="$bytes" -v part="$part" 'BEGIN { exit !(part * n >= all && part * n < all * 1.1) }' || wrong "$how: $part bytes, one has $bytes"
done
run launch -n 2 -- generate "$model" --prompt "$words" --max-new 8 --cache-ranks rows || wrong "streamed: exit $?"
[ "$(grep -c 'prompt tokens in' "$tmp/err")" -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] || wrong "streamed: $(cat "$tmp/err")"
verdict generate

seq 0 199 | tr '\n' ' ' >"$tmp/ids" && echo >>"$tmp/ids" && seq 30 229 | tr '\n' ' ' >>"$tmp/ids"
run logits "$model" --tokens "$tmp/ids" --out "$tmp/l1" --chunk 32 --threads 1 || wrong "logits: $(cat "$tmp/err")"
for how in "2 rows" "3 rows" "2 prompt" "3 prompt"; do
    n=${how% *}
    run launch -n $n -- logits "$model" --tokens "$tmp/ids" --out "$tmp/l$n" --chunk 32 --cache-ranks ${how#* } --threads 1 || wrong "$how: exit $?, $(cat "$tmp/err")"
    [ "$(cat "$tmp/out")" = "$tmp/l$n: logits (2,200,257)" ] && [ ! -s "$tmp/err" ] || wrong "$how: $(cat "$tmp/out" "$tmp/err")"
    # every element as a number: the header's bytes are alike
    for f in 1 $n; do od -An -v -t f4 -w4 -j 4096 "$tmp/l$f" >"$tmp/f$f"; done
    paste "$tmp/f1" "$tmp/f$n" | awk 'function abs(x) { return x < 0 ? -x : x }
        NF != 2 { bad = 1 } { if (abs($1) > top) top = abs($1); if (abs($1 - $2) > worst) worst = abs($1 - $2) }
        END { print worst / top; exit bad || NR < 100000 || !(worst <= 1e-5 * top) }' >"$tmp/worst" || wrong "$how: logits differ by $(cat "$tmp/worst")"
done
verdict logits

# ---- a rank is killed or stopped while the ranks decode: the others end with a line, and nothing is left
for kind in KILL STOP; do
    for victim in 0 1 2; do
        divided=$([ $victim -eq 1 ] && echo prompt || echo rows)
        "$prog" launch -n 3 --deadline "$(patience 2)" -- generate "$model" --prompt "$words" --max-new 3900 --context 4096 --ignore-eos --cache-ranks $divided >"$tmp/out" 2>"$tmp/err" </dev/null &
        pid=$!
        for _ in $(seq "$(patience 500)"); do
            ids=($(processes '' $pid))
            [ ${#ids[@]} -ge 3 ] && [ -s "$tmp/out" ] && break
            sleep 0.02
        done
        [ ${#ids[@]} -ge 3 ] && [ -s "$tmp/out" ] || wrong "$kind $victim: the ranks did not start"
        for p in "${ids[@]}"; do
            tr '\0' '\n' 2>/dev/null <"/proc/$p/environ" | grep -qx "KVSMITH_RANK=$victim" && kill -$kind "$p"
        done
        begun=$SECONDS
        wait $pid
        rc=$?
        [ $rc -eq 1 ] || wrong "$kind $victim: exit $rc: $(cat "$tmp/err")"
        [ $((SECONDS - begun)) -le $(($(patience 2) + $(patience 4))) ] || wrong "$kind $victim: $((SECONDS - begun)) s"
        grep -q "rank $victim" "$tmp/err" || wrong "$kind $victim: $(cat "$tmp/err")"
        # a line of each that was left, and the launcher's
        [ "$(grep -c "partial attention.*rank $victim" "$tmp/err")" -ge 1 ] && [ "$(wc -l <"$tmp/err")" -le 4 ] || wrong "$kind $victim: $(cat "$tmp/err")"
        for p in "${ids[@]}"; do [ ! -d "/proc/$p" ] || wrong "$kind $victim: process $p is left"; done
    done
done
verdict a-rank-ends

run train configs/tiny-kda.yaml --threads 1 -q run.dir="$tmp/kda" train.steps=2 optim.warmup=1 || wrong "train: exit $?, $(cat "$tmp/err")"
refused "layers of this model have a state" launch -n 2 -- generate "$tmp/kda" --prompt x --cache-ranks prompt
refused "this process is the only rank" generate "$model" --prompt x --cache-ranks rows
refused "this process is the only rank" launch -n 1 -- logits "$model" --tokens "$tmp/ids" --out "$tmp/l" --cache-ranks rows
refused "--cache-ranks: expected rows or prompt, got 'columns'" generate "$model" --prompt x --cache-ranks columns
refused "without --cache-ranks every rank of generate would do the same" launch -n 2 -- generate "$model" --prompt x
refused "--cache-ranks: a policy chooses among all rows" launch -n 2 -- generate "$model" --prompt x --cache-ranks rows --policy h2o
refused "leave out it or --cache-memory" launch -n 2 -- generate "$model" --prompt x --cache-ranks rows --cache-memory 1GB --cache-disk "$tmp"
refused "--cache-dtype kivi4 stores rows of neighbours in blocks" launch -n 2 -- generate "$model" --prompt x --cache-ranks rows --cache-dtype kivi4
refused "--session and --save-session hold the rows of one process" launch -n 2 -- generate "$model" --prompt x --cache-ranks rows --save-session "$tmp/s"
refused "ranks cannot share standard input" launch -n 2 -- generate "$model" --prompt-file - --cache-ranks rows
refused "ranks cannot share standard input" launch -n 2 -- logits "$model" --tokens - --out "$tmp/l" --cache-ranks rows
refused "unknown option --cache-ranks" launch -n 2 -- bench comm --cache-ranks rows
refused "unknown option --cache-ranks" eval "$model" ppl --data README.md --cache-ranks rows
[ ! -e "$tmp/s" ] && [ ! -e "$tmp/l" ] || wrong "a file was written"
verdict refusals

if [ ! -e "$build/kvsmith-mpi.so" ] || ! command -v mpirun >/dev/null 2>&1; then
    echo "skip mpi: no Open MPI here"
else
    mpirun --allow-run-as-root --oversubscribe --mca btl self,vader -np 2 "$prog" generate "$model" --prompt "$words" --max-new 40 --ignore-eos \
        --temperature 0.8 --seed 4 --json --cache-ranks prompt >"$tmp/out" 2>"$tmp/err" </dev/null || wrong "exit $?: $(cat "$tmp/err")"
    tokens | cmp -s - "$tmp/one" && [ "$(wc -l <"$tmp/out")" -eq 1 ] || wrong "another text: $(cat "$tmp/out" "$tmp/err")"
    verdict mpi
fi
