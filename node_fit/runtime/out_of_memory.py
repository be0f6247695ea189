"""The error message for running out of memory."""

import re

import jax

SIZE = re.compile(r"allocat\w* ([\d.]+) ?(bytes|[KMGTPE]i?B)")
# What the loader and Python say when the system gives no memory or no thread.
OF_SYSTEM = re.compile(r"failed to map segment|cannot allocate memory|can't start new thread", re.IGNORECASE)
BYTE_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def explain_memory(error: Exception) -> str | None:
    """The message for an error that means that memory has run out; None for other errors.

    **Arguments:**

    - `error`: the exception; XLA has its own kind for devices, and NumPy raises `MemoryError`.
    """
    text = str(error)
    if text.startswith("out of memory: "):
        return text
    of_device = isinstance(error, jax.errors.JaxRuntimeError) and text.startswith("RESOURCE_EXHAUSTED")
    of_system = isinstance(error, (ImportError, RuntimeError)) and OF_SYSTEM.search(text)
    if not of_device and not of_system and not isinstance(error, MemoryError):
        return None
    found = SIZE.search(text)
    asked = f": {readable(float(found[1]), found[2])} were requested at once" if found else ""
    return (
        f"out of memory{asked}; lower train.batch_size (with optimizer=adam), train.window or field.width, or fit "
        "fewer trajectories at a time."
    )


def readable(number: float, unit: str) -> str:
    """A size with a suitable prefix."""
    if unit != "bytes":
        return f"{number:g} {unit}"
    power = 0
    while number >= 1000 and power < len(BYTE_UNITS) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.3g} {BYTE_UNITS[power]}"
