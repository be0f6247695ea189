"""The site: it builds without a warning, its reference has every key and name, and it quotes what the program says."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import node_fit

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
needs_mkdocs = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "mkdocstrings", "nbconvert")),
    reason="mkdocs-material, mkdocstrings or nbconvert is not installed: pip install -e '.[docs]'",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def code(page: Path) -> set[str]:
    return {unescape(text) for text in re.findall(r"<code>(.*?)</code>", page.read_text())}


def leaves(node: dict, name: str = "") -> set[str]:
    """The keys of a config with dots; empty dicts count as values."""
    found = set()
    for key, value in node.items():
        if key.startswith("_"):
            continue
        whole = f"{name}.{key}".lstrip(".")
        found |= leaves(value, whole) if isinstance(value, dict) and value else {whole}
    return found


@pytest.mark.slow
@needs_mkdocs
def test_the_reference_has_every_key_of_the_config(site):
    words = code(site / "keys" / "index.html")
    top = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "config.yaml"))
    keys = leaves({key: value for key, value in top.items() if key not in ("defaults", "hydra")})
    for group in ("field", "start", "observation", "solver", "optimizer", "recipe", "device"):
        for path in (ROOT / "conf" / group).glob("*.yaml"):
            assert f"{group}={path.stem}" in words
            if (group, path.stem) != ("start", "auto"):
                keys |= {f"{group}.{key}" for key in leaves(OmegaConf.to_container(OmegaConf.load(path)))}
    table = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "data" / "table.yaml"))
    keys |= {f"data.{key}" for key in leaves(table)}
    assert len(keys) > 100 and not keys - words


@pytest.mark.slow
@needs_mkdocs
def test_every_key_is_explained(site):
    rows = re.findall(
        r"<tr>\s*<td>(.*?)</td>\s*<td>.*?</td>\s*<td>(.*?)</td>", (site / "keys" / "index.html").read_text()
    )
    unsaid = [re.sub("<.*?>", "", key) for key, told in rows if not told.strip()]
    assert rows and not [key for key in unsaid if not key.startswith(("tune.space", "device."))]


@pytest.mark.slow
@needs_mkdocs
def test_the_reference_has_every_public_name(site):
    text = (site / "api" / "index.html").read_text()
    assert not [name for name in node_fit.__all__ if f'id="node_fit.{name}"' not in text]


@pytest.mark.slow
@needs_mkdocs
def test_the_reference_shows_what_users_call_and_no_internals(site):
    text = (site / "api" / "index.html").read_text()
    shown = set(re.findall(r'id="node_fit\.(\w+\.\w+)"', text))
    assert {"Fit.predict", "NeuralODE.simulate", "Callback.on_chunk_end", "Dataset.split"} <= shown
    assert not shown & {
        "Fit.evidence",
        "Solver.solve_held",
        "Options.placement_for",
        "Scaling.mark_angles",
        "Known.apply_triggers",
    }
    path = ROOT / "scripts" / "docs" / "site_pages.py"
    spec = importlib.util.spec_from_file_location("site_pages", path)
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    listed = {f"{name}.{member}" for name, members in pages.MEMBERS.items() for member in members.split()}
    assert not listed - shown


@pytest.mark.slow
@needs_mkdocs
def test_every_page_is_in_the_menu(site):
    menu = (ROOT / "mkdocs.yml").read_text()
    pages = {path.parent.name for path in site.glob("*/index.html")}
    assert len(pages) > 20 and not [page for page in pages if f"{page}.md" not in menu]


def said_by_the_program() -> list[str]:
    """All texts in the package, with a gap where a text has a value in it."""
    found = []
    for path in (ROOT / "node_fit").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def quotes() -> list[str]:
    """What the first column of a table in troubleshooting.md quotes, cut where a value stands."""
    found = []
    for line in (DOCS / "troubleshooting.md").read_text().splitlines():
        if line.startswith("| `"):
            for text in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
                found += [part.strip() for part in text.split("…") if part.strip()]
    return found


def test_what_troubleshooting_quotes_is_what_the_program_says():
    said = said_by_the_program()
    assert len(quotes()) > 40
    assert not [quote for quote in quotes() if not any(quote in text for text in said)]


def test_troubleshooting_has_every_verdict():
    from node_fit.evaluation.diagnosis import Kind

    text = (DOCS / "troubleshooting.md").read_text()
    assert not [kind for kind in Kind.__args__ if f"| `{kind}: " not in text]


def test_each_page_of_the_gallery_has_a_command_a_picture_and_figures():
    index, pages = (DOCS / "gallery.md").read_text(), sorted(DOCS.glob("gallery_*.md"))
    assert len(pages) == 16
    for page in pages:
        text, picture = page.read_text(), page.with_suffix(".png")
        assert "\npython -m node_fit " in text and f"]({picture.name})" in text and f"]({page.name})" in index
        assert picture.stat().st_size < 80_000
        assert re.search(
            r"<!-- measured by: python scripts/docs/gallery.py \w+ -->\n\| quantity.*<!-- end -->", text, re.DOTALL
        )


def test_links_have_the_titles_of_pages():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md")]:
        assert not re.findall(r"\[[`\w/]+\.md`?\]\([^)]*\)", page.read_text()), page


def test_readme_is_short_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 120
    links = [link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text)]
    assert len(links) > 10 and not [link for link in links if not (ROOT / link).exists()]
