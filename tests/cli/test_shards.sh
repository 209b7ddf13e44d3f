#!/bin/bash
# Checkpoints that several ranks write, a file each: what they hold does not depend on the ranks; a rank that cannot write
# leaves no half checkpoint; damaged, missing and foreign files are named. The format before is read.
. tests/lib/cases.sh
export OMP_NUM_THREADS=1
${CC:-gcc} -shared -fPIC -O1 -o "$tmp/world.so" tests/shim/world.c -ldl || exit 1

args="train configs/tiny-gqa.yaml --threads 1 -q train.batch=4 train.micro_batch=1 train.dtype=f32 train.steps=24 train.eval_every=0
    train.save_every=8 train.log_every=4 train.keep_last=9 dist.check_every=5"
# Moments by whoever has them all: a rank alone reads a checkpoint and, with nothing left to do, writes it again.
again() { "$prog" $args --resume "$1" train.steps=$3 optim.schedule_steps=24 run.dir="$2" || wrong "again: exit $?"; }
same() { # two checkpoints
    local f
    for f in model.safetensors trainer/optimizer.safetensors config.json trainer/state.json; do cmp "$1/$f" "$2/$f" >>"$bad" 2>&1; done
}
unfinished() { ls -A "$1" | grep '^\.tmp-'; }

"$prog" $args run.dir="$tmp/ref" || wrong "reference: exit $?"
for k in "1 false 2" "1 true 2" "2 true 4"; do
    read -r stage async n <<<"$k"
    run=$tmp/run-$stage-$async
    "$prog" launch -n $n -- $args run.dir="$run" dist.stage=$stage train.async_save=$async >"$tmp/out" 2>"$tmp/err" ||
        wrong "$k: exit $?: $(cat "$tmp/err")"
    [ -s "$tmp/err" ] && wrong "$k says: $(cat "$tmp/err")"
    [ "$(ls "$run/last/trainer" | grep -c '^optimizer-0000[1-4]-of-0000'$n'\.safetensors$')" -eq $n ] || wrong "$k: $(ls "$run/last/trainer")"
    [ -e "$run/last/trainer/optimizer.safetensors" ] && wrong "$k: the moments of all ranks in one file"
    [ -z "$(unfinished "$run")" ] || wrong "$k left $(unfinished "$run")"
    [ "$(ls -d "$run"/step-* | wc -l)" -eq 3 ] || wrong "$k: $(ls "$run")"
    for f in "$run"/last/trainer/optimizer-*; do
        grep -q "\"bytes\": $(stat -c %s "$f")" "$run/last/trainer/manifest.json" || wrong "$k: $(cat "$run/last/trainer/manifest.json")"
    done
    [ $n -eq 4 ] || continue # every rank's micro-batches are added in the same order with one each
    again "$run/last" "$run-again" 24
    "$prog" launch -n 4 -- $args run.dir="$tmp/ref4" >"$tmp/out" 2>"$tmp/err" || wrong "$k: exit $?: $(cat "$tmp/err")"
    same "$run-again/last" "$tmp/ref4/last"
    same "$tmp/ref4/last" "$tmp/ref/last"
done
verdict every-rank-writes-its-own

# ---- what reads weights reads them
run=$tmp/run-1-false
head -c 2000 data/kjv.txt >"$tmp/text"
for words in "info $run/last" "eval $run/last ppl --data $tmp/text --context 64" "generate $run/last -p And --max-new 4" \
    "convert $run/last $tmp/converted --to mqa --check-tokens 32"; do
    "$prog" $words >"$tmp/out" 2>"$tmp/err" || wrong "$words: exit $?: $(cat "$tmp/err")"
done
verdict weights-are-read-as-ever

# ---- the plan: of the moments no rank ever has more than its part
region() { "$prog" $args --plan --json --ranks 4 run.dir="$tmp/none" "$@" | grep -o "\"$key\":[0-9]*" | head -n 1 | cut -d: -f2; }
key=first_moments
[ $(($(region dist.stage=1) * 3)) -lt "$(region)" ] || wrong "moments: $(region dist.stage=1) of $(region)"
part=$(region dist.stage=1)
key=checkpoint_copy
[ -z "$(region dist.stage=1)" ] || wrong "a copy: $(region dist.stage=1)"
copy=$(region dist.stage=1 train.async_save=true)
key=weights
[ "$copy" = "$(region)" ] || wrong "rank 0 puts $copy bytes aside, the weights take $(region)"
key=moments_copy
[ "$(region dist.stage=1 train.async_save=true)" = $((2 * part)) ] || wrong "moments aside: $(region dist.stage=1 train.async_save=true), its part $part"
verdict plan-of-a-save

# ---- damage: exit 2, the file's name, one line, whoever finds it
refused() { # name, what the line says; the folder $tmp/x is the damaged checkpoint
    local n rc
    for n in 1 2 4; do
        if [ $n -eq 1 ]; then
            "$prog" $args run.dir="$tmp/no" --resume "$tmp/x" >"$tmp/out" 2>"$tmp/err"
        else
            "$prog" launch -n $n -- $args run.dir="$tmp/no" --resume "$tmp/x" dist.stage=1 >"$tmp/out" 2>"$tmp/err"
        fi
        rc=$?
        [ $rc -eq 2 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q -e "$2" "$tmp/err" || wrong "$1 on $n ranks: exit $rc: $(cat "$tmp/err")"
        [ -e "$tmp/no" ] && wrong "$1: a refused run left its folder"
    done
    rm -r "$tmp/x"
}
part=trainer/optimizer-00002-of-00002.safetensors list=trainer/manifest.json
damage() { cp -r "$run/step-000016" "$tmp/x"; }
damage; rm "$tmp/x/$part"; refused missing "$part"
damage; truncate -s -4 "$tmp/x/$part"; refused truncated "$part"
damage; truncate -s +4 "$tmp/x/$part"; refused longer "$part"
damage; cp "$run/step-000008/$part" "$tmp/x/$part"; refused another-step "$part: checksum .* from another checkpoint"
damage; printf '\125' | dd of="$tmp/x/$part" bs=1 seek=60000 conv=notrunc 2>/dev/null; refused flipped "$part: checksum"
damage; cp "$tmp/x/trainer/optimizer-00001-of-00002.safetensors" "$tmp/x/$part"; refused twice "optimizer-0000[12]-of-00002.safetensors: tensor .* in two shards"
damage; cp "$run/step-000008/model.safetensors" "$tmp/x"; refused weights-of-another-step "model.safetensors: checksum"
damage; rm "$tmp/x/$list"; refused no-list "$list"
damage; cp "$run/step-000008/$list" "$tmp/x/$list"; refused list-of-another-step "$list: belongs to step 8"
damage; sed -i '/optimizer-00002/,/}/d; /optimizer-00001/,/}/s/},/}/' "$tmp/x/$list"; refused not-listed "are in no shard"
damage; sed -i 's/trainer\/optimizer-00002/..\/optimizer-00002/' "$tmp/x/$list"; refused outside "expected model.safetensors or a file of trainer/"
damage; sed -i 's/"xxh64": "./"xxh64": "x/' "$tmp/x/$list"; refused no-sum "16 hexadecimal digits"
damage; sed -i 's/"bytes": /"bytes": -/' "$tmp/x/$list"; refused no-bytes "a whole number"
damage; printf '[1]' >"$tmp/x/$list"; refused list "$list"
damage; sed -i 's/model.norm.weight/model.nerm.weight/' "$tmp/x/$part" "$tmp/x/trainer/optimizer-00001-of-00002.safetensors"; refused name "model.norm.weight\" is missing"
verdict damage-is-named

# ---- a rank whose disk is full: all say so, one line, no half checkpoint; the next start goes on
short="dist.stage=1 train.steps=16"
"$prog" launch -n 2 -- $args run.dir="$tmp/ref2" dist.stage=1 >/dev/null || wrong "exit $?"
full() { # rank, call, how many, then more words
    local rank=$1 call=$2 count=$3
    shift 3
    rm -rf "$tmp/full"
    LD_PRELOAD=$tmp/world.so WORLD_FULL_RANK=$rank WORLD_FULL_STEP=.tmp-step-000016 WORLD_FULL_CALL=$call WORLD_FULL_COUNT=$count \
        WORLD_FULL_LOG=$tmp/calls "$prog" launch -n 2 -- $args dist.stage=1 run.dir="$tmp/full" "$@" >"$tmp/out" 2>"$tmp/err"
    s=$?
    [ -z "$(unfinished "$tmp/full")" ] || wrong "rank $rank, call $call left $(unfinished "$tmp/full")"
}
full 1 99999 0
calls=$(cat "$tmp/calls") # of the checkpoints of steps 16 and 24
[ $s -eq 0 ] && [ "$calls" -ge 6 ] || wrong "exit $s, $calls calls: $(cat "$tmp/err")"
for k in "0 1" "0 12" "1 1" "1 2" "1 $((calls / 2))"; do
    full $k 0
    [ $s -eq 1 ] || wrong "$k of $calls: exit $s: $(cat "$tmp/err")"
    [ "$(grep -c 'No space left' "$tmp/err")" -eq 1 ] && grep 'No space left' "$tmp/err" | grep -q "last checkpoint is intact: .*step-000008" || wrong "$k: $(cat "$tmp/err")"
    [ "${k% *}" = 1 ] && ! grep -q 'rank 1 on .*optimizer-00002-of-00002' "$tmp/err" && wrong "$k: $(cat "$tmp/err")"
    [ -e "$tmp/full/step-000016" ] && wrong "$k: half a checkpoint"
    [ "$(readlink "$tmp/full/last")" = step-000008 ] || wrong "$k: last is $(readlink "$tmp/full/last")"
done
"$prog" launch -n 2 -- $args dist.stage=1 run.dir="$tmp/full" --resume auto >"$tmp/out" 2>"$tmp/err" || wrong "resume: exit $?: $(cat "$tmp/err")"
diff -r "$tmp/full/last/trainer" "$tmp/ref2/last/trainer" -x config.yaml -x clock.json >>"$bad"
cmp "$tmp/full/last/model.safetensors" "$tmp/ref2/last/model.safetensors" >>"$bad" 2>&1
# Asynchronous: once is told and tried again, twice ends the run.
full 1 1 1 train.async_save=true
[ $s -eq 0 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q 'checkpoint of step 16: rank 1 on .*No space left.*tries again' "$tmp/err" || wrong "once: exit $s: $(cat "$tmp/err")"
[ -e "$tmp/full/step-000016" ] && wrong "once: it is there"
cmp "$tmp/full/last/model.safetensors" "$tmp/ref2/last/model.safetensors" >>"$bad" 2>&1
full 1 1 0 train.async_save=true
[ $s -eq 1 ] && grep -q 'step 24 failed again: rank 1 on .*No space left.*step-000008' "$tmp/err" || wrong "twice: exit $s: $(cat "$tmp/err")"
verdict a-full-disk-of-one-rank

# ---- format 1: one file, no list
"$prog" train tests/golden/format1.yaml --threads 1 -q --resume tests/golden/format1 run.dir="$tmp/new" || wrong "exit $?"
for f in model.safetensors trainer/optimizer.safetensors config.json; do
    cmp "$tmp/new/last/$f" "tests/golden/format1/$f" >>"$bad" 2>&1
done
same_lines() { grep -v '"format"\|"best\|"val_loss"\|^  }' "$1" | grep -v '^    "step"'; } # best: none is in the new folder
diff <(same_lines tests/golden/format1/trainer/state.json) <(same_lines "$tmp/new/last/trainer/state.json") >>"$bad"
grep -q '"format": 2' "$tmp/new/last/trainer/state.json" && [ -e "$tmp/new/last/trainer/manifest.json" ] || wrong "$(ls "$tmp/new/last/trainer")"
"$prog" launch -n 2 -- train tests/golden/format1.yaml --threads 1 -q --resume tests/golden/format1 run.dir="$tmp/new2" dist.stage=2 >"$tmp/out" 2>"$tmp/err" || wrong "exit $?: $(cat "$tmp/err")"
"$prog" train tests/golden/format1.yaml --threads 1 -q --resume "$tmp/new2/last" run.dir="$tmp/new1" || wrong "exit $?"
cmp "$tmp/new1/last/trainer/optimizer.safetensors" tests/golden/format1/trainer/optimizer.safetensors >>"$bad" 2>&1
verdict format-1-is-read
