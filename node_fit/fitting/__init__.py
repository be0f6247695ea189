"""`fit`: options, recipes, automatic choices and diagnosis."""
