#!/usr/bin/env python3
"""Draw the table of docs/compare.md: validation loss over cache bytes per token, a point per layout.

    python3 docs/plot_compare.py docs/compare.md docs/compare.svg

Nothing but the standard library is needed. `kvsmith compare` writes the table (table.md)."""
import math
import sys

W, H, LEFT, TOP = 560, 290, 66, 34


def rows(path):
    """[(row, loss, sd, bytes per token, trained further)] of the first table that has a column `loss, nats/token`."""
    found, names = [], None
    for line in open(path):
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if "loss, nats/token" in cells:
            names = cells
        elif names and line.startswith("|") and not cells[0].startswith("---"):
            row = dict(zip(names, cells))
            loss, sd = row["loss, nats/token"].split(" ± ")
            found.append((row["row"], float(loss), float(sd), float(row["cache B/token at 1,024"]), bool(row["notes"])))
        elif names and not line.startswith("|"):
            return found
    sys.exit(f"{path}: no table of a comparison")


def main(source, target):
    found = rows(source)
    low, high = (f(loss for _, loss, *_ in found) for f in (min, max))
    low, high = math.floor(low * 20 - 0.5) / 20, math.ceil(high * 20 + 0.5) / 20
    left, right = 9, 14  # log2 of bytes
    out = [f'<rect x="{LEFT}" y="{TOP}" width="{W}" height="{H}" fill="none" stroke="#888"/>']

    def x(b):
        return LEFT + (math.log2(b) - left) / (right - left) * W

    def y(loss):
        return TOP + (high - loss) / (high - low) * H

    for k in range(round((high - low) / 0.05) + 1):
        v = low + 0.05 * k
        out.append(f'<line x1="{LEFT}" x2="{LEFT + W}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.2f}</text>')
    for k in range(left, right + 1):
        out.append(f'<text x="{x(2 ** k):.1f}" y="{TOP + H + 16}" text-anchor="middle">{2 ** k:,}</text>')
    for name, loss, sd, b, further in found:
        color, fill = ("#d55e00", "#fff") if further else ("#0072b2", "#0072b2")
        out.append(f'<line x1="{x(b):.1f}" x2="{x(b):.1f}" y1="{y(loss - sd):.1f}" y2="{y(loss + sd):.1f}" stroke="{color}"/>')
        out.append(f'<circle cx="{x(b):.1f}" cy="{y(loss):.1f}" r="4" fill="{fill}" stroke="{color}" stroke-width="1.8"/>')
        out.append(f'<text x="{x(b) + 8:.1f}" y="{y(loss) + 4:.1f}">{name}</text>')
    with open(target, "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + W + 20}" height="{TOP + H + 44}" font-family="sans-serif" '
                f'font-size="12">\n<rect width="100%" height="100%" fill="#fff"/>\n'
                f'<text x="10" y="20">validation loss, nats/token (bars: 1 sd of three seeds); hollow: a million tokens more</text>\n'
                + "\n".join(out)
                + f'\n<text x="{LEFT + W / 2}" y="{TOP + H + 36}" text-anchor="middle">cache bytes per token after 1,024 tokens</text>\n</svg>\n')


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
