#!/bin/bash
# kvsmith convert as its users meet it: what it prints, what is left when the disk is full or it is interrupted, how much
# memory it takes, and that transformers reads what it writes (PYTHON, default python3, with torch and transformers).
. tests/lib/cases.sh
${CC:-gcc} -shared -fPIC -O1 -o "$tmp/world.so" tests/shim/world.c -ldl || exit 1
python=${PYTHON:-python3}
src=tests/golden/convert
convert() { "$prog" convert "$@" --context 32 >"$tmp/out" 2>"$tmp/err"; }
only() { # what stands in $tmp/here
    [ "$(ls -A "$tmp/here" | tr '\n' ' ')" = "$1" ] || wrong "left behind: $(ls -A "$tmp/here" | tr '\n' ' '), expected $1"
}
mkdir "$tmp/here"

convert $src "$tmp/here/two" --to gqa kv_heads=2 method=aligned --calib $src/calib.txt --json || wrong "exit $?: $(cat "$tmp/err")"
[ "$(wc -l <"$tmp/out")" -eq 1 ] || wrong "not one line: $(cat "$tmp/out")"
for field in '"rule":"gqa kv_heads=2 method=aligned"' '"exact":false' '"cache_bytes_per_token":384' '"cache_bytes_per_token":192' \
    '"text":"calibration"' '"kl":' '"ppl_before":' '"ppl_after":' '"top1":' '"max_logit_diff":' '"memory_bytes":'; do
    grep -qF "$field" "$tmp/out" || wrong "no $field in $(cat "$tmp/out")"
done
cmp -s $src/tokenizer.json "$tmp/here/two/tokenizer.json" || wrong "tokenizer.json is another"
grep -q '"num_key_value_heads": 2' "$tmp/here/two/config.json" || wrong "config.json: $(cat "$tmp/here/two/config.json")"
"$prog" generate "$tmp/here/two" --prompt "A key" --max-new 4 -q >"$tmp/text" 2>&1 || wrong "generate: $(cat "$tmp/text")"
convert $src "$tmp/here/four" --to same rope_layout=interleaved || wrong "exit $?: $(cat "$tmp/err")"
grep -q '(lossless)' "$tmp/out" && grep -q 'cache per token' "$tmp/out" && grep -q 'perplexity' "$tmp/out" || wrong "$(cat "$tmp/out")"
convert "$tmp/here/four" "$tmp/here/quiet" --to same rope_layout=half -q || wrong "exit $?"
[ -s "$tmp/out" ] && wrong "-q prints $(cat "$tmp/out")"
verdict reports

# Generation settings go over byte for byte, files that are nobody's do not.
cp -r $src "$tmp/mine"
printf '{"eos_token_id": [1, 2],\n  "temperature": 0.25}' >"$tmp/mine/generation_config.json"
echo '{}' >"$tmp/mine/special_tokens_map.json"
echo rubbish >"$tmp/mine/notes.md"
sed -i 's/"bos_token_id": 256/"bos_token_id": 256, "pad_token_id": 7/' "$tmp/mine/config.json"
convert "$tmp/mine" "$tmp/here/mine" --to mqa || wrong "exit $?: $(cat "$tmp/err")"
for f in generation_config.json special_tokens_map.json tokenizer.json; do
    cmp -s "$tmp/mine/$f" "$tmp/here/mine/$f" || wrong "$f is another"
done
grep -q '"pad_token_id": 7' "$tmp/here/mine/config.json" || wrong "no pad_token_id in $(cat "$tmp/here/mine/config.json")"
[ -e "$tmp/here/mine/notes.md" ] && wrong "notes.md came along"
verdict files-that-travel

refuse() { # TEXT ARGUMENT...
    text=$1
    shift
    convert "$@"
    rc=$?
    [ $rc -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] || wrong "$*: exit $rc, $(cat "$tmp/err")"
    grep -qF -- "$text" "$tmp/err" || wrong "$*: no '$text' in $(cat "$tmp/err")"
}
rm -rf "$tmp/here" && mkdir "$tmp/here"
# A second conversion of the same kind keeps what the first one made.
convert $src "$tmp/here/w1" --to swa window=16 'keep=[0]' && convert "$tmp/here/w1" "$tmp/here/w2" --to swa window=4 'keep=[1]' ||
    wrong "exit $?: $(cat "$tmp/err")"
"$prog" info "$tmp/here/w2" --context 32 --json >"$tmp/info" || wrong "info: exit $?"
grep -q '"rows": *3[,}].*"rows": *15[,}]' "$tmp/info" || wrong "windows of 4 and 16 keep 3 and 15 rows: $(grep -o '"rows": *[0-9]*' "$tmp/info" | tr '\n' ' ')"
# A layer without attention is not dropped again, and the last one stays.
convert $src "$tmp/here/d1" --to same drop_attention=1 --calib $src/calib.txt || wrong "exit $?: $(cat "$tmp/err")"
convert "$tmp/here/d1" "$tmp/here/d2" --to same drop_attention=1 --calib $src/calib.txt
rc=$?
[ $rc -eq 0 ] && grep -q 'layers without attention: 0 ' "$tmp/out" || wrong "expected layer 0 to go too: exit $rc, $(cat "$tmp/out" "$tmp/err")"
refuse 'drop_attention' "$tmp/here/d2" "$tmp/here/d3" --to same drop_attention=1 --calib $src/calib.txt
# Keys that are read by a layer that norms its queries cannot be turned into another basis.
cat >"$tmp/shared.yaml" <<'YAML'
run: {dir: shared}
model: {d_model: 32, layers: 2, kinds: {own: {mixer: gqa, heads: 4, kv_heads: 4}, reads: {mixer: gqa, heads: 4, kv_heads: 4, qk_norm: true}},
        pattern: [own, reads], kv_from: {1: 0}, ffn: {kind: swiglu, hidden: 32}}
data: {train: data/kjv.txt, seq_len: 32}
train: {steps: 1, batch: 1, micro_batch: 1, eval_every: 0, dtype: f32}
optim: {warmup: 0}
YAML
"$prog" train "$tmp/shared.yaml" run.dir="$tmp/shared" -q || wrong "train: exit $?"
refuse 'differently from the keys of layer 0' "$tmp/shared" "$tmp/here/x" --to same align_groups=2 --calib $src/calib.txt
refuse 'differently from the keys of layer 0' "$tmp/shared" "$tmp/here/x" --to gqa kv_heads=2 method=aligned --calib $src/calib.txt
# Latents of the layers that have keys, behind one that has none.
"$prog" train "$tmp/shared.yaml" run.dir="$tmp/mixed" model.kv_from='{}' 'model.kinds.line={mixer: kda, heads: 2, head_dim: 8}' 'model.pattern=[line, own]' -q || wrong "train: exit $?"
convert "$tmp/mixed" "$tmp/mixed-mla" --to mla rank=16 --calib $src/calib.txt
rc=$?
[ $rc -eq 0 ] && grep -q ": mla rank=16 rope=8 " "$tmp/out" || wrong "mla in layer 1 alone: exit $rc, $(cat "$tmp/err")"
rm -rf "$tmp/here" && mkdir "$tmp/here"
# A limit on the size of files is an error like a full disk.
(ulimit -f 20 && convert $src "$tmp/here/x" --to mqa)
rc=$?
[ $rc -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] || wrong "a file-size limit: exit $rc, $(cat "$tmp/err")"
only ''
verdict again-and-shared
refuse 'expected SRC DST --to LAYOUT' $src
refuse 'expected SRC DST --to LAYOUT' $src "$tmp/here/x"
refuse 'conversions compute in f32' $src "$tmp/here/x" --to mqa --dtype bf16
refuse "unexpected word 'more'" $src "$tmp/here/x" more --to mqa
refuse 'exists; give a new name' $src "$tmp/here" --to mqa
refuse 'kv_heads: expected a divisor or a multiple' $src "$tmp/here/x" --to gqa kv_heads=3
refuse 'give a text with --calib' $src "$tmp/here/x" --to mqa method=aligned
refuse 'cannot open' $src "$tmp/here/x" --to mqa --calib "$tmp/none"
refuse 'unknown key; did you mean method?' $src "$tmp/here/x" --to mqa metod=mean
refuse '--check-tokens: expected a whole number' $src "$tmp/here/x" --to mqa --check-tokens -1
refuse 'has no config.json' "$tmp/here" "$tmp/here/x" --to mqa
cp -r $src "$tmp/bloom" && sed -i 's/"llama"/"bloom"/' "$tmp/bloom/config.json"
refuse 'found bloom' "$tmp/bloom" "$tmp/here/x" --to mqa
cp -r $src "$tmp/short" && truncate -s -4 "$tmp/short/model.safetensors"
refuse '(MetadataIncompleteBuffer)' "$tmp/short" "$tmp/here/x" --to mqa
only ''
verdict refused

# What a conversion would be, of a model and of a configuration; nothing is written.
"$prog" convert $src --to gqa kv_heads=2 --plan --json >"$tmp/out" 2>"$tmp/err" || wrong "--plan: $(cat "$tmp/err")"
grep -q '^{"to":"gqa","rule":"gqa kv_heads=2 method=mean","exact":false,.*"model":{.*"kv_heads":2' "$tmp/out" || wrong "--plan: $(cat "$tmp/out")"
"$prog" convert configs/tiny-mha.yaml --to mla --plan >"$tmp/out" 2>"$tmp/err" || wrong "--plan: $(cat "$tmp/err")"
grep -q '^mla: lossless form.*(lossless)$' "$tmp/out" && grep -q '"mixer": "mla"' "$tmp/out" || wrong "--plan: $(cat "$tmp/out")"
refuse 'without DST' $src "$tmp/here/x" --to mqa --plan
refuse 'leave --plan out' $src --to same dtype=bf16 --plan
refuse 'kv_heads: expected a divisor' $src --to gqa kv_heads=3 --plan
refuse 'No such file' "$tmp/none.yaml" --to mqa --plan
only ''
verdict plan

# A name that is no UTF-8 does not keep the result from being told.
odd=$tmp/here/$(printf 'caf\351')
"$prog" convert $src "$odd" --to mqa --check-tokens 32 --json >"$tmp/out" 2>"$tmp/err" || wrong "exit $?: $(cat "$tmp/err")"
grep -q '"dst":"[^"]*caf.*"to":"mqa"' "$tmp/out" && [ -e "$odd/config.json" ] || wrong "$(cat "$tmp/out")"
rm -rf "$odd"
verdict any-name

# A disk that is full at any call leaves nothing.
full() { # SETTINGS
    LD_PRELOAD=$tmp/world.so WORLD_FULL_STEP=.tmp WORLD_FULL_LOG=$tmp/calls "$prog" convert $src "$tmp/here/counted" $1 --check-tokens 32 -q \
        >"$tmp/out" 2>"$tmp/err" || wrong "counting: $(cat "$tmp/err")"
    calls=$(cat "$tmp/calls")
    rm -rf "$tmp/here/counted"
    [ "$calls" -gt 20 ] || wrong "$calls calls"
    for k in $(seq 1 "$2" $((calls - 1))) $((calls - 1)); do
        LD_PRELOAD=$tmp/world.so WORLD_FULL_STEP=.tmp WORLD_FULL_CALL=$k "$prog" convert $src "$tmp/here/x" $1 --check-tokens 32 -q >"$tmp/out" 2>"$tmp/err"
        rc=$?
        [ $rc -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ ! -s "$tmp/out" ] || wrong "call $k of $calls: exit $rc, $(cat "$tmp/err")"
        only ''
    done
}
full '--to mqa' 3
full '--to same shard=20KB dtype=bf16' 7
# a file has no folder whose mkdir begins the count: the shim counts from the open of its name, as in a rank
export WORLD_FULL_RANK=0 KVSMITH_RANK=0
full '--to gguf dtype=q8_0' 2
unset WORLD_FULL_RANK KVSMITH_RANK
verdict disk-full

interrupt() { # SRC SETTINGS
    LD_PRELOAD=$tmp/world.so WORLD_SLOW_US=400000 "$prog" convert $1 "$tmp/here/x" $2 >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    for _ in $(seq "$(patience 200)"); do
        ls -A "$tmp/here" | grep -q . && break
        sleep 0.01
    done
    kill -TERM $pid
    wait $pid
    rc=$?
    [ $rc -eq 130 ] || wrong "$2: exit $rc: $(cat "$tmp/err")"
    only ''
}
interrupt $src '--to mqa'
verdict interrupted

# Anonymous memory is that of a layer, not of the model: 66 million numbers would be 265 MB.
tests/synthetic_llama.sh "$tmp/large" 512 12 8 8 2048 16000
anonymous() { # SETTINGS
    "$prog" convert "$tmp/large" "$tmp/small" $1 --check-tokens 64 --json >"$tmp/out" 2>"$tmp/err" &
    pid=$! most=0
    while kill -0 $pid 2>/dev/null; do
        now=$(awk '/^RssAnon/ { print $2 }' /proc/$pid/status 2>/dev/null)
        [ "${now:-0}" -gt $most ] && most=$now
    done
    wait $pid || wrong "$1: exit $?: $(cat "$tmp/err")"
    said=$(grep -o '"memory_bytes":[0-9]*' "$tmp/out" | cut -d: -f2)
    [ "$most" -gt 0 ] && [ "$most" -lt 153600 ] || wrong "$1: $most KiB of anonymous memory"
    [ "$most" -lt $((said / 1024 + 40960)) ] || wrong "$1: $most KiB of anonymous memory, reported $said bytes"
    rm -r "$tmp/small"
}
anonymous '--to gqa kv_heads=2'
anonymous '--to gguf dtype=q8_0'
verdict memory

# A file for llama.cpp: what is printed, its first bytes, what reads it and what does not.
rm -rf "$tmp/here" && mkdir "$tmp/here"
interrupt "$tmp/large" '--to gguf dtype=f16'
"$prog" convert $src "$tmp/here/model.gguf" --to gguf dtype=f16 >"$tmp/out" 2>"$tmp/err" || wrong "exit $?: $(cat "$tmp/err")"
grep -q 'gguf: architecture llama, dtype f16 (approximate: lossless but for rounding to F16)' "$tmp/out" || wrong "$(cat "$tmp/out")"
grep -q 'train.yaml' "$tmp/out" && wrong "it says to train a GGUF file: $(cat "$tmp/out")"
only 'model.gguf '
[ "$(head -c 8 "$tmp/here/model.gguf" | od -An -tx1 | tr -d ' \n')" = 4747554603000000 ] || wrong "it does not begin as GGUF 3"
"$prog" convert configs/tiny-mha.yaml --to gguf --plan >"$tmp/out" 2>"$tmp/err" || wrong "--plan: $(cat "$tmp/err")"
grep -q '^gguf: architecture llama, dtype source (lossless)' "$tmp/out" || wrong "--plan: $(cat "$tmp/out")"
refuse 'exists; give a new name' $src "$tmp/here/model.gguf" --to gguf
refuse 'expected one of source, f32, f16, bf16, q8_0' $src "$tmp/here/x" --to gguf dtype=q4_0
refuse 'looks at no text' $src "$tmp/here/x" --to gguf --calib $src/calib.txt
refuse 'layer 3 is gqa (its kimi-linear has kda and mla)' configs/tiny-kda.yaml --to gguf --plan
refuse 'give the Hugging Face directory' "$tmp/here/model.gguf" "$tmp/here/x" --to same
only 'model.gguf '
# phi3 joins q, k and v of unequal heights: its file is that of the llama with the same tensors apart.
mkdir -p "$tmp/one" "$tmp/two"
cp -r tests/golden/families/phi3 "$tmp/one/m"
sed -i -E 's/("sliding_window": *)[0-9]+/\1null/; s/("partial_rotary_factor": *)[0-9.]+/\11.0/' "$tmp/one/m/config.json"
"$prog" convert "$tmp/one/m" "$tmp/two/m" --to same >"$tmp/out" 2>&1 || wrong "phi3 to llama: $(cat "$tmp/out")"
for at in one two; do
    "$prog" convert "$tmp/$at/m" "$tmp/$at.gguf" --to gguf >"$tmp/out" 2>&1 || wrong "phi3, $at: $(cat "$tmp/out")"
done
cmp "$tmp/one.gguf" "$tmp/two.gguf" >>"$bad" 2>&1
verdict gguf
rm -rf "$tmp/here" && mkdir "$tmp/here"

"$prog" convert --rules >"$tmp/rules" || wrong "exit $?"
grep -Fxvf convert/README.md "$tmp/rules" >"$tmp/missing" && wrong "convert/README.md lacks: $(head -n 2 "$tmp/missing")"
verdict table-of-rules

if ! "$python" -c 'import torch, transformers, safetensors' 2>/dev/null; then
    echo "skip transformers: no Python with torch, transformers and safetensors here"
    exit 0
fi
for what in "gqa kv_heads=2 method=aligned --calib $src/calib.txt" "mqa method=mean" "same shard=20KB" "same fold_norms=true"; do
    convert $src "$tmp/here/x" --to $what || wrong "$what: $(cat "$tmp/err")"
    "$python" tests/golden/check_export.py "$prog" "$tmp/here/x" >"$tmp/log" 2>&1 || wrong "$what: $(tail -n 1 "$tmp/log")"
    rm -r "$tmp/here/x"
done
verdict transformers
