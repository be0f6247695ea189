"""The options of a fit, and recipes of training stages."""
