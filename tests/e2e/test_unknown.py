"""Validators that cannot check: their verdicts neither pay nor slash, and others are asked."""

import dataclasses

import pytest

import validator.enforcement
from coordinator.domain import turn_order
from covey.demo.demo_network import POOL
from covey.demo.participants import DemoOptions
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Decision, Reason
from tests.e2e.submitting import ShortParticipants, hand_in, judge_all
from tests.e2e.walk import Walk, open_walk
from tests.fakes.engines import Broken

pytestmark = [pytest.mark.e2e]


def break_replay(walk: Walk, index: int) -> None:
    """Make this validator's engine fail at every replay, as a broken machine does."""
    ctx = walk.validators[index]
    engine = Broken(ctx.tools.engine, RuntimeError("the device is gone"))
    walk.validators[index] = dataclasses.replace(ctx, tools=dataclasses.replace(ctx.tools, engine=engine))


def list_outcomes(walk: Walk, receipt_hash: str) -> list[tuple[str, int, int]]:
    """Return (validator, outcome, units) of each revealed verdict."""
    with walk.coordinator.database.read() as repository:
        verdicts = [each.verdict for each in repository.get_submission(receipt_hash).turns]
    return sorted((verdict.validator, verdict.outcome, verdict.units) for verdict in verdicts if verdict)


@pytest.fixture
def in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask validators in the order of the chain, whatever is drawn."""
    monkeypatch.setattr(turn_order, "compute_turn_order", lambda _receipt, _block, validators: list(validators))


@pytest.mark.full
@pytest.mark.usefixtures("in_their_order")
async def test_walk__replay_fails__is_judged_elsewhere_or_void(tmp_path):
    options = DemoOptions(steps=1, workers=2, cheats=0, max_staleness=0)
    async with open_walk(tmp_path / "net", options, participants=ShortParticipants) as walk:
        addresses = [each.network.wallet.address for each in walk.validators]
        await walk.publish()
        await walk.follow()

        break_replay(walk, 0)  # it is asked first, so its unknown is one of two verdicts
        first = await hand_in(walk, "worker-1")
        row = (await judge_all(walk))[first]
        paid = row.receipt_units
        assert (row.state, row.reason, row.units) == (SubmissionState.ACCEPTED, Reason.NONE, paid)
        unknown, accept = int(Decision.UNKNOWN), int(Decision.ACCEPT)
        outcomes = [(addresses[0], unknown, 0), (addresses[1], accept, paid), (addresses[2], accept, paid)]
        assert list_outcomes(walk, row.receipt_hash) == sorted(outcomes)

        for index in (1, 2):
            break_replay(walk, index)
        second = await hand_in(walk, "worker-2")
        row = (await judge_all(walk))[second]
        assert (row.state, row.reason, row.units) == (SubmissionState.VOID, Reason.UNDECIDED, 0)
        outcomes = list_outcomes(walk, row.receipt_hash)
        assert len(outcomes) == 4, "some tried once more, up to twice the quorum"
        assert set(outcomes) == {(each, unknown, 0) for each in addresses}

        for each in walk.validators:
            await validator.enforcement.cycle(each)
        await walk.follow()
        with walk.coordinator.database.read() as repository:
            assert repository.list_cases() == []
            assert [repository.get_node(node).suspended for node in (first, second)] == ["", ""]
        for participant in walk.network.participants.workers:
            contributor = walk.network.participants.get_address(participant.contributor)
            assert walk.network.contracts.stakes.locked_of(POOL, contributor) == 0
