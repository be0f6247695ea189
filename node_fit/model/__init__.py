"""The neural ODE and its parts: vector field, start, observation."""
