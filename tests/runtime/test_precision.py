"""Dtypes and devices, and the leaves of a training state."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import rotation

import node_fit as nf
from node_fit.options import options
from node_fit.runtime.placement import ambient, carry, dtype_of, find_device, numbers_as_arrays, precision_of, scope


def test_the_scope_sets_the_precision_and_puts_it_back(precision):
    before = ambient()
    with scope(precision):
        assert ambient() == precision
        assert jnp.ones(()).dtype == dtype_of(precision)
    assert ambient() == before


def test_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="precision must be x32 or x64, got 'x16'"), scope("x16"):
        pass


def test_every_float_gets_the_dtype_and_keeps_its_value(precision):
    tree = {
        "weak": jnp.asarray(1.5),
        "scalar": np.float64(0.5),
        "host": np.arange(3.0, dtype=np.float64),
        "single": np.ones(2, np.float32),
        "index": jnp.arange(2),
        "mask": np.array([True, False]),
    }
    with scope(precision):
        carried = carry(tree, dtype_of(precision))
        for name in ("weak", "scalar", "host", "single"):
            assert carried[name].dtype == dtype_of(precision)
        assert carried["index"].dtype == tree["index"].dtype and carried["mask"].dtype == bool
        for name, value in tree.items():
            assert np.array_equal(carried[name], value)


def test_float32_in_a_process_of_x64():
    with scope("x64"):
        carried = carry({"a": jnp.ones(2), "b": np.ones(())}, np.float32)
        assert {leaf.dtype for leaf in jax.tree.leaves(carried)} == {np.dtype(np.float32)}


def test_leaves_are_strong_and_committed():
    weak = jnp.asarray(2.0)
    assert weak.weak_type and not weak.committed
    carried = carry([weak, np.ones(2), jnp.zeros(3)], np.float32)
    assert all(isinstance(leaf, jax.Array) and leaf.committed and not leaf.weak_type for leaf in carried)
    assert all(leaf.devices() == {jax.devices()[0]} for leaf in carried)


def test_a_number_becomes_an_argument_of_the_program_only_by_name():
    """Python numbers are compiled in; `numbers_as_arrays` turns floats into leaves that `carry` accepts."""
    assert carry({"rate": 0.1, "steps": 3, "flag": True}, np.float32) == {"rate": 0.1, "steps": 3, "flag": True}
    carried = carry(numbers_as_arrays({"rate": 0.1, "steps": 3, "flag": True}), np.float32)
    assert carried["rate"].dtype == np.float32 and not carried["rate"].weak_type
    assert carried["steps"] == 3 and carried["flag"] is True


def test_shared_leaves_get_buffers_of_their_own():
    shared, host = jnp.arange(8.0), np.arange(8.0, dtype=np.float32)
    first, second, third = carry([shared, shared, host], np.float32)
    pointers = {x.unsafe_buffer_pointer() for x in (shared, first, second, third)}
    assert len(pointers) == 4
    host[:] = -1
    assert third.tolist() == list(range(8)), "it must not be a view of the caller's array"
    donating = jax.jit(lambda a, b: (a + 1, b + 1), donate_argnums=(0, 1))
    assert donating(first, second)[0].tolist() == list(range(1, 9))
    assert shared.tolist() == list(range(8))


def test_keys_pass_and_are_committed():
    key = jax.random.key(7)
    (carried,) = carry([key], np.float32)
    assert carried.dtype == key.dtype and carried.committed
    assert np.array_equal(jax.random.key_data(carried), jax.random.key_data(key))
    assert jax.random.normal(carried) == jax.random.normal(key)


def test_what_is_no_number_passes_unchanged():
    carried = carry({"activation": jnp.tanh, "name": "mlp", "none": None}, np.float32)
    assert carried == {"activation": jnp.tanh, "name": "mlp", "none": None}


def test_the_precision_of_a_tree():
    assert precision_of({"a": jnp.ones(2, jnp.float32), "n": jnp.arange(3)}) == "x32"
    assert precision_of({"a": np.ones(2), "n": 1}) == "x64"
    with pytest.raises(ValueError, match=r"one dtype, but (?=.*\['a'\] is float32)(?=.*\['b'\] is float64)"):
        precision_of({"a": np.ones(2, np.float32), "b": np.ones(2)})


def test_devices_by_name():
    assert find_device("auto") == jax.devices()[0]
    assert find_device("cpu").platform == "cpu"
    with pytest.raises(ValueError, match="device must be auto, cpu or gpu, got 'tpu'"):
        find_device("tpu")


def test_a_gpu_is_chosen_for_many_trajectories_alone(monkeypatch):
    """For fewer, the CPU is faster; a device that was asked for stays."""
    monkeypatch.setattr(options, "find_device", lambda name: SimpleNamespace(platform="gpu"))
    monkeypatch.setattr(options, "PAYS_ON_GPU", 12)
    data = rotation(trajectories=4)

    def chosen(fits: int = 1, **given: object) -> str:
        return nf.Options(**given).for_data(data, fits).device.kind

    assert (chosen(), chosen(ensemble=2), chosen(fits=2)) == ("cpu", "cpu", "cpu")
    assert (chosen(ensemble=3), chosen(restarts=3), chosen(fits=3)) == ("auto", "auto", "auto")
    assert chosen(device="gpu") == "gpu" and chosen(device=nf.Devices(count=2)) == "auto"
    monkeypatch.undo()
    assert chosen() == "auto" or find_device("auto").platform == "gpu"


@pytest.mark.skipif(any(device.platform == "gpu" for device in jax.devices()), reason="a GPU is here")
def test_an_absent_gpu_is_a_clear_error():
    with pytest.raises(ValueError, match=r"device=gpu was asked for, but JAX finds only: cpu.*device=auto"):
        find_device("gpu")
