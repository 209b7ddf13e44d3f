#!/usr/bin/env python3
"""What docs/mqar.sh found: accuracy over tokens, a line per mixer at its best learning rate; a table on standard output.

    python3 docs/plot_mqar.py runs/mqar docs/mqar.svg

A cell of the table is the accuracy on fresh samples at the end of a run, in percent, and behind @ the tokens it took,
in millions (either half of a run ends early at 99 %). Nothing but the standard library is needed."""
import json
import pathlib
import re
import sys

W, H, LEFT, TOP = 620, 330, 48, 34
COLORS = ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b", "#9467bd", "#bcbd22"]


def curve(folder):
    """[(millions of tokens, accuracy)] of a run that is over: its half in short sequences, then that in long ones. Batch
    and length come from the configurations they saved."""
    points, before = [], 0
    for half in (folder.with_name(folder.name + "-128"), folder):
        text = (half / "config.yaml").read_text()
        size = int(re.search(r"\bbatch: (\d+)", text).group(1)) * int(re.search(r"\bseq_len: (\d+)", text).group(1))
        lines = (json.loads(x) for x in (half / "metrics.jsonl").read_text().splitlines())
        points += [(before + x["step"] * size / 1e6, x["val_acc"]) for x in lines if x.get("val_acc") is not None]
        before = points[-1][0]
    return points


def main(source, target):
    runs = {}
    for done in sorted(pathlib.Path(source).glob("*@*.done")):
        if done.stem.endswith("-128"):  # a first half
            continue
        row, lr = done.name.removesuffix(".done").split("@")
        runs.setdefault(row, {})[float(lr)] = curve(done.with_suffix(""))
    if not runs:
        sys.exit(f"{source}: no finished run; see docs/mqar.sh")
    rates = sorted({lr for row in runs.values() for lr in row})
    # the best rate: the highest accuracy, of equal ones the one that was there first
    best = {row: max(found, key=lambda lr: (min(found[lr][-1][1], 0.99), -found[lr][-1][0])) for row, found in runs.items()}
    order = sorted(runs, key=lambda row: (-min(runs[row][best[row]][-1][1], 0.99), runs[row][best[row]][-1][0]))
    print("| mixer | " + " | ".join(f"lr {lr:g}" for lr in rates) + " |\n|---|" + "---|" * len(rates))
    for row in order:
        ends = [runs[row].get(lr) for lr in rates]
        print(f"| {row} | " + " | ".join(f"{100 * c[-1][1]:.1f} @{c[-1][0]:.1f}" if c else "-" for c in ends) + " |")

    top = max(c[-1][0] for row in runs.values() for c in row.values())
    out = [f'<rect x="{LEFT}" y="{TOP}" width="{W}" height="{H}" fill="none" stroke="#888"/>']

    def at(x, y):
        return f"{LEFT + x / top * W:.1f},{TOP + (1 - y) * H:.1f}"

    for k in range(6):
        y = TOP + (1 - k / 5) * H
        out.append(f'<line x1="{LEFT}" x2="{LEFT + W}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{20 * k} %</text>')
    for k in range(0, int(top) + 1, 4):
        out.append(f'<text x="{LEFT + k / top * W:.1f}" y="{TOP + H + 16}" text-anchor="middle">{k}M</text>')
    for k, row in enumerate(order):
        color, points = COLORS[k % len(COLORS)], runs[row][best[row]]
        path = " ".join(at(x, y) for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8"/>')
        y = TOP + 8 + 20 * k
        out.append(f'<line x1="{LEFT + W + 12}" x2="{LEFT + W + 34}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="1.8"/>')
        out.append(f'<text x="{LEFT + W + 40}" y="{y + 4}">{row}, lr {best[row]:g}</text>')
    with open(target, "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + W + 190}" height="{TOP + H + 30}" font-family="sans-serif" '
                f'font-size="12">\n<rect width="100%" height="100%" fill="#fff"/>\n'
                f'<text x="{LEFT}" y="20">multi-query associative recall: answers that are right, over tokens of training</text>\n')
        f.write("\n".join(out) + "\n</svg>\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
