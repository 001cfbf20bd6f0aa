"""Pages in a real browser: what a test opens must cause no error and no foreign request, and must be readable."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.architecture.tree import ROOT
from tests.fakes.chromium import find_chromium

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
SCHEMES = ("light", "dark")
SCREENSHOTS = "COVEY_SCREENSHOTS"
"""Environment variable with the folder for screenshots, which `make screenshots` sets."""
SECONDS = 60_000
"""Deadline of a step in a browser, in milliseconds."""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start Chromium, or skip the test if there is none."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("needs Chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Browser, url: str, *, size: str = "desktop", scheme: str = "light") -> Iterator[Page]:
    """Open a page of the server at `url`.

    It must cause no error, no violation of its policy, and no request to another host.
    """
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page, complaints, own = context.new_page(), list[str](), (f"{url}/", "data:", "blob:")
    page.set_default_timeout(SECONDS)
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: None if request.url.startswith(own) else complaints.append(request.url))
    yield page
    context.close()
    assert [text for text in complaints if "404 (Not Found)" not in text] == []


def require_readable(page: Page, path: str) -> None:
    """Check that the page is not wider than its screen, and that axe finds nothing serious.

    Save a screenshot if the environment names a folder for it.
    """
    if folder := os.environ.get(SCREENSHOTS):
        _save_screenshot(page, Path(folder), path)
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0, path
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        (each["id"], [node["html"][:120] for node in each["nodes"]][:3])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == [], path


def _save_screenshot(page: Page, folder: Path, path: str) -> None:
    """Save the whole page under its path, its width and its scheme. Hashes and addresses are shortened."""
    name = re.sub(r"0x[0-9a-fA-F]+", "one", path.strip("/")) or page.title()
    width = page.viewport_size["width"] if page.viewport_size else 0
    scheme = "dark" if page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") else "light"
    page.screenshot(path=folder / f"{re.sub('[^a-z0-9]+', '-', name.lower())}-{width}-{scheme}.png", full_page=True)
