#!/bin/bash
# Fuzz all parsers for hours, one process at the lowest priority, until RUNS inputs have been tried in all:
#   tests/fuzz_long.sh BUILD CORPUS [RUNS] [SECONDS]
# RUNS: default 1e8. SECONDS: stop after so many, to be resumed by the same command (default: no limit). CORPUS, a folder outside
# of the repository, keeps what was found (CORPUS/NAME/), and what was done (CORPUS/runs: target, inputs, seconds, failures, a
# line for every turn). In every round a target that has had neither 1e6 inputs nor 300 s gets a turn of 30 s, and the others
# share ten turns in proportion to their speed. An input that fails is left as CORPUS/NAME-crash-..., and its target continues.
# Prints the table of all that CORPUS/runs has. Exit status 1: an input has failed, or a target does not run; 3: not yet RUNS.
set -u
export LC_ALL=C.UTF-8
cd "$(dirname "$0")/.." || exit 1
[ $# -ge 2 ] || { sed -n '2,9s/^# //p' "$0" >&2; exit 2; }
. tests/fuzz/targets.sh
build=$1 corpus=$2 runs=$(printf '%.0f' "${3:-1e8}") limit=${4:-0} turn=${FUZZ_TURN:-30}
mkdir -p "$corpus" || exit 1
exec 8>"$corpus/lock"
flock -n 8 || { echo "fuzz_long: another one works in $corpus" >&2; exit 2; }
low=(nice -n 19)
! chrt --idle 0 true 2>/dev/null || low=(chrt --idle 0 nice -n 19)
: >>"$corpus/runs"

of() { awk -v name="$1" -v field="$2" '$1 == name { n += $field } END { printf "%.0f", n }' "$corpus/runs"; }
all() { awk '{ n += $2 } END { printf "%.0f", n }' "$corpus/runs"; }
table() {
    awk '{ n[$1] += $2; s[$1] += $3; bad[$1] += $4; if (!seen[$1]++) name[++count] = $1 }
        END { printf "%-14s %12s %9s %9s\n", "target", "executions", "seconds", "crashes"
            for (i = 1; i <= count; i++) { x = name[i]; printf "%-14s %12d %9d %9d\n", x, n[x], s[x], bad[x]; a += n[x]; b += s[x]; c += bad[x] }
            printf "%-14s %12d %9d %9d\n", "total", a, b, c; exit c > 0 }' <(LC_ALL=C sort -k1,1 "$corpus/runs")
}
child=''
over() {
    [ -z "$child" ] || { kill "$child" 2>/dev/null && wait "$child"; }
    table || exit 1
    exit 3
}
trap over INT TERM HUP

fuzz_library "$build" || exit
for name in $(fuzz_names); do
    fuzz_build "$build" "$name" && mkdir -p "$corpus/bin" "$corpus/$name" && cp -f "$build/fuzz/$name" "$corpus/bin/" || exit 1
    cp -n "tests/fuzz/$name"/* "$corpus/$name/" 2>/dev/null
done

once() { # target, seconds: a turn
    local log=$corpus/$1.log n began=$EPOCHREALTIME took rc
    # shellcheck disable=SC2086 # limits are several words; a process of the lowest priority may wait for seconds
    "${low[@]}" "$corpus/bin/$1" -max_total_time="$2" -print_final_stats=1 $fuzz_limits -timeout=100 -artifact_prefix="$corpus/$1-" \
        "$corpus/$1" >"$log" 2>&1 </dev/null 8>&- &
    child=$!
    wait $child
    rc=$?
    child=''
    took=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    n=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
    [ $rc = 0 ] || { cp "$log" "$corpus/$1.failed.log"; echo "fuzz_long: $1 failed (status $rc): $corpus/$1.failed.log" >&2; }
    echo "$1 ${n:-0} $took $((rc != 0))" >>"$corpus/runs"
    [ -n "$n" ] || { table; exit 1; } # it did not even start, or died without a word
}
enough() { # $1: inputs of all that are enough
    [ "$limit" -gt 0 ] && [ $SECONDS -ge "$limit" ] && over
    [ "$(all)" -ge "$1" ]
}
round() { # a line for each target: NAME SECONDS
    awk -v turn="$turn" -v least="${FUZZ_LEAST:-1000000}" 'FNR == NR { name[++count] = $1; next } { n[$1] += $2; s[$1] += $3 }
        END { for (i = 1; i <= count; i++) { x = name[i]; fast[x] = s[x] ? n[x] / s[x] : 0; sum += fast[x] }
            for (i = 1; i <= count; i++) { x = name[i]; t = n[x] < least && s[x] < 300 ? turn : int(10 * turn * fast[x] / sum)
                if (t) print x, t } }' <(fuzz_names) "$corpus/runs" | sort -k2,2nr
}
while ! enough "$runs"; do
    while read -r name seconds; do
        enough "$runs" || once "$name" "$seconds"
    done < <(round)
done
table
