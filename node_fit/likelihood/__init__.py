"""How probable measurements are, given what a model predicts."""
