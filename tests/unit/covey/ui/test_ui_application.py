"""The pages of runs: each one escapes what files contain, needs only its own server, and can be left unchanged."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from covey.ui.run_folders import RunFolders
from covey.ui.ui_application import build_ui
from tests.fakes.run_folders import HOSTILE, write_completions, write_metrics
from tests.unit.coordinator.pages.test_html_routes import Page

pytestmark = pytest.mark.unit
NAME = "<img src=x onerror=alert(1)> & \u202e?#%"


@asynccontextmanager
async def open_ui(root: Path, *, host: str = "127.0.0.1:8800") -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=build_ui(RunFolders(root)))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
        yield client


def make_runs(root: Path) -> None:
    alarm = {"event": "alarm", "step": 1, "sign": HOSTILE[0], "advice": HOSTILE[2], "value": 1, "limit": 0}
    for name in (NAME, "plain"):
        write_metrics(root / name, 3, more=[alarm, {"event": "alarm", "step": 2}])
        for step in (0, 2):
            write_completions(root / name, step, HOSTILE)


async def test_pages__all_that_lead_from_the_list__are_shown_without_anything_foreign(tmp_path: Path):
    make_runs(tmp_path)
    seen, waiting = set[str](), ["/", f"/compare?run={quote(NAME)}&run=plain"]
    async with open_ui(tmp_path) as client:
        while waiting:
            path = waiting.pop()
            if path in seen or path.startswith("#"):
                continue
            seen.add(path)
            answer = await client.get(path)
            assert answer.status_code == 200, path
            page = Page(answer.text)
            assert page.blocked == [], path
            assert all(link.startswith("/assets/") for link in page.loaded), path
            for text in ("<img", "<script>", "<iframe", "\u202e", "\x1b"):
                assert text not in answer.text, path
            waiting += page.links
    kinds = {re.sub("[0-9]+", "N", path.partition("?")[0].replace(quote(NAME), "plain")) for path in seen}
    assert kinds == {"/", "/compare", "/runs/plain", "/runs/plain/completions/N"}


async def test_pages__version_that_was_seen__is_answered_without_a_page(tmp_path: Path):
    make_runs(tmp_path)
    async with open_ui(tmp_path) as client:
        for path in ("/", f"/runs/{quote(NAME)}", f"/compare?run={quote(NAME)}&run=plain"):
            text = (await client.get(path)).text
            (again,) = re.findall(r'hx-get="([^"]+)"', text)
            again = again.replace("&amp;", "&")
            assert (await client.get(again)).status_code == 204, path
            write_metrics(tmp_path / NAME, 4)
            changed = await client.get(again)
            assert (changed.status_code, changed.text == text) == (200, False), path
            write_metrics(tmp_path / NAME, 3)


async def test_completions__question_and_thinking__are_folded_and_the_steps_lead_on(tmp_path: Path):
    write_metrics(tmp_path / "a", 3)
    write_completions(tmp_path / "a", 0, ["<think>deep</think>7"])
    write_completions(tmp_path / "a", 2, ["8"])
    async with open_ui(tmp_path) as client:
        newest = await client.get("/runs/a/completions")
        assert newest.headers["location"] == "/runs/a/completions/2"
        chosen = await client.get("/runs/a/completions", params={"step": "0"})
        text = (await client.get(chosen.headers["location"])).text
    assert "<summary>Thinking</summary><pre>&lt;think&gt;deep&lt;/think&gt;</pre></details><pre>7</pre>" in text
    assert "reward 1.000, advantage +0.500, 3 tokens" in text
    assert 'rel="next" href="/runs/a/completions/2"' in text
    assert 'rel="prev"' not in text


@pytest.mark.parametrize(
    ("path", "status"),
    [("/runs/none", 404), ("/runs/%2e%2e", 404), ("/runs/%2e%2e%2fother", 404), ("/runs/a%00", 404), ("/nowhere", 404),
     ("/compare", 404), ("/compare?run=none", 404), ("/runs/a/completions/7", 404), ("/runs/a/completions/-1", 404),
     ("/runs/a/completions/1e9", 404), (f"/runs/a/completions/{'9' * 5000}", 404), ("/assets/%2e%2e/html.py", 404),
     ("/openapi.json", 404), ("/docs", 404)],
)  # fmt: skip
async def test_pages__what_does_not_exist__is_an_error_page(tmp_path: Path, path: str, status: int):
    write_metrics(tmp_path / "runs" / "a", 1)
    write_metrics(tmp_path / "other", 1)
    async with open_ui(tmp_path / "runs") as client:
        answer = await client.get(path)
        assert answer.status_code == status
        assert '<p class="alarm">' in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert (await client.post("/")).status_code == 405


@pytest.mark.parametrize(("host", "status"), [("localhost:8800", 200), ("127.0.0.1", 200), ("evil.example:8800", 400)])
async def test_pages__name_of_another_host__is_refused(tmp_path: Path, host: str, status: int):
    async with open_ui(tmp_path, host=host) as client:
        assert (await client.get("/")).status_code == status


async def test_list__empty_folder__says_how_to_fill_it(tmp_path: Path):
    async with open_ui(tmp_path) as client:
        text = (await client.get("/")).text
    assert f"covey train --out {tmp_path}/NAME" in text
