#!/bin/bash
# Text to tokens and training on them, as users meet it: kvsmith data, sets and blends in a run, files that change under
# a run or between two.
. tests/lib/cases.sh
run() { "$prog" "$@" >"$tmp/out" 2>"$tmp/err"; }
ok() {
    run "$@"
    local s=$?
    [ $s -eq 0 ] || wrong "$*: exit $s: $(cat "$tmp/err")"
}
# refused STATUS PART ARGUMENTS: exit status, nothing on stdout, one line of at most 300 characters with PART on stderr
refused() {
    local want=$1 part=$2 s
    shift 2
    run "$@"
    s=$?
    [ $s -eq "$want" ] || wrong "$*: exit $s, expected $want"
    [ -s "$tmp/out" ] && wrong "$*: printed $(head -c 80 "$tmp/out")"
    [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ "$(wc -m <"$tmp/err")" -le 301 ] || wrong "$*: not one line: $(cat "$tmp/err")"
    grep -q -e "$part" "$tmp/err" || wrong "$*: expected '$part' in: $(cat "$tmp/err")"
}
field() { grep -o "\"$2\":[^,}]*" "$1" | head -n 1 | cut -d: -f2; }
head -c 300000 data/kjv.txt >"$tmp/text"
tok=$tmp/tok.json

# ---- train-bpe
ok data train-bpe "$tmp/text" --vocab 500 --out "$tok" --pattern llama3 --json --threads 2
[ "$(field "$tmp/out" vocab)" = 500 ] || wrong "vocabulary: $(cat "$tmp/out")"
ok data train-bpe "$tmp/text" --vocab 500 --out "$tmp/tok1.json" --pattern llama3 --threads 1 -q
cmp "$tok" "$tmp/tok1.json" >>"$bad"
refused 2 "expected one of gpt2, llama3, qwen2" data train-bpe "$tmp/text" --vocab 500 --out "$tmp/x" --pattern qwen
refused 2 "vocabulary of 256" data train-bpe "$tmp/text" --vocab 256 --out "$tmp/x"
refused 2 "expected --vocab" data train-bpe "$tmp/text" --out "$tmp/x"
refused 2 "none: No such file" data train-bpe "$tmp/none" --vocab 300 --out "$tmp/x"
[ -e "$tmp/x" ] && wrong "a refused train-bpe wrote a file"
verdict train-bpe

# ---- what stands around the ids of a set
printf 'aaaa\fbb' >"$tmp/old.txt" && printf 'cc\fdddd' >"$tmp/new.txt"
ok data tokenize "$tmp/old.txt" --separator '\f' --tokenizer byte --out "$tmp/same" -q
ok data tokenize "$tmp/new.txt" --separator '\f' --tokenizer byte --format llmc --out "$tmp/same" -q
[ -e "$tmp/same.idx" ] && wrong "the index of another set was left beside ids of llm.c"
ok data inspect "$tmp/same.bin" -q
# an id that the text has, too, as the end of documents
ok train configs/tiny-gqa.yaml run.dir="$tmp/eot" data.train="$tmp/text" data.eot=32 data.val_fraction=0.01 train.steps=2 \
    optim.warmup=0 train.sample_every=0 -q
# zstd whose first frame is one to pass over, as parallel packers write it
printf '\x50\x2a\x4d\x18\x04\0\0\0abcd\x28\xb5\x2f\xfd\x20\x05\x29\0\0hello' >"$tmp/p.zst"
ok data tokenize "$tmp/p.zst" --tokenizer byte --out "$tmp/pz" --json
[ "$(field "$tmp/out" bytes)" = 5 ] || wrong "a skippable frame was taken for text: $(cat "$tmp/out")"
refused 2 'compressed' train configs/tiny-gqa.yaml run.dir="$tmp/zst" data.train="$tmp/p.zst"
verdict surroundings

# ---- tokenize: the same ids whatever the packing, the file's form and the threads
sep='\f\n'
for threads in 1 3; do
    ok data tokenize "$tmp/text" --separator "$sep" --tokenizer "$tok" --out "$tmp/m$threads" --threads $threads --json
done
cmp "$tmp/m1.bin" "$tmp/m3.bin" >>"$bad" && cmp "$tmp/m1.idx" "$tmp/m3.idx" >>"$bad"
docs=$(field "$tmp/out" documents) tokens=$(field "$tmp/out" tokens)
[ "$docs" -ge 2 ] && [ "$(stat -c %s "$tmp/m1.bin")" = $((2 * tokens)) ] || wrong "sizes: $(cat "$tmp/out")"
[ "$(stat -c %s "$tmp/m1.idx")" = $((34 + 12 * docs + 8 * (docs + 1))) ] || wrong "the index has $(stat -c %s "$tmp/m1.idx") bytes"
gzip -k "$tmp/text"
ok data tokenize "$tmp/text.gz" --separator "$sep" --tokenizer "$tok" --out "$tmp/gz" -q
cmp "$tmp/m1.bin" "$tmp/gz.bin" >>"$bad" && cmp "$tmp/m1.idx" "$tmp/gz.idx" >>"$bad"
# JSON by hand: the text has no character that needs more than these
tr '\n\f' '\001\n' <"$tmp/text" | sed 's/\\/\\\\/g; s/"/\\"/g; 2,$s/^\x01//; s/\x01/\\n/g; s/.*/{"id": 1, "text": "&"}/' >"$tmp/t.jsonl"
ok data tokenize "$tmp/t.jsonl" --tokenizer "$tok" --out "$tmp/j" -q
cmp "$tmp/m1.bin" "$tmp/j.bin" >>"$bad" && cmp "$tmp/m1.idx" "$tmp/j.idx" >>"$bad"
ok data tokenize "$tmp/text" --separator "$sep" --tokenizer "$tok" --out "$tmp/l" --format llmc --json
[ "$(stat -c %s "$tmp/l.bin")" = $((1024 + 2 * tokens)) ] || wrong "llm.c: $(stat -c %s "$tmp/l.bin") bytes for $tokens tokens"
ok data inspect "$tmp/m1" "$tmp/l.bin" --tokenizer "$tok" --json
[ "$(grep -o "\"documents\":$docs,\"lengths\"" "$tmp/out" | wc -l)" = 2 ] || wrong "documents: $(cat "$tmp/out")"
[ "$(grep -o "\"end_of_text\":$docs," "$tmp/out" | wc -l)" = 2 ] || wrong "ends of text: $(cat "$tmp/out")"
grep -q 'In the beginning God created' "$tmp/out" || wrong "text: $(cat "$tmp/out")"
ok data tokenize "$tmp/text" --separator "$sep" --tokenizer "$tok" --out "$tmp/after" --format llmc --eot after -q
ok data inspect "$tmp/after.bin" --tokenizer "$tok" --json
grep -q "\"documents\":$docs,\"lengths\"" "$tmp/out" || wrong "documents with end-of-text behind: $(cat "$tmp/out")"
for n in 4 2; do # a set that replaces a longer one leaves none of its files
    ok data tokenize "$tmp/text" --tokenizer "$tok" --out "$tmp/s" --format llmc --shard-tokens $((tokens / n + 1)) -q
    [ "$(ls "$tmp" | grep -c '^s_.*bin$')" = $n ] || wrong "$n shards: $(ls "$tmp" | grep '^s_' | tr '\n' ' ')"
done
[ -z "$(ls -A "$tmp" | grep -E 'tmp[0-9]|lengths')" ] || wrong "left over: $(ls -A "$tmp" | tr '\n' ' ')"
verdict tokenize-is-the-same-every-way

refused 2 "expected --out" data tokenize "$tmp/text" --tokenizer byte
refused 2 "expected --tokenizer" data tokenize "$tmp/text" --out "$tmp/x"
refused 2 "none: No such file" data tokenize "$tmp/none" --tokenizer byte --out "$tmp/x"
refused 2 "none/x.bin: No such file" data tokenize "$tmp/text" --tokenizer byte --out "$tmp/none/x"
refused 2 "give --format llmc" data tokenize "$tmp/text" --tokenizer byte --out "$tmp/x" --shard-tokens 5
refused 2 "expected one of none, before, after" data tokenize "$tmp/text" --tokenizer byte --out "$tmp/x" --eot end
refused 2 "is neither an added token" data tokenize "$tmp/text" --tokenizer byte --out "$tmp/x" --eot-token "<s>"
refused 2 "line 1: not valid JSON" data tokenize "$tmp/text" --tokenizer byte --out "$tmp/x" --jsonl-key text
refused 2 'no such key; to read another key use kvsmith data tokenize --jsonl-key' data tokenize "$tmp/t.jsonl" --tokenizer byte --out "$tmp/x" --jsonl-key txt
head -c 20000 "$tmp/text.gz" >"$tmp/cut.gz"
refused 2 "cut.gz: the compressed text is truncated" data tokenize "$tmp/cut.gz" --tokenizer byte --out "$tmp/x"
refused 2 "unknown option --tokeniser; did you mean --tokenizer" data tokenize "$tmp/text" --tokeniser byte --out "$tmp/x"
refused 2 "expected tokenize, train-bpe or inspect first, got 'tokenise'" data tokenise
head -c 9000000 /dev/zero | tr '\0' a >"$tmp/wall"
refused 2 "wall: a stretch of 9000000 bytes that" data tokenize "$tmp/wall" --tokenizer "$tok" --out "$tmp/x"
rm "$tmp/wall"
refused 2 "found text" data inspect "$tmp/text"
refused 2 "is id .*, expected 0 to 256" data inspect "$tmp/m1" --tokenizer byte
head -c 1500 "$tmp/l.bin" >"$tmp/short.bin"
refused 2 "of its header need" data inspect "$tmp/short.bin"
(ulimit -f 100; run data tokenize "$tmp/text" --tokenizer byte --out "$tmp/x") # a disk that takes no more
[ $? -eq 1 ] && grep -q "cannot write .*x.bin" "$tmp/err" || wrong "full disk: $(cat "$tmp/err")"
[ -z "$(ls -A "$tmp" | grep '^x')" ] || wrong "left over: $(ls -A "$tmp" | grep '^x' | tr '\n' ' ')"
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do cat data/kjv.txt; done >"$tmp/long"
"$prog" data tokenize "$tmp/long" --tokenizer "$tok" --out "$tmp/x" --threads 1 >"$tmp/out" 2>"$tmp/err" &
pid=$!
until [ -n "$(ls -A "$tmp" | grep '^x')" ] || ! kill -0 $pid 2>/dev/null; do sleep 0.002; done
kill -TERM $pid
wait $pid
s=$?
[ $s -eq 130 ] || wrong "stopped: exit $s, expected 130: $(cat "$tmp/err")"
[ -z "$(ls -A "$tmp" | grep '^x')" ] || wrong "left over: $(ls -A "$tmp" | grep '^x' | tr '\n' ' ')"
rm "$tmp/long"
verdict data-refusals-leave-nothing

# ---- training with it: samples, checkpoint, ppl, generate
base="configs/tiny-window.yaml --threads 1 -q train.dtype=f32 data.tokenizer=$tok optim.schedule_steps=30 train.steps=30 train.eval_every=10
    train.eval_tokens=512 train.save_every=10 train.log_every=1"
ok train $base data.train="$tmp/text" data.separator="$sep" train.steps=4 run.dir="$tmp/raw" train.sample_every=2 train.sample_tokens=5 \
    train.sample_prompt=And
cmp "$tok" "$tmp/raw/last/tokenizer.json" >>"$bad"
[ "$(grep -c '^== step' "$tmp/raw/samples.txt")" = 2 ] || wrong "samples: $(cat "$tmp/raw/samples.txt")"
grep -q '"eos_token_id": *0' "$tmp/raw/last/generation_config.json" || wrong "eos: $(cat "$tmp/raw/last/generation_config.json")"
ok eval "$tmp/raw" ppl --data "$tmp/text" --separator "$sep" --json --threads 1
[ "$(field "$tmp/out" bytes)" = $((300000 - 2 * (docs - 1))) ] || wrong "bytes: $(cat "$tmp/out"), $docs documents"
grep -v '^$' "$tmp/out" | awk -F'[:,}]' '{for (i = 1; i < NF; i++) v[$i] = $(i + 1)
    x = v["\"nll\""] * v["\"tokens\""] / log(2) / v["\"bytes\""] / v["\"bits_per_byte\""]
    if (x < 0.999999 || x > 1.000001) print "bits_per_byte is off by " x}' >>"$bad"
ok eval "$tmp/raw" ppl --data "$tmp/l.bin" --json --threads 1
ok generate "$tmp/raw" --prompt "And" --max-new 3 --threads 1
ok info "$tmp/raw" --json
grep -q '"tokenizer":"bpe"' "$tmp/out" || wrong "info: $(cat "$tmp/out")"
ok data train-bpe "$tmp/text" --vocab 500 --out "$tmp/gpt2.json" -q
refused 2 "differs from the tokenizer that data.tokenizer names" train $base data.tokenizer="$tmp/gpt2.json" \
    data.train="$tmp/text" run.dir="$tmp/other" init_from="$tmp/raw"
refused 2 "data.tokenizer: .*none: No such file" train $base data.tokenizer="$tmp/none" data.train="$tmp/text" run.dir="$tmp/other"
refused 2 "data.eot: '<none>' is neither" train $base data.eot='"<none>"' data.train="$tmp/text" run.dir="$tmp/other"
cp "$tok" "$tmp/two.json"
ok train $base data.tokenizer="$tmp/two.json" data.train="$tmp/l.bin" train.steps=2 run.dir="$tmp/two"
sed 's/"special": true/"special": true /' "$tok" >"$tmp/two.json" # spelled otherwise, the same
ok train $base data.tokenizer="$tmp/two.json" data.train="$tmp/l.bin" train.steps=3 run.dir="$tmp/two" --resume auto
cp "$tmp/gpt2.json" "$tmp/two.json"
refused 2 "differs from the tokenizer that data.tokenizer names" train $base data.tokenizer="$tmp/two.json" data.train="$tmp/l.bin" train.steps=4 \
    run.dir="$tmp/two" --resume auto
verdict any-tokenizer-in-training

# ---- a blend of three kinds of file, broken off in the middle of its sets
cp "$tmp/m1.bin" "$tmp/a.bin" && cp "$tmp/m1.idx" "$tmp/a.idx"
blend="data.train=[{path: $tmp/a, weight: 0.5}, {path: $tmp/l.bin, weight: 0.3}, {path: $tmp/text, weight: 0.2}]"
ok train $base "$blend" run.dir="$tmp/ref"
ok train $base "$blend" run.dir="$tmp/broken" train.steps=13
ok train $base "$blend" run.dir="$tmp/broken" train.steps=21 --resume auto
ok train $base "$blend" run.dir="$tmp/broken" --resume auto
for f in model.safetensors trainer/optimizer.safetensors trainer/state.json; do
    cmp "$tmp/ref/last/$f" "$tmp/broken/last/$f" >>"$bad"
done
cmp <(grep '"loss"' "$tmp/ref/metrics.jsonl" | sed 's/,"tok_s":.*//') <(grep '"loss"' "$tmp/broken/metrics.jsonl" | sed 's/,"tok_s":.*//') >>"$bad"
ok train $base "$blend" run.dir="$tmp/plan" --plan --json
ok train $base "data.train=[$tmp/a.idx, $tmp/l.bin]" run.dir="$tmp/both" train.steps=2
verdict resume-in-the-middle-of-sets

# ---- other data than a checkpoint was trained on
printf '\001' | dd of="$tmp/a.bin" bs=1 seek=5000 conv=notrunc 2>/dev/null
refused 2 "was trained on another text" train $base "$blend" train.steps=31 run.dir="$tmp/broken" --resume auto
refused 2 "the weights repeat after" train $base "data.train=[{path: $tmp/a, weight: 1}, {path: $tmp/l.bin, weight: 600000.5}]" \
    run.dir="$tmp/x"
refused 2 "weight: expected a number" train $base "data.train=[{path: $tmp/a, weight: 2000000}]" run.dir="$tmp/x"
refused 2 "has not a weight" train $base "data.train=[{path: $tmp/a, weight: 1}, $tmp/l.bin]" run.dir="$tmp/x"
cp "$tmp/m1.bin" "$tmp/a.bin"
head -c 1000 "$tmp/m1.bin" >"$tmp/p.bin" && cp "$tmp/m1.idx" "$tmp/p.idx"
refused 2 "points past the .bin" train $base data.train="$tmp/p" run.dir="$tmp/x"
refused 2 "is compressed" train $base data.train="$tmp/text.gz" run.dir="$tmp/x"
refused 2 "is id .*, expected 0 to 256" train $base data.tokenizer=byte data.train="$tmp/a" run.dir="$tmp/x"
rm -rf "$tmp/x"
verdict sets-refused

# ---- a set that changes under a running job
changed() { # $1: how; the run is slowed down by many steps
    cp "$tmp/m1.bin" "$tmp/a.bin" && cp "$tmp/m1.idx" "$tmp/a.idx"
    rm -rf "$tmp/job"
    "$prog" train $base data.train="$tmp/a" optim.schedule_steps=0 train.steps=2000 run.dir="$tmp/job" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    until [ -e "$tmp/job/last" ] || ! kill -0 $pid 2>/dev/null; do sleep 0.002; done
    eval "$1"
    if [ "${2-}" = TERM ]; then
        until [ "$(readlink "$tmp/job/last")" != step-000010 ] || ! kill -0 $pid 2>/dev/null; do sleep 0.002; done
        kill -TERM $pid
    fi
    wait $pid
}
changed 'printf "\001" | dd of="$tmp/a.bin" bs=1 seek=5000 conv=notrunc 2>/dev/null'
s=$?
[ $s -eq 1 ] && grep -q "a.bin: was written to since it was opened.*the last checkpoint is intact: $tmp/job/step-" "$tmp/err" ||
    wrong "written to: exit $s: $(cat "$tmp/err")"
ok eval "$tmp/job" ppl --data "$tmp/l.bin" --threads 1
changed 'truncate -s 1000 "$tmp/a.bin"'
s=$?
[ $s -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q -e "had [0-9]* bytes when it was opened, now 1000" -e "a mapped file" "$tmp/err" ||
    wrong "cut: exit $s: $(cat "$tmp/err")"
ok eval "$tmp/job" ppl --data "$tmp/l.bin" --threads 1
base=${base/ -q / }
changed 'cp "$tmp/l.bin" "$tmp/new" && mv "$tmp/new" "$tmp/a.bin"' TERM
s=$?
[ $s -eq 130 ] || wrong "replaced: exit $s: $(cat "$tmp/err")"
[ "$(grep -c "a.bin was replaced; this run continues" "$tmp/out")" = 1 ] || wrong "not told once: $(tail -n 5 "$tmp/out")"
refused 2 "the .bin has" train $base -q data.train="$tmp/a" optim.schedule_steps=0 train.steps=2000 run.dir="$tmp/job" --resume auto
cp "$tmp/m1.bin" "$tmp/a.bin"
ok train $base -q data.train="$tmp/a" optim.schedule_steps=0 train.steps=2000 train.max_seconds=0.1 run.dir="$tmp/job" --resume auto
verdict sets-that-change-under-a-run
