"""Decides whether a system explains its records or only follows them, and puts the verdict into words."""

import numpy as np

from .judging import Judge, JudgedSystem, cut_pieces

# Minimum number of rows per trajectory, and of measurements per state.
FEWEST_ROWS = 12
# Minimum explained variance, maximum correlation of neighbouring residuals (plus its standard error), and the explained
# variance above which the correlation does not matter.
LEAST_EXPLAINED, MOST_ALIKE, NEARLY_EXACT = 0.5, 0.5, 0.999
# Required lead over the linear map in minus twice the log-likelihood: the system is the best of some ten thousand.
SMALLEST_LEAD = 20.0


def decide(judge: Judge, judged: JudgedSystem) -> tuple[bool, bool, str]:
    """Returns whether a system fits the records, whether it explains them, and the verdict in words.

    It fits if it explains the variance of each measured state and its residuals look like noise. With few rows, many
    systems fit that explain nothing.
    """
    worst, alike = 1.0, 0.0
    for state in judge.measured:
        products, squares, total = 0.0, 0.0, 0.0
        for record in range(judged.left.shape[2]):
            gap = judged.left[:, state, record]
            gap = gap[np.isfinite(gap)]
            products, squares = products + float(gap[1:] @ gap[:-1]), squares + float(gap @ gap)
        for record in judge.records:
            value = record.raw[:, state][np.isfinite(record.raw[:, state])] / judge.scale[state]
            total += float(((value - value.mean()) ** 2).sum())
        share = 1 - squares / max(total, 1e-300)
        worst = min(worst, share)
        if share < NEARLY_EXACT:
            alike = max(alike, products / max(squares, 1e-300))
    variance = f"{100 * max(worst, 0.0):.3g} % of the variance"
    figures = f"explains {variance}, and neighbouring residuals correlate by {alike:.2f}"
    if worst > NEARLY_EXACT:
        figures = "explains more than 99.9 % of the variance"
    none = f"no equation of these terms explains the record: the best {figures}"
    rows = np.isfinite(judged.left).any(axis=1).sum()
    if worst < LEAST_EXPLAINED or alike > MOST_ALIKE + rows**-0.5 or judged.escapes:
        return False, False, f"{none}."
    if worst < NEARLY_EXACT and past_does_as_well(judge, judged):
        return True, False, f"{none}; a linear map of the row before predicts each row as well."
    return True, True, f"found an equation; it {figures}."


def past_does_as_well(judge: Judge, judged: JudgedSystem) -> bool:
    """Whether a linear map of the previous row predicts rows about as well as the simulation from the first row.

    This holds for random walks and for systems driven by noise or by values older than one row, but not for noisy
    measurements of a system. Schwarz's criterion compares both, with a noise variance for each state.
    """
    measured, count = judge.measured, len(judge.states)
    before: list[np.ndarray] = []
    now: list[np.ndarray] = []
    all_gaps: list[np.ndarray] = []
    pieces = iter(judged.left.transpose(2, 0, 1))
    for record in judge.records:
        scaled = record.raw[:, measured] / judge.scale[measured]
        gap = np.full_like(scaled, np.nan)
        for piece in cut_pieces(len(scaled)):
            residuals = next(pieces)[: piece.stop - piece.start, measured]
            gap[piece] = np.where(np.isfinite(residuals), residuals, gap[piece])
        inputs = record.values[:, count:]
        before.append(np.column_stack([scaled[:-1], inputs[:-1], inputs[1:], np.ones(len(scaled) - 1)]))
        now.append(scaled[1:])
        all_gaps.append(gap[1:])
    features, wanted, gaps = (np.concatenate(parts) for parts in (before, now, all_gaps))
    complete = np.isfinite(np.column_stack([features, wanted, gaps])).all(axis=1)
    features, wanted, gaps = features[complete], wanted[complete], gaps[complete]
    rows, width = features.shape
    if rows < FEWEST_ROWS + width:
        return False
    missed = wanted - features @ np.linalg.lstsq(features, wanted)[0]
    constants = sum(len(formula.constants) for formula in judged.formulas) + count * len(judge.records)
    past, simulated = (
        rows * np.log((parts**2).mean(axis=0).clip(1e-300)).sum() + numbers * np.log(rows)
        for parts, numbers in ((missed, width * len(measured)), (gaps, constants))
    )
    return bool(past < simulated + SMALLEST_LEAD)
