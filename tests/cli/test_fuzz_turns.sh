#!/bin/bash
# Which parsers CI fuzzes for how long (tests/fuzz/targets.sh): every target says what it tests, a change is found, and long
# runs add up. Nothing is compiled here.
. tests/lib/cases.sh
. tests/fuzz/targets.sh
unset FUZZ_BASE
same() { [ "$2" = "$3" ] || wrong "$1: '${2//$'\n'/ }', expected '${3//$'\n'/ }'"; }

# ---- every target has its sources, and they are there
sources=$(fuzz_sources)
while read -r name pattern; do
    compgen -G "$pattern" >/dev/null || wrong "tests/fuzz/$name.c: Sources: $pattern is no file"
done <<<"$sources"
for name in $(fuzz_names); do
    [[ $'\n'$sources == *$'\n'"$name "* ]] || wrong "tests/fuzz/$name.c has no 'Sources:' at the end of its first comment"
    compgen -G "tests/fuzz/$name/*" >/dev/null || wrong "tests/fuzz/$name/ has no seeds"
done
[ "$(fuzz_names | wc -l)" -ge 16 ] || wrong "targets: $(fuzz_names | tr '\n' ' ')"
verdict sources

# ---- a file's targets
touched() { printf '%s\n' "$@" | fuzz_touched | tr '\n' ' '; }
for name in $(fuzz_names); do
    for file in "tests/fuzz/$name.c" "tests/fuzz/$name/a-new-seed" "$(sed -n "s/^$name //p" <<<"$sources" | head -n 1 | sed 's/\[ch\]/c/; s/\*//')"; do
        [[ " $(touched "$file")" == *" $name "* ]] || wrong "$file does not touch $name: $(touched "$file")"
    done
done
same 'an index' "$(touched data/indexed.c)" 'llmc megatron '
same 'two files' "$(touched train/report/events.h README.md ops/tuning.c)" 'events tuning '
same 'fuzz.h' "$(touched tests/fuzz/fuzz.h)" "$(fuzz_names | tr '\n' ' ')"
same 'unknown files' "$(touched README.md no/such/file.c 'name with blanks' data/indexed.cc xdata/indexed.c '')" ''
same 'no file' "$(fuzz_touched </dev/null)" ''
verdict touched

# ---- turns
all=$(fuzz_names)
turns() { # what changed, or unknown; arguments
    local given=$1
    shift
    (
        fuzz_git() { echo 0000003; }
        fuzz_changed() { [ "$given" != unknown ] && printf "%s" "$given"; }
        fuzz_turns "$@"
    )
}
at() { sed -n "s/^$1 //p" <<<"$got"; }
got=$(turns 'megatron' 20 60 4)
same 'one changed' "$(at megatron) $(at rendezvous)" '60 5'
got=$(turns $'llmc\nmegatron\ntuning' 20 60 4)
same 'three changed' "$(at llmc) $(at megatron) $(at tuning) $(at chat)" '20 20 20 5'
got=$(turns "$all" 20 60 4)
same 'all changed' "$(cut -d' ' -f2 <<<"$got" | sort -u)" 5
got=$(turns unknown 20 60 4)
same 'unknown' "$(cut -d' ' -f2 <<<"$got" | sort -u)" 20
got=$(turns '' 20 60 4)
same 'nothing changed' "$(grep -c ' 20$' <<<"$got") $(grep -c ' 5$' <<<"$got")" "$((($(wc -l <<<"$all") + 3) / 4)) $(($(wc -l <<<"$all") * 3 / 4))"
got=$(turns 'megatron' 20 0 1)
same 'what changed is not looked at' "$(cut -d' ' -f2 <<<"$got" | sort -u)" 20
same 'every target' "$(cut -d' ' -f1 <<<"$got")" "$all"
verdict turns

# ---- what git knows, in repositories of its own
if command -v git >/dev/null; then
    g() { git -c safe.directory='*' -c user.name=a -c user.email=a@b -c commit.gpgsign=false -c init.defaultBranch=main "$@" >/dev/null 2>>"$tmp/git.err" || wrong "git $*: $(tail -n 1 "$tmp/git.err")"; }
    hash() { git -c safe.directory='*' rev-parse "$1" 2>/dev/null; }
    mkdir -p "$tmp/repo/data" && cp -r --parents tests/fuzz "$tmp/repo" && cd "$tmp/repo" || exit 1
    fuzz_changed >"$tmp/out" && wrong "without git: $(cat "$tmp/out")"
    g init . && g add . && g commit -m one
    fuzz_changed >"$tmp/out" && wrong "with a single commit: $(cat "$tmp/out")"
    echo 1 >data/indexed.c && g add . && g commit -m two
    same 'the last commit' "$(fuzz_changed | tr '\n' ' ')" 'llmc megatron '
    echo 1 >data/jsonl.h # not yet known to git
    same 'and a new file' "$(fuzz_changed | tr '\n' ' ')" 'chat choices llmc megatron '
    g add . && g commit -m three
    for ((i = 0; i < FUZZ_BACK; i++)); do echo $i >README.md && g add . && g commit -m more; done
    same 'long ago' "$(fuzz_changed)" ''
    same 'FUZZ_BASE' "$(FUZZ_BASE=HEAD~$((FUZZ_BACK + 1)) fuzz_changed | tr '\n' ' ')" 'chat choices '
    FUZZ_BASE=nothing fuzz_changed >"$tmp/out" && wrong "FUZZ_BASE=nothing: $(cat "$tmp/out")"
    # a branch that is to land: what it changed since it left main, however many commits it has
    g update-ref refs/remotes/origin/main HEAD && base=$(hash HEAD)
    mkdir -p ops && echo 1 >ops/tuning.c && g add . && g commit -m four
    for ((i = 0; i <= FUZZ_BACK; i++)); do echo x$i >README.md && g add . && g commit -m more; done
    same 'a branch' "$(fuzz_base)" "$base"
    same 'its changes' "$(fuzz_changed)" tuning
    # it has landed by a merge
    g checkout -b other "$base" && echo 2 >other && g add . && g commit -m five && base=$(hash HEAD)
    g merge --no-ff -m merge main && g update-ref refs/remotes/origin/main HEAD
    same 'a merge' "$(fuzz_base) $(fuzz_changed)" "$base tuning"
    # without history
    for depth in 1 3; do
        git -c safe.directory='*' clone -q --depth $depth --branch main "file://$tmp/repo" "$tmp/depth$depth" 2>>"$tmp/git.err" &&
            cd "$tmp/depth$depth" || wrong "no clone: $(tail -n 1 "$tmp/git.err")"
        fuzz_changed >"$tmp/out" && wrong "a clone of depth $depth: $(cat "$tmp/out")"
    done
    cd "$OLDPWD" || exit 1
fi
verdict git
