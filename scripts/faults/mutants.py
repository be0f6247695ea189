"""Removes guards one at a time, and runs the tests that must notice.

python scripts/faults/mutants.py                   # all, about an hour on two cores
python scripts/faults/mutants.py carry "LM gain"   # those whose names contain one of these
python scripts/faults/mutants.py --quick ladder:     # by quick tests alone

Each mutant is applied to a copy of the tree in a temporary folder. Before, the tests must pass there without one. The
exit code is 1 if a mutant survives, its old text is not in its file exactly once, or its tests can't be run. Those of
pages need Chromium and its driver.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".pytest_cache", ".ruff_cache", "outputs", "multirun")
# Seconds that a mutant's tests may take. A program that no longer ends has been noticed.
LONGEST = 600
PASSED, FAILED = 0, 1


@dataclass(frozen=True)
class Mutant:
    """A guard's removal: in `file`, `old` becomes `new`; one of `tests` (pytest's names) must then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


TRAINING, OPTIMIZERS, TEMPLATES = "node_fit/training", "node_fit/optimizers", "node_fit/report/templates"
OPTIMUM, RULES = ("tests/fitting/test_optimum.py",), ("tests/fitting/test_ladder_rules.py",)
ENDS, MARCHES = ("tests/evaluation/test_ends.py",), ("tests/solver/test_recurrence.py",)
MUTANTS = (
    Mutant(
        "recurrence: steps that are not settled",
        "node_fit/solver/recurrence.py",
        "march_on(step, y0, xs, found.ys, first_unsettled(found.settled))",
        "found.ys",
        MARCHES,
    ),
    Mutant(
        "recurrence: rounding as the end",
        "node_fit/solver/recurrence.py",
        "(foretold <= spacing)",
        "(foretold <= 1e-6)",
        MARCHES,
    ),
    Mutant(
        "recurrence: one correction foretells nothing",
        "node_fit/solver/recurrence.py",
        "jnp.where(at.number > 0, moves * (moves / at.moves) ** 2, jnp.inf)",
        "moves * (moves / at.moves) ** 2",
        MARCHES,
    ),
    Mutant(
        "recurrence: members wait for each other",
        "node_fit/solver/recurrence.py",
        "first_unsettled(settled.all(axis=0))",
        "first_unsettled(settled.any(axis=0))",
        MARCHES,
    ),
    Mutant(
        "recurrence: the rest of a block",
        "node_fit/solver/recurrence.py",
        "rest = count - blocks * size",
        "rest = size",
        MARCHES,
    ),
    Mutant(
        "recurrence: few trajectories of few states alone",
        "node_fit/solver/solver.py",
        'self.march == "parallel" or few\n',
        "True\n",
        MARCHES,
    ),
    Mutant(
        "placement: full float32 on a GPU",
        "node_fit/runtime/placement.py",
        'if device is not None and device.platform != "cpu":',
        "if False:",
        MARCHES,
    ),
    Mutant(
        "carry: the loop's check",
        f"{TRAINING}/programs.py",
        "            check_carry(state, out[0])\n",
        "            pass\n",
        ("tests/training/test_pitfalls.py::test_a_fit_refuses_a_chunk_that_changes_its_carry",),
    ),
    Mutant(
        "carry: dtypes and shapes",
        f"{TRAINING}/step.py",
        "    if changes:\n",
        "    if False:\n",
        ("tests/training/test_pitfalls.py::test_a_changing_carry_is_refused_by_name",),
    ),
    Mutant(
        "committed leaves",
        "node_fit/runtime/placement.py",
        "jax.device_put(eqx.filter(copied, is_array), device or default_device())",
        "jax.tree.map(jnp.asarray, eqx.filter(copied, is_array))",
        ("tests/runtime/test_precision.py::test_leaves_are_strong_and_committed",),
    ),
    Mutant(
        "dtype: leaves are cast",
        "node_fit/runtime/placement.py",
        "dtype=dtype if jnp.issubdtype(x.dtype, jnp.floating) else x.dtype",
        "dtype=x.dtype",
        ("tests/runtime/test_precision.py",),
    ),
    Mutant(
        "dtype: mixed leaves",
        "node_fit/runtime/placement.py",
        "    if len(kinds) > 1:\n",
        "    if False:\n",
        ("tests/training/test_pitfalls.py::test_mixed_dtypes_are_refused_by_name",),
    ),
    Mutant(
        "digest",
        "node_fit/storage/files.py",
        "    if expected != digest(content, arrays):\n",
        "    if False:\n",
        ("tests/storage/test_model_file.py::test_a_flipped_bit",),
    ),
    Mutant(
        "rename",
        "node_fit/storage/files.py",
        "        os.replace(temporary, path)\n",
        "        path.write_bytes(content)\n        os.unlink(temporary)\n",
        ("tests/storage/test_files.py",),
    ),
    Mutant(
        "non-finite steps",
        f"{OPTIMIZERS}/optimizer.py",
        "sound = jnp.isfinite(value.value) & jnp.isfinite(norm)",
        "sound = jnp.ones((), bool)",
        ("tests/optimizers/test_optimizers.py::test_a_step_that_is_not_finite_is_rejected",),
    ),
    Mutant(
        "best iterate",
        f"{TRAINING}/decisions.py",
        "best=replace(after.chosen, loss=judged_loss) if better else before.best",
        "best=replace(after.chosen, loss=judged_loss)",
        ("tests/training/test_training.py::test_the_best_parameters_have_the_best_loss",),
    ),
    Mutant(
        "best iterate: the last step",
        f"{TRAINING}/programs.py",
        "        new = self._to_the_last(new, run, drawn)\n",
        "",
        ("tests/training/test_judging.py::test_the_last_step_of_minibatches_counts",),
    ),
    Mutant(
        "best iterate: the same sample",
        f"{TRAINING}/programs.py",
        "if sampled is not None:",
        "if False:",
        ("tests/training/test_judging.py::test_on_minibatches_the_best_is_judged_on_the_same_data",),
    ),
    Mutant(
        "prior on minibatches",
        "node_fit/objectives/objective.py",
        "weights * target.share",
        "weights",
        ("tests/training/test_judging.py::test_a_prior_weighs_as_much_on_minibatches",),
    ),
    Mutant(
        "splits: training rows by time",
        "node_fit/data/dataset.py",
        "return Splits(data.until(fitted), validation, test)",
        "return Splits(data, validation, test)",
        (
            "tests/data/test_splits.py::test_every_row_is_scored_in_exactly_one_part",
            "tests/data/test_splits.py::test_a_forecast_is_simulated_from_the_start_of_the_record",
        ),
    ),
    Mutant(
        "splits: trajectories drawn once",
        "node_fit/data/dataset.py",
        "            validation, free = free[:size], free[size:]\n",
        "            validation = free[:size]\n",
        ("tests/data/test_splits.py::test_by_trajectory_whole_trajectories_are_drawn",),
    ),
    Mutant(
        "scaler: training rows alone",
        "node_fit/data/scaling.py",
        "states = np.where(data.mask, scaler.scale_states(data.ys), np.nan)",
        "states = scaler.scale_states(data.ys)",
        ("tests/data/test_scaling.py::test_what_does_not_count_has_no_say",),
    ),
    Mutant(
        "scaler: not trained",
        "node_fit/model/parameters.py",
        "fixed = [*freeze, *(name(path) for path, _ in parameter_nodes(model, Scaler))]",
        "fixed = [*freeze]",
        ("tests/model/test_parameters.py",),
    ),
    Mutant(
        "model files: packages of classes",
        "node_fit/storage/model_file.py",
        "    check_package(name, (NETWORKS, *packages))\n    try:\n        cls",
        "    try:\n        cls",
        ("tests/storage/test_model_file.py::test_no_module_is_imported_because_a_file_says_so",),
    ),
    Mutant(
        "model files: model classes alone",
        "node_fit/storage/model_file.py",
        "    if not (isinstance(cls, type) and issubclass(cls, eqx.Module)) or name_stored(cls) != name:\n",
        "    if False:\n",
        ("tests/storage/test_model_file.py::test_what_is_no_model_class_is_no_class_of_a_file",),
    ),
    Mutant(
        "targets: allowed packages",
        "node_fit/app/config/composition.py",
        "if path not in known:",
        "if False:",
        ("tests/app/test_configuration.py::test_targets_outside_the_allowed_packages_are_refused",),
    ),
    Mutant(
        "curvature",
        f"{OPTIMIZERS}/gradient.py",
        "curved = settled & (way @ change > 0)",
        "curved = settled",
        ("tests/optimizers/test_line_search.py::test_memory_holds_no_pair_of_negative_curvature",),
    ),
    Mutant(
        "descent",
        f"{OPTIMIZERS}/gradient.py",
        "sound = (ascent @ gradient > 0) & jnp.isfinite(ascent).all()",
        "sound = jnp.isfinite(ascent).all()",
        (
            "tests/optimizers/test_line_search.py::test_an_ascent_direction_gives_way_to_the_gradient",
            "tests/optimizers/test_line_search.py::test_every_line_goes_downhill",
        ),
    ),
    Mutant(
        "LM gain ratio",
        f"{OPTIMIZERS}/levenberg_marquardt.py",
        "taken = jnp.isfinite(total) & (gain > SUFFICIENT)",
        "taken = jnp.isfinite(total)",
        ("tests/optimizers/test_levenberg_marquardt.py::test_no_step_goes_uphill",),
    ),
    Mutant(
        "events in padding",
        "node_fit/solver/problem.py",
        "jnp.where((self.end > self.begin)[:, None], self.jumps.after(y), y)",
        "self.jumps.after(y)",
        ("tests/data/test_events.py::test_an_event_in_the_last_row_happens_once",),
    ),
    Mutant(
        "events in predictions",
        "node_fit/solver/row_by_row.py",
        "y, watch, sound = interval.begun(front.y), front.watch, front.sound",
        "y, watch, sound = front.y, front.watch, front.sound",
        ("tests/data/test_events.py::test_predictions_jump_where_the_doses_are",),
    ),
    Mutant(
        "implicit: the first step",
        "node_fit/solver/row_by_row.py",
        "chosen = jnp.where(end - t0 > least, end - t0, least)",
        "chosen = t1 - t0",
        ("tests/solver/test_stiff.py::test_easy_stiff_data_are_solved[kvaerno5-solve-0-x64]",),
    ),
    Mutant(
        "implicit: the first step after a jump",
        "node_fit/solver/row_by_row.py",
        "jnp.where((before == after).all(axis=1), step, 0)",
        "step",
        ("tests/solver/test_stiff.py::test_the_first_step_is_chosen_again_where_states_jump",),
    ),
    Mutant(
        "implicit: the first step after a row",
        "node_fit/solver/row_by_row.py",
        "jnp.where((before == after).all(axis=1), step, 0)",
        "jnp.zeros_like(step)",
        ("tests/solver/test_stiff.py::test_easy_stiff_data_are_solved[kvaerno5-forecast-1-x64]",),
    ),
    Mutant(
        "implicit: steps that are not finite",
        "node_fit/solver/row_by_row.py",
        "finite = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(y1_candidate)]).all()",
        "finite = jnp.ones((), bool)",
        ("tests/solver/test_stiff.py::test_a_step_to_states_that_are_not_finite_is_rejected",),
    ),
    Mutant(
        "implicit: derivatives that are not finite",
        "node_fit/solver/row_by_row.py",
        "sound = jnp.isfinite(value).all()",
        "sound = jnp.ones((), bool)",
        (
            "tests/solver/test_stiff.py::test_a_step_out_of_the_domain_of_a_field_is_rejected_and_its_gradient_is_finite",
        ),
    ),
    Mutant(
        "implicit: roots that fail",
        "node_fit/solver/row_by_row.py",
        "jnp.where(result == RESULTS.successful, x, 0)",
        "x",
        ("tests/solver/test_stiff.py",),
    ),
    Mutant(
        "implicit: roots in single precision",
        "node_fit/solver/row_by_row.py",
        "jnp.maximum(self.atol, least)",
        "self.atol",
        ("tests/solver/test_stiff.py::test_easy_stiff_data_are_solved[kvaerno5-forecast-0-x32]",),
    ),
    Mutant(
        "events in the data's fingerprint",
        "node_fit/app/run_directory.py",
        "events = () if data.events is None else (data.events.factor, data.events.shift)",
        "events = ()",
        ("tests/data/test_events.py::test_another_dose_is_other_data",),
    ),
    Mutant(
        "triggers: zero itself counts",
        "node_fit/solver/triggers.py",
        "due, zero = watch.armed & (self.levels(t, y) <= 0)",
        "due, zero = watch.armed & (self.levels(t, y) < 0)",
        ("tests/solver/test_triggers.py::test_a_dose_carries_a_level_through_zero",),
    ),
    Mutant(
        "triggers: armed at the start beyond zero alone",
        "node_fit/solver/triggers.py",
        "return TriggerWatch(look.level > look.clear, at_zero",
        "return TriggerWatch(look.level >= 0, at_zero",
        ("tests/solver/test_triggers.py::test_a_level_that_is_zero_at_the_start_acts_when_it_has_been_away",),
    ),
    Mutant(
        "triggers: what has acted is disarmed",
        "node_fit/solver/triggers.py",
        "armed = (armed & ~due) | (jnp",
        "armed = armed | (jnp",
        ("tests/solver/test_triggers.py::test_triggers_of_one_instant_act_in_their_order",),
    ),
    Mutant(
        "triggers: armed again",
        "node_fit/solver/triggers.py",
        "armed = watch.armed | (look.level > look.clear)",
        "armed = watch.armed",
        ("tests/solver/test_triggers.py::test_an_event_is_counted_once",),
    ),
    Mutant(
        "triggers: armed when clearly away",
        "node_fit/solver/triggers.py",
        "armed = watch.armed | (look.level > look.clear)",
        "armed = watch.armed | (look.level > -look.clear)",
        ("tests/solver/test_triggers.py::test_an_event_is_counted_once",),
    ),
    Mutant(
        "triggers: the order written",
        "node_fit/solver/triggers.py",
        "for which in range(due.shape[1]):",
        "for which in reversed(range(due.shape[1])):",
        ("tests/solver/test_triggers.py::test_triggers_of_one_instant_act_in_their_order",),
    ),
    Mutant(
        "triggers: cascades",
        "node_fit/solver/triggers.py",
        "MOST_CASCADES = 8\n",
        "MOST_CASCADES = 1\n",
        ("tests/solver/test_triggers.py::test_triggers_of_one_instant_act_in_their_order",),
    ),
    Mutant(
        "triggers: without end",
        "node_fit/solver/triggers.py",
        "watch.endless | due.any(axis=1))",
        "watch.endless)",
        ("tests/solver/test_triggers.py::test_triggers_that_set_each_other_off_without_end_are_a_failure",),
    ),
    Mutant(
        "triggers: dips within a step",
        "node_fit/solver/triggers.py",
        "falls = (ready & below) | (dips & ~above)",
        "falls = ready & below",
        ("tests/solver/test_triggers.py::test_an_event_is_counted_once",),
    ),
    Mutant(
        "triggers: what leaves zero",
        "node_fit/solver/triggers.py",
        "ready, below = (watch.armed | watch.leaving)",
        "ready, below = watch.armed",
        ("tests/solver/test_triggers.py::test_a_level_that_is_zero_at_the_start_acts_when_it_has_been_away",),
    ),
    Mutant(
        "triggers: rows that fill up",
        "node_fit/solver/triggers.py",
        " & (h > 0)[:, None], last",
        " , last",
        ("tests/solver/test_triggers.py::test_rows_that_fill_up_a_trajectory_hold_no_event",),
    ),
    Mutant(
        "triggers: the sign before a jump, in predictions",
        "node_fit/solver/row_by_row.py",
        "        y, watch = triggers.settle(interval.begin, y, watch, length > 0)\n",
        "",
        ("tests/solver/test_triggers.py::test_a_dose_carries_a_level_through_zero",),
    ),
    Mutant(
        "triggers: the sign before a jump, over held steps",
        "node_fit/solver/held_rows.py",
        "                y, watch = triggers.settle(t, y, watch, interval.end > interval.begin)\n",
        "                pass\n",
        ("tests/solver/test_triggers.py::test_a_dose_carries_a_level_through_zero",),
    ),
    Mutant(
        "conformal count",
        "node_fit/model/ensemble.py",
        "math.ceil((scores.size + 1) * p)",
        "math.ceil((ordered.size + 1) * p)",
        ("tests/model/test_ensemble.py::test_scores_that_are_not_finite_count",),
    ),
    Mutant(
        "few validation data",
        "node_fit/fitting/selection.py",
        "    if flattered <= held:\n",
        "    if True:\n",
        ("tests/training/test_judging.py::test_few_validation_data_do_not_favour_a_model_that_misses_training_data",),
    ),
    Mutant(
        "a constant under a strong prior",
        "node_fit/uncertainty/linearization.py",
        "return widening if redrawn is None else",
        "return widening if True else",
        ("tests/uncertainty/test_confidence.py::test_a_constant_that_only_the_prior_determines_is_said",),
    ),
    Mutant(
        "noise of held-out rows",
        "node_fit/evaluation/case.py",
        " or any(self.errors[name] != 0 for name in self.held):",
        ":",
        ("tests/evaluation/test_diagnosis.py::test_errors_held_out_that_exceed_the_noise_are_no_noise",),
    ),
    Mutant(
        "starts: a hidden state's is ignored",
        "node_fit/model/initial_state/rule.py",
        "return jnp.concatenate([measured, jnp.tile(absent[:, count:], (rows, 1))], axis=1)",
        "return jnp.concatenate([measured, jnp.zeros_like(jnp.tile(absent[:, count:], (rows, 1)))], axis=1)",
        ("tests/model/test_hidden_states.py::test_a_known_start_of_a_hidden_state_is_where_it_starts",),
    ),
    Mutant(
        "starts: in the order of their names in the option",
        "node_fit/model/initial_state/rule.py",
        "for at, name in enumerate(system.states):\n            value, bounds",
        "for at, name in enumerate([*given, *(each for each in system.states if each not in given)]):\n"
        "            value, bounds",
        ("tests/model/test_hidden_states.py::test_each_known_start_is_that_of_its_state_and_the_others_are_trained",),
    ),
    Mutant(
        "starts: trained all the same",
        "node_fit/model/initial_state/rule.py",
        "if at >= self.measured and not told)",
        "if at >= self.measured)",
        ("tests/model/test_hidden_states.py::test_a_known_start_of_a_hidden_state_is_where_it_starts",),
    ),
    Mutant(
        "starts: fitted all the same",
        "node_fit/model/initial_state/trained.py",
        "return self.guess.shows(batch) | ~jnp.array(self.guess.told)[None]",
        "return self.guess.shows(batch) | True",
        ("tests/model/test_hidden_states.py::test_a_known_start_of_a_hidden_state_is_where_it_starts",),
    ),
    Mutant(
        "starts: not frozen",
        "node_fit/model/parameters.py",
        "fixed = [*freeze, *(name(path) for path, _ in parameter_nodes(model, Scaler))]",
        "fixed = [*(name(path) for path, _ in parameter_nodes(model, Scaler))]",
        ("tests/model/test_hidden_states.py::test_each_known_start_is_that_of_its_state_and_the_others_are_trained",),
    ),
    Mutant(
        "starts: outside of a state's bounds",
        "node_fit/model/initial_state/rule.py",
        "            if name in lacking:\n",
        "            if False:\n",
        ("tests/model/test_hidden_states.py::test_a_known_start_that_can_t_be_is_refused",),
    ),
    Mutant(
        "starts: windows of a trajectory's start",
        "node_fit/model/initial_state/rule.py",
        "return not self.guess.knows_hidden",
        "return True",
        ("tests/model/test_hidden_states.py::test_a_window_refuses_the_known_start_of_a_hidden_state",),
    ),
    Mutant(
        "starts: a hidden one in older model files",
        "node_fit/storage/files.py",
        "value if told and at < count else None",
        "value if told else None",
        ("tests/storage/test_golden.py::test_a_start_that_was_given_for_states_that_are_absent_is_still_theirs",),
    ),
    Mutant(
        "hidden=auto: threads in the first search",
        "node_fit/sysid/linear_model.py",
        '    importlib.import_module("scipy.linalg")\n',
        "",
        ("tests/sysid/test_linear_model.py::test_the_search_has_one_thread_in_every_blas_from_its_first_product",),
    ),
    Mutant(
        "hidden=auto: the best and not the fewest",
        "node_fit/sysid/linear_model.py",
        "limit = min(model.judged for model in models) * (1 + worth)",
        "limit = min(model.judged for model in models)",
        ("tests/sysid/test_linear_model.py",),
    ),
    Mutant(
        "hidden=auto: one more that does not help ends the search",
        "node_fit/sysid/linear_model.py",
        "WORTH, TRIES = 0.03, 2",
        "WORTH, TRIES = 0.03, 1",
        ("tests/sysid/test_linear_model.py",),
    ),
    Mutant(
        "hidden=auto: judged on the data that are fitted",
        "node_fit/sysid/linear_model.py",
        "crossed = cross_validate(found, record)",
        "crossed = nrmse_on(found, record)",
        ("tests/sysid/test_linear_model.py",),
    ),
    Mutant(
        "hidden=auto: constants do not compete",
        "node_fit/sysid/linear_model.py",
        "candidates = [found, *(constant_systems(record, us.shape[2]) if count == 0 else [])]",
        "candidates = [found]",
        ("tests/sysid/test_linear_model.py",),
    ),
    Mutant(
        "weights of integers in a model file",
        "node_fit/storage/model_file.py",
        "if isinstance(leaf, Array) and not jnp.issubdtype(leaf.dtype, jnp.floating):",
        "if False:",
        ("tests/faults/test_hostile_models.py",),
    ),
    Mutant(
        "classes of a script in a model file",
        "node_fit/storage/model_file.py",
        "        check_importable(type(part), name)\n",
        "",
        ("tests/storage/test_model_file.py::test_a_class_that_no_other_process_can_import_is_refused",),
    ),
    Mutant(
        "extensions that a run names for its page",
        "node_fit/report/pages.py",
        'find_field(folder / "model.safetensors", predictions, extensions)',
        'find_field(folder / "model.safetensors", predictions, config.get("extensions") or [])',
        ("tests/app/test_trust.py::test_a_page_imports_nothing_that_a_run_directory_names",),
    ),
    Mutant(
        "text that a Parquet file holds once for many rows",
        "node_fit/data/tables/formats.py",
        "if longest > LONGEST_TEXT:",
        "if False:",
        ("tests/faults/test_absurd_tables.py::test_a_text_that_a_file_holds_once_for_many_rows_is_not_unpacked",),
    ),
    Mutant(
        "derived: directions that the data do not determine",
        "node_fit/uncertainty/derived.py",
        "    return not change(lost) <= MOVED * change(",
        "    return False and MOVED * change(",
        ("tests/uncertainty/test_derived_range.py::test_what_the_data_leave_open_has_no_ends",),
    ),
    Mutant(
        "derived: poles within the interval",
        "node_fit/uncertainty/derived.py",
        "if abs(later) > abs(earlier) / 2:",
        "if False:",
        ("tests/uncertainty/test_derived_range.py::test_a_quantity_of_one_constant_has_the_range_of_its_interval",),
    ),
    Mutant(
        "derived: the second order at an extreme",
        "node_fit/uncertainty/derived.py",
        " + (bend**2).sum() / 2)",
        ")",
        ("tests/uncertainty/test_derived_range.py::test_a_square_at_its_minimum_has_the_interval_of_its_root",),
    ),
    Mutant(
        "derived: a logarithm where it may be negative",
        "node_fit/model/fields/known.py",
        'case Application("+" | "*" | "/" |',
        'case Application("+" | "-" | "*" | "/" |',
        ("tests/model/test_derived.py::test_what_can_t_be_negative_is_known_by_its_form",),
    ),
    Mutant(
        "bands: the noise without its degrees of freedom",
        "node_fit/uncertainty/linearization.py",
        "own @ (1 - self.leverages)",
        "own @ (1 - 0 * self.leverages)",
        ("tests/uncertainty/test_linearization.py::test_the_noise_has_its_degrees_of_freedom",),
    ),
    Mutant(
        "bands: pairs of draws with a covariance of their own",
        "node_fit/uncertainty/linearization.py",
        "* np.linalg.qr(numbers)[0] if 0 < count <= size else numbers",
        "* numbers / math.sqrt(size)",
        ("tests/uncertainty/test_linearization.py::test_pairs_of_draws_have_the_covariance_of_the_parameters",),
    ),
    Mutant(
        "bands: normal quantiles",
        "node_fit/model/ensemble.py",
        "stdtrit(freedom, tails)",
        "ndtri(tails)",
        ("tests/uncertainty/test_linearization.py::test_factors_are_those_of_student_s_t",),
    ),
    Mutant(
        "bands: starts without an error",
        "node_fit/model/ensemble.py",
        "        if self.center is None or not self.typical.start.is_fitted:",
        "        if True:",
        ("tests/uncertainty/test_linearization.py::test_the_start_is_as_uncertain_as_the_rows_that_it_is_fitted_to",),
    ),
    Mutant(
        "bands: a start that is stated has an error",
        "node_fit/model/ensemble.py",
        "known & known[:, 1:].any(axis=(1, 2), keepdims=True)",
        "known",
        ("tests/uncertainty/test_linearization.py::test_bands_are_of_students_t_and_a_start_that_is_stated_is_sure",),
    ),
    Mutant(
        "a difference near zero",
        "node_fit/uncertainty/linearization.py",
        "np.where(acts, np.maximum(self.magnitudes, moves), self.magnitudes)",
        "self.magnitudes",
        ("tests/uncertainty/test_linearization.py::test_a_difference_near_zero_is_determined",),
    ),
    Mutant(
        "names that differ by blanks",
        "node_fit/data/tables/table.py",
        "            if other != value:",
        "            if False:",
        ("tests/data/test_tables.py::test_names_that_differ_by_blanks_are_not_merged",),
    ),
    Mutant(
        "dates as numbers: counts",
        "node_fit/data/tables/times.py",
        "bool((steps != counted).any())",
        "True",
        ("tests/data/test_tables.py::test_numbers_that_are_no_dates_stay_numbers",),
    ),
    Mutant(
        "Lyapunov time of coarse rows",
        "node_fit/evaluation/chaos.py",
        "min(longest, LONGEST_ANGLE / fastest)",
        "min(longest, longest * fastest)",
        ("tests/evaluation/test_chaos.py::test_the_growth_of_errors_does_not_depend_on_how_far_rows_are_apart",),
    ),
    Mutant(
        "intervals: the level on one side",
        "node_fit/uncertainty/confidence.py",
        "    tail = (1 + level) / 2",
        "    tail = level",
        ("tests/uncertainty/test_linearization.py::test_a_straight_line_has_the_interval_of_linear_regression",),
    ),
    Mutant(
        "intervals: no end beyond a factor",
        "node_fit/uncertainty/confidence.py",
        "(unbounded or abs(z - middle) < ENDLESS)",
        "True",
        ("tests/uncertainty/test_linearization.py::test_an_interval_that_reaches_too_far_ends_at_the_bound",),
    ),
    Mutant(
        "profile: the threshold",
        "node_fit/uncertainty/confidence.py",
        "rise = math.sqrt(max(there.value - best.value, 0.0) / self.variance)",
        "rise = math.sqrt(max(there.value - best.value, 0.0))",
        ("tests/uncertainty/test_linearization.py::test_the_profile_of_a_straight_line_is_its_interval",),
    ),
    Mutant(
        "likelihood: the noise is a parameter",
        "node_fit/uncertainty/likelihood.py",
        "free = information.parameters + (not given)",
        "free = information.parameters",
        ("tests/uncertainty/test_linearization.py::test_the_likelihood_is_that_of_normal_residuals",),
    ),
    Mutant(
        "likelihood: the effective number of parameters",
        "node_fit/uncertainty/linearization.py",
        "return float(self.leverages.sum())",
        "return float(len(self.leverages))",
        ("tests/uncertainty/test_linearization.py::test_a_prior_counts_as_part_of_a_parameter",),
    ),
    Mutant(
        "a stage that had ended",
        f"{TRAINING}/loop.py",
        "if any(end is None for end in self.outcomes(run)):",
        "if True:",
        ("tests/storage/test_golden.py::test_a_run_that_had_ended_says_so",),
    ),
    Mutant(
        "page: texts are escaped",
        "node_fit/report/page.py",
        "autoescape=True",
        "autoescape=False",
        ("tests/report/test_report.py::test_nothing_is_loaded_and_names_are_texts",),
    ),
    Mutant(
        "page: data beside a script",
        "node_fit/report/page.py",
        'data=squeeze(json.dumps(data, allow_nan=False, separators=(",", ":")).encode())',
        'data=__import__("markupsafe").Markup(json.dumps(data))',
        ("tests/report/test_report.py::test_nothing_is_loaded_and_names_are_texts",),
    ),
    Mutant(
        "page: content security policy",
        f"{TEMPLATES}/base.html",
        "default-src 'none'; ",
        "",
        ("tests/report/test_report.py::test_nothing_is_loaded_and_names_are_texts",),
    ),
    Mutant(
        "page: less-than in pictures",
        f"{TEMPLATES}/charts.js",
        '.replace(/</g, "&lt;")',
        "",
        ("tests/report/test_browser.py::test_all_texts_are_shown_as_they_are",),
    ),
    Mutant(
        "page: ampersands in pictures",
        f"{TEMPLATES}/charts.js",
        '.replace(/&/g, "&amp;")',
        "",
        ("tests/report/test_browser.py::test_all_texts_are_shown_as_they_are",),
    ),
    Mutant(
        "page: texts of events",
        f"{TEMPLATES}/run.js",
        "record.events.map(([, text]) => esc(text))",
        "record.events.map(([, text]) => text)",
        ("tests/report/test_browser.py::test_all_texts_are_shown_as_they_are",),
    ),
    Mutant(
        "page: names of trajectories",
        f"{TEMPLATES}/run.js",
        "points.map(p => esc(p[2]))",
        "points.map(p => p[2])",
        ("tests/report/test_browser.py::test_all_texts_are_shown_as_they_are",),
    ),
    Mutant(
        "page: names and units",
        f"{TEMPLATES}/run.js",
        "esc(units[name] ? `${name} [${units[name]}]` : name)",
        "units[name] ? `${name} [${units[name]}]` : esc(name)",
        ("tests/report/test_browser.py::test_all_texts_are_shown_as_they_are",),
    ),
    Mutant(
        "page: list of trajectories",
        f"{TEMPLATES}/charts.js",
        "made.textContent = text",
        "made.innerHTML = text",
        ("tests/report/test_browser.py::test_all_texts_are_shown_as_they_are",),
    ),
    Mutant(
        "index: links of jobs",
        f"{TEMPLATES}/index.html",
        "{{ job.page | urlencode }}",
        "{{ job.page }}",
        ("tests/report/test_browser.py::test_a_job_with_a_hostile_name_is_a_text_and_a_link",),
    ),
    Mutant(
        "index: links in pictures",
        f"{TEMPLATES}/index.js",
        '.split("/").map(encodeURIComponent).join("/")',
        "",
        ("tests/report/test_browser.py::test_a_job_with_a_hostile_name_is_a_text_and_a_link",),
    ),
    Mutant(
        "index: names in attributes",
        f"{TEMPLATES}/index.html",
        'data-value="{{ job.name }}"',
        'data-value="{{ job.name | safe }}"',
        ("tests/report/test_browser.py::test_a_job_with_a_hostile_name_is_a_text_and_a_link",),
    ),
    Mutant(
        "index: what is varied, in pictures",
        f"{TEMPLATES}/index.js",
        ": esc(value)}`",
        ": value}`",
        ("tests/report/test_browser.py::test_a_job_with_a_hostile_name_is_a_text_and_a_link",),
    ),
    Mutant(
        "page: width of pictures",
        f"{TEMPLATES}/charts.js",
        "  boxes.observe($(id));\n",
        "",
        ("tests/report/test_browser.py::test_pictures_follow_the_width_at_once",),
    ),
    Mutant(
        "SBML: the rate of a concentration in a compartment that grows",
        "node_fit/petab/sbml.py",
        "                if container in sizes:\n",
        "                if False:\n",
        ("tests/petab/test_sbml.py::test_constructs_have_their_exact_solutions",),
    ),
    Mutant(
        "SBML: constant species",
        "node_fit/petab/sbml.py",
        "if species.getBoundaryCondition() or species.getConstant():",
        "if species.getBoundaryCondition():",
        ("tests/petab/test_sbml.py::test_constructs_have_their_exact_solutions",),
    ),
    Mutant(
        "SBML: the conversion factor of a model",
        "node_fit/petab/sbml.py",
        "species.getConversionFactor() or self.model.getConversionFactor()",
        "species.getConversionFactor()",
        ("tests/petab/test_sbml.py::test_the_conversion_factor_of_a_model_is_that_of_species_without_one",),
    ),
    Mutant(
        "SBML: triggers that need not persist",
        "node_fit/petab/sbml.py",
        "is_persistent=trigger.getPersistent() if level_3 else True",
        "is_persistent=True",
        ("tests/petab/test_sbml.py::test_a_trigger_that_need_not_persist",),
    ),
    Mutant(
        "SBML: one name for two elements",
        "node_fit/petab/sbml.py",
        "    refuse_repeated_names(libsbml, document, path.name)\n",
        "",
        ("tests/petab/test_wrong_tables.py",),
    ),
    Mutant(
        "SBML: functions in a long chain",
        "node_fit/petab/sbml.py",
        "if self.nodes > MAX_NODES or size.depth > MAX_DEPTH_WRITTEN_OUT:",
        "if self.nodes > MAX_NODES:",
        ("tests/faults/test_hostile_files.py",),
    ),
    Mutant(
        "SBML: rules in a long chain",
        "node_fit/petab/system.py",
        "if sizes[name].depth > MAX_DEPTH_WRITTEN_OUT:",
        "if False:",
        ("tests/faults/test_hostile_files.py",),
    ),
    Mutant(
        "PEtab: priors of version 2 are truncated",
        "node_fit/petab/tables.py",
        'checked_prior(row, name, "priorParameters", False, is_truncated=True)',
        'checked_prior(row, name, "priorParameters", False, is_truncated=False)',
        ("tests/petab/test_wrong_tables.py::test_a_prior_of_version_2_is_truncated_at_the_bounds",),
    ),
    Mutant(
        "PEtab: the mass of a truncated prior",
        "node_fit/petab/tables.py",
        "        if prior.is_truncated:\n",
        "        if False:\n",
        ("tests/petab/test_wrong_tables.py::test_a_truncated_prior_has_the_mass_1_between_its_bounds",),
    ),
    Mutant(
        "PEtab: what is given twice",
        "node_fit/petab/tables.py",
        "        if (kind, name) in self.places:\n",
        "        if False:\n",
        ("tests/petab/test_wrong_tables.py",),
    ),
    Mutant(
        "PEtab: noise of 0",
        "node_fit/petab/tables.py",
        "        if not 0 < scale < math.inf:\n",
        "        if False:\n",
        ("tests/petab/test_wrong_tables.py",),
    ),
    Mutant(
        "PEtab: points that can't be simulated",
        "node_fit/petab/objective.py",
        "found[0] if np.isfinite(found[0]) else -np.inf",
        "found[0]",
        ("tests/petab/test_wrong_tables.py::test_a_point_that_can_t_be_simulated_is_not_chosen",),
    ),
    Mutant(
        "YAML: aliases",
        "node_fit/runtime/serialization.py",
        "        if isinstance(event, yaml.AliasEvent):\n",
        "        if False:\n",
        ("tests/runtime/test_strangers_text.py",),
    ),
    Mutant(
        "YAML: long values",
        "node_fit/runtime/serialization.py",
        "len(event.value) > MAX_YAML_VALUE:",
        "False:",
        ("tests/runtime/test_strangers_text.py",),
    ),
    Mutant(
        "a packed variable of MATLAB is held twice",
        "node_fit/data/tables/reading.py",
        "UNPACKED_COPIES = 2",
        "UNPACKED_COPIES = 1",
        ("tests/faults/test_absurd_tables.py::test_a_packed_variable_of_matlab_takes_its_size_twice",),
    ),
    Mutant(
        "weights that are not finite in a model file",
        "node_fit/storage/model_file.py",
        "isinstance(leaf, Array) and not isinstance(part, Ensemble) and not np.isfinite(leaf).all():",
        "False:",
        ("tests/faults/test_hostile_models.py",),
    ),
    Mutant(
        "an export of data that are not the run's",
        "node_fit/export/__main__.py",
        "next(filter(RunDirectory(run).was_fitted_to, trains), None)",
        "next(trains, None)",
        ("tests/app/test_trust.py::test_an_export_uses_the_data_of_a_run_only_if_they_are_those_of_its_record",),
    ),
    Mutant(
        "a row at the time of a cut",
        "node_fit/data/dataset.py",
        "data.valid & (data.ts < times[:, None])",
        "data.valid & (data.ts <= times[:, None])",
        ("tests/data/test_splits.py::test_a_row_at_the_time_of_a_cut_is_of_the_later_part",),
    ),
    Mutant(
        "discovery: systems that run away",
        "node_fit/discover/verdict.py",
        " or judged.escapes:",
        ":",
        ("tests/discover/test_verdict.py",),
    ),
    Mutant(
        "discovery: few rows correlate by chance",
        "node_fit/discover/verdict.py",
        "alike > MOST_ALIKE + rows**-0.5",
        "alike > MOST_ALIKE",
        ("tests/discover/test_verdict.py",),
    ),
    Mutant(
        "discovery: the lead over the row before",
        "node_fit/discover/verdict.py",
        "past < simulated + SMALLEST_LEAD",
        "past < simulated",
        ("tests/discover/test_verdict.py",),
    ),
    Mutant(
        "discovery: reactions of no speed",
        "node_fit/discover/balance.py",
        "any(value <= 0 for formula",
        "any(value < 0 for formula",
        ("tests/discover/test_verdict.py",),
    ),
    Mutant(
        "export: steps that are halved until nothing moves",
        "node_fit/export/export.py",
        "if before is not None and difference(before, found, exported.columns).largest <= share:",
        "if before is not None:",
        ("tests/export/test_check.py",),
    ),
    Mutant(
        "export: predictions that are not finite",
        "node_fit/export/trials.py",
        "if (np.isfinite(ours[:, column]) != at).any():",
        "if False:",
        ("tests/export/test_check.py",),
    ),
    Mutant(
        "an iterate that few validation data flatter",
        "node_fit/fitting/selection.py",
        "flattered = train / FLATTERED",
        "flattered = train",
        ("tests/fitting/test_select_iterate.py",),
    ),
    Mutant(
        "members without a validation loss come last",
        "node_fit/fitting/selection.py",
        "return validated, chosen if",
        "return False, chosen if",
        ("tests/fitting/test_select_iterate.py",),
    ),
    Mutant(
        "triggers of one instant",
        "node_fit/solver/triggers.py",
        "(first == which) | (look.level <= look.clear)",
        "(first == which)",
        ("tests/solver/test_first_trigger.py",),
    ),
    Mutant(
        "chunk: progress is a fall by enough",
        "node_fit/training/decisions.py",
        "falls = bool(loss < (1 - PROGRESS) * before.reference)",
        "falls = bool(loss < before.reference)",
        ("tests/training/test_decisions.py",),
    ),
    Mutant(
        "chunk: the training loss chooses until a validation loss is finite",
        "node_fit/training/decisions.py",
        "better = falls if unjudged else",
        "better = False if unjudged else",
        ("tests/training/test_decisions.py",),
    ),
    Mutant(
        "chunk: progress ends a plateau",
        "node_fit/training/decisions.py",
        "plateau=like(before.plateau, 0 if falls else",
        "plateau=like(before.plateau, 0 if better else",
        ("tests/training/test_decisions.py",),
    ),
    Mutant(
        "chunk: a member that has finished",
        "node_fit/training/decisions.py",
        "    if before.finished:\n",
        "    if False:\n",
        ("tests/training/test_decisions.py",),
    ),
    Mutant(
        "stage: all of its steps",
        "node_fit/training/decisions.py",
        "    if state.step >= stage.steps:\n",
        "    if state.step > stage.steps:\n",
        ("tests/training/test_decisions.py",),
    ),
    Mutant(
        "stage: an objective that grows is not stuck",
        "node_fit/training/decisions.py",
        "    if state.stuck and grown:\n",
        "    if state.stuck:\n",
        ("tests/training/test_decisions.py",),
    ),
    Mutant(
        "stage: no plateau of minibatches",
        "node_fit/training/decisions.py",
        "grown and stage.optimizer.full_batch and state.plateau",
        "grown and state.plateau",
        ("tests/training/test_decisions.py",),
    ),
    Mutant(
        "stage: the best judged by training data",
        "node_fit/training/decisions.py",
        "    if validated or not state.best.loss < state.chosen.loss:\n",
        "    if not state.best.loss < state.chosen.loss:\n",
        ("tests/training/test_decisions.py",),
    ),
    Mutant(
        "ladder: equations stand above evidence",
        "node_fit/fitting/ladder.py",
        "return 2 if found.has_equations else int(found.log_evidence is not None)",
        "return int(found.log_evidence is not None)",
        ("tests/fitting/test_ladder_rules.py",),
    ),
    Mutant(
        "ladder: evidence by more than one",
        "node_fit/fitting/ladder.py",
        "mine.log_evidence > theirs.log_evidence + MORE_PROBABLE",
        "mine.log_evidence > theirs.log_evidence",
        ("tests/fitting/test_ladder_rules.py",),
    ),
    Mutant(
        "ladder: equations that leave more than noise",
        "node_fit/fitting/ladder.py",
        "if mine.has_equations and self.standing:",
        "if mine.has_equations:",
        ("tests/fitting/test_ladder_rules.py",),
    ),
    Mutant(
        "ladder: good fits differ by two per cent",
        "node_fit/fitting/ladder.py",
        "self.log_error + math.log(1 / BETTER) < other.log_error",
        "self.log_error < other.log_error",
        ("tests/fitting/test_ladder_rules.py",),
    ),
    Mutant(
        "ladder: poor fits differ by two per cent",
        "node_fit/fitting/ladder.py",
        "return self.error < BETTER * other.error",
        "return self.error < other.error",
        ("tests/fitting/test_ladder_rules.py",),
    ),
    Mutant(
        "ladder: fits of many parameters",
        "node_fit/fitting/ladder.py",
        " + self.fit.parameters * math.log(values) / (2 * values)",
        "",
        ("tests/fitting/test_ladder_rules.py",),
    ),
    Mutant(
        "ladder: overfitted by half",
        "node_fit/fitting/ladder.py",
        "<= MUCH_WORSE_HELD * self.train",
        "<= self.train",
        ("tests/fitting/test_ladder_rules.py",),
    ),
    Mutant(
        "interval: the bound of its side",
        "node_fit/uncertainty/confidence.py",
        "bound = bounds[0] if side < 0 else bounds[1]",
        "bound = bounds[1] if side < 0 else bounds[0]",
        ("tests/uncertainty/test_interval_ends.py",),
    ),
    Mutant(
        "interval: both tails",
        "node_fit/uncertainty/confidence.py",
        "tail = (1 + level) / 2",
        "tail = level",
        ("tests/uncertainty/test_interval_ends.py",),
    ),
    Mutant(
        "interval: correlations of either sign",
        "node_fit/uncertainty/confidence.py",
        "if abs(value) > STRONG:",
        "if value > STRONG:",
        ("tests/uncertainty/test_interval_ends.py",),
    ),
    Mutant(
        "linear: inputs that bend within a row",
        "node_fit/sysid/linear_model.py",
        "[free, pushed - bent, bent, constant]",
        "[free, pushed, bent, constant]",
        ("tests/sysid/test_steps.py",),
    ),
    Mutant(
        "linear: starts at the channels",
        "node_fit/sysid/linear_model.py",
        "    found[:, : record.ys.shape[2]] += record.first\n",
        "",
        ("tests/sysid/test_steps.py",),
    ),
    Mutant(
        "linear: modes that don't grow",
        "node_fit/sysid/subspace.py",
        "values * np.minimum(1, STABLE / np.maximum(size, 1e-12))",
        "values * STABLE / np.maximum(size, 1e-12)",
        ("tests/sysid/test_steps.py",),
    ),
    Mutant(
        "linear: inputs in continuous time",
        "node_fit/sysid/subspace.py",
        "back @ b, back @ c)",
        "b, back @ c)",
        ("tests/sysid/test_steps.py",),
    ),
    Mutant(
        "LM: the slope of the prior",
        "node_fit/optimizers/levenberg_marquardt.py",
        "slope=at.jacobian.T @ r + at.prior * x",
        "slope=at.jacobian.T @ r",
        ("tests/optimizers/test_damped_step.py",),
    ),
    Mutant(
        "LM: more parameters than residuals",
        "node_fit/optimizers/levenberg_marquardt.py",
        "scaled @ jacobian.T + jnp.eye(rows, dtype=b.dtype)",
        "scaled @ jacobian.T",
        ("tests/optimizers/test_damped_step.py",),
    ),
    Mutant(
        "LM: sizes of small parameters",
        "node_fit/optimizers/levenberg_marquardt.py",
        "return jnp.maximum(1, jnp.abs(x) / LARGE_PARAMETER)",
        "return jnp.abs(x) / LARGE_PARAMETER",
        ("tests/optimizers/test_damped_step.py",),
    ),
    Mutant(
        "searches: derivatives that are not finite",
        "node_fit/minimize/compiled.py",
        "better = (value < limit * old.value) & finite",
        "better = value < limit * old.value",
        ("tests/minimize/test_compiled_search.py",),
    ),
    Mutant(
        "searches: points of a higher value",
        "node_fit/minimize/host.py",
        "if not (math.isfinite(there.value) and decrease > 0):",
        "if not math.isfinite(there.value):",
        ("tests/minimize/test_host_search.py",),
    ),
    Mutant(
        "searches: gradients that are not finite",
        "node_fit/minimize/host.py",
        "if not (ratio > ACCEPT_RATIO and there.local.is_finite):",
        "if not ratio > ACCEPT_RATIO:",
        ("tests/minimize/test_trust_region.py",),
    ),
    Mutant(
        "searches: parameters at a bound",
        "node_fit/minimize/host.py",
        "return ~((x <= self.lower) & (gradient > 0)) & ~((x >= self.upper) & (gradient < 0))",
        "return np.ones(x.size, bool)",
        ("tests/minimize/test_trust_region.py", "tests/petab/test_optimizer.py"),
    ),
    Mutant(
        "starts: time for generations",
        "node_fit/minimize/restarts.py",
        "if is_over() and (at or number > 1):",
        "if False:",
        ("tests/minimize/test_restarts.py",),
    ),
    Mutant(
        "beginnings: of either sign without bounds alone",
        "node_fit/fitting/screening.py",
        "both = size.signed and bounds == (None, None)",
        "both = size.signed",
        ("tests/fitting/test_places.py",),
    ),
    Mutant(
        "beginnings: noise below zero",
        "node_fit/fitting/screening.py",
        "values < -NOISE * largest",
        "values < 0",
        ("tests/fitting/test_places.py",),
    ),
    Mutant(
        "recipe: windows below half of a trajectory",
        "node_fit/options/recipes.py",
        "WINDOW_GROWTH**power)) < longest / 2]",
        "WINDOW_GROWTH**power)) < longest]",
        ("tests/options/test_plans.py",),
    ),
    Mutant(
        "recipe: driven records stay in windows",
        "node_fit/options/recipes.py",
        "    if facts.driven:\n",
        "    if False:\n",
        ("tests/options/test_plans.py",),
    ),
    Mutant(
        "recipe: windows that grow have no others",
        "node_fit/options/recipes.py",
        '    if "horizon" in given:',
        "    if False:",
        ("tests/options/test_plans.py",),
    ),
    Mutant(
        "recipe: the default by its steps",
        "node_fit/options/recipes.py",
        "        and (given.steps, given.batch_size) == (plain.steps, plain.batch_size)\n",
        "",
        ("tests/options/test_plans.py",),
    ),
    Mutant(
        "bands: one score more than there are",
        "node_fit/model/ensemble.py",
        "math.ceil((scores.size + 1) * p)",
        "math.ceil(scores.size * p)",
        ("tests/model/test_quantiles.py",),
    ),
    # Rules of the judgement of fits: what is fitted, kept and said.
    Mutant(
        "optimum: equations have defaults of their own",
        "node_fit/fitting/resolve.py",
        "    if is_equations_alone(options.field) and not continued:\n",
        "    if False:\n",
        OPTIMUM,
    ),
    Mutant(
        "optimum: starts of few trajectories are fitted",
        "node_fit/fitting/resolve.py",
        'options.start == "auto" and facts.trajectories <= MAX_FITTED_STARTS and',
        'options.start == "auto" and',
        OPTIMUM,
    ),
    Mutant(
        "optimum: new trajectories have their own starts",
        "node_fit/fitting/resolve.py",
        "return Fitted if facts.restarted else",
        "return Fitted if False else",
        OPTIMUM,
    ),
    Mutant(
        "optimum: least squares",
        "node_fit/fitting/resolve.py",
        "        options = replace(options, optimizer=LevenbergMarquardt())\n",
        "        pass\n",
        OPTIMUM,
    ),
    Mutant(
        "optimum: no derivatives first",
        "node_fit/fitting/resolve.py",
        "        options = replace(options, recipe=DIRECT_RECIPE)\n",
        "        pass\n",
        OPTIMUM,
    ),
    Mutant(
        "optimum: validation data do not pick",
        "node_fit/fitting/problem.py",
        "return None if is_equations_alone(self.model.field) else self.validation",
        "return self.validation",
        OPTIMUM,
    ),
    Mutant(
        "optimum: the search steps",
        "node_fit/fitting/optimum.py",
        "return np.asarray(end.x, np.float64) if np.isfinite(end.x).all() else evidence.x",
        "return evidence.x",
        OPTIMUM,
    ),
    Mutant(
        "optimum: robust residuals",
        "node_fit/uncertainty/linearization.py",
        "residuals=found.residuals * factor, ",
        "",
        OPTIMUM,
    ),
    Mutant(
        "optimum: robust slopes",
        "node_fit/uncertainty/linearization.py",
        "jacobian=found.jacobian * slope.reshape(-1, 1)",
        "jacobian=found.jacobian",
        OPTIMUM,
    ),
    Mutant(
        "optimum: fitted rows count",
        "node_fit/evaluation/metrics.py",
        "return marked if trained and model.typical.start.is_fitted else",
        "return",
        OPTIMUM,
    ),
    Mutant(
        "optimum: groups without constants",
        "node_fit/fitting/screening.py",
        "if part.free() and jax.tree.leaves(part.raw)]",
        "if jax.tree.leaves(part.raw)]",
        OPTIMUM,
    ),
    Mutant(
        "attempts: likelihood of the same equations",
        "node_fit/fitting/ladder.py",
        "        if has_same_equations(self.fit, other.fit):\n",
        "        if False:\n",
        RULES,
    ),
    Mutant(
        "attempts: equations alone",
        "node_fit/fitting/ladder.py",
        "return alone and fields[0].texts()",
        "return fields[0].texts()",
        RULES,
    ),
    Mutant(
        "attempts: on the same rows",
        "node_fit/fitting/ladder.py",
        " and rows[0] == rows[1]\n",
        "\n",
        RULES,
    ),
    Mutant(
        "attempts: one that fails",
        "node_fit/fitting/ladder.py",
        "        except Exception as error:  # A fit",
        "        except OSError as error:  # A fit",
        RULES,
    ),
    Mutant(
        "ends: a bound on one side",
        "node_fit/evaluation/ends.py",
        "    if distance * FARTHEST_END <= begun and bounds != (None, None):\n",
        "    if False:\n",
        ENDS,
    ),
    Mutant(
        "ends: far away",
        "node_fit/evaluation/ends.py",
        "    if distance >= FARTHEST_END * begun:\n",
        "    if False:\n",
        ENDS,
    ),
    Mutant(
        "ends: no number",
        "node_fit/evaluation/ends.py",
        "    if not np.isfinite(value):\n",
        "    if False:\n",
        ENDS,
    ),
    Mutant(
        "ends: a bound of two",
        "node_fit/evaluation/ends.py",
        "<= NEAREST_BOUND * (upper - lower)",
        "< 0",
        ENDS,
    ),
    Mutant(
        "verdict: constants at ends",
        "node_fit/evaluation/diagnosis.py",
        "is_runaway(case) or is_at_end(case) or",
        "is_runaway(case) or",
        ENDS,
    ),
    Mutant(
        "verdict: off the optimum",
        "node_fit/evaluation/diagnosis.py",
        " or is_off_optimum(case) or verdict",
        " or verdict",
        ENDS,
    ),
    Mutant(
        "verdict: runaway simulations",
        "node_fit/evaluation/diagnosis.py",
        "verdict = is_runaway(case) or",
        "verdict =",
        ("tests/evaluation/test_stability.py", "tests/evaluation/test_diagnosis.py"),
    ),
    Mutant(
        "verdict: residuals that are no noise",
        "node_fit/evaluation/diagnosis.py",
        "    if case.misfit is None:\n",
        "    if True:\n",
        ("tests/evaluation/test_diagnosis.py",),
    ),
    Mutant(
        "verdict: trajectories that differ",
        "node_fit/evaluation/residuals.py",
        "check.pattern is not None and check.pattern < limit",
        "False",
        ("tests/evaluation/test_residuals.py", "tests/evaluation/test_diagnosis.py"),
    ),
    Mutant(
        "verdict: residuals beyond sigma",
        "node_fit/evaluation/residuals.py",
        "check.size is not None and check.size < limit",
        "False",
        ("tests/evaluation/test_residuals.py", "tests/evaluation/test_diagnosis.py"),
    ),
    Mutant(
        "verdict: the spread of all data",
        "node_fit/evaluation/case.py",
        "(counts * (own**2 + apart**2))",
        "(counts * own**2)",
        ("tests/evaluation/test_diagnosis.py",),
    ),
    Mutant(
        "verdict: many comparisons",
        "node_fit/evaluation/case.py",
        "            < limit\n",
        "            < 1.1\n",
        ("tests/evaluation/test_diagnosis.py", "tests/evaluation/test_comparison.py"),
    ),
    Mutant(
        "verdict: worsened",
        "node_fit/evaluation/diagnosis.py",
        "    if not end > (1 + FALLING) * begin:\n        return None\n",
        "    return None\n",
        ("tests/evaluation/test_diagnosis.py",),
    ),
    Mutant(
        "data: a trajectory without a state",
        "node_fit/data/facts.py",
        "        found += never_measured(data, index, name)\n",
        "",
        ("tests/data/test_facts.py",),
    ),
    Mutant(
        "data: shares that are open",
        "node_fit/data/dataset.py",
        "return automatic if isinstance(given, str) else given",
        "return HELD_OUT if isinstance(given, str) else given",
        ("tests/data/test_splits.py",),
    ),
    Mutant(
        "data: starts of new trajectories",
        "node_fit/data/facts.py",
        "restarted=validation is not None and bool((validation.scored & validation.valid)[:, 0].any()),",
        "restarted=False,",
        OPTIMUM,
    ),
)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", help="parts of the names of the mutants to try; all if absent")
    options.add_argument("--quick", action="store_true", help="run no slow tests")
    given = options.parse_args()
    wanted = given.names
    chosen = [mutant for mutant in MUTANTS if not wanted or any(part in mutant.name for part in wanted)]
    if not chosen:
        print(f"no mutant is named {' or '.join(wanted)}; they are: {', '.join(each.name for each in MUTANTS)}")
        return 1
    with tempfile.TemporaryDirectory(prefix="node_fit-mutants-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
        code, test = tested(
            tree, tuple(dict.fromkeys(name for mutant in chosen for name in mutant.tests)), given.quick, None
        )
        if code != PASSED:
            print(f"without a mutant, the tests do not pass: {test or f'pytest ended with {code}'}")
            return 1
        width = max(len(mutant.name) for mutant in chosen)
        print(f"{'mutant':<{width}}  {'seconds':>7}  result", flush=True)
        lost = 0
        for mutant in chosen:
            began = time.perf_counter()
            killed, result = tried(tree, mutant, given.quick)
            lost += not killed
            print(f"{mutant.name:<{width}}  {time.perf_counter() - began:7.0f}  {result}", flush=True)
    print(f"{len(chosen) - lost} of {len(chosen)} mutants killed")
    return 1 if lost else 0


def tried(tree: Path, mutant: Mutant, quick: bool) -> tuple[bool, str]:
    """Whether the tests notice a mutant, and by which of them, in words."""
    path = tree / mutant.file
    original = path.read_text()
    count = original.count(mutant.old)
    if count != 1:
        return False, f"error: {mutant.file} has its old text {count} times, not once"
    try:
        path.write_text(original.replace(mutant.old, mutant.new))
        code, test = tested(tree, mutant.tests, quick)
    except subprocess.TimeoutExpired:
        return True, f"killed: the tests take more than {LONGEST} s"
    finally:
        path.write_text(original)
    if code == FAILED and test:
        return True, f"killed by {test}"
    return False, "survived" if code == PASSED else f"error: pytest ended with {code}"


def tested(tree: Path, tests: tuple[str, ...], quick: bool, longest: float | None = LONGEST) -> tuple[int, str]:
    """Pytest's exit code for some tests of a tree, or the quick ones of them, and the first that failed."""
    # No bytecode is written: it would outlive a mutant of the same size and second.
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-rfE", *tests]
    command += ["-m", "not slow"] if quick else []
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=longest)
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)
    return ran.returncode, found.group(1) if found else ""


if __name__ == "__main__":
    sys.exit(main())
