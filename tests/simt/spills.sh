#!/bin/bash
# spills.sh NVCC DIR ARCH... -- FILE.cu...: compile every file for every architecture and say what each kernel takes. Fails
# where one does not compile, has registers spilled to memory, or takes more of them than a multiprocessor has for the
# largest block that it is launched in (blocks.h). Needs no device. Prints the kernels that take the most registers. As many
# compilers as processors run at a time, the largest files first. A file is not compiled again as long as DIR holds its
# result by the same compiler, from the same text and headers.
set -u
nvcc=$1 dir=$2
shift 2
archs=()
while [ "$1" != -- ]; do archs+=("$1") && shift; done
shift
mkdir -p "$dir" || exit 1
blocks=$(dirname "$0")/blocks.h
flags=(-std=c++17 -O3 --resource-usage -Xcompiler "-Wall,-Wextra,-Werror" -I.)
version=$("$nvcc" --version) || exit 1
# What a result depends on: the compiler, how it is called, and the files of $1 (a rule for make).
state() { # dependencies, architecture
    local files
    read -ra files < <(sed 's/^[^:]*://; s/\\$//' "$1" | tr '\n' ' ')
    { echo "$version" "$nvcc" "${flags[@]}" "$2" && cat "$0" "$blocks" "${files[@]}"; } 2>&1 | sha256sum
}
compile() { # file, architecture: leaves OUT.use, or OUT.bad with what is wrong
    local f=$1 a=$2 out
    out=$dir/$(basename "$f" .cu).sm_$a
    [ -s "$out.d" ] && [ -e "$out.use" ] && [ "$(state "$out.d" "$a")" = "$(cat "$out.state" 2>/dev/null)" ] && return
    rm -f "$out".{use,bad,state}
    : >"$out.begun"
    if ! "$nvcc" "${flags[@]}" "-arch=sm_$a" -MD -MF "$out.d" -cubin -o "$out.cubin" "$f" >"$out.txt" 2>&1; then
        { cat "$out.txt" && echo "not ok $f sm_$a: does not compile"; } >"$out.bad"
        return
    fi
    # "Compiling entry function 'NAME'", then "... N bytes spill stores, N bytes spill loads", then "Used N registers".
    awk -v f="$f" -v a="$a" '
        /Compiling entry function/ { split($0, q, "\047"); name = q[2] }
        /spill stores/ { for (i = 1; i < NF; i++) if ($i == "bytes" && $(i + 1) == "spill") spill += $(i - 1) }
        /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); print substr($0, RSTART + 5, RLENGTH - 5), spill + 0, f, "sm_" a, name; spill = 0 }
    ' "$out.txt" >"$out.use"
    [ -s "$out.use" ] || ! grep -q __global__ "$f" || { echo "not ok $f sm_$a: nvcc says nothing of its kernels" >"$out.bad" && return; }
    awk '$2 > 0 { print "not ok", $3, $4 ":", $5, "spills", $2, "bytes" }' "$out.use" >"$out.bad"
    # Registers are handed out eight at a time, to a warp.
    awk -v blocks="$blocks" '
        BEGIN { FS = "[(, )]+"; while ((getline <blocks) > 0) if ($1 == "LARGE_BLOCK") most[length($2) $2] = $3; FS = " " }
        { n = 256; for (k in most) if (index($5, k)) n = most[k]
          r = int(($1 + 7) / 8) * 8
          if (r * n > 65536) print "not ok", $3, $4 ":", $5, "takes", r, "registers in blocks of", n, "threads: at most 65536 in all" }
    ' "$out.use" >>"$out.bad"
    local files
    read -ra files < <(sed 's/^[^:]*://; s/\\$//' "$out.d" | tr '\n' ' ')
    # One that was written to while the compiler ran is not known to be what was compiled.
    [ -s "$out.bad" ] || [ -n "$(find "${files[@]}" -newer "$out.begun")" ] || state "$out.d" "$a" >"$out.state"
}
: >"$dir/all"
outs=()
for f in $(ls -S "$@"); do
    for a in "${archs[@]}"; do
        while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
        compile "$f" "$a" &
        outs+=("$dir/$(basename "$f" .cu).sm_$a")
    done
done
wait
bad=0
for out in "${outs[@]}"; do
    [ ! -s "$out.bad" ] || { cat "$out.bad" && bad=1; }
    [ -e "$out.use" ] || [ -s "$out.bad" ] || { echo "not ok $out: no result" && bad=1; }
    [ ! -e "$out.use" ] || cat "$out.use" >>"$dir/all"
done
sort -rn "$dir/all" | head -n 5 | awk '{ print $1, "registers:", $5, "(" $3 ",", $4 ")" }'
echo "$(wc -l <"$dir/all") kernels compiled, $(awk '$2 > 0' "$dir/all" | wc -l) with spills"
exit $bad
