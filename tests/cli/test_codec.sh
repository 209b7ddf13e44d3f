#!/bin/bash
# --cache-dtype with its codecs and their settings: bytes that commands report, the table, what does not change.
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

most=1000000000 # of codecs before, of a head of 8 elements
for how in f32 bf16 int8 fp8 int4 int3 int2 kivi4 kvquant3 zipcache minicache:from=0,bits=8; do
    run generate $src --prompt "$words" --max-new 8 --ignore-eos --json --cache-dtype $how || wrong "generate $how: exit $?, $(cat "$tmp/err")"
    n=$(($(field prompt_tokens "$tmp/out") + $(field new_tokens "$tmp/out") - 1))
    have=$(field cache_bytes "$tmp/out")
    run info $src --context "$n" --json --cache-dtype $how || wrong "info $how: exit $?, $(cat "$tmp/err")"
    [ "$(field bytes_at_context "$tmp/out")" = "$have" ] || wrong "$how: $have bytes, info says $(field bytes_at_context "$tmp/out") for $n tokens"
    [ "$have" -le "$most" ] || wrong "$how: $have bytes of at most $most"
    case $how in f32 | bf16) most=$have ;; esac
    fill=--fill
    [ $how = zipcache ] && fill= # its queries are those of tokens
    run bench decode configs/tiny-gqa.yaml --seconds 0.01 --batch 1 $fill --prompt 140 --cache-dtype $how --json || wrong "bench decode $how: exit $?, $(cat "$tmp/err")"
done
verdict bytes

run info --codecs || wrong "info --codecs: exit $?, $(cat "$tmp/err")"
for name in f32 bf16 int8 fp8 int4 int3 int2 kivi4 kivi3 kivi2 kvquant4 kvquant3 kvquant2 zipcache palu minicache aqua; do
    grep -q "^| .$name. | .* | [0-9]* | [0-9]* | .*|$" "$tmp/out" || wrong "info --codecs lacks $name"
done
grep -q '^| .int4. | .* | 40 | 80 | .group=32 rotate=no. |$' "$tmp/out" || wrong "info --codecs: $(grep int4 "$tmp/out")"
run info --codecs --json && [ "$(grep -o '"codec":' "$tmp/out" | wc -l)" -eq 17 ] || wrong "info --codecs --json: $(cat "$tmp/out")"
refused "expected MODEL|CONFIG.yaml, --families, --policies or --codecs alone" info --codecs x
verdict table

# Rotation leaves what 8 bits hold, and changes what 2 bits hold.
for how in f32 int8 int8:rotate=yes int2 int2:rotate=yes; do
    run eval $src ppl --data tests/golden/README.md --context 32 --json --cache-dtype $how || wrong "eval $how: exit $?, $(cat "$tmp/err")"
    field nll "$tmp/out" >>"$tmp/nll"
done
awk '{ x[NR] = $1 } END {
    for (i = 2; i <= 3; i++) if (x[i] == x[1] || (x[i] - x[1]) ^ 2 > 1e-4 * x[1] ^ 2) print "8 bits: " x[i] " beside " x[1]
    if (x[4] == x[5] || x[4] == x[1]) print "2 bits: " x[4] " rotated " x[5]
}' "$tmp/nll" >"$tmp/odd"
[ ! -s "$tmp/odd" ] || wrong "$(cat "$tmp/odd")"
refused '--cache-dtype kivi4: layer 0 merges or evicts rows one by one, and this codec stores 64 together' bench decode configs/tiny-dms.yaml --seconds 0.01 --prompt 40 --cache-dtype kivi4
# Policies over rows in blocks: fewer bytes are read; those that info counts are those that a text has.
# Whole blocks: rows that wait are f32, as many as there was time for steps, and must not outweigh the blocks.
read_of() { run bench decode configs/tiny-gqa.yaml model.max_positions=8192 --seconds 0.01 --batch 1 --prompt 6016 --json --cache-dtype kivi2 "$@" && field bytes_read "$tmp/out"; }
whole=$(read_of)
for how in minikv:budget=0.25 h2o:budget=0.25,every=0 knorm:budget=0.25,window=4,every=32 quest:reads=200,recent=64,page=64; do
    some=$(read_of --policy $how) || wrong "$how: $(cat "$tmp/err")"
    [ "$some" -lt "$whole" ] || wrong "$how: $some bytes read, $whole without it"
done
run generate $src --prompt "$words $words" --context 256 --max-new 1 --ignore-eos --json --cache-dtype kivi2 --policy minikv:budget=0.75 || wrong "generate: $(cat "$tmp/err")"
n=$(field prompt_tokens "$tmp/out") have=$(field cache_bytes "$tmp/out")
run info $src --context "$n" --json --cache-dtype kivi2 --policy minikv:budget=0.75 || wrong "info: $(cat "$tmp/err")"
[ "$n" -gt 100 ] && [ "$(field bytes_at_context "$tmp/out")" = "$have" ] || wrong "minikv: $have bytes for $n tokens, info says $(field bytes_at_context "$tmp/out")"
refused '--policy kvzip: it judges rows by tokens that it feeds itself' bench decode configs/tiny-gqa.yaml --seconds 0.01 --prompt 40 --cache-dtype kivi2 --policy kvzip:budget=0.5
refused '--policy quest: page: --cache-dtype kivi2 stores 64 rows in a block, which a step reads together; expected page=64, got 16' bench decode configs/tiny-gqa.yaml --seconds 0.01 --prompt 40 --cache-dtype kivi2 --policy quest
refused '--policy h2o: rows that stay come from anywhere, and --cache-dtype kvquant2:turned=yes' bench decode configs/tiny-gqa.yaml --seconds 0.01 --prompt 40 --cache-dtype kvquant2 --policy h2o:budget=0.5
refused 'a file holds no rows of blocks (--cache-dtype kivi2) that a policy chose' generate $src --prompt "$words" --max-new 2 --cache-dtype kivi2 --policy h2o:budget=0.5 --save-session "$tmp/keep"
[ ! -e "$tmp/keep" ] || wrong "a refused session left a file"
for how in snapkv:budget=0.5 h2o:budget=0.5 minikv:budget=0.5+pyramidkv; do
    refused 'whose attention --cache-dtype zipcache orders in blocks of neighbours' bench decode configs/tiny-gqa.yaml --seconds 0.01 --prompt 40 --cache-dtype zipcache --policy $how
done
all=$(read_of --cache-dtype zipcache) && some=$(read_of --cache-dtype zipcache --policy quest:reads=200,recent=64,page=64) || wrong "quest: $(cat "$tmp/err")"
[ "$some" -lt "$((all * 6 / 10))" ] || wrong "quest over zipcache: $some bytes read, $all without it"
verdict policies
# Rows with more bits: fewer of them are fewer bytes; who has no queries to ask is refused.
last=0
for share in 0 0.25 0.6 1; do
    some=$(read_of --cache-dtype "zipcache:share=$share") || wrong "share $share: $(cat "$tmp/err")"
    [ "$some" -gt "$last" ] || wrong "share $share: $some bytes read, $last with fewer salient rows"
    last=$some
done
refused '--cache-dtype zipcache: it asks queries that see all rows, and layer 0 has none' bench decode configs/tiny-window.yaml --seconds 0.01 --prompt 40 --cache-dtype zipcache
refused '--fill: --cache-dtype zipcache asks queries, and drawn rows have none' bench decode configs/tiny-gqa.yaml --seconds 0.01 --fill --prompt 140 --cache-dtype zipcache
refused '--cache-dtype zipcache: expected bits=2..4, salient_bits=2..4, probes=1..64, share=0..1, got ' generate $src --cache-dtype zipcache:share=2
run generate $src --prompt "$words $words" --context 256 --max-new 4 --ignore-eos --json --temperature 0 --cache-dtype zipcache --save-session "$tmp/keep" || wrong "save: $(cat "$tmp/err")"
run generate $src --context 256 --max-new 4 --ignore-eos --json --temperature 0 --cache-dtype zipcache --session "$tmp/keep" || wrong "session: $(cat "$tmp/err")"
run generate $src --context 256 --max-new 4 --cache-dtype zipcache:share=0.5 --session "$tmp/keep"
[ $? -eq 2 ] && grep -qF 'share=0.6,probes=8, but this session has zipcache:bits=2,salient_bits=4,share=0.5' "$tmp/err" || wrong "other settings: $(cat "$tmp/err")"
verdict salient
# Two layers that share directions: fewer bits and fewer rows apart are fewer bytes, and a pair of layers has fewer than
# bf16. What is read of the lower layer for the upper one counts, too.
size_of() { run info configs/tiny-gqa.yaml --context 4096 --json "$@" && field bytes_at_context "$tmp/out"; }
last=0
for how in bits=4,apart=0 bits=4 bits=8 bits=8,apart=0.5 bits=16,apart=0; do
    some=$(size_of --cache-dtype "minicache:from=0,$how") || wrong "$how: $(cat "$tmp/err")"
    [ "$some" -gt "$last" ] || wrong "$how: $some bytes, $last of fewer"
    last=$some
done
dense=$(size_of --cache-dtype bf16)
[ "$last" -lt "$((dense * 3 / 4))" ] || wrong "minicache in 16 bits has $last bytes, bf16 $dense"
have=$(size_of --cache-dtype minicache:from=0,bits=4) # a length that is a multiple of 64: no row waits
read=$(run bench decode configs/tiny-gqa.yaml model.max_positions=8192 --seconds 0.01 --batch 1 --prompt 4096 --json --cache-dtype minicache:from=0,bits=4 && field bytes_read "$tmp/out")
[ "$read" -gt "$((have * 11 / 10))" ] && [ "$read" -lt "$((have * 2))" ] || wrong "minicache: $read bytes read of $have"
refused '--cache-dtype minicache: expected from=0..1, t=0..1, apart=0..1, bits=32|16|8|4, group=32|64, got ' generate $src --cache-dtype minicache:bits=3
refused '--cache-dtype minicache: from layer 2 of 2 on no two layers keep all rows in one shape' bench decode configs/tiny-gqa.yaml --seconds 0.01 --prompt 40 --cache-dtype minicache:from=1
refused '--policy h2o: it evicts rows of each layer, and --cache-dtype minicache merges rows that two layers have' bench decode configs/tiny-gqa.yaml --seconds 0.01 --prompt 40 --cache-dtype minicache:from=0 --policy h2o:budget=0.5
refused '--cache-memory: --cache-dtype minicache stores rows in blocks, which stay in memory' generate $src --prompt "$words" --max-new 2 --cache-dtype minicache:from=0 --cache-memory 100MB --cache-disk "$tmp"
run generate $src --prompt "$words $words" --context 256 --max-new 4 --ignore-eos --json --temperature 0 --cache-dtype minicache:from=0 --save-session "$tmp/pair" || wrong "save: $(cat "$tmp/err")"
run generate $src --context 256 --max-new 4 --ignore-eos --json --temperature 0 --cache-dtype minicache:from=0 --session "$tmp/pair" || wrong "session: $(cat "$tmp/err")"
run generate $src --context 256 --max-new 4 --cache-dtype minicache:from=0,bits=8 --session "$tmp/pair"
[ $? -eq 2 ] && grep -qF 'apart=0.1,bits=16, but this session has minicache:group=32,from=0,t=0.6,apart=0.1,bits=8' "$tmp/err" || wrong "other settings: $(cat "$tmp/err")"
verdict pairs
refused 'int4:rotate=yes: the rows of layer 0 are latents' bench decode configs/tiny-mla.yaml --seconds 0.01 --prompt 40 --cache-dtype int4:rotate=yes
refused '--policy expected: it needs keys as their positions turned them' bench decode configs/tiny-gqa.yaml --seconds 0.01 --prompt 40 --cache-dtype int8:rotate=yes --policy expected:budget=0.5
verdict rotation
