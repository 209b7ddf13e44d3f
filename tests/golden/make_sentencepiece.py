#!/usr/bin/env python3
"""Golden SentencePiece models and tiktoken files, learned on the shipped text, and hashes of the ids that sentencepiece and
tiktoken give to 10,000 strings. Needs sentencepiece 0.2.3, tiktoken 0.14.0 and tokenizers 0.23.1 (see make_bpe.py).
Usage: make_sentencepiece.py [OUT]   (default: sentencepiece/ beside this script)

FOLDER/ids.hash: as NAME.hash of make_tokenizers.py, whose characters the strings have.
"""
import base64
import io
import pathlib
import struct
import sys

import sentencepiece
import tiktoken
from tokenizers import models, pre_tokenizers, Regex, Tokenizer, trainers

import make_bpe
import make_tokenizers

here = pathlib.Path(__file__).resolve().parent
CL100K = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""


def spm(folder, lines, **settings):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, num_threads=1,
                                             hard_vocab_limit=False, minloglevel=2, **settings)
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    p = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    bos = [p.bos_id()] if p.bos_id() >= 0 else []
    return lambda s: bos + p.encode(s), p.decode


def tik(folder, name, learn, pattern, special):
    """Ranks: the 256 bytes, then what byte-level BPE learns."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(make_bpe.QWEN2), "isolated", False),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.train_from_iterator(learn, trainers.BpeTrainer(vocab_size=600, show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    byte = {}
    for b in range(256):
        keep = 33 <= b <= 126 or 161 <= b <= 172 or b >= 174
        byte[chr(b) if keep else chr(256 + sum(not (33 <= x <= 126 or 161 <= x <= 172 or x >= 174) for x in range(b)))] = b
    vocab = sorted(t.get_vocab().items(), key=lambda v: v[1])
    ranks = {bytes(byte[c] for c in token): i for i, (token, _) in enumerate(vocab)}
    (folder / name).write_bytes(b"".join(base64.b64encode(k) + b" %d\n" % v for k, v in ranks.items()))
    e = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks,
                          special_tokens={s: len(ranks) + i for s, i in special.items()})
    return lambda s: e.encode(s, allowed_special="all"), lambda ids: e.decode([i for i in ids if i < len(ranks)])


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "sentencepiece"
    text = (here.parent.parent / "data" / "kjv.txt").read_bytes()[:make_bpe.TEXT_BYTES].decode()
    assigned = [tuple(int(x, 16) for x in line.split()) for line in open(here / "tokenizers" / "assigned.txt")]
    strings = [make_bpe.draw(s, assigned) for s in range(make_bpe.STRINGS)]
    learn = text.splitlines(keepends=True) + strings[:500]
    lines = [x for x in text.splitlines() if x]
    same = dict(character_coverage=0.999, byte_fallback=True)
    kinds = {
        "llama": lambda f: spm(f, lines, vocab_size=600, model_type="bpe", normalization_rule_name="identity",
                               remove_extra_whitespaces=False, split_digits=True, **same),
        "gemma": lambda f: spm(f, lines, vocab_size=600, model_type="bpe", normalization_rule_name="identity",
                               remove_extra_whitespaces=False, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                               user_defined_symbols=["\u2581\u2581", "\u2581\u2581\u2581", "<table>", "king", "kings"], **same),
        "unigram": lambda f: spm(f, lines, vocab_size=500, model_type="unigram", normalization_rule_name="identity",
                                 remove_extra_whitespaces=True, bos_id=-1, **same),
        "qwen": lambda f: tik(f, "qwen.tiktoken", learn, make_bpe.QWEN2, {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}),
        "kimi": lambda f: tik(f, "tiktoken.model", learn, make_tokenizers.KIMI, {}),
        "o200k": lambda f: tik(f, "o200k_base.tiktoken", learn, make_tokenizers.O200K, {"<|endoftext|>": 1, "<|endofprompt|>": 20}),
        "cl100k": lambda f: tik(f, "cl100k_base.tiktoken", learn, CL100K, {
            "<|endoftext|>": 1, "<|fim_prefix|>": 2, "<|fim_middle|>": 3, "<|fim_suffix|>": 4, "<|endofprompt|>": 20}),
    }
    for name, make in kinds.items():
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        encode, decode = make(folder)
        ids = [encode(s) for s in strings] + [encode(text)]
        texts = [decode(i) for i in ids]
        hashes = [make_bpe.fnv(i) for i in ids] + [make_bpe.fnv(s.encode()) for s in texts]
        (folder / "ids.hash").write_bytes(struct.pack("<%dH" % len(hashes), *hashes))
        print(name, len(ids[-1]), "of the text;", [f.stat().st_size for f in folder.iterdir()], flush=True)


if __name__ == "__main__":
    main()
