#!/bin/bash
# kvsmith compare as its users meet it: the plan, the table against the records that it is made of, work that is done once,
# kills and interrupts, runs that diverge or are cut, and what is refused.
. tests/lib/cases.sh
ci='configs/compare-ci.yaml measure.repeats=1' # speeds are looked at for their presence alone
compare() { "$prog" compare "$@" >"$tmp/out" 2>"$tmp/err"; }
ok() {
    compare "$@"
    local s=$?
    [ $s -eq 0 ] || wrong "compare $*: exit $s: $(cat "$tmp/err")"
}
refused() { # PART ARGUMENTS: exit 2, an empty stdout, one line of at most 300 characters with PART on stderr
    local part=$1 s
    shift
    compare "$@"
    s=$?
    [ $s -eq 2 ] || wrong "compare $*: exit $s, expected 2"
    [ -s "$tmp/out" ] && wrong "compare $*: printed $(head -c 80 "$tmp/out")"
    [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ "$(wc -m <"$tmp/err")" -le 301 ] || wrong "compare $*: not one line: $(cat "$tmp/err")"
    grep -qF -e "$part" "$tmp/err" || wrong "compare $*: expected '$part' in: $(cat "$tmp/err")"
}
field() { grep -o "\"$2\": *[^,}]*" "$1" | head -n 1 | sed 's/^[^:]*: *//'; }
begun() { grep -c ': begins at\|: continues at' "$1"; }
trained() { (cd "$1" && find . -name '*.json' -path './*/lr-*' -o -name model.safetensors | sort | xargs sha256sum); }
losses() { (cd "$1" && for f in */lr-*.json; do printf '%s %.9f\n' "$f" "$(field "$f" val_loss)"; done); }

# ---- the plan
# Rows of conversions keep the size that their source gives them. A batch of one: the estimate of the time takes steps.
for config in configs/compare-ci.yaml configs/compare.yaml; do
    ok $config base.train.batch=1 base.train.micro_batch=1 dir="$tmp/none/plan" --plan --json
    [ "$(wc -l <"$tmp/out")" -eq 1 ] || wrong "$config: --json printed $(wc -l <"$tmp/out") lines"
    grep -o '"name":"[^"]*","params":[0-9]*' "$tmp/out" | tr -d '"' | tr ':,' '  ' >"$tmp/params"
    [ "$(wc -l <"$tmp/params")" -ge 5 ] || wrong "$config: $(wc -l <"$tmp/params") rows"
    awk -v want="$(field "$tmp/out" match_params)" -v tol="$(field "$tmp/out" tolerance)" '
        { off = ($4 - want) / want; if (!(off <= tol && off >= -tol)) print $2 " has " $4 " parameters, expected " want }
    ' "$tmp/params" >>"$bad"
done
[ "$(grep -c '^name mha-on ' "$tmp/params")" -eq 1 ] || wrong "mha-on is in the configuration: $(cat "$tmp/params")"
ok $ci dir="$tmp/none/plan" --plan
[ "$(grep -c ' 4 *[0-9.]*$' "$tmp/out")" -ge 5 ] || wrong "not 4 runs in each row: $(cat "$tmp/out")"
grep -q 'at least' "$tmp/out" && wrong "nothing may follow where widen is 0: $(cat "$tmp/out")"
[ -e "$tmp/none" ] && wrong "--plan made $(find "$tmp/none")"
verdict plan-matches-parameters

# ---- all rows of the CI size
start=$SECONDS
ok $ci dir="$tmp/all"
seconds=$((SECONDS - start))
echo "  $ci: $seconds s"
[ $seconds -le "$(patience 180)" ] || wrong "$ci took $seconds s, at most $(patience 180) are allowed"
rows=$(($(grep -c '^  - .*name: ' configs/compare-ci.yaml) + 1)) # and the control of dmc
table=$tmp/all/table.md
first() { sed '/^Loss: /q' "$table"; } # the first table
cells() { first | awk -F' *[|] *' -v row="$1" -v n="$2" '$2 == row { print $n }'; }
[ "$(first | grep -c '^| [a-z]')" -eq $((rows + 1)) ] || wrong "the table has other than $rows rows: $(cat "$table")"
tail -n "$(wc -l <"$table")" "$tmp/out" | cmp - "$table" >>"$bad" 2>&1 # what is printed is what is kept
[ "$(begun "$tmp/out")" -eq $((rows * 4)) ] || wrong "$(begun "$tmp/out") runs were begun, expected $((rows * 4))"
head -n 1 "$table" | grep -q "threads.*kvsmith [0-9.]*; \`configs/compare-ci.yaml\`" || wrong "the table does not say where it comes from: $(head -n 1 "$table")"
awk -F' *[|] *' 'NR == 3 { n = NF } NR > 3 && /^\|/ && NF != n { print "a line of " NF " cells, expected " n ": " $0 }' <(first) >>"$bad"
for row in $(first | awk -F' *[|] *' '/^\| [a-z]/ && $2 != "row" { print $2 }'); do
    # the learning rate is that of the lowest loss at the tuning seed
    best=$(for f in "$tmp/all/$row"/lr-*-seed-0.json; do echo "$(field "$f" val_loss) $f"; done | sort -g | head -n 1)
    lr=$(basename "${best#* }" -seed-0.json)
    [ "lr-$(cells "$row" 5)" = "$lr" ] || wrong "$row: lr $(cells "$row" 5), but $lr has the lowest loss"
    [ "$(ls -d "$tmp/all/$row"/lr-*/ | wc -l)" -eq 4 ] || wrong "$row: runs $(ls "$tmp/all/$row")"
    # mean and sd of the two seeds: sd = |a - b| / sqrt(2)
    awk -v a="$(field "$tmp/all/$row/$lr-seed-1.json" val_loss)" -v b="$(field "$tmp/all/$row/$lr-seed-2.json" val_loss)" -v got="$(cells "$row" 6)" -v row="$row" '
        BEGIN { want = sprintf("%.4f ± %.4f", (a + b) / 2, (a > b ? a - b : b - a) / sqrt(2)); if (got != want) print row ": loss " got ", expected " want }' >>"$bad"
    for f in "$tmp/all/$row"/lr-*.json; do # a record says what the run's last validation said
        run=${f%.json}
        last=$(grep -o '"val_loss":[^,]*' "$run/metrics.jsonl" | tail -n 1 | cut -d: -f2)
        awk -v a="$last" -v b="$(field "$f" val_loss)" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < 1e-18) }' || wrong "$f: $(field "$f" val_loss), metrics say $last"
    done
    # cache bytes are counted and computed; of these mixers both agree; speeds are there
    [ "$(cells "$row" 8)" = "$(cells "$row" 9)" ] || case $row in dmc*) ;; *) wrong "$row: measured $(cells "$row" 8) bytes a token, computed $(cells "$row" 9)" ;; esac
    for n in 11 12 13 14 15 16 17 18 19; do
        [[ $(cells "$row" $n) =~ ^[0-9,.]+$ ]] || wrong "$row: cell $n is '$(cells "$row" $n)'"
    done
done
grep -q '^| dmc .*from mha, which had 10,240 tokens before' "$table" || wrong "dmc: $(grep '^| dmc' "$table")"
awk -F' *[|] *' '$2 == "dmc" { a = $6 + 0; note = $0 } $2 == "mha-on" { b = $6 + 0 }
    END { split(note, part, /[;|] */); for (i in part) if (part[i] ~ /to mha-on/) got = part[i]
        if (!(b > 0 && (got - 100 * (a / b - 1)) ^ 2 < 0.01 ^ 2)) print "dmc has " a ", mha-on " b ", but: " note }' <(first) >>"$bad"
cmp <(sed -n '/^model:/,/^init_from/p' "$tmp/all/mha/lr-$(cells mha 5)-seed-1/config.yaml" | grep -v init_) \
    <(sed -n '/^model:/,/^init_from/p' "$tmp/all/mha-on/lr-$(cells mha-on 5)-seed-1/config.yaml" | grep -v init_) >>"$bad" 2>&1
for f in "$tmp/all/dmc/"*/config.yaml; do # starts from the run of its own seed, the tuning run too
    seed=${f%/config.yaml} seed=${seed##*-seed-}
    grep -q "^init_from: .*/mha/lr-$(cells mha 5)-seed-$seed/last" "$f" || wrong "$f: $(grep init_from "$f")"
done
grep -q '"step":20,"stage":"fix"' "$tmp/all/dmc/"*/metrics.jsonl || wrong "dmc did not end in its last stage"
grep -q '| lowest |' "$table" || wrong "no row is the lowest: $(cat "$table")"
lr=lr-$(cells gqa 5)
"$prog" info "$tmp/all/gqa/$lr-seed-1" --context 32768 --json >"$tmp/info"
[ "$(cells gqa 12 | tr -d ,)" = "$(field "$tmp/info" bytes_at_context)" ] || wrong "gqa: $(cells gqa 12) bytes at 32768, info says $(field "$tmp/info" bytes_at_context)"
cells mha 8 | grep -qx '1024.0' || wrong "mha: $(cells mha 8) bytes a token, expected 2 x 4 layers x 4 heads x 8 numbers x 4 bytes = 1024"
[ "$(field "$tmp/all/results.json" text_hash)" = "$(field "$tmp/all/gqa/$lr-seed-1.json" text_hash)" ] || wrong "results.json: another text"
verdict table

# ---- bytes at contexts: counted where rows leave, in proportion beyond the 64 positions of the models; by formula elsewhere
ok $ci lrs=[1e-2] seeds=[1] budget.tokens=2560 measure.context=64 measure.contexts='[32, 64, 256]' dir="$tmp/counted" \
    "rows=[{name: mha}, {name: evicts, set: {model.kinds.mix: {mixer: dmc, action: evict, delay: 4, heads: 4, kv_heads: 4, head_dim: 8, offset: -20, phase: soft}}}]"
tr -d ' \n' <"$tmp/counted/results.json" | sed 's/{"name":/\n&/g' >"$tmp/flat"
list() { grep "^{\"name\":\"$1\"" "$tmp/flat" | grep -o "\"$2\":\[[^]]*" | head -n 1 | sed 's/.*\[//' | tr ',' ' '; }
one() { grep "^{\"name\":\"$1\"" "$tmp/flat" | grep -o "\"$2\":[^,}]*" | head -n 1 | sed 's/.*://'; }
[ "$(list mha cache_counted)" = "null null null" ] && [ "$(list mha cache_at)" = "$(list mha at)" ] || wrong "mha: $(list mha cache_at), $(list mha cache_counted)"
[ "$(list evicts cache_counted)" = "32 64 64" ] || wrong "evicts was counted at $(list evicts cache_counted)"
echo "$(one evicts cache_measured) $(one evicts state_bytes) $(one evicts formula) $(list evicts cache_at) $(list evicts at)" | awk '
    { want = $2 + ($1 - $2) / ($3 - $2) * ($9 - $2)
      if (!($1 < $3 / 2 && $5 == $1 && $4 < $7 && ($6 - want) ^ 2 <= 1)) print "measured, state, formula, counted, formulas: " $0 ", expected " want }' >>"$bad"
grep -q '^| evicts .*cache counted up to 64 tokens, beyond that in proportion' "$tmp/counted/table.md" || wrong "$(cat "$tmp/counted/table.md")"
verdict bytes-at-contexts

# ---- where the loss is: the same validation as the runs' own, computed through the cache, so the means agree where a cache
# keeps every row (measure.loss_tokens is base.train.eval_tokens); the parts are the whole
sed -n '/^Where the loss is/,/^The first/p' "$table" >"$tmp/where"
[ "$(grep -c '^| [a-z]' "$tmp/where")" -eq $((rows + 1)) ] || wrong "$(cat "$tmp/where")"
for row in $(first | awk -F' *[|] *' '/^\| [a-z]/ && $2 != "row" { print $2 }'); do
    awk -F' *[|] *' -v row="$row" -v want="$(cells "$row" 6)" '$2 == row { split($3, a, " "); split(want, b, " ")
        if (row != "dmc" && !((a[1] - b[1]) ^ 2 <= 0.0002 ^ 2 && (a[3] - b[3]) ^ 2 <= 0.0002 ^ 2)) print row ": " $3 " through the cache, validation " want
        seen = 1 } END { if (!seen) print row " has no losses" }' "$tmp/where" >>"$bad"
done
awk -F'[][, ]+' '/"sums"/ { on = 1; k = 0; next } on && /[0-9]/ { v[k++] = $2 + 0
    if (k == 40) { n = all = kinds = 0
        for (i = 2; i < 34; i += 2) { n += v[i]; all += v[i + 1] }
        for (i = 34; i < 40; i += 2) { kinds += v[i]; sum += v[i + 1] }
        if (n != v[0] || kinds != v[0] || v[0] != 4096 || (all - v[1]) ^ 2 > 1e-12 || (sum - v[1]) ^ 2 > 1e-12) print "sums " n " " kinds " of " v[0] ", " all " " sum " of " v[1]
        sum = 0; runs++ } } END { if (!(runs > 10)) print runs " runs in losses.json" }' "$tmp/all/losses.json" >>"$bad"
again() { # VALUE=...: the small comparison once more; prints the second table
    ok $ci lrs=[1e-2] seeds=[1] budget.tokens=2560 measure.context=64 measure.contexts=[64] dir="$tmp/counted" 'rows=[{name: mha}]' "$@"
    sed -n '/^Where the loss is/,/^The first/p' "$tmp/counted/table.md"
}
again >"$tmp/where"
inode=$(stat -c %i "$tmp/counted/losses.json")
again measure.repeats=2 | cmp - "$tmp/where" >>"$bad" 2>&1
[ "$(stat -c %i "$tmp/counted/losses.json")" = "$inode" ] || wrong "losses were computed again"
again measure.common=1 | cmp -s - "$tmp/where" && wrong "measure.common changes nothing"
again measure.loss_context=16 | grep -q 'tokens 5 to 16 |$' || wrong "windows of 16: $(cat "$tmp/counted/table.md")"
[ -z "$(again measure.loss_tokens=0)" ] || wrong "loss_tokens=0: $(cat "$tmp/counted/table.md")"
verdict where-the-loss-is

# ---- the page: well formed, with every row, its fronts those that the results give
page() { # checks $1/table.html against $1/results.json
    local html=$1/table.html
    if command -v python3 >/dev/null 2>&1; then
        python3 - "$html" >>"$bad" 2>&1 <<'END'
import sys
from html.parser import HTMLParser
class Nest(HTMLParser):
    VOID = {"meta", "line", "circle/"}
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], {}
    def handle_starttag(self, tag, attrs):
        self.seen[tag] = self.seen.get(tag, 0) + 1
        if tag not in self.VOID: self.open.append(tag)
    def handle_startendtag(self, tag, attrs): self.seen[tag] = self.seen.get(tag, 0) + 1
    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag: sys.exit(f"</{tag}> closes nothing at {self.getpos()}")
p = Nest()
p.feed(open(sys.argv[1], encoding="utf-8").read())
p.close()
if p.open: sys.exit(f"left open: {p.open}")
for tag in "html", "table", "svg", "circle", "polyline": 
    if not p.seen.get(tag): sys.exit(f"no <{tag}>")
END
    fi
    grep -qiE '<script|https?://[^"]*\.(js|css)|<link|@import' "$html" && wrong "$html needs other files"
    for tag in table thead tbody svg tr td th div p; do
        [ "$(grep -o "<$tag[ >]" "$html" | wc -l)" -eq "$(grep -o "</$tag>" "$html" | wc -l)" ] || wrong "$html: <$tag> is not closed"
    done
    [ "$(grep -c '^| ' "$1/table.md")" -eq "$(grep -o '<tr>' "$html" | wc -l)" ] || wrong "$html has other lines than table.md"
    awk -F': ' '{ gsub(/[",]/, "", $2) } /^      "name"/ { name[++n] = $2 } /^      "from"/ { from[n] = $2 != "null" }
        /^      "val_loss"/ { loss[n] = $2 } /^      "bytes_per_token"/ { bytes[n] = $2 }
        END { for (i = 1; i <= n; i++) {
            if (loss[i] == "null" || bytes[i] == "null") continue
            on = 1
            for (k = 1; k <= n; k++) {
                if (loss[k] == "null" || bytes[k] == "null" || from[k] != from[i]) continue
                better = (loss[k] + 0 < loss[i] + 0) + (bytes[k] + 0 < bytes[i] + 0)
                worse = (loss[k] + 0 > loss[i] + 0) + (bytes[k] + 0 > bytes[i] + 0)
                if (better && !worse) on = 0
            }
            print "class=\"row" (from[i] ? " from" : "") (on ? " best" : "") "\" data-row=\"" name[i] "\"" } }' "$1/results.json" | sort >"$tmp/front"
    [ -s "$tmp/front" ] && grep -q best "$tmp/front" || wrong "no front in $1/results.json"
    grep -o 'class="row[^>]*data-row="[^"]*"' "$html" | sort | cmp - "$tmp/front" >>"$bad" 2>&1
}
page "$tmp/all"
[ "$(wc -l <"$tmp/front")" -eq $rows ] || wrong "the plot has $(wc -l <"$tmp/front") rows of $rows"
verdict page

# ---- what is done is not done again
trained "$tmp/all" >"$tmp/before"
losses "$tmp/all" >"$tmp/losses"
cp "$table" "$tmp/table"
ok $ci dir="$tmp/all"
[ "$(begun "$tmp/out")" -eq 0 ] || wrong "done, but: $(cat "$tmp/out")"
cmp "$table" "$tmp/table" >>"$bad" 2>&1
cmp <(trained "$tmp/all") "$tmp/before" >>"$bad" 2>&1
ok $ci dir="$tmp/all" --json
[ "$(wc -l <"$tmp/out")" -eq 1 ] && grep -q '^{"config":.*}$' "$tmp/out" || wrong "--json printed $(head -c 300 "$tmp/out")"
lr=lr-$(cells mqa 5)
rm -r "$tmp/all/mqa/$lr-seed-2" "$tmp/all/mqa/$lr-seed-2.json" # one run is lost
ok $ci dir="$tmp/all" --plan --json
[ "$(field "$tmp/out" runs_left)" = 1 ] || wrong "--plan counts $(field "$tmp/out" runs_left) runs, expected 1"
refused "base.train.dtype=bf16" $ci dir="$tmp/all" --dtype bf16
refused "did you mean mqa?" $ci dir="$tmp/all" --only mqua
ok $ci dir="$tmp/all" --only gqa,mha
[ "$(begun "$tmp/out")" -eq 0 ] || wrong "--only gqa,mha began $(begun "$tmp/out") runs"
grep -q '^| mqa .*1 of 2 runs done' "$table" || wrong "mqa lacks a run: $(grep '^| mqa' "$table")"
ok $ci dir="$tmp/all" -q
grep -q 'begins' "$tmp/out" && wrong "-q printed $(cat "$tmp/out")"
cmp <(trained "$tmp/all" | grep model.safetensors) <(grep model.safetensors "$tmp/before") >>"$bad" 2>&1
cmp <(losses "$tmp/all") "$tmp/losses" >>"$bad" 2>&1
speed=$tmp/counted/speed.json # of one row
measured_again() { # what is asked, what went wrong
    touch -d '1 hour ago' "$speed"
    again $1 >/dev/null
    [ "$(begun "$tmp/out")" -eq 0 ] || wrong "$1: trained"
    [ -n "$(find "$speed" -mmin -30)" ] || wrong "$1: $2"
}
again >/dev/null
touch -d '1 hour ago' "$speed"
again >/dev/null
[ -z "$(find "$speed" -mmin -30)" ] || wrong "what was measured was measured again"
measured_again --measure-only "nothing was measured"
measured_again measure.decode=8 "speeds of other measurements were kept"
sed -i 's/"figures": [0-9]*/"figures": 0/' "$speed"
grep -q '"figures": 0' "$speed" || wrong "speed.json does not say how many figures it has"
measured_again measure.decode=8 "speeds with fewer figures were kept"
grep -q '"figures": [1-9]' "$speed" || wrong "speeds with fewer figures were kept"
verdict done-once

# ---- another configuration of runs that are there
trained "$tmp/all" >"$tmp/before"
refused "optim.warmup" $ci dir="$tmp/all" base.optim.warmup=3
refused "train.steps" $ci dir="$tmp/all" budget.tokens=12800
refused "model.ffn" $ci dir="$tmp/all" match.params=50000
refused "heads" $ci dir="$tmp/all" 'rows.1.set={model.kinds.mix.kv_heads: 4}'
head -c 300000 data/kjv.txt >"$tmp/text"
cat data/kjv.txt >"$tmp/same"
cp configs/compare-ci.yaml "$tmp/a&b <c>.yaml"
refused "data.train" $ci dir="$tmp/all" base.data.train="$tmp/same"
cmp <(trained "$tmp/all") "$tmp/before" >>"$bad" 2>&1
few="$ci base.data.train=$tmp/text lrs=[1e-2] seeds=[1] base.data.val_fraction=0.1"
ok "$tmp/a&b <c>.yaml" measure.repeats=1 base.data.train="$tmp/text" lrs=[1e-2] seeds=[1] base.data.val_fraction=0.1 \
    dir="$tmp/text-run" 'rows=[{name: mha}]' budget.tokens=2560
page "$tmp/text-run"
grep -q '<h1>.*/a&amp;b &lt;c&gt;.yaml</h1>' "$tmp/text-run/table.html" || wrong "escapes: $(grep h1 "$tmp/text-run/table.html")"
grep -q '^| mha .*one run: no sd, no order' "$tmp/text-run/table.md" || wrong "one run: $(grep '^| mha' "$tmp/text-run/table.md")"
tr a e <data/kjv.txt | head -c 300000 >"$tmp/text"
refused "another text" $few dir="$tmp/text-run" 'rows=[{name: mha}]' budget.tokens=2560
verdict changed-configuration

# ---- several processes of one comparison, each with rows of its own; the last one writes the tables
two="$ci --threads 1 lrs=[1e-2] seeds=[1]"
pair='rows=[{name: mha}, {name: mqa, set: {model.kinds.mix.kv_heads: 1}}]'
mkdir "$tmp/held" # another one has mha, as long as the test goes on elsewhere
flock "$tmp/held/.lock-mha" sleep 60 &
holder=$!
"$prog" compare $two "$pair" dir="$tmp/held" >"$tmp/held-out" 2>"$tmp/held-err" &
held=$!
"$prog" compare $two "$pair" dir="$tmp/two" --only mha budget.tokens=10240 >"$tmp/out1" 2>"$tmp/err1" &
first=$!
ok $two "$pair" dir="$tmp/two" --only mqa budget.tokens=10240
wait $first
s=$?
[ $s -eq 0 ] && [ ! -s "$tmp/err1" ] || wrong "the other process: exit $s: $(cat "$tmp/err1")"
[ "$(grep -c '^| m[hq]a .* [0-9.]* |' "$tmp/two/table.md")" -ge 2 ] || wrong "two processes made $(cat "$tmp/two/table.md")"
for name in mha mqa; do
    [ "$(cat "$tmp/out1" "$tmp/out" | grep -c "\] $name .*: validation loss")" -eq 1 ] || wrong "$name was not trained once: $(cat "$tmp/out1" "$tmp/out")"
done
ok $two "$pair" dir="$tmp/held" --only mqa # meanwhile the rest can be had
grep -qx 'row mha is being trained by another comparison; the tables follow when it ends' "$tmp/out" || wrong "$(cat "$tmp/out")"
ok $two "$pair" dir="$tmp/held" --only mqa --json
grep -q '"busy": *"mha"' "$tmp/out" || wrong "--json: $(cat "$tmp/out")"
[ -e "$tmp/held/table.md" ] && wrong "a table while a row is being trained"
verdict processes

# ---- kills and interrupts: the end is that of a run left alone
one="$ci --threads 1 lrs=[1e-2] seeds=[3] budget.tokens=76800"
rows='rows=[{name: mha}]'
ok $one "$rows" dir="$tmp/alone"
work() { # until the run has $1 records, then signal $2
    "$prog" compare $one "$rows" dir="$tmp/killed" >"$tmp/out" 2>"$tmp/err" &
    local pid=$! metrics="$tmp/killed/mha/lr-1e-2-seed-3/metrics.jsonl"
    until [ "$(wc -l <"$metrics" 2>/dev/null || echo 0)" -ge "$1" ] || ! kill -0 $pid 2>/dev/null; do sleep 0.02; done
    kill "-$2" $pid
    wait $pid 2>/dev/null
    status=$?
}
exec 3>&2 2>/dev/null # the shell tells of every child that is killed
work 30 KILL
exec 2>&3 3>&-
[ $status -eq 137 ] || wrong "exit $status after kill -9"
work 60 INT # the orphan of the killed one saves itself and ends first
[ $status -eq 130 ] || wrong "exit $status after SIGINT: $(cat "$tmp/err")"
[ -s "$tmp/err" ] && wrong "SIGINT: $(cat "$tmp/err")"
[ -e "$tmp/killed/mha/lr-1e-2-seed-3.json" ] && wrong "an interrupted run has a record"
[ -e "$tmp/killed/table.md" ] && wrong "an interrupted comparison has a table"
[ -e "$tmp/killed/mha/lr-1e-2-seed-3/last" ] || wrong "SIGINT saved nothing: $(ls "$tmp/killed/mha/lr-1e-2-seed-3")"
grep -q 'continues at or before step [1-9]' "$tmp/out" || wrong "after kill -9: $(cat "$tmp/out")"
refused "optim.clip" $one "$rows" dir="$tmp/killed" base.optim.clip=2 # half a run is held to its settings too
# A second comparison in the same folder waits until the first is gone, and then goes on.
"$prog" compare $one "$rows" dir="$tmp/killed" >"$tmp/out1" 2>"$tmp/err1" &
first=$!
until grep -qs 'continues at' "$tmp/out1" || ! kill -0 $first 2>/dev/null; do sleep 0.02; done
"$prog" compare $one "$rows" dir="$tmp/killed" >"$tmp/out2" 2>"$tmp/err2" &
second=$!
sleep 0.2
grep -qs 'continues at' "$tmp/out2" && wrong "two comparisons at once: $(cat "$tmp/out2")"
kill -TERM $first
wait $first
s=$?
[ $s -eq 130 ] || wrong "first: exit $s: $(cat "$tmp/err1")"
wait $second
s=$?
[ $s -eq 0 ] || wrong "second: exit $s: $(cat "$tmp/err2")"
cmp <(losses "$tmp/killed") <(losses "$tmp/alone") >>"$bad" 2>&1
cmp "$tmp/killed/mha/lr-1e-2-seed-3/last/model.safetensors" "$tmp/alone/mha/lr-1e-2-seed-3/last/model.safetensors" >>"$bad" 2>&1
awk -v left="$(sed -n 's/^  max_seconds: //p' "$tmp/killed/mha/lr-1e-2-seed-3.yaml")" 'BEGIN { exit !(left > 0 && left < 30) }' ||
    wrong "a resumed run got the whole time again: $(grep max_seconds "$tmp/killed/mha/lr-1e-2-seed-3.yaml")"
verdict resumed

# ---- runs that diverge, that time cuts, that start from another row
ok $ci 'lrs=[100, 1e-2]' "$rows" dir="$tmp/wild"
grep -q '^| mha .* 1e-2 .*1 of 2 learning rates diverged' "$tmp/wild/table.md" || wrong "$(cat "$tmp/wild/table.md")"
[ "$(field "$tmp/wild/mha/lr-1e2-seed-0.json" state)" = '"diverged"' ] || wrong "$(cat "$tmp/wild/mha/lr-1e2-seed-0.json")"
ok $ci 'lrs=[100, 1e-2]' "$rows" dir="$tmp/wild"
[ "$(begun "$tmp/out")" -eq 0 ] || wrong "a diverged run was begun again: $(cat "$tmp/out")"
ok $ci 'lrs=[100]' seeds=[1] 'rows=[{name: mha}, {name: next, from: mha}]' dir="$tmp/wild"
[ "$(begun "$tmp/out")" -eq 1 ] || wrong "a row of a row that diverged was begun: $(cat "$tmp/out")"
grep -q '^| mha .*| - | - |.*1 of 1 seeds diverged' "$tmp/wild/table.md" || wrong "$(cat "$tmp/wild/table.md")"
verdict diverged

# ---- rates beyond the grid: what is tried, what --plan counts, what is done once, what the table says
wide="$ci --threads 1 lrs=[100] widen=1 seeds=[1]"
ok $wide "$rows" dir="$tmp/wide" --plan --json
[ "$(field "$tmp/out" runs_left)" = 3 ] && grep -q '"more_may_follow": *true' "$tmp/out" || wrong "100, 50 and a seed, but: $(cat "$tmp/out")"
ok $wide "$rows" dir="$tmp/wide" --plan
grep -q 'at least 3 runs left' "$tmp/out" && grep -q 'more runs follow .* at most 1 a side' "$tmp/out" || wrong "$(cat "$tmp/out")"
ok $wide "$rows" dir="$tmp/wide" # 100 and 50 diverge: nothing is left to count
[ "$(cd "$tmp/wide/mha" && echo *.json)" = "lr-1e2-seed-0.json lr-5e1-seed-0.json" ] || wrong "tried $(ls "$tmp/wide/mha")"
grep -q '^| mha .*| - | - |.*2 of 2 learning rates diverged' "$tmp/wide/table.md" || wrong "$(cat "$tmp/wide/table.md")"
grep '^| mha' "$tmp/wide/table.md" | grep -q 'of those tried' && wrong "no rate is the row's: $(cat "$tmp/wide/table.md")"
wide="$wide budget.tokens=2560"
ok $wide lrs='[1e-5, 3e-5]' "$rows" dir="$tmp/wide2" # far too low: the highest is best
[ "$(cd "$tmp/wide2/mha" && echo *.json)" = "lr-1e-5-seed-0.json lr-3e-5-seed-0.json lr-9e-5-seed-0.json lr-9e-5-seed-1.json" ] || wrong "tried $(ls "$tmp/wide2/mha")"
grep -q '^| mha .* 9e-5 .*its learning rate is the highest of those tried' "$tmp/wide2/table.md" || wrong "$(cat "$tmp/wide2/table.md")"
rm -r "$tmp/wide2/mha/lr-9e-5-seed-0" "$tmp/wide2/mha/lr-9e-5-seed-0.json"
ok $wide lrs='[1e-5, 3e-5]' "$rows" dir="$tmp/wide2"
[ "$(begun "$tmp/out")" -eq 1 ] || wrong "one rate was lost, but: $(cat "$tmp/out")"
ok $wide lrs='[1e-5, 3e-5]' "$rows" dir="$tmp/wide2" widen=2 # one more, and the seed again at the new rate
[ "$(begun "$tmp/out")" -eq 2 ] && grep -q ' 2.7e-4 ' "$tmp/wide2/table.md" || wrong "$(cat "$tmp/out")"
rm -rf "$tmp/wide2"
ok $wide lrs='[1e-5, 3e-5]' widen=0 "$rows" dir="$tmp/wide2" --plan --json
all=$(field "$tmp/out" seconds) per=$(field "$tmp/out" run_seconds)
awk -v t="$all" -v s="$per" 'BEGIN { exit !(t > 2.99 * s && t < 3.01 * s) }' || wrong "a plan of 3 runs of $per s: $all s"
ok $wide lrs='[1e-5, 3e-5]' widen=0 budget.tune_tokens=1280 "$rows" dir="$tmp/wide2" --plan --json
all=$(field "$tmp/out" seconds) per=$(field "$tmp/out" run_seconds)
awk -v t="$all" -v s="$per" 'BEGIN { exit !(t > 1.99 * s && t < 2.01 * s) }' || wrong "a plan of a run of $per s and two of half: $all s"
ok $wide lrs='[1e-5, 3e-5]' widen=0 budget.tune_tokens=1280 "$rows" dir="$tmp/wide2" # half of the steps
for run in lr-3e-5-seed-0:TUNE lr-3e-5-seed-1:ALL; do
    steps=$(field "$tmp/wide2/mha/${run%:*}.json" steps)
    case $run:$steps in *TUNE:5 | *ALL:10) ;; *) wrong "$run has $steps steps" ;; esac
done
grep -q 'of 2 learning rates at seed 0 after 1,280 tokens, then' "$tmp/wide2/table.md" || wrong "$(cat "$tmp/wide2/table.md")"
refused "budget.tune_tokens: 3 are less than one step" $wide budget.tune_tokens=3 dir="$tmp/no/such"
refused "optim.warmup: 6 steps are more than the 5 of budget.tune_tokens" $wide budget.tune_tokens=1280 base.optim.warmup=6 dir="$tmp/no/such"
refused "tune_seed too" $ci dir="$tmp/no/such" tune_seed=2
verdict widened

ok $ci lrs=[1e-2] seeds=[1] "$rows" dir="$tmp/cut" budget.tokens=8000000 budget.max_seconds=1 base.optim.warmup=1
grep -q '^| mha .*1 runs cut by time' "$tmp/cut/table.md" || wrong "$(cat "$tmp/cut/table.md")"
ok $ci lrs=[1e-2] seeds=[1] "$rows" dir="$tmp/cut" budget.tokens=8000000 budget.max_seconds=1 base.optim.warmup=1
[ "$(begun "$tmp/out")" -eq 0 ] || wrong "a run that was cut was begun again"
ok $ci lrs=[1e-2] seeds='[1, 2]' dir="$tmp/from" \
    'rows=[{name: mha}, {name: near, from: mha, tokens: 2560, set: {model.kinds.mix.window: 16}}]'
for seed in 1 2; do
    grep -q "^init_from: .*/mha/lr-1e-2-seed-$seed/last" "$tmp/from/near/lr-1e-2-seed-$seed/config.yaml" || wrong "near starts from $(grep init_from "$tmp/from/near/"*/config.yaml)"
done
grep -q '^| near .* 2,560 .*from mha, which had 10,240 tokens before' "$tmp/from/table.md" || wrong "$(cat "$tmp/from/table.md")"
refused "which has no finished run" $ci lrs=[1e-2] seeds=[1] dir="$tmp/from2" --only near \
    'rows=[{name: mha}, {name: near, from: mha, set: {model.kinds.mix.window: 16}}]'
sed -i 's/"threads": [0-9]*/"threads": 777/' "$tmp/cut/mha/"*.json
ok $ci lrs=[1e-2] seeds=[1] "$rows" dir="$tmp/cut" budget.tokens=8000000 budget.max_seconds=1 base.optim.warmup=1
grep -q '^| mha .*trained with another number of threads' "$tmp/cut/table.md" || wrong "$(cat "$tmp/cut/table.md")"
verdict cut-and-continued

# ---- refusals
wait $held
s=$?
[ $s -eq 2 ] && [ ! -s "$tmp/held-out" ] && [ "$(wc -l <"$tmp/held-err")" -eq 1 ] &&
    grep -q 'row mha is being trained by another comparison; wait for it' "$tmp/held-err" || wrong "a row of another process: exit $s: $(cat "$tmp/held-out" "$tmp/held-err")"
kill $holder 2>/dev/null
refused "expected CONFIG.yaml"
refused "nosuch.yaml" nosuch.yaml
refused "unknown key" configs/tiny-gqa.yaml
refused "did you mean rows?" $ci dir="$tmp/no/such" rovs=3
refused "nosuch.txt" $ci dir="$tmp/no/such" base.data.train=nosuch.txt
refused "data.sft" $ci dir="$tmp/no/such" base.data.train=configs/chat.jsonl base.data.sft=chatml
refused "no width of model.ffn gives 9000000000 parameters" $ci dir="$tmp/no/such" match.params=9000000000
refused "eval_every" $ci dir="$tmp/no/such" base.train.eval_every=0
refused "to validate" $ci dir="$tmp/no/such" base.data.val_fraction=0
refused "configs/nosuch.yaml" $ci dir="$tmp/no/such" base=configs/nosuch.yaml
[ -e "$tmp/no" ] && wrong "refusals left $(find "$tmp/no")"
ok $ci dir="$tmp/no/such" base=configs/tiny-gqa.yaml 'rows=[{name: gqa}]' match.params=0 --plan # a path is a base too
compare --keys || wrong "--keys: exit $?"
grep -q 'budget.tokens' "$tmp/out" && grep -q 'rows.N.set' "$tmp/out" || wrong "--keys printed $(head -c 300 "$tmp/out")"
verdict refusals
