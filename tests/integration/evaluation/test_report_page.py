"""The report of an evaluation in headless Chromium: no error, no request, and no element that a completion made."""

from pathlib import Path

import pytest

from covey.evaluation.evaluation_page import build_report
from tests.fakes.chromium import find_chromium, open_page
from tests.fakes.evaluations import finish

pytestmark = pytest.mark.integration

HOSTILE = (
    "<script>document.title = 'taken'; fetch('https://example.com/a')</script>",
    '"><img src=https://example.com/b onerror="throw 1">',
    "</pre></details></body><iframe src='https://example.com/c'></iframe>",
    "<style>@import url(https://example.com/d);</style><link rel=stylesheet href=https://example.com/e>",
    "]]><svg onload=alert(1)><!-- \x00 \x1b[31m \ud800 \u202e <meta http-equiv=refresh content='0;url=//example.com'>",
    "&lt;script&gt; &#60;script&#62; \\u003cscript\\u003e javascript:alert(1)",
)


NEEDS_CHROMIUM = pytest.mark.skipif(
    find_chromium() is None, reason="needs Chromium on this machine: apt-get install chromium"
)


@NEEDS_CHROMIUM
def test_report__hostile_completions_in_chromium__no_error_and_no_request(tmp_path: Path) -> None:
    texts = [[[text, text[::-1]] for text in HOSTILE] for _ in range(2)]
    asked = [text.replace("\ud800", "") for text in HOSTILE]  # which no file of rows can contain
    results, log, questions, config = finish(tmp_path, asked, [HOSTILE[0], HOSTILE[1]], texts)
    with log:
        page = build_report(results, log, questions, config)
    path = tmp_path / "report.html"
    path.write_text(page, "utf-8")
    expressions = [
        "document.querySelectorAll('script, img, iframe, body style, body link, body meta').length",
        "document.querySelectorAll('details').length",
        "[...document.querySelectorAll('pre')].filter(p => p.textContent.includes('<script>document.title')).length",
        "document.querySelectorAll('svg circle').length > 4",
        "document.title",
        "getComputedStyle(document.querySelector('.f0')).fill !== 'rgb(0, 0, 0)'",
    ]
    opened = open_page(path, expressions, tmp_path / "profile")
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:", "about:"))] == []
    completions = len(HOSTILE) * 2 * 2
    assert opened.values == [0, len(HOSTILE) + completions, 1 + 2, True, "Evaluation on rows.jsonl", True]


@NEEDS_CHROMIUM
def test_open_page__a_page_that_asks_and_fails__is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text("<img src='http://127.0.0.1:9/x.png'><script>console.error('wrong'); missing()</script>")
    opened = open_page(path, ["document.images.length"], tmp_path / "profile")
    assert "http://127.0.0.1:9/x.png" in opened.requests
    assert any("wrong" in text for text in opened.complaints)
    assert any("missing" in text for text in opened.complaints)
    assert opened.values == [1]
