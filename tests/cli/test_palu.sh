#!/bin/bash
# calibrate and --cache-dtype palu: the file of a basis, bytes, sessions, ranks, a tier; what is refused.
. tests/lib/cases.sh
src=tests/golden/convert
field() { grep -o "\"$1\":[^,}]*" "$2" | head -n 1 | cut -d: -f2; }
run() { "$prog" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; }
refused() { # status, part of the line, arguments
    local status=$1 part=$2
    shift 2
    run "$@"
    [ $? -eq "$status" ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -qF -- "$part" "$tmp/err" || wrong "$*: $(cat "$tmp/err")"
}
words="One two three four five six seven eight nine ten eleven twelve"
basis=$tmp/basis

run calibrate $src tests/golden/README.md --out "$basis" --tokens 700 --context 64 --json || wrong "calibrate: exit $?, $(cat "$tmp/err")"
[ "$(field tokens "$tmp/out")" = 700 ] || wrong "tokens: $(cat "$tmp/out")"
grep -q '"layers": *\[{"layer": *0, *"keys": *\[0\.' "$tmp/out" || wrong "layers: $(cat "$tmp/out")"
for how in "--chunk 7" "--threads 1" "--chunk 1 --threads 2"; do
    run calibrate $src tests/golden/README.md --out "$tmp/again" --tokens 700 --context 64 -q $how || wrong "calibrate $how: $(cat "$tmp/err")"
    [ ! -s "$tmp/out" ] || wrong "-q prints $(cat "$tmp/out")"
    run eval $src ppl --data tests/golden/README.md --context 32 --json --cache-dtype "palu:basis=$tmp/again,rank=0.5,bits=32" || wrong "eval: $(cat "$tmp/err")"
    field nll "$tmp/out" >>"$tmp/nll"
done
awk '{ if (NR == 1) x = $1; else if (($1 - x) ^ 2 > 1e-8) print "nll " $1 ", not " x }' "$tmp/nll" >"$tmp/odd"
[ ! -s "$tmp/odd" ] || wrong "$(cat "$tmp/odd")"
run calibrate $src tests/golden/README.md docs/map.md --out "$tmp/more" --tokens 100000 --context 64 --json || wrong "two texts: $(cat "$tmp/err")"
[ "$(field tokens "$tmp/out")" -gt 5000 ] || wrong "two texts: $(cat "$tmp/out")"
refused 2 'expected --out FILE' calibrate $src tests/golden/README.md
refused 2 'expected MODEL TEXT...' calibrate $src
refused 2 'nowhere' calibrate $src "$tmp/nowhere" --out "$tmp/x"
refused 2 'nowhere' calibrate "$tmp/nowhere" tests/golden/README.md --out "$tmp/x"
refused 2 '--tokens: expected' calibrate $src tests/golden/README.md --out "$tmp/x" --tokens 0
"$prog" calibrate $src tests/golden/README.md --out "$tmp/no/folder" >"$tmp/out" 2>"$tmp/err"
[ $? -ne 0 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] || wrong "no folder: $(cat "$tmp/err")"
[ ! -e "$tmp/x" ] || wrong "a refused calibration left a file"
verdict calibrate

# Fewer directions and bits are fewer bytes, which info counts; all directions change nothing.
most=1000000000
for how in rank=1,bits=32 rank=0.5,bits=32 rank=0.5 rank=0.25,value_rank=0.5,bits=8 rank=0.25,bits=4; do
    run generate $src --prompt "$words" --max-new 8 --ignore-eos --json --cache-dtype "palu:basis=$basis,$how" || wrong "generate $how: exit $?, $(cat "$tmp/err")"
    n=$(($(field prompt_tokens "$tmp/out") + $(field new_tokens "$tmp/out") - 1))
    have=$(field cache_bytes "$tmp/out")
    run info $src --context "$n" --json --cache-dtype "palu:basis=$basis,$how" || wrong "info $how: exit $?, $(cat "$tmp/err")"
    [ "$(field bytes_at_context "$tmp/out")" = "$have" ] || wrong "$how: $have bytes, info says $(field bytes_at_context "$tmp/out") for $n tokens"
    [ "$have" -le "$most" ] || wrong "$how: $have bytes of at most $most"
    most=$have
done
text() { run generate $src --prompt "$words" --max-new 12 --ignore-eos --temperature 0 --json "$@" && field text "$tmp/out"; }
dense=$(text) && [ "$(text --cache-dtype "palu:basis=$basis,rank=1,bits=32")" = "$dense" ] || wrong "all directions: $(cat "$tmp/out" "$tmp/err")"
verdict bytes

# Chunks, a tier and ranks give the same text; so does a session, which goes on with the same basis, and with no other.
run calibrate $src tests/golden/README.md --out "$tmp/groups" --tokens 700 --context 64 --heads 4 -q || wrong "calibrate --heads 4: $(cat "$tmp/err")"
same() { # basis
    local how="palu:basis=$1,rank=0.5,bits=8" alone ranks whole begin keep=("--context" 128 --ignore-eos --temperature 0 --json)
    alone=$(text --cache-dtype "$how") || wrong "generate: $(cat "$tmp/err")"
    [ "$(text --cache-dtype "$how" --chunk 5)" = "$alone" ] || wrong "chunks: $(cat "$tmp/out")"
    [ "$(text --cache-dtype "$how" --cache-memory 1GB --cache-disk "$tmp")" = "$alone" ] || wrong "a tier: $(cat "$tmp/out" "$tmp/err")"
    for ranks in rows prompt; do
        "$prog" launch -n 2 -- generate $src --prompt "$words" --max-new 12 --ignore-eos --temperature 0 --json --cache-dtype "$how" --cache-ranks $ranks >"$tmp/out" 2>"$tmp/err" </dev/null || wrong "ranks: $(cat "$tmp/err")"
        [ "$(field text "$tmp/out")" = "$alone" ] || wrong "ranks $ranks: $(cat "$tmp/out"), not $alone"
    done
    whole=$(run generate $src --prompt "$words" --max-new 12 "${keep[@]}" --cache-dtype "$how" && field text "$tmp/out")
    run generate $src --prompt "$words" --max-new 5 "${keep[@]}" --cache-dtype "$how" --save-session "$tmp/keep" || wrong "save: $(cat "$tmp/err")"
    begin=$(field text "$tmp/out")
    run generate $src --max-new 7 "${keep[@]}" --cache-dtype "$how" --session "$tmp/keep" || wrong "session: $(cat "$tmp/err")"
    [ "${begin%\"}$(field text "$tmp/out" | sed 's/^ *"//')" = "$whole" ] || wrong "session: $begin and $(field text "$tmp/out"), not $whole"
    refused 2 'but this session has palu:' generate $src --context 128 --max-new 4 -q --cache-dtype "palu:basis=$tmp/more,rank=0.5,bits=8" --session "$tmp/keep"
    refused 2 'but this session has palu:' generate $src --context 128 --max-new 4 -q --cache-dtype "palu:basis=$1,rank=0.25,bits=8" --session "$tmp/keep"
}
how="palu:basis=$basis,rank=0.5,bits=8"
same "$basis"
for policy in snapkv:budget=0.5,window=4 h2o:budget=0.5,every=8 quest:reads=16,recent=8,page=8; do
    text --cache-dtype "$how" --policy $policy >/dev/null || wrong "$policy: $(cat "$tmp/err")"
done
verdict same

# Groups of heads: the same bytes, other rows, all of them with all directions; no policy.
same "$tmp/groups"
[ "$(text --cache-dtype "palu:basis=$tmp/groups,rank=1,bits=32")" = "$dense" ] || wrong "all directions of groups: $(cat "$tmp/out" "$tmp/err")"
for of in "$basis" "$tmp/groups"; do
    run generate $src --prompt "$words" --max-new 4 --ignore-eos --json --cache-dtype "palu:basis=$of,rank=0.25" || wrong "groups: $(cat "$tmp/err")"
    field cache_bytes "$tmp/out" >>"$tmp/bytes"
    run eval $src ppl --data tests/golden/README.md --context 32 --json --cache-dtype "palu:basis=$of,rank=0.25" || wrong "eval: $(cat "$tmp/err")"
    field nll "$tmp/out" >>"$tmp/nlls"
done
[ "$(sort -u "$tmp/bytes" | wc -l)" = 1 ] && [ "$(sort -u "$tmp/nlls" | wc -l)" = 2 ] || wrong "bytes and nll of heads and groups: $(cat "$tmp/bytes" "$tmp/nlls")"
refused 2 'in this basis 4 heads share directions' generate $src --prompt a --max-new 1 --cache-dtype "palu:basis=$tmp/groups" --policy quest:reads=16,recent=8,page=8
refused 2 '--heads: layer 0 has 4 key/value heads; expected a divisor of that, got 3' calibrate $src tests/golden/README.md --out "$tmp/x" --heads 3
refused 2 '--heads: expected' calibrate $src tests/golden/README.md --out "$tmp/x" --heads 0
refused 2 '--heads: aqua predicts the rows of all heads together' calibrate $src tests/golden/README.md --out "$tmp/x" --heads 2 --for aqua
[ ! -e "$tmp/x" ] || wrong "a refused calibration left a file"
verdict groups

cp -r $src "$tmp/other" && chmod -R u+w "$tmp/other" && echo >>"$tmp/other/config.json"
refused 2 'was calibrated on another model; run kvsmith calibrate on this one' generate "$tmp/other" --prompt a --max-new 1 --cache-dtype "$how"
refused 2 'cannot create /nowhere/basis' calibrate /no/model /no/text --out /nowhere/basis # before anything is read
refused 2 'expected basis=FILE, which kvsmith calibrate writes' generate $src --prompt a --max-new 1 --cache-dtype palu
refused 2 'run kvsmith calibrate' bench decode configs/tiny-gqa.yaml --seconds 0.01 --prompt 40 --cache-dtype "$how"
refused 2 'are latents' bench decode configs/tiny-mla.yaml --seconds 0.01 --prompt 40 --cache-dtype "$how"
refused 2 'merges or evicts rows' bench decode configs/tiny-dms.yaml --seconds 0.01 --prompt 40 --cache-dtype "$how"
refused 2 'expected basis=FILE, rank=0..1' generate $src --prompt a --cache-dtype palu:rank=2
head -c 1000 "$basis" >"$tmp/cut"
refused 2 'cut' generate $src --prompt a --max-new 1 --cache-dtype "palu:basis=$tmp/cut"
refused 2 'not a basis that kvsmith calibrate wrote' generate $src --prompt a --max-new 1 --cache-dtype "palu:basis=$src/model.safetensors"
verdict refused
