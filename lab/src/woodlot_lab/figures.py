"""Draws the figures of the pages, as SVG and PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from woodlot_lab.experiment import Figure, Panel

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito: distinct for colour-blind readers too."""
PANEL_SIZE = (4.6, 3.6)
LETTER, LEGEND_LINE = 0.08, 0.22
"""Width of a letter of the legend and height of its lines, in inches."""


def draw(figure: Figure, folder: Path) -> list[Path]:
    """Write ``NAME.svg`` and ``NAME.png`` into a folder."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    settings = {
        "font.size": 10,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "svg.hashsalt": figure.name,  # the same picture gives the same file
        "svg.fonttype": "path",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(settings):
        width, height = PANEL_SIZE
        columns = 2 if len(figure.panels) == 4 else min(len(figure.panels), 3)
        lines = -(-len(figure.panels) // columns)
        labels = [[series.label for series in panel.series] for panel in figure.panels]
        common = labels[0] != [""] and all(own == labels[0] for own in labels)  # one legend for all, out of the way
        beside = max(1, min(4, int(width * columns / ((max(map(len, labels[0])) + 6) * LETTER))))
        legend = LEGEND_LINE * -(-len(labels[0]) // beside) if common else 0.0
        canvas = Canvas(figsize=(width * columns, height * lines + legend), layout="constrained")
        FigureCanvasAgg(canvas)
        axes = canvas.subplots(lines, columns, squeeze=False).ravel()
        for axis, panel in zip(axes, figure.panels, strict=False):
            _panel(axis, panel)
        for axis in axes[len(figure.panels) :]:
            axis.set_visible(False)
        if common:
            handles = axes[0].get_legend_handles_labels()
            canvas.legend(*handles, loc="outside lower center", ncols=beside, fontsize=9)
        else:
            for axis in axes[: len(figure.panels)]:
                if axis.get_legend_handles_labels()[1]:
                    axis.legend(fontsize=8, framealpha=0.8)
        paths = [folder / f"{figure.name}.{kind}" for kind in ("svg", "png")]
        canvas.savefig(paths[0], metadata={"Date": None})
        canvas.savefig(paths[1], dpi=130, metadata={"Software": None})
    return paths


def _panel(axis: Any, panel: Panel) -> None:
    names = list(dict.fromkeys(x for series in panel.series for x in series.x if isinstance(x, str)))
    n = len(panel.series)
    for number, series in enumerate(panel.series):
        colour = COLOURS[(number if series.colour is None else series.colour) % len(COLOURS)]
        if names:
            places, style = [names.index(x) + (number - (n - 1) / 2) * 0.7 / n for x in series.x], "none"
        else:
            places, style = list(series.x), series.style
        axis.errorbar(
            places, series.y, series.error, label=series.label, color=colour, linestyle=style,
            marker=series.marker, markersize=4, capsize=2, linewidth=1.5,
        )  # fmt: skip
    axis.set_title(panel.title, fontsize=10)
    axis.set_xlabel(panel.x)
    axis.set_ylabel(panel.y)
    _scales(axis, panel, names)


def _scales(axis: Any, panel: Panel, names: list[str]) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    if names:
        axis.set_xticks(range(len(names)), names, rotation=20 if max(map(len, names)) > 8 else 0, ha="center")
        axis.set_xlim(*((-0.6, len(names) - 0.4) if len(names) > 1 else (-1.5, 1.5)))
        axis.grid(visible=False, axis="x")
    elif panel.log_x:
        axis.set_xscale("log")
        points = sorted({x for series in panel.series for x in series.x})
        if len(points) <= 8:
            axis.set_xticks(points)
        axis.xaxis.set_major_formatter(_tick)
        axis.xaxis.set_minor_formatter(NullFormatter())
    elif all(float(x).is_integer() for series in panel.series for x in series.x):
        points = sorted({x for series in panel.series for x in series.x})
        if len(points) <= 8 and max(points) < 1_000:  # just where something was measured
            axis.set_xticks(points)
        else:
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if panel.log_y:
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        if high / low < 100:  # less than two decades: powers of ten alone would leave one tick or none
            axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.yaxis.set_major_formatter(_tick)
        axis.yaxis.set_minor_formatter(NullFormatter())
    elif panel.from_zero:
        axis.set_ylim(0, 1.04 * axis.get_ylim()[1])


def _tick(value: float, place: int | None = None) -> str:
    """A number of a logarithmic axis, without powers and without noise in its last digits."""
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"
