#!/bin/bash
# --cache-memory, --cache-disk and --cache-prefetch of the commands that fill a cache: the same text and figures as
# without, what they print, what they refuse, and that nothing is left in the folder.
. tests/lib/cases.sh
src=tests/golden/convert
field() { grep -o "\"$1\":[^,}]*" "$2" | head -n 1 | cut -d: -f2; }
run() { "$prog" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; }
refused() { # part of the line, arguments
    local part=$1
    shift
    run "$@"
    [ $? -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -qF -- "$part" "$tmp/err" || wrong "$*: $(cat "$tmp/err")"
}
disk=$tmp/disk
mkdir "$disk"
words="One two three four five six seven eight nine ten eleven twelve"

# A model of eight layers, a few steps old.
run train configs/tiny-gqa.yaml --threads 1 -q run.dir="$tmp/run" model.layers=8 model.max_positions=512 train.steps=6 || wrong "train: exit $?, $(cat "$tmp/err")"
model=$tmp/run
say() { run generate "$model" --prompt "$words" --max-new 40 --ignore-eos --temperature 0.8 --seed 4 --threads 2 --json "$@"; }
text() { grep -o '"text":.*"tokens":\[[^]]*\]' "$tmp/out"; }
say || wrong "generate: exit $?, $(cat "$tmp/err")"
text >"$tmp/want"
[ -s "$tmp/want" ] || wrong "no text: $(cat "$tmp/out")"
least() { # of the refusal: the smallest limit
    refused "are too few" "$@" --cache-memory 1000 --cache-disk "$disk"
    sed -n 's/.*needs \([0-9]*\) bytes.*/\1/p' "$tmp/err"
}
all=$(least generate "$model" --prompt "$words" --max-new 40 --ignore-eos)
alone=$(least generate "$model" --prompt "$words" --max-new 40 --ignore-eos --cache-prefetch off)
[ "${alone:-0}" -gt 0 ] && [ "${all:-0}" -gt "$alone" ] || wrong "limits: '$all' and '$alone'"
for how in "$all" "$alone off" "$((all * 2))" 1GB; do
    set -- $how
    say --cache-memory "$1" --cache-disk "$disk" --cache-prefetch "${2:-auto}" || wrong "$how: exit $?, $(cat "$tmp/err")"
    text | cmp -s - "$tmp/want" || wrong "$how: another text: $(text)"
    n=$(field layers "$tmp/out") read=$(field read_bytes "$tmp/out") written=$(field written_bytes "$tmp/out")
    [ "$(field memory_bytes "$tmp/out")" -le "$([ "$1" = 1GB ] && echo 1000000000 || echo "$1")" ] || wrong "$how: $(cat "$tmp/out")"
    case $how in
    1GB) [ "$n" -eq 0 ] && [ "$read" = 0.0 ] || wrong "1GB: $n layers, $read bytes read" ;;
    "$all" | *off) [ "$n" -eq 8 ] || wrong "$how: $n layers on disk, expected 8" ;;
    *) [ "$n" -gt 2 ] && [ "$n" -lt 8 ] || wrong "$how: $n layers on disk" ;;
    esac
    # every row but the last token's was written once
    tokens=$(($(field prompt_tokens "$tmp/out") + $(field new_tokens "$tmp/out") - 1)) bytes=$(field cache_bytes "$tmp/out")
    [ "$(awk -v n="$n" -v all="$bytes" -v w="$written" 'BEGIN { print w == all * n / 8 }')" = 1 ] || wrong "$how: $written bytes written of $n layers, $bytes bytes in all, $tokens tokens"
    [ -z "$(ls -A "$disk")" ] || wrong "$how: left in the folder: $(ls -A "$disk")"
done
run generate "$model" --prompt "$words" --max-new 40 --ignore-eos --seed 4 --temperature 0.8 --cache-memory "$all" --cache-disk "$disk" || wrong "exit $?, $(cat "$tmp/err")"
grep -q '^rows of 8 of 8 layers on disk: [0-9]* bytes read, [0-9]* written$' "$tmp/err" || wrong "no closing line: $(cat "$tmp/err")"
# batches with a common beginning: shared pages on disk
for i in 1 2 3; do echo "{\"prompt\": \"$words $words and number $i\"}"; done >"$tmp/batch"
for how in "" "--cache-memory BYTES --cache-disk $disk"; do
    [ -z "$how" ] || how=${how/BYTES/$(least generate "$model" --batch-file "$tmp/batch" --max-new 12 --ignore-eos)}
    run generate "$model" --batch-file "$tmp/batch" --max-new 12 --ignore-eos --temperature 0 --json $how || wrong "batch $how: exit $?, $(cat "$tmp/err")"
    grep -o '"tokens":\[[^]]*\]' "$tmp/out" >"$tmp/batch.${how:+disk}"
    grep -q '"cached_tokens":[1-9]' "$tmp/out" || wrong "batch $how: nothing is shared"
done
[ -s "$tmp/batch." ] && cmp -s "$tmp/batch." "$tmp/batch.disk" || wrong "a batch differs"
verdict generate

# a saved session continues with its rows on disk
run generate "$model" --prompt "$words" --max-new 20 --ignore-eos --seed 4 -q --context 120 --save-session "$tmp/saved" || wrong "save: exit $?, $(cat "$tmp/err")"
run generate "$model" --session "$tmp/saved" --max-new 20 --ignore-eos --json --context 120 || wrong "session: exit $?, $(cat "$tmp/err")"
text >"$tmp/want"
more=$(least generate "$model" --session "$tmp/saved" --max-new 20 --ignore-eos --context 120)
run generate "$model" --session "$tmp/saved" --max-new 20 --ignore-eos --json --context 120 --cache-memory "$more" --cache-disk "$disk" || wrong "session: exit $?, $(cat "$tmp/err")"
[ -s "$tmp/want" ] && text | cmp -s - "$tmp/want" && [ "$(field layers "$tmp/out")" -eq 8 ] || wrong "a session differs: $(cat "$tmp/out")"
verdict session

ppl() { run eval "$model" ppl --data tests/golden/README.md --context 64 --json "$@" || wrong "eval $*: exit $?, $(cat "$tmp/err")"; }
ppl
want=$(field nll "$tmp/out")
ppl --cache-memory "$(least eval "$model" ppl --data tests/golden/README.md --context 64)" --cache-disk "$disk"
[ -n "$want" ] && [ "$(field nll "$tmp/out")" = "$want" ] || wrong "ppl: $(field nll "$tmp/out"), expected $want"
refused "--cache-memory: eval of a task uses the cache only with --decode" eval "$model" copy --cache-memory 1GB --cache-disk "$disk"
echo "1 2 3 4 5 6 7 8" >"$tmp/ids"
run logits "$model" --tokens "$tmp/ids" --chunk 3 --out "$tmp/l1" || wrong "logits: exit $?, $(cat "$tmp/err")"
run logits "$model" --tokens "$tmp/ids" --chunk 3 --out "$tmp/l2" --cache-disk "$disk" --cache-memory "$(least logits "$model" --tokens "$tmp/ids" --chunk 3 --out "$tmp/l3")" || wrong "logits: exit $?, $(cat "$tmp/err")"
cmp -s "$tmp/l1" "$tmp/l2" || wrong "logits differ"
verdict eval

# A policy that selects: the text of the same policy in memory; a step reads less than all rows, and what the layer
# before guessed is not read late.
for policy in quest:reads=16,recent=8,page=4 infinigen:reads=16,recent=8,page=4; do
    say --policy $policy || wrong "$policy: exit $?, $(cat "$tmp/err")"
    text >"$tmp/want"
    most=$(least generate "$model" --prompt "$words" --max-new 40 --ignore-eos --policy $policy)
    say --policy $policy --cache-memory "$most" --cache-disk "$disk" || wrong "$policy on disk: exit $?, $(cat "$tmp/err")"
    [ -s "$tmp/want" ] && text | cmp -s - "$tmp/want" || wrong "$policy on disk: another text: $(text)"
    read=$(field read_bytes "$tmp/out") late=$(field late_bytes "$tmp/out")
    say --cache-memory "$all" --cache-disk "$disk" || wrong "exit $?, $(cat "$tmp/err")"
    awk -v r="$read" -v all="$(field read_bytes "$tmp/out")" -v l="$late" -v guess="${policy%%:*}" 'BEGIN {
        exit !(r > 0 && r < all && l <= r && (guess != "infinigen" || l < r / 4)) }' || wrong "$policy: $read bytes read, $late of them late; without a policy $(field read_bytes "$tmp/out")"
done
verdict selection

# A step of decoding writes a row of each layer and reads the pages of those before: 256 to 448 rows of a prompt of 256
# and up to 192 steps, in pages of 64.
bench() { run bench decode configs/tiny-gqa.yaml model.layers=8 --seconds 0.05 --batch 1 --fill --prompt 256 --threads 1 "$@"; }
limit=$(least bench decode configs/tiny-gqa.yaml model.layers=8 --seconds 0.05 --batch 1 --fill --prompt 256)
for prefetch in auto off; do
    bench --json --cache-memory "$limit" --cache-disk "$disk" --cache-prefetch $prefetch || wrong "bench: exit $?, $(cat "$tmp/err")"
    [ "$(field layers "$tmp/out")" -ge 7 ] || wrong "bench, $prefetch: $(field layers "$tmp/out") layers on disk"
    row=$(awk -v b="$(field written_bytes "$tmp/out")" -v n="$(field layers "$tmp/out")" 'BEGIN { print b / n }')
    steps=$(field steps "$tmp/out")
    awk -v r="$(field read_bytes "$tmp/out")" -v n="$(field layers "$tmp/out")" -v row="$row" -v steps="$steps" 'BEGIN {
        for (i = 0; i < steps; i++) sum += int((256 + i + 63) / 64) * 64
        exit !(r == sum / steps * n * row || (r - sum / steps * n * row) ^ 2 < 1) }' || wrong "bench, $prefetch: $(field read_bytes "$tmp/out") bytes read in each of $steps steps of rows of $row bytes"
    grep -q "\"prefetch\":$([ $prefetch = auto ] && echo true || echo false)" "$tmp/out" || wrong "bench: $(cat "$tmp/out")"
done
bench --cache-memory "$limit" --cache-disk "$disk" && grep -q '^disk    rows of [78] of 8 layers; a step reads' "$tmp/out" || wrong "bench: $(cat "$tmp/out" "$tmp/err")"
# The bus is simulated: copies of a step's bytes at that rate, the first of which nothing hides.
bench --json --cache-memory "$limit" --cache-disk "$disk" --bus 0.5 || wrong "bus: exit $?, $(cat "$tmp/err")"
awk -v r="$(field read_bytes "$tmp/out")" -v c="$(field copies_s "$tmp/out")" -v n="$(field layers "$tmp/out")" -v w="$(grep -o '"simulated":{[^}]*' "$tmp/out" | grep -o '"waited_s":[^,]*' | cut -d: -f2)" 'BEGIN {
    exit !(r > 0 && (c - r / 5e8) ^ 2 < 1e-18 && w >= c / n - 1e-9 && w <= c + 1e-9) }' || wrong "bus: $(cat "$tmp/out")"
bench --cache-memory "$limit" --cache-disk "$disk" --bus 25 && grep -q '^bus     simulated, at 25 GB/s: a step computes for' "$tmp/out" || wrong "bus: $(cat "$tmp/out" "$tmp/err")"
verdict bench

refused "--cache-memory: expected a size such as 500MB or 2GiB, got '12 apples'" generate "$model" --cache-memory "12 apples" --cache-disk "$disk"
refused "--cache-memory: expected a size" generate "$model" --cache-memory 0 --cache-disk "$disk"
refused "give --cache-disk DIR, too" generate "$model" --cache-memory 1GB
refused "give --cache-memory BYTES, too" eval "$model" ppl --data README.md --cache-disk "$disk"
refused "give --cache-disk DIR, too" generate "$model" --cache-memory 1GB --device cpu
refused "--bus is for rows that a limit keeps out of memory" bench decode --bus 25
refused "--bus: expected a number from" bench decode --bus 0
refused "--cache-prefetch: expected auto or off, got 'on'" generate "$model" --cache-prefetch on
refused "cannot create a file in" generate "$model" --prompt x --cache-memory 1GB --cache-disk "$tmp/missing"
refused "cannot create a file in" generate "$model" --prompt x --cache-memory 1GB --cache-disk "$tmp/ids"
refused "--cache-dtype kivi4 stores rows in blocks" generate "$model" --prompt x --cache-memory 1GB --cache-disk "$disk" --cache-dtype kivi4
refused "--save-session copies the whole cache" generate "$model" --prompt x --cache-memory 1GB --cache-disk "$disk" --save-session "$tmp/s"
refused "unknown option --cache-memory" info "$model" --cache-memory 1GB
chmod 555 "$disk"
if [ "$(id -u)" -ne 0 ]; then refused "cannot create a file in" generate "$model" --prompt x --cache-memory 1GB --cache-disk "$disk"; fi
chmod 755 "$disk"
[ -z "$(ls -A "$disk")" ] || wrong "left in the folder: $(ls -A "$disk")"
verdict refusals

# A file that may not grow so far stands for a full disk: one line, status 1, before anything is computed.
(ulimit -f 8 && "$prog" generate "$model" --prompt "$words" --max-new 40 --ignore-eos --cache-memory "$all" --cache-disk "$disk" >"$tmp/out" 2>"$tmp/err" </dev/null)
[ $? -eq 1 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -qF "cannot reserve" "$tmp/err" || wrong "full: $(cat "$tmp/err")"
# killed while it runs
"$prog" generate "$model" --prompt "$words" --max-new 4000 --context 4100 --ignore-eos --cache-memory 40MB --cache-disk "$disk" >"$tmp/out" 2>"$tmp/err" </dev/null &
pid=$!
for i in $(seq "$(patience 100)"); do [ -s "$tmp/out" ] && break; sleep 0.1; done
kill -9 $pid 2>/dev/null || wrong "it had ended: $(tail -n 1 "$tmp/err")"
wait $pid 2>/dev/null
[ -z "$(ls -A "$disk")" ] || wrong "a killed process left: $(ls -A "$disk")"
verdict disks
