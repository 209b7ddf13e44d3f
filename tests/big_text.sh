#!/bin/bash
# A text of 1 GB (MB, default 1000) becomes tokens in less than 1 GB of memory: not only resident but of address space,
# which the system refuses to go beyond. By hand, not in CI: `make big-text`; needs about 4 times the size on disk.
#   MB: size   THREADS: default 2   TOKENIZER: default tests/golden/bpe/gpt2.json
. tests/lib/cases.sh
mb=${MB:-1000} threads=${THREADS:-2} tok=${TOKENIZER:-tests/golden/bpe/gpt2.json} limit=1000000 # KB
field() { grep -o "\"$2\":[^,}]*" "$1" | head -n 1 | cut -d: -f2; }
# $1: name, $2: documents expected (0: any), the rest: options; reads $tmp/in*
tokenize() {
    local name=$1 docs=$2 s
    shift 2
    (ulimit -v $limit && exec "$prog" data tokenize "$@" --tokenizer "$tok" --out "$tmp/out" --threads "$threads" --json) \
        >"$tmp/json" 2>"$tmp/err"
    s=$?
    [ $s -eq 0 ] || wrong "$name: exit $s: $(tail -n 1 "$tmp/err")"
    [ "$docs" -eq 0 ] || [ "$(field "$tmp/json" documents)" = "$docs" ] || wrong "$name: $(cat "$tmp/json")"
    awk -v n="$name" -v b="$(field "$tmp/json" bytes)" -v s="$(field "$tmp/json" seconds)" -v t="$threads" \
        'BEGIN { if (s > 0) printf "  %s: %.0f MB in %.1f s, %.1f MB/s with %d threads\n", n, b / 1e6, s, b / 1e6 / s, t }'
    rm -f "$tmp"/out.*
    verdict "$name"
}
times=$((mb * 1000000 / $(stat -c %s data/kjv.txt)))
for ((i = 0; i < times; i++)); do cat data/kjv.txt && printf '\f\n'; done >"$tmp/in"
tokenize documents $((20 * times)) "$tmp/in" --separator '\f\n'
tokenize one-document 1 "$tmp/in"
tokenize llmc-shards $((20 * times)) "$tmp/in" --separator '\f\n' --format llmc --shard-tokens 100000000
tr '\n' ' ' <"$tmp/in" >"$tmp/in2"
tokenize one-line 1 "$tmp/in2"
rm "$tmp/in2"
tr -d '"\\' <"$tmp/in" | tr -d '\f' | sed 's/.*/{"text": "&"}/' | gzip -1 >"$tmp/in.jsonl.gz"
rm "$tmp/in"
tokenize lines-of-json 0 "$tmp/in.jsonl.gz"
rm "$tmp/in.jsonl.gz"
# One line of JSON as long as is allowed, and text without a place to cut, as long as is allowed.
(printf '{"text": "' && head -c 33554000 <(while :; do cat data/kjv.txt; done) | tr '\n\f"\\' '    ' && printf '"}\n') >"$tmp/in.jsonl"
tokenize longest-line 1 "$tmp/in.jsonl"
head -c 8388000 /dev/zero | tr '\0' a >"$tmp/in"
tokenize longest-word 1 "$tmp/in"
yes a | head -c $((mb * 40000)) >"$tmp/in"
tokenize smallest-documents $((mb * 20000)) "$tmp/in" --separator '\n'
