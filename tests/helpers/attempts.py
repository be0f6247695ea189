"""Attempts beside each other, and races of those that were tried."""

import node_fit as nf
from node_fit.fitting.candidates import Race
from node_fit.fitting.judge import Judged, find_best


def beats(one: Judged, other: Judged) -> bool:
    """Whether an attempt is kept that was made after another one."""
    return find_best([other, one]) is one


def race_of(*tried: Judged, options: nf.Options | None = None, horizon: int | None = None) -> Race:
    return Race(options or nf.Options(), "normal", tried, horizon)
