#!/bin/bash
# eval of the tasks of text: in ids and in text, query-aware and query-agnostic, against a dense cache, over a grid; ppl by place.
. tests/lib/cases.sh
src=tests/golden/convert
field() { grep -o "\"$1\":[^,}]*" "$2" | head -n 1 | cut -d: -f2; }
run() { "$prog" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; }
ok() { run "$@" || wrong "$*: exit $?, $(cat "$tmp/err")"; }

# A model with a tokenizer reads the text, a model of a task the ids.
for task in niah niah_multikey niah_multivalue niah_multiquery passkey vt cwe fwe repeat; do
    small="" T=1000
    case $task in
    cwe) small="common=2 times=3" T=700 ;;
    repeat) small="items=4" ;;
    esac
    # shellcheck disable=SC2086
    ok eval $src $task T=$T samples=2 -q --json $small
    [ "$(field answers "$tmp/out")" -ge 2 ] || wrong "$task: $(cat "$tmp/out")"
    cp "$tmp/out" "$tmp/aware"
    # shellcheck disable=SC2086
    ok eval $src $task T=$T samples=2 -q --json --agnostic $small
    [ "$(field question "$tmp/out")" = '"agnostic"' ] || wrong "$task: $(cat "$tmp/out")"
    # without a policy the place where the prompt ends changes nothing but the bytes there
    for f in answers accuracy sample_accuracy; do
        [ "$(field $f "$tmp/out")" = "$(field $f "$tmp/aware")" ] || wrong "$task: $f differs: $(cat "$tmp/aware" "$tmp/out")"
    done
    awk "BEGIN { exit !($(field nll "$tmp/out") - $(field nll "$tmp/aware") < 1e-4 && $(field nll "$tmp/aware") - $(field nll "$tmp/out") < 1e-4) }" ||
        wrong "$task: nll differs: $(cat "$tmp/aware" "$tmp/out")"
    [ "$(field cache_bytes "$tmp/out" | cut -d. -f1)" -lt "$(field cache_bytes "$tmp/aware" | cut -d. -f1)" ] ||
        wrong "$task: the prompt without the question is no shorter: $(cat "$tmp/out")"
done
verdict text

# Against a dense cache: nothing differs without a policy or with a full budget; something with a small one, whose
# choice depends on whether it saw the question.
kl_of() { grep -o '"kl":[0-9.e-]*' "$1" | cut -d: -f2; }
against() { ok eval $src niah_multikey T=800 samples=4 -q --json --against dense "$@"; }
for how in none snapkv:budget=1 snapkv:budget=0.2,window=4; do
    against --policy $how
    cp "$tmp/out" "$tmp/of.${how%%,*}"
done
for how in none snapkv:budget=1; do
    [ "$(kl_of "$tmp/of.$how")" = 0.0 ] && [ "$(field top1 "$tmp/of.$how")" = 1.0 ] || wrong "$how differs from dense: $(cat "$tmp/of.$how")"
done
small=$tmp/of.snapkv:budget=0.2
whole=$(grep -o '"against_dense".*' "$small" | grep -o '"cache_bytes":[0-9.]*' | cut -d: -f2)
bytes=$(grep -o '"cache_bytes":[0-9.]*' "$small" | head -n 1 | cut -d: -f2)
kl=$(kl_of "$small")
awk "BEGIN { exit !($kl > 1e-4 && $bytes < 0.25 * $whole) }" ||
    wrong "a small budget: $(cat "$small")"
against --policy snapkv:budget=0.2,window=4 --agnostic
[ "$(kl_of "$tmp/out")" != "$kl" ] || wrong "the question does not matter: $(cat "$tmp/out")"
verdict against

# A grid: every cell, and their mean.
ok eval $src niah T=800 samples=3 lengths=2 depths=3 -q --json
[ "$(grep -o '"depth":' "$tmp/out" | wc -l)" -eq 6 ] && [ "$(grep -o '"T":400' "$tmp/out" | wc -l)" -eq 3 ] &&
    grep -q '"samples":18' "$tmp/out" || wrong "grid: $(cat "$tmp/out")"
ok eval $src niah T=800 samples=3 lengths=2 depths=3 -q
[ "$(grep -cE '^ +(400|800)( +[0-9.]+){3}$' "$tmp/out")" -eq 2 ] || wrong "grid: $(cat "$tmp/out")"
verdict grid

# A text by the place of its tokens, and against a dense cache: parts add up to the whole, and only what is left out differs.
for i in 1 2 3 4 5 6 7 8 9; do echo "One two three four five six seven eight nine ten $i"; done >"$tmp/text"
ppl() { ok eval $src ppl --data "$tmp/text" --context 60 --stride 20 --json "$@"; }
ppl
cp "$tmp/out" "$tmp/whole"
sums() { grep -o '"tokens":[0-9]*,"nll":[0-9.]*' "$tmp/out" | sed 's/"[a-z]*"://g' |
    awk -F, 'NR == 1 { n = $1; x = $1 * $2 } NR > 1 { m += $1; y += $1 * $2 } END { exit !(NR == 4 && m == n && (x - y) ^ 2 < 1e-8 * x ^ 2) }'; }
ppl --buckets 3 --against dense
sums || wrong "buckets: $(cat "$tmp/out")"
[ "$(field nll "$tmp/out")" = "$(field nll "$tmp/whole")" ] || wrong "buckets change the whole: $(cat "$tmp/whole" "$tmp/out")"
grep -q '"kl":0.0,"top1":1.0' "$tmp/out" || wrong "no policy differs from dense: $(cat "$tmp/out")"
ppl --buckets 3 --against dense --policy knorm:budget=0.2,window=4,every=4
sums || wrong "buckets with a policy: $(cat "$tmp/out")"
[ "$(grep -o '"kl":[0-9.]*' "$tmp/out" | awk -F: '$2 > 1e-3 { n++ } END { print n + 0 }')" -ge 3 ] || wrong "a small budget differs nowhere: $(cat "$tmp/out")"
verdict ppl

# Ids of a model that was trained on them.
ok train configs/tiny-mqar.yaml -q run.dir="$tmp/run" data.task='{name: recall, vocab: 80, keys: 3, rounds: 2}' data.seq_len=80 train.steps=2 optim.warmup=0 train.eval_every=0 train.save_every=0
ok eval "$tmp/run" niah vocab=80 digits=0 T=80 samples=20 --json --decode --agnostic --policy h2o:budget=0.5,window=4,every=0
[ "$(field question "$tmp/out")" = '"agnostic"' ] && [ "$(field answers "$tmp/out")" = 20 ] || wrong "ids: $(cat "$tmp/out")"
ok eval "$tmp/run" samples=20 --json # in parallel
[ "$(field task "$tmp/out")" = '"recall"' ] && grep -q accuracy_stderr "$tmp/out" || wrong "ids: $(cat "$tmp/out")"
verdict ids

refused() { # part of the line, arguments
    local part=$1
    shift
    run "$@"
    [ $? -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -qF -- "$part" "$tmp/err" || wrong "$*: $(cat "$tmp/err")"
}
refused "--agnostic: eval of a task uses the cache only with --decode" eval "$tmp/run" --agnostic
refused "--against: eval of a task uses the cache only with --decode" eval "$tmp/run" --against dense
refused "--against: expected dense, got 'x'" eval "$tmp/run" --decode --against x
refused "--agnostic: a sample has no context" eval "$tmp/run" mqar vocab=32 pairs=3 T=40 --decode --agnostic
refused "have no needle whose depth" eval "$tmp/run" vt depths=3 T=80 vocab=80 digits=0 hops=1
refused "--agnostic is not an option" eval $src choices --data configs/choices.jsonl --agnostic
refused "the text of the shortest sample" eval $src niah T=150 samples=1 -q
refused "vocab 1024, but the model has 80 ids" eval "$tmp/run" niah
refused "--buckets is not an option of a task" eval "$tmp/run" niah --buckets 3
refused "--agnostic is only for tasks" eval $src ppl --data "$tmp/text" --agnostic
verdict refusals
