#!/usr/bin/env python3
"""Golden tokenizers of the model families, with the normalizers, patterns and decoders of their files and vocabularies
learned on the shipped text; and hashes of the ids and texts that Hugging Face tokenizers gives to 10,000 strings.
Needs tokenizers 0.23.1, and a Python whose unicodedata is version 14 (3.11). See make_bpe.py for the strings.
Usage: make_tokenizers.py [OUT]   (default: tokenizers/ beside this script)

NAME.hash holds for every string the low 16 bits of FNV-1a over its ids, then the same of its decoded text (special tokens
left out), little-endian.
"""
import json
import pathlib
import struct
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import make_bpe

here = pathlib.Path(__file__).resolve().parent
BLANK = "\u2581"
O200K = "|".join([r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
KIMI = "|".join([r"[\p{Han}]+",
                 r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                 r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                 r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
DEEPSEEK3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
             "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
             "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
# Constructs in which Oniguruma differs from PCRE2: repeated counts, lines, classes in classes, intersections, \w.
ODD = r"^The|[a-e[x-z]]{1,2}+|[^\W\d_&&[^q]]{2,4}?|\w\d+$|[^[\p{L}\s]\d]++|\u00e9\x{301}?"


def charsmap(pairs):
    """A table of replacements as SentencePiece writes it: a double array of the keys (with an end), then the texts."""
    pool, place = b"", {}
    for key, to in sorted(pairs.items()):
        place[key.encode()] = len(pool)
        pool += to.encode() + b"\0"
    units = {0: [0, 0, False, 0]}  # place -> label, base, has a value, value
    free = [1]

    def build(at, keys, depth):
        chars = sorted({k[depth] for k in keys if len(k) > depth})
        end = [k for k in keys if len(k) == depth]
        labels = ([0] if end else []) + chars
        base = free[0]
        # the offset is stored as at ^ base, which has to fit 21 bits; labels of one node must not meet others
        while any((base ^ c) in units for c in labels) or base == 0:
            base += 1
        units[at][1] = base
        if end:
            units[at][2] = True
            units[base] = [None, 0, False, place[end[0]]]
        for c in chars:
            units[base ^ c] = [c, 0, False, 0]
        for c in chars:
            build(base ^ c, [k for k in keys if len(k) > depth and k[depth] == c], depth + 1)

    build(0, list(place), 0)
    trie = []
    for i in range((max(units) | 0xFF) + 1):  # the library does not check that a step stays inside
        label, base, leaf, value = units.get(i, [0xFF, 0, False, 0])
        if label is None:
            trie.append(value | 1 << 31)
            continue
        offset = i ^ base if i in units else 0
        assert offset < 1 << 21
        trie.append(offset << 10 | int(leaf) << 8 | label)
    return struct.pack("<I", 4 * len(trie)) + struct.pack("<%dI" % len(trie), *trie) + pool


def nfkc_pairs():
    """Some of what nmt_nfkc maps, and pairs of characters that have a shorter prefix."""
    out = {chr(c): unicodedata.normalize("NFKC", chr(c)) for c in list(range(0xA0, 0x180)) + list(range(0x2000, 0x2100))
           + list(range(0xFB00, 0xFB07)) + list(range(0xFF01, 0xFF5F)) + list(range(0x3300, 0x3358))
           if unicodedata.normalize("NFKC", chr(c)) != chr(c)}
    out.update({"\t": " ", "\n": " ", "\r": " ", "\u3000": " ", "\u200b": "", "e\u0301": "\u00e9", "a\u0308\u0301": "\u00e4",
                "\u00a0": " ", "\u1100\u1161": "\uac00", "\r\n": "  "})
    return out


def bytes_of(patterns, nfc=False, learn=None, whole=False):
    t = Tokenizer(models.BPE(ignore_merges=whole))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated", False) for p in patterns]
                                              + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if nfc:
        t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(learn, trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def gemma(text):
    """BPE over characters with byte fallback, without a blank before the text; runs of blanks are added tokens."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Replace(" ", BLANK)
    t.pre_tokenizer = pre_tokenizers.Metaspace(split=True, prepend_scheme="never")  # for learning only
    special = ["<pad>", "<eos>", "<bos>", "<unk>"] + ["<0x%02X>" % i for i in range(256)]
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False,
                                                    limit_alphabet=60))
    j = json.loads(t.to_str())
    j["model"].update(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    n = len(j["model"]["vocab"])
    for i, s in enumerate(["\n\n", BLANK * 2, BLANK * 3, "<start_of_turn>", "<table>"]):
        j["added_tokens"].append(dict(id=n + i, content=s, single_word=False, lstrip=False, rstrip=False,
                                      normalized=not s.startswith("<s"), special=s.startswith("<s")))
    j["pre_tokenizer"] = dict(type="Split", pattern=dict(String=" "), behavior="MergedWithPrevious", invert=False)
    j["decoder"] = dict(type="Sequence", decoders=[dict(type="Replace", pattern=dict(String=BLANK), content=" "),
                                                   dict(type="ByteFallback"), dict(type="Fuse")])
    return Tokenizer.from_str(json.dumps(j))


def unigram(text, norm, pre, decoder=None, fallback=False, size=400, post=None):
    t = Tokenizer(models.Unigram())
    t.normalizer, t.pre_tokenizer, t.decoder = norm, pre, decoder or decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"] + (["<0x%02X>" % i for i in range(256)] if fallback else [])
    t.train_from_iterator(text, trainers.UnigramTrainer(vocab_size=size + len(special), special_tokens=special,
                                                        show_progress=False, unk_token="<unk>"))
    j = json.loads(t.to_str())
    j["model"]["byte_fallback"] = fallback
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    t = Tokenizer.from_str(json.dumps(j))
    if post:
        t.post_processor = post
    return t


def bert(text, **settings):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=12))
    t.normalizer = normalizers.BertNormalizer(**settings)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece(cleanup=True)
    t.train_from_iterator(text, trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
                                                          limit_alphabet=90, show_progress=False))
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return t


def agreed(c):
    """Whether the library's tables, which are of several versions of Unicode, know this character as version 14 does."""
    s, category = chr(c), unicodedata.category(chr(c))
    mark, white = category[0] == "M", s.isspace() and c not in (0x1C, 0x1D, 0x1E, 0x1F)
    other = category in ("Cc", "Cf", "Co") or c == 0xFFFD
    # Alphabetic is not in this module: letters, numbers of letters, and marks with Other_Alphabetic are all in \w here
    word = mark or category in ("Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Nd", "Pc") or 0x24B6 <= c <= 0x24E9 or (
        0x1F130 <= c <= 0x1F149 or 0x1F150 <= c <= 0x1F169 or 0x1F170 <= c <= 0x1F189) or c in (0x200C, 0x200D)
    return (NFKC.normalize_str("a" + s) == unicodedata.normalize("NFKC", "a" + s)
            and NFKD.normalize_str("a" + s) == unicodedata.normalize("NFKD", "a" + s)
            and (ACCENTS.normalize_str("a" + s) == "a") == mark
            and (MARKS.normalize_str("a" + s + "b") == "ab") == (category == "Mn")
            and LOWER.normalize_str(s) == (s.lower() if c != 0x3A3 else "\u03c3")
            and CLEAN.normalize_str("a" + s + "b") == ("a b" if white else "ab" if other else "a" + s + "b")
            and (len(BERT.pre_tokenize_str("a" + s + "b")) == 3) == (category[0] == "P" or s in "$+<=>^`|~")
            and (len(WORDS.pre_tokenize_str("a" + s + "b")) == 1) == word)


NFKC, NFKD, ACCENTS, LOWER = normalizers.NFKC(), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()
CLEAN = normalizers.BertNormalizer(True, False, False, False)
MARKS = normalizers.BertNormalizer(False, False, True, False)
BERT, WORDS = pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Whitespace()


def ranges(assigned):
    out = []
    for a, b in assigned:
        for c in range(a, b + 1):
            if (0x3400 <= c <= 0x9FFC or 0xAC00 <= c <= 0xD7A3 or 0x20000 <= c <= 0x2A6DD) and c % 16:
                known = out and out[-1][1] == c - 1  # ideographs and syllables are alike: one in sixteen is asked
            else:
                known = agreed(c)
            if known and out and out[-1][1] == c - 1:
                out[-1][1] = c
            elif known:
                out.append([c, c])
    return [tuple(r) for r in out]


def main():
    assert unicodedata.unidata_version == "14.0.0"
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "tokenizers"
    out.mkdir(exist_ok=True)
    text = (here.parent.parent / "data" / "kjv.txt").read_bytes()[:make_bpe.TEXT_BYTES].decode()
    lines = text.splitlines(keepends=True)
    assigned = ranges([tuple(int(x, 16) for x in line.split()) for line in open(here / "bpe" / "assigned.txt")])
    (out / "assigned.txt").write_text("".join("%X %X\n" % r for r in assigned))
    strings = [make_bpe.draw(s, assigned) for s in range(make_bpe.STRINGS)]
    learn = lines + strings[:500]
    mapped = normalizers.Precompiled(charsmap(nfkc_pairs()))
    space = normalizers.Replace(Regex(" {2,}"), " ")
    meta = pre_tokenizers.Metaspace
    t5 = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    made = {
        "o200k": bytes_of([O200K], learn=learn, whole=True),
        "kimi": bytes_of([KIMI], learn=learn),
        "qwen35": bytes_of([QWEN35], nfc=True, learn=learn),
        "deepseek3": bytes_of(DEEPSEEK3, learn=learn),
        "odd": bytes_of([ODD], learn=learn),
        "gemma": gemma(lines),
        "t5": unigram(lines, normalizers.Sequence([mapped, normalizers.Strip(left=False, right=True), space]),
                      pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), meta(prepend_scheme="always")]), post=t5),
        "albert": unigram(lines, normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.NFKD(),
                                                       normalizers.StripAccents(), normalizers.Lowercase()]),
                          meta(prepend_scheme="first"), size=300),
        "fallback": unigram(lines, normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Prepend(BLANK),
                                                         normalizers.Replace(" ", BLANK)]),
                            pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\d|" + BLANK + "+"), "merged_with_next", False),
                                                     pre_tokenizers.Punctuation("contiguous")]),
                            decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                               decoders.Strip(" ", 1, 0)]), fallback=True),
        "bert": bert(learn), "cased": bert(learn, lowercase=False, strip_accents=False, handle_chinese_chars=False),
    }
    cased = made["cased"]
    cased.pre_tokenizer = pre_tokenizers.Whitespace()
    cased.add_tokens([AddedToken("thou art", normalized=True), AddedToken("\u00e9", normalized=True)])
    for name, t in made.items():
        t.save(str(out / (name + ".json")), pretty=False)
        ids = [e.ids for e in t.encode_batch(strings)] + [t.encode(text).ids]
        texts = [t.decode(i) for i in ids]
        hashes = [make_bpe.fnv(i) for i in ids] + [make_bpe.fnv(s.encode()) for s in texts]
        (out / (name + ".hash")).write_bytes(struct.pack("<%dH" % len(hashes), *hashes))
        print(name, t.get_vocab_size(), "ids;", len(ids[-1]), "of the text;", (out / (name + ".json")).stat().st_size, flush=True)


if __name__ == "__main__":
    main()
