"""What is minimised."""

from .derivative import DerivativeMatching as DerivativeMatching
from .objective import AbstractLeastSquares as AbstractLeastSquares
from .objective import AbstractObjective as AbstractObjective
from .objective import Loss as Loss
from .objective import Problem as Problem
from .objective import Residuals as Residuals
from .penalty import Penalty as Penalty
from .shooting import MultipleShooting as MultipleShooting
from .simulation import AbstractSimulation as AbstractSimulation
from .trajectory import TrajectoryMatching as TrajectoryMatching
