#!/bin/bash
# tests/peers/llmc.py, llamacpp.py and commits.py: what they refuse, what they hand to the programs beside, and what they make of their figures.
# Small scripts stand in for kvsmith and its peers: their figures are known, and nothing is measured.
. tests/lib/cases.sh
export PYTHONDONTWRITEBYTECODE=1 TMPDIR=$tmp
unset PEER_LLMC PEER_LLAMACPP
if ! command -v python3 >/dev/null; then
    for t in refusals llmc_no_terminal llmc llamacpp commits; do echo "skip $t: no Python here"; done
    exit 0
fi
mkdir "$tmp/peers" "$tmp/none"
program() { # name, its text on stdin
    { echo '#!/bin/bash' && cat; } >"$tmp/$1"
    chmod +x "$tmp/$1"
}
run() { # expected status, words: the script's stdout in $tmp/out
    local want=$1 got
    shift
    timeout "$(patience 60)" python3 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    [ $got -eq "$want" ] || wrong "$*: exit $got, want $want: $(tail -n 1 "$tmp/err")"
    ls -d "$tmp"/peer.* >/dev/null 2>&1 && wrong "$*: left its folder"
}
refused() { # status, part of the line, words
    local part=$2 script=$3
    run "$1" "${@:3}"
    [ -s "$tmp/out" ] && wrong "$script: wrote to stdout"
    [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -qF -- "$part" "$tmp/err" || wrong "$*: no line with '$part': $(cat "$tmp/err")"
}
said() { grep -qF -- "$1" "$tmp/out" || wrong "no '$1' in: $(cat "$tmp/out" "$tmp/err")"; }

program kvsmith <<'TEXT'
case "$2" in
train)
    rows=$(($(sed -n 's/.*seq_len: \([0-9]*\).*/\1/p' "$3") * $(sed -n 's/.*micro_batch: \([0-9]*\).*/\1/p' "$3")))
    echo "{\"train\": {\"params\": 124475904, \"rows\": $rows, \"tok_s\": $([[ $* = *bf16* ]] && echo 2000 || echo 1000), \"percent_of_peak\": 50}}"
    ;;
decode) echo '{"decode": [{"tok_s": 90, "runs": 40}]}' ;;
prefill) echo '{"prefill": [{"tok_s": 3000}]}' ;;
esac
TEXT

llmc=tests/peers/llmc.py llamacpp=tests/peers/llamacpp.py
refused 2 'PEER_LLMC: expected the folder' $llmc "$tmp/kvsmith"
refused 2 'PEER_LLAMACPP: expected the folder' $llamacpp "$tmp/kvsmith"
PEER_LLMC=$tmp/none refused 2 'holds the program train_gpt2' $llmc "$tmp/kvsmith"
PEER_LLAMACPP=$tmp/none refused 2 'holds the program llama-bench' $llamacpp "$tmp/kvsmith"
PEER_LLAMACPP=$tmp/none refused 2 'holds the program llama-batched-bench' $llamacpp "$tmp/kvsmith" --batch 2
refused 2 "--modes: expected f32, bf16 or both, got 'f8'" $llmc "$tmp/kvsmith" --modes f8
refused 2 '--steps, --skip: expected' $llmc "$tmp/kvsmith" --steps 40
refused 2 '--rounds, --threads: expected' $llmc "$tmp/kvsmith" --rounds 0
refused 2 "--weights: expected some of bf16, f16, f32, got 'q4'" $llamacpp "$tmp/kvsmith" --weights q4
refused 2 '--batch, --prompt: expected' $llamacpp "$tmp/kvsmith" --prompt 0
verdict refusals

# 2 x 64 rows in half a second: 256 tokens/s. The first step, which is to be left out, takes longer.
program peers/train_gpt2 <<'TEXT'
numbers() { od -An -v -tu4 -j0 -N$((4 * $2)) "$1" | tr -s ' \n' ' '; }
[ "$(numbers gpt2_124M.bin 8)" = " 20240326 3 1024 50257 12 12 768 50304 " ] || exit 3
[ "$(stat -c %s gpt2_124M.bin)" -eq $((1024 + 4 * 124475904)) ] || exit 4
for part in train val; do
    ids=dev/data/tinyshakespeare/tiny_shakespeare_$part.bin
    [ "$(numbers $ids 3)" = " 20240520 1 1048576 " ] && [ "$(stat -c %s $ids)" -eq $((1024 + 2 * 1048576)) ] || exit 5
done
[ "$OMP_NUM_THREADS" = 3 ] || exit 6
echo "num_parameters: 124475904"
echo "train dataset num_batches: $((1048576 / ${ROWS:-128}))"
echo "num_activations: $((${ROWS:-128} * (268083 + 288 * ${T:-64})))"
echo "val loss 10.9"
for i in 0 1 2 3; do
    [ "$i" = "${DIES:-none}" ] && echo "Killed" && exit 1
    echo "step $i: train loss 10.9 (took $((i ? 500 : 900)).000000 ms)"
done
sleep 600
TEXT
export PEER_LLMC=$tmp/peers
mkdir "$tmp/no-terminal"
printf 'import pty\n\n\ndef openpty():\n    raise OSError(2, "No such file or directory")\n\n\npty.openpty = openpty\n' >"$tmp/no-terminal/sitecustomize.py"
PYTHONPATH=$tmp/no-terminal refused 1 'a terminal only, and none can be had here: No such file' $llmc "$tmp/kvsmith" --threads 3
verdict llmc_no_terminal

if python3 -c 'import pty; pty.openpty()' 2>/dev/null; then
    run 0 $llmc "$tmp/kvsmith" --rounds 2 --threads 3
    said '124475904 parameters, 2 x 64 rows, 3 threads, 2 rounds'
    said 'kvsmith in f32 beside llm.c in f32, round by round: 3.9 (3.9 to 3.9)'
    said 'kvsmith in bf16 beside llm.c in f32, round by round: 7.8 (7.8 to 7.8)'
    DIES=1 refused 1 'ended before step 2; its last line: Killed' $llmc "$tmp/kvsmith" --threads 3
    ROWS=129 refused 1 'expected those of one B x T, got []' $llmc "$tmp/kvsmith" --threads 3
    [ ! -r /proc/meminfo ] ||
        ROWS=1048576 T=1024 refused 1 'steps of 1024 x 1024' $llmc "$tmp/kvsmith" --threads 3
    verdict llmc
else
    echo "skip llmc: no terminal can be had here"
fi

# Forty steps in five parts of 8; the model is the standard one, 9.5 M numbers in 2 bytes each.
program peers/llama-bench <<'TEXT'
[ "$1" = -m ] && [ "$(head -c 4 "$2")" = GGUF ] && [ "$(od -An -tu4 -j4 -N4 "$2" | tr -d ' ')" = 3 ] || exit 3
size=$(stat -c %s "$2")
[ "$size" -gt 19000000 ] && [ "$size" -lt 19200000 ] || exit 4
case "$*" in
*"-t 3 -ctk f16 -ctv f16 -o json -p 0 -n 8 -d 128 -r 5") echo '[{"samples_ts": [30, 10, 40, 45, 50], "model_n_params": 9540864, "build_commit": "abc"}]' ;;
*"-t 3 -ctk f16 -ctv f16 -o json -p 128 -n 0 -r 5") echo '[{"samples_ts": [1000, 500, 1500, 1400, 1501], "model_n_params": '"${COUNT:-9540864}"'}]' ;;
*) echo "got $*" >&2 && exit 5 ;;
esac
TEXT
program peers/llama-batched-bench <<'TEXT'
case "$*" in *"-npp 128 -ntg 40 -npl 4 -c 672 "*) ;; *) exit 3 ;; esac
echo "a line of its log"
echo '{"pl": 4, "speed_tg": 45.0, "speed_pp": 6000}'
TEXT
export PEER_LLAMACPP=$tmp/peers
run 0 $llamacpp "$tmp/kvsmith" --rounds 2 --threads 3
said 'llama.cpp abc, cache f16'
said 'llama.cpp-bf16 decode 40.0 (40.0 to 40.0), prompt 1400'
said 'kvsmith beside llama.cpp-f16, round by round: decode 2.25 (2.25 to 2.25), prompt 2.14'
run 0 $llamacpp "$tmp/kvsmith" --rounds 1 --threads 3 --batch 4 --weights bf16
said 'kvsmith beside llama.cpp-bf16, round by round: decode 2.00 (2.00 to 2.00), prompt 0.50'
COUNT=7 refused 1 "model has 7 parameters, the file 9540864" $llamacpp "$tmp/kvsmith" --rounds 1 --threads 3
refused 1 'llama-bench ended with status 5: got' $llamacpp "$tmp/kvsmith" --rounds 1 --threads 1
if python3 -c 'import yaml' 2>/dev/null; then
    refused 2 'expected a tied model of one plain gqa kind' $llamacpp "$tmp/kvsmith" configs/tiny-gpt2.yaml
    echo "model: 1" >"$tmp/other.yaml"
    refused 2 'expected a configuration with model.kinds' $llamacpp "$tmp/kvsmith" "$tmp/other.yaml"
    refused 2 'expected a configuration in YAML' $llamacpp "$tmp/kvsmith" setup
fi
verdict llamacpp

# The second program is a tenth faster at every bench; the one of a teacher costs both half a second for 100 rows.
for which in old:1000 new:1100; do
    program "${which%:*}" <<TEXT
case "\$2" in
train) echo '{"train": {"rows": 100, "tok_s": ${which#*:}}, "distill": {"step_s": 0.5}}' ;;
*) echo "{\"\$2\": [{\"tok_s\": ${which#*:}}]}" ;;
esac
TEXT
done
commits=tests/peers/commits.py
run 0 $commits "$tmp/old" "$tmp/new" --rounds 4
said 'prefill 124M f32                 old     1000.0 new     1100.0 tokens/s; new over old 1.100 (quartiles 1.100 to 1.100)'
said 'train tiny f32 with a teacher    old      200.0 new      200.0 tokens/s; new over old 1.000 (quartiles 1.000 to 1.000)'
[ "$(wc -l <"$tmp/out")" -eq 10 ] || wrong "$(wc -l <"$tmp/out") lines, want 10"
run 0 $commits "$tmp/old" "$tmp/new" --rounds 2 --only batch\ 16 --json
said '{"decode 124M f32 batch 16": [[1000, 1100], [1000, 1100]]}'
run 2 $commits "$tmp/old" "$tmp/new" --rounds 0
run 2 $commits "$tmp/none/kvsmith" "$tmp/new"
grep -qF 'none that can be executed' "$tmp/err" || wrong "$(cat "$tmp/err")"
run 2 $commits "$tmp/old" "$tmp/new" --only decade
verdict commits
