#!/bin/sh
# Write data/kjv.txt, or the file named: twenty books of the King James text, from Debian's packages bible-kjv (the
# program) and bible-kjv-text (the text). One verse a line, references stripped, an empty line between chapters, a line
# with a form feed between books.   usage: data/make_kjv.sh [OUT]
set -eu
LC_ALL=C
export LC_ALL
out=${1:-$(dirname "$0")/kjv.txt}
fail() { echo "make_kjv.sh: $1" >&2; rm -f "$out.tmp"; exit 1; }
command -v bible >/dev/null || fail "no program bible; install Debian's package bible-kjv"

# -p: only the installed text, not one in this directory. -f: a verse a line, "Ge1:1 In the beginning ...".
for range in Gen1:1-Est10:3 Job1:1-Job42:17 Isa1:1-Jer52:34; do
    bible -p /usr/lib -f "$range" </dev/null || fail "bible -f $range"
done | awk '
    $1 !~ /^[1-3]?[A-Za-z]+[0-9]+:[0-9]+$/ { print "not a verse: " $0 > "/dev/stderr"; exit 1 }
    {
        split($1, at, ":")
        chapter = book = at[1]
        sub(/[0-9]+$/, "", book)
        sub(/^[^ ]+ +/, "")
        gsub(/  +/, " ")
        if (NR > 1 && book != last_book) print "\f"
        else if (NR > 1 && chapter != last_chapter) print ""
        print
        last_book = book
        last_chapter = chapter
    }' >"$out.tmp" || fail "unexpected output of bible"
# 16,596 verses and 19 form feeds.
[ "$(grep -c . "$out.tmp")" = 16615 ] || fail "$(grep -c . "$out.tmp") lines of text; expected 16615"
mv "$out.tmp" "$out"
