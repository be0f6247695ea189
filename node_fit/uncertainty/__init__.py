"""How sure a fit is: linearization at its optimum, intervals, profiles, draws of its posterior."""
