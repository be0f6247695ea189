"""What a fitted model does near a point: equilibria, modes, responses to steps and to sines."""
