#!/bin/bash
# Outside CI: a synthetic checkpoint of 1.1e9 parameters in bf16 (sparse, 2.2 GB) fine-tuned by adapters: the highest
# anonymous memory of the process, which may not exceed 3.5e9 bytes, beside the plan. Usage: tests/big_finetune.sh
# [KVSMITH] [key=value ...]; SAVE=1 also writes the checkpoint of the merged model (4.4 GB below TMPDIR).
. tests/lib/cases.sh
[ $# -gt 0 ] && prog=$(realpath "$1") && shift
tests/synthetic_llama.sh "$tmp/src" 2048 22 32 4 5632 32000
"$prog" train configs/tiny-mha.yaml run.dir="$tmp/tok" train.steps=1 optim.warmup=0 -q || exit 1
cp "$tmp/tok/last/tokenizer.json" "$tmp/src"
cat >"$tmp/run.yaml" <<YAML
run: {dir: $tmp/run}
init_from: $tmp/src
model:
  d_model: 2048
  layers: 22
  vocab: 32000
  max_positions: 2048
  norm_eps: 1e-5
  kinds: {full: {mixer: gqa, heads: 32, kv_heads: 4, rope: {theta: 10000}}}
  ffn: {kind: swiglu, hidden: 5632}
  tied: false
data: {train: docs/guide.md, seq_len: 512, tokenizer: byte}
train: {steps: 2, batch: 1, micro_batch: 1, eval_every: 0, recompute: -1}
optim: {warmup: 1, state_dtype: bf16}
lora: {rank: 16}
YAML
"$prog" train "$tmp/run.yaml" "$@" --plan || exit 1
"$prog" train "$tmp/run.yaml" "$@" >"$tmp/out" 2>&1 &
pid=$! most=0 steps=0
start=$(date +%s)
while kill -0 $pid 2>/dev/null; do
    anon=$(awk '/^RssAnon/ { print $2 }' /proc/$pid/status 2>/dev/null)
    [ "${anon:-0}" -gt $most ] && most=$anon
    grep -q '^step 2/2' "$tmp/out" && steps=2
    [ $steps = 2 ] && [ -z "${SAVE:-}" ] && kill $pid 2>/dev/null
    sleep 0.1
done
wait $pid
cat "$tmp/out"
[ $steps = 2 ] || grep -q '^step 2/2' "$tmp/out" || exit 1
echo "at most $((most * 1024)) bytes of anonymous memory in $(($(date +%s) - start)) s"
[ $((most * 1024)) -lt 3500000000 ] || { echo "more than 3.5e9"; exit 1; }
