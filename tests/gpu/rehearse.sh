#!/bin/bash
# rehearse.sh BUNDLE.tar.gz [short]: the first half hour on a device, on the emulation: the bundle of ON=simt, unpacked where
# nothing else is, goes through three calls of lease.sh with little of everything. The first is killed in its middle, the
# next two begin on "other machines" from its results. Then a hang, a crash, a cut output and a planted failure must each
# cost one case and nothing else. short: the parts of the first minutes alone. Ends with "N passed, N failed, 0 skipped".
set -u
bundle=$(realpath "$1") form=${2:-full}
here=$(cd "$(dirname "$0")/../.." && pwd)
slow=$("$here/tests/slow.sh")
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0 began=$SECONDS
ok() { # name, status, what else
    if [ "$2" -eq 0 ]; then passed=$((passed + 1)) && echo "ok $1"; else failed=$((failed + 1)) && echo "FAILED $1: ${3-}"; fi
}
part() { echo "---- $((SECONDS - began)) s: $*"; }
scaled() { awk -v s="$slow" -v x="$1" 'BEGIN { printf "%d", s * x + 0.999 }'; }
parts=(props limits smoke first self-test train nccl cudnn tune ops bench profile peers slow-tests sanitizer)
[ "$form" = full ] || parts=(props limits smoke first peers slow-tests)

part "the bundle"
size=$(du -m "$bundle" | cut -f1)
[ "$size" -le 60 ]
ok "the bundle has at most 60 MB ($size)" $?
mkdir "$tmp/there" && tar -C "$tmp/there" -xzf "$bundle" && box=$(echo "$tmp"/there/*) || exit 1
# What the suites and this program name in their text, and what the configurations name, lies in the bundle. Headers do
# not: suites are compiled before.
# Suites that are bundled, and what they are linked with.
suites=$(cd "$here" && ls tests/ops/test_ops*.c tests/simt/test_cuda*.c tests/gpu/*.c tests/lib/*.c)
wanted=$(cd "$here" && grep -hvE '^#include' $suites | grep -oE '"(configs|data|tests|docs)/[A-Za-z0-9_./%-]+"' | tr -d '"' | sed 's/%[a-z]/*/g' | sort -u)
named=$(cd "$box" && grep -hoE '\b(configs|data|tests)/[A-Za-z0-9_./-]+\.(txt|jsonl|yaml|json)' configs/tiny-*.yaml tests/gpu/models/*.yaml | sort -u)
missing=
for f in $wanted $named; do
    # shellcheck disable=SC2086
    (cd "$box" && ls -d $f >/dev/null 2>&1) || missing="$missing $f"
done
number=$(echo "$wanted" "$named" | wc -w) # beforehand: in the words of ok it would change the status
[ -n "$wanted" ] && [ -z "$missing" ]
ok "every file that the full suites name is in the bundle ($number)" $? "not there:$missing"

# lease.sh as a bare machine runs it.
lease() { # machine, results, seconds, seed, parts...
    mkdir -p "$tmp/$1"
    env -i PATH="$PATH" HOME="$tmp/$1" TMPDIR="$tmp/$1" LC_ALL=C.UTF-8 OMP_NUM_THREADS=1 \
        GPU_CHECK_ARGS="--quick --python ${python:-no-python-here} ${more-}" "$box/lease.sh" "${@:2}" >>"$tmp/log" 2>&1
}
cases() { sed -n 's/^{"part":"\([^"]*\)","case":"\([^"]*\)","state":"\([a-z]*\)".*/\1\/\2 \3/p' "$1/gpu-check.jsonl" | sort; }
started() { # ids of the processes whose command begins with $1 of the bundle: a bare Debian has no pgrep
    local p
    for p in /proc/[0-9]*; do
        [[ "$(tr "\0" " " 2>/dev/null <"$p/cmdline")" != "$box/${1:+$1 }"* ]] || echo "${p#/proc/}"
    done
}
whole() { ! grep -qvE '^\{"part":".*\}$' "$1/gpu-check.jsonl"; }

part "first call, killed in its middle"
out=$tmp/out1
lease m1 "$out" "$(scaled 120)" "" "${parts[@]}" &
call=$!
for ((i = 0; i < $(scaled 600); i++)); do
    kill -0 $call 2>/dev/null || break
    [ "$(cases "$out" 2>/dev/null | wc -l)" -lt 14 ] || break
    sleep 0.1
done
run=$(started run | head -n 1)
[ -n "$run" ] && kill -9 "$run"
ok "it ran when it was killed" $?
wait $call
sleep 0.3
left=$(started)
[ -z "$left" ]
ok "nothing that it started outlives it" $? "$(for p in $left; do tr '\0' ' ' <"/proc/$p/cmdline"; done)"
kept=$(cases "$out")
[ "$(echo "$kept" | wc -l)" -ge 14 ] && whole "$out"
ok "its journal holds what had ended" $? "$(tail -c 300 "$out/gpu-check.jsonl")"
printf '{"part":"first","case":"cut off","sta' >>"$out/gpu-check.jsonl"

part "second and third call, each on a new machine"
lease m2 "$tmp/out2" "$(scaled 75)" "$out" "${parts[@]}"
status=$?
lease m3 "$tmp/out3" "$(scaled 150)" "$tmp/out2" "${parts[@]}"
ok "the third call ends with all that was asked for" $? "$(tail -n 12 "$tmp/log")"
echo "     (the second: status $status)"
out=$tmp/out3
whole "$out" && [ -z "$(cases "$out" | sed 's, [a-z]*$,,' | uniq -d)" ]
ok "its journal is whole, and no case stands twice" $? "$(cases "$out" | sed 's, [a-z]*$,,' | uniq -d | head -n 3)"
[ -z "$(comm -23 <(echo "$kept") <(cases "$out"))" ]
ok "what had ended before it was killed stands unchanged" $?
number=$(cases "$out" | wc -l)
[ -z "$(cases "$out" | grep ' failed$')" ]
ok "nothing failed ($number cases)" $? "$(cases "$out" | grep ' failed$' | head -n 5)"
for p in "${parts[@]}"; do
    grep "^{\"part\":\"$p\",\"passed\"" "$out/gpu-check.jsonl" | tail -n 1 | grep -q '"failed":0,.*"left":0,' || lacks="${lacks-} $p"
done
[ -z "${lacks-}" ]
ok "every part has its sum" $? "${lacks-}"
files=$(find "$out" -type f | wc -l) deep=$(cd "$out" && find . -mindepth 2 -type f -not -path './*/*' | head -n 1)
[ "$files" -le 8 ] && [ -z "$(find "$out" -type f -size +16M)" ] && [ -z "$(find "$out" -mindepth 1 -type d)" ] && [ -z "$deep" ] &&
    [ -z "$(find "$out" -mindepth 1 | sed "s,^$out/,," | grep -vE '^[A-Za-z0-9._/-]+$')" ]
ok "results may leave the machine ($files files)" $? "$(find "$out" | head -n 12)"
grep -q 'train.tok_s' "$out/figures.txt" && grep -q ';' "$out/figures.txt"
ok "figures stand next to what was expected" $?
clean=$(cases "$out")

part "planted: a hang, a crash and a cut output of the program, a test that hangs and one that dies, a peer that hangs"
mv "$box/bin/kvsmith" "$box/bin/kvsmith.real" && mv "$box/bin/tests" "$box/bin/tests.real"
cat >"$box/bin/kvsmith" <<'S'
#!/bin/bash
# Of the commands of part first: one hangs, one dies, one prints half of its line.
case "$*" in
*decode*--draw\ top_k*) sleep 1000 ;;
*recur*kda,gdn*) kill -9 $$ ;;
*prefill*) "$0.real" "$@" | head -c 40; exit 0 ;;
esac
exec "$0.real" "$@"
S
cat >"$box/bin/tests" <<'S'
#!/bin/bash
# A test that hangs; one that dies.
case "$*" in
*'--filter ref/add '*) sleep 1000 ;;
*'--filter cuda/says_what_it_is '*) kill -11 $$ ;;
esac
exec "$0.real" "$@"
S
cat >"$tmp/peer" <<'S'
#!/bin/bash
# In place of Python: two figures, then, of one, nothing more.
[ "$2" = peer.py ] || exit 1
echo '{"peer":"none"}'
echo "{\"$3\":{\"forward_s\":1}}"
[ "$3" != train ] || sleep 1000
S
chmod +x "$box/bin/kvsmith" "$box/bin/tests" "$tmp/peer"
planted=(props smoke first peers)
more="--limit $(($(scaled 2) + 2))" python=$tmp/peer lease m4 "$tmp/out4" "$(scaled 200)" "" "${planted[@]}"
[ $? -eq 1 ]
ok "the call says that not all holds" $?
out=$tmp/out4
broken='^(first/(decode 0.5b, top_k on the device|recur kda, gdn, .*|prefill .*)|smoke/(ref/add|cuda/says_what_it_is)|peers/PyTorch, train 124m) failed$'
n=$(cases "$out" | grep -cE "$broken")
[ "$n" -eq 7 ]
ok "each planted mistake is a failed case" $? "$n of 7: $(cases "$out" | grep failed | tr '\n' ' ')"
lost=$(echo "$clean" | grep -E '^(props|smoke|first)/' | grep -vxFf <(cases "$out") | sed 's/ ok$/ failed/' | grep -vE "$broken")
[ -z "$lost" ]
ok "every other case stands as before" $? "$lost"
[ "$(grep '"part":"peers","case"' "$out/gpu-check.jsonl" | grep -c '"forward_s":1')" -eq 3 ]
ok "a peer that is cut off keeps its figures" $?
echo "$((SECONDS - began)) s"
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
