"""Programs compiled ahead of their first call, once for each shape, and a count of the compilations that happened."""

import gc
from collections.abc import Callable, Hashable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
from jaxtyping import PyTree

BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"
RETRIEVED = "/jax/compilation_cache/cache_retrieval_time_sec"


# Linux gives a process so many mappings of memory. A program takes hundreds, and XLA crashes where none is left.
MAPPINGS, MOST_MAPPINGS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
CROWDED = 0.5


@dataclass
class Compilations:
    """How many XLA compilations happened, how many programs came from JAX's compile cache instead, and the seconds
    that both took."""

    count: int = 0
    cached: int = 0
    seconds: float = 0.0


@contextmanager
def counted(into: Compilations):
    """Counts XLA's compilations in a block of code, as JAX itself reports them."""

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == RETRIEVED:
            into.cached += 1
            into.count -= 1  # since what follows is reported as a compilation, too
        elif event == BACKEND_COMPILE:
            into.count += 1
            into.seconds += duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield into
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


class Programs:
    """Executables by what they were compiled for.

    Calling an executable with other shapes, dtypes or placements is an error, never a silent second compilation.
    """

    def __init__(self):
        self._executables: dict[Hashable, Callable] = {}

    def get(
        self,
        function: Callable,
        static: PyTree,
        arguments: tuple[PyTree, ...],
        count: Compilations,
        check: Callable[[PyTree], None] = lambda result: None,
        axes: tuple[int | None, ...] | None = None,
    ) -> Callable:
        """The executable of `function(static, *arguments)`, to be called with `arguments` alone.

        **Arguments:**

        - `function`: pure; defined once in a module, since its identity is part of the key.
        - `static`: a pytree of hashable leaves that are no arrays.
        - `arguments`: pytrees of committed arrays.
        - `count`: where the compilation is counted, if there is one.
        - `check`: is shown the shapes and dtypes of the result before the compilation, and may raise.
        - `axes`: of the arguments that have an axis over which the function is mapped, as `in_axes` of `jax.vmap`.
        """
        key = (function, fingerprint(static), signature(arguments), axes)
        if key not in self._executables:
            if mappings() > CROWDED:
                self.forget()

            def program(*dynamic: PyTree) -> PyTree:
                return function(static, *dynamic)

            program.__name__ = function.__name__  # by which JAX's log and cache call it
            traced = jax.jit(program if axes is None else jax.vmap(program, in_axes=axes)).trace(*arguments)
            check(traced.out_info)
            lowered = traced.lower()
            with counted(count):
                self._executables[key] = lowered.compile()
        return self._executables[key]

    def forget(self) -> None:
        """Frees all programs of the process that nobody holds, JAX's own among them; they are compiled again if they
        are needed again."""
        self._executables.clear()
        jax.clear_caches()
        gc.collect()


def mappings() -> float:
    """The share of the mappings of memory that the process has in use; 0 where nobody says."""
    try:
        with open(MAPPINGS, "rb") as lines:
            return sum(1 for _ in lines) / int(MOST_MAPPINGS.read_text())
    except (OSError, ValueError):
        return 0.0


def fingerprint(static: PyTree) -> Hashable:
    leaves, structure = jax.tree.flatten(static)
    return structure, tuple(leaves)


def signature(arguments: PyTree) -> Hashable:
    """Structure, and each leaf's shape, dtype, weakness of type and placement."""
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple((jax.typeof(x), x.sharding) for x in leaves), jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]


# One for the process, so that the jobs of a sweep share what they compile.
PROGRAMS = Programs()
