#!/bin/bash
# --dtype and --cache-dtype of commands that keep a cache: what they say they keep, and what does not change by them.
. tests/lib/cases.sh
src=tests/golden/convert
field() { grep -o "\"$1\":[^,}]*" "$2" | head -n 1 | cut -d: -f2; }
run() { "$prog" "$@" >"$tmp/out" 2>"$tmp/err"; }

for d in f32 bf16; do
    run info $src --dtype $d --context 9 --json || wrong "info --dtype $d: exit $?, $(cat "$tmp/err")"
    cp "$tmp/out" "$tmp/info.$d"
    run generate $src --prompt "A key" --max-new 4 --ignore-eos --json --dtype $d || wrong "generate: exit $?, $(cat "$tmp/err")"
    cp "$tmp/out" "$tmp/text.$d"
    n=$(($(field prompt_tokens "$tmp/out") + $(field new_tokens "$tmp/out") - 1))
    each=$(field bytes_per_token "$tmp/info.$d")
    [ "$(field cache_bytes "$tmp/out")" -eq $((n * each)) ] || wrong "$d: $(field cache_bytes "$tmp/out") bytes of $n rows of $each"
done
[ "$(field bytes_per_token "$tmp/info.f32")" -eq $((2 * $(field bytes_per_token "$tmp/info.bf16"))) ] || wrong "$(cat "$tmp"/info.*)"
[ "$(field weights_bytes "$tmp/info.bf16")" -lt "$(field weights_bytes "$tmp/info.f32")" ] || wrong "weights: $(cat "$tmp"/info.*)"
grep -q '"dtype":"BF16"' "$tmp/info.bf16" && grep -q '"dtype":"F32"' "$tmp/info.f32" || wrong "no dtype of the cache"
run generate $src --prompt "A key" --max-new 4 --ignore-eos --json --dtype bf16 --cache-dtype f32 || wrong "exit $?"
[ "$(field cache_bytes "$tmp/out")" -eq "$(field cache_bytes "$tmp/text.f32")" ] || wrong "a wide cache: $(cat "$tmp/out")"
run generate $src --prompt "A key" --max-new 4 --ignore-eos --json --cache-dtype bf16 || wrong "exit $?"
[ "$(field cache_bytes "$tmp/out")" -eq "$(field cache_bytes "$tmp/text.bf16")" ] || wrong "a narrow cache: $(cat "$tmp/out")"
run info configs/tiny-mla.yaml --context 9 --cache-dtype bf16 --json || wrong "a configuration: exit $?, $(cat "$tmp/err")"
grep -q '"dtype":"BF16"' "$tmp/out" || wrong "a configuration: $(cat "$tmp/out")"
verdict bytes

for p in "A key" "The" "One two three four five" "x"; do printf '{"prompt": "%s"}\n' "$p"; done >"$tmp/prompts"
batch() { run generate $src --batch-file "$tmp/prompts" --max-new 12 --ignore-eos --json --dtype bf16 --seed 5 "$@" || wrong "exit $?: $(cat "$tmp/err")"; }
tokens() { grep -o '"tokens":\[[^]]*\]' "$tmp/out"; }
batch --batch 1 --threads 1
tokens >"$tmp/alone"
[ "$(wc -l <"$tmp/alone")" -eq 4 ] || wrong "$(cat "$tmp/alone")"
for how in "--batch 4 --threads 1" "--batch 3 --threads 2" "--batch 2 --threads 3 --chunk 7"; do
    # shellcheck disable=SC2086
    batch $how
    tokens | cmp -s - "$tmp/alone" || wrong "$how: $(tokens) instead of $(cat "$tmp/alone")"
done
verdict company

refused() { # part of the line, arguments
    local part=$1
    shift
    run "$@"
    [ $? -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -qF -- "$part" "$tmp/err" || wrong "$*: $(cat "$tmp/err")"
}
refused "--cache-dtype: expected f32, bf16, int8, fp8, int4, int3, int2, kivi4, kivi3, kivi2, kvquant4, kvquant3, kvquant2, zipcache, palu, minicache or aqua, got 'f16'" generate $src --cache-dtype f16
refused "--cache-dtype int4: expected group=32, group=64, rotate=yes or rotate=no, got 'group=48'" generate $src --cache-dtype int4:group=48
refused "--cache-dtype int8: expected rotate=yes or rotate=no, got 'group=32'" generate $src --cache-dtype int8:rotate=yes,group=32
refused "--cache-dtype bf16: expected no settings, got 'rotate=yes'" generate $src --cache-dtype bf16:rotate=yes
refused "option --cache-dtype needs a value" info $src --cache-dtype
refused "unknown option --cache-dtype" train configs/tiny-mha.yaml --cache-dtype bf16
refused "expected [ops|train|decode|prefill|recur|tune|limits]" bench prefill decode
refused "--batch: expected a whole number from 1 to 4096, got '0'" bench decode --batch 0
refused "--prompt: expected" bench prefill --prompt x
refused "--chunk: expected" bench prefill --chunk 65537
verdict refusals

# ---- what a prompt of two passes and a decoding step are made of, op by op
shares() { # what, calls of `move`: keys and values of two layers in every pass
    run bench "$1" configs/tiny-gqa.yaml --seconds 0.01 --batch 1 --prompt 20 --chunk 10 --json || wrong "$1: exit $?: $(cat "$tmp/err")"
    [ "$(grep -o '"op":"move","calls":[0-9]*' "$tmp/out" | grep -o '[0-9]*$')" = "$2" ] || wrong "$1: not $2 calls of move: $(cat "$tmp/out")"
    for op in linear_many linear attend attend_lanes rope add_rmsnorm; do
        grep -q "\"op\":\"$op\"" "$tmp/out" || wrong "$1: no share of $op"
    done
    sum=$(sed 's/.*"shares"://' "$tmp/out" | grep -o '"percent":[0-9.e-]*' | cut -d: -f2 | awk '{s += $1} END {print (s > 99.9 && s < 100.1)}')
    [ "$sum" = 1 ] || wrong "$1: shares are not the whole"
    run bench "$1" configs/tiny-gqa.yaml --seconds 0.01 --batch 1 --prompt 20 || wrong "$1: exit $?: $(cat "$tmp/err")"
    grep -q '^share   [a-z_]* .*% .* ms in [1-9]' "$tmp/out" || wrong "$1 prints no shares: $(cat "$tmp/out")"
}
shares prefill 8
shares decode 4
verdict shares
