#!/bin/bash
# Make the folder that `make arm-check ARM_ROOT=DIR` wants: headers and libraries of Debian's arm64, in the release that
# this system's apt sources name, unpacked into DIR. Nothing is installed or configured here and nothing of DIR is run;
# no root is needed. Some 100 MB are fetched.
set -eu
[ $# -eq 1 ] || { echo "usage: tests/arm/root.sh DIR" >&2; exit 2; }
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || { echo "root.sh: needs apt-get and dpkg-deb" >&2; exit 1; }
mkdir -p "$1/.apt/lists/partial" "$1/.apt/archives/partial"
root=$(realpath "$1") apt=$(realpath "$1")/.apt
: >"$apt/status"
arm() {
    apt-get -q -y -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$apt" -o Dir::State::status="$apt/status" \
        -o Dir::Cache="$apt" -o APT::Sandbox::User="$(id -un)" "$@" >"$apt/log" 2>&1 || { tail -n 5 "$apt/log" >&2; exit 1; }
}
here=$(dirname "$0")
# what ./setup installs to build with, less the tools; libgomp is what the program needs of a compiler
want=$(sed -n 's/^build="\(.*\)"$/\1/p' "$here/../../setup" | tr ' ' '\n' | grep -v -x -e gcc -e make)
arm update
arm install --download-only --no-install-recommends $want libgomp1
for deb in "$apt"/archives/*.deb; do dpkg-deb -x "$deb" "$root"; done
# links that the packages' own scripts would make
lib=$root/usr/lib/aarch64-linux-gnu
for f in libblas.so.3 liblapack.so.3; do
    [ ! -e "$lib/openblas-openmp/$f" ] || ln -sf "openblas-openmp/$f" "$lib/$f"
done
rm -rf "$apt"
du -sh "$root"
