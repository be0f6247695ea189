"""A unit, loaded."""

from .fmi2 import FMU2Slave
from .fmi3 import FMU3Model
from .model_description import ModelDescription

def instantiate_fmu(unzipdir: str, model_description: ModelDescription, fmi_type: str) -> FMU2Slave | FMU3Model: ...
