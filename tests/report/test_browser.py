"""The pages in a browser: what is drawn, in both themes and at several widths, without an error or a connection."""

import contextlib
import json
import re
import shutil
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.reports import by_time, by_trajectory, curves_of, spirals, with_hidden, write_job, write_run

from node_fit import with_events
from node_fit.plots.figures import phase_points
from node_fit.report.pages import make_index, make_run_page

pytestmark = pytest.mark.slow

ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)
NASTY = "<script>window.hit=1</script><img src=x onerror=window.hit=2>%{x}"
# Ends a script or an attribute, and holds what HTML, JavaScript and Plotly would read as more than a text.
EVIL = "</script><img src=x onerror=window.hit=3>\"'\\n&lt;b&gt; <b>%{y}`${1}"
WIDTHS = (360, 400, 1440)


class Browser:
    """A page in a browser without a window."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, path: Path, width: int = 1440, theme: str = "light") -> None:
        self.set_theme(theme)
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get_log("browser")
        self.driver.get(path.as_uri())
        self.until("return document.body.dataset.ready === 'true'")

    def set_theme(self, theme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *arguments):
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, seconds: float = 30.0) -> None:
        limit = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < limit, (script, self.errors())
            time.sleep(0.05)

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def traces(self, picture: str) -> list[dict]:
        """The traces of a picture: name, mode, x and y."""
        keys = "name: t.name, mode: t.mode, x: Array.from(t.x ?? []), y: Array.from(t.y ?? [])"
        return json.loads(self.run(f"return JSON.stringify($('{picture}').data.map(t => ({{{keys}}})))"))

    def count(self, selector: str) -> int:
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).innerText", selector)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs Chromium and chromedriver, for example from the packages chromium and chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    common = pytest.importorskip("selenium.common")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (*ARGUMENTS.split(), f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        with warnings.catch_warnings(action="ignore"):
            made = webdriver.Chrome(options=options, service=Service(driver))
    except common.WebDriverException as error:
        pytest.skip(f"Chromium does not start here: {error.msg}")
    yield Browser(made)
    with contextlib.suppress(OSError):
        made.quit()


@pytest.fixture(scope="module")
def forecast(tmp_path_factory) -> Path:
    """The page of one trajectory whose later rows are forecast, with bands and an input; its names are hostile."""
    inputs = np.random.default_rng(0).normal(size=(1, 40, 1))
    splits = by_time(spirals(1, states=(NASTY, "y"), us=inputs, inputs=("<b>u",)))
    run = write_run(tmp_path_factory.mktemp("forecast") / "run", splits, bands=True)
    curves = curves_of(splits, bands=True)
    return make_run_page(run, curves, -phase_points(curves))


@pytest.fixture(scope="module")
def dosed(tmp_path_factory) -> Path:
    """The page of a fit with doses of a hidden state, whose later rows are forecast."""
    doses = [{"time": time, "state": "gut", "add": 300.0} for time in (1.03, 3.52)]
    splits = by_time(with_events(spirals(1), doses))
    run = write_run(tmp_path_factory.mktemp("dosed") / "run", splits)
    return make_run_page(run, with_hidden(curves_of(splits), "gut"))


@pytest.fixture(scope="module")
def evil(tmp_path_factory) -> Path:
    """The page of a run all of whose texts are hostile."""
    names = [f"{i} {EVIL}" for i in range(6)]
    states, us = (f"x {EVIL}", "y"), np.random.default_rng(0).normal(size=(6, 40, 1))
    data = spirals(states=states, us=us, inputs=(f"u {EVIL}",), time=f"t {EVIL}")
    doses = [{"time": 1.03, "state": f"gut {EVIL}", "add": 300.0}]
    splits = by_trajectory(with_events(replace(data, trajectories=tuple(names)), doses))
    own = {"standard_error": 0.1, "lower": 0.1, "upper": 0.2}
    folder = tmp_path_factory.mktemp("evil") / EVIL.replace("/", "")
    run = write_run(
        folder,
        splits,
        words=(f"+note={EVIL}",),
        constants={EVIL: 0.1},
        confidence={"level": 0.95, "constants": {EVIL: own}, "undetermined": [EVIL], "notes": [EVIL]},
        choices={EVIL: {"value": EVIL, "reason": EVIL}},
        diagnosis={"kind": "good", "sentence": f"good: {EVIL}"},
        reason=EVIL,
        start=EVIL,
        device=EVIL,
        status=EVIL,
    )
    config = {"data": {"units": {"y": EVIL}}, "note": EVIL}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    losses = (run / "metrics.csv").read_text().replace("derivative", '"' + EVIL.replace('"', '""') + '"')
    (run / "metrics.csv").write_text(losses)
    curves = with_hidden(curves_of(splits), f"gut {EVIL}")
    return make_run_page(run, curves, -phase_points(curves))


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Path:
    """The page of six trajectories."""
    splits = by_trajectory(spirals())
    return make_run_page(write_run(tmp_path_factory.mktemp("several") / "run", splits), curves_of(splits))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """The page of a multirun, of whose jobs one has failed and one still runs."""
    folder = tmp_path_factory.mktemp("sweep")
    scores = {"r2": 0.9, "rmse": 0.1, "channels": {}}
    for number, (optimizer, rate, error) in enumerate(
        [("adam", 0.001, 0.3), ("lbfgs", 0.01, 0.1), ("lm", 0.1, 0.2), ("adam", NASTY, 0.0), ("adam", 0.001, 0.0)]
    ):
        metrics = {"train": {"nrmse": error, **scores}, "validation": {"nrmse": 2 * error, **scores}, "test": None}
        failed = {"status": "failed", "reason": "out of memory", "metrics": {}, "seconds": {}} if number == 3 else {}
        words = (f"optimizer={optimizer}", f"optimizer.learning_rate={rate}")
        job = write_job(folder, number, words, **{"metrics": metrics, "seconds": {"total": 10.0 - number}} | failed)
        if number == 4:
            (job / "summary.json").unlink()
    return make_index(folder, running=True)


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("which", ["forecast", "dosed", "evil", "several", "sweep"])
def test_a_page_is_drawn(which, width, theme, browser, request):
    browser.open(request.getfixturevalue(which), width, theme)
    assert browser.errors() == []
    assert browser.run("return document.documentElement.scrollWidth") == width
    pictures = browser.run("return [...drawings.keys()]")
    assert len(pictures) >= 3
    for picture in pictures:
        size = browser.run(
            "const r = $(arguments[0]).getBoundingClientRect(); return [r.left, r.right, r.height]", picture
        )
        assert size[2] >= 150, picture
        assert size[0] >= 0 and (size[1] <= width or picture == "parallel"), picture
        assert browser.count(f"#{picture} .main-svg .scatterlayer .trace") > 0, picture
    shade = browser.run("return getComputedStyle(document.body).backgroundColor")
    ink = browser.run("return getComputedStyle(document.querySelector('.xtick text')).fill")
    light = [sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in (shade, ink)]
    assert (light[0] > 200 and light[1] < 100) if theme == "light" else (light[0] < 60 and light[1] > 150)


@pytest.mark.parametrize("which", ["forecast", "several", "sweep"])
def test_pictures_follow_the_width_at_once(which, browser, request):
    """A phone is turned, or a window is narrowed to print it: nothing is cut off in the very next frame."""
    browser.open(request.getfixturevalue(which), 1440)
    for width in (400, 900):
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        found = browser.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => setTimeout(() => done([innerWidth, "
            "document.documentElement.scrollWidth, ...[...drawings.keys()].filter(id => id !== 'parallel').map(id => "
            "$(id).querySelector('.main-svg').getBoundingClientRect().right)])))"
        )
        assert found[:2] == [width, width]
        assert all(width / 3 < right <= width for right in found[2:]), found
    assert browser.errors() == []


def test_tables_on_a_phone_show_all_columns(browser, tmp_path):
    splits = by_trajectory(spirals())
    own = {"standard_error": 0.00471234, "lower": 0.186994, "upper": 0.205571}
    scores = {split: {"nrmse": 2.345, "channels": {}} for split in splits}
    run = write_run(
        tmp_path / "run",
        splits,
        constants={"k_absorbed": 0.196064},
        confidence={"level": 0.95, "constants": {"k_absorbed": own}},
        baselines={"mean": scores, "persistence": scores},
    )
    browser.open(make_run_page(run, curves_of(splits)), 400)
    widths = "return [...document.querySelectorAll('.wide')].map(each => [each.scrollWidth, each.clientWidth])"
    found = browser.run(widths)
    assert len(found) >= 4 and all(inner <= outer for inner, outer in found), found


def test_a_fit_with_its_forecast(browser, forecast):
    browser.open(forecast)
    assert browser.run("return window.hit") is None
    assert NASTY in browser.text("h1")
    assert browser.run("return $('fit').querySelector('.annotation-text').textContent").split() == NASTY.split()
    traces = browser.traces("fit")
    named = {
        name: [trace for trace in traces if trace.get("name") == name] for name in ("fitted", "test", "model", "band")
    }
    assert [len(found) for found in named.values()] == [2, 2, 4, 4]  # Two states, in two segments.
    assert [len(trace["x"]) for trace in (*named["fitted"], *named["test"])] == [30, 30, 10, 10]
    (driven,) = [trace for trace in traces if trace.get("name") == "input"]  # One line across both segments.
    assert driven["x"] == sorted(driven["x"]) and len(driven["x"]) == 40
    assert browser.count("#fit .points path") == 80  # Every measurement of both states.
    assert browser.run("return $('fit').layout.shapes.length") == 3  # Where it is a forecast, in each panel.
    phase = {trace["name"]: trace for trace in browser.traces("phase")}
    assert {"vector field", "model, fitted", "model, held out", "start"} <= set(phase)
    assert len(phase["vector field"]["x"]) > 1000
    assert [browser.count(f"#loss{stage} .trace") for stage in (0, 1)] == [3, 3]
    assert browser.traces("loss1")[0]["x"] == [30, 40]
    assert browser.run("return $('loss0').layout.xaxis.range[1] < $('loss1').layout.xaxis.range[0]")


def test_doses_and_hidden_states_are_drawn(browser, dosed):
    browser.open(dosed)
    marks = [trace for trace in browser.traces("fit") if trace.get("name") == "event"]
    assert [trace["x"] for trace in marks] == [[1.03, 3.52]] * 3  # In the panels of two states and of the hidden one.
    texts = "return $('fit').data.filter(trace => trace.name === 'event').map(trace => trace.text)"
    assert browser.run(texts) == [["gut + 300"] * 2] * 3
    assert browser.count("#fit .point") == 3 * 2 + 2 * 40
    titles = browser.run("return [...$('fit').querySelectorAll('.annotation-text')].map(each => each.textContent)")
    assert titles == ["x [m]", "y", "gut hidden", "forecast"]
    curves = [trace for trace in browser.traces("fit") if trace.get("name") == "model"]
    assert len(curves) == 6  # Three states, in two segments.
    np.testing.assert_allclose(curves[4]["y"], np.add(curves[0]["y"], curves[2]["y"]), rtol=1e-4, atol=1e-4)
    assert browser.count("#fit .legend .traces") == 4  # Fitted, model, test, event.


def test_all_texts_are_shown_as_they_are(browser, evil):
    browser.open(evil)

    def shown(selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(each => each.textContent)"
        return [re.sub(r"\s+", " ", text) for text in browser.run(script, selector)]

    assert browser.errors() == []
    fit = [f"x {EVIL}", f"y [{EVIL}]", f"gut {EVIL} hidden", f"u {EVIL}"]
    assert shown("#fit .annotation-text") == fit and shown("#fit .xtitle") == [f"t {EVIL}"]
    assert shown("#residuals .annotation-text") == fit[:2]
    assert shown("#phase .xtitle") + shown("#phase .ytitle") == fit[:2]
    assert f"x {EVIL} stands still" in shown("#phase .legendtext")
    assert shown("#correlation .legendtext")[0] == f"x {EVIL}, train"
    entries = browser.run("return [...$('pick').options].map(each => each.textContent)")
    assert sum(f"{i} {EVIL}" in entry for i, entry in enumerate(sorted(entries))) == 6
    assert shown("h1 ~ .verdict") == [EVIL] and EVIL in shown("title")[0] + shown("h1")[0]
    assert shown("#command")[0].count("</script>") == 1
    assert len([text for text in shown("td") if EVIL in text]) == 6 and EVIL in shown("h3")
    assert shown("details pre") == [re.sub(r"\s+", " ", (evil.parent / "config.yaml").read_text())]
    # What the pointer shows, of events, of errors, and of the distribution.
    escaped = EVIL.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    texts = "return $(arguments[0]).data.flatMap(trace => [trace.name, ...[trace.text ?? []].flat()])"
    assert f"gut {escaped} + 300" in browser.run(texts, "fit")
    assert f"3 {escaped}" in browser.run(texts, "errors")
    assert f"x {escaped}, test" in browser.run(texts, "distribution")
    assert browser.count("main img, main script, main b") == 0
    assert browser.run("return window.hit") is None


def test_a_job_with_a_hostile_name_is_a_text_and_a_link(browser, tmp_path):
    name = EVIL.replace("</", "<") + "#?%41"
    for number, words in ((0, "1"), (1, EVIL)):
        write_job(tmp_path, number, (f"+note={words}",))
    (tmp_path / "1").rename(tmp_path / name)
    (tmp_path / name / "report.html").touch()
    browser.open(make_index(tmp_path))
    assert browser.errors() == [] and browser.run("return window.hit") is None
    cells = "return [...$('table').tBodies[0].rows].map(row => [...row.cells].map(each => each.textContent))"
    rows = {row[0]: row for row in browser.run(cells)}
    assert set(rows) == {"0", name} and EVIL in rows[name]
    values = "return [...document.querySelectorAll('td[data-value]')].map(each => each.dataset.value)"
    assert {name, EVIL} <= set(browser.run(values))
    links = "return [...document.querySelectorAll('td a')].map(each => decodeURIComponent(new URL(each.href).pathname))"
    assert str(tmp_path / name / "report.html") in browser.run(links)
    escaped = EVIL.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    texts = "return $(arguments[0]).data.flatMap(trace => [trace.text].flat())"
    for picture in ("parallel", "scatter", "curves"):
        assert any(f"+note={escaped}" in text or f"note={escaped}" in text for text in browser.run(texts, picture))
    assert browser.run("return $('table').querySelectorAll('img, script, b').length") == 0
    opened = (
        "let at; window.open = path => at = path; "
        "$('scatter').emit('plotly_click', {points: [{customdata: arguments[0]}]});"
        "return decodeURIComponent(new URL(at, location).pathname)"
    )
    assert browser.run(opened, f"{name}/report.html") == str(tmp_path / name / "report.html")


def test_the_pointer_shows_numbers_and_a_drag_zooms(browser, forecast):
    browser.open(forecast)
    box = browser.run("const r = document.querySelector('#fit .nsewdrag').getBoundingClientRect(); "
                      "return [r.left + scrollX, r.top + scrollY, r.width, r.height]")  # fmt: skip
    browser.run("scrollTo(0, 0)")

    def mouse(kind: str, across: float, **more) -> None:
        event = {"type": kind, "x": box[0] + across * box[2], "y": box[1] + 0.5 * box[3], **more}
        browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    mouse("mouseMoved", 0.3)
    browser.until("return document.querySelectorAll('#fit .hoverlayer text').length > 0")
    before = browser.run("return $('fit').layout.xaxis.range")
    mouse("mousePressed", 0.2, button="left", clickCount=1)
    mouse("mouseMoved", 0.35, button="left")
    mouse("mouseMoved", 0.5, button="left")
    mouse("mouseReleased", 0.5, button="left", clickCount=1)
    browser.until("const [a, b] = $('fit').layout.xaxis.range; return b - a < 3")
    after = browser.run("return $('fit').layout.xaxis.range")
    assert after[1] - after[0] == pytest.approx(0.3 * (before[1] - before[0]), rel=0.1)


def test_a_trajectory_is_picked(browser, several):
    browser.open(several)
    options = browser.run("return [...$('pick').options].map(each => each.textContent)")
    assert len(options) == 6 and sum("(median)" in each for each in options) == 2
    first = browser.traces("fit")
    browser.run("$('pick').value = [...$('pick').options].find(o => o.textContent.startsWith('2 ')).value; "
                "$('pick').dispatchEvent(new Event('change'))")  # fmt: skip
    picked = browser.traces("fit")
    assert [trace["name"] for trace in picked] == ["fitted", "model"] * 2
    assert picked[0]["y"] != first[0]["y"]
    np.testing.assert_allclose(picked[0]["y"], spirals().ys[2, :, 0], rtol=1e-4, atol=1e-9)
    browser.run("$('next').click()")
    assert browser.traces("fit")[0]["y"] != picked[0]["y"]
    points = browser.traces("errors")
    assert sorted(len(trace["x"]) for trace in points) == [3, 3]
    assert browser.errors() == []


def test_pictures_follow_the_theme(browser, several):
    browser.open(several)
    before = browser.run("return $('fit').layout.font.color")
    browser.set_theme("dark")
    browser.until("return $('fit').layout.font.color === '#e4e6e8'")
    assert before == "#24272b" and browser.errors() == []


def test_jobs_are_sorted_and_compared(browser, sweep):
    browser.open(sweep)
    assert browser.run("return window.hit") is None

    def column(place: int) -> list[str]:
        script = "return [...$('table').tBodies[0].rows].map(row => row.cells[arguments[0]].innerText)"
        return browser.run(script, place)

    assert column(0)[:3] == ["1", "2", "0"]
    assert dict(zip(column(0), column(3), strict=True)) == {
        "0": "completed", "1": "completed", "2": "completed", "3": "failed", "4": "running",
    }  # fmt: skip
    headings = browser.run("return [...$('table').tHead.rows[0].cells].map(cell => cell.innerText)")
    seconds = headings.index("seconds")
    browser.run("$('table').tHead.rows[0].cells[arguments[0]].click()", seconds)
    assert column(0)[:3] == ["2", "1", "0"] and column(seconds)[3:] == ["–", "–"]
    browser.run("$('table').tHead.rows[0].cells[arguments[0]].click()", seconds)
    assert column(0)[:3] == ["0", "1", "2"]
    lines = browser.traces("parallel")
    assert len(lines) == 3 and all(len(line["x"]) == 4 for line in lines)  # Two keys, the score, seconds.
    assert sorted(browser.traces("scatter")[0]["y"]) == [0.2, 0.4, 0.6]
    assert len(browser.traces("curves")) == 5  # The job that runs has one, too.
    browser.run("$('up').value = 'seconds'; $('up').dispatchEvent(new Event('change'))")
    assert sorted(browser.traces("scatter")[0]["y"]) == [8, 9, 10]
    assert browser.errors() == []
