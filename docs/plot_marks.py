#!/usr/bin/env python3
"""Curves of a comparison with conversions and marks: loss over percent of the original steps, a panel per target.

    python3 docs/plot_marks.py runs/compare-uptrain/results.json docs/uptrain.svg

A panel holds the rows whose names begin alike (gqa3-mean, gqa3-mean-kd, ...) and have several marks; the dotted line is
the row that was trained on without a conversion. Nothing but the standard library is needed."""
import json
import sys

W, H, LEFT, TOP, GAP = 300, 230, 52, 46, 26
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]


def points(row):
    return [(0.0, row.get("first_loss"))] + [(m["percent"], m["val_loss"]) for m in row["marks"]]


def main(source, target):
    rows = [r for r in json.load(open(source))["rows"] if len(r.get("marks") or []) > 1]
    names = {r["name"]: r for r in rows}
    reference = names.get(next((r["reference"] for r in rows if r.get("reference")), None))
    panels = {}
    for r in rows:
        if r is not reference:
            panels.setdefault(r["name"].split("-")[0], []).append(r)
    methods = []
    for r in sum(panels.values(), []):
        method = r["name"].removesuffix("-kd").split("-", 1)[-1]
        if method not in methods:
            methods.append(method)
    values = [y for r in rows for x, y in points(r) if y is not None and x > 0]
    low, high = min(values), max(values)
    if reference:  # what is far away would hide what is near; its lines leave the panel at the top
        high = min(high, 1.25 * max(y for x, y in points(reference) if x > 0))
    low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)
    percents = sorted({x for r in rows for x, _ in points(r) if x > 0})
    out = []
    for p, (name, members) in enumerate(panels.items()):
        x0 = LEFT + p * (W + GAP)

        def at(x, y):  # marks at equal distances: each is about twice the one before
            return x0 + (percents.index(x) + 0.5) * W / len(percents), TOP + (high - y) / (high - low) * H

        out.append(f'<clipPath id="p{p}"><rect x="{x0}" y="{TOP}" width="{W}" height="{H}"/></clipPath>')
        out.append(f'<rect x="{x0}" y="{TOP}" width="{W}" height="{H}" fill="none" stroke="#888"/>')
        out.append(f'<text x="{x0 + W / 2}" y="{TOP - 8}" text-anchor="middle" font-weight="bold">{name}</text>')
        for x in percents:
            out.append(f'<text x="{at(x, low)[0]:.1f}" y="{TOP + H + 16}" text-anchor="middle">{x:g} %</text>')
        for k in range(6):
            y = low + (high - low) * k / 5
            py = at(percents[0], y)[1]
            out.append(f'<line x1="{x0}" x2="{x0 + W}" y1="{py:.1f}" y2="{py:.1f}" stroke="#ddd"/>')
            if p == 0:
                out.append(f'<text x="{x0 - 6}" y="{py + 4:.1f}" text-anchor="end">{y:.3f}</text>')
        for r in [reference] * (reference is not None) + members:
            method, taught = r["name"].removesuffix("-kd").split("-", 1)[-1], r["name"].endswith("-kd")
            color = "#000" if r is reference else COLORS[methods.index(method) % len(COLORS)]
            dash = "2 3" if r is reference else "6 3" if taught else "none"
            line = [at(x, y) for x, y in points(r) if x > 0 and y is not None]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
            out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8" stroke-dasharray="{dash}" clip-path="url(#p{p})"/>')
            out += [f'<circle clip-path="url(#p{p})" cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{color}"/>' for x, y in line]
    x = LEFT
    for k, label in enumerate(methods + ["with the original as teacher", reference["name"] if reference else ""]):
        if not label:
            continue
        color = COLORS[k % len(COLORS)] if k < len(methods) else "#000"
        dash = "none" if k < len(methods) else "6 3" if k == len(methods) else "2 3"
        y = TOP + H + 40
        out.append(f'<line x1="{x}" x2="{x + 26}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="1.8" stroke-dasharray="{dash}"/>')
        out.append(f'<text x="{x + 31}" y="{y + 4}">{label}</text>')
        x += 31 + 7 * len(label) + 24
    width = LEFT + len(panels) * (W + GAP)
    with open(target, "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + H + 58}" font-family="sans-serif" '
                f'font-size="12">\n<rect width="100%" height="100%" fill="#fff"/>\n'
                f'<text x="{LEFT}" y="20">validation loss, nats per token, over training after the conversion '
                f'(percent of the original steps)</text>\n')
        f.write("\n".join(out) + "\n</svg>\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
