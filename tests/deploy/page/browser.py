"""A Chromium without a window, driven through its WebDriver."""

import importlib.util
import os
import shutil
import tempfile

TIMEOUT_S = 40  # seconds for anything that the page is to do


def why_not():
    """Why there is no browser here; None where there is one."""
    for program in ("chromium", "chromedriver"):
        if not shutil.which(program):
            return "no %s: tools/install_deps.sh --tests installs it" % program
    if not importlib.util.find_spec("selenium"):
        return "no selenium: tools/install_deps.sh --tests installs it"
    return None


def _options(folder):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    arguments = [
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-proxy-server",
        "--user-data-dir=" + os.path.join(folder, "profile"),
    ]
    if os.geteuid() == 0:
        # It refuses to sandbox itself for root.
        arguments.append("--no-sandbox")
    for argument in arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return options


class Browser:
    def __init__(self):
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        self.folder = tempfile.mkdtemp(
            prefix="browser", dir=os.environ.get("TEST_TMPDIR")
        )
        # It keeps caches and settings in its home, too.
        os.environ["HOME"] = self.folder
        self.driver = webdriver.Chrome(
            service=Service(
                shutil.which("chromedriver"),
                log_path=os.path.join(self.folder, "driver.log"),
            ),
            options=_options(self.folder),
        )
        self.driver.set_page_load_timeout(TIMEOUT_S)

    def close(self):
        self.driver.quit()
        shutil.rmtree(self.folder, ignore_errors=True)

    def look(self, width=1280, height=1000, dark=False):
        """The window's size, narrower than a real one may be, and its theme."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {
                "width": width,
                "height": height,
                "deviceScaleFactor": 1,
                "mobile": False,
            },
        )
        theme = "dark" if dark else "light"
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": theme}]},
        )

    def open(self, url):
        # Through an empty page: a new '#' alone would not load anything.
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(url)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition, what, timeout=TIMEOUT_S):
        """Until condition() is true; returns it. No time is spent for good."""
        from selenium.common.exceptions import (
            StaleElementReferenceException,
            TimeoutException,
        )
        from selenium.webdriver.support.ui import WebDriverWait

        try:
            return WebDriverWait(
                self.driver,
                timeout,
                poll_frequency=0.05,
                ignored_exceptions=[StaleElementReferenceException],
            ).until(lambda _: condition())
        except TimeoutException:
            shown = self.run("return document.body.innerText")
            raise AssertionError(
                "waited %d s for: %s. The page shows:\n%s"
                % (timeout, what, shown[:4000])
            ) from None

    def wait_for(self, script, what, *arguments):
        return self.wait(lambda: self.run(script, *arguments), what)

    def text(self, selector):
        return self.run(
            "const found = document.querySelector(arguments[0]);"
            "return found ? found.innerText : '';",
            selector,
        )

    def complaints(self):
        """What the browser has logged as an error since the last look."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] == "SEVERE"
        ]
