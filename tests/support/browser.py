"""A headless Chromium for tests of pages; without one the tests are skipped."""

import atexit
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

WAIT_SECONDS = 120  # on a busy machine


@contextmanager
def opened(page: Path, width: int = 1280, dark: bool = False) -> Iterator[Any]:
    """A browser that shows this file, ready to be driven."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser = _started()
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get(page.resolve().as_uri())
    try:
        ready = "return document.body.dataset.ready === 'true'"
        WebDriverWait(browser, WAIT_SECONDS).until(lambda browser: browser.execute_script(ready))
        yield browser
        assert [entry["message"] for entry in browser.get_log("browser")] == []
        assert requests(browser) == []
    finally:
        browser.get("about:blank")
        for kind in ("browser", "performance"):
            browser.get_log(kind)  # empties it for the next page


@cache
def _started() -> Any:
    """One browser for all tests of a process."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no browser: install chromium and chromedriver to run this test")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    atexit.register(browser.quit)
    return browser


def requests(browser: Any) -> list[str]:
    """The addresses that the page asked a network for."""
    import json

    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    sent = (m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent")
    return [url for url in sent if url.startswith(("http:", "https:", "ws:"))]


def fits(browser: Any) -> bool:
    """Whether nothing is wider than the window."""
    return browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def text(browser: Any, id: str) -> str:
    return browser.execute_script("return document.getElementById(arguments[0]).textContent", id)


RECORD_LABELS = """
const draw = CanvasRenderingContext2D.prototype.fillText;
window.cut = [];
CanvasRenderingContext2D.prototype.fillText = function (text, x, y, most = Infinity) {
  const size = this.measureText(text), wide = Math.min(size.width, most);
  const left = x - { left: 0, center: wide / 2, right: wide }[this.textAlign];
  const ratio = this.getTransform().a, room = this.canvas.width / ratio, tall = this.canvas.height / ratio;
  const [top, bottom] = [y - size.actualBoundingBoxAscent, y + size.actualBoundingBoxDescent];
  if (left < -0.5 || left + wide > room + 0.5 || top < -0.5 || bottom > tall + 0.5) window.cut.push(text);
  draw.apply(this, arguments);
};
"""


def cut_labels(browser: Any) -> list[str]:
    """The labels of charts that the edge of their canvas cuts off, when the theme changes and all is drawn again."""
    from selenium.webdriver.common.by import By

    browser.execute_script(RECORD_LABELS)
    browser.find_element(By.TAG_NAME, "body").send_keys("t")
    return browser.execute_script("return [...new Set(window.cut)]")
