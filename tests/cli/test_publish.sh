#!/bin/bash
# A set of tokens of several files replaces an older one, and is killed at every call that puts something on disk or gives or
# takes a name: readers see the old set or the new one, or say in one line what to do; and the next data tokenize to that
# name, even one that has nothing to write, leaves one of the two whole. Both have files of the same sizes, so that no size
# tells a mixed set.
. tests/lib/cases.sh
export OMP_NUM_THREADS=1
${CC:-gcc} -shared -fPIC -O1 -o "$tmp/shim.so" tests/shim/signals.c -ldl || wrong 'no shim'
printf 'aaaa\nbbbb\ncc' >"$tmp/old.txt" && printf 'dd\neeee\nffff' >"$tmp/new.txt" && : >"$tmp/none.txt"
make_set() { # input, options: a set at $tmp/at/x
    local in=$1
    shift
    "$prog" data tokenize "$tmp/$in.txt" --separator '\n' --tokenizer byte --out "$tmp/at/x" --threads 1 -q "$@" >/dev/null 2>"$tmp/err"
}
first() { if [ -e "$tmp/at/x.bin" ]; then echo "$tmp/at/x.bin"; else echo "$tmp/at/x_000000.bin"; fi; }
same() { diff -r "$tmp/at" "$1" >/dev/null; }
megatron='' llmc='--format llmc' shards2='--format llmc --shard-tokens 7' shards4='--format llmc --shard-tokens 4'

sum=0 told=0
trial() { # case, name of the old set's options, of the new one's
    local n rc f
    rm -rf "$tmp/at" "$tmp/was" "$tmp/is" && mkdir "$tmp/at"
    # shellcheck disable=SC2086 # options are several words
    make_set old ${!2} && cp -r "$tmp/at" "$tmp/was" && make_set new ${!3} && cp -r "$tmp/at" "$tmp/is" || wrong "$1: $(cat "$tmp/err")"
    same "$tmp/was" && wrong "$1: both sets are the same"
    for ((n = 1; n < 100; n++)); do
        rm -rf "$tmp/at" && cp -r "$tmp/was" "$tmp/at"
        # shellcheck disable=SC2086
        LD_PRELOAD=$tmp/shim.so SHIM_KILL=$n make_set new ${!3} 2>/dev/null
        rc=$?
        [ $rc -ne 0 ] || break
        [ $rc -eq 137 ] || { wrong "$1, kill $n: exit $rc" && break; }
        sum=$((sum + 1))
        # readers, of the first and of the last file
        for f in "$(first)" "$(ls "$tmp"/at/x*.bin | tail -n 1)"; do
            "$prog" data inspect "$f" --json >"$tmp/out" 2>"$tmp/err"
            rc=$?
            if [ $rc -eq 2 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q 'a kvsmith data tokenize was interrupted .*run it again' "$tmp/err"; then
                told=$((told + 1))
            elif [ $rc -ne 0 ] || ! { read_as "$f" was || read_as "$f" is; }; then
                wrong "$1, kill $n, $(basename "$f"): exit $rc, $(cat "$tmp/err") $(ls -A "$tmp/at" | tr '\n' ' ')"
            fi
        done
        # the next one, which has no text, ends what was begun
        make_set none
        same "$tmp/was" || same "$tmp/is" || wrong "$1, kill $n, then another: $(ls -A "$tmp/at" | tr '\n' ' ')"
        # shellcheck disable=SC2086
        make_set new ${!3} && same "$tmp/is" || wrong "$1, kill $n, then the same: $(cat "$tmp/err") $(ls -A "$tmp/at" | tr '\n' ' ')"
    done
    [ $n -gt 5 ] && [ $n -lt 100 ] || wrong "$1: $n kills"
}
# The file that was read, and the index beside it, are those of the set $2.
read_as() {
    local idx=${1%.bin}.idx old=$tmp/$2/$(basename "$1")
    cmp -s "$1" "$old" || return
    [ ! -e "$idx" ] && [ ! -e "${old%.bin}.idx" ] || cmp -s "$idx" "${old%.bin}.idx"
}
trial megatron megatron megatron
trial 'megatron over llm.c' llmc megatron
trial 'llm.c over megatron' megatron llmc
trial 'llm.c' llmc llmc
trial 'fewer shards' shards4 shards2
trial 'more shards' shards2 shards4
[ $told -ge 10 ] || wrong "only $told of $sum readers met a set that was being published"
verdict killed

# What was cut off by an error stays for the next one as well.
rm -rf "$tmp/at" "$tmp/is" && mkdir "$tmp/at"
make_set new && cp -r "$tmp/at" "$tmp/is" && rm -rf "$tmp/at" && mkdir "$tmp/at" && make_set old || wrong "$(cat "$tmp/err")"
LD_PRELOAD=$tmp/shim.so SHIM_NO_RENAME=2 make_set new
rc=$?
[ $rc -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q 'x.idx: Input/output error; the next data tokenize' "$tmp/err" ||
    wrong "the second rename fails: exit $rc: $(cat "$tmp/err")"
make_set none
same "$tmp/is" || wrong "after a rename that failed: $(ls -A "$tmp/at" | tr '\n' ' ')"
verdict failed
