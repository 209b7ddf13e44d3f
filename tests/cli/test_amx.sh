#!/bin/bash
# The form of the bf16 products for AMX, as it was compiled: no machine need have AMX for that. What it computes is proved on
# an emulation of its instructions (tests/lib/tiles.h, test_tiles.c), which must not be in the program.
. tests/lib/cases.sh
lib=$build/f32/lib.a
if ! ar t "$lib" | grep -qx 'gemm_bf16.avx512.o'; then
    echo "skip instructions: AMX is of x86-64"
    exit 0
fi
objdump -d --no-show-raw-insn "$lib" | awk '
    /^[^ ]+\.o: / { file = $1; sub(/:$/, "", file) }
    $2 ~ /^(tdpbf16ps|tileloadd|tilestored|tilezero|ldtilecfg|tilerelease)$/ { print file, $2 }
' | sort | uniq -c >"$tmp/found"
for i in tdpbf16ps tileloadd tilestored tilezero ldtilecfg tilerelease; do
    grep -q " gemm_bf16.amx.o $i\$" "$tmp/found" || wrong "gemm_bf16.amx.o has no $i"
done
grep -v ' gemm_bf16.amx.o ' "$tmp/found" >>"$bad" # what another part must not have
many() { awk -v i="$1" '$3 == i { print $1 }' "$tmp/found"; }
[ "$(many ldtilecfg)" = "$(many tilerelease)" ] || wrong "tiles are opened $(many ldtilecfg) times, closed $(many tilerelease) times"
objdump -t "$lib" | grep -i emulated | head -n 3 >>"$bad"
verdict instructions

# A processor without them says so by its instruction set, and nothing on stderr.
if ! grep -qw amx_bf16 /proc/cpuinfo; then
    "$prog" device >"$tmp/out" 2>"$tmp/err" || wrong "kvsmith device: exit $?"
    grep -q amx "$tmp/out" && wrong "$(cat "$tmp/out")"
    cat "$tmp/err" >>"$bad"
fi
verdict device
