#!/bin/bash
# Fine-tuning a model in bf16: what of it is in memory, against the plan and the process; the values in its files; the
# same in f32; resumed runs; a teacher in bf16; what is refused.
. tests/lib/cases.sh
train() { "$prog" train "$@" >"$tmp/out" 2>"$tmp/err"; }
ok() {
    train "$@"
    local s=$?
    [ $s -eq 0 ] || wrong "train $*: exit $s: $(cat "$tmp/err")"
}
number() { grep -o "\"$2\":[0-9]*" "$1" | head -n 1 | cut -d: -f2; } # FILE KEY
memory() { grep -o '"memory":{[^}]*}' "$1" | head -n 1; }
loss() { grep -o "^{\"step\":$2,\"loss\":[^,]*" "$1/metrics.jsonl" | cut -d: -f3; }
close() { awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; exit !(a != "" && d < t && -d < t) }'; }
one="--threads 1 -q"

# ---- memory: 19.7 million parameters of no numbers, 39 MB in bf16
tests/synthetic_llama.sh "$tmp/zero" 512 4 8 2 1408 8192
ok configs/tiny-mha.yaml run.dir="$tmp/mha" train.steps=20 $one
cp "$tmp/mha/last/tokenizer.json" "$tmp/zero"
cat >"$tmp/zero.yaml" <<YAML
init_from: $tmp/zero
model:
  d_model: 512
  layers: 4
  vocab: 8192
  max_positions: 2048
  norm_eps: 1e-5
  kinds: {full: {mixer: gqa, heads: 8, kv_heads: 2, rope: {theta: 10000}}}
  ffn: {kind: swiglu, hidden: 1408}
  tied: false
data: {train: docs/guide.md, seq_len: 64, tokenizer: byte}
train: {steps: 1, batch: 1, micro_batch: 1, eval_tokens: 64, recompute: -1, dtype: f32}
optim: {warmup: 1}
lora: {rank: 8}
YAML
ok "$tmp/zero.yaml" run.dir="$tmp/z" --plan --json --threads 1
cp "$tmp/out" "$tmp/plan"
ok "$tmp/zero.yaml" run.dir="$tmp/z" --json --threads 1
[ "$(memory "$tmp/plan")" = "$(memory "$tmp/out")" ] || wrong "plan $(memory "$tmp/plan"), run $(memory "$tmp/out")"
total=$(number "$tmp/plan" total) anon=$(number "$tmp/out" peak_anonymous_bytes)
[ "$(number "$tmp/plan" weights)" -lt 39400000 ] || wrong "weights: $(memory "$tmp/plan")"
[ "$(number "$tmp/plan" gradients)" -lt 40000 ] || wrong "gradients: $(memory "$tmp/plan")"
[ "$total" -lt 95000000 ] && [ "$anon" -lt $((total + 45000000)) ] || wrong "plan $total bytes, anonymous $anon"
grep -q 'trained 290,816 of 19,665,408, 1.5 %' "$tmp/err" || wrong "first line: $(head -n 1 "$tmp/err")"
ok "$tmp/zero.yaml" run.dir="$tmp/z2" --plan
grep -Eq '^  weights +39,[0-9,]+ +37\.[0-9]+ MiB$' "$tmp/out" && grep -q 'ids of the text' "$tmp/out" || wrong "plan: $(cat "$tmp/out")"
verdict memory

# ---- numbers: a source in bf16 gives what the same numbers in f32 give; auto is what its files are
"$prog" convert "$tmp/mha" "$tmp/b" --to same dtype=bf16 -q >"$tmp/out" 2>&1 || wrong "convert: $(cat "$tmp/out")"
"$prog" convert "$tmp/b" "$tmp/f" --to same dtype=f32 -q >"$tmp/out" 2>&1 || wrong "convert: $(cat "$tmp/out")"
up="configs/tiny-mha.yaml $one train.steps=6 train.eval_every=3 train.save_every=3 optim.lr=0.01 optim.warmup=0 optim.schedule=constant train.dtype=f32 train.save_dtype=f32"
ok $up run.dir="$tmp/rb" init_from="$tmp/b" lora.rank=4
ok $up run.dir="$tmp/rf" init_from="$tmp/f" lora.rank=4
grep -q '^  frozen_dtype: bf16$' "$tmp/rb/config.yaml" || wrong "bf16: $(grep frozen "$tmp/rb/config.yaml")"
grep -q '^  frozen_dtype: f32$' "$tmp/rf/config.yaml" || wrong "f32: $(grep frozen "$tmp/rf/config.yaml")"
for k in 1 6; do close "$(loss "$tmp/rb" $k)" "$(loss "$tmp/rf" $k)" 1e-4 || wrong "step $k: $(loss "$tmp/rb" $k) and $(loss "$tmp/rf" $k)"; done
close "$(loss "$tmp/rb" 1)" "$(loss "$tmp/rb" 6)" 1e-5 && wrong "nothing was learned: $(loss "$tmp/rb" 1), $(loss "$tmp/rb" 6)"
# What is saved is the merged model: alone it has the loss that the run ended with.
ok $up run.dir="$tmp/again" init_from="$tmp/rb" train.eval_first=true train.steps=1 train.eval_every=1
close "$(grep -o '"step":0,"val_loss":[^,}]*' "$tmp/again/metrics.jsonl" | cut -d: -f3)" \
    "$(grep -o '"step":6,"val_loss":[^,}]*' "$tmp/rb/metrics.jsonl" | cut -d: -f3)" 1e-4 ||
    wrong "merged: $(head -n 1 "$tmp/again/metrics.jsonl"), run: $(tail -n 1 "$tmp/rb/metrics.jsonl")"
# Resumed to the bit, without the source; saved by a thread to the bit.
ok $up run.dir="$tmp/rc" init_from="$tmp/b" lora.rank=4 train.steps=3
mv "$tmp/b" "$tmp/gone"
ok $up run.dir="$tmp/rc" init_from="$tmp/b" lora.rank=4 --resume auto
mv "$tmp/gone" "$tmp/b"
ok $up run.dir="$tmp/rd" init_from="$tmp/b" lora.rank=4 train.async_save=true
for d in rc rd; do
    for f in model.safetensors trainer/optimizer.safetensors trainer/lora.safetensors; do
        cmp "$tmp/rb/last/$f" "$tmp/$d/last/$f" >>"$bad" 2>&1
    done
done
# Frozen in part: the files have the source's numbers, as they are.
ok $up run.dir="$tmp/p" init_from="$tmp/b" "train.freeze=['*.mlp.*', '*embed*']" train.save_every=0
ok $up run.dir="$tmp/q" init_from="$tmp/f" "train.freeze=['*.mlp.*', '*embed*']" train.save_every=0
close "$(loss "$tmp/p" 6)" "$(loss "$tmp/q" 6)" 1e-4 || wrong "frozen: $(loss "$tmp/p" 6) and $(loss "$tmp/q" 6)"
# Parts of a joined tensor (gpt2's c_attn) may differ in dtype: what is saved has the loss that the run ended with.
ok configs/tiny-gpt2.yaml model.d_model=64 run.dir="$tmp/g" train.steps=20 train.dtype=f32 $one
"$prog" convert "$tmp/g" "$tmp/gb" --to same dtype=bf16 -q >"$tmp/out" 2>&1 || wrong "convert: $(cat "$tmp/out")"
gpt="${up/tiny-mha.yaml/tiny-gpt2.yaml model.d_model=64}"
ok $gpt run.dir="$tmp/j" init_from="$tmp/gb" "train.freeze=['*q_proj.weight']"
grep -q '^  frozen_dtype: bf16$' "$tmp/j/config.yaml" || wrong "gpt2: $(grep frozen "$tmp/j/config.yaml")"
ok $gpt run.dir="$tmp/j2" init_from="$tmp/j/last" train.eval_first=true train.steps=1 train.eval_every=1
close "$(grep -o '"step":0,"val_loss":[^,}]*' "$tmp/j2/metrics.jsonl" | cut -d: -f3)" \
    "$(grep -o '"step":6,"val_loss":[^,}]*' "$tmp/j/metrics.jsonl" | cut -d: -f3)" 1e-5 ||
    wrong "joined: $(head -n 1 "$tmp/j2/metrics.jsonl"), run: $(tail -n 1 "$tmp/j/metrics.jsonl")"
verdict numbers

# ---- a teacher
for d in b f; do ok $up run.dir="$tmp/t$d" teacher.path="$tmp/$d" 'teacher.losses={lm: 0.5, kl: 1}' --json; cp "$tmp/out" "$tmp/t$d.json"; done
close "$(loss "$tmp/tb" 6)" "$(loss "$tmp/tf" 6)" 1e-4 || wrong "taught: $(loss "$tmp/tb" 6) and $(loss "$tmp/tf" 6)"
[ $((2 * $(number "$tmp/tb.json" teacher_weights))) -lt $((3 * $(number "$tmp/tf.json" teacher_weights) / 2)) ] ||
    wrong "teacher: $(memory "$tmp/tb.json"), $(memory "$tmp/tf.json")"
# It is the same teacher, however it lies in memory.
ok $up run.dir="$tmp/tb" teacher.path="$tmp/f" 'teacher.losses={lm: 0.5, kl: 1}' teacher.dtype=f32 train.steps=7 --resume auto
verdict teacher

# ---- refused
train $up run.dir="$tmp/x" init_from="$tmp/b" lora.rank=4 train.frozen_dtype=f16
[ $? -eq 2 ] && grep -q 'train.frozen_dtype: expected one of auto, f32, bf16' "$tmp/err" || wrong "f16: $(cat "$tmp/err")"
train $up run.dir="$tmp/rb" init_from="$tmp/b" lora.rank=4 train.frozen_dtype=f32 train.steps=9 --resume auto
[ $? -eq 2 ] && grep -q 'train.frozen_dtype: f32, but the run was begun with bf16' "$tmp/err" || wrong "resumed: $(cat "$tmp/err")"
verdict refused
