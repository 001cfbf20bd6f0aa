"""The report of a run in headless Chromium: no error, no request, and no element that a completion made."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey import cli
from tests.fakes.chromium import find_chromium, open_page
from tests.fakes.run_folders import HOSTILE, write_completions, write_metrics

pytestmark = pytest.mark.integration


@pytest.mark.skipif(find_chromium() is None, reason="needs Chromium on this machine: apt-get install chromium")
def test_report__hostile_completions_in_chromium__no_error_and_no_request(tmp_path: Path) -> None:
    alarm = {"event": "alarm", "step": 3, "sign": "<img src=https://example.com/x onerror=alert(1)>"}
    write_metrics(tmp_path / "run", 8, more=[alarm])
    write_completions(tmp_path / "run", 7, HOSTILE)
    page = tmp_path / "report.html"
    done = CliRunner().invoke(cli.app, ["report", str(tmp_path / "run"), "--out", str(page), "--samples", "40"])
    assert done.exception is None
    opened = open_page(
        page,
        [
            "document.querySelectorAll('script, img, iframe, object, form, math, body style, body link').length",
            "[...document.querySelectorAll('*')].some(e => [...e.attributes].some(a => a.name.startsWith('on')))",
            "document.title",
            "[...document.querySelectorAll('summary')].filter(s => s.textContent.startsWith('Task')).length",
            "document.querySelectorAll('line.mark').length > 0",
            "(document.body.style.width = '328px', document.body.scrollWidth <= 360)",
        ],
        tmp_path / "profile",
    )
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:", "about:"))] == []
    assert opened.values == [0, False, "Run run", len(HOSTILE), True, True]
