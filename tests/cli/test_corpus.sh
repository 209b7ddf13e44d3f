#!/bin/bash
# data/plain.pl: which paragraphs of each kind of source stay, and in what form.
. tests/lib/cases.sh
plain=$PWD/data/plain.pl
cd "$tmp" || exit 1

# name, kind; standard input: the source, a line of ---- and what is expected.
keeps() {
    awk -v n="$1" '/^----$/ { out = 1; next } { print > (n (out ? ".want" : ".in")) }'
    perl "$plain" "$2" "$1.in" >"$1.got" 2>"$1.err" || wrong "$(cat "$1.err")"
    cmp -s "$1.got" "$1.want" || wrong "$(diff "$1.want" "$1.got")"
    verdict "$1"
}
feed=$(printf '\f')

keeps dictionary dict <<END2
00-database-short
     A dictionary that somebody made and whose notice must not be in the text
Anybody may copy this notice and nothing else that follows below it.
Abandon \\A*ban"don\\, v. t.
   1. To give up absolutely; to forsake entirely; to renounce
      utterly. [1913 Webster]

   2. To cast; short.
Abate
   To beat down; to overthrow; said of walls and of {towers} too. [WordNet 1.5]
----
Abandon v. t. 1. To give up absolutely; to forsake entirely; to renounce utterly.
Abate To beat down; to overthrow; said of walls and of towers too.
$feed
END2

keeps wordnet wordnet <<END2
  1 This software and database is being provided to you, the LICENSEE, by a university
00003993 03 n 02 living_thing 0 congener 1 001 @ 00003553 n 0000 | a whole of the same kind or category as another  
----
living thing, congener: a whole of the same kind or category as another
$feed
END2

keeps html html <<END2
<html><head><title>Not this, which is the title of a page of text</title></head><body><h1>Short</h1>
<p>It&rsquo;s a paragraph of <b>plain</b> words, and it
is long enough &amp; good.</p><p>Here a command, <code>ls -l</code>, makes it something else than prose.</p>
<pre>this is printed as it is, and it is code however it may look</pre></body></html>
----
It's a paragraph of plain words, and it is long enough & good.
$feed
END2

keeps rst rst <<END2
Heading
=======

See :ref:\`the other page <other>\` for what \`\`this\`\` does with *all* of its words.

.. note:: a directive with many words in it that is left out of the text

    an indented block, which is code in most cases and goes as well
----
See the other page for what this does with all of its words.
$feed
END2

keeps pod pod <<END2
=head1 A heading with enough words to be taken for a paragraph

Use C<print> with B<care>, since it I<prints> what you give it to print.

    my \$code = "which is indented and so is left out of the text";
----
Use print with care, since it prints what you give it to print.
$feed
END2

keeps man man <<END2
.TH NAME 1
.SH DESCRIPTION
The
.B name
program reads \\fIstandard input\\fP and writes what it has read.
.PP
.nf
this block is not filled, so it is code or a table and is left out
.fi
----
The name program reads standard input and writes what it has read.
$feed
END2

keeps fortunes fortunes <<END2
The more things change, the more they stay the same, said the cynic.
%
Brief.
%
----
The more things change, the more they stay the same, said the cynic.
$feed
END2

# Other letters than ASCII, too many digits, too few words: none of them is a paragraph.
printf 'Ein Satz mit Umlauten w\303\244re hier kein englischer Absatz und geht.\n\n1 2 3 4 5 6 7 8 9 and 10 11 12 13 14 15 16 17 18\n\nABCDEF GHIJKL MNOPQR STUVWX YZABCD EFGHIJ KLMNOP\n' >other.in
perl "$plain" text other.in >out || wrong "exit $?"
[ -s out ] && wrong "kept: $(cat out)"
verdict others
perl "$plain" novel other.in >out 2>&1 && wrong "accepted"
grep -q 'expected one of' out || wrong "$(cat out)"
verdict kinds
