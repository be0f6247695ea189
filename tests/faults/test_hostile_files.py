"""Files of strangers that ask for much time or memory each end in a sentence, soon."""

import time

import pytest
from helpers.hostile_files import HOSTILE_FILES, HostileFile
from helpers.hostile_tables import HOSTILE_TABLES

# The longest that a sentence may take [s], where a million squares are added in so many; and its most characters.
MAX_SECONDS, SECONDS_OF_SQUARES, MAX_CHARACTERS = 2.0, 0.06, 500
CHEAP = {name: each for name, each in {**HOSTILE_FILES, **HOSTILE_TABLES}.items() if each.is_cheap}


def time_squares() -> float:
    """The seconds of this process that a million squares take, which tells how fast the machine is at the time."""
    began = time.process_time()
    sum(number * number for number in range(1_000_000))
    return time.process_time() - began


# Checks of hints, which the quick tests may run with, take longer for each cell than reading it.
OF_MANY_CELLS = {"rows of 16,384 cells": [pytest.mark.slow]}


@pytest.mark.parametrize(
    "hostile", [pytest.param(each, id=name, marks=OF_MANY_CELLS.get(name, ())) for name, each in CHEAP.items()]
)
def test_a_hostile_file_ends_in_a_sentence_soon(hostile: HostileFile, tmp_path):
    path = hostile.write(tmp_path)
    limit = MAX_SECONDS * max(1.0, time_squares() / SECONDS_OF_SQUARES)
    began = time.process_time()
    with pytest.raises((ValueError, OSError)) as caught:
        hostile.read(path)
    assert time.process_time() - began < limit
    sentence = str(caught.value)
    assert hostile.reason in sentence
    assert sentence.endswith(".") and "\n" not in sentence and len(sentence) < MAX_CHARACTERS
