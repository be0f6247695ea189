"""Files of strangers that ask for much time or memory, or for what is not theirs, and how each is read."""

import gzip
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import node_fit
from node_fit.app.config.composition import read_config
from node_fit.app.run_directory import read_record
from node_fit.model.fields.equations import read_equation_lines
from node_fit.petab.sbml import read_sbml

from .petab import FILES, mathml, quantities, sbml, write_problem


class HostileFile(NamedTuple):
    """A file that ends in a sentence.

    - `write`: writes it into a folder, and returns its path.
    - `read`: what a user does with it.
    - `reason`: a part of the sentence.
    - `is_cheap`: whether writing it takes no second.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], object]
    reason: str
    is_cheap: bool = True


def problem(**changed: str) -> Callable[[Path], Path]:
    return lambda folder: write_problem(folder / "problem", **changed)


def file(name: str, content: str | bytes | Callable[[], bytes]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        made = content() if callable(content) else content
        (folder / name).write_bytes(made.encode() if isinstance(made, str) else made)
        return folder / name

    return write


def read_table(path: Path) -> object:
    return node_fit.read_table(path, time="t", states=["x"])


def with_noise(text: str) -> dict[str, str]:
    return {"observables_tsv": FILES["observables.tsv"].replace("\tsigma\t", f"\t{text}\t")}


def observables(*formulas: str) -> str:
    rows = [f"o{at}\t{formula}\t1" for at, formula in enumerate(formulas)]
    return "\n".join(["observableId\tobservableFormula\tnoiseFormula", *rows]) + "\n"


def functions(count: int, body: str) -> str:
    """Functions of which each calls the one before, by a body such as `CALL + CALL`."""

    def call(at: int) -> str:
        return f"<apply><ci>f{at}</ci><ci>u</ci></apply>"

    texts = [
        f"<functionDefinition id='f{at}'>"
        + mathml(
            f"<lambda><bvar><ci>u</ci></bvar>{body.replace('CALL', call(at - 1)) if at else '<ci>u</ci>'}</lambda>"
        )
        + "</functionDefinition>"
        for at in range(count)
    ]
    return sbml(f"<listOfFunctionDefinitions>{''.join(texts)}</listOfFunctionDefinitions>" + quantities(x=1.0))


def rules(count: int, first: str = "<cn>1</cn>") -> str:
    """Rules of which each adds one to the one before."""
    texts = [
        f"<assignmentRule variable='r{at}'>"
        + mathml(f"<apply><plus/><ci>r{at - 1}</ci><cn>1</cn></apply>" if at else first)
        + "</assignmentRule>"
        for at in range(count)
    ]
    return sbml(quantities(**{f"r{at}": 0.0 for at in range(count)}) + f"<listOfRules>{''.join(texts)}</listOfRules>")


def rule(math: str) -> str:
    return sbml(quantities(x=1.0) + f"<listOfRules><rateRule variable='x'>{mathml(math)}</rateRule></listOfRules>")


ALIASES = "format_version: 1\na0: &a0 [x, x]\n" + "".join(
    f"a{at}: &a{at} [{', '.join(10 * [f'*a{at - 1}'])}]\n" for at in range(1, 12)
)
LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a0 "ha">'
    + "".join(f'<!ENTITY a{at} "{10 * f"&a{at - 1};"}">' for at in range(1, 10))
    + "]>"
)


def packed_zeros(megabytes: int) -> bytes:
    """Zeros, packed a thousand times smaller."""
    packer, piece = zlib.compressobj(1), bytes(1 << 20)
    return b"".join([*(packer.compress(piece) for _ in range(megabytes)), packer.flush()])


def matlab(megabytes: int) -> bytes:
    """A MATLAB file with a packed column."""
    size = megabytes << 20
    head = struct.pack("<IIIIIIIIHH4sII", 14, size + 48, 6, 8, 6, 0, 5, 8, 1, 1, b"t\0\0\0", 9, size)
    packer, piece = zlib.compressobj(1), bytes(1 << 20)
    parts = [packer.compress(head), *(packer.compress(piece) for _ in range(megabytes)), packer.flush()]
    packed = b"".join(parts)
    return (
        b"MATLAB 5.0 MAT-file".ljust(124)
        + struct.pack("<H2s", 0x0100, b"IM")
        + struct.pack("<II", 15, len(packed))
        + packed
    )


def numpy_archive(megabytes: int) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("t.npy", "x.npy"):
            with archive.open(name, "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(
                    member, {"descr": "<f8", "fortran_order": False, "shape": (megabytes << 17,)}
                )
                for _ in range(megabytes):
                    member.write(bytes(1 << 20))
    return content.getvalue()


def archive_that_overstates() -> bytes:
    """An array of a few bytes that says it has 8 TB."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)})
    return content.getvalue() + bytes(80)


def record(text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "config.yaml").write_text("data: {}\n")
        (folder / ".run.json").write_text(text)
        return folder

    return write


def long_path(name: str) -> Callable[[Path], Path]:
    return lambda folder: folder / name


PETAB, SBML, EQUATIONS = node_fit.read_petab, read_sbml, read_equation_lines
DEEP, LONG = "nested", "n" * 5000
HOSTILE_FILES = {
    # Formulas that expand
    "observables that double": HostileFile(
        problem(observables_tsv=observables("x", *(f"o{at} + o{at}" for at in range(40)))),
        PETAB,
        "the observable 'o13': with its names written out, the formula is nested over 250 deep or has over 10,000",
    ),
    "observables that are squared": HostileFile(
        problem(observables_tsv=observables("x", *(f"o{at} * o{at} * o{at}" for at in range(60)))),
        PETAB,
        "10,000 parts",
    ),
    "observables in a chain of 3,000": HostileFile(
        problem(observables_tsv=observables("x", *(f"o{at} - 1" for at in range(3000)))), PETAB, "nested over 250 deep"
    ),
    "observables of 9,000 parts each": HostileFile(
        problem(observables_tsv=observables(*(["+".join(9 * ["(" + "+".join(900 * ["x"]) + ")"])] * 40))),
        PETAB,
        "the observables and their noise have over 100,000 parts",
    ),
    "a sum of 20,000 terms": HostileFile(
        problem(**with_noise(" + ".join(["x"] * 20_000))), PETAB, "over 1000 values are joined by '+'"
    ),
    "20,000 differences": HostileFile(
        problem(**with_noise(" - ".join(["x"] * 20_000))), PETAB, "nested over 250 deep or has over 10,000 parts"
    ),
    "sums of sums": HostileFile(
        problem(**with_noise("+".join(["(" + "+".join(["x"] * 900) + ")"] * 12))), PETAB, "over 10,000 parts"
    ),
    "5,000 parentheses": HostileFile(problem(**with_noise("(" * 5000 + "x" + ")" * 5000)), PETAB, "more than 100 deep"),
    "5,000 signs": HostileFile(problem(**with_noise("-" * 5000 + "x")), PETAB, "more than 100 deep"),
    "5,000 powers": HostileFile(problem(**with_noise("^".join(["x"] * 5000))), PETAB, "more than 100 deep"),
    "a cell of 200,000 letters": HostileFile(
        problem(**with_noise("x" * 200_000)), PETAB, "field larger than field limit"
    ),
    "50,000 columns": HostileFile(
        problem(
            conditions_tsv="conditionId\t" + "\t".join(f"c{at}" for at in range(50_000)) + "\tc7\nlow" + "\t1" * 50_001
        ),
        PETAB,
        "the column 'c7' is given twice",
    ),
    "rules in a chain of 3,000": HostileFile(
        problem(model_xml=rules(3000)), PETAB, "rules refer to each other in a long chain that ends at 'r250'"
    ),
    "rules in a circle of 3,000": HostileFile(
        problem(model_xml=rules(3000, "<ci>r2999</ci>")), PETAB, "refer to each other in a circle"
    ),
    "functions that double": HostileFile(
        file("model.xml", functions(60, "<apply><plus/>CALL CALL</apply>")), SBML, "expand to over 200,000 parts"
    ),
    "functions in a chain of 3,000": HostileFile(
        file("model.xml", functions(3000, "<apply><plus/>CALL<cn>1</cn></apply>")), SBML, "its functions expand to"
    ),
    "functions in a chain of 300": HostileFile(
        file("model.xml", functions(300, "<apply><plus/>CALL<cn>1</cn></apply>")), SBML, "or over 250 deep"
    ),
    "a function of itself": HostileFile(
        file("model.xml", functions(2, "<apply><plus/>CALL<apply><ci>f1</ci><ci>u</ci></apply></apply>")),
        SBML,
        "'f1' is not a function that is defined before its use",
    ),
    "a call of 5,000 arguments": HostileFile(
        file("model.xml", rule("<apply><plus/>" + "<ci>x</ci>" * 5000 + "</apply>")), SBML, "nested over 100 deep"
    ),
    "mathematics of 300 levels": HostileFile(
        file("model.xml", rule("<apply><sin/>" * 300 + "<ci>x</ci>" + "</apply>" * 300)), SBML, "nested over 100 deep"
    ),
    # XML and YAML
    "entities of XML": HostileFile(file("model.xml", LAUGHS + "<sbml>&a9;</sbml>"), SBML, "document type or entities"),
    "a file that XML includes": HostileFile(
        file("model.xml", '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><sbml>&a;</sbml>'),
        SBML,
        "document type or entities",
    ),
    "XML of 100,000 levels": HostileFile(file("model.xml", "<sbml>" + "<a>" * 100_000), SBML, "elements are nested"),
    "aliases of YAML": HostileFile(problem(problem_yaml=ALIASES), PETAB, "line 3 has an alias"),
    "YAML of 20,000 levels": HostileFile(problem(problem_yaml="- " * 20_000), PETAB, "is nested over 50 deep"),
    "brackets of YAML": HostileFile(problem(problem_yaml="[" * 90_000), PETAB, "is not YAML"),
    "a number of 90,000 digits": HostileFile(
        problem(problem_yaml="a: " + "9" * 90_000), PETAB, "over 10,000 characters"
    ),
    "a number to base 60": HostileFile(problem(problem_yaml="a: 1" + ":59" * 30_000), PETAB, "over 10,000 characters"),
    "20,000 keys": HostileFile(
        problem(problem_yaml="".join(f"k{at}: \n" for at in range(9_000)) + "k7: \n"), PETAB, "repeats the key 'k7'"
    ),
    "YAML that calls": HostileFile(
        problem(problem_yaml="!!python/object/apply:os.system [ls]"), PETAB, "format_version must be 1 or 2"
    ),
    "a YAML file of 200 kB": HostileFile(problem(problem_yaml="#" * 200_000), PETAB, "has over 100,000 bytes"),
    "aliases in a config": HostileFile(file("config.yaml", ALIASES), read_config, "line 3 has an alias"),
    "a config of 20,000 levels": HostileFile(file("config.yaml", "- " * 20_000), read_config, "nested over 50 deep"),
    "a config to base 60": HostileFile(
        file("config.yaml", "a: 1" + ":59" * 1_000_000), read_config, "over 10,000 characters"
    ),
    "a record of 100,000 levels": HostileFile(
        record("[" * 100_000), lambda path: read_record(path, "run"), "its .run.json can't be read"
    ),
    # Names of files
    "a PEtab file with a long name": HostileFile(long_path(LONG), PETAB, "a name in it has at most 255 bytes"),
    "a table with a long name": HostileFile(long_path(LONG), read_table, "a name in it has at most 255 bytes"),
    "a model with a long name": HostileFile(long_path(LONG), node_fit.load, "a name in it has at most 255 bytes"),
    "a table with a NUL in its name": HostileFile(long_path("a\0b"), read_table, "holds a NUL byte"),
    "a long name in a problem": HostileFile(
        problem(problem_yaml=FILES["problem.yaml"].replace("model.xml", LONG)), PETAB, "at most 255 bytes"
    ),
    "a NUL in a problem": HostileFile(
        problem(problem_yaml=FILES["problem.yaml"].replace("model.xml", '"a\\0b"')), PETAB, "holds a NUL byte"
    ),
    "a file elsewhere": HostileFile(
        problem(problem_yaml=FILES["problem.yaml"].replace("model.xml", "../../etc/passwd")),
        PETAB,
        "outside the problem's folder",
    ),
    # Equations
    "900,000 blanks before an equation": HostileFile(
        file("model.txt", " " * 900_000 + "x"), EQUATIONS, "line 1: write a"
    ),
    "an equation of 900,000 letters": HostileFile(
        file("model.txt", "x: " + "a" * 900_000), EQUATIONS, "over the limit of"
    ),
    "an equation of 900 levels": HostileFile(file("model.txt", "x: " + "(" * 900 + "x" + ")" * 900), EQUATIONS, DEEP),
    "an equation of 900 signs": HostileFile(file("model.txt", "x: " + "-" * 900 + "x"), EQUATIONS, DEEP),
    # Tables
    "a gzipped table of zeros": HostileFile(
        file("t.csv.gz", lambda: gzip.compress(b"t,x\n" + b"0" * (300 << 20), 1)), read_table, "once unpacked", False
    ),
    "a MATLAB file of 800 MB": HostileFile(file("t.mat", lambda: matlab(800)), read_table, "once unpacked", False),
    "an archive of 1.2 GB": HostileFile(file("t.npz", lambda: numpy_archive(600)), read_table, "once unpacked", False),
    "an array that says it has 8 TB": HostileFile(
        file("t.npy", archive_that_overstates), read_table, "cannot be read as"
    ),
    "a line of 20 MB": HostileFile(file("t.csv", "t,x\n" + "1" * (20 << 20) + "\n"), read_table, "line 2", False),
    "a quote that is not closed": HostileFile(file("t.csv", 't,x\n0,"' + "1\n" * 1_000_000), read_table, "line 2"),
    "a table of 50,000 columns": HostileFile(
        file("t.csv", ",".join(f"c{at}" for at in range(50_000)) + "\n"), read_table, "has no column"
    ),
    # Models
    "a model that nests without end": HostileFile(
        file(
            "m.safetensors",
            lambda: (lambda head: struct.pack("<Q", len(head)) + head)(
                json.dumps({"__metadata__": {"node_fit": "[" * 100_000}}).encode()
            ),
        ),
        node_fit.load,
        "is not a model file, or is damaged",
    ),
}
