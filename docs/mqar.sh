#!/usr/bin/env bash
# The associative recall of configs/mqar.yaml for every mixer and three learning rates: docs/mqar.sh PROGRAM FOLDER [RUN ...]
# A RUN is ROW@LR, such as kda@4e-3; none: all. It has 8M tokens in sequences of 128, then as many in sequences of T (256),
# less of either when 99 % is reached; that is what its accuracy is of. One that is right in less than a tenth has 2M in
# the second half, unless it begins there. Each runs on one thread, JOBS of them at a time (default 2); what is finished is not
# done again. SET holds further settings, such as SET='data.task.pairs=64'. The status is 1 when a run failed, whose line says
# why; the others go on.
# docs/plot_mqar.py draws what came out.
set -euo pipefail
program=$1 out=$2
shift 2

row() { # the mixer of a row; a state has 2 heads of 64 x 64, Mamba-2's 4
    case $1 in
    softmax) echo 'mixer: gqa, heads: 2' ;;
    window) echo 'mixer: gqa, heads: 2, window: 64' ;;
    mla) echo 'mixer: mla, heads: 2, kv_rank: 64, nope_dim: 64, rope_dim: 32' ;;
    kda | gdn | deltanet | gla | retention | gated_retention | linear) echo "mixer: $1, heads: 2, head_dim: 64" ;;
    mamba2) echo 'mixer: mamba2, heads: 4, head_dim: 64, state_size: 64' ;;
    *)
        echo "mqar.sh: no row has the name '$1'" >&2
        exit 2
        ;;
    esac
}

accuracy() { sed -n 's/.*"val_acc":\([0-9.]*\).*/\1/p' "$1/metrics.jsonl" | tail -n 1; }

begun() { awk "BEGIN { exit !($(accuracy "$1") >= 0.1) }"; }
second() { # in sequences of T, from the end of the first half, with the variables of one
    rm -rf "$dir"
    # shellcheck disable=SC2086 # SET is words
    "$program" train configs/mqar.yaml --threads 1 run.dir="$dir" init_from="$dir-128/last" "model.kinds.mix={$mixer}" \
        optim.lr="$(awk "BEGIN { print $lr / 2 }")" optim.min_lr="$(awk "BEGIN { print $lr / 20 }")" data.seq_len="$T" \
        train.batch=$((4096 / T)) train.micro_batch=$((4096 / T)) train.steps="$1" ${SET:-} >>"$dir.log" 2>&1
}
one() {
    local run=$1 name=${1%@*} lr=${1#*@} dir=$out/$1 mixer T=${T:-256}
    mixer=$(row "$name")
    [ -e "$dir.done" ] && return
    trap 'echo "mqar.sh: $run failed: $(tail -n 1 "$dir.log")" >&2' ERR
    if [ ! -e "$dir-128.done" ]; then
        rm -rf "$dir-128"
        # shellcheck disable=SC2086 # SET is words
        "$program" train configs/mqar.yaml --threads 1 run.dir="$dir-128" "model.kinds.mix={$mixer}" optim.lr="$lr" \
            optim.min_lr="$(awk "BEGIN { print $lr / 10 }")" ${SET:-} >"$dir.log" 2>&1
    fi
    touch "$dir-128.done"
    if ! begun "$dir-128"; then second 500; fi
    if begun "$dir-128" || begun "$dir"; then second 2000; fi
    touch "$dir.done"
    echo "$run: $(accuracy "$dir") of the answers right; $(tail -n 1 "$dir.log")"
}

mkdir -p "$out"
[ $# -gt 0 ] || for lr in 4e-3 2e-3 8e-3; do
    for name in softmax window mla kda gdn deltanet gla retention gated_retention linear mamba2; do
        set -- "$@" "$name@$lr"
    done
done
for run in "$@"; do
    if [[ ! $run =~ ^[a-z_0-9]+@[0-9.]+(e-?[0-9]+)?$ ]]; then
        echo "mqar.sh: a run is ROW@LR, such as kda@4e-3, not '$run'" >&2
        exit 2
    fi
    row "${run%@*}" >/dev/null
done
export -f one row accuracy begun second
export program out
printf '%s\n' "$@" | xargs -P "${JOBS:-2}" -I{} bash -eEuo pipefail -c 'one {}' || exit 1
