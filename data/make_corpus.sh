#!/bin/sh
# Write OUT/train.txt and OUT/val.txt: at least 60 MB of plain English from Debian's packages, and tokenizer.json, a byte-level
# BPE of 4,096 ids learned from train.txt if build/kvsmith is there. Documents are divided by a line with a form feed; every
# 50th document is for validation, and a paragraph that was printed before is left out, so that none is in both files.
# The packages are fetched by apt-get as they are in the release at hand (about 180 MB) and unpacked, not installed.
#   usage: data/make_corpus.sh [OUT]      (default: runs/corpus)
set -eu
LC_ALL=C
export LC_ALL
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-runs/corpus}
fail() { echo "make_corpus.sh: $1" >&2; exit 1; }
for tool in apt-get dpkg-deb perl gzip; do
    command -v $tool >/dev/null || fail "no program $tool; this script needs Debian or a relative"
done
mkdir -p "$out/deb" "$out/files"
: >"$out/all.tmp" || fail "cannot write to $out"

# Names of packages, kind of text (plain.pl), where it is in the package, names of its files.
sources() {
    cat <<'LIST'
dict-gcide dict usr/share/dictd gcide.dict
wordnet-base wordnet usr/share/wordnet data.*
dict-foldoc dict usr/share/dictd foldoc.dict
dict-jargon dict usr/share/dictd jargon.dict
dict-devil dict usr/share/dictd devil.dict
linux-doc-6.1|linux-doc-6.12 rst usr/share/doc *.rst
postgresql-doc-15|postgresql-doc-17 html usr/share/doc *.html
perl-doc pod usr/share/perl *.pod
git-doc text usr/share/doc *.txt
gimp-help-en html usr/share/gimp *.html
gnome-user-docs html usr/share/help/C *.page
manpages man usr/share/man *.[1-8]
manpages-dev man usr/share/man *.[1-8]*
debian-handbook html usr/share/doc/debian-handbook/html/en-US *.html
debian-policy html usr/share/doc *.html
debian-reference-en html usr/share *.html
developers-reference html usr/share *.html
debian-faq html usr/share/doc *.en.html
LIST
}

sources | while read -r names kind where files; do
    deb=
    for name in $(echo "$names" | tr '|' ' '); do
        deb=$(find "$out/deb" -name "${name}_*.deb" | sort | tail -n 1)
        [ -n "$deb" ] && break
        (cd "$out/deb" && apt-get download -q "$name" >/dev/null 2>&1) || continue
        deb=$(find "$out/deb" -name "${name}_*.deb" | sort | tail -n 1)
        [ -n "$deb" ] && break
    done
    [ -n "$deb" ] || fail "apt-get download: none of $names; run apt-get update"
    unpacked=$out/files/$name
    rm -rf "$unpacked"
    dpkg-deb -x "$deb" "$unpacked"
    find "$unpacked/$where" -name '*.dz' | while read -r dz; do mv "$dz" "${dz%.dz}.gz"; done
    find "$unpacked/$where" -name '*.gz' -type f -exec gzip -dfq {} +
    before=$(wc -c <"$out/all.tmp")
    find "$unpacked/$where" -type f -name "$files" | sort | xargs -d '\n' perl "$here/plain.pl" "$kind" >>"$out/all.tmp"
    rm -rf "$unpacked"
    after=$(wc -c <"$out/all.tmp")
    [ "$after" -gt "$before" ] || fail "$deb: no text in $where/$files"
    echo "$(basename "$deb"): $((after - before)) bytes"
done
{ cat "$out/all.tmp"; cat "$here/kjv.txt"; printf '\f\n'; } | perl -e '
    open(my $train, ">", "$ARGV[0]/train.tmp") or die; open(my $val, ">", "$ARGV[0]/val.tmp") or die;
    my ($n, %seen, @kept) = (0);
    while (<STDIN>) {
        if ($_ ne "\f\n") { push @kept, $_ if $_ eq "\n" || !$seen{$_}++; next }
        my $to = ++$n % 50 ? $train : $val;
        print $to @kept, "\f\n" if grep { $_ ne "\n" } @kept;
        @kept = ();
    }
    close $train or die "train.tmp: $!"; close $val or die "val.tmp: $!";
' "$out" || fail "cannot write the texts"
rm -f "$out/all.tmp"
bytes=$(wc -c <"$out/train.tmp")
[ "$bytes" -ge 60000000 ] || fail "$bytes bytes of text; expected 60000000 or more"
mv "$out/train.tmp" "$out/train.txt"
mv "$out/val.tmp" "$out/val.txt"
echo "$out/train.txt: $bytes bytes, $out/val.txt: $(wc -c <"$out/val.txt") bytes"
program=${KVSMITH:-$here/../build/kvsmith}
if [ -x "$program" ]; then
    "$program" data train-bpe "$out/train.txt" --separator '\f\n' --vocab 4096 --out "$out/tokenizer.json"
else
    echo "no $program: tokenizer.json was not made"
fi
