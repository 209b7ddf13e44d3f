#!/bin/bash
# kvsmith compress: what it prints, that a rate of 1 is the text itself, and what it refuses.
. tests/lib/cases.sh
src=tests/golden/convert
run() { "$prog" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; }
field() { grep -o "\"$1\":[^,}]*" "$tmp/out" | head -n 1 | cut -d: -f2; }
refused() { # WORDS ARGUMENTS: one line with the words, status 2
    words=$1
    shift
    run compress "$@"
    [ $? -eq 2 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q -- "$words" "$tmp/err" || wrong "compress $*: exit $?, $(cat "$tmp/err")"
}
printf '\n\nOne two three four five six seven.\nEight.\n\nNine ten eleven twelve.\n \t\n\nThirteen \303\251\n' >"$tmp/text"

run compress $src --prompt-file "$tmp/text" --rate 1 && cmp -s "$tmp/text" "$tmp/out" || wrong "rate 1: $(cat "$tmp/out" "$tmp/err")"
run compress $src -p "$tmp/text" --rate 0.5 --json || wrong "json: $(cat "$tmp/err")"
n=$(field tokens) k=$(field kept)
# 75 bytes in three passages, whose roundings may differ by half a token each
[ "$n" = 75 ] && [ "$k" -ge 36 ] && [ "$k" -le 40 ] || wrong "half of $n tokens: $(cat "$tmp/out")"
[ "$(grep -o '"rank":[0-9]' "$tmp/out" | sort | tr '\n' ' ')" = '"rank":0 "rank":1 "rank":2 ' ] || wrong "ranks: $(cat "$tmp/out")"
run compress $src -p "$tmp/text" --rate 0.5 || wrong "exit $?"
grep -q "^$k of 75 tokens in 3 of 3 passages\$" "$tmp/err" || wrong "$(cat "$tmp/err")"
[ "$(grep -c '^$' "$tmp/out")" -eq 2 ] || wrong "not three passages: $(cat "$tmp/out")"
cp "$tmp/out" "$tmp/plain"
run compress $src -p - --rate 0.5 <"$tmp/text"
[ $? -eq 2 ] || wrong "an empty standard input" # run reads /dev/null
"$prog" compress $src -p - --rate 0.5 -q <"$tmp/text" | cmp -s - "$tmp/plain" || wrong "standard input is another text"
run compress $src -p "$tmp/text" --rate 0.4 --question "Ten?" --statement "" --segment 20 || wrong "question: $(cat "$tmp/err")"
[ "$(tail -n 1 "$tmp/out")" = "Ten?" ] || wrong "no question at the end: $(cat "$tmp/out")"
run compress $src -p "$tmp/text" --rate 0.1 --coarse 1 --question "Ten?" --statement "" --segment 20 --json || wrong "coarse: $(cat "$tmp/err")"
[ "$(grep -o '"order":\[[0-9]\]' "$tmp/out" | wc -l)" -eq 1 ] || wrong "more than one passage: $(cat "$tmp/out")"
verdict prints

: >"$tmp/empty"
refused "expected --prompt-file" $src
refused "the prompt is empty" $src -p "$tmp/empty"
refused "missing" $src -p "$tmp/missing"
refused "--rate" $src -p "$tmp/text" --rate 0
refused "--rate" $src -p "$tmp/text" --rate 1.5
refused "--question" $src -p "$tmp/text" --question ""
refused "leaves no room in the context of 64" $src -p "$tmp/text" --question "$(printf 'a%.0s' {1..70})"
refused "do not fit the context of 30" $src -p "$tmp/text" --context 30
refused "has no text" tests/golden/recall -p "$tmp/text"
verdict refuses
