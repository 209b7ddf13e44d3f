#!/bin/bash
# calibrate --for aqua and --cache-dtype aqua: the file of the matrices, bytes, sessions, prefixes; what is refused.
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
words="One two three four five six seven eight nine ten eleven twelve"
basis=$tmp/basis

run calibrate $src tests/golden/README.md --for aqua:bits=3 --out "$basis" --tokens 700 --context 64 --json || wrong "calibrate: exit $?, $(cat "$tmp/err")"
[ "$(field tokens "$tmp/out")" = 700 ] || wrong "tokens: $(cat "$tmp/out")"
tr -d ' \n' <"$tmp/out" | grep -o '"keys":[^}]*' | tr -d '"a-z:' | awk -F, '{
    if (NR == 1 ? $1 < 0.999 || $1 > 1.001 : $1 <= 0 || $1 >= 0.9) print "layer " NR - 1 ": keys " $1
    if ($2 <= 0 || $2 >= 0.9) print "layer " NR - 1 ": values " $2
    n++ } END { if (n != 2) print n " layers" }' >"$tmp/odd"
[ ! -s "$tmp/odd" ] || wrong "what predictions leave: $(cat "$tmp/odd")"
for how in "--chunk 7" "--threads 1" "--chunk 1 --threads 2"; do
    run calibrate $src tests/golden/README.md --for aqua:bits=3 --out "$tmp/again" --tokens 700 --context 64 -q $how || wrong "calibrate $how: $(cat "$tmp/err")"
    [ ! -s "$tmp/out" ] || wrong "-q prints $(cat "$tmp/out")"
    run eval $src ppl --data tests/golden/README.md --context 32 --json --cache-dtype "aqua:basis=$tmp/again,bits=4" || wrong "eval: $(cat "$tmp/err")"
    field nll "$tmp/out" >>"$tmp/nll"
done
awk '{ if (NR == 1) x = $1; else if (($1 - x) ^ 2 > 1e-6) print "nll " $1 ", not " x }' "$tmp/nll" >"$tmp/odd"
[ ! -s "$tmp/odd" ] || wrong "$(cat "$tmp/odd")"
run calibrate $src tests/golden/README.md --for aqua --out "$tmp/more" --tokens 900 --context 64 || wrong "calibrate: $(cat "$tmp/err")"
grep -q '^900 tokens, written to' "$tmp/out" && [ "$(wc -l <"$tmp/out")" -eq 5 ] || wrong "calibrate says $(cat "$tmp/out")"
refused 'expected --out FILE' calibrate $src tests/golden/README.md --for aqua
refused 'expected palu or aqua, or aqua:bits=N,group=N, got '\''int4'\''' calibrate $src tests/golden/README.md --out "$tmp/x" --for int4
refused 'expected palu or aqua, or aqua:bits=N,group=N, got '\''palu:rank=0.25'\''' calibrate $src tests/golden/README.md --out "$tmp/x" --for palu:rank=0.25
refused 'expected palu or aqua' calibrate $src tests/golden/README.md --out "$tmp/x" --for "aqua:basis=$basis"
refused 'expected basis=FILE, bits=4|3|2, group=32|64, recent=0|64|128, pairs=yes or pairs=no, got '\''bits=8'\''' calibrate $src tests/golden/README.md --out "$tmp/x" --for aqua:bits=8
[ ! -e "$tmp/x" ] || wrong "a refused calibration left a file"
verdict calibrate

# Fewer bits are fewer bytes, which info counts, with the rows of one layer as f32.
most=1000000000
for how in bits=4,pairs=no bits=4 bits=2; do
    run generate $src --prompt "$words" --max-new 8 --ignore-eos --json --cache-dtype "aqua:basis=$basis,$how" || wrong "generate $how: exit $?, $(cat "$tmp/err")"
    n=$(($(field prompt_tokens "$tmp/out") + $(field new_tokens "$tmp/out") - 1))
    have=$(field cache_bytes "$tmp/out")
    run info $src --context "$n" --json --cache-dtype "aqua:basis=$basis,$how" || wrong "info $how: exit $?, $(cat "$tmp/err")"
    [ "$(field bytes_at_context "$tmp/out")" = "$have" ] || wrong "$how: $have bytes, info says $(field bytes_at_context "$tmp/out") for $n tokens"
    [ "$have" -le "$most" ] || wrong "$how: $have bytes of at most $most"
    once=$(field once_per_token "$tmp/out") plain=$(run info $src --context "$n" --json --cache-dtype "int4" && field bytes_at_context "$tmp/out")
    [ "$how" != bits=4,pairs=no ] || [ "$have" -eq $((plain + n * once)) ] || wrong "$have bytes, not $plain of int4 and $n times $once"
    most=$have
done
run info $src --context 64 --cache-dtype "aqua:basis=$basis" && grep -q 'of it for the rows of one layer as f32' "$tmp/out" || wrong "info: $(cat "$tmp/out")"
verdict bytes

text() { run generate $src --prompt "$words" --max-new 12 --ignore-eos --temperature 0 --json "$@" && field text "$tmp/out"; }
how="aqua:basis=$basis,bits=4"
alone=$(text --cache-dtype "$how") || wrong "generate: $(cat "$tmp/err")"
[ "$(text --cache-dtype "$how" --chunk 5)" = "$alone" ] || wrong "chunks: $(cat "$tmp/out")"
whole=$(text --context 128 --cache-dtype "$how")
run generate $src --prompt "$words" --max-new 5 --ignore-eos --temperature 0 --context 128 --json --cache-dtype "$how" --save-session "$tmp/keep" || wrong "save: $(cat "$tmp/err")"
begin=$(field text "$tmp/out")
run generate $src --max-new 7 --ignore-eos --temperature 0 --context 128 --json --cache-dtype "$how" --session "$tmp/keep" || wrong "session: $(cat "$tmp/err")"
[ "${begin%\"}$(field text "$tmp/out" | sed 's/^ *"//')" = "$whole" ] || wrong "session: $begin and $(field text "$tmp/out"), not $whole"
refused 'but this session has aqua:' generate $src --context 128 --max-new 4 -q --cache-dtype "aqua:basis=$tmp/more,bits=4" --session "$tmp/keep"
refused 'but this session has aqua:' generate $src --context 128 --max-new 4 -q --cache-dtype "aqua:basis=$basis,bits=3" --session "$tmp/keep"
refused 'but this session has aqua:' generate $src --context 128 --max-new 4 -q --cache-dtype "aqua:basis=$basis,bits=4,pairs=no" --session "$tmp/keep"
verdict sessions

# Rows that wait for a block: those that info counts; a text, a session and a chunked prompt over several blocks.
how="aqua:basis=$basis,bits=2,recent=64" long="$words $words $words"
run generate $src --prompt "$long" --max-new 8 --ignore-eos --json --context 256 --cache-dtype "$how" || wrong "generate: exit $?, $(cat "$tmp/err")"
n=$(($(field prompt_tokens "$tmp/out") + $(field new_tokens "$tmp/out") - 1)) have=$(field cache_bytes "$tmp/out")
[ "$n" -gt 128 ] || wrong "a prompt of $n tokens fills no two blocks"
run info $src --context "$n" --json --cache-dtype "$how" || wrong "info: $(cat "$tmp/err")"
[ "$(field bytes_at_context "$tmp/out")" = "$have" ] || wrong "$have bytes, info says $(field bytes_at_context "$tmp/out") for $n tokens"
waits() { run generate $src --prompt "$long" --max-new 12 --ignore-eos --temperature 0 --context 256 --json --cache-dtype "$how" "$@" && field text "$tmp/out"; }
alone=$(waits) || wrong "generate: $(cat "$tmp/err")"
for chunk in 1 37 200; do
    [ "$(waits --chunk $chunk)" = "$alone" ] || wrong "chunks of $chunk: $(cat "$tmp/out")"
done
run generate $src --prompt "$long" --max-new 5 --ignore-eos --temperature 0 --context 256 --json --cache-dtype "$how" --save-session "$tmp/waits" || wrong "save: $(cat "$tmp/err")"
begin=$(field text "$tmp/out")
run generate $src --max-new 7 --ignore-eos --temperature 0 --context 256 --json --cache-dtype "$how" --session "$tmp/waits" || wrong "session: $(cat "$tmp/err")"
[ "${begin%\"}$(field text "$tmp/out" | sed 's/^ *"//')" = "$alone" ] || wrong "session: $begin and $(field text "$tmp/out"), not $alone"
for end in one two; do # texts that share a block, each alone and then together
    printf '{"prompt":"%s %s"}\n' "$long" $end >>"$tmp/family"
    run generate $src --prompt "$long $end" --max-new 6 --ignore-eos --temperature 0 --context 256 --json --cache-dtype "$how" || wrong "alone: $(cat "$tmp/err")"
    field text "$tmp/out" >>"$tmp/texts"
done
run generate $src --batch-file "$tmp/family" --max-new 6 --ignore-eos --temperature 0 --context 256 --json --cache-dtype "$how" || wrong "together: $(cat "$tmp/err")"
grep -o '"text":[^,}]*' "$tmp/out" | cut -d: -f2 | cmp -s - "$tmp/texts" || wrong "together: $(cat "$tmp/out"), alone $(cat "$tmp/texts")"
for other in bits=2,recent=128 bits=2; do
    refused 'but this session has aqua:' generate $src --context 256 --max-new 4 -q --cache-dtype "aqua:basis=$basis,$other" --session "$tmp/waits"
done
run calibrate $src tests/golden/README.md --for aqua:bits=2,recent=64 --out "$tmp/again" --tokens 700 --context 64 -q || wrong "calibrate: $(cat "$tmp/err")"
refused '--policy lets each layer keep or read others' generate $src --prompt a --max-new 1 --cache-dtype "$how" --policy h2o:budget=0.5
refused '--cache-memory would have on disk' generate $src --prompt a --max-new 1 --cache-dtype "$how" --cache-memory 1GB --cache-disk "$tmp"
verdict waits
how="aqua:basis=$basis,bits=4"

cp -r $src "$tmp/other" && chmod -R u+w "$tmp/other" && echo >>"$tmp/other/config.json"
refused 'was calibrated on another model; run kvsmith calibrate on this one' generate "$tmp/other" --prompt a --max-new 1 --cache-dtype "$how"
refused 'expected basis=FILE, which kvsmith calibrate writes' generate $src --prompt a --max-new 1 --cache-dtype aqua
refused 'run kvsmith calibrate' bench decode configs/tiny-gqa.yaml --seconds 0.01 --prompt 40 --cache-dtype "$how"
refused 'are latents' bench decode configs/tiny-mla.yaml --seconds 0.01 --prompt 40 --cache-dtype "$how"
refused 'merges or evicts rows' bench decode configs/tiny-dms.yaml --seconds 0.01 --prompt 40 --cache-dtype "$how"
refused 'has a window' bench decode configs/tiny-window.yaml --seconds 0.01 --prompt 40 --cache-dtype "$how"
refused '--policy lets each layer keep or read others' generate $src --prompt a --max-new 1 --cache-dtype "$how" --policy snapkv:budget=0.5
refused '--cache-memory would have on disk' generate $src --prompt a --max-new 1 --cache-dtype "$how" --cache-memory 1GB --cache-disk "$tmp"
refused '(kind '\''kvsmith-aqua-1'\'', expected kvsmith-basis-1)' generate $src --prompt a --max-new 1 --cache-dtype "palu:basis=$basis"
"$prog" launch -n 2 -- generate $src --prompt a --max-new 1 --cache-dtype "$how" --cache-ranks rows >"$tmp/out" 2>"$tmp/err" </dev/null && wrong "ranks are not refused"
grep -qF 'ranks that divide rows (--cache-ranks) cannot read them' "$tmp/err" || wrong "ranks: $(cat "$tmp/err")"
like="configs/tiny-gqa.yaml model.kinds.full.kv_heads=4 model.kinds.full.head_dim=6 --seconds 0.01 --prompt 40" # its shape
run bench decode $like --cache-dtype "$how" || wrong "bench decode: $(cat "$tmp/err")"
refused '--fill: --cache-dtype aqua stores what calibrated matrices make of rows' bench decode $like --fill --cache-dtype "$how"
head -c 1000 "$basis" >"$tmp/cut"
refused 'cut' generate $src --prompt a --max-new 1 --cache-dtype "aqua:basis=$tmp/cut"
refused 'not a basis that kvsmith calibrate wrote' generate $src --prompt a --max-new 1 --cache-dtype "aqua:basis=$src/model.safetensors"
verdict refused
