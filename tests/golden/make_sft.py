#!/usr/bin/env python3
"""Golden conversations: ids and masks by transformers' apply_chat_template, windows by a packer of its own. Needs
transformers, tokenizers; the versions used are in sft/versions.json. Usage: make_sft.py [OUT]   (default: sft/ beside this)

chat.jsonl holds conversations and instructions. For each tokenizer of bpe/, with the template's markers added to it,
NAME.json is the tokenizer and NAME.golden.json what comes out: for every line the ids and which of them are learned
(return_assistant_tokens_mask over the `generation` part of a Jinja template that is the published one with that part
marked), and the windows that a plain best-fit decreasing makes of them: their conversations, and FNV-1a over input, target, first
row of the document and position of every row. An answer here does not begin with white space where that could join the template's line end: transformers
then gives ids across the border, kvsmith never does.
"""
import json
import pathlib
import random
import shutil
import struct
import sys

import tokenizers
import transformers
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

here = pathlib.Path(__file__).resolve().parent
CHATML = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}\
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}\
{% endif %}{{ '\n' }}{% endfor %}"""
LLAMA3 = """{% for message in messages %}{% if loop.index0 == 0 %}{{ bos_token }}{% endif %}\
{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}{% if message['role'] == 'assistant' %}\
{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}{% else %}\
{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"""
# tokenizer, template, markers, seq_len, too_long
cases = {
    "qwen2-chatml": ("qwen2", "chatml", CHATML, ["<|im_start|>", "<|im_end|>"], 160, "cut"),
    "llama3-llama3": ("llama3", "llama3", LLAMA3, ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                                                   "<|eot_id|>"], 128, "drop"),
    "llama2-chatml": ("llama2", "chatml", CHATML, ["<|im_start|>", "<|im_end|>"], 128, "cut"),
    "first-chatml": ("first", "chatml", CHATML, ["<|im_start|>", "<|im_end|>"], 200, "cut"),
}
WORDS = """And God said, the LORD king kings thou art heaven earth été é e\u0301 λόγος мир 水 火と風 שלום 🙂 don't 1234 x=y; $5
           <|notatoken|> (a[b]) upon generation  begat""".split()


def words(r, n):
    return r.choice(["", "", " ", "\n", "  "]).join([""] + [r.choice(WORDS) + r.choice([" ", " ", "\n", "  "]) for _ in range(n)])


def answer(r, n):
    return words(r, n).lstrip() or "Yes."


def draw(k):
    r = random.Random(k)
    if k % 4 == 3:
        return {"instruction": words(r, r.randint(1, 6)), "input": words(r, 3) if k % 8 == 3 else "", "output": answer(r, r.randint(1, 8))}
    out = []
    if k % 3 == 0:
        out.append({"role": "system", "content": words(r, r.randint(1, 5))})
    for _ in range(r.choice([1, 1, 1, 2, 3])):
        out.append({"role": "user", "content": words(r, r.randint(0, 8))})
        out.append({"role": "assistant", "content": answer(r, r.choice([1, 2, 4, 8, 20]))})
    if k % 5 == 4:
        out.append({"role": "user", "content": "And then?"})
    return {"messages": out, "id": k}


def messages(line):
    if "messages" in line:
        return line["messages"]
    user = line["instruction"] + ("\n" + line["input"] if line["input"] else "")
    return [{"role": "user", "content": user}, {"role": "assistant", "content": line["output"]}]


def pack(lengths, room):
    """Best-fit decreasing as data/pack.h words it, by looking at every window."""
    windows = []  # [free, turn in which it came to that room, pieces]
    for turn, i in enumerate(sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))):
        fitting = [w for w in windows if w[0] >= lengths[i]]
        if fitting:
            least = min(w[0] for w in fitting)
            w = max((w for w in fitting if w[0] == least), key=lambda w: w[1])
        else:
            w = [room, turn, []]
            windows.append(w)
        w[0] -= lengths[i]
        w[1] = turn
        w[2].append(i)
    return [w[2] for w in windows]


def window(pieces, conversations):
    rows = []
    for i in pieces:
        ids, mask = conversations[i]
        first = len(rows)
        rows += [(ids[k], ids[k + 1] if mask[k + 1] else -1, first, k) for k in range(len(ids) - 1)]
    h = 0x811C9DC5
    for row in rows:
        for b in struct.pack("<4i", *row):
            h = (h ^ b) * 0x01000193 & 0xFFFFFFFF
    return {"pieces": pieces, "rows": len(rows), "hash": h}


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "sft"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    lines = [draw(k) for k in range(36)]
    (out / "chat.jsonl").write_text("".join(json.dumps(x, ensure_ascii=k % 2 == 0) + "\n" for k, x in enumerate(lines)))
    for name, (vocabulary, template, jinja, markers, seq_len, too_long) in cases.items():
        t = Tokenizer.from_file(str(here / "bpe" / f"{vocabulary}.json"))
        t.add_special_tokens([AddedToken(m, special=True, normalized=False) for m in markers])
        path = out / f"{name}.json"
        t.save(str(path), pretty=False)
        tok = PreTrainedTokenizerFast(tokenizer_file=str(path), bos_token="<|begin_of_text|>" if template == "llama3" else None,
                                      clean_up_tokenization_spaces=False)
        every = []
        for line in lines:
            got = tok.apply_chat_template(messages(line), chat_template=jinja, tokenize=True, return_dict=True,
                                          return_assistant_tokens_mask=True)
            every.append((got["input_ids"], got["assistant_masks"]))
        kept = []
        for ids, mask in every:
            if len(ids) > seq_len + 1 and too_long == "drop":
                continue
            ids, mask = ids[:seq_len + 1], mask[:seq_len + 1]
            if any(mask[1:]):
                kept.append((ids, mask))
        windows = [window(p, kept) for p in pack([len(ids) - 1 for ids, _ in kept], seq_len)]
        golden = {"template": template, "seq_len": seq_len, "too_long": too_long,
                  "lines": [{"ids": ids, "learn": "".join(map(str, mask))} for ids, mask in every],
                  "dropped": len(every) - len(kept), "cut": sum(len(i) > seq_len + 1 for i, _ in every) if too_long == "cut" else 0,
                  "windows": windows}
        (out / f"{name}.golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
        print(name, len(every), "lines", golden["dropped"], "dropped", golden["cut"], "cut", len(windows), "windows",
              sum(w["rows"] for w in windows) / (len(windows) * seq_len))
    (out / "versions.json").write_text(json.dumps({"python": sys.version.split()[0], "tokenizers": tokenizers.__version__,
                                                   "transformers": transformers.__version__}) + "\n")


main()
