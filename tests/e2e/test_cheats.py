"""One cheat for each row of dishonest work, as real workers: the network's validators reject it for its reason."""

import pytest

import validator.enforcement
from coordinator.domain.nodes import count_strikes
from covey.demo.demo_network import POOL
from covey.demo.participants import MIN_STAKE, DemoOptions
from covey.protocol.status import CaseState, SubmissionState
from covey.protocol.verdict import Severity
from tests.cheats.content import FalseEndProven, InsertedAnswer
from tests.cheats.engines import BestOfFour, Int8Weights, OtherModel, SmallWritesLargeProves, StaleWeights
from tests.cheats.numbers import DuplicateRow, InventedReward
from tests.cheats.slots import CopiedFromAnotherNode, OneTokenOfThePrompt, PermutedSiblings
from tests.e2e.submitting import ShortParticipants, hand_in, judge_all
from tests.e2e.walk import open_walk

pytestmark = [pytest.mark.e2e]
NETWORKS = {
    "rows 1 to 6": (OtherModel, Int8Weights, StaleWeights, SmallWritesLargeProves, BestOfFour, OneTokenOfThePrompt),
    "rows 7 to 13": (
        FalseEndProven, InventedReward, PermutedSiblings, CopiedFromAnotherNode, DuplicateRow, InsertedAnswer,
    ),
}  # fmt: skip
STATES = {Severity.SOFT: SubmissionState.VOID, Severity.HARD: SubmissionState.REJECTED}


@pytest.mark.parametrize("name", ["rows 1 to 6", pytest.param("rows 7 to 13", marks=pytest.mark.full)])
async def test_walk__each_cheat__is_rejected_for_its_reason_and_the_honest_are_paid(tmp_path, name):
    cheats = NETWORKS[name]
    options = DemoOptions(steps=1, workers=len(cheats) + 1, cheats=0, max_staleness=0)
    async with open_walk(tmp_path / "net", options, participants=ShortParticipants) as walk:
        await walk.publish()
        await walk.follow()
        honest = await hand_in(walk, "worker-1")
        nodes = {}
        for i, cheat in enumerate(cheats, 2):  # rejected work is planned again, so there is a task for each
            nodes[cheat] = await hand_in(walk, f"worker-{i}", cheat())
            decided = await judge_all(walk)

        row = decided[honest]
        assert (row.state, row.units) == (SubmissionState.ACCEPTED, row.receipt_units)
        for cheat, node in nodes.items():
            row = decided[node]
            expected = (STATES[cheat.reason.severity], cheat.reason, 0)
            assert (row.state, row.reason, row.units) == expected, cheat.__name__
        hard = {node for cheat, node in nodes.items() if cheat.reason.severity is Severity.HARD}
        with walk.coordinator.database.read() as repository:
            rows = {node: repository.get_node(node) for node in (honest, *nodes.values())}
            struck = {node for node, row in rows.items() if count_strikes(repository, row.contributor)}
        assert {node for node, row in rows.items() if row.suspended == "rejected"} == hard
        assert struck == {*nodes.values()} - hard

        async def enforce() -> None:
            for ctx in walk.validators:
                await validator.enforcement.cycle(ctx)

        def list_cases():
            with walk.coordinator.database.read() as repository:
                return repository.list_cases()

        await walk.until(lambda: len(list_cases()) >= len(hard), enforce, walk.follow)
        assert {case.receipt_hash for case in list_cases()} == {decided[node].receipt_hash for node in hard}
        assert {case.state for case in list_cases()} == {CaseState.LOCKED}
        for participant in walk.network.participants.workers:
            locked = walk.network.contracts.stakes.locked_of(
                POOL, walk.network.participants.get_address(participant.contributor)
            )
            assert locked == (MIN_STAKE if participant.node in hard else 0)
