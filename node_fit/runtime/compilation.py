"""Programs compiled ahead of their first call, once per shape, and a count of compilations."""

import gc
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jaxtyping import PyTree

BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"
RETRIEVED = "/jax/compilation_cache/cache_retrieval_time_sec"


# Linux limits the memory mappings of a process. A program takes hundreds, and XLA crashes when none are left.
MAPPINGS, MOST_MAPPINGS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
CROWDED = 0.5  # share of the mappings above which programs are freed
# Programs that are compiled at the same time: more would need more memory, and a run has few.
AT_ONCE = 2


@dataclass
class Compilations:
    """Numbers of XLA compilations and of programs from JAX's compile cache, and the seconds that both took."""

    count: int = 0
    cached: int = 0
    seconds: float = 0.0


@contextmanager
def counted(into: Compilations):
    """Counts the XLA compilations in a block of code, as JAX reports them, without those of other threads."""
    thread = threading.get_ident()

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if threading.get_ident() != thread:
            return
        if event == RETRIEVED:
            into.cached += 1
            into.count -= 1  # JAX then reports a compilation too
        elif event == BACKEND_COMPILE:
            into.count += 1
            into.seconds += duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield into
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


class Programs:
    """Compiled executables, by what they were compiled for.

    Calling an executable with other shapes, dtypes or placements is an error, never a silent second compilation.
    Programs are traced one after another, and compiled in threads: XLA needs no Python.
    """

    def __init__(self):
        self._executables: dict[Hashable, Future[Callable]] = {}
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="compile")

    def get(self, *program: Any, **options: Any) -> Callable:
        """The executable of `function(static, *arguments)`; call it with `arguments` alone. Arguments as of `begin`.

        **Raises:** what its compilation raises.
        """
        compiled = self.begin(*program, **options)
        try:
            return compiled.result()
        except Exception:
            self._executables = {key: each for key, each in self._executables.items() if each is not compiled}
            raise

    def begin(
        self,
        function: Callable,
        static: PyTree,
        arguments: tuple[PyTree, ...],
        count: Compilations,
        check: Callable[[PyTree], None] = lambda result: None,
        axes: tuple[int | None, ...] | None = None,
    ) -> Future[Callable]:
        """Begins to compile `function(static, *arguments)`, and goes on at once.

        **Arguments:**

        - `function`: a pure function, defined once in a module, since its identity is part of the key.
        - `static`: a pytree of hashable leaves that are not arrays.
        - `arguments`: pytrees of committed arrays.
        - `count`: counts the compilation, if there is one.
        - `check`: called with the shapes and dtypes of the result before the compilation; may raise.
        - `axes`: for each argument the axis over which the function is mapped, as `in_axes` of `jax.vmap`; not mapped
          if absent.
        """
        key = (function, fingerprint(static), signature(arguments), axes)
        if key not in self._executables:
            if mappings() > CROWDED:
                self.forget()

            def program(*dynamic: PyTree) -> PyTree:
                return function(static, *dynamic)

            program.__name__ = function.__name__  # the name in JAX's log and cache
            traced = jax.jit(program if axes is None else jax.vmap(program, in_axes=axes)).trace(*arguments)
            check(traced.out_info)
            lowered = traced.lower()

            def compiled() -> Callable:
                with counted(count):
                    return lowered.compile()

            self._executables[key] = self._threads.submit(compiled)
        return self._executables[key]

    def forget(self) -> None:
        """Frees all programs that are not in use, including JAX's own; they are compiled again when needed."""
        wait(self._executables.values())
        self._executables.clear()
        jax.clear_caches()
        gc.collect()


def mappings() -> float:
    """The share of its memory mappings that the process uses; 0 if the system does not report it."""
    try:
        with open(MAPPINGS, "rb") as lines:
            return sum(1 for _ in lines) / int(MOST_MAPPINGS.read_text())
    except (OSError, ValueError):
        return 0.0


def fingerprint(static: PyTree) -> Hashable:
    leaves, structure = jax.tree.flatten(static)
    return structure, tuple(leaves)


def signature(arguments: PyTree) -> Hashable:
    """Structure, and each leaf's shape, dtype, weak type and placement."""
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple((jax.typeof(x), x.sharding) for x in leaves), jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]


# One per process, so that the jobs of a sweep share compiled programs.
PROGRAMS = Programs()
