#!/bin/bash
# lease.sh [OUT [SECONDS]]: every part of gpu-check in order, correctness first, then speed, within SECONDS (520), for a machine
# that is at hand for ten minutes, its start included. Called again with the same OUT it goes on where it was cut off. Ends with what failed, and
# leaves in OUT: gpu-check.jsonl, log.txt, tuning.txt.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-gpu-check-out} seconds=${2:-520}
started=$SECONDS
"$here/run" all --out "$out" --total $((seconds - 30)) --seconds 480
status=$?
echo "$((SECONDS - started)) s; what failed:"
grep '"state":"failed"' "$out/gpu-check.jsonl" | cut -c1-300 | tail -n 40
exit $status
