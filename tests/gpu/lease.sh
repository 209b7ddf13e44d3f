#!/bin/bash
# lease.sh [OUT [SECONDS [SEED [PART...]]]]: every part of gpu-check in order, what decides most first, within SECONDS (520), for a
# machine that is at hand for ten minutes, its start included. Results are written to OUT line by line, so that whatever ends
# this costs at most the cases under way: gpu-check.jsonl, figures.txt, log.txt, tuning.txt, clocks.csv, peers.jsonl,
# profile.txt, each below 16 MiB, no folders. A call with the same OUT, or with the OUT of an earlier one as SEED, goes on
# where that was cut off. Prints what failed, then figures next to what was expected of them.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-gpu-check-out} seconds=${2:-520} seed=${3:-}
shift $(($# < 3 ? $# : 3))
started=$SECONDS
mkdir -p "$out" || exit 1
for f in gpu-check.jsonl tuning.txt peers.jsonl profile.txt; do
    [ -z "$seed" ] || [ -e "$out/$f" ] || [ ! -e "$seed/$f" ] || cp "$seed/$f" "$out/$f"
done
work=${TMPDIR:-/tmp}/gpu-check-work
"$here/run" "${@:-all}" --out "$out" --work "$work" --total $((seconds - 30)) --seconds 480 ${GPU_CHECK_ARGS:-}
status=$?
echo "$((SECONDS - started)) s; what failed:"
grep '"state":"failed"' "$out/gpu-check.jsonl" | cut -c1-240 | tail -n 20
echo "measured, expected:"
awk -F ';' '/;/ { print $1 }' "$out/figures.txt" | tail -n 40
exit $status
