"""A real browser for the tests: Debian's chromium, driven by its chromedriver."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from ...waiting import PATIENCE

__all__ = ["Browser", "browser", "missing"]

_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


def missing() -> str | None:
    """Why there is no browser here, or None."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"needs {' and '.join(absent)}: apt-get install chromium chromium-driver" if absent else None


class Browser:
    """A page in a browser, as a visitor has it."""

    def __init__(self, driver: webdriver.Chrome, downloads: Path) -> None:
        self.driver = driver
        self.downloads = downloads

    def find(self, name: str) -> WebElement:
        """The element of this id."""
        return self.driver.find_element(By.ID, name)

    def text(self, name: str) -> str:
        """What a visitor reads in the element of this id."""
        return str(self.find(name).text)

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript as a debugger does, beside the page's own."""
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait for something to be true."""
        return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05).until(lambda _: condition())

    def shows(self, name: str, attribute: str, value: str) -> None:
        """Wait until an attribute of an element has this value."""
        self.until(lambda: self.find(name).get_attribute(attribute) == value)

    def state(self) -> str:
        """What the page is at: asking, certified, abstained or idle."""
        return str(self.run("return document.documentElement.dataset.state"))

    def settled(self) -> None:
        """Wait until the answer is there, and the walk away from the picture."""
        self.until(lambda: self.state() in ("certified", "abstained") and self.text("own-says"))

    def downloaded(self, name: str) -> bytes:
        """A file that the page saved; a download has another name until it is complete."""
        self.until((self.downloads / name).is_file)
        return (self.downloads / name).read_bytes()

    def requests(self) -> list[str]:
        """The addresses that the page has asked since the last call, whether or not they answered."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """What the console has said since the last call: errors of scripts, violations of the policy, refusals."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a new profile."""
    options = webdriver.ChromeOptions()
    for option in _OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        downloads = Path(profile) / "downloads"
        downloads.mkdir()
        options.add_argument(f"--user-data-dir={profile}/profile")
        options.add_argument("--window-size=1200,900")
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)})
            yield Browser(driver, downloads)
        finally:
            driver.quit()
