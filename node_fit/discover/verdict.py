"""Whether a system explains the records that it was found in, or only follows them, and both in words."""

import numpy as np

from .judging import Judge, JudgedSystem, cut_pieces

# Of each trajectory, and of each state in it.
FEWEST_ROWS = 12
# What a system must explain: the share of variance, and how alike neighbouring residuals may be, beside the deviation
# of a correlation that is due to chance.
LEAST_EXPLAINED, MOST_ALIKE, NEARLY_EXACT = 0.5, 0.5, 0.999
# Minus twice the logarithm of the odds against the row before: it is the best of some ten thousand systems.
SMALLEST_LEAD = 20.0


def decide(judge: Judge, judged: JudgedSystem) -> tuple[bool, bool, str]:
    """Whether a system fits the records, whether it explains them, and both in words.

    It fits if it explains the variance of each state that was measured, and leaves residuals that look like noise. Of
    few rows, much fits that explains nothing.
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
    """Whether a linear map of the row before makes the rows about as probable as the simulation, which sees the first.

    So it is of random walks, and of all that is driven by noise or by what is older than a row; not of a system whose
    measurements are noisy. Both are compared by Schwarz's criterion, with a variance of the noise for each state.
    """
    measured, count = judge.measured, len(judge.states)
    before: list[np.ndarray] = []
    now: list[np.ndarray] = []
    left: list[np.ndarray] = []
    pieces = iter(judged.left.transpose(2, 0, 1))
    for record in judge.records:
        scaled = record.raw[:, measured] / judge.scale[measured]
        gap = np.full_like(scaled, np.nan)
        for piece in cut_pieces(len(scaled)):
            own = next(pieces)[: piece.stop - piece.start, measured]
            gap[piece] = np.where(np.isfinite(own), own, gap[piece])
        inputs = record.values[:, count:]
        before.append(np.column_stack([scaled[:-1], inputs[:-1], inputs[1:], np.ones(len(scaled) - 1)]))
        now.append(scaled[1:])
        left.append(gap[1:])
    given, wanted, gaps = (np.concatenate(each) for each in (before, now, left))
    known = np.isfinite(np.column_stack([given, wanted, gaps])).all(axis=1)
    given, wanted, gaps = given[known], wanted[known], gaps[known]
    rows, many = given.shape
    if rows < FEWEST_ROWS + many:
        return False
    missed = wanted - given @ np.linalg.lstsq(given, wanted)[0]
    constants = sum(len(formula.constants) for formula in judged.formulas) + count * len(judge.records)
    past, simulated = (
        rows * np.log((each**2).mean(axis=0).clip(1e-300)).sum() + numbers * np.log(rows)
        for each, numbers in ((missed, many * len(measured)), (gaps, constants))
    )
    return bool(past < simulated + SMALLEST_LEAD)
