"""Pictures of a fit: the loss, the model against the data, and the phase portrait."""

from .curves import Curves as Curves
from .fit import plot_fit as plot_fit
from .loss import plot_loss as plot_loss
from .phase import phase_points as phase_points
from .phase import plot_phase as plot_phase
