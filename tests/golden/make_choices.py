#!/usr/bin/env python3
"""Golden scores of multiple choice by EleutherAI's lm-evaluation-harness. Needs lm_eval, torch, transformers, tokenizers;
the versions used are in choices/versions.json. Usage: make_choices.py [OUT]   (default: choices/ beside this script)

For each of two tokenizers of bpe/ (one without and one with a beginning-of-text id) a tiny LlamaForCausalLM with random
weights, and one local task. items.jsonl is the task in kvsmith's form; NAME/golden.json holds for every item the
log-likelihoods that the harness's own HFLM gave, whether greedy decoding would say the continuation, the numbers of ids,
and the task's choices, acc and acc_norm as its own evaluator has them. Items whose best two choices are nearer than MARGIN
are drawn anew, so that another machine's rounding picks the same.
"""
import json
import pathlib
import random
import shutil
import sys
import tempfile

import lm_eval
import numpy
import torch
import transformers
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

here = pathlib.Path(__file__).resolve().parent
ITEMS, MARGIN, WINDOW = 40, 0.02, 64
WORDS = """king LORD thou heaven earth und straße naïve été Ωmega λόγος мир вода 水 火と風 שלום سلام 한국 🙂 👩‍👩‍👧 don't we'll 1234 7,000
            x=y; (a[b]) <tag> the The of and upon generation begat son day night waters""".split()
models = {"gpt2": dict(bos=None, eos="<|endoftext|>", seed=1), "llama3": dict(bos="<s>", eos="<|endoftext|>", seed=2)}


def text(r, n):
    return " ".join(r.choice(WORDS) for _ in range(n))


def draw(k, salt):
    """Item number k. The kinds that the rules speak of come up in turn."""
    r = random.Random(f"{k}/{salt}")
    kind, n = k % 10, r.randint(2, 5)
    ctx = text(r, r.randint(3, 9))
    cont = [" " + text(r, r.randint(1, 6)) for _ in range(n)]
    if kind == 1:
        ctx += r.choice([" ", "  ", "\n", " \t\n", "\u3000", "\u00a0 "])  # moves to the continuation
        cont = [c[1:] for c in cont]
    elif kind == 2:
        ctx = ""
    elif kind == 3:
        ctx = text(r, 60)  # longer than the window, with continuations of different lengths
    elif kind == 4:
        cont = ["".join(r.sample(WORDS, 2)) for _ in cont]  # merges across the border
    elif kind == 5:
        cont = [" " + c for c in random.Random(k).sample(["a", "b", "c", "d", "e", "f"], n)]  # one id each
    elif kind == 6:
        ctx = "\n".join(text(r, 3) for _ in range(3)) + "\nAnswer:"
    elif kind == 7:
        cont = [c + r.choice(["", ".", " ", "\n", "<|endoftext|>"]) for c in cont]
    elif kind == 8:
        ctx = "<|endoftext|>" + ctx if k % 20 == 8 else ""
        cont = ["<|endoftext|>" + c if k % 20 != 8 and i % 2 else c for i, c in enumerate(cont)]
    elif kind == 9:
        cont[0] = " " + text(r, 18)  # nearly as long as the window
    return {"ctx": ctx, "cont": cont, "gold": r.randrange(n)}


def build(name, where):
    spec = models[name]
    where.mkdir(parents=True)
    tok = PreTrainedTokenizerFast(tokenizer_file=str(here / "bpe" / f"{name}.json"), bos_token=spec["bos"],
                                  eos_token=spec["eos"], clean_up_tokenization_spaces=False)
    torch.manual_seed(spec["seed"])
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tok), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=WINDOW, rope_parameters=dict(
            rope_type="default", rope_theta=100.0), bos_token_id=None, eos_token_id=tok.eos_token_id,
        tie_word_embeddings=True))
    for n, p in model.named_parameters():
        p.data = 1 + 0.3 * torch.randn(p.shape) if "norm" in n else 0.3 * torch.randn(p.shape)
    model.tie_weights()
    model.half().save_pretrained(where)
    tok.save_pretrained(where)
    shutil.copy(here / "bpe" / f"{name}.json", where / "tokenizer.json")


def open_model(where):
    return HFLM(pretrained=str(where), dtype="float32", device="cpu", batch_size=8)


def scores(lm, items):
    from lm_eval.api.instance import Instance
    asks = [(it["ctx"], c) for it in items for c in it["cont"]]
    out = lm.loglikelihood([Instance("loglikelihood", {}, a, i) for i, a in enumerate(asks)], disable_tqdm=True)
    result, at = [], 0
    for it in items:
        result.append(out[at:at + len(it["cont"])])
        at += len(it["cont"])
    return result


def gap(v):
    v = sorted(v)
    return v[-1] - v[-2]


def lengths(it):
    return numpy.array([float(len(c[1:] if c.startswith(" ") else c)) for c in it["cont"]])


def pair(lm, ctx, cont):
    if ctx == "":
        ids = lm.tok_encode(cont, add_special_tokens=False)
        return (ids[:1], ids[1:]) if ids[0] == lm.prefix_token_id else ([lm.prefix_token_id], ids)
    return lm._encode_pair(ctx, cont)


def fits(lms, it):
    for lm in lms.values():
        for c in it["cont"]:
            try:
                _, b = pair(lm, it["ctx"], c)
            except IndexError:
                return False
            if not 0 < len(b) <= WINDOW:
                return False
        lls = numpy.array([x[0] for x in scores(lm, [it])[0]])
        if gap(lls) < MARGIN or gap(lls / lengths(it)) < MARGIN / 40:
            return False
    return True


def likeliest_first(lm, it):
    """The likeliest id behind the context as the first continuation, where it is a text."""
    ids = lm.tok_encode(it["ctx"].rstrip())
    with torch.no_grad():
        best = int(lm.model(torch.tensor([ids[-WINDOW:]])).logits[0, -1].argmax())
    text = lm.tokenizer.decode([best])
    if text.strip() and pair(lm, it["ctx"], text) == (ids, [best]):
        it["cont"][0] = text
        return True
    return False


def evaluate(lm, items):
    """The harness's own evaluator on a task of its own kind: acc and acc_norm. A continuation without its first blank is the
    choice, the blank the delimiter; items without such a blank have an empty delimiter."""
    total = {"acc": 0.0, "acc_norm": 0.0}
    for delimiter in (" ", ""):
        some = [it for it in items if all(c.startswith(" ") for c in it["cont"]) == (delimiter == " ")]
        with tempfile.TemporaryDirectory() as tmp:
            data = pathlib.Path(tmp) / "items.jsonl"
            data.write_text("".join(json.dumps({**it, "cont": [c[len(delimiter):] for c in it["cont"]]}) + "\n" for it in some))
            task = dict(task="local", dataset_path="json", dataset_kwargs=dict(data_files=dict(test=str(data)), cache_dir=tmp),
                        test_split="test", output_type="multiple_choice", doc_to_text=lambda d: d["ctx"],
                        doc_to_choice=lambda d: d["cont"], doc_to_target=lambda d: d["gold"], target_delimiter=delimiter,
                        metric_list=[dict(metric=m, aggregation="mean", higher_is_better=True) for m in total])
            r = lm_eval.simple_evaluate(model=lm, tasks=[task], task_manager=TaskManager(include_defaults=False),
                                        bootstrap_iters=0)["results"]["local"]
        for m in total:
            total[m] += r[f"{m},none"] * len(some)
    return {m: v / len(items) for m, v in total.items()}


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "choices"
    shutil.rmtree(out, ignore_errors=True)
    torch.set_num_threads(1)
    for name in models:
        build(name, out / name)
    lms = {name: open_model(out / name) for name in models}
    items = []
    for k in range(ITEMS):
        salt = 0
        while k % 10 == 5 and not likeliest_first(lms["gpt2"], it := draw(k, salt)) or not fits(
                lms, it if k % 10 == 5 else (it := draw(k, salt))):
            salt += 1
        items.append(it)
    (out / "items.jsonl").write_text("".join(json.dumps(it, ensure_ascii=k % 2 == 0) + "\n" for k, it in enumerate(items)))
    for name, lm in lms.items():
        rows = []
        for it, got in zip(items, scores(lm, items)):
            lls = numpy.array([g[0] for g in got])
            rows.append({"ll": [round(float(x), 5) for x in lls], "greedy": [bool(g[1]) for g in got],
                         "tokens": [len(pair(lm, it["ctx"], c)[1]) for c in it["cont"]],
                         "cut": sum(len(a) + len(b) > WINDOW + 1 for a, b in (pair(lm, it["ctx"], c) for c in it["cont"])),
                         "choice": int(lls.argmax()), "choice_norm": int((lls / lengths(it)).argmax())})
        golden = {**evaluate(lm, items), "items": rows}
        (out / name / "golden.json").write_text(json.dumps(golden) + "\n")
        own = {m: sum(r[c] == it["gold"] for r, it in zip(rows, items)) / ITEMS for m, c in (("acc", "choice"), ("acc_norm", "choice_norm"))}
        assert all(abs(own[m] - golden[m]) < 1e-9 for m in own), (own, golden["acc"], golden["acc_norm"])
        print(name, own, "cut", sum(r["cut"] for r in rows), "greedy", sum(sum(r["greedy"]) for r in rows),
              sorted({t for r in rows for t in r["tokens"]}))
    (out / "versions.json").write_text(json.dumps({"python": sys.version.split()[0], "lm_eval": lm_eval.__version__,
                                                   "torch": torch.__version__, "transformers": transformers.__version__}) + "\n")


main()
