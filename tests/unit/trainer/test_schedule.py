"""The trainer's rules, value by value."""

import pytest

from covey.chain.structs import PoolTerms
from covey.protocol.ids import Address, Hash, Step
from covey.protocol.params import EnvironmentParams, PoolParams
from covey.shardcast.reachability import PolicyRetention
from trainer.schedule import build_retention, is_ahead, is_evaluated, is_finished, is_kept_again

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("max_staleness", "step", "least"), [(0, 0, 1), (0, 5, 6), (1, 0, 1), (1, 1, 1), (1, 5, 5), (2, 2, 1), (2, 5, 4)]
)
def test_is_ahead__fewer_policies_on_chain_than_needed__is_true(max_staleness: int, step: int, least: int) -> None:
    answers = [is_ahead(Step(step), Step(count), max_staleness=max_staleness) for count in range(8)]
    assert answers == [count < least for count in range(8)]


def test_is_finished__limit_or_none__ends_at_the_limit_only() -> None:
    assert [is_finished(Step(step), 2) for step in range(4)] == [False, False, True, True]
    assert not is_finished(Step(10**6), None)
    assert is_finished(Step(0), 0)


def test_is_evaluated__every_fourth_and_the_last__by_hand() -> None:
    chosen = [step for step in range(11) if is_evaluated(Step(step), steps=10, every=4)]
    assert chosen == [0, 4, 8, 10]
    assert not any(is_evaluated(Step(step), steps=10, every=0) for step in range(11))


def test_build_retention__by_hand__covers_judging_epoch_and_windows():
    """A quorum of two allows four judgements of 30 s. The ledger takes an epoch every 50 s, and the windows are 100 and
    1000 s."""
    terms = PoolTerms(
        trainer=Address("0x" + "11" * 20), arbiter=Address("0x" + "22" * 20), token=Address("0x" + "33" * 20),
        params_hash=Hash("0x" + "44" * 32), reward_per_million=1_000_000, min_stake=1, slash_amount=1, quorum=2,
        challenge_window=100, veto_window=1000, unbond_window=10**6, epoch_length=50,
    )  # fmt: skip
    params = PoolParams(name="x", environment=EnvironmentParams(kind="x"), max_staleness=3, epoch_seconds=20)
    assert build_retention(2, terms, params) == PolicyRetention(keep=5, seconds=4 * 30 + 50 + 1100, lifetime=5)
    slower = params.model_copy(update={"epoch_seconds": 60})
    assert build_retention(9, terms, slower) == PolicyRetention(keep=9, seconds=4 * 30 + 60 + 1100, lifetime=5)


@pytest.mark.parametrize(
    ("keep_every", "eval_every", "kept"), [(0, 0, [11, 12]), (5, 0, [5, 10, 11, 12]), (0, 4, [4, 8, 11, 12])]
)
def test_is_kept_again__steps_after_a_checkpoint__recent_chosen_and_evaluated_ones_stay(
    keep_every: int, eval_every: int, kept: list[int]
) -> None:
    rule = {"max_staleness": 1, "steps": 40, "keep_every": keep_every, "eval_every": eval_every}
    assert [step for step in range(1, 13) if is_kept_again(Step(step), Step(12), **rule)] == kept
