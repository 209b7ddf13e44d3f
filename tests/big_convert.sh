#!/bin/bash
# Outside CI: a synthetic checkpoint of 1.1e9 parameters (sparse, 2.2 GB) to fewer heads: peak of anonymous memory and time
# beside plain copies of the same bytes: of what is read, and of what was written. Both are read once before, so that neither
# time holds the first reading from the disk; --check-tokens 0 leaves the comparison of the two models out of it. Needs 2.2 GB of disk twice below TMPDIR. Usage: tests/big_convert.sh [KVSMITH]
. tests/lib/cases.sh
prog=${1:-$prog}
tests/synthetic_llama.sh "$tmp/src" 2048 18 32 32 5632 32000
echo "source: $("$prog" info "$tmp/src" | head -n 1)"
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.2f", b - a }'; }
copy() { # seconds of a copy, on the disk when it ends
    local start
    start=$(now)
    cat "$1"/*.safetensors | dd of="$tmp/copy" bs=4M iflag=fullblock conv=fsync 2>/dev/null
    since "$start"
    rm "$tmp/copy"
}
cat "$tmp/src"/*.safetensors >/dev/null
for what in "mqa method=mean" "gqa kv_heads=8 method=mean" "same dtype=f16 shard=500MB"; do
    for check in "${CHECK_TOKENS:-64}" 0; do
        start=$(now)
        "$prog" convert "$tmp/src" "$tmp/dst" --to $what --check-tokens "$check" --json >"$tmp/report" &
        pid=$! most=0
        while kill -0 $pid 2>/dev/null; do
            anon=$(awk '/^RssAnon/ { print $2 }' /proc/$pid/status 2>/dev/null)
            [ "${anon:-0}" -gt $most ] && most=$anon
            sleep 0.02
        done
        wait $pid || exit 1
        took=$(since "$start") read=$(copy "$tmp/src") written=$(copy "$tmp/dst")
        echo "$what, $check tokens compared: $took s, at most $((most / 1024)) MiB of anonymous memory," \
            "$(grep -o '"memory_bytes":[0-9]*' "$tmp/report" | cut -d: -f2 | awk '{ printf "%d", $1 / 1048576 }') MiB by its own count;" \
            "plain copy of what is read $read s ($(awk -v a="$took" -v b="$read" 'BEGIN { printf "%.2f", a / b }') times that)," \
            "of what was written $written s ($(awk -v a="$took" -v b="$written" 'BEGIN { printf "%.2f", a / b }') times)"
        [ $most -lt 2097152 ] || { echo "more than 2 GiB"; exit 1; }
        rm -r "$tmp/dst"
    done
done
