# targets.sh: the fuzz targets, for tests/fuzz.sh, tests/fuzz_long.sh and tests/cli/test_fuzz_turns.sh, which source it from the
# repository's root. A target is tests/fuzz/NAME.c, a libFuzzer entry (LLVMFuzzerTestOneInput) for one parser, with seeds in
# tests/fuzz/NAME/. Its first comment ends with `Sources:` and the files that it tests, as patterns of the shell.

fuzz_names() { # every target
    local f
    for f in tests/fuzz/*.c; do basename "$f" .c; done
}
fuzz_sources() { # `NAME PATTERN` of every target and source
    awk 'FNR == 1 { n = split(FILENAME, part, "/"); name = part[n]; sub(/\.c$/, "", name); head = 1; on = 0 }
        !head { next }
        /\*\// { head = 0 }
        !on && !sub(/.*Sources:/, "") { next }
        { on = 1; sub(/\*\/.*/, ""); for (i = 1; i <= NF; i++) if ($i != "*") print name, $i }' tests/fuzz/*.c
}

# Files on stdin, one a line: prints the targets to which one of them belongs.
fuzz_touched() {
    local file name pattern seen=' ' lines
    lines=$(for name in tests/fuzz/*.c; do
        name=${name##*/} name=${name%.c}
        printf '%s\n' "$name tests/fuzz/fuzz.h" "$name tests/fuzz/$name.c" "$name tests/fuzz/$name/*"
    done; fuzz_sources)
    while IFS= read -r file; do
        while read -r name pattern; do
            # shellcheck disable=SC2053 # a pattern
            [[ $file == $pattern && $seen != *" $name "* ]] && seen+="$name " && echo "$name"
        done <<<"$lines"
    done | sort
}

fuzz_git() { git -c safe.directory='*' "$@" 2>/dev/null; }
# The commit before the changes at hand: FUZZ_BASE; or where HEAD left the branch it is to land on; or, when it has landed,
# the first parent of a merge, else FUZZ_BACK commits ago (or the first commit). Fails where git does not know, as in a
# checkout without git or without history.
FUZZ_BACK=10
fuzz_base() {
    local head base name back
    head=$(fuzz_git rev-parse HEAD) && fuzz_git ls-files --error-unmatch tests/fuzz/targets.sh >/dev/null || return 1
    if [ -n "${FUZZ_BASE-}" ]; then
        fuzz_git rev-parse --verify "$FUZZ_BASE^{commit}"
        return
    fi
    for name in origin/HEAD origin/main origin/master; do
        base=$(fuzz_git merge-base HEAD "$name") && [ "$base" != "$head" ] && echo "$base" && return
    done
    fuzz_git rev-parse --verify 'HEAD^2' >/dev/null && fuzz_git rev-parse HEAD^1 && return
    [ "$(fuzz_git rev-parse --is-shallow-repository)" = false ] || return 1
    back=$(fuzz_git rev-list --first-parent --count HEAD) || return 1
    back=$((back - 1 < FUZZ_BACK ? back - 1 : FUZZ_BACK))
    [ $back -gt 0 ] && fuzz_git rev-parse "HEAD~$back"
}
# The targets whose files changed since then, uncommitted changes and new files among them. Fails like fuzz_base.
fuzz_changed() {
    local base
    base=$(fuzz_base) || return 1
    { fuzz_git diff --name-only "$base" -- && fuzz_git ls-files --others --exclude-standard; } | fuzz_touched
}

# Turns of a run of CI: prints `NAME SECONDS` for every target. Arguments: the seconds of a whole turn, of all changed targets
# together (0: what changed is not looked at), every how many-th target gets a whole turn where nothing changed.
#   something changed     its targets share those seconds, and every other gets a quarter of a turn
#   nothing changed       every n-th target gets a whole turn, drawn by the commit's hash, and the rest a quarter
#   git does not know     every target gets a whole turn
fuzz_turns() {
    local whole=$1 together=$2 every=$3 short=$((($1 + 3) / 4)) changed='' known=1 hash n=0 name s
    [ "$together" -eq 0 ] || changed=$(fuzz_changed) || known=0
    hash=$(fuzz_git rev-parse --short=7 HEAD) || known=0
    for name in $(fuzz_names); do
        n=$((n + 1)) s=$short
        if [ $known = 0 ]; then
            s=$whole
        elif [ -n "$changed" ]; then
            [[ $'\n'$changed$'\n' != *$'\n'$name$'\n'* ]] || s=$((together / $(wc -l <<<"$changed")))
            s=$((s > short ? s : short))
        elif [ $(((n + 16#$hash) % every)) = 0 ]; then
            s=$whole
        fi
        echo "$name $s"
    done
}

# The library with the fuzzer's and the sanitizers' instruments, in BUILD/fuzz. Fails with 77 where clang has no libFuzzer.
fuzz_flags="-fopenmp=libgomp -w" # clang leaves OpenMP's pragmas alone with gcc's library, and warns about what is meant for gcc
fuzz_library() {
    local to=$1/fuzz
    mkdir -p "$to" || return 1
    echo 'int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n) { return !p && n; }' >"$to/probe.c"
    if ! clang -fsanitize=fuzzer "$to/probe.c" -o "$to/probe" 2>/dev/null; then
        echo "fuzz: needs clang, libclang-rt-dev and libomp-dev (./setup ci)" >&2
        return 77
    fi
    # clang takes minutes to optimise and instrument kernels, which no parser calls: they are compiled without either.
    make --no-print-directory "CC=$(command -v ccache >/dev/null && echo ccache) clang" BUILD="$to" CFLAGS="$fuzz_flags -O0" "$to"/f32/ops/cpu/gemm_bf16.amx.o \
        "$to"/f32/ops/cpu/{cpu,gemm_bf16}.{baseline,avx2,avx512,avx512bf16}.o >"$to/log" 2>&1
    make --no-print-directory "CC=$(command -v ccache >/dev/null && echo ccache) clang" BUILD="$to" SAN=1 CFLAGS="-fsanitize=fuzzer-no-link $fuzz_flags" "$to/f32/lib.a" \
        >"$to/log" 2>&1 || { tail -n 20 "$to/log"; return 1; }
}
fuzz_build() { # build folder, target: BUILD/fuzz/NAME
    clang -std=gnu11 -g -O1 -D_GNU_SOURCE -I. $fuzz_flags -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
        "tests/fuzz/$2.c" "$1/fuzz/f32/lib.a" -ldnnl -lyaml -ljansson -lpcre2-8 -lutf8proc -lz -lzstd -lsodium -lm -o "$1/fuzz/$2"
}
fuzz_limits="-max_len=16384 -timeout=10 -rss_limit_mb=1024 -close_fd_mask=3" # of one input
