"""What the unit gains on real images, run by run, drawn from the runs of `real_data.py`.

    python benchmarks/gains_picture.py --out docs/images/gains.png

A dot is a pair of runs, the diamond their mean ± one standard error. `tables.py` prints the
numbers.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

from matplotlib.figure import Figure

from comparisons import COMPARISONS, RUNS, read_runs, standard_error
from hemnet.study.figure_style import EMANET, FAINT, INK, new_figure, step_colour, tidy


def draw(rows: list[tuple[str, list[float], list[float]]]) -> Figure:
    """A row for each comparison: its title, the gains over the plain head and over EMANet's."""
    figure = new_figure(9, 4.6)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    for height, (_, *both) in enumerate(rows):
        for axis, values in zip((left, right), both, strict=True):
            axis.plot(values, [height] * len(values), "o", ms=4, alpha=0.6, color=FAINT)
            mean = statistics.mean(values) if values else math.nan
            colour = step_colour(0.4) if mean > 0 else EMANET
            axis.errorbar(
                mean, height, xerr=standard_error(values), fmt="D", ms=5, capsize=3, color=colour
            )
    for axis, name in ((left, "the head without attention"), (right, "EMANet's unit")):
        tidy(axis, f"HEMNet − {name}", "mIoU, points")
        axis.axvline(0, color=INK, lw=0.8)
    left.set_yticks(range(len(rows)), [title for title, *_ in rows])
    left.invert_yaxis()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="JSON lines, one a run")
    parser.add_argument("--out", type=Path, required=True, help="a picture")
    args = parser.parse_args()
    runs = read_runs(args.runs)
    rows = [(c.title, c.gains(runs, "plain"), c.gains(runs, "emanet")) for c in COMPARISONS]
    draw(rows).savefig(args.out)


if __name__ == "__main__":
    main()
