"""The byte tokenizer as the tokenizers library itself builds and writes it; tests/data/test_data.c holds ours to this file.

    python tests/golden/make_tokenizer.py tests/golden/tokenizer.json

Made with tokenizers 0.23.3; checked by transformers 5 (PreTrainedTokenizerFast) as well, where that is installed.
"""
import random
import sys
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

EOT = "<|endoftext|>"
level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

# The character of every byte, asked of the library: through all characters of one or two UTF-8 bytes and the lead bytes
# of longer ones. The thirteen bytes that no UTF-8 text contains get, in order, the characters that are left.
char = {}
for u in list(range(0x800)) + list(range(0x800, 0xD800, 0x40)) + list(range(0xE000, 0x110000, 0x40)):
    text = chr(u)
    for byte, c in zip(text.encode(), level.pre_tokenize_str(text)[0][0]):
        assert char.setdefault(byte, c) == c
left = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(char.values()))
missing = [b for b in range(256) if b not in char]
assert missing == [0xC0, 0xC1, *range(0xF5, 0x100)] and len(left) == 13
char.update(zip(missing, left))

tok = Tokenizer(models.BPE(vocab={char[b]: b for b in range(256)}, merges=[]))
tok.pre_tokenizer = level
tok.decoder = decoders.ByteLevel(add_prefix_space=False, use_regex=False)
tok.add_special_tokens([AddedToken(EOT, special=True, normalized=False)])
tok.save(sys.argv[1], pretty=True)


def check(encode, decode):
    rng = random.Random(1)
    texts = ["", " a", "a  b\n\n c", "don't 123", "\x00\x7f\xa0\xad", "\u00e9\u4e2d\U0001f600"]
    for _ in range(200):
        ranges = [(1, 0x80), (0x80, 0x800), (0xE000, 0x11000)]
        texts.append("".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(50)))
    for t in texts:
        assert encode(t) == list(t.encode()), t
        assert decode(list(t.encode())) == t, t
    assert encode(EOT) == [256] and encode("a" + EOT) == [97, 256]


for path in sys.argv[1:]:  # the golden file and any other that is named: one that the program wrote
    t = Tokenizer.from_file(path)
    assert t.get_vocab_size() == 257
    check(lambda s: t.encode(s).ids, lambda ids: t.decode(ids, skip_special_tokens=False))
    try:
        from transformers import PreTrainedTokenizerFast
    except ImportError:
        continue
    f = PreTrainedTokenizerFast(tokenizer_file=path, eos_token=EOT, clean_up_tokenization_spaces=False)
    assert len(f) == 257 and f.eos_token_id == 256
    check(lambda s: f(s)["input_ids"], f.decode)
print("ok")
