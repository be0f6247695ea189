"""Recognises what a file on the command line holds, and which of its columns are times, states and inputs."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, cast

from ..data.clipping import describe_ranges
from ..data.cycles import find_cycles
from ..data.dataset import Dataset
from ..data.delays import describe_delays, find_delays
from ..data.nonmem import INFUSION, find_columns, guess_measured, infused_states, is_dosing_table
from ..data.phases import describe_cycles
from ..data.table_source import Table
from ..data.tables.guess import (
    HOLDS_TEXT,
    MOST_BYTES_LOOKED_AT,
    find_conditions,
    find_constant_columns,
    find_deviations,
    find_levels,
    find_limit,
    find_named_inputs,
    find_no_states,
    find_records,
    find_repeats,
    find_time,
    find_time_by_values,
    find_time_of_day,
    find_wells,
    guess_by_names,
    is_repeating,
)
from ..data.tables.likely_inputs import LikelyInput, find_likely_inputs
from ..data.tables.options import ReadingOptions
from ..data.tables.reading import column_names, find_files
from ..data.tables.table import limit_kind, list_names
from ..discover.names import plain_names, rename_columns, unit_of
from ..model.fields.equations import read_equation_lines
from ..runtime.serialization import is_json, is_list
from ..runtime.validation import is_mapping
from ..sysid.sensor_ranges import find_ranges
from .config.build import build
from .config.composition import ConfigError
from .config.overrides import as_value, texts_in, value_of
from .run_directory import RECORD

# Kinds of source by the suffixes of their models, and suffixes of all files that need no key on the command line.
MODEL_FILES = {".yaml": "petab", ".yml": "petab", ".xml": "sbml", ".sbml": "sbml"}
# Keys whose values name columns.
TABLE_COLUMNS = (
    "data.time",
    "data.time_of_day",
    "data.occasion",
    "data.states",
    "data.inputs",
    "data.covariates",
    "data.trajectory",
    "data.sigma",
    "data.doses",
)
# The column of a dosing table that distinguishes a subject's occasions.
OCCASION = "OCC"
# Keys that name states, inputs and covariates, and all keys that contain column names.
ROLES, LABELS = ("states", "inputs", "covariates"), ("time", "time_of_day", "trajectory", "occasion")
NAMING_KEYS = (*ROLES, "levels", "units", "log", "bounds", "angles", "sigma")
STATES_BY = {"data.states", "data.observable", "data.series"}
# Keys with which columns without a role are left out on purpose, or hold values of named states.
OTHERS_BY = {"data.inputs", "data.covariates", "data.doses", "data.events", "data.observable", "data.series"}
# Maximum number of columns listed by name in the line about a file.
FEW_COLUMNS = 8


class Columns(NamedTuple):
    """The guessed roles of a file's columns; None or empty for roles that the command sets.

    - `inputs`: columns that the equations use but do not predict, and `reasons`: why columns are inputs, if values show
      it. `covariates`: columns that are constant in each trajectory. `series`: trajectories of one state.
    - `levels`: words of the covariates that are text.
    - `deviations`: columns with the standard deviations, by state; empty unless all states have one.
    - `time_of_day`: the column of times of day, if the time column holds dates.
    - `no_states`: columns without measurements, with the reason.
    """

    time: str | None
    trajectory: str | None
    states: Sequence[str]
    others: Sequence[str]
    deviations: Mapping[str, str] = MappingProxyType({})
    no_states: Mapping[str, str] = MappingProxyType({})
    time_of_day: str | None = None
    inputs: Sequence[str] = ()
    covariates: Sequence[str] = ()
    series: Sequence[str] = ()
    reasons: Mapping[str, str] = MappingProxyType({})
    levels: Mapping[str, Sequence[str]] = MappingProxyType({})


def keys_of_option(files: Sequence[str], given: dict[str, str]) -> tuple[list[str], str]:
    """Returns the overrides that read data files, and a sentence about them. Column names take priority over positions.

    **Arguments:** `given`: the command's overrides by key, which set the role of some columns.
    """
    if run := next((file for file in files if (Path(file) / RECORD).is_file()), None):
        raise ConfigError(f"{run} is the folder of a run; name a table, or see it by node-fit open {run}.")
    models = [file for file in files if Path(file).suffix.lower() in MODEL_FILES]
    source = MODEL_FILES[Path(models[0]).suffix.lower()] if models else "table"
    for key in ("data", "data.path"):
        if key in given and given[key] != f"data={source}":
            raise ConfigError(f"{files[0]} and {given[key]} both name data; leave one of them out.")
    if models:
        return keys_of_model(source, models[0], [file for file in files if file != models[0]])
    try:
        path = find_files(files)[0]
        if (dosing := keys_of_doses(path, files, given)) is not None:
            return dosing
        names = column_names(path, reading_of(given))
        labels = {f"data.{key}": f"data.{key}={as_value(name)}" for key, name in find_labels(names, given).items()}
        given = {**given, **labels}
        columns = guess_columns(path, files[0], given)
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from None
    columns, hints = take_certain_inputs(path, take_series(columns, given), given)
    added = ["data=table", f"data.path={as_value(files[0] if len(files) == 1 else files)}"]
    clauses: list[str] = []
    for key, said in (("time", "column {!r} is the time"), ("time_of_day", "with the times of day in {!r}"),
                      ("trajectory", "{!r} names the trajectory")):  # fmt: skip
        if (name := getattr(columns, key)) is not None:
            added.append(f"data.{key}={as_value(name)}")
            clauses.append(said.format(name))
    deviations = columns.deviations
    guessed = {
        "sigma": deviations,
        "inputs": columns.inputs,
        "covariates": columns.covariates,
        "levels": {plain_names(names).get(name, name): words for name, words in columns.levels.items()},
        "series": columns.series,
    }
    for key, value in guessed.items():
        given = {**given, f"data.{key}": f"data.{key}={as_value(value)}"} if value else given
    added += labels.values()
    renamed = keys_with_plain_names(names, columns.states, given)
    keys, said_of_roles = keys_of_roles(columns, given, names)
    added += [] if renamed else keys
    clauses += said_of_roles
    if columns.levels and "levels" not in renamed:
        added.append(f"data.levels={as_value(columns.levels)}")
    if deviations:
        clauses.append(f"{list_names(list(deviations.values()), FEW_COLUMNS)} hold standard deviations")
        if "sigma" not in renamed:
            added.append(f"data.sigma={as_value(deviations)}")
    if renamed:
        added += [f"data.{key}={as_value(value)}" for key, value in renamed.items()]
        short = list_names(list(cast(Mapping[str, str], renamed["rename"])), FEW_COLUMNS)
        clauses.append(f"with plain names for equations: {short}")
    for seen in look_at_values(path, columns, given, added):
        added.append(seen.override)
        clauses.append(seen.clause)
    clauses += describe_columns_left_out(columns)
    hint = describe_likely_inputs(hints, columns.inputs, names)
    return added, (f"{', '.join(files)}: {', '.join(clauses)}" if clauses else ", ".join(files)) + hint


def describe_columns_left_out(columns: Columns) -> list[str]:
    """Returns clauses about columns without a role."""
    clauses = [f"{name!r} {why}, and is left out" for name, why in columns.no_states.items() if name]
    if columns.others:
        others = list_names(columns.others, FEW_COLUMNS)
        verb = "is" if len(columns.others) == 1 else "are"
        clauses.append(f"{others} {verb} left out: inputs, covariates, doses or events, if they matter")
    return clauses


class SeenInValues(NamedTuple):
    """What values of a table show: an override, and a clause that gives the reason."""

    override: str
    clause: str


def look_at_values(
    path: Path, columns: Columns, given: Mapping[str, str], added: Sequence[str]
) -> Iterator[SeenInValues]:
    """Yields what the values of a table show: limits, cycles of the clock, clipped sensors and late inputs.

    **Arguments:** `given`, `added`: the overrides of the command, and those added to it.
    """
    overrides = [*given.values(), *added]
    if (limit := find_limit_of_states(path, columns, given)) is not None:
        overrides.append(limit.override)
        yield limit
    keys = {override.partition("=")[0].lstrip("+") for override in overrides}
    train = read_training_rows(path, overrides)
    if train is None:
        return
    if "data.cycles" not in keys and not gather_equations(given) and (cycles := find_cycles(train)):
        yield SeenInValues(f"data.cycles={as_value(cycles)}", f"states follow {describe_cycles(cycles)}")
    if "data.inputs" not in keys:
        return
    concerns_limits = keys & {"data.ranges", "data.censored"} or given.get("loss", "loss=squares") != "loss=squares"
    if not concerns_limits and (ranges := find_ranges(train)):
        yield SeenInValues(f"data.ranges={as_value(ranges)}", describe_ranges(train, ranges))
        train = train.clip(ranges)
    if "data.delays" not in keys and (delays := find_delays(train)):
        yield SeenInValues(f"data.delays={as_value(delays)}", describe_delays(train, delays))


def find_limit_of_states(path: Path, columns: Columns, given: Mapping[str, str]) -> SeenInValues | None:
    """Looks for a limit of detection among the states, unless the command or its loss excludes limits."""
    if "data.censored" in given or given.get("loss", "loss=squares") != "loss=squares":
        return None
    names = column_names(path, reading_of(given))
    short = {short: name for name, short in plain_names(names).items()}
    named = [name for key in ("states", "value") for name in texts_in(value_of(given.get(f"data.{key}", "")))]
    measured = {short.get(name, name): None for name in (*columns.states, *columns.series, *named)}
    limit = find_limit(path, [name for name in measured if name in names], reading_of(given))
    if limit is None:
        return None
    return SeenInValues("data.censored=true", f"{limit[0]!r} in {limit[1]!r} is {limit_kind(limit[0])}")


def read_training_rows(path: Path, overrides: Sequence[str]) -> Dataset | None:
    """Reads the training rows of the table that some overrides describe; None if it is large, or in error."""
    if path.stat().st_size > MOST_BYTES_LOOKED_AT:
        return None
    try:
        table = table_of_words(overrides)
        return table.split(table.read(table.path)).train
    except (ValueError, OSError):  # The run reports the error in the table.
        return None


def table_of_words(words: Sequence[str]) -> Table:
    """Builds the table that overrides of `data` describe.

    **Raises:** `ConfigError` or `ValueError` if one of them is wrong.
    """
    values: dict[str, object] = {}
    split: dict[str, object] = {}
    for word in words:
        data, key, *within = (*word.partition("=")[0].lstrip("+").split("."), "")
        if data == "data" and within == [""]:
            values[key] = value_of(word)
        elif (data, key) == ("data", "split"):
            split[within[0]] = value_of(word)
    return build({"_target_": "node_fit.Table", "split": {"_target_": "node_fit.Split", **split}, **values}, "data")


def keys_of_model(source: str, model: str, others: Sequence[str]) -> tuple[list[str], str]:
    """Returns the overrides that read a PEtab problem, or an SBML model with its table, and a sentence about them."""
    kind = "a PEtab problem" if source == "petab" else "an SBML model"
    added = [f"data={source}", f"data.path={as_value(model)}"]
    if source == "sbml" and len(others) == 1:
        return [*added, f"data.table={as_value(others[0])}"], f"{model} is read as {kind}, {others[0]} as its table"
    if others:
        raise ConfigError(f"{model} and {others[0]} both name data; leave one of them out.")
    return added, f"{model} is read as {kind}"


def take_series(columns: Columns, given: Mapping[str, str]) -> Columns:
    """Takes the wells of a plate, or other columns that repeat an experiment, out of the states."""
    if columns.trajectory or "data.trajectory" in given:
        return columns
    series, covariates = find_wells(columns.states) or find_repeats(columns.states), list(columns.covariates)
    if not series and (conditions := find_conditions(columns.states)) is not None:
        quantity, series = conditions
        covariates += [] if "data.covariates" in given else [quantity]
    others = [*columns.others, *(name for name in columns.states if name not in series)]
    if not series:
        return columns
    return columns._replace(states=[], others=others, series=series, covariates=covariates)


def take_certain_inputs(path: Path, columns: Columns, given: Mapping[str, str]) -> tuple[Columns, dict[str, str]]:
    """Takes columns that can hardly be states out of the states; returns the reasons of other likely inputs, too."""
    likely = find_inputs_among_states(path, columns, given)
    is_open = "data.inputs" not in given and not gather_equations(given)
    named = find_named_inputs(columns.states) if is_open else {}
    reasons = named | {name: found.reason for name, found in likely.items() if found.is_certain}
    states = [name for name in columns.states if name not in reasons]
    hints = {name: found.reason for name, found in likely.items() if name not in reasons}
    return columns._replace(states=states, inputs=[*columns.inputs, *reasons], reasons=reasons), hints


def keys_of_roles(columns: Columns, given: Mapping[str, str], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the keys of states, inputs and covariates, and clauses about them."""
    keys: list[str] = []
    clauses: list[str] = []
    for role, one, several in (("states", "is a state", "are states"), ("inputs", "is an input", "are inputs"),
                               ("covariates", "is a covariate", "are covariates")):  # fmt: skip
        if found := getattr(columns, role):
            keys.append(f"data.{role}={as_value(found)}")
            clauses.append(f"{list_names(found, FEW_COLUMNS)} {one if len(found) == 1 else several}")
            reasons = describe_reasons(columns.reasons) if role == "inputs" else []
            clauses += [f"since {', and '.join(reasons)}"] if reasons else []
            clauses += ["constant in each trajectory"] if role == "covariates" else []
    state = next((name for name in gather_equations(given) if name not in names), "value")
    if columns.series or ("data.series" in given and not {"data.states", "data.observable"} & set(given)):
        keys.append(f"data.states={as_value([state])}")
        clauses += [] if columns.series else [f"each column of data.series is a trajectory of the state {state!r}"]
    if columns.series:
        keys.append(f"data.series={as_value(columns.series)}")
        kind = "wells of a plate" if find_wells(columns.series) else "repeats of an experiment"
        if (conditions := find_conditions(columns.series)) is not None:
            kind = f"experiments at values of {conditions[0]!r}"
        clauses.append(
            f"{list_names(columns.series, FEW_COLUMNS)} are {kind}, each a trajectory of the state {state!r}"
        )
    return keys, clauses


def keys_of_doses(path: Path, files: Sequence[str], given: Mapping[str, str]) -> tuple[list[str], str] | None:
    """Returns overrides for a dosing table with known equations, and a sentence; None for other tables.

    **Raises:** `ValueError` or `OSError` if the file can't be read as a dosing table.
    """
    names = column_names(path)
    if "data" in given or not is_dosing_table(names) or {"data.observable", "data.events"} & set(given):
        return None
    equations = gather_equations(given)
    if not equations:
        return None
    compartments, words = list(equations), find_columns(names)
    states = guess_measured(path, compartments)
    infusions = [f"{INFUSION}{state}" for state in infused_states(path, compartments)]
    keys: dict[str, object] = {
        "path": files[0] if len(files) == 1 else list(files),
        "time": words["TIME"],
        "trajectory": words["ID"],
        "compartments": compartments,
        "states": states,
        "inputs": infusions,
    }
    added = [f"data.{key}={as_value(value)}" for key, value in keys.items() if value and f"data.{key}" not in given]
    numbered = ", ".join(f"{number} is {name}" for number, name in enumerate(compartments, start=1))
    summary = f"{', '.join(files)}: a table of doses and measurements ({', '.join(words.values())}): CMT {numbered}"
    measured = "" if "data.states" in given else f"; DV measures {list_names(states)}"
    unread = [name for name in names if name not in words.values()]
    free = [name for name in unread if not any(name in texts_in(value_of(given.get(key, ""))) for key in TABLE_COLUMNS)]
    notes = f", {list_names(free, FEW_COLUMNS)} left out: covariates, if they matter" if free else ""
    notes += "".join(
        f"; data.occasion={as_value(name)} makes each occasion of a subject a record of its own"
        for name in free
        if name.upper() == OCCASION
    )
    return ["data=nonmem", *added], f"{summary}{measured}{notes}"


def gather_equations(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the command's equations by state, from a mapping or a file; empty if none can be read."""
    equations = value_of(given.get("field.equations", ""))
    try:
        texts = read_equation_lines(equations) if equations and isinstance(equations, str) else equations
    except (ValueError, OSError):  # The run reports the error in the file.
        return {}
    return {str(name): str(text) for name, text in texts.items()} if is_mapping(texts) else {}


def entries_of(key: str, given: Mapping[str, str]) -> dict[str, str]:
    """Returns the entries of a mapping that overrides set, as a whole or one by one (`KEY.name=value`)."""
    whole = value_of(given.get(key, ""))
    entries = {str(name): str(value) for name, value in whole.items()} if is_mapping(whole) else {}
    single = {name.removeprefix(f"{key}."): word for name, word in given.items() if name.startswith(f"{key}.")}
    return entries | {name: word.partition("=")[2] for name, word in single.items()}


def split_by_equations(names: Sequence[str], given: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Returns the columns that equations and channel formulas predict, and other columns that they or starts use.

    The second list is empty if the command names the inputs. Constants named in the command are not columns.
    """
    channels = gather_equations(given) | entries_of("observation.formulas", given)
    starts = entries_of("start.values", given)
    constants = {name for part in ("field", "start", "observation") for name in entries_of(f"{part}.constants", given)}
    random = value_of(given.get("random", ""))
    constants |= set(map(str, random)) if is_mapping(random) or is_list(random) else set()
    words: list[str] = re.findall(r"[^\W\d]\w*", " ".join([*channels.values(), *starts.values()]))
    named = set(words) - constants - set(channels) if "data.inputs" not in given else set[str]()
    short = plain_names(names)
    states = [name for name in names if short.get(name, name) in channels]
    return states, [name for name in names if short.get(name, name) in named]


def keys_with_plain_names(names: Sequence[str], states: Sequence[str], given: Mapping[str, str]) -> dict[str, object]:
    """Returns the keys that rename columns with blanks, brackets or signs for use in equations; empty if not needed.

    **Arguments:**

    - `names`: all columns of the file.
    - `states`: columns guessed to be states.
    - `given`: the command's overrides by key, which can use either name of a column.
    """
    if {"data.rename", "data.observable", "data.series"} & set(given):
        return {}
    columns = {short: name for name, short in plain_names(names).items()}
    data: dict[str, object] = {"states": list(states)} if states else {}
    for key in NAMING_KEYS:
        value = value_of(given.get(f"data.{key}", ""))
        if isinstance(value, str) and key in ROLES:
            value = [value]
        if is_json(value):
            data[key] = {columns.get(str(name), str(name)): item for name, item in value.items()}
        elif is_list(value):
            data[key] = [columns.get(str(name), str(name)) for name in value]
    changed = rename_columns(data, names)
    rename = cast(Mapping[str, str], changed["rename"])
    if not rename:
        return {}
    units = {short: unit for short, name in rename.items() if (unit := unit_of(name))}
    units |= cast(dict[str, str], changed.get("units", {}))
    return changed | ({"units": units} if units else {})


def guess_columns(path: Path, file: str, given: Mapping[str, str]) -> Columns:
    """Guesses the roles of the columns that the command does not name.

    **Raises:** `ValueError` if too few columns remain, or the file can't be read.
    """
    options = reading_of(given)
    names = column_names(path, options)
    named = [name for key in TABLE_COLUMNS if key in given for name in texts_in(value_of(given[key]))]
    columns = {short: name for name, short in plain_names(names).items()}
    named += [columns[name] for name in named if name in columns]
    free = [name for name in names if name not in named]
    guess = guess_by_names(free)
    has_time, has_states = bool({"data.time", "data.step"} & set(given)), bool(STATES_BY & set(given))
    time = None if has_time else guess.time
    if time is not None and find_time(free) is None:
        time = find_time_by_values(path, [name for name in free if name != guess.trajectory], options)
    if not has_time and (time is None or len(free) < (1 if has_states else 2)):
        raise ValueError(f"{file} has the columns {list_names(names)}; it needs one of times and one of a state.")
    free = [name for name in free if name != time]
    time_of_day, dates = None, time or next(texts_in(value_of(given.get("data.time", ""))), None)
    if dates is not None and "data.time_of_day" not in given:
        time_of_day = find_time_of_day(path, columns.get(dates, dates), free, options)
    free = [name for name in free if name != time_of_day]
    records = guess.trajectory if guess.trajectory in free and "data.trajectory" not in given else None
    if has_states:
        repeats = False
        with suppress(ValueError):  # A row names no record.
            repeats = records is not None and "data.series" not in given and is_repeating(path, records, options)
        records = records if repeats else None
        others = [name for name in free if name and name != records]
        return Columns(time, records, (), () if OTHERS_BY & set(given) else others, time_of_day=time_of_day)
    if records is None or len(free) <= 1 or not is_repeating(path, records, options):
        records = None
        # Without the times of day, dates repeat, and each time of day would name a record.
        if time is not None and time_of_day is None and "data.trajectory" not in given and len(free) > 1:
            records = find_records(path, time, free, options)
    free = [name for name in free if name != records]
    no_states = find_no_states(path, free, options)
    free = [name for name in free if name not in no_states]
    if not free:
        why = ", ".join(f"{name!r} {why}" for name, why in no_states.items())
        raise ValueError(f"{file} has no column of a state: {why}; name the columns, data.time=... data.states=[...].")
    deviations = {} if "data.sigma" in given else find_deviations(free)
    free = [name for name in free if name not in deviations.values()]
    covariates: list[str] = []
    states, inputs = split_by_equations(free, given)
    if not states:
        states, inputs = [name for name in free if name in guess.states] if guess.states else free, []
        label = records or next(texts_in(value_of(given.get("data.trajectory", ""))), None)
        if label is not None and "data.covariates" not in given and "data.inputs" not in given:
            covariates = find_constant_columns(path, columns.get(label, label), states, options)
            covariates = covariates if len(covariates) < len(states) else []
            states = [name for name in states if name not in covariates]
    local = [columns.get(name, name) for name in local_covariates(given)]
    levels = {} if "data.levels" in given else find_text_covariates(path, records, no_states, local, given)
    if "data.covariates" not in given:
        covariates += [name for name in names if name in levels or (name in local and name in free)]
        states, inputs = ([name for name in role if name not in covariates] for role in (states, inputs))
    no_states = {name: why for name, why in no_states.items() if name not in levels}
    unused = [name for name in free if name not in (*states, *inputs, *covariates)]
    if not set(states) <= set(deviations):  # Noise must be known for all states or for none.
        unused, deviations = [*unused, *deviations.values()], {}
    deviations = {name: deviations[name] for name in states if deviations}
    return Columns(time, records, states, unused, deviations, no_states, time_of_day, inputs, covariates, levels=levels)


def find_text_covariates(
    path: Path, records: str | None, no_states: Mapping[str, str], local: Sequence[str], given: Mapping[str, str]
) -> dict[str, list[str]]:
    """Returns columns of words that are constant in each trajectory, with the words: those that local constants or
    `data.covariates` name, and without equations all of them.

    **Arguments:** `records`: the column that was found to name the trajectory. `no_states`: columns without
    measurements, with the reason. `local`: columns that local constants name.
    """
    options = reading_of(given)
    label = records or next(texts_in(value_of(given.get("data.trajectory", ""))), None)
    names = column_names(path, options)
    columns = {short: name for name, short in plain_names(names).items()}
    given_names = [columns.get(name, name) for name in texts_in(value_of(given.get("data.covariates", "")))]
    reasons = {**no_states, **find_no_states(path, [name for name in given_names if name in names], options)}
    is_open = not gather_equations(given) and not {"data.covariates", "data.inputs"} & set(given)
    texts = [name for name, why in reasons.items() if why == HOLDS_TEXT]
    texts = [name for name in texts if is_open or name in (*local, *given_names)]
    return {} if label is None else find_levels(path, columns.get(label, label), texts, options)


def local_covariates(given: Mapping[str, str]) -> list[str]:
    """Returns the covariates by whose values constants differ."""
    return [name for part in ("field", "start", "observation") for name in entries_of(f"{part}.local", given).values()]


def reading_of(given: Mapping[str, str]) -> ReadingOptions:
    """Returns the reading options of a table from the command's overrides.

    **Raises:** `ValueError` if one of them is invalid.
    """
    keys = {option.name: f"data.{option.name}" for option in fields(ReadingOptions)}
    options = {name: value_of(given[key]) for name, key in keys.items() if key in given}
    return cast(Callable[..., ReadingOptions], ReadingOptions)(**options)


def find_inputs_among_states(path: Path, columns: Columns, given: Mapping[str, str]) -> dict[str, LikelyInput]:
    """Returns the columns that were guessed to be states but look like inputs, with the reasons."""
    time, trajectory = (
        getattr(columns, role) or next(texts_in(value_of(given.get(f"data.{role}", ""))), None)
        for role in ("time", "trajectory")
    )
    # With the inputs excluded, states that respond to them would look like inputs themselves.
    if time is None or len(columns.states) < 2 or "data.inputs" in given or gather_equations(given):
        return {}
    try:
        return find_likely_inputs(path, time, trajectory, columns.states, reading_of(given))
    except (ValueError, OSError):  # The run reports the error in the table.
        return {}


def describe_likely_inputs(reasons: Mapping[str, str], known: Sequence[str], names: Sequence[str]) -> str:
    """Returns a hint about columns that look like inputs beside known ones; empty without any."""
    clauses, plain = describe_reasons(reasons), plain_names(names)
    inputs = as_value([plain.get(name, name) for name in (*known, *reasons)])
    return f"; {' and '.join(clauses)}, like an input: data.inputs={inputs}" if clauses else ""


def describe_reasons(reasons: Mapping[str, str]) -> list[str]:
    """Returns a clause for each reason, with the columns that have it."""
    columns: dict[str, list[str]] = {}
    for name, why in reasons.items():
        columns.setdefault(why, []).append(name)
    return [
        f"{'each of ' if len(found) > 1 else ''}{list_names(found, FEW_COLUMNS)} {why}"
        for why, found in columns.items()
    ]


def find_labels(names: Sequence[str], given: Mapping[str, str]) -> dict[str, object]:
    """Returns the columns of times, trajectories and doses that the command gives without their units."""
    columns = {short: name for name, short in plain_names(names).items()}
    labels = {key: value_of(given.get(f"data.{key}", "")) for key in LABELS}
    found: dict[str, object] = {
        key: columns[name] for key, name in labels.items() if isinstance(name, str) and name in columns
    }
    doses = value_of(given.get("data.doses", ""))
    if is_mapping(doses) and set(map(str, doses.values())) & set(columns):
        found["doses"] = {str(state): columns.get(str(name), str(name)) for state, name in doses.items()}
    return found
