#!/bin/bash
# Data in the forms that people have, and no wrong result without a word: files that are no text, JSONL, patterns, folders,
# pipes; tasks on models that were not trained for them; contexts, vocabularies and passes that are probably not meant.
. tests/lib/cases.sh
run() { "$prog" "$@" >"$tmp/out" 2>"$tmp/err"; }
ok() {
    run "$@"
    local s=$?
    [ $s -eq 0 ] || wrong "$*: exit $s: $(cat "$tmp/err")"
}
# refused PART ARGUMENTS: status 2, one line of at most 300 characters with PART on stderr
refused() {
    local part=$1 s
    shift
    run "$@" </dev/null
    s=$?
    [ $s -eq 2 ] || wrong "$*: exit $s, expected 2"
    [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ "$(wc -m <"$tmp/err")" -le 301 ] || wrong "$*: not one line: $(cat "$tmp/err")"
    grep -q -F -e "$part" "$tmp/err" || wrong "$*: expected '$part' in: $(cat "$tmp/err")"
}
says() { grep -q -F -e "$1" "$tmp/err" "$tmp/out" || wrong "expected '$1' in: $(cat "$tmp/out" "$tmp/err")"; }
silent() { grep -q -F -e "$1" "$tmp/err" "$tmp/out" && wrong "'$1' in: $(cat "$tmp/out" "$tmp/err")"; }
head -c 20000 data/kjv.txt >"$tmp/text.txt"
quick="train.dtype=f32 train.steps=3 train.eval_every=0 train.sample_every=0 train.batch=8 optim.warmup=0 data.seq_len=32"
train() { ok train configs/tiny-gqa.yaml run.dir="$tmp/$1" $quick "${@:2}"; }

# ---- what is no text: in every command that reads one
printf 'PAR1\25\4\25' >"$tmp/table"
printf 'caf\351 au lait %.0s' {1..9} >"$tmp/latin"
printf 'a text with a\0in it' >"$tmp/nul"
train model data.train="$tmp/text.txt"
model=$tmp/model
for f in table:'looks like a Parquet table' latin:'byte 3 does not continue as UTF-8' nul:'byte 13 is NUL'; do
    path=$tmp/${f%%:*} part="$tmp/${f%%:*}: ${f#*:}"
    refused "$part" train configs/tiny-gqa.yaml run.dir="$tmp/none" $quick data.train="$path"
    refused "$part" train configs/tiny-gqa.yaml run.dir="$tmp/none" $quick data.train="$tmp/text.txt" data.val="$path"
    refused "$part" train configs/tiny-gqa.yaml run.dir="$tmp/none" $quick data.train="$path" --plan
    refused "$part" data tokenize "$path" --tokenizer byte --out "$tmp/none"
    refused "$part" data train-bpe "$path" --vocab 300 --out "$tmp/none"
    refused "$part" eval "$model" ppl --data "$path"
    refused "--calib: $part" convert "$model" "$tmp/none" --to mqa method=aligned --calib "$path"
    [ -e "$tmp/none" ] || [ -e "$tmp/none.bin" ] && wrong "$path: something was written"
done
gzip -c "$tmp/latin" >"$tmp/latin.gz"
refused "latin.gz: byte 3 does not continue" data tokenize "$tmp/latin.gz" --tokenizer byte --out "$tmp/none"
verdict no_text

ok data tokenize "$tmp/latin" "$tmp/nul" "$tmp/latin.gz" --encoding bytes --tokenizer byte --out "$tmp/set"
ok data train-bpe "$tmp/nul" --encoding bytes --vocab 258 --out "$tmp/b.json" --special e
ok eval "$model" ppl --data "$tmp/latin" --encoding bytes
train bytes data.train="$tmp/latin" data.encoding=bytes
refused "data.encoding: expected one of utf8, bytes" train configs/tiny-gqa.yaml run.dir="$tmp/none" data.encoding=ascii
refused "--encoding: expected utf8 or bytes" data tokenize "$tmp/latin" --encoding x --tokenizer byte --out "$tmp/none"
refused "--encoding: expected utf8 or bytes" eval "$model" ppl --data "$tmp/latin" --encoding x
verdict any_bytes

# ---- patterns, folders, lists, standard input
mkdir "$tmp/d" "$tmp/empty"
split -b 5000 --additional-suffix=.txt "$tmp/text.txt" "$tmp/d/"
cat "$tmp"/d/*.txt | cmp - "$tmp/text.txt" >>"$bad"
list="data.train=[$(printf '%s,' "$tmp"/d/*.txt | sed 's/,$//')]"
for words in "$list" "data.train='$tmp/d/*.txt'" "data.train=$tmp/d/*.txt" "data.train=$tmp/d" "data.train=['$tmp/d/a[ab].txt','$tmp/d/a[!ab].txt']"; do
    rm -rf "$tmp/same" && train same "$words"
    grep -o '"loss":[^,]*' "$tmp/same/metrics.jsonl" >"$tmp/loss"
    [ -s "$tmp/first" ] || cp "$tmp/loss" "$tmp/first"
    cmp -s "$tmp/loss" "$tmp/first" || wrong "$words: $(cat "$tmp/loss"), not $(cat "$tmp/first")"
done
refused "data.train: no file matches the pattern $tmp/d/*.csv" train configs/tiny-gqa.yaml run.dir="$tmp/none" data.train="$tmp/d/*.csv"
refused "data.train: the folder $tmp/empty has no file" train configs/tiny-gqa.yaml run.dir="$tmp/none" data.train="$tmp/empty"
refused "quote a pattern that begins with *" train configs/tiny-gqa.yaml run.dir="$tmp/none" data.train='*.txt'
refused "data.train: cannot open nope.txt" train configs/tiny-gqa.yaml run.dir="$tmp/none" data.train=nope.txt
refused "data.val: cannot open nope.txt" train configs/tiny-gqa.yaml run.dir="$tmp/none" data.train="$tmp/text.txt" data.val=nope.txt
refused "--data: cannot open nope.txt" eval "$model" ppl --data nope.txt
ok data tokenize "$tmp/text.txt" --tokenizer byte --out "$tmp/one" -q
"$prog" data tokenize - --tokenizer byte --out "$tmp/piped" <"$tmp/text.txt" >>"$tmp/out" || wrong "standard input: exit $?"
gzip -c "$tmp/text.txt" | "$prog" data tokenize - --tokenizer byte --out "$tmp/zipped" >>"$tmp/out" || wrong "gzip: exit $?"
cmp "$tmp/one.bin" "$tmp/piped.bin" >>"$bad" && cmp "$tmp/one.bin" "$tmp/zipped.bin" >>"$bad"
refused "standard input: is empty" data tokenize - --tokenizer byte --out "$tmp/none"
ok data tokenize "$tmp/d" --tokenizer byte --eot none --out "$tmp/folder" -q
ok data tokenize "$tmp/text.txt" --tokenizer byte --eot none --out "$tmp/whole" -q
cmp "$tmp/folder.bin" "$tmp/whole.bin" >>"$bad"
ok data train-bpe "$tmp/text.txt" --vocab 300 --out "$tmp/t1.json" -q
"$prog" data train-bpe - --vocab 300 --out "$tmp/t2.json" <"$tmp/text.txt" >>"$tmp/out"
cmp "$tmp/t1.json" "$tmp/t2.json" >>"$bad"
echo '1 2 3' >"$tmp/ids"
ok logits "$model" --tokens "$tmp/ids" --out "$tmp/l1"
"$prog" logits "$model" --tokens <(cat "$tmp/ids") --out "$tmp/l2" -q || wrong "a pipe: exit $?"
"$prog" logits "$model" --tokens - --out "$tmp/l3" -q <"$tmp/ids" || wrong "standard input: exit $?"
cmp "$tmp/l1" "$tmp/l2" >>"$bad" && cmp "$tmp/l1" "$tmp/l3" >>"$bad"
refused "names 4 token datasets" eval "$model" ppl --data "$tmp/[opzfw]*[ed].bin"
verdict files

# ---- JSON lines
printf '{"text": "In the beginning God created the heaven and the earth"}\n{"text": "x"}\n' >"$tmp/t.jsonl"
ok eval "$model" ppl --data "$tmp/t.jsonl" --json
grep -q '"tokens": *56,.*"bytes": *54,' "$tmp/out" || wrong "54 bytes and two more ends: $(cat "$tmp/out")"
train lines data.train="$tmp/t.jsonl" data.val_fraction=0
printf '{"conversations": [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "I."}]}\n' >"$tmp/chat.jsonl"
refused 'line 1: expected text at the key "text", found "conversations"' train configs/tiny-gqa.yaml run.dir="$tmp/none" data.train="$tmp/chat.jsonl"
train chat data.train="$tmp/chat.jsonl" data.val_fraction=0 data.sft.template=plain
says "1 conversations"
refused "text.txt: expected one conversation per line" train configs/tiny-gqa.yaml run.dir="$tmp/none" data.train="$tmp/text.txt" data.sft.template=plain
refused "data.train: cannot open nope.jsonl" train configs/tiny-gqa.yaml run.dir="$tmp/none" data.train=nope.jsonl data.sft.template=plain
verdict json_lines

# ---- what is probably not meant
for task in mqar palindrome stack copy induction needle; do
    refused "eval $task: $(realpath "$model")" eval "$model" $task samples=8
    says "was not trained on a task"
done
ok eval "$model" copy samples=8 T=32 --force
refused "--force is only for tasks" eval "$model" ppl --data "$tmp/text.txt" --force
ok eval "$model" ppl --data "$tmp/text.txt" --context 100 --json
says "a context of 100 tokens exceeds the 32 positions"
[ "$(wc -l <"$tmp/out")" = 1 ] || wrong "the note is on stdout: $(cat "$tmp/out")"
ok eval "$model" ppl --data "$tmp/text.txt" --context 32
silent "exceeds the"
ok eval "$model" ppl --data "$tmp/t.jsonl" --context 100 -q
silent "exceeds the"
refused "data.tokenizer: cannot open gpt2/tokenizer.json" train configs/124m.yaml data.train="$tmp/text.txt" run.dir="$tmp/none" --plan
verdict models

train wide data.train="$tmp/text.txt" model.vocab=400
says "model.vocab is 400, data.tokenizer byte has 257 ids"
ok train configs/tiny-gqa.yaml run.dir="$tmp/none" $quick data.train="$tmp/text.txt" data.val_fraction=0.1 model.vocab=264 --plan
silent "warning"
says "passes            about 0.043 passes over 18001 tokens (20000 bytes of text)"
train many data.train="$tmp/text.txt" train.steps=200 train.max_seconds=0.1 data.val_fraction=0
says "2.6 passes over 20002 tokens (20000 bytes of text)"
silent "warning"
ok train configs/tiny-gqa.yaml run.dir="$tmp/none" $quick data.train="$tmp/t.jsonl" train.steps=100 data.val_fraction=0 --plan --json
says '"passes":457'
says "warning: about 457 passes over 56 tokens"
[ "$(wc -l <"$tmp/err")" = 1 ] || wrong "$(cat "$tmp/err")"
verdict passes
