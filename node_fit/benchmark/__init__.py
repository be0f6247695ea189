"""Published problems, each fitted by one command: `python -m node_fit.benchmark`."""
