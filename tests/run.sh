#!/bin/bash
# Run every test against the build in $1 (default build) and add them up: the Criterion runners (f32, and double as the
# oracle of gradients), then tests/cli/test_*.sh. A shell test prints one line per case: `ok NAME`, `not ok NAME: why` or
# `skip NAME: reason`. A skip must stand in tests/skips.txt as `NAME  reason`; another one counts as a failure.
# With a second argument only those parts run: f32 f64 sh, isa (suites that compare numbers, with each instruction set below
# the best forced), or simt (the CUDA backend, which `make simt` builds); FILTER='data/*' in the environment is handed to Criterion.
# ISA=avx2 in the environment forces that instruction set everywhere: in tests by TEST_ISA (tests/lib/isa.c), in programs that
# they start by --isa. amx_emulated does so in tests alone; the programs then take avx512bf16.
# XML=PREFIX in the environment: Criterion's reports, with the seconds of every test, as PREFIX-f32.xml and so on.
# The last line is `N passed, N failed, N skipped`.
set -u
export LC_ALL=C.UTF-8 # decimals have points
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
parts=${2:-f32 f64 sh}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'kill $(cat "$tmp/scripts" 2>/dev/null) 2>/dev/null; exit 130' INT TERM
export CHECK_TMP=$tmp BUILD=$build KVSMITH=${KVSMITH:-$build/kvsmith}
forced() { # writes a program that runs $1 with the instruction set, to be started in its place
    cat >"$tmp/kvsmith-${ISA}" <<END
#!/bin/bash
# Puts --isa behind the command; of \`launch -- COMMAND\` behind that of the ranks.
words=("\$@") at=0
[ "\${1-}" != launch ] || for ((i = 0; i < \$#; i++)); do [ "\${words[i]}" != -- ] || { at=\$((i + 1)) && break; }; done
case " \$* " in *cuda*) exec "$(realpath "$1")" "\$@" ;; esac # the set is of the CPU
case \${words[at]-} in
'' | -*) exec "$(realpath "$1")" "\$@" ;;
launch) exec "$(realpath "$1")" "\$@" ;; # without --
data) at=\$((at + 1)) ;;
bench) [ "\${words[at + 1]-}" != comm ] || at=\$((at + 1)) ;;
esac
exec "$(realpath "$1")" "\${words[@]:0:at+1}" --isa "${ISA/#amx_emulated/avx512bf16}" "\${words[@]:at+1}"
END
    chmod +x "$tmp/kvsmith-$ISA"
    echo "$tmp/kvsmith-$ISA"
}
if [ -n "${ISA-}" ]; then
    KVSMITH=$(forced "$KVSMITH")
    export TEST_ISA=$ISA
fi
jobs=$(env -u OMP_NUM_THREADS nproc) # it would count threads, not processors
# How much longer a test may take than on an idle machine of ordinary speed.
export TEST_SLOW=${TEST_SLOW:-$(tests/slow.sh)}
patience() { awk -v n="$1" -v slow="$TEST_SLOW" 'BEGIN { printf "%d", n * slow }'; }
echo "deadlines of tests times $TEST_SLOW"
# Tests run side by side; one thread each unless a test asks for more, and waiting threads give the core away. Some tests
# wait (for ranks that never come), so that three of them keep two processors busy.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=passive
: >"$tmp/results" # one line per test: PASSED|FAILED|SKIPPED name

criterion() { # runner, program, suffix of the tests' names: runs it, adds its results, names them
    local runner=$1 kind=$3 start=$SECONDS rc
    [ -x "$runner" ] || { echo "FAILED $runner (not built)" >>"$tmp/results"; return; }
    echo "== $runner${TEST_ISA:+ with $TEST_ISA}"
    KVSMITH=$2 "$(realpath "$runner")" -j$((jobs + jobs / 2)) --timeout "$(patience 300)" --color=never --json="$tmp/$kind.json" --xml="${XML:-$tmp/times}-$kind.xml" ${FILTER:+--filter "$FILTER"} >"$tmp/$kind.log" 2>&1
    rc=$?
    grep -v '^\[====\]' "$tmp/$kind.log" | head -n 400
    # Criterion does not escape messages, so the report is read by line, not as JSON: tests are indented by 8 or more.
    awk -v kind="$kind" '
        /^      "name": "/ { suite = $2; gsub(/[",]/, "", suite) }
        /^          "name": "/ { name = $2; gsub(/[",]/, "", name) }
        /^          "status": "/ { s = $2; gsub(/[",]/, "", s)
            print (s == "PASSED" || s == "SKIPPED" ? s : "FAILED"), suite "/" name "@" kind }
    ' "$tmp/$kind.json" >"$tmp/$kind.results" 2>/dev/null
    # What the filter left out is reported as skipped.
    [ -z "${FILTER-}" ] || sed -i '/^SKIPPED/d' "$tmp/$kind.results"
    cat "$tmp/$kind.results" >>"$tmp/results"
    awk -v kind="$kind" '
        match($0, /<testsuite name="[^"]*"/) { suite = substr($0, RSTART + 17, RLENGTH - 18) }
        match($0, /<testcase name="[^"]*"/) { name = substr($0, RSTART + 16, RLENGTH - 17)
            if (match($0, / time="[^"]*"/)) printf "%.1f %s/%s@%s\n", substr($0, RSTART + 7, RLENGTH - 8), suite, name, kind }
    ' "${XML:-$tmp/times}-$kind.xml" >>"$tmp/seconds" 2>/dev/null
    if [ $rc -ne 0 ] && ! grep -q '^FAILED' "$tmp/$kind.results"; then
        echo "FAILED $runner (exit $rc without a failing test)" >>"$tmp/results"
    fi
    [ -s "$tmp/$kind.results" ] || echo "FAILED $runner (no test ran)" >>"$tmp/results"
    echo "   $(grep -c '^PASSED' "$tmp/$kind.results") passed in $((SECONDS - start)) s"
}
for kind in f32 f64 simt; do
    case " $parts " in *" $kind "*) ;; *) continue ;; esac
    if [ $kind = simt ]; then
        criterion "$build/simt/tests-f32" "$build/simt/kvsmith" simt
    else
        criterion "$build/tests-$kind" "$KVSMITH" $kind
    fi
done
# Suites that compare values of whole models, layers or runs, with every instruction set below the processor's best, which
# f32 has run, and with AMX where it can be emulated. Those of single ops (ops, acts, bf16, recur, tiles) go through all
# op tables by themselves. A pass is 65 s of processor time, a sixth of it extend and a sixth train; dist and dist_save,
# whose arithmetic is that of train, would be 40 s more.
isa_suites='@(@(aqua*|choices|convert|convert_share|dmc|extend|gradient|hf*|kda|levels|linear|minicache|mla|moe|muon|bf16_model|palu*|session|sft_train|stages|task_train|teacher|train|uptrain|yoco)/*|finetune/gradients*)'
case " $parts " in *" isa "*)
    sets=$("$build/kvsmith" device --isa none 2>&1 | sed -n 's/.*expected one of: auto, //p' | tr -d ,)
    best=${sets##* }
    [ -n "$sets" ] || echo "FAILED isa (no list of instruction sets)" >>"$tmp/results"
    case $best in avx512bf16) sets="$sets amx_emulated" ;; esac
    for ISA in $sets; do
        [ "$ISA" != "$best" ] || continue
        FILTER=${FILTER:-$isa_suites} TEST_ISA=$ISA criterion "$build/tests-f32" "$(forced "$build/kvsmith")" "f32-$ISA"
    done ;;
esac

script() { # runs one, leaves NAME.log, and its status and seconds in NAME.rc
    local name start=$SECONDS
    name=$(basename "$1" .sh)
    timeout "$(patience 900)" "./$1" >"$tmp/$name.log" 2>&1 </dev/null &
    echo $! >>"$tmp/scripts"
    wait $!
    echo "$? $((SECONDS - start))" >"$tmp/$name.rc"
}
case " $parts " in *" sh "*)
    # One thread each. The ten longest come first, then the largest. A script waits for half of its time (ranks that
    # hang, signals, files that are written), so that five keep two processors busy.
    longest='compare faults resume compare_marks retrofit stages train launch async launch_train'
    lanes=$((jobs * 2 + jobs / 2))
    for t in $(printf 'tests/cli/test_%s.sh\n' $longest) $(ls -S tests/cli/test_*.sh | grep -vxF "$(printf 'tests/cli/test_%s.sh\n' $longest)"); do
        [ -x "$t" ] || continue
        while [ "$(jobs -rp | wc -l)" -ge "$lanes" ]; do wait -n; done
        script "$t" &
    done
    wait
    for t in tests/cli/test_*.sh; do
        [ -x "$t" ] || continue
        name=$(basename "$t" .sh)
        read -r rc seconds <"$tmp/$name.rc"
        echo "== $t"
        grep -v '^ok ' "$tmp/$name.log" | head -n 100
        awk -v f="$name" '/^ok /{ print "PASSED", f "/" $2 } /^not ok /{ sub(/:$/, "", $3); print "FAILED", f "/" $3 }
            /^skip /{ sub(/:$/, "", $2); print "SKIPPED", f "/" $2 }' "$tmp/$name.log" >"$tmp/sh.results"
        if [ "$rc" -ne 0 ] && ! grep -q '^FAILED' "$tmp/sh.results"; then
            echo "FAILED $name (exit $rc)" >>"$tmp/sh.results"
        fi
        [ -s "$tmp/sh.results" ] || echo "FAILED $name (no case reported)" >>"$tmp/sh.results"
        cat "$tmp/sh.results" >>"$tmp/results"
        echo "$seconds $name" >>"$tmp/seconds"
        echo "   $(grep -c '^PASSED' "$tmp/sh.results") passed in $seconds s"
    done ;;
esac

# A skip without a reason is a failure.
sed -i 's/^SKIPPED/WITHOUT/' "$tmp/results"
while read -r name; do
    if grep -q "^${name%@*}[[:space:]][[:space:]]*[^[:space:]]" tests/skips.txt; then
        echo "SKIPPED $name"
    else
        echo "FAILED $name (skipped without a reason in tests/skips.txt)"
    fi
done < <(sed -n 's/^WITHOUT //p' "$tmp/results") >>"$tmp/skips"
cat "$tmp/skips" >>"$tmp/results"

grep '^FAILED' "$tmp/results"
grep '^SKIPPED' "$tmp/results" | while read -r _ name; do
    echo "SKIPPED $name: $(sed -n "s|^${name%@*}[[:space:]][[:space:]]*||p" tests/skips.txt | head -n 1)"
done
echo "slowest, in seconds: $(LC_ALL=C sort -rg "$tmp/seconds" 2>/dev/null | head -n 10 | sed 's/$/,/' | tr '\n' ' ' | sed 's/, $//')"
passed=$(grep -c '^PASSED' "$tmp/results")
failed=$(grep -c '^FAILED' "$tmp/results")
skipped=$(grep -c '^SKIPPED' "$tmp/results")
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
