"""Files and data frames to a `Dataset`, with errors that name the file, the line and the column."""

from .reading import from_frame as from_frame
from .reading import read_table as read_table
