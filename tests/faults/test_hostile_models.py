"""Malicious model files: refused in one sentence, at the cost of reading them, and without side effects."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import ENVIRONMENT
from safetensors import safe_open
from safetensors.numpy import save as to_bytes

from faults.moments import model
from node_fit.storage.files import digest
from node_fit.storage.model_file import MODEL_SCHEMA, save

WEIGHT = "model.field.network.layers.0.weight"
# Memory limit for loading a file of a few kB [MB]. Some files ask for arrays of a hundred times that size.
MOST = 100
# Limit on the processor's time for it [s].
LONGEST = 1.0


def forged(good: Path, change: Callable[[dict, dict], None]) -> bytes:
    """The model file with a modified header or modified arrays, and a valid digest."""
    with safe_open(good, framework="numpy") as file:
        header = json.loads((file.metadata() or {})["node_fit"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del header["sha256"]
    change(header, tensors)
    return to_bytes(tensors, {"node_fit": json.dumps({"sha256": digest(header, tensors), **header})})


def field_of(header: dict) -> dict:
    return header["model"]["fields"]["field"]


def calls(name: str):
    return lambda header, _: field_of(header).update({"class": name})


def array_again_and_again(header: dict, tensors: dict) -> None:
    """A file of 8 MB that asks for 8 GB."""
    tensors["big"] = np.zeros((1 << 21,), np.float32)
    field_of(header)["fields"]["network"] = {"tuple": [{"array": "big"}] * 1000}


def deep(header: dict, _: dict) -> None:
    part: dict | int = 0
    for _ in range(400):
        part = {"tuple": [part]}
    field_of(header)["fields"]["network"] = part


def enormous(header: dict, _: dict) -> None:
    header["model"]["fields"]["start"]["fields"]["guess"]["fields"]["measured"] = 10**15


def scaler_of(header: dict) -> dict:
    return header["model"]["fields"]["scaler"]["fields"]


def in_scaler(**fields):
    return lambda header, _: scaler_of(header).update(fields)


def with_weights_of(kind: str):
    return lambda _, tensors: tensors.update({WEIGHT: (tensors[WEIGHT] > 0).astype(kind)})


def many_layers(header: dict, tensors: dict) -> None:
    """A description of 13 MB."""
    layers = field_of(header)["fields"]["network"]["fields"]["layers"]["tuple"]
    layers += [json.loads(json.dumps(layers[-1]).replace("layers.1.", f"layers.{n}.")) for n in range(2, 30_000)]


FORGED = {
    "bounds of text": in_scaler(bounds="xy"),
    "bounds of texts": in_scaler(bounds={"tuple": ["x", "y"]}),
    "bounds of one": in_scaler(bounds={"tuple": [{"tuple": [0.0]}, {"tuple": [0.0]}]}),
    "bounds upside down": in_scaler(bounds={"tuple": [{"tuple": [1.0, 0.0]}, {"tuple": [None, None]}]}),
    "bounds beyond": in_scaler(bounds={"tuple": [{"tuple": [1e300, None]}, {"tuple": [None, None]}]}),
    "time of text": in_scaler(time_scale="1"),
    "units": lambda header, _: header["model"]["fields"].update(units={"tuple": ["x"]}),
    "weights of int8": with_weights_of("int8"),
    "weights of bool": with_weights_of("bool"),
    "weights of int64": with_weights_of("int64"),
    "weights of nan": lambda _, tensors: tensors.update({WEIGHT: np.full_like(tensors[WEIGHT], np.nan)}),
    "weights of inf": lambda _, tensors: tensors.update({WEIGHT: np.full_like(tensors[WEIGHT], np.inf)}),
    "names": lambda header, _: header["model"]["fields"].update(states={"tuple": [1, 2]}),
    "layers": many_layers,
    "shell": calls("os:system"),
    "dunder": calls("node_fit.model.fields.network:MLP.__init__.__globals__"),
    "dunder of a stored name": calls("MLP.__init__.__globals__"),
    "climbing": calls("node_fit/../os:system"),
    "command": calls("node_fit.__main__:main"),
    "function": lambda header, _: header["model"]["fields"].update(field={"function": "subprocess:run"}),
    "path": lambda header, tensors: tensors.update({"../../../tmp/x": tensors.pop(WEIGHT)}),
    "absolute": lambda header, _: field_of(header)["fields"].update(network={"array": "/etc/passwd"}),
    "again": array_again_and_again,
    "deep": deep,
    "enormous": enormous,
    "older": lambda header, _: header.update(schema=3),
    "newer": lambda header, _: header.update(schema=MODEL_SCHEMA + 1),
    "strange": lambda header, _: header.update(schema=[10**400]),
}


def raw(header: bytes, length: int | None = None, arrays: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + arrays


RAW = {
    "header beyond the file": raw(b"{}", 3),
    "header of 2^63 bytes": raw(b"{}", 1 << 63),
    "header of 80 MB": raw(b'{"__metadata__":{"node_fit":"' + b"[" * (80 << 20) + b'"}}'),
    "header that is deep": raw(b"[" * 100_000 + b"]" * 100_000),
    "array of 2^60 bytes": raw(
        b'{"x":{"dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,4]}}', None, b"1234"
    ),
    "array beyond the file": raw(b'{"x":{"dtype":"F32","shape":[100],"data_offsets":[0,400]}}', arrays=b"1234"),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, dict]:
    """The outcome of loading each file."""
    folder = tmp_path_factory.mktemp("hostile")
    save(model(), folder / "good")
    files = {**RAW, **{name: forged(folder / "good", change) for name, change in FORGED.items()}}
    files["truncated"] = (folder / "good").read_bytes()[:-100]
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with open(folder / "sparse", "wb") as file:
        file.write(struct.pack("<Q", 1 << 40))
        file.truncate((1 << 40) + 8)
    command = [sys.executable, "-m", "faults.hostile", "good", *files, "sparse"]
    tests = Path(__file__).parents[1]
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tests}:{tests.parent}"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured as Linux does")


@pytest.mark.parametrize("name", [*FORGED, *RAW, "truncated", "sparse"])
def test_a_hostile_file_is_only_ever_read(told, name):
    sentence, megabytes, deeds, seconds = (told[name][key] for key in ("sentence", "megabytes", "deeds", "seconds"))
    assert sentence.startswith(name) and "\n" not in sentence and len(sentence) < 500
    assert deeds == []
    assert megabytes < MOST
    assert seconds < LONGEST


@pytest.mark.usefixtures("no_fault")
def test_the_measure_sees_what_a_load_takes(told):
    """Otherwise the memory limit could not fail: the largest file that is read completely shows in it."""
    assert max(entry["megabytes"] for entry in told.values()) > 4
