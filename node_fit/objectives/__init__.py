"""What is minimised."""

from .derivative import DerivativeMatching as DerivativeMatching
from .objective import AbstractObjective as AbstractObjective
from .objective import Loss as Loss
from .trajectory import TrajectoryMatching as TrajectoryMatching
