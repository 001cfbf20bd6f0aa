"""The exact lane's honest windows and cheats, with the engine `hf` for both sides, which is never exact."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.gpu.exact_windows import (
    TINY,
    LanePair,
    build_changes,
    draw,
    measure_honest,
    record_found,
)
from benchmarks.gpu.random_models import SMALL, build_peaked, open_engine
from benchmarks.gpu.section_rows import SectionRow
from benchmarks.gpu.section_run import SectionRun
from covey.engines.base import Engine
from covey.model.policy_files import get_weights

pytestmark = pytest.mark.unit


@pytest.fixture
def lane(run: SectionRun) -> LanePair:
    """Return a lane whose worker is replayed by itself."""
    engine = open_engine(build_peaked(run, SMALL), 8)
    return LanePair(worker=engine, validator=engine, policy=Path("policy"), sizes=TINY)


def test_build_changes__cheats__change_only_what_their_names_say(run: SectionRun) -> None:
    model = build_peaked(run, SMALL)
    before = get_weights(model)
    changed = {
        name: {key for key, weight in get_weights(change(model)).items() if not weight.equal(before[key])}
        for name, change in build_changes().items()
    }
    assert changed["steering by 0.1 percent"] == {"model.norm.weight"}
    assert {key.split(".")[2] for key in changed["last layer in int8"]} == {"2"}
    assert {key.split(".")[2] for key in changed["last two layers in int8"]} == {"1", "2"}


def test_record_found__another_temperature__every_submission_differs(
    run: SectionRun, lane: LanePair, rows: Callable[[], dict[str, SectionRow]]
) -> None:
    record_found(run, lane, "temperature 3", lane.worker, temperature=3.0)
    row = rows()["cheat, temperature 3"]
    assert (row.value, row.n, row.peer_value, row.aim) == (
        TINY.submissions,
        TINY.submissions,
        TINY.submissions,
        None,
    )


def test_measure_honest__rounds__count_windows_until_there_are_enough(
    run: SectionRun, lane: LanePair, rows: Callable[[], dict[str, SectionRow]]
) -> None:
    loads: list[int] = []
    worker = SimpleNamespace(
        generate=lane.worker.generate, load_policy=lambda folder, version: loads.append(version), preemptions=0
    )
    sizes = type(TINY)(windows=8, batches=(1,), prompt=6, tokens=5)
    measure_honest(
        run, LanePair(worker=cast(Engine, worker), validator=lane.validator, policy=lane.policy, sizes=sizes)
    )
    row = rows()["honest windows"]
    assert (row.n, loads) == (8, [1, 2, 3])
    assert row.note == "batches of 1 to 1, 0 preemptions, 3 reloads, two processes"


def test_draw__prompt_is_given__all_have_its_length(lane: LanePair) -> None:
    assert {len(each.prompt) for each in draw(lane, 6, seed=1, prompt=30)} == {30}
    assert len({each.prompt for each in draw(lane, 8, seed=1)}) == 2
