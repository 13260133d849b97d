"""Headless Chromium, as Debian has it (apt-get install chromium chromium-driver), through selenium."""

from __future__ import annotations

import shutil
from typing import Any, Literal

import pytest

WIDTH, HEIGHT = 1480, 930


class Browser:
    """One window. `run` is script in the page, with what the page's own script declares in reach."""

    def __init__(self, chromium: str, driver: str) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self._chrome = webdriver.Chrome(options=options, service=Service(driver))
        self._chrome.set_script_timeout(60)
        self.show()

    def show(self, scheme: Literal["light", "dark"] = "dark", *, width: int = WIDTH, height: int = HEIGHT) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, url: str) -> None:
        self._chrome.get(url)

    def run(self, script: str, *arguments: object) -> Any:
        return self._chrome.execute_script(script, *arguments)  # type: ignore[no-untyped-call]

    def wait_for(self, condition: str, limit_s: float = 15) -> None:
        """Until the expression is true in the page."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self._chrome, limit_s, poll_frequency=0.1).until(
            lambda _: self.run(f"return Boolean({condition})"), message=condition
        )

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self._chrome).send_keys(*keys).perform()

    def complaints(self) -> list[str]:
        """What the console says, without requests that nobody answered."""
        log = self._chrome.get_log("browser")
        return [line["message"] for line in log if "net::ERR_CONNECTION" not in line["message"]]

    def picture(self) -> bytes:
        """A PNG of the window."""
        return self._chrome.get_screenshot_as_png()

    def close(self) -> None:
        self._chrome.quit()


def start_browser() -> Browser:
    """Skips the test when something is missing."""
    pytest.importorskip("selenium", reason="selenium is not installed")
    found = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if not all(found):
        pytest.skip("chromium or chromedriver is not installed")
    chromium, driver = map(str, found)
    return Browser(chromium, driver)
