"""Rules for the first state of a trajectory."""
