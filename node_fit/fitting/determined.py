"""What the data do not determine of a fit's constants, in words."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from .information import Information

# A direction of which less is known is not determined: a standard error of the constants' own size.
VAGUE = 1.0
# Constants with a share below this, relative to the largest, are not named.
NAMED = 0.1
# Shares that differ by less count as equal.
EQUAL = 0.05


NOT_DESCRIBED = (
    "The equations do not describe the training data from this start, so these intervals say little: look at the "
    "start, at the first values of the constants and at the equations first."
)


def undetermined(information: Information) -> list[str]:
    """A sentence for each direction of the constants that the data do not determine.

    Where the fit does not describe the data, it can't tell what they would determine; another one may.
    """
    if not information.evidence.is_described:
        return [NOT_DESCRIBED]
    errors, vectors = information.directions
    vague = errors > VAGUE
    names = [each.name for each in information.places]
    sentences = by_penalties([name for name, each in zip(names, information.penalised, strict=True) if each])
    for direction in simplest(vectors[vague]) if vague.any() else ():
        among = [index for index in range(len(names)) if abs(direction[index]) > NAMED]
        if information.penalised[among].all():
            continue
        sentence = in_words([names[index] for index in among], direction[among])
        alone = information.root[:, [information.places[index].index for index in range(len(names))]]
        sizes = information.columns[[each.index for each in information.places]] * information.sizes
        unit = direction / np.linalg.norm(direction)
        if np.linalg.norm(alone @ (sizes * unit)) > np.sqrt(information.variance) / VAGUE:
            sentence += ", since what is fitted beside the constants can make up for a change"
        sentences.append(sentence + ".")
    return sentences


def by_penalties(names: Sequence[str]) -> list[str]:
    """A sentence on constants that only the penalties determine."""
    if not names:
        return []
    one = len(names) == 1
    return [
        f"{listed(names)} {'is' if one else 'are'} not determined by these data: what is fitted beside "
        f"{'it' if one else 'them'} can make up for a change, and only the penalties (penalty.ridge) decide."
    ]


def listed(names: Sequence[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), names[-1]])


def simplest(vectors: Float[np.ndarray, "direction constant"]) -> Float[np.ndarray, "direction constant"]:
    """A basis of the same directions in which each moves few constants; its largest entry is 1."""
    from scipy.linalg import qr

    order = qr(vectors, pivoting=True)[-1]
    reduced = np.linalg.solve(vectors[:, order[: len(vectors)]], vectors)
    return reduced / np.abs(reduced).max(axis=1, keepdims=True)


def in_words(names: Sequence[str], shares: Float[np.ndarray, " constant"]) -> str:
    """Which constants are not determined, and what of them is."""
    if len(names) == 1:
        return f"{names[0]} is not determined by these data"
    equal = np.ptp(np.abs(shares)) < EQUAL
    together = equal and (np.sign(shares) == np.sign(shares[0])).all()
    if together:
        what = "their ratio" if len(names) == 2 else "their ratios"
    elif equal and len(names) == 2:
        what = "their product"
    else:
        what = "a combination of them"
    return f"{listed(names)} are not determined by these data: only {what} {'are' if what.endswith('ratios') else 'is'}"
