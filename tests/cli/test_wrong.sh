#!/bin/bash
# The mistakes that people make first, and what they are told: a line on stderr of at most 300 characters with a phrase that
# helps, the exit status, and nothing left behind. A row is: row NUMBER STATUS PHRASE ARGUMENTS...
# Status 0 is a row of what looks like a mistake and is accepted.
. tests/lib/cases.sh

# Rows whose behaviour is still to come: their numbers here, between blanks.
pending=' '

mkdir "$tmp/here" && cd "$tmp/here" || exit 1
export OMP_NUM_THREADS=1
seq 1 4000 >text.txt
cat >tiny.yaml <<'YAML'
run: {dir: run}
data: {train: text.txt, seq_len: 32}
model:
  d_model: 32
  layers: 2
  kinds:
    a: {mixer: gqa, heads: 2, kv_heads: 2}
  ffn: {kind: swiglu, hidden: 64}
train: {steps: 4, batch: 4, save_every: 4, eval_every: 4, eval_tokens: 256, dtype: f32}
YAML
"$prog" train tiny.yaml -q || wrong "the model of the test: exit $?"
verdict model

kept() { find . -printf '%p %y %s\n' | sort; }
row() { # number, status, phrase, arguments; by their names: $env, $limit of ulimit, $input, $begun as below
    local n=$1 want=$2 phrase=$3 got
    shift 3
    case $pending in *" $n "*) return ;; esac
    kept >../before
    (
        [ -z "${limit:-}" ] || ulimit $limit
        exec env ${env:-NONE=} timeout "$(patience 60)" "$prog" "$@"
    ) >../out 2>../err <"${input:-/dev/null}"
    got=$?
    [ $got -eq "$want" ] || wrong "row $n, $*: exit $got, expected $want: $(cat ../err)"
    # a run that had begun keeps its folder, with what was whole before; here that is nothing
    [ -n "${begun:-}" ] && { find new | grep -q 'step-\|tmp' && wrong "row $n, $*: left in new: $(ls -A new)" || rm -rf new; }
    if [ "$want" -eq 0 ]; then
        rm -rf new new.*
    else
        [ "$(wc -l <../err)" -eq 1 ] || wrong "row $n, $*: $(wc -l <../err) lines on stderr: $(cat ../err)"
        [ "$(wc -m <../err)" -le 301 ] || wrong "row $n, $*: a line of $(wc -m <../err) characters"
        grep -qF -- "$phrase" ../err || wrong "row $n, $*: no '$phrase' in: $(cat ../err)"
        [ "$want" -eq 2 ] && [ -s ../out ] && wrong "row $n, $*: wrote to stdout: $(head -c 200 ../out)"
    fi
    kept | cmp -s - ../before || wrong "row $n, $*: left behind: $(kept | diff - ../before | head -n 3)"
}
train() { # number, status, phrase, settings
    local n=$1 want=$2 phrase=$3
    shift 3
    row "$n" "$want" "$phrase" train tiny.yaml run.dir=new -q "$@"
}

# ---- keys and options
train 1 2 'did you mean optim.lr?' optim.lrr=1e-3
train 2 2 'did you mean model.kinds.a.heads?' model.kinds.a.haeds=2
train 3 2 'did you mean optim.lr?' lr=1e-3
for key in train.learning_rate=3:optim.lr batch_size=8:train.batch max_steps=9:train.steps hidden_size=8:model.d_model \
    n_layer=2:model.layers num_layers=2:model.layers model.attention=mha:model.kinds.NAME.mixer; do
    train 4 2 "did you mean ${key#*:}?" "${key%:*}"
done
train 4 2 'give train.steps = epochs x tokens of the text' epochs=3
train 5 2 'settings are written key=value: optim.lr=1e-3' --lr 1e-3
train 5 2 'settings are written key=value: train.batch=8' --batch-size=8
train 5 2 'there is no such setting; give train.steps = epochs x' --epochs 3
train 6 2 'cannot open nope.txt' data.train=nope.txt
train 7 2 'hf download openai-community/gpt2 tokenizer.json --local-dir DIR' data.tokenizer=gpt2
train 7 2 'nothing is downloaded: hf download openai-community/gpt2 tokenizer.json' data.tokenizer=openai-community/gpt2
mkdir none
train 8 2 'no tokenizer.json in it' data.tokenizer=none
verdict keys

# ---- YAML
printf 'run: {dir: new}\n\tdata: {train: text.txt}\n' >tab.yaml
row 9 2 'a tab is here; YAML indents with spaces' train tab.yaml
printf 'model:\n  d_model:32\n  layers: 2\n' >blank.yaml
row 10 2 "a space must follow the ':'" train blank.yaml
printf 'model: {d_model:32, layers: 2}\n' >flow.yaml
row 10 2 "a space must follow the ':'" train flow.yaml
printf 'run: {dir: new\nmodel: 3\n' >brace.yaml
row 11 2 "did not find expected ',' or '}'" train brace.yaml
printf 'run: {dir: new}\nrun: {dir: new}\n' >twice.yaml
row 12 2 'twice.yaml:2: run: duplicate key' train twice.yaml
for steps in 4e0 0.004k 4; do train 13 0 - train.steps=$steps; done
for steps in 10_000 1e4 10k 10000; do row 13 0 - config tiny.yaml train.steps=$steps; done
train 13 2 'expected a whole number from 1 to 1000000000000, got 10.5' train.steps=10.5
train 13 2 'got "10"; write the number without quotes' 'train.steps="10"'
row 14 2 'expected a file, found a directory' train none
train 15 2 'expected a divisor of heads (2), got 3' model.kinds.a.kv_heads=3
verdict yaml

# ---- defaults that nobody wrote
train 59 0 - train.steps=3
train 59 0 - train.batch=6
train 59 0 - optim.lr=3e-5
row 59 2 '48 does not divide train.batch, 64 (default)' config tiny.yaml 'train={steps: 4, micro_batch: 48}'
verdict defaults

# ---- models and tokenizers that are not ours
config() { # further members of a llama's config.json
    mkdir -p model
    printf '{"model_type":"%s","architectures":["LlamaForCausalLM"],"hidden_size":32,"num_hidden_layers":2%s}' "$1" \
        ',"num_attention_heads":2,"intermediate_size":64,"vocab_size":100,"max_position_embeddings":32,"rms_norm_eps":1e-5'"$2" \
        | sed 's/$/}/; s/}}$/}/' >model/config.json
}
for f in gemma gemma3 bert llama4; do
    config $f ''
    row 16 2 "found $f (" info model
done
config gemma ''
row 16 2 'found gemma (as gemma2, which is read, with norms before each part alone' info model
config llama ''
echo x >model/pytorch_model.bin
row 17 2 'pytorch_model.bin is not read; run there: python3 -c "import torch' info model
rm model/pytorch_model.bin
for method in gptq awq; do
    config llama ',"quantization_config":{"quant_method":"'$method'","bits":4}'
    row 18 2 "quantised by $method; start from the unquantised model" info model
done
for command in info generate 'eval ppl'; do
    row 19 2 'nothing is downloaded: hf download meta-llama/Llama-3.2-1B --local-dir DIR' ${command%% *} \
        meta-llama/Llama-3.2-1B
done
train 19 2 'hf download meta-llama/Llama-3.2-1B' init_from=meta-llama/Llama-3.2-1B
row 19 2 'No such file or directory' info run/step-000009
printf '{"model":{"type":"WordLevel","vocab":{}}}' >none/tokenizer.json
train 20 2 'WordLevel is not supported' data.tokenizer=none
printf '%s%s' '{"pre_tokenizer":{"type":"UnicodeScripts"},' \
    '"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}' >none/tokenizer.json
train 21 2 'UnicodeScripts' data.tokenizer=none
rm none/tokenizer.json
printf 'GGUF\3\0\0\0' >m.gguf
row 22 2 'GGUF' info m.gguf
row 22 2 'got a GGUF file; give the Hugging Face directory' generate m.gguf
cp -rL run/last copy
sed -i 's/"vocab_size": *257/"vocab_size": 300/; s/"vocab": *257/"vocab": 300/' copy/config.json
row 23 2 'expected shape (300,32), found (257,32)' info copy
config llama ',"some_new_key":1'
row 24 2 '"some_new_key" is not supported of model_type llama' info model
rm -rf copy model
cp -r run old
sed -i 's/"format": *[0-9]*/"format": 99/' old/step-*/trainer/state.json
row 25 2 'format 99, expected 1 to' train tiny.yaml run.dir=old --resume auto
rm -rf old
cp -rL run/last cut && truncate -s -4 cut/model.safetensors
row 29 2 'it is truncated' info cut
rm -rf cut
verdict models

# ---- data
sft='data.sft.template=chatml'
printf '{"conversations":[{"from":"human","value":"hi"},{"from":"gpt","value":"ho"}]}\n%.0s' $(seq 40) >share.jsonl
train 26 0 - data.train=share.jsonl data.seq_len=128 $sft
train 27 2 'to train on plain text leave out data.sft.template' $sft
train 28 2 'expected one of none, chatml, llama3, alpaca, plain, got chatgpt' data.sft.template=chatgpt
printf '{"text":"one two three four five six seven"}\n%.0s' $(seq 400) >docs.jsonl
train 30 0 - data.train=docs.jsonl
head -c 200000 "$prog" >binary.txt
train 31 2 'binary.txt' data.train=binary.txt
printf 'PAR1\0\0\0\0PAR1' >rows.parquet
row 32 2 'Parquet' data tokenize rows.parquet --tokenizer byte -o new
gzip -k text.txt
train 33 2 'is compressed; tokenize it with kvsmith data tokenize' data.train=text.txt.gz
train 42 0 - 'data.train=te*.txt'
mkdir folder && cp text.txt folder
train 43 0 - data.train=folder
input=<(seq 100) row 44 0 - data tokenize - --tokenizer byte -o new
input=<(echo 1 2 3) row 45 0 - logits run --tokens /dev/stdin --out new
: >empty.txt
train 46 2 'empty.txt: is empty' data.train=empty.txt
"$prog" data tokenize text.txt --tokenizer byte --format llmc -o ids -q >/dev/null || wrong "data tokenize: exit $?"
head -c 4000 /dev/zero | tr '\0' '\377' | dd of=ids.bin bs=1 seek=1024 conv=notrunc 2>/dev/null
begun=1 train 47 2 'the dataset was made with a tokenizer that is not' data.train=ids.bin data.val=text.txt
verdict data

# ---- run folders and resuming
row 34 2 'continue it with --resume auto or choose another run.dir' train tiny.yaml
"$prog" train tiny.yaml run.dir=long train.steps=1000000 train.save_every=0 train.eval_every=0 -q &
long=$!
for i in $(seq "$(patience 200)"); do [ -e long/config.yaml ] && break || sleep 0.05; done
kept() { find . -path ./long -prune -o -printf '%p %y %s\n' | sort; }
row 35 2 'is in use by process' train tiny.yaml run.dir=long
kill -9 $long && wait $long 2>/dev/null
rm -rf long
row 36 2 'leave it as it was, or begin a run in another run.dir with init_from' train tiny.yaml --resume auto optim.lr=3e-4
row 36 2 'model.d_model: 64, but the run was begun with 32' train tiny.yaml --resume auto model.d_model=64
train 37 2 'text.txt/x: Not a directory' run.dir=text.txt/x
row 60 2 "this is a model's config.json, not settings of a run" train run/last/config.json
verdict folders

# ---- the machine
${CC:-gcc} -shared -fPIC -O1 -o ../world.so "$OLDPWD/tests/shim/world.c" -ldl || wrong 'no shim'
big='model.d_model=256 model.ffn.hidden=1024'
env="LD_PRELOAD=$tmp/world.so WORLD_FULL_STEP=.tmp-step WORLD_FULL_CALL=3" begun=1 train 38 1 'No space left on device; there is no checkpoint yet' $big
limit='-f 500' begun=1 train 39 1 'File too large; there is no checkpoint yet' $big
limit='-v 2000000' train 40 1 'iB for ' model.d_model=2048 model.ffn.hidden=16384 model.kinds.a.heads=16 model.kinds.a.kv_heads=16
train 41 1 '--plan prints what each part needs' train.batch=131072 train.micro_batch=131072 model.layers=250
begun=1 train 48 1 'training diverged at step' train.save_every=0 train.eval_every=0 optim.lr=100 optim.clip=0 model.init_std=10 train.steps=40 optim.schedule=constant
"$prog" device --device cuda >../out 2>&1 || row 49 2 'built without CUDA' generate run --device cuda
env='SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=2' train 50 2 'start the ranks with srun, or set dist.launcher=alone'
row 51 2 'use train.batch=12' train tiny.yaml run.dir=new --plan --ranks 3 train.batch=8 train.micro_batch=4
row 51 2 'use train.batch=9' train tiny.yaml run.dir=new --plan --ranks 3 train.batch=8
train 52 2 'has a vocabulary of 257, model.vocab is 300' teacher.path=run model.vocab=300
verdict machine

# ---- generate, convert, eval
row 53 2 'shorten it or give --context' generate run --prompt "$(seq 1 40 | tr '\n' ' ')"
row 54 2 'exists; give a new name, or remove it' convert run none --to mqa
row 55 2 'rank needs activations; give a text with --calib FILE' convert run new --to mla rank=16
row 56 2 'a multiple-choice benchmark is a file of lines {"ctx": TEXT' eval run hellaswag
train 57 2 'rope.theta' init_from=run 'model.kinds.a={mixer: gqa, heads: 2, kv_heads: 2, rope: {theta: 500000}}'
train 58 2 "unknown name 'attention'; did you mean gqa?" model.kinds.a.mixer=attention
train 58 2 "unknown name 'mamba'; did you mean mamba2?" model.kinds.a.mixer=mamba
row 61 2 'without DST (a path with = is written ./a=b)' convert run a=b --to mqa
"$prog" convert run ./a=b --to mqa -q >../out 2>&1 && [ -e a=b/config.json ] || wrong "convert to ./a=b: $(cat ../out)"
row 62 2 'expected one of similar, adjacent, got neighbours' convert run new --to mqa groups=neighbours
verdict commands

# ---- what people try for help
"$prog" help | grep -q '^Commands:' || wrong 'kvsmith help'
"$prog" help train | grep -q '^Usage: kvsmith train' || wrong 'kvsmith help train'
"$prog" help data tokenize | grep -q '^Usage: kvsmith data tokenize' || wrong 'kvsmith help data tokenize'
row 63 2 "unknown command 'trian'; did you mean train?" help trian
"$prog" --version >../out && grep -q '^kvsmith [0-9.]*$' ../out && grep -q '^instruction set ' ../out && grep -q 'oneDNN [0-9]' ../out ||
    wrong "kvsmith --version: $(cat ../out)"
"$prog" config tiny.yaml >../out || wrong 'kvsmith config FILE'
grep -q '^  warmup: 0$' ../out || wrong "kvsmith config FILE prints no settings: $(grep warmup ../out)"
"$prog" info run >../out && grep -q '^ *0-1  *full .* own ' ../out || wrong "info: $(tail -n 3 ../out)"
row 64 2 'unknown option --lr; see kvsmith convert --help' convert run new --to mqa --lr 3
verdict help
