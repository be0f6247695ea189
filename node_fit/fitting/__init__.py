"""`fit`: options, recipes, choices made from the data, diagnosis."""
