#!/bin/bash
# Fuzz every parser of tests/fuzz/ under ASan and UBSan for $2 seconds (default 20), from its seeds on: tests/fuzz.sh BUILD
# SECONDS. An input that fails is left in BUILD/fuzz/. Exit status 77: no clang with libFuzzer here. Of the environment:
#   FUZZ_CHANGED=N   the targets whose files changed lately get N seconds together, others a quarter of a turn
#   FUZZ_TURNS=N     where nothing changed only every N-th target gets its whole turn, by the commit's hash
# tests/fuzz/targets.sh has the rules. tests/fuzz_long.sh runs them for hours.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/fuzz/targets.sh
build=${1:-build}
to=$build/fuzz
fuzz_library "$build" || exit
one() { # target, seconds
    local name=$1
    fuzz_build "$build" "$name" || return 1
    seeds=$to/$name.seeds
    rm -rf "$seeds" && mkdir -p "$seeds"
    [ -d "tests/fuzz/$name" ] && cp "tests/fuzz/$name"/* "$seeds"
    # shellcheck disable=SC2086 # limits are several words
    if "$to/$name" -max_total_time="$2" $fuzz_limits -artifact_prefix="$to/$name-" "$seeds" >"$to/$name.log" 2>&1; then
        echo "ok $name, $2 s: $(grep -o 'Done [0-9]* runs' "$to/$name.log" | tail -n 1)"
    else
        grep -vE '^#[0-9]+\s+(NEW|REDUCE|pulse)' "$to/$name.log" | tail -n 30
        echo "not ok $name: see $to/$name.log"
        return 1
    fi
}
bad=0 running=0
while read -r name seconds; do # as many side by side as there are processors
    [ "$name" != '*' ] || { echo "fuzz: tests/fuzz is empty" >&2; exit 1; }
    if [ $running -ge "$(nproc)" ]; then
        wait -n || bad=1
        running=$((running - 1))
    fi
    one "$name" "$seconds" </dev/null &
    running=$((running + 1))
done < <(fuzz_turns "${2:-20}" "${FUZZ_CHANGED:-0}" "${FUZZ_TURNS:-1}")
while [ $running -gt 0 ]; do
    wait -n || bad=1
    running=$((running - 1))
done
exit $bad
