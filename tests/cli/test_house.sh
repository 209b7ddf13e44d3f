#!/bin/bash
# The rules of the house that no compiler checks, and what every command of the program owes its user.
. tests/lib/cases.sh
source=$(find kvsmith.c ops layers model optim data train infer convert tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp' -o -name '*.def')
product=$(echo "$source" | grep -v '^tests/')
# In a work tree that `git worktree add` made, .git is a file.
if [ -e .git ] && command -v git >/dev/null 2>&1 && git -c safe.directory='*' ls-files -co --exclude-standard >"$tmp/all" 2>/dev/null && [ -s "$tmp/all" ]; then :; else
    find . -type f -not -path './.git/*' -not -path "./$build/*" -not -path './build/*' -not -path './runs/*' | sed 's|^\./||' >"$tmp/all"
fi

# Dependencies point down only.
allowed() {
    case $1 in
    ops) echo ops ;;
    optim) echo ops optim ;;
    data) echo ops data ;;
    layers) echo ops layers ;;
    model) echo ops layers data optim model ;;
    infer) echo ops layers model data optim infer ;;
    convert) echo ops layers model data convert ;;
    train) echo ops layers model data optim infer train ;;
    esac
}
for f in $product; do
    floor=${f%%/*}
    may=$(allowed "$floor")
    [ -n "$may" ] || continue
    grep -oE '^[[:space:]]*#[[:space:]]*include "[^"]+"' "$f" | sed 's/.*"\(.*\)"/\1/' | while read -r inc; do
        to=$(realpath -m --relative-to=. "$(dirname "$f")/$inc")
        [ -e "$to" ] || to=$inc # found by -I.
        case " $may " in *" ${to%%/*} "*) ;; *) echo "$f includes $to; $floor may see: $may" ;; esac
    done
done >>"$tmp/bad"
verdict include-direction

for f in $source $(ls tests/*.sh tests/*/*.sh .ci/run setup 2>/dev/null); do
    n=$(wc -l <"$f")
    [ "$n" -le 700 ] || echo "$f has $n lines, at most 700"
done >>"$tmp/bad"
verdict file-length

# Settings are no variables of the environment; who is which rank of a run is, where CUDA's libraries lie, and whether
# every kernel is waited for.
grep -nEw 'getenv|secure_getenv|setenv|putenv|environ' $product /dev/null |
    grep -vE '^kvsmith.c:.*GOMP_SPINCOUNT|^train/(comm/launch|cmd_train|comm/cmd_bench_comm|comm/cmd_ranked)\.c:.*environ\b|^ops/cuda/host/open\.c:.*getenv\("KVSMITH_CUDA_CHECK"\)|^ops/procs\.c:.*getenv\("OMP_NUM_THREADS"\)|^(train/comm/comm_nccl|ops/cuda/host/cudnn_so)\.c:.*getenv\("(CUDA|CUDNN)_HOME"\)' >>"$tmp/bad"
verdict no-environment

# clang-format leaves comments as they are. Lists of macros may be wider, as it aligns them.
LC_ALL=C awk 'length > 120 && !/^ *#/ { text = $0; gsub(/[\200-\277]/, "", text)
    if (length(text) > 120) print FILENAME ":" FNR ": " length(text) " columns, at most 120" }' $source >>"$tmp/bad"
verdict line-width

for f in $(echo "$source" | grep '\.h$'); do
    [ "$(head -c 2 "$f")" = "/*" ] || echo "$f does not begin with what it is for"
done >>"$tmp/bad"
verdict header-comments

# Data that a program writes to between calls: the flag that a signal handler sets (signals_seen), and what a process has
# found out of its processor once (tiles of ops/isa.c). Nothing else.
objdump -t "$build/f32/lib.a" 2>/dev/null | awk '
    /^[^ ]+\.o: / { file = $1 }
    $0 ~ / O (\.bss|\.data|\.tbss|\.tdata)[\t.]/ && $0 !~ /\.rel\.ro/ { print file, $NF }' |
    grep -vE ' signals_seen(\.[0-9]+)?$|^isa\.o: tiles$' | grep -vE '__func__|__PRETTY' >>"$tmp/bad"
verdict no-mutable-globals

# No circle of files: what a file calls never calls back, over however many files. By symbols, so that a declaration in
# another header hides none. There is no exception.
circles() { # nm -P -A of objects: a line for each circle
    awk '{ f = $1; sub(/:$/, "", f) }
        $3 == "U" { uses[f " " $2] }
        $3 ~ /^[ABCDGRSTVW]$/ { has[$2] = f }
        END { for (k in uses) { split(k, a, " "); if (a[2] in has && has[a[2]] != a[1]) print a[1], has[a[2]] } }' |
        LC_ALL=C sort | tsort 2>&1 >/dev/null | sed 's/^tsort: //' |
        awk '/contains a loop/ { if (n++) print line; line = "files that need each other:"; next } { line = line " " $0 } END { if (n) print line }'
}
objects=$(for f in $(echo "$product" | grep '\.c$'); do
    case $f in ops/cpu/*) ls "$build/f32/${f%.c}".*.o ;; *) ls "$build/f32/${f%.c}.o" ;; esac
done 2>/dev/null)
[ "$(echo "$objects" | wc -l)" -gt 150 ] || echo "only $(echo "$objects" | wc -l) objects in $build/f32" >>"$tmp/bad"
nm -P -A $objects >"$tmp/symbols" 2>>"$tmp/bad"
circles <"$tmp/symbols" >>"$tmp/bad"
# One that is planted is found: ops/device would need train/stages, which needs it by way of many others.
printf '%s\n' "$build/f32/ops/device.o: planted U" "$build/f32/train/stages.o: planted T 0 0" | cat "$tmp/symbols" - | circles | grep -q 'train/stages.o' ||
    echo "a planted circle was not found" >>"$tmp/bad"
verdict no-circles

# Files speak of the project alone.
grep -nIE '/wor[k]/|/hom[e]/[a-z]|/roo[t]/|\.\./share[d]' $(cat "$tmp/all") /dev/null >>"$tmp/bad"
verdict no-machine-paths

grep -nE 'TOD[O]|FIXM[E]|XX[X]\b' $source /dev/null | grep -v 'XXXXXX' >>"$tmp/bad"
verdict nothing-left-to-do

"$prog" config --markdown >"$tmp/config.md" 2>"$tmp/err" || echo "kvsmith config --markdown failed: $(cat "$tmp/err")" >>"$tmp/bad"
cmp -s "$tmp/config.md" docs/config.md || echo "docs/config.md is old; run: make docs" >>"$tmp/bad"
verdict config-docs

# ---- the program ----
one_line() { # status, stdout empty, one line of <= 300 characters on stderr that contains $2
    want=$1 part=$2
    shift 2
    "$prog" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    [ $got -eq "$want" ] || echo "kvsmith $*: exit $got, want $want"
    [ -s "$tmp/out" ] && echo "kvsmith $*: wrote to stdout"
    [ "$(wc -l <"$tmp/err")" -eq 1 ] || echo "kvsmith $*: $(wc -l <"$tmp/err") lines on stderr"
    [ "$(wc -m <"$tmp/err")" -le 301 ] || echo "kvsmith $*: a line longer than 300 characters"
    grep -qF -- "$part" "$tmp/err" || echo "kvsmith $*: no '$part' in: $(cat "$tmp/err")"
}
long=$(printf 'x%.0s' $(seq 400))
{
    one_line 2 'expected a command'
    one_line 2 'did you mean config?' confg
    one_line 2 'unknown command' "$long"
    one_line 2 'unknown command' $'a\nb\tc'
} >>"$tmp/bad"
verdict unknown-command

commands=$("$prog" --help | awk '/^Commands:/{on=1; next} /^$/{on=0} on{print $1}')
[ -n "$commands" ] || echo "kvsmith --help lists no command" >>"$tmp/bad"
"$prog" --version | grep -qE '^kvsmith [0-9]+\.[0-9]+\.[0-9]+$' || echo "kvsmith --version" >>"$tmp/bad"
for c in $commands; do
    "$prog" "$c" --help >"$tmp/out" 2>"$tmp/err" || echo "kvsmith $c --help: exit $?"
    grep -q -- --json "$tmp/out" || echo "kvsmith $c --help: common options missing"
    [ -s "$tmp/err" ] && echo "kvsmith $c --help: wrote to stderr"
    grep -q "kvsmith $c" README.md || echo "README.md does not show kvsmith $c"
    one_line 2 'unknown option --jsn; did you mean --json?' "$c" --jsn
    one_line 2 'unknown option' "$c" "--$long"
    one_line 2 'unknown option -Z' "$c" -Z
    one_line 2 'option --threads needs a value' "$c" --threads
    one_line 2 '--threads: expected a whole number' "$c" --threads 2x
    one_line 2 '--threads: expected a whole number' "$c" --threads 99999999999999999999
    one_line 2 '--device: expected' "$c" --device quantum
    one_line 2 '--dtype: expected' "$c" --dtype f8
    one_line 2 'does not allow a value' "$c" --json=1
done >>"$tmp/bad"
verdict commands

[ -c /dev/full ] || echo "this system has no device /dev/full" >>"$tmp/bad"
"$prog" --help 2>"$tmp/err" 1<>/dev/full
rc=$?
[ $rc -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] || echo "a full disk behind stdout: exit $rc, $(cat "$tmp/err")" >>"$tmp/bad"
verdict full-stdout
