"""Pages of runs and of several runs, which open in a browser and need no network."""
