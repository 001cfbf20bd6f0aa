from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from coordinator.config import CoordinatorConfig
from covey.errors import OperatorError
from covey.local import ports
from covey.local.folder import create_pool_folder, read_processes
from covey.local.plan import NamedChain, PoolPlan
from covey.local.ports import advise, find_free_block, find_places, move_ports
from covey.runtime.http import find_free_ports, listen
from tests.fakes.pool import make_deployment
from trainer.config import TrainerConfig
from validator.config import ValidatorConfig

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_pool_folder(tmp_path / "mine", PoolPlan(validators=2, port=7001))
    return tmp_path / "mine"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Ports that other services listen on. All others are free."""
    found: set[int] = set()

    def try_to_listen(host: str, port: int) -> object:
        if port in found:
            raise OperatorError("address_in_use", f"cannot listen on {host}:{port}", fix="Choose a different port")
        return type("Socket", (), {"close": lambda _: None})()

    monkeypatch.setattr(ports, "listen", try_to_listen)
    return found


def read_ports(folder: Path) -> dict[str, int | list[int]]:
    """Return the port in each place that has one, as the settings classes and the commands read them."""
    coordinator = CoordinatorConfig.load(folder / "coordinator.toml", {}, {})
    members = [TrainerConfig.load(folder / "trainer.toml", {}, {})]
    members += [ValidatorConfig.load(folder / f"validator-{i}.toml", {}, {}) for i in (1, 2)]
    commands = {name: text.split() for name, text in read_processes(folder).items()}
    upstream = commands["relay"][commands["relay"].index("--upstream") + 1]
    return {
        "coordinator": coordinator.port,
        "pages": coordinator.pages_port,
        "of members": [urlsplit(member.coordinator_url).port for member in members],
        "relays": [urlsplit(url).port for url in coordinator.relays],
        "upstream": urlsplit(upstream).port,
        **{name: int(words[words.index("--port") + 1]) for name, words in commands.items() if "--port" in words},
    }


def list_expected(first: int) -> dict[str, int | list[int]]:
    return {
        "coordinator": first,
        "of members": [first] * 3,
        "relays": [first + 2],
        "upstream": first + 1,
        "origin": first + 1,
        "relay": first + 2,
        "chain": first + 3,
        "pages": first + 4,
    }


@pytest.mark.parametrize("first", [9500, 7002, 7004], ids=["elsewhere", "overlapping", "adjacent"])
def test_move_ports__devnet__changes_every_file_and_nothing_else(folder: Path, taken: set[int], first: int):
    before = {file: file.read_text() for file in folder.glob("*.toml")}
    assert read_ports(folder) == list_expected(7001)
    move_ports(folder, first)
    assert read_ports(folder) == list_expected(first)
    move_ports(folder, 7001)
    assert {file: file.read_text() for file in folder.glob("*.toml")} == before


@pytest.mark.parametrize("first", [9500, 7002], ids=["elsewhere", "overlapping"])
@pytest.mark.parametrize("count", range(8))
def test_move_ports__interrupted__is_finished_by_the_next_call(
    folder: Path, taken: set[int], monkeypatch: pytest.MonkeyPatch, first: int, count: int
):
    written = list[str]()
    write = ports.write_atomically

    def fail_after_some(file: Path, data: bytes) -> None:
        if len(written) == count:
            raise OSError("disk full")
        written.append(file.name)
        write(file, data)

    files = {file.name for file in folder.iterdir()}
    monkeypatch.setattr(ports, "write_atomically", fail_after_some)
    with suppress(OSError):
        move_ports(folder, first)
    monkeypatch.setattr(ports, "write_atomically", write)
    move_ports(folder, first)
    assert read_ports(folder) == list_expected(first)
    assert {file.name for file in folder.iterdir()} == files


def test_move_ports__port_that_is_taken__changes_nothing(folder: Path, taken: set[int]):
    taken |= {9503, 8000}
    with pytest.raises(OperatorError) as caught:
        move_ports(folder, 9500)
    assert caught.value.code == "address_in_use"
    assert caught.value.message.startswith("cannot listen on 127.0.0.1:9503")
    assert caught.value.message.endswith(f". Use the next free ports with covey up {folder} --port 8010")
    assert read_ports(folder) == list_expected(7001)


def test_move_ports__pool_that_others_know__is_refused(tmp_path: Path):
    chain = NamedChain(
        deployment=make_deployment(chain_id=5), rpc_url="http://n:1", public_url="http://pool.example:8000"
    )
    create_pool_folder(tmp_path / "public", PoolPlan(chain=chain))
    with pytest.raises(OperatorError, match="fixed_ports: "):
        move_ports(tmp_path / "public", 9500)
    assert find_places(tmp_path / "public", 8000) == [
        "coordinator.toml (port, public_url, authority)",
        "trainer.toml (coordinator_url)",
        *(f"validator-{i}.toml (coordinator_url)" for i in (1, 2, 3)),
    ]
    assert "change the port in" in advise(tmp_path / "public", 8002)
    assert find_places(tmp_path / "public", 8002) == ["coordinator.toml (relays)", "processes.toml (relay)"]


def test_advise__devnet__is_a_command_that_moves_all(folder: Path, taken: set[int]):
    taken |= {8000, 8012}
    assert advise(folder, 7001).endswith(f"move the pool to free ports with covey up {folder} --port 8020")


def test_find_free_block__first_ports_are_taken__is_the_next_ten(taken: set[int]):
    assert find_free_block() == 8000
    taken.add(8003)
    assert find_free_block() == 8010
    taken |= set(range(8000, 70_000))
    with pytest.raises(OperatorError, match="no_free_port: "):
        find_free_block()


def test_is_free__real_port__follows_who_listens():
    (port,) = find_free_ports(1)
    assert ports.is_free(port)
    with listen("127.0.0.1", port):
        assert not ports.is_free(port)
