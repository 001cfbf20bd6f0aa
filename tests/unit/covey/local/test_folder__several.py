"""Several folders of workers, started together."""

from pathlib import Path

import pytest

from covey.errors import OperatorError
from covey.local.folder import PROCESSES_FILE, merge_processes, write_processes

pytestmark = pytest.mark.unit


def make(folder: Path, **commands: str) -> Path:
    folder.mkdir()
    write_processes(folder / PROCESSES_FILE, commands)
    return folder


def test_merge_processes__two_folders__each_worker_has_the_settings_of_both(tmp_path: Path):
    names = {f"worker_{i}": f"worker run --config worker-{i}.toml" for i in (1, 2)}
    one, two = make(tmp_path / "one", **names), make(tmp_path / "two of us", **names)
    assert merge_processes(one, [two]) == {
        f"worker_{i}": f"worker run --config worker-{i}.toml --config '{two}/worker-{i}.toml'" for i in (1, 2)
    }


def test_merge_processes__one_folder__is_as_it_was(tmp_path: Path):
    pool = make(tmp_path / "pool", chain="devnet up", worker="worker run --config 'a b.toml'")
    assert merge_processes(pool, []) == {"chain": "devnet up", "worker": "worker run --config 'a b.toml'"}


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ({"chain": "devnet up"}, "not a worker"),
        ({"worker_1": "worker run", "worker_2": "worker run"}, "worker_1, worker_2"),
    ],
)
def test_merge_processes__folders_that_do_not_fit__are_refused(tmp_path: Path, commands: dict[str, str], message: str):
    one, two = make(tmp_path / "one", worker="worker run --config worker.toml"), make(tmp_path / "two", **commands)
    with pytest.raises(OperatorError, match=message) as refused:
        merge_processes(one, [two])
    assert refused.value.code == "other_workers"
