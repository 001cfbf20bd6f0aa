"""Policies are published concurrently with updates: what is learned meanwhile, and what a crash leaves."""

import shutil
from collections.abc import Callable
from threading import Event as Flag
from typing import Any

import pytest
from structlog.testing import capture_logs

from covey.chain.sqlite_outbox import SqliteOutbox
from covey.errors import OperatorError
from covey.protocol.api.trainer import BatchOrder
from covey.protocol.ids import Hash, Step
from trainer import loop
from trainer.context import Context
from trainer.data.samples import AcceptedWork
from trainer.publisher import Publisher

pytestmark = pytest.mark.unit
Build = Callable[..., Any]
STEPS = 4


@pytest.fixture(scope="module")
def published() -> dict[int, list[Hash]]:
    """Return hashes of runs on a chain that mines at once, by staleness."""
    return {}


@pytest.fixture
def build(build_harness: Build, published: dict[int, list[Hash]]) -> Build:
    def make(staleness: int, **settings: Any) -> Any:
        harness = build_harness(eval={"every": 0}, **({"steps": STEPS} | settings))
        harness.params = harness.params.model_copy(update={"max_staleness": staleness})
        harness.coordinator.staleness = staleness
        return harness

    def make_with_hashes(staleness: int, **settings: Any) -> tuple[Any, list[Hash]]:
        if staleness not in published:
            quick = make(staleness)
            quick.run()
            published[staleness] = list(quick.chain.hashes)
        return make(staleness, **settings), published[staleness]

    return make_with_hashes


def mine_late(harness: Any, late: int) -> list[int]:
    """Make the chain take each policy but the first only after the trainer has learned `late` more steps.

    Returns a list that collects the number of steps learned whenever a policy is taken.
    """
    seen, mine = list[int](), harness.chain.mine

    def wait(outbox: SqliteOutbox) -> int:
        learned, count = harness.context.progress.step, len(harness.chain.hashes)
        if count and learned < min(count + late, harness.config.steps):
            return 1
        seen.append(learned)
        done: int = mine(outbox)
        return done

    harness.chain.mine = wait
    return seen


@pytest.mark.parametrize("staleness", [1, 2])
def test_run__chain_takes_policies_late__they_are_learned_from_meanwhile(staleness: int, build: Build) -> None:
    harness, expected = build(staleness)
    seen = mine_late(harness, staleness)
    harness.run()
    assert seen == [0, *(min(step + staleness, STEPS) for step in range(1, STEPS + 1))]
    assert harness.chain.hashes == expected
    assert harness.coordinator.claims == list(range(STEPS))
    lines = [(line["event"], line["step"]) for line in harness.read_metrics() if line["event"] != "alarm"]
    assert [step for event, step in lines if event == "policy"] == list(range(STEPS + 1))
    assert lines.index(("update", staleness)) < lines.index(("policy", 1))
    assert (
        min(harness.context.exports.list_steps()) == STEPS - staleness - 1
    )  # the newest on chain when the last was made


def test_run__delta_from_an_anchor_takes_long__no_offer_overlaps_it_and_the_end_waits_for_it(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, expected = build(1)
    events, pause = list[str](), Flag()
    offer, add_jump = Publisher.offer, Publisher.add_jump

    def offer_noted(publisher: Publisher, *args: Any, **options: Any) -> Hash:
        events.append("offer")
        return offer(publisher, *args, **options)

    def add_jump_slowly(publisher: Publisher) -> None:
        events.append("jump")
        pause.wait(0.1)
        add_jump(publisher)
        events.append("end of jump")

    monkeypatch.setattr(Publisher, "offer", offer_noted)
    monkeypatch.setattr(Publisher, "add_jump", add_jump_slowly)
    harness.run()
    assert events == ["offer", "jump", "end of jump"] * (STEPS + 1)
    assert harness.chain.hashes == expected
    exports, checks = harness.context.exports, harness.context.publisher.checks
    assert all(checks.is_known(exports.get_path(step)) for step in exports.list_steps())


def run_until_learned(harness: Any, step: int) -> None:
    """Run a process that stops once it has learned `step` steps while the chain holds only the first policy."""
    mine = harness.chain.mine

    def refuse(outbox: SqliteOutbox) -> int:
        if harness.chain.hashes:
            if harness.context.progress.step == step:
                harness.context.stop.set()
            return 1
        done: int = mine(outbox)
        return done

    harness.chain.mine = refuse
    harness.run()
    assert (len(harness.chain.hashes), harness.context.progress.step) == (1, step)
    harness.chain.mine = mine


def test_run__ended_with_three_unpublished_policies__publishes_each_once(build: Build) -> None:
    harness, expected = build(2)
    run_until_learned(harness, 3)
    harness.run()
    assert harness.chain.hashes == expected
    assert harness.coordinator.claims == list(range(STEPS))


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_run__endless_batches__stays_no_further_ahead_than_it_can_resume(staleness: int, build: Build) -> None:
    harness, _ = build(staleness)
    original = harness.coordinator.claim_batch

    async def claim_batch(step: Step, *, wait_seconds: float) -> BatchOrder:
        return BatchOrder(step=step, items=())

    harness.coordinator.claim_batch = claim_batch
    mine, looks = harness.chain.mine, iter(range(10))

    def refuse(outbox: SqliteOutbox) -> int:
        if harness.chain.hashes and harness.context.progress.step > staleness and next(looks, None) is None:
            harness.context.stop.set()
        done: int = 1 if harness.chain.hashes else mine(outbox)
        return done

    harness.chain.mine = refuse
    harness.run()
    assert (len(harness.chain.hashes), harness.context.progress.step) == (1, staleness + 1)
    harness.chain.mine, harness.coordinator.claim_batch = mine, original
    harness.run()
    assert len(harness.chain.hashes) == STEPS + 1


def test_run__unpublished_policy_is_lost__is_exported_again_as_the_message_advises(build: Build) -> None:
    harness, expected = build(2)
    run_until_learned(harness, 3)
    exports, checkpoints = harness.config.home / "exports", harness.config.home / "checkpoints"
    shutil.rmtree(exports / "2")
    with pytest.raises(
        OperatorError, match=r"lost_policy: .*exports/2 .*if home/checkpoints/2 exists, remove the later"
    ):
        harness.run()
    assert len(harness.chain.hashes) == 1
    assert sorted(path.name for path in checkpoints.iterdir()) == ["2", "3"]
    shutil.rmtree(checkpoints / "3")
    harness.run()
    assert harness.chain.hashes == expected


def test_run__lost_policy_of_a_pool_far_ahead__can_continue_from_the_newest_on_chain(build: Build) -> None:
    harness, expected = build(2)
    run_until_learned(harness, 3)
    assert harness.context.exports.list_steps() == [0, 1, 2, 3]
    home = harness.config.home
    copied = shutil.copytree(home / "exports" / "0", harness.root / "copy")
    shutil.rmtree(home / "exports" / "1")
    with pytest.raises(OperatorError, match=r"lost_policy: .*copy home/exports/0, remove home/checkpoints, .*to 0"):
        harness.run()
    shutil.rmtree(home / "checkpoints")
    harness.change(model={"path": str(copied)}, optim={"learning_rate": 1e-4})
    with pytest.raises(
        OperatorError, match="another_policy: the outbox contains a transaction for a different policy 1"
    ):
        harness.run()
    (home / "outbox.sqlite3").unlink()
    harness.run()
    assert len(harness.chain.hashes) == STEPS + 1
    assert harness.chain.hashes[0] == expected[0]
    assert harness.chain.hashes[1] != expected[1]


def test_run__another_policy_came_in_between__no_restart_overrides_it(build: Build) -> None:
    harness, _ = build(1)
    foreign, mine = Hash("0x" + "33" * 32), harness.chain.mine

    def come_in_between(outbox: SqliteOutbox) -> int:
        if len(harness.chain.hashes) == 1 and harness.context.progress.step == 2:
            harness.chain.add(foreign)
            return 1
        done: int = 1 if harness.chain.hashes else mine(outbox)
        return done

    harness.chain.mine = come_in_between
    for _ in range(3):
        with pytest.raises(OperatorError, match="another_policy: policy 1 on chain has the hash 0x3333"):
            harness.run()
        assert harness.chain.hashes[1:] == [foreign]


@pytest.mark.parametrize("first", ["learning", "publication"])
def test_run__both_cycles_fail__the_first_failure_is_raised(
    first: str, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, _ = build(1)
    mine, learn, pumping, pause = harness.chain.mine, loop.learn, Flag(), Flag()
    learning, publication = (OperatorError(code, "of these", fix="None") for code in ("learning", "publication"))

    def fail_to_mine(outbox: SqliteOutbox) -> int:
        if not harness.chain.hashes or harness.coordinator.claims != [0, 1]:
            done: int = 1 if harness.chain.hashes else mine(outbox)
            return done
        pumping.set()
        while first == "learning" and not harness.context.stop.is_set():
            pause.wait(0.01)
        raise publication

    def fail_to_learn(ctx: Context, works: list[AcceptedWork | None], waited: float) -> None:
        if ctx.progress.step == 0:
            learn(ctx, works, waited)
            return
        assert pumping.wait(60)
        while first == "publication" and not harness.context.stop.is_set():
            pause.wait(0.01)
        raise learning

    harness.chain.mine = fail_to_mine
    monkeypatch.setattr(loop, "learn", fail_to_learn)
    with capture_logs() as logs, pytest.raises(OperatorError, match=f"^{first}: "):
        harness.run()
    assert [line["message"][:11] for line in logs if line["event"] == "another failure in the trainer"] == [
        "publication" if first == "learning" else "learning: o"
    ]


def test_run__publication_fails_during_an_update__the_update_is_kept(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, expected = build(1)
    mine = harness.chain.mine

    def fail(outbox: SqliteOutbox) -> int:
        if harness.chain.hashes and harness.coordinator.claims == [0, 1]:
            raise OperatorError("no_funds", "the account cannot pay for gas", fix="Send it some")
        done: int = 1 if harness.chain.hashes else mine(outbox)
        return done

    harness.chain.mine = fail
    with pytest.raises(OperatorError, match="no_funds"):
        harness.run()
    assert len(harness.chain.hashes) == 1
    assert harness.context.progress.step == 2
    harness.chain.mine = mine
    harness.run()
    assert harness.chain.hashes == expected
    assert harness.coordinator.claims == list(range(STEPS))
