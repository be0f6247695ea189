"""Compiled programs are kept, and dropped before the system runs out of memory mappings."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import SMALL, fit_to, rotation

import node_fit as nf
from node_fit.runtime import compilation
from node_fit.runtime.compilation import (
    FEW,
    PROGRAMS,
    UNOPTIMISED,
    WITHOUT_FUSION_EMITTERS,
    Compilations,
    Programs,
    count_calls,
    jit_by_size,
    mappings,
    options_for,
)
from node_fit.runtime.placement import carry
from node_fit.training.programs import StagePrograms

pytestmark = pytest.mark.usefixtures("without_cache")


def doubled(factor, x):
    return factor * x


@pytest.fixture
def x():
    return carry(np.arange(3.0), np.float32)


def test_a_program_is_kept_for_its_arguments(x):
    programs, count = Programs(), Compilations()
    for _ in range(3):
        np.testing.assert_array_equal(programs.get(doubled, 2, (x,), count)(x), [0, 2, 4])
    assert count.count == 1
    programs.get(doubled, 3, (x,), count)
    programs.get(doubled, 2, (x[:2],), count)
    assert count.count == 3


@pytest.mark.slow
def test_programs_are_forgotten_where_there_is_little_room(x, monkeypatch):
    programs, count = Programs(), Compilations()
    held = programs.get(doubled, 2, (x,), count)
    monkeypatch.setattr(compilation, "mappings", lambda: 0.6)
    programs.get(doubled, 3, (x,), count)
    monkeypatch.undo()
    np.testing.assert_array_equal(held(x), [0, 2, 4])  # Programs in use stay.
    programs.get(doubled, 2, (x,), count)
    assert count.count == 3


@pytest.mark.slow
@pytest.mark.skipif(mappings() == 0, reason="the system does not say how many mappings a process has")
def test_forgetting_gives_mappings_back(x):
    programs, count = Programs(), Compilations()
    before = mappings()
    for size in range(1, 41):
        programs.get(lambda factor, x: jnp.sin(x @ x.T).sum() * factor, size, (x[None, :],), count)
    taken = mappings()
    assert count.count == 40 and taken > before
    programs.forget()
    assert mappings() - before < 0.2 * (taken - before)
    assert jax.device_get(programs.get(doubled, 2, (x,), count)(x)).tolist() == [0, 2, 4]


def test_programs_compile_at_the_same_time_and_are_counted_apart(x):
    programs = Programs()
    counts = [Compilations() for _ in range(4)]
    begun = [programs.begin(doubled, factor, (x,), count) for factor, count in enumerate(counts, 2)]
    assert programs.begin(doubled, 2, (x,), Compilations()) is begun[0], "a program that is begun is not begun again"
    for factor, compiled in enumerate(begun, 2):
        np.testing.assert_array_equal(compiled.result()(x), [0, factor, 2 * factor])
    assert [count.count for count in counts] == [1, 1, 1, 1]


def test_what_another_thread_compiles_is_not_counted(x):
    programs, mine, theirs = Programs(), Compilations(), Compilations()
    with count_calls(mine):
        programs.get(doubled, 2, (x,), theirs)
    assert (mine.count, theirs.count) == (0, 1)


def test_a_compilation_that_fails_is_tried_again(x, monkeypatch):
    programs, count = Programs(), Compilations()

    def fails(self, *arguments, **options):
        raise MemoryError("no room")

    monkeypatch.setattr(jax.stages.Lowered, "compile", fails)
    with pytest.raises(MemoryError, match="no room"):
        programs.get(doubled, 2, (x,), count)
    monkeypatch.undo()
    np.testing.assert_array_equal(programs.get(doubled, 2, (x,), count)(x), [0, 2, 4])


@pytest.mark.slow
def test_the_next_stage_is_compiled_while_one_trains(monkeypatch):
    PROGRAMS.forget()  # Another file's test may have made the same fit in this process.
    told = []
    compile = StagePrograms.compile

    def kept(self, states, use=PROGRAMS.get):
        told.append((self.stage.name, use.__name__))
        compile(self, states, use)

    class Tell(nf.Callback):
        def on_stage_start(self, name):
            told.append((name, "trains"))

    monkeypatch.setattr(StagePrograms, "compile", kept)
    fit = fit_to(rotation(), field=SMALL, steps=10, callbacks=[Tell()])
    assert told == [
        ("derivative", "begin"),
        ("derivative", "get"),
        ("derivative", "trains"),
        ("main", "begin"),  # after the first chunk
        ("main", "begin"),
        ("main", "get"),
        ("main", "trains"),
    ]
    assert fit.compiles == 2, "what is compiled ahead is what the stage runs"


@pytest.mark.parametrize(
    ("optimizer", "compiles"),
    [
        pytest.param(nf.LBFGS(memory=3), 0, id="lbfgs"),
        pytest.param(nf.LevenbergMarquardt(tries=3), 0, id="lm", marks=pytest.mark.slow),
        pytest.param(nf.Adam(schedule="constant"), 0, id="constant", marks=pytest.mark.slow),
        pytest.param(nf.Adam(), 1, id="cosine"),
    ],
)
def test_stages_of_any_number_of_steps_share_programs_unless_a_schedule_depends_on_it(optimizer, compiles):
    first, second = (
        fit_to(rotation(), field=SMALL, optimizer=optimizer, recipe="direct", steps=steps) for steps in (3, 4)
    )
    assert second.compiles == compiles
    assert (first.steps, second.steps) == (3, 4)


@pytest.mark.parametrize(
    ("numbers", "repeats", "options"),
    [
        (FEW, 1, UNOPTIMISED),  # a prediction of a small table
        (FEW + 1, 1, None),
        (2_000, 5, UNOPTIMISED),  # some hundred damped steps
        (300, 100, WITHOUT_FUSION_EMITTERS),  # thousands of gradients
        (5_000, 100, None),
    ],
)
def test_little_work_is_compiled_without_making_it_fast(numbers, repeats, options):
    assert options_for(numbers, repeats) == options


@pytest.mark.parametrize("is_command", [True, False])
def test_a_command_compiles_functions_for_the_numbers_they_read_besides_those_of_a_model(is_command, monkeypatch):
    model, given, ends_soon = jnp.ones(FEW + 1), [], threading.Event()
    monkeypatch.setattr(compilation, "ENDS_SOON", ends_soon)
    if is_command:
        ends_soon.set()

    def scale(model, x):
        return x * model[0]

    with pytest.MonkeyPatch.context() as patch:
        plain = compilation.eqx.filter_jit
        patch.setattr(
            compilation.eqx,
            "filter_jit",
            lambda function, compiler_options: given.append(compiler_options) or plain(function),
        )
        sized = jit_by_size(scale)
        for count in (2, FEW + 1, 3):
            np.testing.assert_array_equal(sized(model, np.full(count, 2.0)), np.full(count, 2.0))
    assert given == ([UNOPTIMISED, None] if is_command else [None]), "a session may predict thousands of times"


def test_a_sized_function_becomes_part_of_the_program_that_calls_it():
    sized = jit_by_size(lambda model, x: model * x)
    assert float(jax.jit(lambda x: sized(2.0, x))(3.0)) == 6.0
