from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from covey.errors import OperatorError, ProtocolError
from covey.protocol.api.trainer import BatchItem, BatchOrder
from covey.protocol.canonical import sha256
from covey.protocol.ids import Address, GroupId, Hash, Step, TaskId
from covey.protocol.params import EnvironmentParams, ModelParams, PoolParams
from covey.protocol.submission_file import codec
from covey.protocol.submission_file.codec import encode
from covey.protocol.submission_file.rows import Rollout
from covey.sandbox import Sandbox, SandboxError
from trainer.data.intake import is_fresh, read_work, require_order

pytestmark = pytest.mark.unit

PARAMS = PoolParams(
    name="test", environment=EnvironmentParams(kind="reasoning_gym"), model=ModelParams(max_prompt_tokens=16),
    group_size=2, groups_per_step=4, groups_per_task=2, max_staleness=1,
)  # fmt: skip


def build_rows(groups: int = 2, **changes: Any) -> list[Rollout]:
    row = Rollout(
        group=GroupId(0), sibling=0, seed=1, prompt=(2, 7), tokens=(5, 1), logprobs=(-0.5, -0.25), proofs=(),
        finished=True, reward=1.0,
    )  # fmt: skip
    return [replace(row, group=GroupId(g), sibling=s, **changes) for g in range(groups) for s in range(2)]


def build_item(file: bytes, **changes: Any) -> BatchItem:
    item = BatchItem(
        receipt_hash=Hash("0x" + "22" * 32), task=TaskId(4), node=Address("0x" + "44" * 20), policy_version=Step(3),
        work_key=sha256(file), record_hash=Hash("0x" + "33" * 32), url="http://127.0.0.1/x", replayed=True,
    )  # fmt: skip
    return item.model_copy(update=changes)


def read(file: bytes, item: BatchItem | None = None, **changes: Any) -> Any:
    options = {"vocabulary": 259, "decode": codec.decode_framed} | changes
    return read_work(item or build_item(file), file, PARAMS, **options)


@pytest.mark.parametrize(("version", "is_fine"), [(5, True), (4, True), (3, False), (6, False)])
def test_is_fresh__policy_of_each_age__at_most_the_bound(version: int, is_fine: bool) -> None:
    with capture_logs() as logs:
        assert is_fresh(build_item(b"x", policy_version=version), Step(5), PARAMS) is is_fine
    assert [(log["task"], log["policy"], log["step"]) for log in logs] == ([] if is_fine else [(4, version, 5)])


def test_require_order__another_step__ends_the_trainer() -> None:
    require_order(BatchOrder(step=Step(5), items=()), Step(5))
    with pytest.raises(OperatorError, match=r"wrong_batch: .* step 4, but step 5 .*coordinator_url"):
        require_order(BatchOrder(step=Step(4), items=()), Step(5))


def test_read_work__honest_file__is_its_rows_with_the_orders_facts() -> None:
    rows = build_rows()
    work = read(encode(rows))
    assert work.rollouts == tuple(rows)
    assert (work.task, work.policy_version, work.replayed) == (4, 3, True)
    assert read(encode(rows), build_item(encode(rows), replayed=False)).replayed is False


def test_read_work__pool_that_samples_at_another_temperature__claims_are_not_the_policys() -> None:
    file = encode(build_rows())
    params = PARAMS.model_copy(update={"model": PARAMS.model.model_copy(update={"temperature": 0.6})})
    work = read_work(build_item(file), file, params, vocabulary=259, decode=codec.decode_framed)
    assert work is not None
    assert work.replayed is False


def test_read_work__through_the_sandbox__is_the_same() -> None:
    rows = build_rows()
    with Sandbox("covey.protocol.submission_file.codec:build_decoder") as sandbox:
        work = read(encode(rows), decode=sandbox.call)
        assert work.rollouts == tuple(rows)
        assert read(b"PAR1 no file", decode=sandbox.call) is None


def test_read_work__file_swapped__is_refused() -> None:
    with pytest.raises(ProtocolError, match="digest_mismatch"):
        read(encode(build_rows(1)), build_item(encode(build_rows(2))))


@pytest.mark.parametrize(
    "rows",
    [
        build_rows(3),  # more than a task has
        build_rows(1),  # the groups that the worker liked
        build_rows()[:3],
        build_rows()[1:],
        [],
        [*build_rows(1), *build_rows(1)],
        build_rows(tokens=(259, 1)),
        build_rows(prompt=(2, 300)),
        build_rows(prompt=(2,) * 17),
    ],
)
def test_read_work__content_that_cannot_be_trained_on__is_left_out(rows: list[Rollout]) -> None:
    assert read(encode(rows)) is None


def test_read_work__decoder_dies__is_left_out() -> None:
    def die(_: bytes) -> bytes:
        raise SandboxError("sandbox_died", "out of memory")

    assert read(encode(build_rows()), decode=die) is None


@given(st.binary(max_size=200))
def test_read_work__any_bytes__never_raise(file: bytes) -> None:
    assert read(file) is None
