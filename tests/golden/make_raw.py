#!/usr/bin/env python3
"""Raw text as Hugging Face tokenizers reads it: a tokenizer of GPT-NeoX's form, which keeps runs of 2 to 24 blanks as added
tokens that are not special, a piece of code, and its ids. raw: special tokens in the text are text (the library's
encode_special_tokens); found: they are tokens. Added tokens that are not special are found in both.
Usage: make_raw.py [OUT]   (default: raw/ beside this script). Made with tokenizers 0.23.3.
"""
import json
import pathlib
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CODE = '''def walk(tree, depth=0):
    """Prints a tree.  Two  blanks   three    four     five."""
    for name, branch in tree.items():
        if branch is None:
            continue
        elif isinstance(branch, dict):
            walk(branch, depth + 1)
            for child in branch:
                if child.startswith("_"):
                    print("    " * depth, child)
                        # odd indent
\tpass  # a tab
<tool_call>{"name": "walk"}</tool_call> <tool_call> x<tool_call>
<|endoftext|> is text here, and<|padding|>too. Caf\u00e9 and cafe\u0301: one word after NFC.

int main(void) {
    int   sum = 0;
    for (int i = 0; i < 10; i++) {
        if (i % 2) {
            sum += i;
                                /* a run of 32 blanks */
                          // one of 26
        }
    }
    return sum;
}
  '''


def neox():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    lines = CODE.replace("<|endoftext|>", "").replace("<|padding|>", "").splitlines(keepends=True)
    t.train_from_iterator(4 * lines, trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>", "<|padding|>"],
                                                         show_progress=False,
                                                         initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    t.add_tokens([AddedToken(s, normalized=False) for s in ("<tool_call>", "</tool_call>")])
    return t


out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent / "raw"
out.mkdir(exist_ok=True)
tok = neox()
tok.save(str(out / "neox.json"), pretty=False)
(out / "code.txt").write_bytes(CODE.encode())
ids = {"found": tok.encode(CODE).ids}
tok.encode_special_tokens = True
ids["raw"] = tok.encode(CODE).ids
(out / "ids.json").write_text(json.dumps(ids) + "\n")
print(tok.get_vocab_size(), "ids;", len(ids["raw"]), "raw,", len(ids["found"]), "found")
