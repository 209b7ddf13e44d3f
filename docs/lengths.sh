#!/usr/bin/env bash
# How time grows with the context, at the size of configs/compare.yaml: docs/lengths.sh PROGRAM [SECONDS]
# Decoding: microseconds of a token behind contexts of 1K to 32K, attention beside Kimi Delta Attention. Prompts: seconds
# of one of 1K to 16K tokens, a Transformer beside YOCO of as many layers. Each medians of SECONDS (default 2).
set -euo pipefail
program=$1 seconds=${2:-2}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

config() { # NAME: kinds and pattern on stdin
    {
        echo 'model:'
        echo '  d_model: 256'
        cat
        echo '  ffn: {kind: swiglu, hidden: 304}'
        echo 'data: {seq_len: 32768}'
    } >"$tmp/$1.yaml"
}
config mha <<'END'
  layers: 6
  kinds: {mix: {mixer: gqa, heads: 4, kv_heads: 4, head_dim: 64}}
END
config kda <<'END'
  layers: 6
  kinds: {mix: {mixer: kda, heads: 4, head_dim: 64}}
END
config yoco <<'END'
  layers: 7
  kinds:
    self: {mixer: gqa, heads: 4, kv_heads: 1, head_dim: 64, window: 128}
    publish: {mixer: gqa, heads: 0, kv_heads: 1, head_dim: 64}
    cross: {mixer: gqa, heads: 4, kv_heads: 1, head_dim: 64}
  pattern: [self, self, self, publish, cross, cross, cross]
  kv_from: {4: 3, 5: 3, 6: 3}
END

measured() { # WHAT ROW N FIELD
    "$program" bench "$1" "$tmp/$2.yaml" --batch 1 --prompt "$3" --seconds "$seconds" --json | tr ',{}[]' '\n' | sed -n "s/^ *\"$4\": *//p" | tail -n 1
}
echo '| context | mha, us a token | kda, us a token |'
echo '|---:|---:|---:|'
for n in 1024 4096 16384 32768; do
    awk -v n=$n -v a="$(measured decode mha $n step_s)" -v b="$(measured decode kda $n step_s)" \
        'BEGIN { printf "| %d | %.0f | %.0f |\n", n, 1e6 * a, 1e6 * b }'
done
echo
echo '| prompt | mha, s | yoco, s | of it |'
echo '|---:|---:|---:|---:|'
for n in 1024 2048 4096 8192 16384; do
    awk -v n=$n -v a="$(measured prefill mha $n pass_s)" -v b="$(measured prefill yoco $n pass_s)" \
        'BEGIN { printf "| %d | %.3f | %.3f | %.2f |\n", n, a, b, b / a }'
done
