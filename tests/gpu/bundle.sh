#!/bin/bash
# bundle.sh DIR PROGRAM TESTS RUN [ORACLE]: everything that gpu-check needs on a machine where nothing is installed, CUDA's
# own libraries and glibc excepted, in DIR and, packed, in DIR.tar.gz, which is what travels. Says how large they are and
# which glibc is needed; fails where the packed one has 60 MB.
set -eu
dir=$1 program=$2 tests=$3 run=$4 oracle=${5-}
rm -rf "$dir" "$dir.tar.gz"
mkdir -p "$dir/bin" "$dir/lib" "$dir/data" "$dir/tests/golden" "$dir/tests/gpu"
cp "$program" "$dir/bin/kvsmith"
cp "$tests" "$dir/bin/tests"
cp "$run" "$dir/run"
strip "$dir/bin/kvsmith" "$dir/bin/tests" "$dir/run"
cp -r configs "$dir/configs"
cp -r tests/gpu/models "$dir/tests/gpu/models"
cp data/kjv.txt "$dir/data/"
cp tests/golden/distill.txt tests/golden/codecs.txt "$dir/tests/golden/"
cp tests/gpu/peer.py tests/gpu/lease.sh "$dir/"
[ -z "$oracle" ] || cp "$oracle" "$dir/oracle.bin"
# What the loader takes for the programs here goes along, but for what belongs to the C library or to CUDA.
for f in "$dir/bin/kvsmith" "$dir/bin/tests" "$dir/run"; do
    ldd "$f" | awk '/not found/ { print "missing " $1; next } $2 == "=>" { print $3 }'
done | sort -u | while read -r so; do
    case $(basename "$so") in
    missing*) echo "bundle: $so" >&2 && exit 1 ;;
    libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libresolv.so* | ld-linux* | libcuda* | libcublas* | libcudnn* | libnccl*) ;;
    *) cp -L "$so" "$dir/lib/" ;;
    esac
done
# The runtimes of C++ and OpenMP of a newer system serve older programs, not the other way round; these are looked at last.
needs=$(for f in "$dir"/bin/* "$dir"/run "$dir"/lib/*; do objdump -T "$f" 2>/dev/null; done |
    grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1)
echo "$needs" >"$dir/needs-glibc.txt"
tar -C "$(dirname "$dir")" -czf "$dir.tar.gz" "$(basename "$dir")"
size=$(du -sm "$dir" | cut -f1) packed=$(du -sm "$dir.tar.gz" | cut -f1)
echo "$dir.tar.gz: $packed MB ($size MB unpacked), $(ls "$dir/lib" | wc -l) libraries, needs ${needs/_/ } or later, x86-64"
[ "$packed" -lt 60 ]
