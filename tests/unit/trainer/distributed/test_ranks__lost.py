"""A lost rank is reported, but its loss never hides the error that came first."""

import asyncio
from typing import Any, cast

import pytest

from covey.errors import OperatorError
from trainer.distributed import ranks as module
from trainer.distributed.commands import RankCommand, Verb
from trainer.distributed.ranks import Ranks, explain_lost_rank, lead

pytestmark = pytest.mark.unit
CLOSED = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"


@pytest.fixture
def ranks() -> Ranks:
    """Return rank 0 of several ranks."""
    return Ranks(mesh=cast(Any, object()))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Verb]:
    """Return the verbs that are sent to the other ranks."""
    verbs: list[Verb] = []
    monkeypatch.setattr(module, "_send", lambda order: verbs.append(order.verb))
    return verbs


@pytest.fixture
def _lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the first heartbeat find that the other ranks are gone."""

    def fail(order: RankCommand) -> None:
        raise RuntimeError(CLOSED)

    monkeypatch.setattr(module, "_send", fail)
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.001)


def run(ranks: Ranks, error: OperatorError | None) -> None:
    """Lead until the loss of a rank stops it, then fail with `error`."""

    async def train() -> None:
        stop = asyncio.Event()
        async with lead(ranks, stop):
            await asyncio.wait_for(stop.wait(), 60)
            if error is not None:
                raise error

    asyncio.run(train())


@pytest.mark.usefixtures("_lost")
def test_lead__a_rank_is_lost__raises_at_the_end(ranks: Ranks) -> None:
    with pytest.raises(OperatorError, match="rank_lost"):
        run(ranks, None)


@pytest.mark.usefixtures("_lost")
def test_lead__this_rank_failed_while_another_was_lost__its_own_error_is_raised(ranks: Ranks) -> None:
    with pytest.raises(OperatorError, match="disk_full"):
        run(ranks, OperatorError("disk_full", "no room", fix="Free space"))


def test_beat__after_a_command_that_failed_here__sends_nothing(ranks: Ranks, sent: list[Verb]) -> None:
    with ranks.together(RankCommand(verb=Verb.GATHER)):
        ranks.beat()
    ranks.beat()
    assert sent == [Verb.GATHER, Verb.BEAT]
    with pytest.raises(OperatorError, match="out_of_memory"), ranks.together(RankCommand(verb=Verb.LEARN)):
        raise OperatorError("trainer_out_of_memory", "too much", fix="Take less")
    ranks.beat()
    assert sent == [Verb.GATHER, Verb.BEAT, Verb.LEARN]


def test_explain_lost_rank__another_failure__stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match=r"^shapes$"), explain_lost_rank():
        raise RuntimeError("shapes")
    with pytest.raises(OperatorError, match="rank_lost"), explain_lost_rank():
        raise RuntimeError(CLOSED)
