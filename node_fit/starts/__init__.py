"""Where trajectories start: rules that give the states at the first time, hidden ones included."""

from .encoder import Encoder as Encoder
from .first import First as First
from .fitted import Fitted as Fitted
from .start import AbstractStart as AbstractStart
from .start import Simulate as Simulate
