from pathlib import Path

import pytest

from covey import cli
from covey.cli.relays import find_relay, flatten
from covey.errors import OperatorError
from covey.local.folder import create_pool_folder, write_processes
from covey.local.plan import PoolPlan
from covey.shardcast import downloader
from tests.fakes.account import runner

pytestmark = pytest.mark.unit
STATUS = {
    "role": "relay",
    "upstreams": [{"number": 1, "failures": 0, "bytes_per_s": 4_200_000, "pools": {"1": {"newest_step": 7}}}],
    "pools": {"1": {"newest_step": 7, "head_age_s": 3.2, "is_mirrored": True}},
    "max_bytes": None,
    "bytes_on_disk": 1_500_000_000,
    "is_full": False,
    "uptime_s": 7300.5,
    "lie\x1b[2J": "a\x1b[2J",
}


@pytest.mark.parametrize(
    ("commands", "url"),
    [
        ({"relay": "relay run --root r --upstream http://127.0.0.1:9000 --port 8002"}, "http://127.0.0.1:8002"),
        ({"relay": "relay run --root r --upstream x --port=8002 --host 0.0.0.0"}, "http://127.0.0.1:8002"),
        ({"relay": "relay run --root r --upstream x --host 10.0.0.7"}, "http://10.0.0.7:9001"),
        ({"origin": "origin run --root o"}, "http://127.0.0.1:9000"),
        ({"origin": "origin run --root o", "relay": "relay run --root r --upstream x"}, "http://127.0.0.1:9001"),
    ],
)
def test_find_relay__command_of_the_folder__has_its_port(tmp_path: Path, commands: dict[str, str], url: str):
    write_processes(tmp_path / "processes.toml", commands)
    assert find_relay(tmp_path) == url


def test_find_relay__folder_without_one__is_refused(tmp_path: Path):
    with pytest.raises(OperatorError, match="no_processes"):
        find_relay(tmp_path)
    write_processes(tmp_path / "processes.toml", {"worker": "worker run --config worker.toml"})
    with pytest.raises(OperatorError, match="no_relays"):
        find_relay(tmp_path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    urls: list[str] = []

    class Fake:
        def __init__(self, relays: list[str]) -> None:
            urls.extend(relays)

        def fetch(self, path: str, **_: object) -> tuple[dict[str, object], str]:
            assert path == "/status"
            return dict(STATUS), ""

        def close(self) -> None:
            pass

    monkeypatch.setattr(downloader, "Downloader", Fake)
    return urls


def test_relay_status__folder_or_url__says_which_it_asks(tmp_path: Path, asked: list[str], monkeypatch):
    create_pool_folder(tmp_path / "p", PoolPlan(port=8100))
    result = runner.invoke(cli.app, ["relay", "status", str(tmp_path / "p")])
    assert (result.exit_code, result.stderr) == (0, "http://127.0.0.1:8102\n")
    runner.invoke(cli.app, ["relay", "status", "https://relay.example"])
    monkeypatch.chdir(tmp_path / "p")
    runner.invoke(cli.app, ["relay", "status"])
    assert asked == ["http://127.0.0.1:8102", "https://relay.example", "http://127.0.0.1:8102"]


def test_relay_status__for_people__is_rows_and_not_json(tmp_path: Path, asked: list[str]):
    result = runner.invoke(cli.app, ["relay", "status", "http://r"])
    assert not set('{}[]"') & set(result.stdout.replace("lie?[2J", "").replace("a?[2J", ""))
    assert '"head_age_s": 3.2' in runner.invoke(cli.app, ["relay", "status", "http://r", "--json"]).stdout


def test_flatten__by_hand__has_units_and_no_control_characters():
    assert flatten(STATUS) == {
        "role": "relay",
        "upstream 1": "number 1, failures 0, bytes 4.2 MB/s, pools 1 newest step 7",
        "pool 1": "newest step 7, head age 3 s, is mirrored yes",
        "max bytes": "none",
        "bytes on disk": "1.5 GB",
        "is full": "no",
        "uptime": "2 hours",
        "lie?[2J": "a?[2J",
    }
    assert flatten({"uptime_s": float("nan"), "bytes": "x", "x": []}) == {"uptime": "nan", "bytes": "x"}
