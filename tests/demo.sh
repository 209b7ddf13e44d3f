#!/bin/bash
# make demo: train on the shipped text until the time is up, generate, show what the cache costs, and hold the result to
# what is promised: a validation loss of at most 1.9 nats per character, and at least half of the generated words of
# four letters or more from the text. One `ok` or `not ok` line per promise; exit status 1 when one is broken.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
kvsmith=${1:-build}/kvsmith
config=configs/demo.yaml run=runs/demo corpus=data/kjv.txt
start=$SECONDS
bad=0
tell() { # name, holds?, text
    if [ "$2" = 1 ]; then echo "ok $1: $3"; else
        echo "not ok $1: $3"
        bad=1
    fi
}

# The folder of an earlier demo makes room, one in use does not.
if [ -f $run/config.yaml ]; then
    if [ -e $run/lock ] && ! flock -n $run/lock true; then
        echo "demo: $run is in use" >&2
        exit 2
    fi
    rm -rf $run
fi
"$kvsmith" train $config || exit
echo
echo "== four continuations at temperature 0.8"
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
for prompt in "And the king said" "In the beginning" "Then came" "Thus saith the LORD"; do
    echo "{\"prompt\": \"$prompt\"}"
done >"$tmp/prompts.jsonl"
"$kvsmith" generate $run --batch-file "$tmp/prompts.jsonl" --max-new 220 --temperature 0.8 --ignore-eos |
    tee "$tmp/text" || exit
echo
echo "== what it costs"
"$kvsmith" info $run --context 4096 || exit
echo

# The words of four letters or more of each text, but for its last, which may be cut short.
words() { LC_ALL=C tr -cs 'A-Za-z' '\n' | LC_ALL=C tr 'A-Z' 'a-z'; }
words <$corpus | LC_ALL=C sort -u >"$tmp/dict"
read -r known all < <(sed 's/^== prompt [0-9]* ==$/ zzend /' "$tmp/text" | words | awk -v dict="$tmp/dict" '
    BEGIN { while ((getline w < dict) > 0) have[w] = 1 }
    $0 == "zzend" { last = ""; next }
    length(last) >= 4 { all++; known += last in have }
    { last = $0 }
    END { print known + 0, all + 0 }')
tell words $((all >= 50 && 2 * known >= all)) "$known of $all generated words of four letters or more occur in the text"

loss=$(sed -n 's/.*"val_loss": *\([0-9.eE+-]*\).*/\1/p' $run/metrics.jsonl | sort -g | head -n 1)
tell loss "$(awk -v l="${loss:-9}" 'BEGIN { print (l > 0 && l <= 1.9) ? 1 : 0 }')" \
    "validation loss ${loss:-missing} nats per character, at most 1.9"
json=$("$kvsmith" info $run --json) || exit
bytes=$(grep -o '"bytes_per_token": *[0-9]*' <<<"$json" | head -n 1 | grep -o '[0-9]*$')
mha=$(grep -o '"mha_bytes_per_token": *[0-9]*' <<<"$json" | head -n 1 | grep -o '[0-9]*$')
tell cache $((${bytes:-0} > 0 && ${bytes:-0} < ${mha:-0})) \
    "the cache takes ${bytes:-?} bytes per token, plain multi-head attention ${mha:-?}"
took=$((SECONDS - start))
tell time $((took <= 300)) "$took s, at most 300"
exit $bad
