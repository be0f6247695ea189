"""The table of a benchmark: ours beside other figures, with wins and losses."""

from collections.abc import Iterable

from .protocols import Figure, Measure, Protocol, Summary

HEAD = "| protocol | measure | ours | other | whose | outcome |\n|---|---|---|---|---|---|"
# Equations in ODEBench. Of all of them without noise, the share with R² above 0.9 [%], of the fitted trajectory and
# from the other start.
EQUATIONS = 63
ODEFORMER = (66.4, 32.8)
GOOD = 0.9


def rows(name: str, protocol: Protocol, summary: Summary) -> list[str]:
    """The lines of a table for a finished run."""
    lines = []
    for measure in protocol.measures:
        ours = measure.read(summary)
        for figure in measure.figures or (None,):
            lines.append(line(name, measure, ours, figure, summary))
    return lines


def line(name: str, measure: Measure, ours: float | None, figure: Figure | None, summary: Summary) -> str:
    cells = [name, measure.what, shown(ours)]
    if figure is None:
        return f"| {' | '.join([*cells, '-', '-', '-'])} |"
    other = figure.of(summary)
    verdict = outcome(ours, other, measure.lower) if figure.comparable else "other rows"
    return f"| {' | '.join([*cells, shown(other), figure.whose, verdict])} |"


def shown(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def outcome(ours: float | None, other: float | None, lower: bool) -> str:
    """`win`, `loss` or `equal`, of the figures as they are printed; one that is not finite loses."""
    if ours is None or other is None:
        return "loss" if ours is None else "win"
    mine, theirs = float(shown(ours)), float(shown(other))
    return "equal" if mine == theirs else "win" if (mine < theirs) == lower else "loss"


def odebench_lines(summaries: Iterable[Summary]) -> list[str]:
    """How many of the equations of ODEBench that were run have an R² above 0.9, beside ODEFormer on all of them."""
    found = list(summaries)
    lines = []
    for split, what, published in zip(("train", "test"), ("fitted trajectory", "other start"), ODEFORMER, strict=True):
        values = [each["metrics"][split]["r2"] for each in found]
        good = sum(value is not None and value > GOOD for value in values)
        share = 100 * good / len(values)
        lines.append(
            f"| ODEBench, {len(values)} of {EQUATIONS} equations | R² above {GOOD}, {what} | {good} of {len(values)} "
            f"({share:.0f} %) | {published} % | ODEFormer on all {EQUATIONS}, arXiv 2310.05573 | "
            f"{outcome(share, published, lower=False) if len(values) == EQUATIONS else 'other equations'} |"
        )
    return lines
