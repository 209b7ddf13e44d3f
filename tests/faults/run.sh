#!/bin/bash
# Faults over the commands of tests/faults/driver.c: tests/faults/run.sh BUILD [I/K | sample]. All cases, share I of K, or
# the sample that tests/cli/test_faults.sh runs. JOBS=n (default: processors) works on as many shares at once; ONLY=command and
# KIND=kind restrict it. SIGTERM to the drivers prints what was done.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=$(realpath "${1:-build}") part=${2:-1/1}
export LC_ALL=C.UTF-8
work=$(mktemp -d) || exit 1
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
slow=${TEST_SLOW:-$(tests/slow.sh)}
jobs=${JOBS:-$(nproc)}
prog=$build/faults/kvsmith
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

# ---- what the commands read
mkdir "$work/in" && cd "$work/in" || exit 1
for i in 1 2 3 4 5 6 7 8; do echo "The quick brown fox jumps over the lazy dog. Now is the time, said $i of the dogs."; done >text.txt
head -n 2 text.txt >val.txt
echo "1 2 3 4" >ids.txt
model='{d_model: 16, layers: 2, kinds: {a: {mixer: gqa, heads: 2, kv_heads: 2, head_dim: 8}}, pattern: [a], ffn: [{kind: swiglu, hidden: 16}]}'
cat >tiny.yaml <<END
model: $model
data: {train: ../in/text.txt, seq_len: 8, val_fraction: 0.2}
train: {steps: 4, batch: 2, micro_batch: 1, save_every: 2, eval_every: 2, eval_tokens: 16, sample_every: 2, sample_tokens: 4, log_every: 1, keep_last: 2, dtype: f32}
optim: {lr: 1e-3, warmup: 1, schedule_steps: 4}
END
cat >compare.yaml <<END
dir: cmp
base:
  model: $model
  data: {train: ../in/text.txt, seq_len: 8, val_fraction: 0.2}
  train: {batch: 2, micro_batch: 2, eval_every: 100, eval_tokens: 16, save_every: 2, keep_last: 1, keep_best: false, log_every: 1, dtype: f32}
  optim: {lr: 1e-3, warmup: 1}
match: {params: 0, tolerance: 0.2, multiple: 1}
lrs: [1e-3]
widen: 0
seeds: [1]
budget: {tokens: 64, max_passes: 100}
measure: {context: 8, prompt: 4, decode: 2, batches: [1], repeats: 1, contexts: [8], loss_tokens: 16}
rows:
  - {name: mha}
  - {name: mqa, set: {model.kinds.a.kv_heads: 1}}
END
{
    "$prog" train tiny.yaml --threads 1 -q run.dir=half/run train.steps=2 &&
        "$prog" train tiny.yaml --threads 1 -q run.dir=whole && cp -rL whole/last model && rm -r model/trainer whole &&
        "$prog" train tiny.yaml --threads 1 -q run.dir=deeper model.layers=4 train.steps=1 &&
        cp -rL deeper/last deep && rm -r deep/trainer deeper &&
        "$prog" data train-bpe text.txt --vocab 270 --out tok.json --threads 1
} >log 2>&1 || { cat log; exit 1; }
sed -i 's|\.\./in/text.txt|../in/text.txt|' half/run/config.yaml
cd - >/dev/null || exit 1

# ---- the work
drive() { "$build/faults/driver" "$prog" "$build/faults/inject.so" "$work" --slow "$slow" ${ONLY:+--only "$ONLY"} ${KIND:+--kind "$KIND"} "$@"; }
if [ "$part" = sample ]; then
    drive --sample "${SAMPLE:-560}" --kills "${KILLS:-42}"
    exit
fi
IFS=/ read -r i k <<<"$part"
for ((j = 0; j < jobs; j++)); do
    drive --share "$(((i - 1) * jobs + j + 1))/$((k * jobs))" --kills "$((${KILLS:-1000} / k / jobs))" >"$work/out.$j" &
done
wait
cat "$work"/out.* | grep '^FAULT' | sort | head -n 200
awk '/^command/ { head = $0; on = 1; next } on && NF == 10 { key = sprintf("%-10s %-10s", $1, $2); if (!(key in seen)) { seen[key] = 1; order[++n] = key }
        for (f = 3; f <= NF; f++) { sum[key, f] += $f; all[f] += $f } }
    /^total/ { on = 0; tables++ }
    END { print head; for (i = 1; i <= n; i++) { line = order[i]; for (f = 3; f <= 10; f++) line = line sprintf(" %8d", sum[order[i], f]); print line }
        line = sprintf("%-10s %-10s", "total", ""); for (f = 3; f <= 10; f++) { line = line sprintf(" %8d", all[f]); if (f > 3) bad += all[f] }
        print line; exit bad > 0 || !all[3] || tables != '"$jobs"' }' "$work"/out.*
