#!/bin/bash
# Compares two builds of the program bit for bit: tests/bits.sh OLD NEW [FOLDER]
# Each trains twelve configurations for a few steps, resumes one, makes three conversions, decodes and writes logits.
# Weights, optimizer state, metrics, logits and text must be the same bytes; only times, paths and the commit may differ.
# It is for changes that must not change a result. One line a difference; status 1 if there is one.
set -u
[ $# -ge 2 ] || { echo "usage: tests/bits.sh OLD NEW [FOLDER]" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
old=$(realpath "$1") new=$(realpath "$2")
work=${3:-$(mktemp -d)}
[ $# -ge 3 ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work" && work=$(cd "$work" && pwd) || exit 1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}

CONFIGS="gqa mla dmc dms yoco kda gdn mamba2 moe muon share stages"
# Both run in a folder of the same name, so that paths that a run keeps are the same.
make_all() {
    program=$1
    rm -rf "$work/bits" && mkdir "$work/bits" && cd "$work/bits" || exit 1
    ln -s "$here/configs" "$here/data" .
    for name in $CONFIGS; do
        # auto is measured, and a busy machine may measure another dtype the second time
        case $name in mla | gdn | moe | yoco | stages) more="train.dtype=bf16" ;; *) more="train.dtype=f32" ;; esac
        case $name in gqa) more="$more optim.state_dtype=bf16" ;; esac
        case $name in stages | dmc) ;; *) more="$more train.steps=8 train.eval_every=4 train.save_every=4 optim.warmup=2" ;; esac
        "$program" train configs/tiny-$name.yaml run.dir="$name" $more -q >/dev/null 2>"$name.err" ||
            { echo "$program: training tiny-$name: $(tail -n 1 "$name.err")"; exit 1; }
    done
    "$program" train configs/tiny-gqa.yaml run.dir=gqa train.dtype=f32 optim.state_dtype=bf16 train.steps=12 train.eval_every=4 \
        train.save_every=4 optim.warmup=2 --resume auto -q >/dev/null 2>resume.err ||
        { echo "$program: resuming: $(tail -n 1 resume.err)"; exit 1; }
    "$program" train configs/tiny-gqa.yaml run.dir=lora train.dtype=f32 train.steps=4 train.eval_every=2 optim.warmup=1 lora.rank=2 init_from=gqa/last -q >/dev/null 2>lora.err ||
        echo "$program: adapters: $(tail -n 1 lora.err)"
    seq 1 40 | tr "\n" " " >ids && echo >>ids
    head -c 20000 data/kjv.txt >calib.txt
    convert mqa gqa/last to-mqa --to mqa
    convert mla gqa/last to-mla --to mla rank=8 rope=4 --calib calib.txt
    convert dmc gqa/last to-dmc --to dmc
    
    for name in $CONFIGS to-mqa to-mla to-dmc; do
        model=$name
        [ -d "$name/last" ] && model=$name/last
        "$program" logits "$model" --tokens ids --out "$name.logits" -q >/dev/null 2>&1 || echo refused >"$name.logits"
        "$program" generate "$model" --prompt "The sea" --max-new 24 -q >"$name.text" 2>&1 || echo refused >"$name.text"
        "$program" generate "$model" --prompt "The sea" --max-new 12 --temperature 1 --seed 3 --cache-dtype bf16 -q \
            >"$name.text16" 2>&1 || echo refused >"$name.text16"
    done
}
convert() {
    what=$1 && shift
    "$program" convert "$@" -q >/dev/null 2>"convert-$what.err" ||
        { echo "$program: converting to $what: $(tail -n 1 "convert-$what.err")"; exit 1; }
}

# What a run wrote, a line a file. Times, speeds and provenance are left out of what is compared.
sums() {
    cd "$work/bits" || exit 1
    find . -type f ! -name '*.err' ! -name run.jsonl ! -name clock.json ! -name lock ! -path '*/tb/*' ! -name samples.txt | LC_ALL=C sort |
        while read -r file; do
            case $file in
            *.jsonl) sum=$(sed -E 's/"(tok_s|mfu|elapsed|seconds|time|wait|ms|host_ms|eta|peak_gflops)[a-z_]*":[-0-9.e+null]*,?//g' "$file" | sha256sum) ;;
            *) sum=$(sha256sum <"$file") ;;
            esac
            echo "${sum%% *} $file"
        done
}

make_all "$old" && sums >"$work/old.sums"
rm -rf "$work/bits-old" && mv "$work/bits" "$work/bits-old"
make_all "$new" && sums >"$work/new.sums"
files=$(wc -l <"$work/old.sums")
refused=$(grep -lx refused "$work"/bits/*.logits "$work"/bits/*.text "$work"/bits/*.text16 2>/dev/null | wc -l)
if diff "$work/old.sums" "$work/new.sums" >"$work/differ"; then
    echo "bits: $files files are the same, $refused commands refused by both"
else
    sed -n 's/^> [0-9a-f]* /differs: /p; s/^< [0-9a-f]* /differs: /p' "$work/differ" | sort -u
    echo "bits: $(grep -c '^[<]' "$work/differ") of $files files differ"
    exit 1
fi
