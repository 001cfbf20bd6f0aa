"""Files of a batch that are lost, wrong or refused, and a coordinator that is unreachable."""

from collections.abc import Callable
from typing import Any

import pytest

from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.api.trainer import BatchOrder
from covey.protocol.ids import Step

pytestmark = pytest.mark.unit
Build = Callable[..., Any]


Find = Callable[[list[str]], Exception | None]


def refuse(harness: Any, monkeypatch: pytest.MonkeyPatch, find: Find) -> list[str]:
    """From now on raise the error that `find` returns for the links requested so far, the current one last."""
    original, seen = harness.coordinator.get_object, list[str]()

    async def get_object(url: str, *, max_bytes: int) -> bytes:
        seen.append(url)
        error = find(seen)
        if error is not None:
            raise error
        data: bytes = await original(url, max_bytes=max_bytes)
        return data

    monkeypatch.setattr(harness.coordinator, "get_object", get_object)
    return seen


def change_orders(harness: Any, monkeypatch: pytest.MonkeyPatch, change: Callable[[BatchOrder], BatchOrder]) -> None:
    """From now on change each order. A second claim for the same step fails the test."""
    original = harness.coordinator.claim_batch

    async def claim_batch(step: Step, *, wait_seconds: float) -> BatchOrder | None:
        assert harness.coordinator.claims.count(step) == 0
        order = await original(step, wait_seconds=wait_seconds)
        return None if order is None else change(order)

    monkeypatch.setattr(harness.coordinator, "claim_batch", claim_batch)


def build_refusal(status: int) -> ProtocolError:
    return ProtocolError("bad_answer", f"status {status} without an error body", status=status)


def test_cycle__file_with_another_hash__is_left_out_and_learning_continues(
    build_harness: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(steps=1)
    original, wrong = harness.coordinator.get_object, iter([True])

    async def get_object(url: str, *, max_bytes: int) -> bytes:
        data: bytes = await original(url, max_bytes=max_bytes)
        return data + b"x" if next(wrong, False) else data

    monkeypatch.setattr(harness.coordinator, "get_object", get_object)
    harness.run()
    assert len(harness.chain.hashes) == 2
    assert [line["batch/left_out"] for line in harness.read_metrics() if line["event"] == "update"] == [1]


@pytest.mark.parametrize("code", ["missing", "bad_answer"])  # the code of a folder's store, and of other stores
def test_cycle__file_that_the_store_has_lost__is_left_out_and_learning_continues(
    code: str, build_harness: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(steps=1)
    gone = ProtocolError(code, "gone", status=404)
    refuse(harness, monkeypatch, lambda seen: gone if seen[-1] == seen[0] else None)  # at every request for it
    harness.run()
    assert harness.coordinator.claims == [0] * 3  # the first order brings the other file
    assert len(harness.chain.hashes) == 2
    (update,) = [line for line in harness.read_metrics() if line["event"] == "update"]
    assert (update["batch/left_out"], update["batch/samples"]) == (1, 16)


def test_cycle__expired_link__is_requested_again(build_harness: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = build_harness(steps=1)
    expired = ProtocolError("bad_link", "the link has expired", status=403)
    refuse(harness, monkeypatch, lambda seen: expired if len(seen) == 1 else None)
    harness.run()
    assert harness.coordinator.claims == [0, 0]
    assert [line["batch/left_out"] for line in harness.read_metrics() if line["event"] == "update"] == [0]


def test_cycle__file_that_comes_with_the_third_order__is_learned_from(
    build_harness: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(steps=1)

    def find(seen: list[str]) -> Exception | None:
        return build_refusal(403) if seen[-1] == seen[0] and len(harness.coordinator.claims) < 3 else None

    refuse(harness, monkeypatch, find)
    harness.run()
    assert harness.coordinator.claims == [0] * 3
    (update,) = [line for line in harness.read_metrics() if line["event"] == "update"]
    assert (update["batch/left_out"], update["batch/samples"]) == (0, 32)


def test_cycle__file_that_is_refused_in_three_orders__is_left_out_and_learning_continues(
    build_harness: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(steps=1)

    def find(seen: list[str]) -> Exception | None:
        assert len(harness.coordinator.claims) < 9  # fails instead of running for ever
        return build_refusal(403) if seen[-1] == seen[0] else None

    seen = refuse(harness, monkeypatch, find)
    harness.run()
    assert harness.coordinator.claims == [0] * 3
    assert sorted(map(seen.count, set(seen))) == [1, 3]  # a file that arrived is not fetched again
    assert len(harness.chain.hashes) == 2
    (update,) = [line for line in harness.read_metrics() if line["event"] == "update"]
    assert (update["batch/left_out"], update["batch/samples"]) == (1, 16)


def test_cycle__one_file_is_lost_and_the_store_refuses_the_others__they_are_waited_for(
    build_harness: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(steps=1)

    def find(seen: list[str]) -> Exception | None:
        if seen[-1] == seen[0]:
            return build_refusal(404)
        return build_refusal(403) if len(harness.coordinator.claims) < 5 else None

    refuse(harness, monkeypatch, find)
    harness.run()
    assert harness.coordinator.claims == [0] * 7  # the fifth order brings the others
    (update,) = [line for line in harness.read_metrics() if line["event"] == "update"]
    assert (update["batch/left_out"], update["batch/samples"]) == (1, 16)


def test_cycle__order_that_names_a_task_twice__takes_it_once(
    build_harness: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(steps=1)
    change_orders(
        harness, monkeypatch, lambda order: order.model_copy(update={"items": (*order.items, order.items[0])})
    )
    harness.run()
    (update,) = [line for line in harness.read_metrics() if line["event"] == "update"]
    assert (update["batch/left_out"], update["batch/samples"]) == (1, 32)


@pytest.mark.parametrize("status", [403, 404])
def test_cycle__store_that_refuses_or_has_nothing__is_waited_for(
    status: int, build_harness: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(steps=1)
    refuse(harness, monkeypatch, lambda _: build_refusal(status) if len(harness.coordinator.claims) < 6 else None)
    harness.run()
    assert harness.coordinator.claims == [0] * 6
    (update,) = [line for line in harness.read_metrics() if line["event"] == "update"]
    assert (update["batch/left_out"], update["batch/samples"]) == (0, 32)


def test_cycle__unreachable_coordinator__is_retried(build_harness: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = build_harness(steps=1)
    away = TransientError("coordinator_unreachable", "gone")
    refuse(harness, monkeypatch, lambda seen: away if len(seen) in {1, 3} else None)
    harness.run()
    assert len(harness.chain.hashes) == 2


@pytest.mark.parametrize("version", [0, 3])  # policy 1 is the oldest for step 2
def test_cycle__item_of_a_policy_that_is_stale_or_later__is_left_out_and_learning_continues(
    version: int, build_harness: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(steps=3)

    def change(order: BatchOrder) -> BatchOrder:
        if order.step < 2:
            return order
        other = order.items[0].model_copy(update={"policy_version": version})
        return order.model_copy(update={"items": (other, *order.items[1:])})

    change_orders(harness, monkeypatch, change)
    harness.run()
    updates = [line for line in harness.read_metrics() if line["event"] == "update"]
    assert [(line["batch/left_out"], line["batch/samples"]) for line in updates] == [(0, 32), (0, 32), (1, 16)]


def test_cycle__order_of_another_step__ends_the_trainer_and_says_what_to_do(
    build_harness: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(steps=1)
    change_orders(harness, monkeypatch, lambda order: order.model_copy(update={"step": order.step + 1}))
    with pytest.raises(OperatorError, match=r"wrong_batch: .*coordinator_url"):
        harness.run()
