#!/bin/bash
# --policy and --cache-dtype int8 of the commands that keep a cache: what they report, and what they refuse.
. tests/lib/cases.sh
src=tests/golden/convert
field() { grep -o "\"$1\":[^,}]*" "$2" | head -n 1 | cut -d: -f2; }
run() { "$prog" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; }
words="One two three four five six seven eight nine ten eleven twelve"
spec=knorm:budget=0.3,window=3,sinks=2,every=4

bytes_of() { # the cache after a prompt and 8 tokens, and how many rows that were
    run generate $src --prompt "$words" --max-new 8 --ignore-eos --json "$@" || wrong "generate $*: exit $?, $(cat "$tmp/err")"
    n=$(($(field prompt_tokens "$tmp/out") + $(field new_tokens "$tmp/out") - 1))
    field cache_bytes "$tmp/out"
}
for how in "" "--policy $spec" "--cache-dtype int8" "--policy $spec --cache-dtype int8" "--policy window:window=5,every=2"; do
    # shellcheck disable=SC2086
    have=$(bytes_of $how)
    # shellcheck disable=SC2086
    bytes_of $how >/dev/null
    # shellcheck disable=SC2086
    run info $src --context "$n" --json $how || wrong "info $how: exit $?, $(cat "$tmp/err")"
    [ "$(field bytes_at_context "$tmp/out")" = "$have" ] || wrong "$how: $have bytes, info says $(field bytes_at_context "$tmp/out") for $n tokens"
    echo "$have" >>"$tmp/bytes"
done
sort -nr "$tmp/bytes" | uniq >"$tmp/sorted"
[ "$(wc -l <"$tmp/sorted")" -eq 5 ] || wrong "not five sizes: $(tr '\n' ' ' <"$tmp/bytes")"
[ "$(head -n 1 "$tmp/bytes")" = "$(head -n 1 "$tmp/sorted")" ] || wrong "all rows in f32 are not the most: $(tr '\n' ' ' <"$tmp/bytes")"
run info $src --cache-dtype int8 --json || wrong "info: exit $?"
grep -q '"dtype":"INT8"' "$tmp/out" || wrong "info names no int8: $(cat "$tmp/out")"
verdict bytes

# A budget of everything says what no policy says, whatever the command; a small one says something else.
printf '%s\n' "1 5 9 13 17 21 25 29 2 6 10 14 18 22 26 30 3 7 11" >"$tmp/tokens"
for i in 1 2 3 4 5 6 7 8; do echo "$words $i"; done >"$tmp/text"
for how in none knorm:budget=1 $spec; do
    run logits $src --tokens "$tmp/tokens" --out "$tmp/logits.$how" --policy $how || wrong "logits $how: exit $?, $(cat "$tmp/err")"
    run eval $src ppl --data "$tmp/text" --json --policy $how || wrong "eval $how: exit $?, $(cat "$tmp/err")"
    grep -o '"ppl":[^,}]*\|"nll":[^,}]*' "$tmp/out" >"$tmp/eval.$how"
    [ -s "$tmp/eval.$how" ] || wrong "eval says no ppl: $(cat "$tmp/out")"
done
cmp -s "$tmp/logits.none" "$tmp/logits.knorm:budget=1" || wrong "logits of a whole budget differ"
cmp -s "$tmp/logits.none" "$tmp/logits.$spec" && wrong "logits of a small budget do not differ"
cmp -s "$tmp/eval.none" "$tmp/eval.knorm:budget=1" || wrong "ppl of a whole budget differs"
cmp -s "$tmp/eval.none" "$tmp/eval.$spec" && wrong "ppl of a small budget does not differ"
run bench decode configs/tiny-gqa.yaml --seconds 0.01 --batch 1 --prompt 24 --policy $spec --cache-dtype int8 --json || wrong "bench: exit $?, $(cat "$tmp/err")"
few=$(field bytes_read "$tmp/out")
run bench decode configs/tiny-gqa.yaml --seconds 0.01 --batch 1 --prompt 24 --json || wrong "bench: exit $?, $(cat "$tmp/err")"
[ "$few" -lt "$(field bytes_read "$tmp/out")" ] || wrong "bench: $few bytes with a policy, $(field bytes_read "$tmp/out") without"
# Filled with drawn rows, a cache has as many as after a prompt, also where a policy acts once, at the prompt's end. Steps
# that were timed add some rows, few compared with the prompt.
read_of() {
    run bench decode configs/tiny-gqa.yaml model.max_positions=8192 --seconds 0.01 --batch 1 --prompt 2000 --json "$@" || wrong "bench $*: exit $?, $(cat "$tmp/err")"
    field bytes_read "$tmp/out"
}
whole=$(read_of --fill)
for how in knorm:budget=0.2,window=3,sinks=2,every=0 knorm:budget=0.2,window=3,sinks=2,every=8 window:window=5,sinks=1,every=0; do
    after=$(read_of --policy $how) filled=$(read_of --policy $how --fill)
    [ $((2 * after)) -lt "$whole" ] && [ $((filled - after)) -lt $(((whole - after) / 4)) ] && [ $((after - filled)) -lt $(((whole - after) / 4)) ] ||
        wrong "$how: $filled bytes filled, $after after a prompt, $whole without a policy"
done
for how in "" quest:reads=4,recent=4,page=4 hybrid:reads=4,recent=4 shadowkv:reads=8,recent=8,uneven=1 infinigen:reads=8,recent=4,below=1 tailorkv:reads=8,recent=4,sinks=1; do
    run bench decode configs/tiny-gqa.yaml --seconds 0.01 --batch 1 --prompt 200 --policy ${how:-none} --json || wrong "bench $how: exit $?, $(cat "$tmp/err")"
    field bytes_read "$tmp/out" >>"$tmp/reads"
done
for line in 2 3 4 5 6; do [ "$(sed -n ${line}p "$tmp/reads")" -lt "$(sed -n 1p "$tmp/reads")" ] || wrong "bench: as much is read: $(tr '\n' ' ' <"$tmp/reads")"; done
verdict results

# Policies that wait for the end of a prompt, and those that ask queries; the table of all of them.
for how in snapkv:budget=0.5,window=4 morphkv:budget=0.5,window=4,every=4 hashevict:budget=0.5,window=4,every=4 expected:budget=0.5 quest:reads=6,recent=4,page=4 snapkv:budget=0.5,window=4+quest:reads=6,recent=4,page=4 rocketkv:budget=0.4,window=4+hybrid:reads=0.2,recent=4 shadowkv:reads=8,recent=8,uneven=1 infinigen:reads=0.2,recent=4,below=1 tailorkv:reads=6,recent=4,sinks=1 infinipot:budget=9,window=4,every=4 infinipot:budget=9,window=4,every=4,catalyst=1 fastgen:queries=8,share=0.5 qhitter:budget=0.5,every=8 minikv:budget=0.5 rocketkv:budget=0.4,window=4 pyramidkv:budget=0.5,window=3,share=2 adakv:budget=0.5,window=4 snapkv:budget=0.5,window=4+adakv+pyramidkv:share=2 h2o:budget=0.5,window=4,every=8 tova:budget=0.5,every=4; do
    [ "$(bytes_of --policy $how)" -gt 0 ] || wrong "$how keeps nothing"
    cp "$tmp/out" "$tmp/once"
    bytes_of --policy $how >/dev/null
    [ "$(field tokens "$tmp/out")" = "$(field tokens "$tmp/once")" ] || wrong "$how: two runs differ"
done
# A list given at once or option by option, in any order, and with a codec.
one=$(bytes_of --policy snapkv:budget=0.4,window=4 --policy pyramidkv:share=2)
cp "$tmp/out" "$tmp/once"
[ "$one" = "$(bytes_of --policy pyramidkv:share=2+snapkv:budget=0.4,window=4)" ] || wrong "a list and two options differ"
[ "$(field tokens "$tmp/out")" = "$(field tokens "$tmp/once")" ] || wrong "a list and two options generate other tokens"
[ "$(bytes_of --policy snapkv:budget=0.4,window=4 --policy pyramidkv:share=2 --cache-dtype int8)" -lt "$one" ] || wrong "int8 saves nothing"
run info --policies || wrong "info --policies: exit $?, $(cat "$tmp/err")"
for name in window random knorm h2o vatp scissorhands tova snapkv pyramidkv adakv simlayerkv nacl morphkv fastgen hashevict expected rocketkv kvzip quest hybrid shadowkv infinigen tailorkv infinipot qhitter minikv; do
    grep -q "^| .$name. | .*|.*|.*|.*|$" "$tmp/out" || wrong "info --policies lacks $name"
done
run info --policies --json && [ "$(grep -o '"policy":' "$tmp/out" | wc -l)" -eq 26 ] || wrong "info --policies --json: $(cat "$tmp/out")"
verdict policies

refused() { # part of the line, arguments
    local part=$1
    shift
    run "$@"
    [ $? -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -qF -- "$part" "$tmp/err" || wrong "$*: $(cat "$tmp/err")"
}
refused "--policy: expected none, window, random, knorm, h2o," generate $src --prompt x --policy knrom
refused "--policy knorm: budget: expected a number" logits $src --tokens "$tmp/tokens" --out "$tmp/x" --policy knorm:budget=0
refused "--policy knorm: expected budget, window, sinks or every=NUMBER, got 'budgt'" eval $src ppl --data "$tmp/text" --policy knorm:budgt=1
refused "--policy knorm: budget: expected at least the 20 rows" bench decode --policy knorm:budget=2
refused "no layer of this model stores a row per token" bench decode configs/tiny-mamba2.yaml --prompt 8 --policy knorm
refused "no layer of this model stores a row per token" info configs/tiny-mamba2.yaml --policy knorm
refused "--policy: eval of a task uses the cache only with --decode" eval $src mqar --policy knorm
refused "adakv cannot divide the rows of tova" info $src --policy tova --policy adakv
refused "snapkv and knorm decide the same" generate $src --prompt x --policy snapkv --policy knorm
refused "--policy: expected at most 511 characters in all" info $src --policy "knorm:$(printf 'budget=0.5,%.0s' {1..60})"
refused "--policy quest: it selects what is read after a prompt" logits $src --tokens "$tmp/tokens" --out "$tmp/x" --policy quest
refused "--policy: eval of a task uses the cache only with --decode" eval $src mqar --policy quest
refused "quest and hybrid decide the same, what a step reads" info $src --policy quest+hybrid
refused "--policy hybrid: it selects what is read after a prompt" logits $src --tokens "$tmp/tokens" --out "$tmp/x" --policy hybrid
refused "no layer of this model stores a row per token" info configs/tiny-mamba2.yaml --policy shadowkv
refused "--policy hybrid: channels: expected a number from 0.001 to 1" info $src --policy hybrid:channels=2
refused "--policy shadowkv: recent: expected at least the 8 rows of a page, got 4" info $src --policy shadowkv:recent=4
refused "no layer of this model stores a row per token" info configs/tiny-mamba2.yaml --policy quest
sed 's/layers: 2/layers: 1/' configs/tiny-gqa.yaml >"$tmp/one.yaml"
refused "--policy infinigen: it guesses the queries of a gqa layer" info "$tmp/one.yaml" --policy infinigen
refused "--policy infinipot: catalyst: its prompt has words" info tests/golden/recall --policy infinipot:catalyst=1
refused "option --policy needs a value" info $src --policy
refused "unknown option --policy" train configs/tiny-mha.yaml --policy knorm
refused "--policy snapkv: every: this command has no prompt" logits $src --tokens "$tmp/tokens" --out "$tmp/x" --policy snapkv
refused "--policy h2o: every: this command has no prompt" eval $src ppl --data "$tmp/text" --policy h2o:every=0
refused "--fill: --policy tova asks queries" bench decode configs/tiny-gqa.yaml --fill --prompt 24 --policy tova
refused "info: expected MODEL|CONFIG.yaml" info
refused "every" logits $src --tokens "$tmp/tokens" --out "$tmp/x" --policy kvzip
refused "one threshold divides the rows of all lanes" info $src --policy kvzip+adakv
refused "--policies or --codecs alone" info --policies x
verdict refusals
