"""LaTeX of known equations: symbols, units, numbers, and a file that LaTeX reads as it is."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import node_fit as nf
from node_fit.export.__main__ import stored_confidence
from node_fit.export.latex import as_symbol, as_text, as_unit, render_latex, render_number

UNITS = {"CO_2": "mg/l", "v": "m^2 s**-1 50%", "t": "°C"}
CONSTANTS = {"k_el": 0.5, "alpha1": 3e-5}
SURE = {"level": 0.95, "constants": {"k_el": {"lower": 0.4, "upper": None}}}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("k", "k"),
        ("hare", r"\mathrm{hare}"),
        ("k_el", r"k_{\mathrm{el}}"),
        ("c12", "c_{12}"),
        ("alpha1", r"\alpha_{1}"),
        ("CO_2", r"\mathrm{CO}_{2}"),
        ("x_1_max", r"x_{1,\mathrm{max}}"),
        ("_", r"\text{\_}"),
        ("Größe", r"\text{Größe}"),
    ],
)
def test_names_are_symbols(name, shown):
    assert as_symbol(name) == shown


def test_texts_units_and_numbers_are_what_latex_reads():
    assert as_text(r"a_b & 5 % {x} \y") == r"a\_b \& 5 \% \{x\} \textbackslash{}y"
    assert as_unit("m^2 s**-1") == "m$^{2}$ s$^{-1}$" and as_unit("°C") == r"$^\circ$C"
    numbers = [render_number(value) for value in (0.536529, -5.926e-5, 12345.6, float("-inf"))]
    assert numbers == ["$0.5365$", r"$-5.926 \times 10^{-5}$", r"$1.235 \times 10^{4}$", r"$-\infty$"]


def latex(sure: dict) -> str:
    sp = pytest.importorskip("sympy")
    names = {name: sp.Symbol(name, real=True) for name in ("t", "CO_2", "v", "f", *CONSTANTS)}
    rates = {"CO_2": names["f"] - names["k_el"] * names["CO_2"], "v": names["alpha1"] * names["CO_2"] * names["v"]}
    return render_latex(rates, names, "t", CONSTANTS, UNITS, sure, "1.0")


def test_a_paper_has_equations_units_and_constants_with_intervals():
    """There was `aligned` with letters of names as products, without numbers, units or constants."""
    text = latex(SURE)
    for words in (
        r"\frac{\mathrm{d}\,\mathrm{CO}_{2}}{\mathrm{d}\,t} &=",
        r"k_{\mathrm{el}} \, \mathrm{CO}_{2}",
        r"\alpha_{1} \, \mathrm{CO}_{2} \, v",
        r"- 0.5 \, \mathrm{CO}_{2}",
        r"3.0 \cdot 10^{-5} \, \mathrm{CO}_{2} \, v",
        r"$\mathrm{CO}_{2}$ & CO\_2 & mg/l \\",
        r"$f$ & f &  \\",
        r"$v$ & v & m$^{2}$ s$^{-1}$ 50\% \\",
        r"Constant & Value & 95\,\% interval \\",
        r"$k_{\mathrm{el}}$ & $0.5$ & $0.4$ to $\infty$ \\",
    ):
        assert words in text, words
    assert "interval" not in latex({})
    begun, ended = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
    assert sorted(begun) == sorted(ended) and begun.count("align") == 2


def test_latex_compiles_it(tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("needs pdflatex, for example from the package texlive-latex-base")
    (tmp_path / "formulas.tex").write_text(latex(SURE))
    paper = r"\documentclass{article}\usepackage{amsmath}\begin{document}\input{formulas}\end{document}"
    (tmp_path / "paper.tex").write_text(paper)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / "paper.pdf").is_file(), done.stdout[-2000:]


@pytest.mark.slow
def test_an_export_of_a_fit_has_the_intervals_of_its_constants(tmp_path):
    pytest.importorskip("sympy")
    ts = np.linspace(0.0, 4.0, 20)
    noisy = 2 * np.exp(-0.5 * ts) + 0.01 * np.random.default_rng(0).normal(size=20)
    data = nf.Dataset.from_arrays(ts, noisy, states=["x"])
    field = nf.Known(equations={"x": "-k*x"}, constants={"k": 1.0})
    fit = nf.fit(data, field=field, optimizer="lm", options=nf.Options(effort="quick"))
    nf.export(fit, "sympy", tmp_path / "out")
    own = fit.confidence().constants["k"]
    assert f"${own.lower:.4g}$ to ${own.upper:.4g}$" in (tmp_path / "out" / "formulas.tex").read_text()


def test_intervals_of_a_run_are_those_of_its_summary(tmp_path):
    assert stored_confidence(tmp_path) == {}
    (tmp_path / "summary.json").write_text(json.dumps({"confidence": SURE}))
    assert stored_confidence(tmp_path) == SURE
