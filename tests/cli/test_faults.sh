#!/bin/bash
# Calls of the system that fail, one at a time, and kill -9, over the commands: a sample of what `make faults` does.
# tests/faults/driver.c says what is asked of every case.
. tests/lib/cases.sh
if [ ! -x "$build/faults/kvsmith" ] || [ ! -x "$build/faults/driver" ] || [ ! -x "$build/faults/inject.so" ]; then
    wrong "not built: make test builds $build/faults"
    verdict sample
    exit
fi
tests/faults/run.sh "$build" sample >"$tmp/out" 2>"$tmp/err"
rc=$?
[ $rc -eq 0 ] || { wrong "exit $rc" && grep '^FAULT' "$tmp/out" >>"$bad"; tail -n 3 "$tmp/out" "$tmp/err" >>"$bad"; }
cases=$(awk '/^total/ { print $2 }' "$tmp/out")
[ "${cases:-0}" -ge 500 ] || wrong "$cases cases, expected at least 500"
# every kind of failure has been tried, and kills
for kind in open read write pread pwrite fsync rename stat readdir mmap ftruncate mkdir link unlink flock memory fork kill-9; do
    awk -v kind=$kind '$2 == kind { n += $3 } END { exit !n }' "$tmp/out" || wrong "no case of $kind"
done
verdict sample
cat "$tmp/out"
