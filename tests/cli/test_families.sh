#!/bin/bash
# The commands on a directory of every model type: info, generate, eval, convert, full training, LoRA. The models are the
# golden ones of tests/golden/families with a tokenizer of as many letters as they have ids; what they compute is tested by
# hf_family, hf_gradient and hf_write.
cd "$(dirname "$0")/../.." || exit 1
. tests/lib/cases.sh
families=tests/golden/families
one='--threads 1 -q'
ok() { # what it runs says nothing of an error
    "$prog" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || wrong "$*: status $?: $(tail -n 1 "$tmp/err")"
}
tokenizer() { # of N pieces: one for what is unknown, two marks, then letters
    local i letters=abcdefghijklmnopqrstuvwxyz vocab='["<unk>",0],["<s>",0],["</s>",0]'
    for ((i = 0; i < $1 - 3; i++)); do vocab="$vocab,[\"${letters:i:1}\",-1]"; done
    echo '{"version":"1.0","added_tokens":[{"id":2,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"never","split":false},"post_processor":null,"decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"never"},"model":{"type":"Unigram","unk_id":0,"vocab":['"$vocab"'],"byte_fallback":false}}'
}
for ((i = 0; i < 60; i++)); do printf 'abcdefghijklmnopqrst'; done >"$tmp/text"
cat >"$tmp/train.yaml" <<YAML
data: {train: $tmp/text, val: $tmp/text, seq_len: 16}
train: {steps: 3, batch: 4, micro_batch: 2, eval_every: 3, eval_tokens: 64}
optim: {lr: 1e-2, warmup: 1}
YAML
nll() { sed -n 's/.*"nll": *\([0-9.]*\).*/\1/p' "$1" | head -n 1; }

commands() { # NAME DIR TRAINING...: of the model in DIR; the settings of each training
    local type=$1 dir=$2 at how before after vocab
    at=$tmp/$type
    mkdir "$at" && cp "$dir/config.json" "$dir/model.safetensors" "$at"
    [ ! -f "$dir/dms_metadata.json" ] || cp "$dir/dms_metadata.json" "$at"
    vocab=$(sed -n 's/.*"vocab_size": *\([0-9]*\).*/\1/p' "$at/config.json" | head -n 1)
    tokenizer "$vocab" >"$at/tokenizer.json"
    shift 2
    ok info "$at"
    grep -q '^parameters ' "$tmp/out" || wrong "$type: info: $(cat "$tmp/out")"
    ok generate "$at" --prompt abcab --max-new 6 --temperature 0 $one
    ok eval "$at" ppl --data "$tmp/text" --json $one
    before=$(nll "$tmp/out")
    ok convert "$at" "$at-same" --to same $one
    ok eval "$at-same" ppl --data "$tmp/text" --json $one
    [ "$(nll "$tmp/out")" = "$before" ] || wrong "$type: nll $before, converted $(nll "$tmp/out")"
    for how; do
        ok train "$tmp/train.yaml" init_from="$at" run.dir="$at-run" $how $one
        ok eval "$at-run" ppl --data "$tmp/text" --json $one
        after=$(nll "$tmp/out")
        awk -v a="$before" -v b="$after" 'BEGIN { exit !(a > 0 && b > 0 && b < a) }' || wrong "$type: ${how:-all}: nll $before, trained $after"
        ok generate "$at-run" --prompt abcab --max-new 6 --temperature 0 $one
        rm -rf "$at-run"
    done
}

types=0
while read -r type; do
    for dir in "$families"/*/; do # the first of the type
        grep -q "\"model_type\": \"$type\"" "$dir/config.json" && break
        dir=
    done
    [ -n "$dir" ] || { wrong "$type: no golden model" && continue; }
    types=$((types + 1))
    commands "$type" "$dir" '' lora.rank=2
    verdict "$type"
done < <("$prog" info --families | sed -n 's/^| `\([a-z0-9_]*\)` .*/\1/p' | grep -vx -e kvsmith -e llama -e qwen3_5 -e qwen3_5_moe)
for dir in tests/golden/dms/*/; do # with delayed eviction
    name=dms-$(basename "$dir")
    commands "$name" "$dir" ''
    verdict "$name"
done
[ "$types" -ge 30 ] || wrong "$types types"
verdict all_types
