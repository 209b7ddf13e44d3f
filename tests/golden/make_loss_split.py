#!/usr/bin/env python3
"""make_loss_split.py: the loss of windows of text by position and by recall, from tokens and logits, typed from the rule of
Zoology (arXiv:2312.04927, section 3): AR hits are tokens at the end of a bigram that the context has shown before and that
the training text has at most LIMIT times; other tokens are first occurrences or common bigrams.

Windows of random tokens and logits; token 0 ends a document and begins the next. tests/infer/test_loss_split.c feeds the
same to the program. numpy 2.4.

    python3 tests/golden/make_loss_split.py > tests/golden/loss_split.txt
"""
import numpy as np

VOCAB, LIMIT, TRAIN, WINDOWS = 9, 6, 400, [1, 30, 90, 150]
rng = np.random.default_rng(7)


def text(n):
    skewed = rng.choice(VOCAB, n, p=np.array([1, 12, 8, 6, 4, 3, 3, 2, 2]) / 41)
    return skewed.tolist()


def main():
    train = text(TRAIN)
    print("# VOCAB LIMIT; the training text; of each window the rows, tokens, and logits of each row; then sums")
    print(VOCAB, LIMIT)
    print(len(train), *train)
    sums = {}
    print(len(WINDOWS))
    for n in WINDOWS:
        tokens = text(n + 1)
        logits = rng.normal(0, 2, (n, VOCAB)).astype(np.float32)
        print(n, *tokens)
        for row in logits:
            print(*(f"{float(v):.9g}" for v in row))
        start = 0
        for i in range(n):
            if tokens[i] == 0:
                start = i  # a document begins with the token that ended the last
            z = logits[i].astype(np.float64)
            loss = np.log(np.exp(z - z.max()).sum()) + z.max() - z[tokens[i + 1]]
            bigram = tokens[i:i + 2]
            before = [tokens[j:j + 2] for j in range(start, i)]
            often = sum(train[j:j + 2] == bigram for j in range(len(train) - 1))
            kind = "first" if bigram not in before else "common" if often > LIMIT else "hit"
            seen = i - start + 1  # tokens of the document up to this one
            bucket = int(np.ceil(np.log2(seen) / 2 - 1e-12))
            for name in ("all", kind, f"upto {4 ** bucket}"):
                count, total = sums.get(name, (0, 0.0))
                sums[name] = count + 1, total + loss
    for name in sorted(sums):
        print(name.replace(" ", "-"), sums[name][0], f"{sums[name][1]:.12f}")


main()
