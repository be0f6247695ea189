"""What node_fit calls of ONNX Runtime, which ships no hints."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

class NodeArg:
    name: str

class SessionOptions:
    intra_op_num_threads: int

class InferenceSession:
    def __init__(self, path: str | Path, sess_options: SessionOptions, providers: Sequence[str] = ...) -> None: ...
    def get_inputs(self) -> list[NodeArg]: ...
    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]: ...
