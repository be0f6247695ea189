"""Files and data frames to a `Dataset`, with errors that name the file, the line and the column."""

from .covariates import CovariateNumbers as CovariateNumbers
from .covariates import as_numbers as as_numbers
from .covariates import check_trajectories as check_trajectories
from .covariates import with_covariates as with_covariates
from .reading import from_frame as from_frame
from .reading import make_roles as make_roles
from .reading import read_files as read_files
from .reading import read_table as read_table
from .roles import Roles as Roles
