#!/bin/bash
# spills.sh NVCC DIR ARCH... -- FILE.cu...: compile every file for every architecture and say what each kernel takes. Fails
# where one does not compile, has registers spilled to memory, or takes more of them than a multiprocessor has for the
# largest block that it is launched in (blocks.h). Needs no device. Prints the kernels that take the most registers.
set -u
nvcc=$1 dir=$2
shift 2
archs=()
while [ "$1" != -- ]; do archs+=("$1") && shift; done
shift
mkdir -p "$dir" || exit 1
bad=0
: >"$dir/all"
for f; do
    for a in "${archs[@]}"; do
        out=$dir/$(basename "$f" .cu).sm_$a
        if ! "$nvcc" -std=c++17 -O3 "-arch=sm_$a" --resource-usage -Xcompiler -Wall,-Wextra,-Werror -I. -cubin -o "$out.cubin" "$f" >"$out.txt" 2>&1; then
            cat "$out.txt"
            echo "not ok $f sm_$a: does not compile"
            bad=1
            continue
        fi
        # "Compiling entry function 'NAME'", then "... N bytes spill stores, N bytes spill loads", then "Used N registers".
        awk -v f="$f" -v a="$a" '
            /Compiling entry function/ { split($0, q, "\047"); name = q[2] }
            /spill stores/ { for (i = 1; i < NF; i++) if ($i == "bytes" && $(i + 1) == "spill") spill += $(i - 1) }
            /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); print substr($0, RSTART + 5, RLENGTH - 5), spill + 0, f, "sm_" a, name; spill = 0 }
        ' "$out.txt" >"$out.use"
        [ -s "$out.use" ] || ! grep -q __global__ "$f" || { echo "not ok $f sm_$a: nvcc says nothing of its kernels" && bad=1; }
        # Registers are handed out eight at a time, to a warp.
        awk -v blocks="$(dirname "$0")/blocks.h" '
            BEGIN { FS = "[(, )]+"; while ((getline <blocks) > 0) if ($1 == "LARGE_BLOCK") most[length($2) $2] = $3; FS = " " }
            { n = 256; for (k in most) if (index($5, k)) n = most[k]
              r = int(($1 + 7) / 8) * 8
              if (r * n > 65536) { print "not ok", $3, $4 ":", $5, "takes", r, "registers in blocks of", n, "threads: at most 65536 in all"; bad = 1 } }
            END { exit bad }' "$out.use" || bad=1
        awk '$2 > 0 { print "not ok", $3, $4 ":", $5, "spills", $2, "bytes"; bad = 1 } END { exit bad }' "$out.use" || bad=1
        cat "$out.use" >>"$dir/all"
    done
done
sort -rn "$dir/all" | head -n 5 | awk '{ print $1, "registers:", $5, "(" $3 ",", $4 ")" }'
echo "$(wc -l <"$dir/all") kernels compiled, $(awk '$2 > 0' "$dir/all" | wc -l) with spills"
exit $bad
