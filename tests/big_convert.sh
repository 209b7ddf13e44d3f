#!/bin/bash
# Outside CI: a synthetic checkpoint of 1.1e9 parameters (sparse, 2.2 GB) to fewer heads: peak of anonymous memory and time
# beside a plain copy of the same bytes. Needs 2.2 GB of disk twice below TMPDIR. Usage: tests/big_convert.sh [KVSMITH]
. tests/cases.sh
prog=${1:-$prog}
tests/synthetic_llama.sh "$tmp/src" 2048 18 32 32 5632 32000
echo "source: $("$prog" info "$tmp/src" | head -n 1)"
for what in "mqa method=mean" "gqa kv_heads=8 method=mean" "same dtype=f16 shard=500MB"; do
    start=$(date +%s.%N)
    "$prog" convert "$tmp/src" "$tmp/dst" --to $what --check-tokens "${CHECK_TOKENS:-64}" --json >"$tmp/report" &
    pid=$! most=0
    while kill -0 $pid 2>/dev/null; do
        now=$(awk '/^RssAnon/ { print $2 }' /proc/$pid/status 2>/dev/null)
        [ "${now:-0}" -gt $most ] && most=$now
        sleep 0.02
    done
    wait $pid || exit 1
    echo "$what: $(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }') s, at most $((most / 1024)) MiB of anonymous memory," \
        "$(grep -o '"memory_bytes":[0-9]*' "$tmp/report" | cut -d: -f2 | awk '{ printf "%d", $1 / 1048576 }') MiB by its own count"
    [ $most -lt 2097152 ] || { echo "more than 2 GiB"; exit 1; }
    rm -r "$tmp/dst"
done
start=$(date +%s.%N)
dd if="$tmp/src/model.safetensors" of="$tmp/copy" bs=4M conv=fsync 2>/dev/null
echo "plain copy: $(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }') s"
