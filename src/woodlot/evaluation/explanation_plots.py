"""Figures of an explanation, with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from woodlot.data.extras import need

if TYPE_CHECKING:
    from woodlot.evaluation.explanations import Explanation

BARS = 15
"""Features with a bar of their own; the others are drawn together."""
UP, DOWN, NEUTRAL = "#2f7d4f", "#b5693b", "#3b6fb5"


def _axes(n_bars: int) -> tuple[Any, Any]:
    figure, axes = need("matplotlib.pyplot", "plot").subplots(
        figsize=(7.0, 1.2 + 0.34 * max(n_bars, 2)), layout="constrained"
    )
    return figure, axes


def plot_bars(explanation: Explanation, output: Any) -> Any:
    """The mean size of each feature's part, the largest on top."""
    sizes = list(explanation.importance(output).items())
    shown, rest = sizes[:BARS], sum(size for _, size in sizes[BARS:])
    if rest:
        shown.append((f"{len(sizes) - BARS} others", rest))
    figure, axes = _axes(len(shown))
    names, values = zip(*reversed(shown), strict=True)
    axes.barh(names, values, color=NEUTRAL)
    axes.set(xlabel="mean size of the part of an answer")
    return figure


def plot_waterfall(explanation: Explanation, row: int, output: Any) -> Any:
    """From the base value to the answer for one row, the largest parts on top."""
    base, parts, answer = explanation.waterfall(row, output)
    shown, rest = parts[:BARS], sum(part for _, part in parts[BARS:])
    if len(parts) > BARS:
        shown.append((f"{len(parts) - BARS} others", rest))
    figure, axes = _axes(len(shown))
    at = base
    # from the base value upwards, so that the largest part ends at the answer, on top
    for level, (_, part) in enumerate(reversed(shown)):
        axes.barh(level, part, left=at, color=UP if part > 0 else DOWN)
        axes.annotate(f"{part:+.3g}", (at + part, level), xytext=(3, 0), textcoords="offset points", va="center")
        at += part
    axes.set_yticks(range(len(shown)), [name for name, _ in reversed(shown)])
    for place, words in ((base, f"base {base:.3g}"), (answer, f"answer {answer:.3g}")):
        axes.axvline(place, color="#9aaa9f", lw=1, ls="--")
        axes.annotate(words, (place, len(shown) - 0.4), ha="center", va="bottom", annotation_clip=False)
    axes.margins(x=0.12)
    axes.set(xlabel="prediction" if explanation.values.ndim == 2 else "probability")
    return figure
