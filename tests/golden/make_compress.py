#!/usr/bin/env python3
"""make_compress.py: which tokens of a prompt stay by LLMLingua (arXiv:2310.05736) and LongLLMLingua (2310.06839).

The rules are typed here from the papers' text, over logits of transformers 5.23 in float64 on torch 2.15; every
probability is computed from a whole text anew. Passages are drawn. tests/infer/test_compress.c gives the same to the
program. Each line of a case: a passage in the order of the output, its rank, and the tokens that stay, as bits.

    python3 tests/golden/make_compress.py > tests/golden/compress.txt
"""
import math
import pathlib
import torch
import transformers


def drawn(seed, n, vocab):
    """Runs of few tokens, so that some are more predictable than others."""
    x, out = seed, []
    for i in range(n):
        x = (x * 1103515245 + 12345) % 2**31
        out.append(x // 65536 % vocab if i < 3 or x // 4096 % 3 == 0 else out[-1 - x // 65536 % 3])
    return out


def surprise(model, before, tokens):
    """-log p of each token after `before` and those ahead of it; infinite where nothing is ahead."""
    ids = before + tokens
    with torch.no_grad():
        p = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return [-p[len(before) + i - 1, t].item() if len(before) + i else math.inf for i, t in enumerate(tokens)]


def mean(values):
    values = [v for v in values if v < math.inf]
    return sum(values) / len(values)


def compress(model, passages, o):
    start = [o["start"]] if o["start"] >= 0 else []
    asked, question = o["asked"], o["asked"][:o["question"]]
    total = sum(map(len, passages))
    budget = math.ceil(o["rate"] * total - 1e-9)
    if question:
        score = [mean(surprise(model, start + p, asked)) for p in passages]
    else:
        score = [-mean(surprise(model, start, p)) for p in passages]
    ranked = sorted(range(len(passages)), key=lambda i: (score[i], i))
    left, held = [], 0
    for i in ranked:
        if not left or held < o["coarse"] * budget:
            left.append(i)
            held += len(passages[i])
        else:
            break
    output = left if question and not o["in_order"] else sorted(left)
    text, result = [], []
    for i in output:
        rank, p, stays = ranked.index(i), passages[i], []
        rate = budget / held + (o["slope"] * (1 - 2 * rank / len(left)) if question else 0)
        rate = min(1, max(0, rate))
        for lo in range(0, len(p), o["segment"]):
            part = p[lo:lo + o["segment"]]
            s = surprise(model, start + text, part)
            if question:
                s = [a - b if a < math.inf else a
                     for a, b in zip(s, surprise(model, start + question + text, part))]
            n = max(0, min(len(part), math.floor(rate * (lo + len(part)) + 0.5) - len(stays)))
            best = sorted(sorted(range(len(part)), key=lambda j: (-s[j], j))[:n])
            stays += [lo + j for j in best]
            text = text + [part[j] for j in best]
        result.append((i, rank, stays))
    return result


CASES = (  # model, passages, start, rate, coarse, slope, segment, question, asked, in_order
    ("llama/llama3-untied", 5, 1, 0.5, 2, 0.0, 8, 0, 0, 0), ("llama/llama3-untied", 5, -1, 0.3, 1.5, 0.0, 5, 0, 0, 0),
    ("llama/llama3-untied", 6, 1, 0.4, 1.2, 0.3, 9, 4, 7, 0), ("llama/llama3-untied", 6, -1, 0.6, 9, 0.5, 40, 3, 3, 1),
    ("recall", 4, 7, 0.25, 2, 0.25, 200, 5, 9, 0), ("recall", 7, -1, 0.7, 1, 0.0, 6, 0, 0, 0),
    ("recall", 7, 3, 0.2, 1, 1.0, 3, 6, 6, 0))
if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    for case in CASES:
        model = transformers.AutoModelForCausalLM.from_pretrained(here / case[0], dtype=torch.float64).eval()
        vocab = model.config.vocab_size
        passages = [drawn(100 + i, 5 + 4 * i % 15, vocab) for i in range(case[1])]
        o = dict(zip(("start", "rate", "coarse", "slope", "segment", "question", "n", "in_order"), case[2:]))
        o["asked"] = drawn(99, o["n"], vocab)
        result = compress(model, passages, o)
        print(*case, len(result))
        for i, rank, stays in result:
            print(i, rank, format(sum(1 << j for j in stays), "x"))
