"""`covey ui` of runs that `covey train` has made: over HTTP, and in a real browser."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from covey.standalone.run_lock import hold_run
from tests.architecture.tree import ROOT
from tests.fakes.browser_pages import SCHEMES, SIZES, open_browser, open_page, require_readable
from tests.fakes.run_folders import HOSTILE, write_completions, write_metrics

pytestmark = pytest.mark.integration
TRAIN = ("--steps", "2", "--set", "device=cpu", "--set", "eval.prompts=8", "--set", "sampling.groups_per_step=2")
HEAVY = ("web3", "sqlalchemy", "torch", "coordinator")


@contextmanager
def serve(folder: Path, *options: str, **environment: str) -> Iterator[str]:
    """Run `covey ui` as a user does, and yield the address that it prints."""
    command = [sys.executable, "-m", "covey", "ui", str(folder), "--port", "0", *options]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    assert child.stdout is not None
    try:
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+", child.stdout.readline())
        yield url
    finally:
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0
        child.stdout.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a trained run and a folder of hostile texts."""
    folder = tmp_path_factory.mktemp("ui") / "runs"
    command = [sys.executable, "-m", "covey", "train", "--out", str(folder / "tiny"), *TRAIN]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300, capture_output=True)
    write_metrics(folder / "hostile <b>", 30)
    write_completions(folder / "hostile <b>", 29, HOSTILE)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def url(runs: Path) -> Iterator[str]:
    with serve(runs) as url:
        yield url


def test_ui__trained_run__shows_its_numbers_completions_and_settings(url: str):
    with httpx.Client(base_url=url, timeout=60, follow_redirects=True) as client:
        row = re.findall(r"<tr>.*tiny.*</tr>", client.get("/").text)[0]
        for text in ("the tiny model", "finished", "2 of 2", "(step 2)"):
            assert text in row
        page = client.get("/runs/tiny").text
        for title in ("Reward, with", "Evaluation on", "Loss", "KL", "Entropy", "Gradient norm", "Truncated", "length"):
            assert title in page
        assert page.count('data-band="interval"') == 2
        assert "optim.learning_rate" in page
        completions = client.get("/runs/tiny/completions").text
        assert completions.count('<article class="completion">') == 8
        assert "Spell this word backward" in completions
        compared = client.get("/compare", params={"run": ["tiny", "hostile <b>"]}).text
        assert '<th scope="col" class="n">tiny</th><th scope="col" class="n">hostile &lt;b&gt;</th>' in compared


def test_ui__modules__are_without_a_chain_a_database_and_a_coordinator():
    program = f"import sys; import covey.ui.ui_application; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


def test_ui__open__starts_the_browser_of_the_user(tmp_path: Path):
    program, opened = tmp_path / "browser", tmp_path / "opened"
    program.write_text(f'#!/bin/sh\necho "$1" > {opened}.new && mv {opened}.new {opened}\n')
    program.chmod(0o755)
    with serve(tmp_path, "--open", BROWSER=f"{program} %s") as url, httpx.Client(base_url=url) as client:
        deadline = time.monotonic() + 60
        while not opened.exists() and time.monotonic() < deadline:
            client.get("/")
        assert opened.read_text() == f"{url}\n"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_pages__width_and_scheme__fit_and_can_be_read_by_all(browser: Browser, url: str, size: str, scheme: str):
    hostile = "hostile%20%3Cb%3E"
    paths = [
        "/",
        "/runs/tiny",
        f"/runs/{hostile}",
        f"/runs/{hostile}/completions/29",
        f"/compare?run=tiny&run={hostile}",
    ]
    with open_page(browser, url, size=size, scheme=scheme) as page:
        for path in [*paths, "/runs/none"]:
            page.goto(url + path, wait_until="load")
            require_readable(page, path)


def test_run__charts__are_drawn_from_the_tables_beside_them(browser: Browser, url: str):
    with open_page(browser, url) as page:
        page.goto(f"{url}/runs/tiny")
        page.wait_for_selector("figure.chart canvas")
        assert page.locator("figure.chart canvas").count() == page.locator("figure.chart table:not(.u-legend)").count()


def test_run__new_step__appears_without_a_reload_and_keeps_what_is_unfolded(browser: Browser, tmp_path: Path):
    write_metrics(tmp_path / "live", 3)
    with hold_run(tmp_path / "live"), serve(tmp_path) as url, open_page(browser, url) as page:
        page.goto(f"{url}/runs/live")
        page.click("#unfold-1")
        write_metrics(tmp_path / "live", 4)
        page.locator("#numbers-1[open] tbody tr").nth(3).wait_for()
        assert page.locator("figure.chart canvas").count() > 0


def test_list__two_chosen_runs__are_compared_by_the_keyboard(browser: Browser, url: str):
    with open_page(browser, url) as page:
        page.goto(url)
        for box in page.locator("input[name=run]").all():
            box.focus()
            page.keyboard.press("Space")
        page.wait_for_timeout(3_500)  # the list is asked for every three seconds, and keeps what is chosen
        page.locator("button").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#comparison canvas")
        assert page.locator("h1").inner_text() == "Comparison"
