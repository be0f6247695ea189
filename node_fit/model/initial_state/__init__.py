"""Rules for the initial state of a trajectory."""
