"""The application: everything that depends on Hydra, the run directory or the terminal."""
