"""What is measured of the states."""

from .linear import LinearReadout as LinearReadout
from .measured import MeasuredStates as MeasuredStates
from .network import NetworkReadout as NetworkReadout
from .observation import AbstractObservation as AbstractObservation
