"""Exported models predict what `node_fit.predict` does, compile without warnings, and hold no code of a stranger's."""

import ast
import dataclasses
import functools
import shutil
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.commands import DIRECT, node_fit
from helpers.exported import DECAY, HOSTILE, SCALED, bounce, counting, network, records, single

import node_fit as nf
from node_fit.export import __main__ as command
from node_fit.export.c import render_c
from node_fit.export.export import TARGETS
from node_fit.export.functions import Steps, export_functions
from node_fit.export.graphs import Whole
from node_fit.export.numpy_target import render_numpy
from node_fit.export.trials import in_double, load_module

WARNINGS = ("-std=c99", "-O1", "-Wall", "-Wextra", "-pedantic", "-Wdouble-promotion", "-Werror")


def of_formula(text):
    """Known equations of two states, of which one channel is a state, and the other a formula."""
    return network(
        field=functools.partial(nf.Known, equations={"x": "-k*x + f", "w": "x - 40*w"}, constants={"k": 0.4}),
        hidden=["w"],
        observation=functools.partial(nf.FormulaReadout, formulas={"v": text}, constants={"gain": 2.0}),
    )


def two_inputs(*kinds):
    data = records()
    both = np.concatenate([data.us, data.us[:, ::-1] ** 2], axis=2)
    data = dataclasses.replace(data, us=both, inputs=("f", "g"))
    return network(data, solver=nf.Solver(inputs=kinds))


CASES = {
    "encoder, hidden states, bounds": lambda: network(hidden=1, start=nf.Encoder, scaling=SCALED),
    "rows before the start, readout": lambda: network(
        hidden=1,
        start=functools.partial(nf.Encoder, rows=4, before=True),
        observation=nf.NetworkReadout,
        solver=nf.Solver(inputs="hold"),
    ),
    "hybrid, cubic inputs": lambda: network(
        field=functools.partial(nf.Hybrid, **DECAY), solver=nf.Solver(inputs="cubic"), scaling=SCALED
    ),
    "steady, implicit": lambda: network(
        field=functools.partial(nf.Known, **DECAY), start=nf.Steady, solver=nf.Solver("kvaerno5")
    ),
    "second order, angles": lambda: network(
        field=functools.partial(nf.SecondOrder, width=4, depth=1, activation="gelu"),
        scaling=nf.Scaling(angles=["x"]),
    ),
    "polynomial": lambda: network(field=nf.Polynomial),
    "conditions and functions": lambda: network(
        field=functools.partial(
            nf.Known,
            equations={"x": "-piecewise(k, x > -90 and not x > 95, 2*k)*x + erf(v)", "v": "min(x, 0.1*pi) - atan(v)"},
            constants={"k": 0.5},
        )
    ),
    "one state": lambda: network(single()),
    "triggers and events": bounce,
}
CASES |= {
    "formulas of states": lambda: of_formula("gain*x**2 + w"),
    "formulas of inputs": lambda: of_formula("gain*x**2 + w*f - t"),
    "readout with inputs": lambda: network(
        hidden=1, start=nf.Encoder, observation=nf.DirectReadout, solver=nf.Solver(inputs="hold")
    ),
}
CASES |= {
    f"inputs {first} and {second}": functools.partial(two_inputs, first, second)
    for first, second in (("hold", "linear"), ("cubic", "hold"), ("linear", "cubic"))
}
LONG = {"hybrid, cubic inputs", "inputs linear and cubic", "steady, implicit", "triggers and events"}


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow if case in LONG else ()) for case in CASES])
def test_an_export_predicts_what_the_model_does(tmp_path, case):
    model, data = CASES[case]()
    model = in_double(model)
    for target in ("c", "numpy"):
        done = nf.export(model, target, tmp_path / target, data=data)
        assert done.difference.largest < 1e-6
        assert done.rows == data.lengths.sum()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["stablehlo", "onnx", "fmu"])
@pytest.mark.parametrize("case", ["formulas of states", "formulas of inputs", "readout with inputs"])
def test_channels_that_are_no_states_go_along(tmp_path, target, case):
    model, data = CASES[case]()
    assert nf.export(in_double(model), target, tmp_path, data=data).difference.largest < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("target", ["stablehlo", "onnx", "fmu"])
def test_inputs_go_along_by_their_own_kinds(tmp_path, target):
    model, data = two_inputs("hold", "linear")
    assert nf.export(in_double(model), target, tmp_path, data=data).difference.largest < 1e-6
    assert "Inputs are f held from row to row; g on a line from row to row." in (tmp_path / "README.md").read_text()


@pytest.mark.slow
def test_an_ensemble_is_read_with_inputs(tmp_path):
    model, data = CASES["readout with inputs"]()
    other = network(hidden=1, start=nf.Encoder, observation=nf.DirectReadout, solver=nf.Solver(inputs="hold"))[0]
    other = eqx.tree_at(lambda m: m.observation.direct, other, model.observation.direct + 0.3)
    both = nf.Ensemble.of([model, other], data, None)
    for target in ("c", "numpy", "stablehlo"):
        done = nf.export(in_double(both), target, tmp_path / target, data=data)
        assert done.difference.largest < 1e-6


@pytest.mark.slow
def test_what_is_observed_takes_the_time_and_the_inputs_if_it_depends_on_them(tmp_path):
    model, data = CASES["formulas of inputs"]()
    nf.export(in_double(model), "numpy", tmp_path, data=data)
    module = load_module(tmp_path / "model.py")
    y = module.users_states(module.scaled_states([1.5, 0.7]))
    gain = model.constants()["gain"]
    np.testing.assert_allclose(module.observe(2.5, y, [0.4]), [1.5, gain * 1.5**2 + 0.7 * 0.4 - 2.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("target", "text", "sentence"),
    [("c", "increase(gain*x)", "channel 'v' is counted between rows"),
     ("sympy", "gain*x", "sympy can't carry this model: channels that are no states")],
)  # fmt: skip
def test_channels_that_no_target_observes_are_refused_by_name(tmp_path, target, text, sentence):
    model, data = of_formula(text)
    with pytest.raises(ValueError, match=sentence):
        nf.export(model, target, tmp_path, data=data)


def test_a_wrong_number_is_found_and_nothing_is_written(tmp_path, monkeypatch):
    model, data = network()
    chosen = TARGETS["numpy"]
    spoilt = lambda exported, trials: {  # noqa: E731
        name: text.replace("return z + h * (B", "return z + 0.99 * h * (B")
        for name, text in chosen.render(exported, trials).items()
    }
    monkeypatch.setitem(TARGETS, "numpy", chosen._replace(render=spoilt))
    with pytest.raises(ValueError, match="differs from node_fit's predictions by"):
        nf.export(model, "numpy", tmp_path / "out", data=data)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["double", "float"])
def test_c_compiles_without_a_warning(tmp_path, precision):
    model, data = network(hidden=1, start=nf.Encoder, scaling=SCALED)
    done = nf.export(model, "c", tmp_path, data=data, precision=precision)
    assert done.from_predict.largest < 1e-3  # of a model in single precision
    for compiler in filter(shutil.which, ("gcc", "clang")):
        subprocess.run([compiler, *WARNINGS, "main.c", "model.c", "-lm"], cwd=tmp_path, check=True)
    assert "alloc(" not in (tmp_path / "model.c").read_text()


def test_hostile_names_stay_names(tmp_path):
    data = records(states=list(HOSTILE[:2]), inputs=[HOSTILE[2]], units={HOSTILE[0]: "*/ m"})
    model, _ = network(data)
    folder = tmp_path / '-o "; rm x; #'
    for target in ("c", "numpy"):
        nf.export(model, target, folder, data=data, overwrite=True)
    source = (folder / "model.c").read_text() + (folder / "model.h").read_text() + (folder / "main.c").read_text()
    assert "system" in source and "system(" not in source and "*/ " not in source.replace(" */ ", "")
    tree = ast.parse((folder / "model.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {node.names[0].name for node in imports} == {"numpy"}
    subprocess.run(["gcc", *WARNINGS, "main.c", "model.c", "-lm", "-o", "run"], cwd=folder, check=True)
    assert not list(tmp_path.rglob("pwned"))
    readme = (folder / "README.md").read_text()
    assert not {"<&", "os.system", "/* |"} & set(readme.split()) and "\n??/" not in readme


def test_the_module_needs_numpy_alone(tmp_path):
    model, data = network()
    nf.export(model, "numpy", tmp_path, data=data)
    code = "import sys, model; print(sorted({n.split('.')[0] for n in sys.modules} & {'jax', 'node_fit', 'scipy'}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_field_and_its_jacobian_are_those_of_the_model(tmp_path):
    model, data = network(scaling=SCALED)
    nf.export(model, "numpy", tmp_path, data=data)
    scope: dict = {}
    exec((tmp_path / "model.py").read_text(), scope)
    own = in_double(model)
    with jax.enable_x64(True):
        y, u = np.array([2.5, 0.4]), np.array([0.3])
        expected = own.vector_field(jnp.asarray(3.0), jnp.asarray(y), jnp.asarray(u))
        slopes = jax.jacfwd(own.vector_field, argnums=1)(jnp.asarray(3.0), jnp.asarray(y), jnp.asarray(u))
    np.testing.assert_allclose(scope["field"](3.0, y, u), expected, rtol=1e-10)
    np.testing.assert_allclose(scope["jacobian"](3.0, y, u)[0], slopes, rtol=1e-9)


class Looping(nf.AbstractVectorField):
    """A field with a loop."""

    rate: jax.Array

    def __call__(self, t, y, u):
        return jax.lax.fori_loop(0, 3, lambda _, y: -self.rate * y, y)


def test_what_no_program_holds_is_named(tmp_path):
    model, data = network(field=Looping(jnp.ones(())))
    with pytest.raises(ValueError, match=r"uses 'scan' of JAX|uses 'while' of JAX"):
        nf.export(model, "c", tmp_path / "out", data=data)
    assert not (tmp_path / "out").exists()


def test_files_are_not_replaced_without_a_word(tmp_path):
    model, data = network()
    (tmp_path / "model.py").write_text("mine")
    with pytest.raises(ValueError, match=r"model\.py exists"):
        nf.export(model, "numpy", tmp_path, data=data)
    assert (tmp_path / "model.py").read_text() == "mine"


@pytest.mark.parametrize("target", ["fmu", "onnx", "stablehlo", "sympy", "sbml"])
def test_a_package_that_is_absent_is_named(tmp_path, monkeypatch, target):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=rf'{target} needs \w+, which is not installed: pip install "node_fit\[export\]"'
    ):
        nf.export(network()[0], target, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_steps_converge_with_their_order(tmp_path):
    """Halving the steps of a method of order 5 divides its error by about 32."""
    model, data = network(records(), scaling=nf.Scaling())
    own, errors = in_double(model), []
    expected = own.predict(data)[0]
    for count in (1, 2):
        exported = export_functions(own, "double", Steps("tsit5", np.inf, count))
        scope: dict = {}
        exec(render_numpy(exported)["model.py"], scope)
        errors.append(np.abs(scope["simulate"](data.ts[0], data.ys[0], data.us[0]) - expected).max())
    assert errors[0] / errors[1] > 16


def compiled(folder, exported, main: str, *flags: str, given: str = "") -> list[str]:
    """The words that a program of C prints that calls an exported model."""
    for name, text in {**render_c(exported), "main.c": main}.items():
        (folder / name).write_text(text)
    subprocess.run(["gcc", *WARNINGS, *flags, "main.c", "model.c", "-lm", "-o", "run"], cwd=folder, check=True)
    return subprocess.run(["./run"], cwd=folder, input=given, capture_output=True, text=True, check=True).stdout.split()


def test_c_says_what_it_cannot_simulate_and_reads_nothing_of_no_rows(tmp_path):
    """Of a record without rows, under AddressSanitizer; of one with an absent input, and one that runs away."""
    model, _ = network(field=functools.partial(nf.Known, equations={"x": "x^2 + f", "v": "-v"}))
    none = (
        '#include "model.h"\n#include <stdio.h>\nint main(void)\n{\n    double t[1] = {0};\n'
        "    model_real u[1] = {0}, y[2] = {0}, columns[2];\n"
        '    printf("%d", model_simulate(0, t, u, y, NULL, NULL, NULL, columns, NULL));\n    return 0;\n}\n'
    )
    exported = export_functions(in_double(model), "double", Steps("tsit5", np.inf, 1))
    assert compiled(tmp_path, exported, none, "-fsanitize=address") == ["0"]
    compiled(tmp_path, exported, render_c(exported)["main.c"], given="t,x,v,f\n")
    for rows, code, said in (
        ("1,2,3,0.5\n2,2,3,nan\n", 1, "error: an input is absent or not finite; fill it in (line 3)"),
        ("1,2,3,0.5\n2,2,3,\n", 1, "(line 3)"),
        ("1,1e80,1,0.5\n2,,,0.5\n3,,,0.5\n", 2, "error: a record can't be simulated to its end"),
        ("1,2,3,0.5\n2,2,3,0.5\n", 0, ""),
    ):
        done = subprocess.run(["./run"], cwd=tmp_path, input="t,x,v,f\n" + rows, capture_output=True, text=True)
        assert (done.returncode, said in done.stderr) == (code, True)


# Steps of a share of the rows' spacing, whose times are products or sums: the two are not the same to the last digit.
STEPS = """
#include <stdio.h>
#include "model.h"
int main(void)
{
    for (int parts = 1; parts < 8; parts++)
        for (int adds = 0; adds < 2; adds++) {
            model_real y[2] = {4, 0};
            double t = 0.3;
            for (int k = 0; k < 24 * parts; k++) {
                model_step(adds ? t : 0.3 + k * 0.25 / parts, 0.25 / parts, 0, 0, y);
                t += 0.25 / parts;
            }
            printf("%.9g %.9g ", (double)y[0], (double)y[1]);
        }
    return 0;
}
"""


@pytest.mark.parametrize("precision", ["double", pytest.param("float", marks=pytest.mark.slow)])
def test_steps_of_c_act_once_at_a_level_that_is_zero_between_two_of_them(tmp_path, precision):
    model, _ = counting()
    found = compiled(tmp_path, export_functions(in_double(model), precision, Steps("tsit5", np.inf, 1)), STEPS)
    left = 4 * np.exp(-0.6) + sum(np.exp(-0.1 * 0.25 * (24 - row)) for row in (7, 12, 20))
    np.testing.assert_allclose(
        np.reshape([float(word) for word in found], (-1, 2)), np.tile([left, 3], (14, 1)), rtol=1e-5
    )


@pytest.mark.parametrize(("rows", "before"), [(3, False), (3, True)])
def test_graphs_simulate_records_that_are_shorter_than_what_a_start_reads(rows, before):
    """As the program in NumPy does."""
    model, data = network(start=functools.partial(nf.Encoder, rows=rows, before=before))
    exported = export_functions(in_double(model), "double", Steps("tsit5", np.inf, 1))
    scope: dict = {}
    exec(render_numpy(exported)["model.py"], scope)
    simulate = jax.jit(Whole(exported).simulate)
    for count in (1, 2, 5):
        t, y, u = data.ts[0, :count], data.ys[0, :count], data.us[0, :count]
        with jax.enable_x64(True):
            found = simulate(*map(jnp.asarray, (t, y, u, np.ones((count, 2)), np.zeros((count, 2)))))
        np.testing.assert_allclose(found, scope["simulate"](t, y, u), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["c", "numpy", "fmu"])
def test_triggers_whose_levels_are_zero_at_rows_are_exported(tmp_path, target):
    if target == "fmu":
        pytest.importorskip("fmpy")
    model, data = counting()
    assert nf.export(in_double(model), target, tmp_path, data=data).difference.largest < 1e-9


@pytest.mark.slow
def test_an_ensemble_has_its_mean_and_its_band(tmp_path):
    data = records()
    members = [network(data, scaling=SCALED)[0]]
    members += [eqx.tree_at(lambda m: m.field.network.layers[0].bias, members[0], replace_fn=lambda b: b + 0.05)]
    ensemble = nf.Ensemble.of(members, data, None)
    expected = ensemble.bands(data)
    done = nf.export(ensemble, "c", tmp_path, data=data)
    assert done.difference.largest < 1e-6 and (expected.upper > expected.lower).all()
    header = (tmp_path / "model.h").read_text()
    assert "MODEL_STATES 2 " in header and "MODEL_ALL_STATES 4\n" in header
    nf.export(ensemble, "numpy", tmp_path, data=data, overwrite=True)
    scope: dict = {}
    exec((tmp_path / "model.py").read_text(), scope)
    found = scope["simulate"](data.ts[0], data.ys[0], data.us[0])
    assert scope["COLUMNS"] == ("x", "v", "x_lower", "v_lower", "x_upper", "v_upper")
    np.testing.assert_allclose(found[:, 4:], expected.upper[0], rtol=1e-3)


def test_targets_name_what_they_cannot_carry(tmp_path):
    for package in ("onnx", "onnxruntime", "flatbuffers", "sympy"):
        pytest.importorskip(package)
    model, data = bounce()
    for target in ("onnx", "stablehlo", "sympy"):
        with pytest.raises(ValueError, match=rf"{target} can't carry this model: .*triggers"):
            nf.export(model, target, tmp_path / "out", data=data)
    with pytest.raises(ValueError, match="field of the class MLP"):
        nf.export(network()[0], "sympy", tmp_path / "out")
    assert not (tmp_path / "out").exists()


NEEDED = {"onnx": ("onnx", "onnxruntime"), "stablehlo": ("flatbuffers",), "sympy": ("sympy",), "sbml": ("libsbml",)}


@pytest.mark.slow
@pytest.mark.parametrize("target", NEEDED)
def test_other_targets_predict_what_the_model_does(tmp_path, target):
    for name in NEEDED[target]:
        pytest.importorskip(name)
    if target in ("sympy", "sbml"):
        model, data = network(field=functools.partial(nf.Known, **DECAY))
    else:
        model, data = network(hidden=1, start=nf.Encoder, scaling=SCALED)
    done = nf.export(model, target, tmp_path, data=data)
    assert done.difference.largest < 1e-6 and done.files.keys() <= {each.name for each in tmp_path.iterdir()}


@pytest.mark.parametrize("inputs", ["hold", "linear", "cubic"])
def test_formulas_are_solved_with_the_inputs_of_the_fit(tmp_path, inputs):
    pytest.importorskip("sympy")
    model, data = network(field=functools.partial(nf.Known, **DECAY), solver=nf.Solver(inputs=inputs))
    assert nf.export(in_double(model), "sympy", tmp_path, data=data).difference.largest < 1e-6


def test_the_command_exports_a_model_file(tmp_path, monkeypatch, capsys):
    model, _ = network()
    nf.save(model, tmp_path / "model.safetensors")
    words = ["export", str(tmp_path / "model.safetensors"), "--to", "numpy", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", words)
    command.main()
    assert "largest difference from node_fit.predict" in capsys.readouterr().out
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "| `x` | channel | `m` |" in readme and "Digest" in readme
    monkeypatch.setattr(sys, "argv", [*words[:1], str(tmp_path), *words[2:]])
    with pytest.raises(SystemExit):
        command.main()
    assert "is neither a run directory nor a model file" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_exports_a_run_whose_ranges_are_those_of_its_training_rows(tmp_path):
    ts = np.linspace(0, 4, 41)
    rows = [f"a,{t:.1f},{t / 2 + 1:.6f},{np.cos(t):.6f}" for t in ts]
    (tmp_path / "mine.csv").write_text("\n".join(["id,t,x,y", *rows]))
    split = ("data.split.by=time", "data.split.validation=0", "data.split.test=0.5", 'hydra.run.dir="a run; $(x)"')
    assert node_fit(tmp_path, *DIRECT, *split, "training.steps=2").code == 0
    words = ("a run; $(x)", "--to", "numpy", "--out", "out")
    ran = node_fit(tmp_path, *words, module="node_fit.export")
    assert ran.code == 0 and ran.out.startswith("numpy: model.py in out")
    assert "| `x` | channel |  | 1 | 1.95 |" in (tmp_path / "out" / "README.md").read_text()
    again = node_fit(tmp_path, *words, module="node_fit.export")
    assert again.code == 1 and "exists; choose another folder" in again.sentence
