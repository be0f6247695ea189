"""Programs compiled ahead of their first call, once per shape, and their cache between processes.

JAX identifies a program by a hash of its code, of the versions of JAX and XLA, of their flags, and of the device. For a
CPU, that includes its kind and its whole instruction set, so machines can share a folder.
"""

import functools
import gc
import logging
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal, TextIO, TypeVar, cast

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"
RETRIEVED = "/jax/compilation_cache/cache_retrieval_time_sec"


# Linux limits the memory mappings of a process. A program takes hundreds, and XLA crashes when none are left.
MAPPINGS, MOST_MAPPINGS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
# A compiled program, called with arrays only.
Executable = Callable[..., PyTree]
CROWDED = 0.5  # share of the mappings above which programs are freed
# Maximum number of simultaneous compilations: more would need more memory, and a run has few programs.
AT_ONCE = 2
# Options of `jax.jit`.
CompilerOptions = dict[str, str | bool]
# XLA takes twice as long to compile fused kernels of many small sums, which save nothing.
WITHOUT_FUSION_EMITTERS: CompilerOptions | None = (
    {"xla_cpu_use_fusion_emitters": False} if version("jaxlib").startswith("0.10.") else None
)
# A third of the compile time, but two to three times the run time.
UNOPTIMISED: CompilerOptions = {"xla_backend_optimization_level": "0", **(WITHOUT_FUSION_EMITTERS or {})}
# Number of inputs below which compiling a program takes longer than running it a few times, and below which fusion does
# not pay; each row and state contributes about half a dozen. Fused kernels did not speed up training steps below 1,000
# inputs, and did by a quarter at 5,000.
FEW, FEW_TO_FUSE = 20_000, 2_000


def options_for(numbers: int, repeats: int = 1) -> CompilerOptions | None:
    """Returns the compiler options of a program; a small one is not optimised.

    **Arguments:**

    - `numbers`: how many numbers it reads, except those of a model.
    - `repeats`: number of passes over all of them, in units of one prediction with its few calls.
    """
    if jax.default_backend() != "cpu":
        return None
    if numbers * repeats <= FEW:
        return UNOPTIMISED
    return WITHOUT_FUSION_EMITTERS if numbers <= FEW_TO_FUSE else None


# Set in a short-lived process, such as a command; a session can call a program any number of times.
ENDS_SOON = threading.Event()
Program = TypeVar("Program", bound=Callable[..., PyTree])


def jit_by_size(function: Program) -> Program:
    """Applies `eqx.filter_jit` to a function of a model, with `options_for` in a command."""
    jitted: dict[bool, Callable[..., PyTree]] = {}

    @functools.wraps(function)
    def call(*arguments: PyTree) -> PyTree:
        leaves = [leaf for leaf in jax.tree.leaves(arguments) if eqx.is_array(leaf)]
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return function(*arguments)  # The enclosing program sets the options.
        options = options_for(count_numbers(arguments[1:])) if ENDS_SOON.is_set() else None
        if (few := options is not None) not in jitted:
            jitted[few] = eqx.filter_jit(function, compiler_options=options)  # pyright: ignore
        return jitted[few](*arguments)

    return cast(Program, call)


def count_numbers(arguments: PyTree) -> int:
    """Counts the numbers in all arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(arguments) if eqx.is_array(leaf) or isinstance(leaf, np.ndarray))


@dataclass
class Compilations:
    """Numbers of XLA compilations and of programs from JAX's compile cache, and the seconds that both took."""

    count: int = 0
    cached: int = 0
    seconds: float = 0.0


@contextmanager
def count_calls(into: Compilations):
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
    """Compiled executables by function, static parts and argument signature.

    Calling an executable with other shapes, dtypes or placements is an error, never a silent recompilation.
    Programs are traced one after another, and compiled in threads: XLA needs no Python.
    """

    def __init__(self):
        self._executables: dict[Hashable, Future[Executable]] = {}
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="compile")

    def get(
        self,
        function: Callable[..., PyTree],
        static: PyTree,
        arguments: tuple[PyTree, ...],
        count: Compilations,
        check: Callable[[PyTree], None] = lambda result: None,
        axes: tuple[int | None, ...] | None = None,
        options: CompilerOptions | None = None,
    ) -> Executable:
        """Returns the executable of `function(static, *arguments)`, called with `arguments` only; see `begin`.

        **Raises:** any exception of its compilation.
        """
        compiled = self.begin(function, static, arguments, count, check, axes, options)
        try:
            return compiled.result()
        except Exception:
            self._executables = {key: each for key, each in self._executables.items() if each is not compiled}
            raise

    def begin(
        self,
        function: Callable[..., PyTree],
        static: PyTree,
        arguments: tuple[PyTree, ...],
        count: Compilations,
        check: Callable[[PyTree], None] = lambda result: None,
        axes: tuple[int | None, ...] | None = None,
        options: CompilerOptions | None = None,
    ) -> Future[Executable]:
        """Starts compiling `function(static, *arguments)` in the background.

        **Arguments:**

        - `function`: a pure function, defined once in a module, since its identity is part of the key.
        - `static`: a pytree of hashable leaves that are not arrays.
        - `arguments`: pytrees of committed arrays.
        - `count`: counts the compilation, if any.
        - `check`: called with the shapes and dtypes of the result before the compilation; can raise.
        - `axes`: for each argument the axis over which the function is mapped, as `in_axes` of `jax.vmap`; not mapped
          if absent.
        - `options`: compiler options, as from `options_for`.
        """
        key = (function, fingerprint_program(static), signature(arguments), axes, tuple((options or {}).items()))
        if key not in self._executables:
            if mappings() > CROWDED:
                self.forget()

            def program(*dynamic: PyTree) -> PyTree:
                return function(static, *dynamic)

            program.__name__ = function.__name__  # the name in JAX's log and cache
            traced = jax.jit(program if axes is None else jax.vmap(program, in_axes=axes)).trace(*arguments)
            check(traced.out_info)
            lowered = traced.lower()

            def compile_program() -> Executable:
                with count_calls(count):
                    return lowered.compile(options)

            self._executables[key] = self._threads.submit(compile_program)
        return self._executables[key]

    def forget(self) -> None:
        """Frees all unused programs, including JAX's own; they are compiled again when needed."""
        wait(self._executables.values())
        self._executables.clear()
        jax.clear_caches()
        gc.collect()


def mappings() -> float:
    """Returns the share of its memory mappings that the process uses; 0 if the system does not report it."""
    try:
        with open(MAPPINGS, "rb") as lines:
            return sum(1 for _ in lines) / int(MOST_MAPPINGS.read_text())
    except (OSError, ValueError):
        return 0.0


def fingerprint_program(static: PyTree) -> Hashable:
    leaves, structure = jax.tree.flatten(static)
    return structure, tuple(leaves)


def signature(arguments: PyTree) -> Hashable:
    """Returns the structure, and each leaf's shape, dtype, weak type and placement."""
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple((jax.typeof(x), x.sharding) for x in leaves), jax.config.jax_enable_x64


# One per process, so that the jobs of a sweep share compiled programs.
PROGRAMS = Programs()


CACHE_LOG = logging.getLogger(__name__)

# Maximum cache size, enough for about ten thousand programs [bytes].
LARGEST_CACHE = 2 << 30
# Name of node_fit's subfolder in the user's folder: files are removed there and nowhere else.
OURS = "node_fit-programs"
# Suffixes of JAX's cache files.
ENTRIES = ("-cache", "-atime")
CACHE_WARNING = re.compile(r"Error (reading|writing) persistent compilation cache entry for '(.*?)': (.*)", re.DOTALL)


def keep_programs(setting: str | Literal[False]) -> None:
    """Enables JAX's persistent compilation cache in a folder, and marks the process as a command.

    Call it before anything is compiled. JAX's own settings in the environment take precedence. An unusable folder
    causes a warning and never fails the run.

    **Arguments:**

    - `setting`: `auto` for `JAX_COMPILATION_CACHE_DIR` or, if that is not set, the user's cache folder; a folder, in
      which a subfolder is created; or False for none.
    """
    ENDS_SOON.set()
    if not isinstance(setting, str):
        return jax.config.update("jax_enable_compilation_cache", False)
    if not jax.config.jax_enable_compilation_cache:
        return
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # A small program takes fifteen times as long to compile as to load, and a run has many of them.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if setting == "auto" and jax.config.jax_compilation_cache_dir is not None:
        return
    try:
        folder = user_folder() if setting == "auto" else Path(setting).expanduser().absolute() / OURS
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"room")
        prune(folder, LARGEST_CACHE)
    except (OSError, RuntimeError) as error:
        CACHE_LOG.warning(
            "compiled programs are not kept (%s); set compile_cache to another folder, or to false", error
        )
        jax.config.update("jax_enable_compilation_cache", False)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    drop_broken_entries(folder)


def user_folder() -> Path:
    """Returns the user's cache folder for programs, following the XDG Base Directory Specification."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "node_fit" / "programs"


def prune(folder: Path, most: int) -> None:
    """Removes the least recently used programs, and no other file.

    **Arguments:**

    - `folder`: a subfolder of node_fit.
    - `most`: maximum remaining size [bytes].
    """
    with os.scandir(folder) as entries:
        files = [(entry.stat(), entry.path) for entry in entries if is_program(entry)]
    excess = sum(stat.st_size for stat, _ in files) - most
    for stat, path in sorted(files, key=lambda file: max(file[0].st_atime, file[0].st_mtime)):
        if excess <= 0:
            return
        Path(path).unlink(missing_ok=True)  # another process may have removed it first
        excess -= stat.st_size


def is_program(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(ENTRIES) and entry.is_file(follow_symlinks=False)


def drop_broken_entries(folder: Path) -> None:
    """Removes entries that JAX can't read or could not write completely, and would otherwise leave forever."""
    show = warnings.showwarning

    def show_others(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        trouble = CACHE_WARNING.match(str(message))
        if trouble is None:
            return show(message, category, filename, lineno, file, line)
        doing, program, reason = trouble.groups()
        for path in folder.glob(f"{program}-*-cache"):
            try:
                path.unlink(missing_ok=True)
            except OSError:
                CACHE_LOG.debug("%s can't be removed", path)
        if doing == "writing":
            jax.config.update("jax_persistent_cache_min_compile_time_secs", float("inf"))
            CACHE_LOG.warning("compiled programs are no longer kept in %s (%s)", folder, reason)
        return None

    warnings.filterwarnings("always", message="Error (reading|writing) persistent compilation cache")
    warnings.showwarning = show_others
