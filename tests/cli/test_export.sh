#!/bin/bash
# Models trained here are what they say: a llama is written as one, and transformers loads it unchanged and computes the
# same logits; one of our own it loads by modeling_kvsmith.py. The second half needs a Python (PYTHON, default python3) with torch and transformers.
set -u
build=${BUILD:-build}
prog=${KVSMITH:-$build/kvsmith}
case $prog in */*) ;; *) prog=./$prog ;; esac
python=${PYTHON:-python3}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export HF_MODULES_CACHE=$tmp/modules # copies of modeling_kvsmith.py

train() { # NAME CONFIG [key=value ...]
    name=$1 config=$2
    shift 2
    "$prog" train "configs/$config.yaml" run.dir="$tmp/$name" train.steps=20 train.batch=2 train.micro_batch=2 \
        train.save_every=0 train.eval_every=0 -q "$@" >"$tmp/log" 2>&1 && return 0
    echo "not ok $name: kvsmith train: $(tail -n 1 "$tmp/log")"
    return 1
}
kind() { # NAME TYPE
    if grep -q "\"model_type\": \"$2\"" "$tmp/$1/last/config.json"; then echo "ok $1-is-$2"; else
        echo "not ok $1-is-$2: $(grep model_type "$tmp/$1/last/config.json")"
    fi
}

train tied tiny-gqa && kind tied llama
train untied tiny-mqa model.tied=false && kind untied llama
train scaled tiny-gqa optim.lr=0.02 model.max_positions=64 \
    'model.kinds.full.rope={type: llama3, theta: 50, factor: 4, original_max_positions: 16}' && kind scaled llama
train window tiny-window && kind window kvsmith
train mistral tiny-gqa model.kinds.full.window=16 && kind mistral mistral
train qwen2 tiny-gqa model.layers=3 'model.kinds={full: {mixer: gqa, heads: 4, kv_heads: 2, qkv_bias: true}, local: {mixer: gqa, heads: 4, kv_heads: 2, qkv_bias: true, window: 16}}' \
    'model.pattern=[full, local, local]' && kind qwen2 qwen2
train qwen3 tiny-qknorm && kind qwen3 qwen3
train gpt2 tiny-gpt2 && kind gpt2 gpt2
train gpt2-erf tiny-gpt2 model.ffn.act=erf model.tied=false && kind gpt2-erf gpt2
train neox tiny-neox && kind neox gpt_neox
train neox-serial tiny-neox model.parallel=false model.ffn.act=tanh model.tied=true model.kinds.full.rope_dims=0 && kind neox-serial gpt_neox
train latent tiny-mla && kind latent deepseek_v3
train direct tiny-mla model.max_positions=64 model.kinds.latent.q_rank=0 model.kinds.latent.v_dim=6 \
    'model.kinds.latent.rope={type: yarn, theta: 50, factor: 4, mscale: 1, mscale_all_dim: 2, original_max_positions: 16, interleaved: true}' &&
    kind direct deepseek_v3

train shared tiny-yoco && kind shared kvsmith
train hybrid tiny-kda && kind hybrid kvsmith

if ! "$python" -c 'import torch, transformers, safetensors' 2>/dev/null; then
    echo "skip transformers: no Python with torch, transformers and safetensors here"
    exit 0
fi
dirs=
for name in tied untied scaled mistral qwen2 qwen3 gpt2 gpt2-erf neox neox-serial latent direct window shared hybrid; do
    dirs="$dirs $tmp/$name/last"
done
# shellcheck disable=SC2086
"$python" tests/golden/check_export.py "$prog" $dirs >"$tmp/log" 2>"$tmp/err"
grep -E '^(ok|not ok) ' "$tmp/log"
[ "$(grep -cE '^(ok|not ok) ' "$tmp/log")" -eq 15 ] || echo "not ok transformers: it ended early: $(tail -n 1 "$tmp/err")"
