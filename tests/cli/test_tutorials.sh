#!/bin/bash
# The commands of docs/tutorials, in a reader's order and as they are written, but for the lengths of runs: a training gets
# three seconds, a comparison a few steps. A file that a page says to save is saved under that name.
. tests/lib/cases.sh
root=$PWD
mkdir "$tmp/home" && cd "$tmp/home" && mkdir runs build || exit 1
for f in configs data docs README.md; do ln -s "$root/$f" . || exit 1; done
printf '#!/bin/bash\nexec "%s" "$@"\n' "$prog" >build/kvsmith && chmod +x build/kvsmith

# A page as lines `file NAME`, `text LINE` of that file, `run COMMAND`.
steps() {
    awk '/Save this as `[^`]*`/ { match($0, /`[^`]*`/); name = substr($0, RSTART + 1, RLENGTH - 2) }
        /^```yaml/ { on = 1; print "file " name; next }
        /^```/ { on = 0 }
        on { print "text " $0; next }
        /^ +build\/kvsmith / { sub(/^ +/, ""); print "run " $0 }' "$1"
}
shorter() {
    case $1 in
    *'kvsmith compare '*) echo "$1 budget.tokens=4096 base.optim.warmup=1 seeds=[1] measure.decode=8 measure.repeats=1 measure.contexts=[512]" ;;
    *--plan*) echo "$1" ;;
    # the last of two values counts; a resumed run has spent its three seconds
    *'kvsmith train '*--resume*) echo "$1 train.max_seconds=5 train.eval_tokens=2048" ;;
    *'kvsmith train '*) echo "$1 train.max_seconds=3 train.eval_tokens=2048" ;;
    *) echo "$1" ;;
    esac
}
follow() { # PAGE COMMANDS: that many commands, whose output is left in out.1, out.2, ...
    local line file cmd n=0
    while IFS= read -r line; do
        case $line in
        file*) file=${line#file } && : >"$file" ;;
        text*) echo "${line#text }" >>"$file" ;;
        run*)
            cmd=$(shorter "${line#run }")
            n=$((n + 1))
            bash -c "$cmd" >"$tmp/out.$n" 2>"$tmp/err" </dev/null || wrong "$cmd: exit $?: $(tail -n 1 "$tmp/err")"
            ;;
        esac
    done < <(steps "docs/tutorials/$1.md")
    [ $n -eq "$2" ] || wrong "$1: $n commands, expected $2: say here what is new"
}
prints() { grep -qF -- "$2" "$tmp/out.$1" || wrong "command $1 does not print '$2': $(head -c 600 "$tmp/out.$1")"; }

[ "$(ls docs/tutorials | tr '\n' ' ')" = "compare.md convert.md lora.md pretrain.md " ] || wrong "another page: $(ls docs/tutorials)"
follow pretrain 9
prints 2 1766592
prints 2 "2.05 kB per token"
[ -e runs/tutorial/best/config.json ] && [ -s runs/tutorial/metrics.jsonl ] || wrong "runs/tutorial: $(ls runs/tutorial)"
verdict pretrain

follow convert 8
for rule in gqa mqa mla swa cla yoco dmc same; do prints 1 "$rule"; done
[ -e runs/tutorial-mqa/run/last/config.json ] || wrong "runs/tutorial-mqa: $(ls runs/tutorial-mqa)"
verdict convert

follow lora 5
cmp "$tmp/out.3" "$tmp/out.4" >>"$bad" 2>&1 # "the first two print the same text"
[ -e runs/tutorial-chat/last/adapter/adapter_config.json ] && [ -e runs/tutorial-merged/config.json ] || wrong "no adapter, or not merged"
verdict lora

follow compare 3
[ -s runs/tutorial-compare/table.md ] && [ -s runs/tutorial-compare/results.json ] || wrong "no table: $(ls runs/tutorial-compare)"
for row in mha mqa window mla; do prints 2 "$row"; done
verdict compare
