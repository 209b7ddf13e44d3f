#!/usr/bin/env python3
"""Golden chat templates: what transformers' apply_chat_template makes of conversations by the template that kvsmith wrote.

Usage: make_chat.py KVSMITH [OUT]   (default OUT: sft/templates.json beside this script). Needs transformers with jinja2;
the versions used are in the file. For each tokenizer of sft/ and template, `kvsmith train` writes a model directory,
transformers opens the tokenizer there, and the file records the template, the ids and the text of every line of
sft/chat.jsonl. `same` says that the ids are those of the text with its special tokens found, so that they can be
compared; a message that spells a special token is left out.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import tokenizers
import transformers
from transformers import AutoTokenizer

here = pathlib.Path(__file__).resolve().parent
cases = [("qwen2-chatml", "chatml"), ("qwen2-chatml", "alpaca"), ("qwen2-chatml", "plain"), ("llama3-llama3", "llama3"),
         ("llama3-llama3", "alpaca"), ("llama3-llama3", "plain"), ("first-chatml", "chatml"),
         ("llama2-chatml", "chatml")]
INPUT = {"chatml": "\n", "llama3": "\n", "alpaca": "\n\n### Input:\n", "plain": "\n"}


def messages(line, template):
    if "messages" in line:
        return line["messages"]
    user = line["instruction"] + (INPUT[template] + line["input"] if line["input"] else "")
    return [{"role": "user", "content": user}, {"role": "assistant", "content": line["output"]}]


def main():
    kvsmith = sys.argv[1]
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else here / "sft" / "templates.json"
    lines = [json.loads(x) for x in (here / "sft" / "chat.jsonl").read_text().splitlines()]
    golden = []
    for tokenizer, template in cases:
        with tempfile.TemporaryDirectory() as tmp:
            subprocess.run([kvsmith, "train", here.parent.parent / "configs" / "tiny-gqa.yaml", f"run.dir={tmp}/run",
                            f"data.train={here}/sft/chat.jsonl", f"data.tokenizer={here}/sft/{tokenizer}.json",
                            f"data.sft={template}", "data.seq_len=256", "data.val_fraction=0", "train.steps=1", "train.batch=1",
                            "train.micro_batch=1", "train.eval_every=0", "optim.warmup=0", "-q"], check=True)
            where = pathlib.Path(tmp) / "run" / "last"
            jinja = (where / "chat_template.jinja").read_text()
            assert json.loads((where / "tokenizer_config.json").read_text())["chat_template"] == jinja
            t = AutoTokenizer.from_pretrained(where)
            assert t.chat_template == jinja
            every = []
            for line in lines:
                m = messages(line, template)
                every.append(t.apply_chat_template(m, tokenize=True, return_dict=True)["input_ids"])
            ask = t.apply_chat_template([{"role": "user", "content": "Hot?"}], tokenize=False, add_generation_prompt=True)
            golden.append({"tokenizer": tokenizer, "template": template, "jinja": jinja, "ask": ask, "ids": every})
            print(tokenizer, template, sum(map(len, every)), "ids", repr(ask))
    report = {"python": sys.version.split()[0], "tokenizers": tokenizers.__version__, "transformers": transformers.__version__,
              "cases": golden}
    out.write_text(json.dumps(report, separators=(",", ":")) + "\n")


main()
