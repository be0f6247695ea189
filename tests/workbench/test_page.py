"""The page in a browser: a stranger's table is dropped, fitted, stopped, played with, and taken away as C."""

import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import ENVIRONMENT

pytestmark = pytest.mark.slow
pytest.importorskip("starlette")

ARGUMENTS = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking"


def write_stranger_table(path: Path) -> None:
    """Damped swings as a logger in Germany writes them."""
    ts, random = np.linspace(0, 6, 61), np.random.default_rng(1)
    ys = np.exp(-0.3 * ts)[:, None] * np.stack([np.cos(2 * ts), -2 * np.sin(2 * ts)], axis=1)
    ys += random.normal(0, 0.01, ys.shape)
    rows = [f"{t:.1f};{x:.4f};{v:.4f}".replace(".", ",") for t, (x, v) in zip(ts, ys, strict=True)]
    path.write_text("\n".join(["Zeit;x;v", *rows]) + "\n")


def write_long_table(path: Path) -> None:
    """Many noisy swings, so that a network of many steps goes on for longer than the page takes to stop it."""
    ts, random = np.linspace(0, 20, 300), np.random.default_rng(2)
    lines = ["id,t,x,v"]
    for number, amplitude in enumerate(random.uniform(0.5, 2, 40)):
        ys = amplitude * np.stack([np.cos(2 * ts), -2 * np.sin(2 * ts)], axis=1) + random.normal(0, 0.05, (300, 2))
        lines += [f"r{number},{t:.4f},{x:.4f},{v:.4f}" for t, (x, v) in zip(ts, ys, strict=True)]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def address(tmp_path):
    command = [sys.executable, "-m", "node_fit", "app", str(tmp_path / "work"), "--no-browser"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[-1]
        server.send_signal(signal.SIGINT)
        assert server.wait(20) in (0, 130, -signal.SIGINT)


@pytest.fixture
def driver(tmp_path):
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    service = shutil.which("chromedriver")
    if program is None or service is None:
        pytest.skip("needs Chromium and chromedriver, for example from the packages chromium and chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (*ARGUMENTS.split(), f"--user-data-dir={tmp_path / 'browser'}"):
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": str(tmp_path)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(service))
    yield made
    made.quit()


def until(driver, script: str, seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not driver.execute_script(f"return Boolean({script})"):
        assert time.monotonic() < limit, (script, driver.execute_script("return document.body.innerText"))
        time.sleep(0.1)


@pytest.mark.long
def test_a_stranger_fits_a_table_stops_plays_and_takes_c(address, driver, tmp_path):
    write_stranger_table(tmp_path / "messwerte.csv")
    driver.get(address)
    until(driver, "document.body.dataset.ready === 'true'")
    driver.find_element("id", "file").send_keys(str(tmp_path / "messwerte.csv"))
    until(driver, "table && table.data && !$('fit').disabled")
    assert driver.execute_script("return table.roles.time + ' ' + table.roles.states") == "Zeit x,v"

    driver.execute_script("$('field').value = 'known'; $('equations').value = 'x: v\\nv: -k*x - c*v';")
    driver.execute_script(
        "$('constants').value = 'k = 3\\nc = 0.5'; $('steps').value = 100; $('effort').value = 'quick';"
    )
    driver.execute_script("$('fit').click()")
    until(driver, "run && run.status && run.status !== 'running' && player")
    constants = driver.execute_script("return run.constants")
    assert abs(constants["k"] - 4.09) < 0.1 and abs(constants["c"] - 0.6) < 0.05  # (2 + 0.3i)² of the swings
    until(driver, "$('play').dataset.drawn")
    before = driver.execute_script("return $('curve').data.find(t => t.name === 'x').y.at(-1)")
    driver.execute_script("const bar = document.querySelector('#sliders input'); bar.value = 8; bar.oninput()")
    until(driver, "$('curve').data.find(t => t.name === 'x').y.at(-1) !== " + repr(before), 5)

    first = driver.execute_script("return run.id")
    write_long_table(tmp_path / "long.csv")
    driver.find_element("id", "file").send_keys(str(tmp_path / "long.csv"))
    until(driver, "table && table.data && table.roles.trajectory === 'id' && !$('fit').disabled")
    driver.execute_script("$('field').value = 'mlp'; $('steps').value = 100000; $('fit').click()")
    until(driver, f"run && run.id !== '{first}' && run.status === 'running' && losses.length")
    driver.refresh()  # A fit outlives the page.
    until(driver, "document.body.dataset.ready === 'true' && run && run.status === 'running'")
    until(driver, "$('picture-fit.png')", 20)  # That of a linear model, or of the fit so far.
    driver.execute_script("$('stop').click()")
    until(driver, "run.status === 'interrupted' && run.can_resume", 20)
    stopped = driver.execute_script("return {id: run.id, step: losses.at(-1)[0]}")
    driver.execute_script("$('resume').click()")
    until(driver, f"run.status === 'running' && losses.length && losses.at(-1)[0] > {stopped['step']}", 40)
    driver.execute_script("$('stop').click()")
    until(driver, "run.status !== 'running'", 20)
    assert driver.execute_script("return run.id") == stopped["id"], "it goes on in its own directory"
    assert f"resuming from step {stopped['step']}" in driver.execute_script("return run.printed")
    steps = driver.execute_script("return losses.map(row => row[0])")
    assert steps == sorted(set(steps)), "no step is repeated"

    driver.execute_script(f"openRun('{first}')")
    until(driver, "player && run.files.includes('model')")
    driver.execute_script("$('export-c').click()")
    packed = tmp_path / "model_c.zip"
    until(driver, "$('exported').textContent.includes('--to c')")
    while not packed.is_file():
        time.sleep(0.1)
    zipfile.ZipFile(packed).extractall(tmp_path)
    folder = tmp_path / "model_c"
    if (compiler := shutil.which("cc")) is not None:
        words = [compiler, "-std=c99", "model.c", "main.c", "-lm", "-o", "model"]
        subprocess.run(words, cwd=folder, check=True, timeout=60)
    errors = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert not errors
