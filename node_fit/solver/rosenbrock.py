"""A step of Rodas5P, a Rosenbrock method for stiff equations: one factorized Jacobian per step, and no iterations.

Steinebach, G. (2023): Construction of Rosenbrock-Wanner method Rodas5P and numerical benchmarks within the Julia
Differential Equations package. BIT Numerical Mathematics 63, 27. The coefficients are those of the form of Hairer and
Wanner (Solving Ordinary Differential Equations II, IV.7), in which stages need no product with the Jacobian.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

# Coefficients of Rodas5P.
GAMMA = 0.21193756319429014
NODES = np.array([0.0, 0.6358126895828704, 0.4095798393397535, 0.9769306725060716, 0.4288403609558664, 1.0, 1.0, 1.0])
TIME_WEIGHTS = np.array(
    [GAMMA, -0.42387512638858027, -0.3384627126235924, 1.8046452872882734, 2.325825639765069, 0.0, 0.0, 0.0]
)
STAGES = 8


def pad_rows(*rows: tuple[float, ...]) -> np.ndarray:
    """Pads rows of coefficients of earlier stages to a triangular matrix."""
    return np.array([[*row, *[0.0] * (STAGES - len(row))] for row in rows])


LAST = (-7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256, 0.030198172008377946)
WEIGHTS = pad_rows(
    (),
    (3.0,),
    (2.849394379747939, 0.45842242204463923),
    (-6.954028509809101, 2.489845061869568, -10.358996098473584),
    (2.8029986275628964, 0.5072464736228206, -0.3988312541770524, -0.04721187230404641),
    LAST,
    (*LAST, 1.0),
    (*LAST, 1.0, 1.0),
)
COUPLINGS = pad_rows(
    (),
    (-14.155112264123755,),
    (-17.97296035885952, -2.859693295451294),
    (147.12150275711716, -1.41221402718213, 71.68940251302358),
    (165.43517024871676, -0.4592823456491126, 42.90938336958603, -5.961986721573306),
    (24.854864614690072, -3.0009227002832186, 47.4931110020768, 5.5814197821558125, -0.6610691825249471),
    (30.91273214028599, -3.1208243349937974, 77.79954646070892, 34.28646028294783, -19.097331116725623,
     -28.087943162872662),
    (37.80277123390563, -3.2571969029072276, 112.26918849496327, 66.9347231244047, -40.06618937091002,
     -54.66780262877968, -9.48861652309627),
)  # fmt: skip
ROSENBROCK_ERROR_ORDER = 5


# Number of rows from which on triangular factors are cheaper than the inverse and a product with it per stage.
LARGE_MATRIX = 100
# The inverse of a matrix, or its triangular factors with the order of their rows.
Factors = Float[Array, "column row"] | tuple[Float[Array, "row column"], Int[Array, " row"]]


def factorise(matrix: Float[Array, "row column"]) -> Factors:
    """Computes the inverse or the triangular factors of a matrix, to solve linear systems."""
    if len(matrix) < LARGE_MATRIX:
        return jnp.linalg.inv(matrix)
    lower_and_upper, order = jax.scipy.linalg.lu_factor(matrix)
    return lower_and_upper, order


@jax.custom_jvp
def solve_factorised(
    matrix: Float[Array, "row column"], factors: Factors, right: Float[Array, " row"]
) -> Float[Array, " column"]:
    """Solves a linear system with known factors; tangents need no derivative of the factors."""
    return jax.scipy.linalg.lu_solve(factors, right) if isinstance(factors, tuple) else factors @ right


@solve_factorised.defjvp
def solve_factorised_jvp(
    primals: tuple[Array, Factors, Array], tangents: tuple[Array, PyTree, Array]
) -> tuple[Array, Array]:
    matrix, factors, right = primals
    matrix_dot, _, right_dot = tangents
    solution = solve_factorised(matrix, factors, right)
    return solution, solve_factorised(matrix, factors, right_dot - matrix_dot @ solution)


Rates = Callable[[Float[Array, ""], Float[Array, " moving"]], Float[Array, " moving"]]


def rosenbrock_step(
    rates: Rates,
    time: Float[Array, ""],
    state: Float[Array, " moving"],
    step: Float[Array, ""],
    depends_on_time: bool,
    jacobian: Callable[[Float[Array, " moving"]], Float[Array, "moving moving"]] | None = None,
) -> tuple[Float[Array, " moving"], Float[Array, " moving"]]:
    """Computes the state after a step, and its estimated error.

    **Arguments:** `depends_on_time`: whether the rates depend on time. `jacobian`: returns the Jacobian of the rates at
    a state; if None, it is computed with one derivative per state.
    """
    slopes = jax.jacfwd(rates, argnums=1)(time, state) if jacobian is None else jacobian(state)
    matrix = jnp.eye(state.size) / (GAMMA * step) - slopes
    factors = factorise(jax.lax.stop_gradient(matrix))
    drift = (
        jax.jvp(lambda moment: rates(moment, state), (time,), (jnp.ones_like(time),))[1] if depends_on_time else None
    )

    def add_stage(count: Int[Array, ""], stages: Float[Array, "stage moving"]) -> Float[Array, "stage moving"]:
        stage_time = time + jnp.asarray(NODES)[count] * step if depends_on_time else time
        right = rates(stage_time, state + jnp.asarray(WEIGHTS)[count] @ stages)
        right = right + (jnp.asarray(COUPLINGS)[count] @ stages) / step
        if drift is not None:
            right = right + (step * jnp.asarray(TIME_WEIGHTS)[count]) * drift
        return stages.at[count].set(solve_factorised(matrix, factors, right))

    stages = jax.lax.fori_loop(0, STAGES, add_stage, jnp.zeros((STAGES, state.size)))
    last = state + WEIGHTS[-1] @ stages
    return last + stages[-1], stages[-1]
