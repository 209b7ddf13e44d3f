#!/bin/bash
# compare --policies on a small model: every row of the table, what its figures must satisfy, its files, and refusals.
. tests/lib/cases.sh
src=tests/golden/convert
run() { "$prog" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; }
tasks="niah:digits=1 vt:hops=1"
run compare $src --policies "snapkv:window=4 adakv:window=4" --tasks "$tasks" T=600 samples=2 --seeds 2 --budgets 1,0.2 --out "$tmp/o" -q --threads 1 ||
    wrong "exit $?: $(cat "$tmp/err")"
cmp -s "$tmp/out" "$tmp/o/policies.md" || wrong "the table is not the file's"
[ "$(grep -c '^| `dense` | 1 ' "$tmp/out")" -eq 2 ] || wrong "no dense rows: $(cat "$tmp/out")"
for row in window random snapkv:window=4 adakv:window=4; do
    for budget in 1 0.2; do
        [ "$(grep -cF "| \`$row\` | $budget |" "$tmp/out")" -eq 2 ] || wrong "not two rows of $row $budget: $(cat "$tmp/out")"
    done
done
# Columns: 6, 7 the tasks, 8 KL, 9 top-1, 10 resident bytes, 11 of dense, 12 read.
awk -F'|' '!/^\| `/ { next }
    { name = $2; gsub(/[ `]/, "", name); off = $10 * 100 / dense - $11; mean = ($6 + $7) / 2 - $4; rows++ }
    name == "dense" { dense = $10; if ($8 != 0 || $9 != 100 || $11 != 100) print "dense:", $0 }
    $3 == 1 && name != "dense" && name != "window" && ($8 != 0 || $9 != 100) { print "a full budget differs:", $0 }
    $3 == 0.2 && !($8 > 0 && $11 < 30 && $11 >= 19 && off < 0.1 && off > -0.1) { print "a small budget:", $0 }
    mean > 0.11 || mean < -0.11 { print "not the mean of the tasks:", $0 }
    END { if (rows != 18) print rows " rows" }' "$tmp/out" >"$tmp/bad"
verdict table

if command -v python3 >/dev/null; then
python3 - "$tmp/o" >"$tmp/bad" 2>&1 <<'END' || [ -s "$tmp/bad" ] || wrong "python3: exit $?"
import json, sys, xml.etree.ElementTree as xml
j = json.load(open(sys.argv[1] + "/policies.json"))
if len(j["rows"]) != 18 or len(j["tasks"]) != 2 or j["seeds"] != 2 or j["samples"] != 2:
    print("rows", len(j["rows"]), "tasks", j["tasks"])
for r in j["rows"]:
    for k in "policy spec question accuracy accuracy_sd kl top1 resident_bytes resident_share read_bytes prompt_overhead decode_tok_s".split():
        if k not in r:
            print("no", k, "in", r)
svg = xml.parse(sys.argv[1] + "/policies.svg").getroot()
paths = [x for x in svg.iter() if x.tag.endswith("path")]
if len(paths) != 8 or any(len(p.get("d").split()) != 5 for p in paths):
    print("not a line of two points for each policy and form:", [p.get("d") for p in paths])
END
verdict files
else
    echo "skip files: no Python here"
fi

# Counts and likelihoods are the same again, and --json prints what the file has.
run compare $src --policies "snapkv:window=4 adakv:window=4" --tasks "$tasks" T=600 samples=2 --seeds 2 --budgets 1,0.2 -q --json --threads 1 || wrong "exit $?: $(cat "$tmp/err")"
same() { grep -o '"\(accuracy\|kl\|top1\|resident_bytes\|read_bytes\)": *[0-9.e-]*' "$1" | tr -d ' '; }
[ "$(same "$tmp/out")" = "$(same "$tmp/o/policies.json")" ] && [ "$(same "$tmp/out" | wc -l)" -ge 90 ] || wrong "two runs differ"
verdict again

# Rows by a codec: all of them once, at no budget; those that a policy keeps at every budget; as many bytes as both say.
run compare $src --policies "none@int8 snapkv:window=4@int8 snapkv:window=4 window:sinks=2@int8" --tasks niah:digits=1 T=600 samples=2 --seeds 1 --budgets 0.2 --out "$tmp/c" -q --threads 1 ||
    wrong "exit $?: $(cat "$tmp/err")"
awk -F'|' '!/^\| `/ { next }
    { name = $2; gsub(/[ `]/, "", name); share[name] = $10; kl[name] = $7; rows[name]++ }
    END { if (rows["window"] != 2 || rows["window:sinks=2@int8"] != 2) print "a coded window took the place of the control"
        if (rows["none@int8"] != 2 || rows["snapkv:window=4@int8"] != 2) print "rows of codecs: " rows["none@int8"] " " rows["snapkv:window=4@int8"]
        a = share["none@int8"]; b = share["snapkv:window=4"]; c = share["snapkv:window=4@int8"]
        if (!(a > 25 && a < 60 && b > 19 && b < 30 && c < 1.1 * a * b / 100 && c > 0.9 * a * b / 100)) print "shares " a " " b " " c
        if (!(kl["none@int8"] > 0 && kl["none@int8"] < 0.1 * kl["snapkv:window=4"])) print "KL " kl["none@int8"] " " kl["snapkv:window=4"] }' "$tmp/out" >"$tmp/bad"
[ -s "$tmp/bad" ] && cat "$tmp/out" >>"$tmp/bad"
grep -q '"codec": "int8"' "$tmp/c/policies.json" && grep -q '"codec": null' "$tmp/c/policies.json" || wrong "policies.json names no codec"
verdict codecs

# On the recall model (configs/recall.yaml) dense succeeds, a quarter of the rows fails as a window or at random, and
# suffices where the last queries choose; it is what its configuration says.
run compare tests/golden/recall --policies "random:window=4 snapkv:window=4 infinipot:window=4" --tasks "niah:digits=0 passkey:digits=0 vt:digits=0,hops=1" \
    T=96 vocab=112 samples=40 --seeds 1 --budgets 0.25 -q --threads 1 || wrong "exit $?: $(cat "$tmp/err")"
awk -F'|' '!/^\| `/ { next }
    { name = $2; gsub(/[ `]/, "", name); rows++ }
    name == "dense" && $4 < 95 || name == "window" && $4 > 60 || name ~ /random/ && $4 > 70 || name ~ /snapkv|infinipot/ && $4 < 85 { print }
    END { if (rows != 10) print rows " rows" }' "$tmp/out" >"$tmp/bad"
[ -s "$tmp/bad" ] && cat "$tmp/out" >>"$tmp/bad"
verdict recall

# At an eighth each query's own choice of pages keeps what one choice for all queries loses, and reads no more. Guessed
# queries of a second layer do worse, but know more than chance.
run compare tests/golden/recall --policies "random:window=4 snapkv:window=4 quest:recent=4,page=4 hybrid:recent=4,page=4 \
    shadowkv:recent=4,page=4,uneven=1 infinigen:recent=4 tailorkv:recent=4,sinks=1,bits=4" --tasks "niah:digits=0,hay=words repeat:items=8" \
    T=96 vocab=112 samples=40 --seeds 1 --budgets 0.125 -q --threads 1 || wrong "exit $?: $(cat "$tmp/err")"
awk -F'|' '!/^\| `/ { next }
    { name = $2; gsub(/[ `]|:.*/, "", name); rows++ }
    name == "dense" { read = $12 }
    name == "random" { random = $4 }
    name == "snapkv" { snapkv = $4 }
    name ~ /^(quest|hybrid|shadowkv)$/ && !($4 > snapkv + 10 && $4 > 85 && $11 > 110 && $12 < 0.2 * read) { print }
    name == "tailorkv" && !($4 > snapkv + 10 && $4 > 85 && $11 < 90 && $12 < 0.2 * read) { print }
    name == "infinigen" && !($4 > random + 10 && $4 < snapkv - 10 && $12 > 0.5 * read && $12 < 0.6 * read) { print }
    END { if (rows != 18 || snapkv < 60) print rows " rows, snapkv " snapkv }' "$tmp/out" >"$tmp/bad"
[ -s "$tmp/bad" ] && cat "$tmp/out" >>"$tmp/bad"
verdict selection

for setting in "d_model: 64" "layers: 2" "vocab: 112" "keys: 10" "rounds: 6" "seq_len: 96"; do
    grep -q "$setting" configs/recall.yaml || wrong "configs/recall.yaml lacks $setting"
done
[ "$(wc -c <tests/golden/recall/model.safetensors)" -lt 300000 ] || wrong "the weights have 300 kB"
verdict model

refused() { # part of the line, arguments
    local part=$1
    shift
    run "$@"
    [ $? -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -qF -- "$part" "$tmp/err" || wrong "$*: $(cat "$tmp/err")"
}
refused "--policies: none is the dense cache" compare $src --policies none --tasks niah
refused "int9" compare $src --policies h2o@int9 --tasks niah
refused "--policy: expected none, window" compare $src --policies snapvk --tasks niah
refused "fastgen: it evicts rows, whose attention --cache-dtype zipcache" compare tests/golden/recall --policies "h2o fastgen@zipcache" --quiet
refused "no task has the name 'nia'" compare $src --policies h2o --tasks nia
refused "cannot be asked mqar in text" compare $src --policies h2o --tasks mqar
refused "give --tasks" compare $src --policies h2o
refused "--budgets: expected a number" compare $src --policies h2o --tasks niah --budgets 2
refused "--seeds is an option of --policies" compare configs/compare-ci.yaml --seeds 3
refused "are not options of --policies" compare $src --policies h2o --tasks niah --plan
refused "expected MODEL" compare --policies h2o
verdict refusals
