"""A list in parts: as many requests as are needed, and none after the last part."""

import json
from collections.abc import Callable, Sequence
from urllib.parse import parse_qs, urlsplit

import pytest

from covey.errors import ProtocolError
from covey.network.submission_parts import read_parts
from tests.fakes.pool import make_address, make_hash

pytestmark = pytest.mark.unit


def make_view(task: int) -> dict[str, object]:
    return {
        "receipt_hash": make_hash(f"receipt {task}"),
        "task": task,
        "node": make_address("node"),
        "contributor": make_address("contributor"),
        "policy_version": 0,
        "state": "ACCEPTED",
        "reason": "none",
        "units": 1,
        "epoch": None,
        "commitment": make_hash("commitment"),
        "salt": None,
        "kind": None,
        "evidence_hashes": [],
    }


class Coordinator:
    """Answers as the API does, with `choose` for the tasks of an answer."""

    def __init__(self, choose: Callable[[int, int], Sequence[int]]) -> None:
        self.paths: list[str] = []
        self._choose = choose

    async def get(self, path: str) -> bytes:
        self.paths.append(path)
        query = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
        tasks = self._choose(int(query.get("before", 10**6)), int(query["limit"]))
        return json.dumps([make_view(task) for task in tasks]).encode()


async def test_read_parts__more_than_one_answer_holds__asks_on_after_the_last_task():
    coordinator = Coordinator(
        lambda before, limit: range(min(before, 451) - 1, max(-1, min(before, 451) - 1 - limit), -1)
    )
    found = await read_parts(coordinator.get, limit=10_000, filters={"state": "VOID", "before": None})
    assert [view.task for view in found] == list(range(450, -1, -1))
    assert coordinator.paths == [
        "/v1/submissions?limit=200&state=VOID",
        "/v1/submissions?limit=200&state=VOID&before=251",
        "/v1/submissions?limit=200&state=VOID&before=51",
    ]


async def test_read_parts__limit_below_a_part__is_one_request():
    coordinator = Coordinator(lambda before, limit: range(limit, 0, -1))
    assert len(await read_parts(coordinator.get, limit=3, filters={"before": 9})) == 3
    assert coordinator.paths == ["/v1/submissions?limit=3&before=9"]


async def test_read_parts__the_same_part_for_ever__is_refused():
    coordinator = Coordinator(lambda before, limit: range(limit, 0, -1))
    with pytest.raises(ProtocolError, match="not newest first"):
        await read_parts(coordinator.get, limit=1000, filters={})
    assert len(coordinator.paths) == 2
