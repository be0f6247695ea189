"""Solves of trajectories that are spread over devices: each device solves its own, in a loop of its own."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
from jax.sharding import PartitionSpec
from jaxtyping import PyTree

from ..runtime.placement import AXIS
from .initial_value_problem import InitialValueProblem

EVERYWHERE, SPREAD = PartitionSpec(), PartitionSpec(AXIS)


def on_each_device(method: Callable) -> Callable:
    """Lets each device solve its own trajectories, in a program that is traced for several of them.

    Left to itself, XLA adds up the gradients of all devices in every step of a solve. Here they are added once.

    **Arguments:** `method`: a method of a solver, called with a problem, with arrays that have one row for each
    trajectory or a single one for all, and with options. It returns arrays with an axis for trajectories in front.
    """

    @functools.wraps(method)
    def spread(solver: PyTree, problem: InitialValueProblem, *arrays: Any, **options: Any) -> PyTree:
        mesh, trajectories = jax.sharding.get_abstract_mesh(), len(problem.y0)
        if AXIS not in mesh.axis_names or trajectories % mesh.shape[AXIS]:
            return method(solver, problem, *arrays, **options)
        shared, static = eqx.partition((solver, problem.field, problem.bound), eqx.is_array)

        def part(shared: PyTree, own: InitialValueProblem, arrays: tuple) -> PyTree:
            solver, field, bound = eqx.combine(shared, static)
            return method(solver, replace(own, field=field, bound=bound), *arrays, **options)

        rows = tuple(EVERYWHERE if array.shape[0] != trajectories else SPREAD for array in arrays)
        # No value has to be the same on all devices, which is what JAX would check.
        on_mesh = jax.shard_map(part, in_specs=(EVERYWHERE, SPREAD, rows), out_specs=SPREAD, check_vma=False)
        return on_mesh(shared, replace(problem, field=None, bound=None), arrays)

    return spread
