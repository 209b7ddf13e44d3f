#!/bin/bash
# Rows of a comparison that start from a conversion and are measured at marks: what a mark's run is, what is done once, what
# is refused.
. tests/lib/cases.sh
ci=configs/compare-uptrain-ci.yaml
compare() { "$prog" compare "$@" >"$tmp/out" 2>"$tmp/err"; }
ok() {
    compare "$@"
    local s=$?
    [ $s -eq 0 ] || wrong "compare $*: exit $s: $(cat "$tmp/err")"
}
refused() { # PART ROWS: exit 2, an empty stdout, one line with PART on stderr, nothing made
    local part=$1 rows=$2 s
    shift 2
    compare $ci "rows=$rows" dir="$tmp/no/such" "$@"
    s=$?
    [ $s -eq 2 ] || wrong "$rows: exit $s, expected 2: $(cat "$tmp/err")"
    [ -s "$tmp/out" ] && wrong "$rows: printed $(head -c 80 "$tmp/out")"
    [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ "$(wc -m <"$tmp/err")" -le 301 ] || wrong "$rows: not one line: $(cat "$tmp/err")"
    grep -qF -e "$part" "$tmp/err" || wrong "$rows: expected '$part' in: $(cat "$tmp/err")"
    [ -e "$tmp/no" ] && wrong "$rows: made $(find "$tmp/no")"
}
field() { grep -o "\"$2\": *[^,}]*" "$1" | head -n 1 | sed 's/^[^:]*: *//'; }
begun() { grep -c ': begins at\|: continues at' "$tmp/out"; }
few="$ci --threads 1 budget.tokens=12800" # 50 steps
own='lrs: [3e-3], set: {optim.warmup: 0}'
rows="rows=[{name: mha}, {name: on, from: mha, marks: [4, 10, 20], $own}, {name: alone, from: mha, marks: [20], $own}, {name: gqa, from: mha, convert: {to: gqa, kv_heads: 3, method: aligned, calib_tokens: 2048}, marks: [4, 20], $own}]"

ok $few "$rows" dir="$tmp/all"
[ "$(begun)" -eq 7 ] || wrong "$(begun) runs, expected 1 + 3 + 1 + 2: $(cat "$tmp/out")"
on=$tmp/all/on/lr-3e-3-seed-1-mark
# a mark that goes on from the one before is what a run of its own is, numbers and moments
for f in model.safetensors trainer/optimizer.safetensors; do
    cmp "$on-20/last/$f" "$tmp/all/alone/lr-3e-3-seed-1-mark-20/last/$f" >>"$bad" 2>&1
done
[ "$(grep -c '"val_loss"' "$on-20/metrics.jsonl")" -eq 1 ] || wrong "mark 20 validated $(cat "$on-20/metrics.jsonl")"
ls "$on-10" | grep -qx step-000004 && ls "$on-10" | grep -qx step-000005 || wrong "mark 10 has $(ls "$on-10")"
# constant up to the decay, then down: steps 1 to 8 at 3e-3, then two of the linear decay
grep -o '"step":[0-9]*,"loss":[^,]*,"lr":[^,]*' "$tmp/all/alone/lr-3e-3-seed-1-mark-20/metrics.jsonl" >"$tmp/lr"
grep -q '"step":1,.*"lr":0.003$' "$tmp/lr" && grep -q '"step":10,.*"lr":0.00165$' "$tmp/lr" || wrong "rates: $(cat "$tmp/lr")"
# before the first step the weights are those of the row that it starts from
a=$(field "$tmp/all/mha/lr-1e-2-seed-1.json" val_loss) b=$(field "$on-4.json" first_loss)
awk -v a="$a" -v b="$b" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < 1e-14) }' || wrong "mha ends with $a, on begins with $b"
first=$(field "$tmp/all/gqa/lr-3e-3-seed-1-mark-4.json" first_loss)
awk -v a="$a" -v b="$first" 'BEGIN { exit !(b > a) }' || wrong "a conversion to half the heads costs nothing: $a, $first"
grep -q "^init_from: .*/all/gqa/converted-seed-1" "$tmp/all/gqa/lr-3e-3-seed-1-mark-20/config.yaml" || wrong "gqa starts from $(grep init_from "$tmp/all/gqa/"*/config.yaml)"
table=$tmp/all/table.md
grep -q "^| row | conversion .*| at 0 % | at 4 % | at 10 % | at 20 % |" "$table" || wrong "$(cat "$table")"
grep -q "^| on |  | - | 1536.0 | $(printf %.4f "$a") | .*[0-9] |$" "$table" || wrong "on: $(cat "$table")"
grep -q "^| gqa | gqa kv_heads=3 method=aligned | 0.* | 768.0 | $(printf %.4f "$first") (+.*%) | .*%) | - | .*%) |$" "$table" || wrong "gqa: $(cat "$table")"
grep -q '"reference": *"on"' "$tmp/all/results.json" && grep -q '"percent": *20' "$tmp/all/results.json" || wrong "results.json lacks the marks"
verdict marks

cp "$table" "$tmp/table"
sum=$(find "$tmp/all" -name '*.safetensors' -print0 | sort -z | xargs -0 sha256sum)
ok $few "$rows" dir="$tmp/all"
[ "$(begun)" -eq 0 ] || wrong "done, but: $(cat "$tmp/out")"
cmp "$table" "$tmp/table" >>"$bad" 2>&1
rm "$tmp/all/gqa/converted-seed-1.json" # as after a kill right behind the conversion
rm -r "$on-20" "$on-20.json"
ok $few "$rows" dir="$tmp/all" --plan --json
[ "$(field "$tmp/out" runs_left)" = 1 ] || wrong "--plan counts $(field "$tmp/out" runs_left) runs, expected 1"
ok $few "$rows" dir="$tmp/all"
[ "$(begun)" -eq 1 ] || wrong "one mark was lost, but: $(cat "$tmp/out")"
[ "$sum" = "$(find "$tmp/all" -name '*.safetensors' -print0 | sort -z | xargs -0 sha256sum)" ] || wrong "another result"
compare $few "${rows/aligned/mean}" dir="$tmp/all"
s=$?
[ $s -eq 2 ] && grep -q 'converted with other settings' "$tmp/err" || wrong "another method: exit $s, $(cat "$tmp/err")"
verdict done-once

# killed at any moment, the same command ends with the same numbers
for at in 2 4 6; do
    "$prog" compare $few "$rows" dir="$tmp/killed" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    until [ "$(grep -c 'begins at' "$tmp/out")" -ge $at ] || ! kill -0 $pid 2>/dev/null; do sleep 0.02; done
    kill -9 $pid
    wait $pid 2>/dev/null
done 2>/dev/null
ok $few "$rows" dir="$tmp/killed"
for f in $(cd "$tmp/all" && ls -d */*/last/model.safetensors gqa/converted-seed-1/model.safetensors); do
    cmp "$tmp/all/$f" "$tmp/killed/$f" >>"$bad" 2>&1
done
verdict resumed

# the checkpoint that the next mark begins with outlives all that are saved behind it: of the best, of a long decay
own='decay: 60, lrs: [3e-3], set: {optim.warmup: 0}'
ok $few base.train.eval_every=1 base.train.keep_best=true "rows=[{name: mha}, {name: on, from: mha, marks: [10, 20], $own}, {name: alone, from: mha, marks: [20], $own}]" dir="$tmp/long"
on=$tmp/long/on/lr-3e-3-seed-1-mark
[ -e "$on-10/step-000002" ] && [ -e "$on-10/step-000004" ] && [ ! -e "$on-20/step-000002" ] || wrong "mark 10 has $(ls "$on-10"), mark 20 $(ls "$on-20")"
cmp "$on-20/last/model.safetensors" "$tmp/long/alone/lr-3e-3-seed-1-mark-20/last/model.safetensors" >>"$bad" 2>&1
verdict long-decay

ok $ci --threads 1 dir="$tmp/ci" -q # every layout and a teacher
[ "$(sed -n '/^Losses after/,$p' "$tmp/ci/table.md" | grep -c '^| [a-z].*%) |')" -eq $(($(grep -c 'convert:' $ci))) ] || wrong "$(cat "$tmp/ci/table.md")"
# taught rows are compared with the control that has their teacher, the others with the one that is written
marks() { sed -n '/^Losses after/,$p' "$tmp/ci/table.md" | awk -F' *[|] *' -v row="$1" '$2 == row { print $8 }'; } # at 5 %
for pair in gqa3-aligned-kd/mha-on-kd yoco-kd/mha-on-kd-2 mla/mha-on gqa3-aligned/mha-on; do
    awk -v a="$(marks ${pair%/*})" -v b="$(marks ${pair#*/})" -v pair=$pair 'BEGIN { split(a, x, "[(%]")
        if (!(b > 0 && (x[2] - 100 * (a / b - 1)) ^ 2 < 0.01 ^ 2)) print pair ": " a " against " b }' >>"$bad"
done
grep -A9 '^teacher:' "$tmp/ci/mha-on-kd-2/"*/config.yaml | grep -q ' lm: 0$' || wrong "mha-on-kd-2 has other losses than yoco-kd"
grep -q '^  path: .*/ci/mha/lr-1e-2-seed-1/last' "$tmp/ci/mha-on-kd/lr-3e-3-seed-1-mark-5/config.yaml" || wrong "mha-on-kd has no teacher"
grep -q '^  path: .*/ci/mha/lr-1e-2-seed-1/last' "$tmp/ci/gqa3-aligned-kd/lr-3e-3-seed-1-mark-5/config.yaml" || wrong "gqa3-aligned-kd learns from $(grep -A2 teacher "$tmp/ci/gqa3-aligned-kd/"*5/config.yaml)"
cmp -s "$tmp/ci/gqa3-aligned-kd/lr-3e-3-seed-1-mark-5/last/model.safetensors" "$tmp/ci/gqa3-aligned/lr-3e-3-seed-1-mark-5/last/model.safetensors" && wrong "a teacher changes nothing"
compare configs/compare-uptrain.yaml --only gqa3-maen # read and checked as a whole
s=$?
[ $s -eq 2 ] && grep -q 'did you mean gqa3-mean' "$tmp/err" || wrong "compare-uptrain: exit $s, $(cat "$tmp/err")"
verdict configurations

mha='{name: mha}'
refused 'expected the name of an earlier row' "[$mha, {name: x, from: mha, teacher: nobody}]"
refused 'needs from' "[$mha, {name: x, marks: [5]}]"
refused 'needs from' "[$mha, {name: x, convert: {to: mqa}}]"
refused 'give one' "[$mha, {name: x, from: mha, marks: [5], tokens: 2560}]"
refused 'one learning rate' "[$mha, {name: x, from: mha, marks: [5], lrs: [1e-3, 2e-3]}]"
refused 'at least one step after the last' "[$mha, {name: x, from: mha, marks: [5, 5.01]}]"
refused 'at most 8 numbers' "[$mha, {name: x, from: mha, marks: [1, 2, 3, 4, 5, 6, 7, 8, 9]}]"
refused 'is determined by marks' "[$mha, {name: x, from: mha, marks: [5], set: {optim.schedule: cosine}}]"
refused 'a row with stages can have one mark' "[$mha, {name: x, from: mha, marks: [5, 10], set: {stages: [{name: a, steps: 1}]}}]"
refused 'optim.warmup: 5 steps are more than the 1 before the decay of mark 1 %' "[$mha, {name: x, from: mha, marks: [1, 20]}]"
refused 'optim.warmup in percent depends' "[$mha, {name: x, from: mha, marks: [5, 10], set: {optim.warmup: 10%}}]"
refused 'a mixer dmc depends' "[$mha, {name: x, from: mha, convert: {to: dmc}, marks: [5, 10], set: {optim.warmup: 0}}]"
refused 'to: required' "[$mha, {name: x, from: mha, convert: {kv_heads: 3}}]"
refused 'expected a map' "[$mha, {name: x, from: mha, convert: mqa}]"
refused 'expected a value, got a map' "[$mha, {name: x, from: mha, convert: {to: mqa, method: {a: 1}}}]"
refused 'did you mean mqa?' "[$mha, {name: x, from: mha, convert: {to: mqaa}}]"
refused 'kv_heads: expected a divisor' "[$mha, {name: x, from: mha, convert: {to: gqa, kv_heads: 4}}]"
refused 'did you mean method?' "[$mha, {name: x, from: mha, convert: {to: mqa, metod: mean}}]"
refused 'leave --plan out' "[$mha, {name: x, from: mha, convert: {to: same, dtype: bf16}}]"
verdict refusals
