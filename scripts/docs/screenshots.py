"""Makes the screenshots of the docs, `docs/report.png` and `docs/index.png`: `python scripts/docs/screenshots.py`.

Needs Chromium, its driver and selenium. Runs a fit of a driven pendulum and a multirun, and opens their pages.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
RUN = ("data=pendulum", "hydra.run.dir=run")
JOBS = (
    "-m", "data=spiral", "data.split.validation=0.25", "training.steps=300", "seed=0,1,2", "field.width=8,32",
    "hydra.sweep.dir=jobs",
)  # fmt: skip
WIDTH, HEIGHT = 1100, 1400
SETTLE = 1.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for words in (RUN, JOBS):
            subprocess.run([sys.executable, "-m", "node_fit", *words], cwd=folder, check=True)
        browser = open_browser()
        try:
            shoot(browser, Path(folder) / "run" / "report.html", DOCS / "report.png")
            shoot(browser, Path(folder) / "jobs" / "index.html", DOCS / "index.png")
        finally:
            browser.quit()


def open_browser() -> Any:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for word in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"):
        options.add_argument(word)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def shoot(browser: Any, page: Path, picture: Path) -> None:
    browser.get(page.as_uri())
    while browser.execute_script("return document.body.dataset.ready") != "true":
        time.sleep(0.1)
    browser.execute_script("document.querySelector('.where').remove()")  # the temporary folder
    time.sleep(SETTLE)  # until pictures have been drawn
    browser.save_screenshot(str(picture))
    print(picture)


if __name__ == "__main__":
    main()
