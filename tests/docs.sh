#!/bin/bash
# Check the documents: tests/docs.sh PART [FILE...]; `make docs` and tests/cli/test_docs.sh run every part.
#
#   links   every relative link names a file, and its #anchor a heading of it
#   names   every `path` and `file:function` in code spans exists; in pages for contributors (add-*.md, map.md, tour.md)
#           every identifier, too
#   width   no line over 100 columns, but for code blocks, tables with links, and what is generated
#   words   no word that docs/glossary.md lists as old
#   tables  a table under `<!-- kvsmith ARGUMENTS -->` is what this command prints; FIX=1 in the environment writes it
#   help    the same of the program's help (its keys are docs/config.md): the program is $KVSMITH, else build/kvsmith
#   messages  the same of the string literals in the program's sources: messages, help, meanings of keys
#   headers  every public header begins with a comment "name.h: ..." whose first sentence ends with a full stop
#
# FILE...: these documents (messages: sources; headers: headers) instead of all in the repository. Prints one line per
# finding, "file:line: what"; exit status 1 if there is one. tests/docs-allow.txt lists exceptions with
# reasons; one that is not needed any more is a finding, too.
set -u
cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C.UTF-8
part=${1-} allow=tests/docs-allow.txt
shift
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
tracked() {
    git -c safe.directory='*' ls-files -co --exclude-standard 2>/dev/null | xargs -rd '\n' ls -d 2>/dev/null | grep . ||
        find . -type f -not -path './.git/*' -not -path './build*/*' -not -path './runs/*' | sed 's|^\./||'
}
tracked | sort -u >"$tmp/all"
all=1
if [ $# -gt 0 ]; then all=; else mapfile -t docs < <(grep '\.md$' "$tmp/all") && set -- "${docs[@]}"; fi

# Lines of documents that are prose: "file:line<TAB>text". Fenced and indented code is left out.
prose() {
    LC_ALL=C awk '
        FNR == 1 { fence = 0; code = 0; blank = 1 }
        /^ *```/ { fence = !fence; next }
        fence { next }
        { indented = /^    / }
        indented && (blank || code) { code = 1; blank = 0; next }
        { blank = /^[ \t]*$/; code = 0; if (!blank) print FILENAME ":" FNR "\t" $0 }' "$@"
}
# Findings ("file:line: word ... <TAB>text") that no line of the allow list covers; notes which lines were used.
allowed() { # kind
    awk -F'\t' -v kind="$1" -v used="$tmp/used" '
        FILENAME != "-" { if ($1 == kind) { file[++n] = $2; text[n] = $3; line[n] = FNR } next }
        { f = $1; sub(/:.*/, "", f); ok = 0
          for (i = 1; i <= n; i++)
              if ((file[i] == "*" || file[i] == f) && (text[i] == "*" || index($2, text[i]))) { ok = 1; print line[i] >used }
          if (!ok) print $1 }' $allow -
    [ -z "$all" ] || awk -F'\t' -v kind="$1" -v used="$tmp/used" -v name=$allow '
        BEGIN { while ((getline x <used) > 0) seen[x] = 1 }
        $1 == kind && !(FNR in seen) { print name ":" FNR ": allows nothing any more; remove it" }' $allow
}

links() {
    prose "$@" | grep -o '^[^	]*	\|](\([^) ]*\))' | awk '/\t$/ { at = $1; next } { print at "\t" substr($0, 3, length($0) - 3) }' |
        while IFS=$'\t' read -r at target; do
            case $target in *://* | mailto:*) continue ;; esac
            doc=${at%:*} path=${target%%#*} anchor=
            [ "$path" = "$target" ] || anchor=${target#*#}
            to=$doc
            case $doc in */*) dir=${doc%/*} ;; *) dir=. ;; esac
            [ -z "$path" ] || to=$dir/$path
            [ -e "$to" ] || { echo "$at: links to $target, which does not exist"; continue; }
            [ -z "$anchor" ] || grep '^#' "$to" | tr 'A-Z' 'a-z' |
                sed 's/^#* *//; s/[^a-z0-9 _-]//g; s/ /-/g' | grep -qxF -- "$anchor" || echo "$at: links to $target, which has no such heading"
        done
}

names() { paths "$@" && identifiers "$@"; }
paths() {
    prose "$@" | awk -F'\t' '{ n = split($2, s, "`"); for (i = 2; i < n; i += 2) if (s[i] !~ / /) print $1 "\t" s[i] }' |
        grep -E '	([A-Za-z0-9_.*-]+/)*[A-Za-z0-9_.*-]+/?(:[A-Za-z_][A-Za-z0-9_]*)?$' | sort -u |
        awk -F'\t' '
            function there(path, at, dir, found, re, f) { # the files of that path
                sub(/\/$/, "", path)
                if (path !~ /\*/) {
                    if (path in file) return path
                    if (at == "") return ""
                    dir = at
                    sub(/:.*/, "", dir)
                    if (!sub(/\/[^\/]*$/, "", dir)) return ""
                    return there(dir "/" path, "")
                }
                dir = at
                sub(/:.*/, "", dir)
                if (sub(/\/[^\/]*$/, "", dir)) found = there(dir "/" path, "")
                re = path
                gsub(/\./, "\\.", re)
                gsub(/\*/, "[^/]*", re)
                for (f in file) if (f ~ "^" re "$") found = found " " f
                return found
            }
            NR == FNR {
                x = $1
                base = x
                sub(/.*\//, "", base)
                named[base] = named[base] " " x
                for (file[x]; sub(/\/[^\/]*$/, "", x);) file[x]
                top[x]
                next
            }
            {
                if ($2 ~ /NAME/) next # a placeholder
                path = function_ = $2
                if (!sub(/^[^:]*:/, "", function_)) function_ = ""
                sub(/:.*/, "", path)
                dir = path
                sub(/\/.*/, "", dir)
                if (path ~ /\//) { # below a folder of the repository, or of the document
                    if (!(dir in top) && there(dir, $1) == "") next
                    found = there(path, $1)
                } else if (path ~ /[A-Za-z0-9_]\.(c|h|cu|cpp)$/) { # a file by its name alone
                    found = path ~ /\*/ ? there("*/" path, "") there("*/*/" path, "") : named[path]
                } else next
                if (found == "") print "missing\t" $1 "\t" path
                else if (function_ != "") print "function\t" $1 "\t" path "\t" function_ "\t" found
            }' "$tmp/all" - |
        while IFS=$'\t' read -r what at path function found; do
            case $what in
            missing) echo "$at: names $path, which does not exist" ;;
            *) grep -qw -- "$function" $found || echo "$at: $path has no $function" ;;
            esac
        done
}

# An identifier is known if a header has it outside of comments, if a line at the left margin of a source defines it (of a
# test: if the page names that file), or if a row of a table begins with it or has it as its name. Keys are those of
# docs/config.md; my_op and NAME are placeholders.
identifiers() {
    mapfile -t pages < <(printf '%s\n' "$@" | grep -E '(^|/)(add-[^/]*|map|tour)\.md$')
    [ ${#pages[@]} -gt 0 ] || return 0
    grep -E '\.(c|h|def|cu)$' "$tmp/all" | LC_ALL=C xargs awk '
        function known(s, word) {
            while (match(s, /[A-Za-z_][A-Za-z0-9_]*/)) {
                word = substr(s, RSTART, RLENGTH)
                s = substr(s, RSTART + RLENGTH)
                print word (own ? " " FILENAME : "")
            }
        }
        FNR == 1 {
            inside = 0
            test = FILENAME ~ /^tests\// && FILENAME !~ /^tests\/lib\//
            header = FILENAME ~ /\.(h|def)$/ && FILENAME !~ /^(ops\/cpu|ops\/cuda\/kernels|tests)\//
        }
        {
            s = $0
            own = 0
            if (!inside) {
                for (t = s; !test && match(t, /(\{|\.name = )"[a-z_0-9]+"/);) {
                    row = substr(t, RSTART, RLENGTH)
                    t = substr(t, RSTART + RLENGTH)
                    sub(/[^"]*/, "", row)
                    known(row)
                }
                gsub(/"([^"\\]|\\.)*"/, " ", s)
            }
            code = ""
            while (s != "") {
                i = index(s, inside ? "*/" : "/*")
                if (!inside) code = code (i ? substr(s, 1, i - 1) : s) " "
                if (!i) break
                s = substr(s, i + 2)
                inside = !inside
            }
            own = test
            if (code ~ /^#define/) { sub(/^#define */, "", code); sub(/[^A-Za-z0-9_].*/, "", code); known(code) }
            else if (code ~ /^(Test\(|[A-Z_]*TEST\()/) { own = 0; known(code) }
            else if (header || code ~ /^}/) known(code)
            else if (code ~ /^[A-Za-z]/) { # what comes before the first of these is its type and its name
                sub(/ *[(=;[,{].*/, "", code)
                sub(/.*[^A-Za-z0-9_]/, "", code)
                known(code)
            }
        }' | sort -u >"$tmp/known"
    prose "${pages[@]}" >"$tmp/pages"
    awk -F'\t' '
        { file = $1; sub(/:.*/, "", file) }
        FILENAME ~ /\/known$/ { known[$1]; next }
        FILENAME ~ /config.md$/ { while (match($0, /`[a-z_0-9.]+`/)) { key[substr($0, RSTART + 1, RLENGTH - 2)]; $0 = substr($0, RSTART + RLENGTH) } next }
        {
            n = split($2, span, "`")
            for (i = 2; i < n; i += 2) {
                s = span[i]
                if (!again[$1, i]++) { if (s ~ /^tests\//) named[file] = named[file] " " s; continue }
                if (s in key || s ~ /\/|NAME|my_op|^(--|\.|make )|\.(c|h|cu|def|md|sh|yaml|weight)$|:/) continue
                gsub(/"[^"]*"/, " ", s)
                while (match(s, /[A-Za-z_][A-Za-z0-9_]+/)) {
                    word = substr(s, RSTART, RLENGTH)
                    s = substr(s, RSTART + RLENGTH)
                    found = word in known
                    m = split(named[file], tests, " ")
                    for (k = 1; k <= m; k++) if ((word " " tests[k]) in known) found = 1
                    if (!found) print $1 ": names " word ", which the source does not have\t" $2
                }
            }
        }' "$tmp/known" docs/config.md "$tmp/pages" "$tmp/pages" | allowed names
}

width() { # bytes that continue a character are no columns
    LC_ALL=C awk '
        function flush(i) {
            if (!link) for (i = 1; i <= n; i++) print table[i]
            n = link = 0
        }
        function check() {
            text = $0
            gsub(/[\200-\277]/, "", text)
            return length(text) > 100
        }
        FNR == 1 { flush(); fence = code = 0; blank = 1 }
        /^ *```/ { flush(); fence = !fence; next }
        fence { next }
        /^<!-- kvsmith / { flush(); made = 1; next } # a table that the program prints
        /^ *\|/ { if (made || /\]\(/) link = 1
                  if (check()) table[++n] = FILENAME ":" FNR ": " length(text) " columns\t" $0
                  blank = code = 0; next }
        { flush(); made = 0 }
        /^    / && (blank || code) { code = 1; blank = 0; next }
        { blank = /^[ \t]*$/; code = 0; if (check()) print FILENAME ":" FNR ": " length(text) " columns\t" $0 }
        END { flush() }' "$@" | allowed width
}

# pattern=what to write. A text is compared in lower case, its words between single blanks.
words='behind=after
beside=next to, compared with, in addition to
on the side=asynchronous
goes on=continues
go on=continue
went on=continued
stands=is in, is listed in
stood=was
tells=prints, reports
says of itself=properties
takes=needs, uses
held to=compared with
the world failed=run-time failure
device apart=GPU, separate device memory
devices apart=GPUs, separate device memory
invariant=batch-invariant
fresh=new, empty; of a gradient: overwritten
narrow=bf16
halved=bf16
append_ones=convert to f32
numbers=elements, values
retire=evict
retires=evicts
retired=evicted
recording=capture
recordings=graphs
outliers=loss spikes
outliers left out=skips loss spikes
set of tokens=token dataset
sets of tokens=token datasets
tokens set=token dataset
exact rule=lossless rule
exact rules=lossless rules
exact conversion=lossless conversion
whoever=(name the actor)'
check_words() { # kind; lines "at<TAB>text"
    LC_ALL=C awk -F'\t' -v words="$words" '
        BEGIN { n = split(words, w, "\n"); for (i = 1; i <= n; i++) { p[i] = w[i]; sub(/=.*/, "", p[i]); sub(/[^=]*=/, "", w[i]) } }
        { text = $2
          gsub(/`[^`]*`/, " ` ", text)
          gsub(/\]\([^)]*\)/, "]", text)
          text = tolower(text)
          gsub(/[^a-z\200-\377]+/, " ", text)
          text = " " text " "
          for (i = 1; i <= n; i++) if (index(text, " " p[i] " ")) print $1 ": \"" p[i] "\"; write: " w[i] "\t" text }' | allowed "$1"
}
words() { prose "$@" | check_words words; }

# The table ends at the first empty line.
tables() {
    program=${KVSMITH:-${BUILD:-build}/kvsmith}
    [ -x "$program" ] || { echo "$program: not there; run make"; return; }
    grep -n '^<!-- kvsmith .* -->$' "$@" /dev/null | tac | while IFS=: read -r doc at marker; do
        words=${marker#<!-- kvsmith } words=${words% -->}
        "$program" $words >"$tmp/want" 2>&1
        awk -v at="$at" 'NR <= at { next } /^$/ { exit } { print }' "$doc" >"$tmp/is"
        cmp -s "$tmp/want" "$tmp/is" && continue
        if [ -z "${FIX-}" ]; then
            echo "$doc:$at: is not what kvsmith $words prints; run make docs"
        else
            awk -v at="$at" -v table="$tmp/want" '
                NR <= at { print; next }
                NR == at + 1 { while ((getline line <table) > 0) print line; off = 1 }
                /^$/ { off = 0 }
                !off { print }' "$doc" >"$tmp/doc" && cat "$tmp/doc" >"$doc"
        fi
    done
}
help() {
    program=${KVSMITH:-${BUILD:-build}/kvsmith}
    [ -x "$program" ] || { echo "$program: not there; run make"; return; }
    commands=$("$program" --help | awk '/^Commands:/{on=1; next} /^$/{on=0} on{print $1}')
    for c in "" $commands "data tokenize" "data train-bpe" "data inspect"; do
        # A text that goes over lines is one: an option is a paragraph of its own.
        { "$program" $c --help | awk '/^ *-|^$|^  [a-z]/ { print p; p = "" } { gsub(/^ +/, ""); p = p " " $0 } END { print p }'; } 2>&1 |
            awk -v at="help:kvsmith $c" '/[^ ]/ { print at "\t" $0 }'
    done >"$tmp/help"
    "$program" convert --rules | awk '{ print "help:kvsmith convert --rules\t" $0 }' >>"$tmp/help"
    "$program" compare --keys | awk '/[^ ]/ { print "help:kvsmith compare --keys\t" $0 }' >>"$tmp/help"
    check_words help <"$tmp/help"
}

# String literals with a blank, adjacent ones joined: "file:line<TAB>text".
literals() {
    awk '
        function end() { if (text ~ / /) print FILENAME_ ":" at "\t" text; text = ""; open = 0 }
        FNR == 1 { if (open) end(); comment = 0; FILENAME_ = FILENAME }
        { s = $0
          if (!comment && s ~ /^[ \t]*#[ \t]*include/) next
          while (s != "") {
              if (comment) { if (!(i = index(s, "*/"))) next; s = substr(s, i + 2); comment = 0; continue }
              if (match(s, /^[ \t\\]+/)) { s = substr(s, RLENGTH + 1); continue }
              if (substr(s, 1, 2) == "/*") { comment = 1; s = substr(s, 3); continue }
              if (substr(s, 1, 2) == "//") next
              if (match(s, /^"(\\.|[^"\\])*"/)) {
                  if (!open) { open = 1; at = FNR }
                  text = text substr(s, 2, RLENGTH - 2); s = substr(s, RLENGTH + 1); continue
              }
              if (open && !match(s, /^PRI[a-zA-Z0-9]+/)) end()
              if (match(s, /^\047(\\.|[^\047\\])+\047/) || match(s, /^[A-Za-z0-9_]+/) || match(s, /^./)) s = substr(s, RLENGTH + 1)
          } }
        END { if (open) end() }' "$@" | sed 's/\\[ntr]/ /g'
}
messages() {
    if [ -n "$all" ]; then
        mapfile -t sources < <(grep -E '^(ops|layers|model|optim|data|convert|infer|train)/.*\.(c|h|cu|def)$|^kvsmith\.c$' "$tmp/all")
        set -- "${sources[@]}"
    fi
    literals "$@" | check_words messages
}

headers() {
    if [ -n "$all" ]; then
        mapfile -t sources < <(grep -E '^(ops|layers|model|optim|data|convert|infer|train)/.*\.h$' "$tmp/all")
        set -- "${sources[@]}"
    fi
    awk '
        function end() { if (!name || over) return
            over = 1
            if (index(text, "/* " name ": ") != 1) print at ":1: does not begin with the comment \"/* " name ": ...\""
            else if (text !~ /^[^:]*: [^ ]+ [^ ]+ .*[.]( |$)/) print at ":1: the first paragraph has no sentence with a full stop" }
        FNR == 1 { end(); at = name = FILENAME; sub(/.*\//, "", name); text = ""; over = 0 }
        over { next }
        { s = $0
          sub(/^ \* ?/, "", s)
          done = sub(/ ?\*\/.*/, "", s)
          if (s != "") text = text (text == "" ? "" : " ") s
          if (s == "" || done || FNR > 30) end() }
        END { end() }' "$@"
}

case $part in
links | names | width | words | tables | help | messages | headers) ;;
*)
    echo "usage: tests/docs.sh links|names|width|words|tables|help|messages|headers [FILE...]" >&2
    exit 2
    ;;
esac
: >"$tmp/used"
$part "$@" | sort -u | sort -s -t: -k1,1 -k2,2n >"$tmp/found"
cat "$tmp/found"
[ ! -s "$tmp/found" ]
