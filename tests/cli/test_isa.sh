#!/bin/bash
# The instruction set by name (--isa, run.isa): what the program has, what it refuses, and whether ranks and the runs of a
# comparison get it.
. tests/lib/cases.sh
has=$("$prog" device --isa none 2>&1 | sed -n 's/.*expected one of: auto, //p' | tr -d ,)
least=${has%% *}
[ -n "$least" ] || wrong "device --isa none: $("$prog" device --isa none 2>&1)"
for isa in $has auto; do
    said=$("$prog" device --isa "$isa" 2>"$tmp/err" | awk '$1 == "isa" { print $2 }')
    [ -s "$tmp/err" ] && wrong "$isa: $(cat "$tmp/err")"
    case $isa:$said in auto:* | amx:avx512bf16+amx | "$said:$said") ;; *) wrong "--isa $isa: device says $said" ;; esac
done
verdict by-name

refused() { # PART COMMAND...
    local part=$1 s
    shift
    "$prog" "$@" >"$tmp/out" 2>"$tmp/err"
    s=$?
    [ $s -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ "$(wc -m <"$tmp/err")" -le 301 ] ||
        wrong "$*: exit $s, $(cat "$tmp/out" "$tmp/err")"
    grep -qF -e "$part" "$tmp/err" || wrong "$*: expected '$part' in: $(cat "$tmp/err")"
}
other=neonbf16
[ "$least" = neon ] && other=avx2
tiny="configs/tiny-gqa.yaml --threads 1 train.steps=3 train.batch=2 train.micro_batch=1 train.eval_every=0 train.save_every=0 optim.warmup=0"
for name in avx9 $other; do
    refused "isa $name: unknown to this build; expected one of: auto, $least" info $tiny --isa $name
    refused "expected one of: auto, $least" train $tiny run.dir="$tmp/no" run.isa=$name
done
# the largest that the build knows: here, or not on this processor
for name in amx avx512; do
    case " $has " in *" $name "* | " neon "*) continue ;; esac
    refused "isa $name: this processor does not have it; expected one of: auto, $least" device --isa $name
done
refused "isa $least: only device cpu has one" train $tiny run.dir="$tmp/no" --isa "$least" --device cuda
refused "isa $least: only device cpu has one" device --isa "$least" --device cuda
refused "options of the ranks go after the command" launch --isa "$least" -n 2 -- train $tiny run.dir="$tmp/no"
[ -e "$tmp/no" ] && wrong "a refusal made $(ls -A "$tmp/no")"
verdict refused

"$prog" train $tiny run.dir="$tmp/one" --isa "$least" >"$tmp/out" 2>&1 || wrong "train: $(cat "$tmp/out")"
grep -q " threads* ($least," "$tmp/out" || wrong "train --isa $least says $(grep threads "$tmp/out")"
grep -qx "  isa: $least" "$tmp/one/config.yaml" || wrong "config.yaml: $(grep isa "$tmp/one/config.yaml")"
"$prog" launch -n 2 -- train $tiny run.dir="$tmp/two" --isa "$least" >"$tmp/out" 2>&1 || wrong "launch: $(cat "$tmp/out")"
grep -q " threads* ($least," "$tmp/out" || wrong "launch: rank 0 says $(grep threads "$tmp/out")"
# another one is no other run
"$prog" train $tiny train.steps=4 run.dir="$tmp/one" --resume auto --isa auto >"$tmp/out" 2>&1 || wrong "resume: $(cat "$tmp/out")"
verdict train

# train.dtype: auto is a matter of the processor, not of a measurement: runs would differ when something else was running
for isa in $has; do
    want=f32
    case $isa in *bf16 | amx) want=bf16 ;; esac
    "$prog" train $tiny train.steps=1 run.dir="$tmp/auto-$isa" --isa "$isa" -q 2>"$tmp/err" || wrong "$isa: $(cat "$tmp/err")"
    grep -qx "  dtype: $want" "$tmp/auto-$isa/last/trainer/config.yaml" ||
        wrong "$isa: expected $want, got $(grep -w '  dtype' "$tmp/auto-$isa/last/trainer/config.yaml")"
done
verdict auto-dtype

own='lrs: [3e-3], set: {optim.warmup: 0}'
"$prog" compare configs/compare-uptrain-ci.yaml --threads 1 --isa "$least" budget.tokens=1280 controls=false dir="$tmp/all" \
    "rows=[{name: mha, $own}, {name: gqa, from: mha, convert: {to: gqa, kv_heads: 3, method: aligned, calib_tokens: 256}, $own}]" \
    >"$tmp/out" 2>&1 || wrong "compare: $(cat "$tmp/out")"
[ "$(grep -lx "  isa: $least" "$tmp/all"/*/lr-*/config.yaml | wc -l)" -eq 2 ] || wrong "runs: $(grep -h ' isa' "$tmp/all"/*/lr-*/config.yaml)"
for f in results speed; do
    grep -q "\"isa\": *\"$least\"" "$tmp/all/$f.json" || wrong "$f.json does not say $least"
done
verdict compare
