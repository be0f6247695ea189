"""The training loop: state, step, chunk, stages, stopping."""
