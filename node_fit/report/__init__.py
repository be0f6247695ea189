"""Pages of one or several runs, which open in a browser without a network."""
