"""Sets of token ids in the layouts of Megatron-LM and llm.c, written by numpy from the description in data/indexed.h
alone (numpy 2.x; no code of either project). Files: tests/golden/sets/. Run from the repository's root:
    python tests/golden/make_sets.py
The documents are those of `docs` below; the tests hold the same lists.
"""
import os
import struct

import numpy as np

OUT = "tests/golden/sets"
docs = [[1, 2, 3, 0], [4, 0], [5, 6, 7, 8, 9, 0], [10, 11, 12, 0]]
CODE = {np.uint8: 1, np.int8: 2, np.int16: 3, np.int32: 4, np.int64: 5, np.float64: 6, np.float32: 7, np.uint16: 8}


def megatron(name, documents, dtype, sequences=None, modes=False):
    """documents: lists of ids; sequences: how many sequences make each document (default 1 each)."""
    per = sequences or [1] * len(documents)
    seqs, bounds = [], [0]
    for ids, k in zip(documents, per):
        seqs += [list(x) for x in np.array_split(np.array(ids, dtype=np.int64), k)]
        bounds.append(len(seqs))
    lengths = np.array([len(s) for s in seqs], dtype="<i4")
    width = np.dtype(dtype).itemsize
    places = np.concatenate([[0], np.cumsum(lengths[:-1].astype(np.int64) * width)]).astype("<i8")
    with open(f"{OUT}/{name}.bin", "wb") as f:
        for s in seqs:
            f.write(np.array(s, dtype=np.dtype(dtype).newbyteorder("<")).tobytes())
    with open(f"{OUT}/{name}.idx", "wb") as f:
        f.write(b"MMIDIDX\x00\x00")
        f.write(struct.pack("<Q", 1))
        f.write(struct.pack("<B", CODE[dtype]))
        f.write(struct.pack("<Q", len(lengths)))
        f.write(struct.pack("<Q", len(bounds)))
        f.write(lengths.tobytes())
        f.write(places.tobytes())
        f.write(np.array(bounds, dtype="<i8").tobytes())
        if modes:
            f.write(np.zeros(len(lengths), dtype=np.int8).tobytes())


def llmc(name, documents, magic, version, dtype):
    """llm.c: end-of-text, here 0, before every document."""
    ids = [t for d in documents for t in [0] + d[:-1]]
    head = np.zeros(256, dtype="<i4")
    head[:3] = magic, version, len(ids)
    with open(f"{OUT}/{name}.bin", "wb") as f:
        f.write(head.tobytes())
        f.write(np.array(ids, dtype=dtype).tobytes())


os.makedirs(OUT, exist_ok=True)
for dtype in (np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16, np.float32):
    megatron(np.dtype(dtype).name, docs, dtype)
megatron("several", docs, np.int32, sequences=[2, 1, 3, 1], modes=True)
megatron("bare", [d[:-1] for d in docs], np.uint16)
llmc("gpt2", docs, 20240520, 1, "<u2")
llmc("llama3", docs, 20240801, 7, "<u4")
