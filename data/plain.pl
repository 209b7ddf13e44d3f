#!/usr/bin/perl
# Print the paragraphs of plain English in the files of one kind, a paragraph a line, a line with a form feed after each
# document: data/make_corpus.sh calls it.   usage: plain.pl KIND FILE...
# Kinds: dict (a dictionary of dictd, unpacked), wordnet (a data file of WordNet), html (also Mallard's pages), rst, pod, man,
# fortunes, text.
# A paragraph stays if it has at least 40 characters, all of them ASCII after common signs are replaced, and nine in ten are
# letters, blanks or the marks of a sentence: tables, code and lists of names go.
use strict;
use warnings;

my ($kind, @files) = @ARGV;
die "plain.pl: expected KIND FILE...\n" unless @files;
my $DICT = 8000; # characters of a dictionary in one document
my %entity = (amp => '&', lt => '<', gt => '>', quot => '"', apos => "'", nbsp => ' ', ndash => '-', mdash => ' - ',
              rsquo => "'", lsquo => "'", ldquo => '"', rdquo => '"', hellip => '...');
my %sign = ("\x{2018}" => "'", "\x{2019}" => "'", "\x{201c}" => '"', "\x{201d}" => '"', "\x{2013}" => '-', "\x{2014}" => ' - ',
            "\x{2026}" => '...', "\x{a0}" => ' ', "\x{ad}" => '', "\x{2011}" => '-', "\x{2192}" => 'to', "\x{feff}" => '');

sub slurp {
    my ($file) = @_;
    open(my $in, '<', $file) or die "plain.pl: $file: $!\n";
    binmode $in;
    local $/;
    my $bytes = <$in> // '';
    utf8::decode($bytes); # bytes that are no UTF-8 stay as they are, and their paragraphs go
    return $bytes;
}

sub paragraph { # cleaned, or nothing
    my ($text) = @_;
    $text =~ s/([^\x00-\x7f])/exists $sign{$1} ? $sign{$1} : $1/ge;
    $text =~ s/\s+/ /g;
    $text =~ s/^ | $//g;
    return if length $text < 40 || $text =~ /[^\x20-\x7e]/;
    return if $text =~ tr/A-Za-z ,.;:'"?!()-// < 0.9 * length $text || $text !~ /(?:\b[a-z]{2,}\b.*?){5}/;
    return $text;
}

sub document {
    my @kept = grep { defined } map { paragraph($_) } @_;
    print join("\n", @kept), "\n\f\n" if @kept;
}

sub documents { # entries, as many in one document as make $DICT characters
    my ($size, @some) = (0);
    for my $entry (@_) {
        push @some, $entry;
        $size += length $entry;
        next if $size < $DICT;
        document(@some);
        ($size, @some) = (0);
    }
    document(@some);
}

sub html {
    my ($t) = @_;
    $t =~ s/<!--.*?-->//gs;
    $t =~ s/^.*?<body[^>]*>//s;
    $t =~ s{<(script|style|pre|code|screen|nav|head|info|programlisting|table)\b.*?</\1>}{\x01}gs; # a paragraph with code in it goes
    $t =~ s{</?(p|div|h[1-6]|li|ul|ol|dl|dt|dd|title|section|item|steps|list|td|tr|note|blockquote|page|br|hr)\b[^>]*>}{\n\n}gi;
    $t =~ s/<[^>]*>//g;
    $t =~ s/&#(\d+);/chr $1/ge;
    $t =~ s/&#x([0-9a-f]+);/chr hex $1/gei;
    $t =~ s/&(\w+);/$entity{$1} \/\/ "\x01"/ge;
    return split /\n\s*\n/, $t;
}

sub rst {
    my ($t) = @_;
    my @out;
    for (split /\n\s*\n/, $t) {
        next if /^\s*(\.\.|:|=+|-+|~+|\*{3}|\||\+)/ || /^\s{4}/;
        s/^[^\n]+\n([=~^"'#*+.-])\1{3,}$//mg;
        s/:\w+:`([^`<]*?)\s*(<[^`]*>)?`/$1/g;
        s/``?([^`]*)``?_{0,2}/$1/g;
        s/\*\*?([^*\n]+)\*\*?/$1/g;
        s/^\s*[-*]\s+//;
        push @out, $_;
    }
    return @out;
}

sub pod {
    my ($t) = @_;
    my @out;
    for (split /\n\s*\n/, $t) {
        next if /^[\s=]/;
        1 while s/\b[A-Z]<([^<>]*)>/$1/g;
        push @out, $_;
    }
    return @out;
}

sub man {
    my ($t) = @_;
    my @out = '';
    my $on = 1;
    for (split /\n/, $t) {
        if (/^\.(EX|nf|TS)/) { $on = 0 }
        elsif (/^\.(EE|fi|TE)/) { $on = 1 }
        elsif (!$on) { next }
        elsif (/^\.(BR?|IR?|RB|RI|BI|IB|SM)\s+(.*)/) { (my $w = $2) =~ s/"?\s+"?(?=[,.;:)])//g; $w =~ s/"//g; $out[-1] .= " $w" }
        elsif (/^\.\\"|^'/) { next }
        elsif (/^\./ || /^\s*$/) { push @out, '' }
        else { $out[-1] .= " $_" }
    }
    for (@out) {
        s/\\f.|\\[&%|^]|\\s[-+]?\d//g;
        s/\\\(aq|\\\(cq/'/g;
        s/\\\(em/ - /g;
        s/\\[-e]/-/g;
    }
    return @out;
}

for my $file (@files) {
    my $t = slurp($file);
    if ($kind eq 'dict') {
        # An entry begins in the first column, its text is indented; a blank line may divide its parts. The notice before the
        # first entry begins in the first column as well, and has two such lines in turn.
        my @entries;
        for my $entry (split /\n(?=\S)/, $t) {
            next if $entry !~ /\n\s+\S/ || $entry =~ /Copyright|^00-?database/;
            $entry =~ s/[{}]|\s*\[(1913 Webster|WordNet [\d.]+|PJC|AS|RP|RH|Webster 1913 Suppl\.)[^\]]*\]//g;
            $entry =~ s/\\[^\\\n]*\\,?//; # how it is spoken
            push @entries, grep { defined } map { paragraph($_) } split /\n\s*\n/, $entry;
        }
        documents(@entries);
    } elsif ($kind eq 'wordnet') {
        # One line a set of synonyms: "offset file type count word 0 word 0 ... | gloss; "examples"".
        my @entries;
        for my $line (split /\n/, $t) {
            my ($words, $gloss) = $line =~ /^\d{8} \d\d [nvasr] [0-9a-f]{2} (.*?) \d{3} .*\| (.*)/ or next;
            my $entry = join(', ', grep { !/^[0-9a-f]$/ } split / /, $words) . ": $gloss";
            $entry =~ tr/_/ /;
            push @entries, $entry;
        }
        documents(@entries);
    } elsif ($kind eq 'fortunes') { documents(split /^%\n/m, $t) }
    elsif ($kind eq 'text') { document(split /\n\s*\n/, $t) }
    elsif ($kind eq 'html') { document(html($t)) }
    elsif ($kind eq 'rst') { document(rst($t)) }
    elsif ($kind eq 'pod') { document(pod($t)) }
    elsif ($kind eq 'man') { document(man($t)) }
    else { die "plain.pl: kind $kind: expected one of dict, wordnet, html, rst, pod, man, fortunes, text\n" }
}
