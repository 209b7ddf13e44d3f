#!/bin/bash
# make arm-check ARM_ROOT=DIR: cross-compile for aarch64 against the libraries in DIR (tests/arm/root.sh makes such a folder)
# and run what depends on the processor under qemu-aarch64: the suites below on a processor with all that the emulator
# knows and on one without bf16, then short runs, whose losses are held to those of this machine's own program. Last line:
# N passed, N failed. Usage: tests/arm/check.sh ROOT NATIVE BUILD
set -u
cd "$(dirname "$0")/../.." || exit 1
root=${1-} native=$2 build=$3
cc=${ARM_CC:-aarch64-linux-gnu-gcc}
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
ARM_QEMU=$(command -v "${ARM_QEMU:-qemu-aarch64-static}" || command -v qemu-aarch64)
export ARM_QEMU
missing() {
    echo "arm-check: $1" >&2
    exit 2
}
command -v "$cc" >/dev/null || missing "no $cc; install gcc-aarch64-linux-gnu, or name a compiler by ARM_CC"
[ -n "$ARM_QEMU" ] || missing "no qemu-aarch64-static; install qemu-user-static, or name the program by ARM_QEMU"
[ -n "$root" ] || missing "ARM_ROOT is not set; tests/arm/root.sh DIR makes such a folder, then: make arm-check ARM_ROOT=DIR"
[ -e "$root/usr/lib/aarch64-linux-gnu/libcriterion.so" ] || missing "$root has no libcriterion for aarch64; tests/arm/root.sh $root"
root=$(realpath "$root")

# Those that hang on instructions, rounding, the order in which memory is seen, or processes.
suites=${ARM_SUITES:-base bf16 cache comm_threads extend kda linear moments ops recur rope safetensors}
tests=$(for s in $suites comm; do ls tests/*/test_"$s".c tests/*/test_"$s"_[a-z]*.c 2>/dev/null; done | sort -u | tr '\n' ' ')
mkdir -p "$build"
"$cc" --sysroot="$root" -O1 -Wall -Wextra -Werror -c tests/arm/exec.c -o "$build/exec.o" || exit 1
make --no-print-directory CC="${ARM_CCACHE:+$ARM_CCACHE }$cc" BUILD="$build" CFLAGS="--sysroot=$root" LDFLAGS="--sysroot=$root $build/exec.o" \
    MPI_CFLAGS= MPI_LIBS= TESTS="$tests" "$build/kvsmith" "$build/tests-f32" || exit 1

passed=0 failed=0
tell() { # name, 0 or not, what to say
    if [ "$2" -eq 0 ]; then passed=$((passed + 1)) && echo "ok $1"; else
        failed=$((failed + 1))
        echo "FAILED $1: $3"
    fi
}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
export CHECK_TMP=$tmp QEMU_LD_PREFIX=$root KVSMITH=$build/kvsmith

run() { # processor, filter of Criterion
    local log=$tmp/log
    QEMU_CPU=$1 "$ARM_QEMU" "$build/tests-f32" -j"${ARM_JOBS:-1}" --timeout 1200 --color=never --filter "$2" >"$log" 2>&1
    local rc=$? sum
    grep -v '^\[====\]' "$log" | head -n 100
    sum=$(sed -n 's/.*Passing: \([0-9]*\) | Failing: \([0-9]*\) | Crashing: \([0-9]*\).*/\1 passed, \2 failed, \3 crashed/p' "$log")
    [ $rc -eq 0 ] && [ -n "$sum" ] && [ "${sum%% *}" -gt 0 ]
    tell "suites on $1, $2 (${sum:-no summary})" $? "exit status $rc"
}
all=$(echo "$suites" | tr ' ' '|')
run max "@(${all//|/*|}*)/*"
# The emulator makes up /proc/self/stat, by which ranks know one another's end: two tests of it are left out.
case " $suites " in *" comm_threads "*) run max 'comm/!(killed*|stopped*)' ;; esac
for s in bf16 ops; do
    case " $suites " in *" $s "*) run cortex-a72 "$s*/*" ;; esac
done

# Whole runs. $1: processor, or native; the rest: arguments of the program.
on() {
    local cpu=$1
    shift
    if [ "$cpu" = native ]; then "$native" "$@"; else QEMU_CPU=$cpu "$ARM_QEMU" "$build/kvsmith" "$@"; fi
}
# The emulator makes each BFDOT of hundreds of instructions: as small as a run can be.
small="--threads 2 -q train.batch=2 train.micro_batch=1 data.seq_len=32 train.steps=8 train.eval_every=8 train.eval_tokens=64 train.save_every=4 train.log_every=1"
train() { # processor, folder, configuration, further arguments
    on "$1" train "configs/$3.yaml" $small run.dir="$tmp/$2" "${@:4}"
}
# Losses of every record, beside each other; the largest relative distance is held to $3.
compare() { # folder, folder, bound
    for d in "$1" "$2"; do grep -o '"\(val_\)\?loss":[^,}]*' "$tmp/$d/metrics.jsonl" | cut -d: -f2 >"$tmp/$d.losses"; done
    [ "$(wc -l <"$tmp/$1.losses")" -eq "$(wc -l <"$tmp/$2.losses")" ] || return 1
    paste "$tmp/$1.losses" "$tmp/$2.losses" | awk -v bound="$3" '{ d = ($1 - $2) / $2; if (d < 0) d = -d; if (!(d <= worst)) worst = d }
        END { printf "%d losses, worst distance %.2g of %.2g\n", NR, worst, bound; exit !(NR >= 8 && worst <= bound) }'
}
for c in tiny-gqa tiny-mla tiny-kda; do
    train native native-$c $c train.dtype=f32 && train max arm-$c $c train.dtype=f32 && said=$(compare arm-$c native-$c 1e-4)
    tell "$c, 8 steps in f32 beside this machine's ($said)" $? "losses differ"
done
# bf16, on both processors: each form's own rounding, close to this machine's, and another than f32's. By a text's
# likelihood, not by training, which measures the processor on a product that takes the emulator minutes of BFDOT.
head -c 1500 data/kjv.txt >"$tmp/text"
nll() { on "$1" eval "$tmp/arm-tiny-gqa" ppl --data "$tmp/text" --dtype "$2" --json --threads 1 2>"$tmp/err" | grep -o '"nll":[^,]*' | cut -d: -f2; }
plain=$(nll max f32) here=$(nll native bf16)
for cpu in max cortex-a72; do
    there=$(nll $cpu bf16)
    awk -v a="$there" -v b="$here" -v plain="$plain" 'BEGIN { exit !(a > 0 && b > 0 && a != plain && (a - b) ^ 2 < 1e-8) }'
    tell "eval in bf16 on $cpu ($there nats; here $here, in f32 $plain)" $? "too far, or not in bf16"
    eval "nll_${cpu//-/_}=$there"
done
[ "$nll_max" != "$nll_cortex_a72" ]
tell "BFDOT is another form than plain products" $? "equal numbers"
# A run cut in two ends with the bytes of one that was not.
train max cut tiny-gqa train.dtype=f32 train.steps=4 && train max cut tiny-gqa train.dtype=f32 --resume auto &&
    cmp "$tmp/cut/last/model.safetensors" "$tmp/arm-tiny-gqa/last/model.safetensors" &&
    cmp "$tmp/cut/last/trainer/optimizer.safetensors" "$tmp/arm-tiny-gqa/last/trainer/optimizer.safetensors"
tell "resumed at step 4" $? "other bytes"
# What was trained there is read here, and says the same.
for cpu in max native; do
    on $cpu generate "$tmp/arm-tiny-gqa" --prompt "In the beginning" --max-new 40 --temperature 0 >"$tmp/$cpu.text" 2>"$tmp/err" || cat "$tmp/err"
done
[ "$(wc -c <"$tmp/max.text")" -gt 16 ] && cmp "$tmp/max.text" "$tmp/native.text"
tell "generate" $? "other text"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
