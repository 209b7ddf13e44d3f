#!/bin/bash
# Fuzz every tests/fuzz/NAME.c, each a libFuzzer entry (LLVMFuzzerTestOneInput) for one parser, for $2 seconds (default
# 20) under ASan and UBSan, from the files of tests/fuzz/NAME/ on where there are some. An input that fails is left in
# BUILD/fuzz/. Exit status 77: no clang with libFuzzer here.
# FUZZ_TURNS=N in the environment: only every N-th target gets that long, and the rest a quarter of it. The commit's hash draws
# which, so that over commits all have their turn. Where no commit is known all of them get it whole.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}/fuzz
seconds=${2:-20}
mkdir -p "$build" || exit 1
echo 'int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n) { return !p && n; }' >"$build/probe.c"
if ! clang -fsanitize=fuzzer "$build/probe.c" -o "$build/probe" 2>/dev/null; then
    echo "fuzz: needs clang, libclang-rt-dev and libomp-dev (./setup ci)" >&2
    exit 77
fi
# clang leaves OpenMP's pragmas alone with gcc's library, and warns about what is meant for gcc: hence -w. Its
# omp.h comes with libomp-dev.
flags="-fopenmp=libgomp -w"
# clang takes minutes to optimise and instrument kernels, which no parser calls: they are compiled without either.
make --no-print-directory CC=clang BUILD="$build" CFLAGS="$flags -O0" "$build"/f32/ops/cpu/gemm_bf16.amx.o \
    "$build"/f32/ops/cpu/{cpu,gemm_bf16}.{baseline,avx2,avx512,avx512bf16}.o >"$build/log" 2>&1
make --no-print-directory CC=clang BUILD="$build" SAN=1 CFLAGS="-fsanitize=fuzzer-no-link $flags" "$build/f32/lib.a" \
    >"$build/log" 2>&1 || { tail -n 20 "$build/log"; exit 1; }
turns=${FUZZ_TURNS:-1}
turn=$(git -c safe.directory='*' rev-parse --short=7 HEAD 2>/dev/null) || turns=1
turn=$((16#${turn:-0}))
one() { # a target's file, seconds
    name=$(basename "$1" .c)
    clang -std=gnu11 -g -O1 -D_GNU_SOURCE -I. $flags -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all "$1" \
        "$build/f32/lib.a" -ldnnl -lyaml -ljansson -lpcre2-8 -lutf8proc -lz -lzstd -lsodium -lm -o "$build/$name" || return 1
    seeds=$build/$name.seeds
    rm -rf "$seeds" && mkdir -p "$seeds"
    [ -d "tests/fuzz/$name" ] && cp "tests/fuzz/$name"/* "$seeds"
    if "$build/$name" -max_total_time="$2" -max_len=16384 -timeout=10 -rss_limit_mb=1024 -close_fd_mask=3 \
        -artifact_prefix="$build/$name-" "$seeds" >"$build/$name.log" 2>&1; then
        echo "ok $name, $2 s: $(grep -o 'Done [0-9]* runs' "$build/$name.log" | tail -n 1)"
    else
        grep -vE '^#[0-9]+\s+(NEW|REDUCE|pulse)' "$build/$name.log" | tail -n 30
        echo "not ok $name: see $build/$name.log"
        return 1
    fi
}
bad=0 running=0 number=0
for f in tests/fuzz/*.c; do # as many side by side as there are processors
    [ -e "$f" ] || { echo "fuzz: tests/fuzz is empty" >&2; exit 1; }
    if [ $running -ge "$(nproc)" ]; then
        wait -n || bad=1
        running=$((running - 1))
    fi
    number=$((number + 1))
    one "$f" "$(((number + turn) % turns == 0 ? seconds : (seconds + 3) / 4))" &
    running=$((running + 1))
done
while [ $running -gt 0 ]; do
    wait -n || bad=1
    running=$((running - 1))
done
exit $bad
