"""What node_fit calls of FMPy, which ships few hints."""

from .model_description import ModelDescription
from .simulation import instantiate_fmu as instantiate_fmu

def read_model_description(filename: str, validate: bool = True) -> ModelDescription: ...
def extract(filename: str, unzipdir: str | None = None) -> str: ...
