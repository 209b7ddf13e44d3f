#!/usr/bin/env python3
"""Golden tokenizers: small vocabularies learned by Hugging Face tokenizers on the shipped text, and hashes of the ids that
the library gives to 10,000 strings. Needs tokenizers, and a Python whose unicodedata is version 14 (3.11).
Usage: make_bpe.py [OUT]   (default: bpe/ beside this script)

The strings are not stored: `draw` below is repeated in tests/data/test_bpe.c. Character classes are weighted so that patterns'
branches, added tokens and composition all come up. Left out are the marks that the library, whose normalisation tables are
older than Unicode 14, orders in another way than the standard (their number is in versions.json). NAME.hash holds for every string the low 16 bits of FNV-1a over its ids,
then the same for the text, little-endian. assigned.txt holds the ranges of code points that Unicode 14 assigns.
"""
import json
import pathlib
import struct
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

here = pathlib.Path(__file__).resolve().parent
STRINGS, TEXT_BYTES = 10000, 100000
BITS = (1 << 64) - 1
GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"""
          r"""|\s+(?!\S)|\s+""")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
BLANKS = " \n\t\r\u00a0\u3000\u180e\u200b\u2028"
BITS_OF_TEXT = ["'s", "'LL", "'\u017f", "don't", "<|endoftext|>", "\u2581", "\u00e9", "e\u0301", "\u1100\u1161", "\u0958",
                "12345", "  ", "<s>", "</s>", "the LORD ", " thou art ", "king", "kings", "And God said,"]


def finalise(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & BITS
    z = (z ^ z >> 27) * 0x94D049BB133111EB & BITS
    return z ^ z >> 31


def mix(key, word):
    """rng_mix of ops/base.c."""
    step = 0x9E3779B97F4A7C15
    return finalise((finalise((key + step) & BITS) + word + step) & BITS)


def agreed(c):
    """Whether the library's NFC is the standard's around this character."""
    nfc = normalizers.NFC()
    return all(nfc.normalize_str(s) == unicodedata.normalize("NFC", s)
               for s in ("a\u0301" + chr(c), "a" + chr(c) + "\u0334", "\u1100" + chr(c) + "\u11a8"))


def ranges(left_out):
    out, start = [], None
    for c in range(0x110001):
        inside = c < 0x110000 and unicodedata.category(chr(c)) not in ("Cn", "Cs")
        if inside and not agreed(c):
            left_out.append(c)
            inside = False
        if inside and start is None:
            start = c
        elif not inside and start is not None:
            out.append((start, c - 1))
            start = None
    return out


def draw(s, assigned):
    """String number s."""
    at = [0]

    def roll(n):
        at[0] += 1
        return mix(mix(77, s), at[0]) % n

    out = []
    for _ in range(roll(41)):
        k = roll(100)
        if k < 35:
            out.append(chr(32 + roll(95)))
        elif k < 50:
            out.append(BLANKS[roll(len(BLANKS))])
        elif k < 62:
            out.append(BITS_OF_TEXT[roll(len(BITS_OF_TEXT))])
        elif k < 70:
            out.append(chr(0xA0 + roll(0x1B0)))
        else:
            a, b = assigned[roll(len(assigned))]
            out.append(chr(a + roll(b - a + 1)))
    return "".join(out)


def fnv(ids):
    h = 0x811C9DC5
    for i in ids:
        for b in struct.pack("<I", i):
            h = (h ^ b) * 0x01000193 & 0xFFFFFFFF
    return (h ^ h >> 16) & 0xFFFF


def level(text, pattern, nfc=False, whole=False, added=(), bos=False):
    t = Tokenizer(models.BPE(ignore_merges=whole))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated", False),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if nfc:
        t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>"] + (["<s>"] if bos else [])
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False,
                                                    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if added:
        t.add_tokens(list(added))
    if bos:
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", t.token_to_id("<s>"))])])
    return t


def gpt2(text):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=700, special_tokens=["<|endoftext|>"], show_progress=False,
                                                    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def fallback(text, metaspace=None):
    """Llama 2's form: characters, bytes for those without a token, U+2581 for blanks."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(split=True, prepend_scheme="never")
    special = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(256)]
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=800, special_tokens=special, show_progress=False,
                                                    limit_alphabet=60))
    j = json.loads(t.to_str())
    j["model"].update(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    j["pre_tokenizer"] = None
    if metaspace:
        j["normalizer"] = None
        j["pre_tokenizer"] = dict(type="Metaspace", replacement="\u2581", prepend_scheme=metaspace, split=metaspace == "always")
    j["decoder"] = dict(type="Sequence", decoders=[dict(type="Replace", pattern=dict(String="\u2581"), content=" "),
                                                   dict(type="ByteFallback"), dict(type="Fuse"),
                                                   dict(type="Strip", content=" ", start=1, stop=0)])
    j["post_processor"] = dict(type="TemplateProcessing",
                               single=[dict(SpecialToken=dict(id="<s>", type_id=0)), dict(Sequence=dict(id="A", type_id=0))],
                               pair=[dict(Sequence=dict(id="A", type_id=0)), dict(Sequence=dict(id="B", type_id=1))],
                               special_tokens={"<s>": dict(id="<s>", ids=[1], tokens=["<s>"])})
    return Tokenizer.from_str(json.dumps(j))


def main():
    assert unicodedata.unidata_version == "14.0.0"
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "bpe"
    out.mkdir(exist_ok=True)
    text = (here.parent.parent / "data" / "kjv.txt").read_bytes()[:TEXT_BYTES].decode()
    lines = text.splitlines(keepends=True)
    left_out = []
    assigned = ranges(left_out)
    (out / "assigned.txt").write_text("".join("%X %X\n" % r for r in assigned))
    strings = [draw(s, assigned) for s in range(STRINGS)]
    learn = lines + strings[:500]
    odd = [AddedToken("thou art", lstrip=True, rstrip=True, normalized=True), AddedToken("king", single_word=True),
           AddedToken("\u00e9", normalized=True)]
    made = {"gpt2": gpt2(lines), "llama3": level(learn, LLAMA3, whole=True, added=odd, bos=True),
            "qwen2": level(learn, QWEN2, nfc=True, added=odd), "llama2": fallback(lines), "first": fallback(lines, "first"),
            "always": fallback(lines, "always")}
    for name, t in made.items():
        t.save(str(out / (name + ".json")), pretty=False)
        hashes = [fnv(e.ids) for e in t.encode_batch(strings)] + [fnv(t.encode(text).ids)]
        (out / (name + ".hash")).write_bytes(struct.pack("<%dH" % len(hashes), *hashes))
        print(name, t.get_vocab_size(), "ids;", len(t.encode(text).ids), "of the text;", (out / (name + ".json")).stat().st_size)
    (out / "versions.json").write_text(json.dumps({"python": sys.version.split()[0], "tokenizers": tokenizers.__version__,
                                                   "unicode": unicodedata.unidata_version, "left_out": len(left_out)}) + "\n")


if __name__ == "__main__":
    main()
