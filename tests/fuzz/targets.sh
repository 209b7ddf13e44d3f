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

# The objects of the program that a target may call, in BUILD/fuzz: what the targets' symbols lead to, by the symbols of the
# program's own objects in BUILD; and of the instrumented ones, as far as they are there, whose compiler inlines otherwise.
# All of the program's objects where BUILD does not have the program.
fuzz_objects() { # build folder
    local to=$1/fuzz o all=()
    read -ra all < <(make --no-print-directory -s "BUILD=$1" library-objects) && [ ${#all[@]} -gt 100 ] || return 1
    for o in "${all[@]}"; do
        [ -e "$o" ] || { printf '%s\n' "${all[@]/#"$1"/$to}"; return; }
    done
    { nm -A "${all[@]}"; nm -A "$to"/*.target.o; (shopt -s nullglob && nm -A "${all[@]/#"$1"/$to}"); } 2>/dev/null | awk -v to="$to/" -v from="$1/" '
        { at = index($0, ":"); file = substr($0, 1, at - 1); $0 = substr($0, at + 1); name = $NF; kind = $(NF - 1)
          if (index(file, to) == 1) file = from substr(file, length(to) + 1)
          if (kind == "U") { wants[file] = wants[file] " " name; if (file ~ /\.target\.o$/) todo[++n] = file }
          else if (kind ~ /[TDBRVWCG]/) owner[name] = file }
        END { for (i = 1; i <= n; i++) { k = split(wants[todo[i]], w, " ")
                  for (j = 1; j <= k; j++) if ((o = owner[w[j]]) != "" && !seen[o]++) todo[++n] = o }
              for (o in seen) if (o !~ /\.target\.o$/) print to substr(o, length(from) + 1) }'
}
# The library with the fuzzer's and the sanitizers' instruments, in BUILD/fuzz, and its targets' own objects. Fails with 77
# where clang has no libFuzzer.
fuzz_flags="-fopenmp=libgomp -w" # clang leaves OpenMP's pragmas alone with gcc's library, and warns about what is meant for gcc
fuzz_library() {
    local to=$1/fuzz name objects last='' kernels parsers cc
    cc="$(command -v ccache >/dev/null && echo ccache) clang"
    mkdir -p "$to" || return 1
    echo 'int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n) { return !p && n; }' >"$to/probe.c"
    if ! clang -fsanitize=fuzzer "$to/probe.c" -o "$to/probe" 2>/dev/null; then
        echo "fuzz: needs clang, libclang-rt-dev and libomp-dev (./setup ci)" >&2
        return 77
    fi
    for name in $(fuzz_names); do
        # shellcheck disable=SC2086 # several words
        $cc -std=gnu11 -g -O1 -D_GNU_SOURCE -I. $fuzz_flags -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all \
            -c -o "$to/$name.target.o" "tests/fuzz/$name.c" || return 1
    done
    while objects=$(fuzz_objects "$1" | LC_ALL=C sort) && [ -n "$objects" ] || { echo "fuzz: the objects of the targets are not known"; return 1; }; [ "$objects" != "$last" ]; do
        last=$objects
        # clang takes minutes to optimise and instrument kernels, which no parser calls: they are compiled without either.
        kernels=$(grep '/f32/ops/cpu/' <<<"$objects") parsers=$(grep -v '/f32/ops/cpu/' <<<"$objects")
        # shellcheck disable=SC2086 # file names without blanks
        { [ -z "$kernels" ] || make --no-print-directory "CC=$cc" BUILD="$to" CFLAGS="$fuzz_flags -O0" $kernels; } >"$to/log" 2>&1 &&
            make --no-print-directory "CC=$cc" BUILD="$to" SAN=1 CFLAGS="-fsanitize=fuzzer-no-link $fuzz_flags" $parsers >"$to/log" 2>&1 ||
            { tail -n 20 "$to/log"; return 1; }
    done
    # shellcheck disable=SC2086
    rm -f "$to/parsers.a" && ar rcs "$to/parsers.a" $objects
}
fuzz_build() { # build folder, target: BUILD/fuzz/NAME
    clang -g $fuzz_flags -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
        "$1/fuzz/$2.target.o" "$1/fuzz/parsers.a" -ldnnl -lyaml -ljansson -lpcre2-8 -lutf8proc -lz -lzstd -lsodium -lm -o "$1/fuzz/$2"
}
fuzz_limits="-max_len=16384 -timeout=10 -rss_limit_mb=1024 -close_fd_mask=3" # of one input
