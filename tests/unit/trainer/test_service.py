"""What the trainer decides, value by value."""

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from covey.chain.structs import PoolTerms
from covey.environments import registry
from covey.environments.base import Environment, EnvironmentSpec
from covey.environments.registry import DEMO
from covey.errors import OperatorError, ProtocolError
from covey.model.policy_files import load_tokenizer
from covey.model.prompts import RAW, encode_prompt
from covey.model.text import Tokenizer
from covey.model.tiny import tiny_folder
from covey.protocol.api.trainer import BatchItem, BatchOrder
from covey.protocol.canonical import sha256
from covey.protocol.ids import Address, GroupId, Hash, RolloutId, Step, TaskId
from covey.protocol.params import EnvironmentParams, ModelParams, PoolParams
from covey.protocol.submission_file import sandboxed
from covey.protocol.submission_file.codec import encode
from covey.protocol.submission_file.rows import Budget, Rollout
from covey.sandbox import Sandbox, SandboxError
from covey.shardcast.store import Retention
from trainer import service
from trainer.batch import Sample
from trainer.learner import UpdateMetrics

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
        work_key=sha256(file), manifest_hash=Hash("0x" + "33" * 32), url="http://127.0.0.1/x", replayed=True,
    )  # fmt: skip
    return item.model_copy(update=changes)


def read(file: bytes, item: BatchItem | None = None, **changes: Any) -> Any:
    given = {"vocabulary": 259, "decode": sandboxed.decode_framed} | changes
    return service.read_work(item or build_item(file), file, PARAMS, **given)


RESUMABLE = {
    (0, 0): {0, 1}, (0, 5): {5, 6}, (1, 0): {0, 1}, (1, 1): {1, 2}, (1, 5): {4, 5, 6}, (2, 1): {1, 2},
    (2, 5): {3, 4, 5, 6},
}  # fmt: skip
"""Numbers of policies on chain with which a state goes on, by max_staleness and step."""


@pytest.mark.parametrize(("max_staleness", "step"), RESUMABLE)
def test_require_resumable__any_number_on_chain__goes_on_where_a_crash_could_leave_it(
    max_staleness: int, step: int
) -> None:
    for published in range(9):
        if published in RESUMABLE[max_staleness, step]:
            service.require_resumable(Step(step), published, max_staleness=max_staleness)
            continue
        where = "behind" if published > step else "ahead of"
        with pytest.raises(OperatorError, match=f"{where} the chain"):
            service.require_resumable(Step(step), published, max_staleness=max_staleness)


@pytest.mark.parametrize(
    ("max_staleness", "step", "least"), [(0, 0, 1), (0, 5, 6), (1, 0, 1), (1, 1, 1), (1, 5, 5), (2, 2, 1), (2, 5, 4)]
)
def test_is_ahead__policies_on_chain__is_until_there_are_as_many(max_staleness: int, step: int, least: int) -> None:
    found = [service.is_ahead(Step(step), Step(count), max_staleness=max_staleness) for count in range(8)]
    assert found == [count < least for count in range(8)]


def test_is_finished__limit_or_none__ends_at_the_limit_only() -> None:
    assert [service.is_finished(Step(step), 2) for step in range(4)] == [False, False, True, True]
    assert not service.is_finished(Step(10**6), None)
    assert service.is_finished(Step(0), 0)


def test_is_evaluated__every_fourth_and_the_last__by_hand() -> None:
    chosen = [step for step in range(11) if service.is_evaluated(Step(step), steps=10, every=4)]
    assert chosen == [0, 4, 8, 10]
    assert not any(service.is_evaluated(Step(step), steps=10, every=0) for step in range(11))


@pytest.mark.parametrize(("version", "is_fine"), [(5, True), (4, True), (3, False), (6, False)])
def test_is_fresh__policy_of_each_age__at_most_the_bound(version: int, is_fine: bool) -> None:
    with capture_logs() as logs:
        assert service.is_fresh(build_item(b"x", policy_version=version), Step(5), PARAMS) is is_fine
    assert [(log["task"], log["policy"], log["step"]) for log in logs] == ([] if is_fine else [(4, version, 5)])


def test_require_order__another_step__ends_the_trainer() -> None:
    service.require_order(BatchOrder(step=Step(5), items=()), Step(5))
    with pytest.raises(OperatorError, match=r"wrong_batch: .* step 5 .* step 4\. .*coordinator_url"):
        service.require_order(BatchOrder(step=Step(4), items=()), Step(5))


def test_read_work__honest_file__is_its_rows_with_the_orders_facts() -> None:
    rows = build_rows()
    work = read(encode(rows))
    assert work.rollouts == tuple(rows)
    assert (work.task, work.policy_version, work.replayed) == (4, 3, True)
    assert read(encode(rows), build_item(encode(rows), replayed=False)).replayed is False


def test_read_work__pool_that_samples_at_another_temperature__claims_are_not_the_policys() -> None:
    file = encode(build_rows())
    params = PARAMS.model_copy(update={"model": PARAMS.model.model_copy(update={"temperature": 0.6})})
    work = service.read_work(build_item(file), file, params, vocabulary=259, decode=sandboxed.decode_framed)
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


def test_build_budget__pool__by_hand() -> None:
    rules = {"proof_window": 4, "proof_top_k": 10}
    params = PoolParams.model_validate(PARAMS.model_dump() | {"verification": rules})
    assert service.build_budget(params) == Budget(
        file_bytes=4 << 20, rows=4, prompt_tokens=16, completion_tokens=8, proof_bytes=22, proof_window=4
    )


def test_read_work__decoder_dies__is_left_out() -> None:
    def die(_: bytes) -> bytes:
        raise SandboxError("sandbox_died", "out of memory")

    assert read(encode(build_rows()), decode=die) is None


@given(st.binary(max_size=200))
def test_read_work__any_bytes__never_raise(file: bytes) -> None:
    assert read(file) is None


def build_sample(version: int, reward: float, advantage: float, tokens: int) -> Sample:
    return Sample(
        id=RolloutId(task=TaskId(0), group=GroupId(0), sibling=0), policy_version=Step(version), prompt=(2, tokens),
        tokens=(5,) * tokens, reward=reward, advantage=advantage, old=None,
    )  # fmt: skip


SAMPLES = [
    build_sample(5, 1.0, 1.0, 2),
    build_sample(3, 0.0, -1.0, 4),
    build_sample(4, 0.0, 0.0, 3),
    build_sample(5, 0.0, 0.0, 7),
]


def test_build_report__two_updates__means_and_the_largest_norm() -> None:
    first = UpdateMetrics(
        loss=0.5, gradient_norm=2.0, clip_ratio=0.1, ratio_mean=1.0, outside_clip=0.5, mismatch_kl=0.25,
        mismatch_kl_max=7.0, entropy=3.0, kl=0.0, learning_rate=0.1, tokens=10, trained_tokens=8,
    )  # fmt: skip
    second = replace(
        first, loss=1.5, gradient_norm=1.0, clip_ratio=0.3, outside_clip=0.75, mismatch_kl=0.5, mismatch_kl_max=4.0,
        learning_rate=0.2, tokens=6,
    )  # fmt: skip
    report = service.build_report(SAMPLES, [first, second], step=Step(5), left_out=1, regraded=3)
    expected = {
        "reward/mean": 0.25, "policy/loss": 1.0, "policy/entropy": 3.0, "policy/kl": 0.0, "policy/clip_ratio": 0.2,
        "policy/ratio": 1.0, "policy/outside_clip": 0.625, "policy/mismatch_kl": 0.375, "policy/mismatch_kl_max": 7.0,
        "optim/grad_norm": 2.0, "optim/learning_rate": 0.2, "staleness_mean": 0.75,
        "staleness_max": 2, "batch/tokens": 16, "batch/samples": 4, "batch/live_share": 0.5,
        "batch/truncated_share": 0.0,
        "batch/completion_tokens": 4.0, "batch/left_out": 1, "batch/regraded": 3,
    }  # fmt: skip
    assert report == pytest.approx(expected)


def test_build_report__update_without_samples__is_in_no_mean() -> None:
    live = UpdateMetrics(
        loss=0.5, gradient_norm=2.0, clip_ratio=0.1, ratio_mean=1.0, outside_clip=0.5, mismatch_kl=0.25,
        mismatch_kl_max=7.0, entropy=3.0, kl=0.0, learning_rate=0.1, tokens=10, trained_tokens=8,
    )  # fmt: skip
    dead = replace(live, loss=0.0, gradient_norm=0.0, entropy=0.0, ratio_mean=0.0, trained_tokens=0, tokens=6)
    report = service.build_report(SAMPLES, [live, dead], step=Step(5), left_out=0, regraded=0)
    assert (report["policy/entropy"], report["policy/loss"], report["batch/tokens"]) == (3.0, 0.5, 16)


def test_build_report__nothing_left_to_train_on__is_zeros() -> None:
    report = service.build_report([], [], step=Step(5), left_out=4, regraded=0)
    assert report["batch/left_out"] == 4
    assert sum(report.values()) == 4


class Lengths:
    """An environment that takes 0.1 a token off where the prompt's second token, its only letter, is not odd."""

    def compute_length_cost(self, text: str, *, completion_tokens: int) -> float:
        return 0.0 if int(text) % 2 else 0.1 * completion_tokens


class Digits:
    """Text of a prompt is its second token."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        return str(tokens[1])


def test_split_rewards__task_and_length__add_up_to_the_reward() -> None:
    """Prompts end with the completion's length: 2, 4, 3 and 7 tokens cost 0.2, 0.4, nothing and nothing."""
    found = service.split_rewards(SAMPLES, cast(Environment, Lengths()), cast(Tokenizer, Digits()), format=RAW)
    assert found == pytest.approx({"reward/task": (1.2 + 0.4) / 4, "reward/length_penalty": 0.6 / 4})
    assert found["reward/task"] - found["reward/length_penalty"] == pytest.approx(0.25)


def test_split_rewards__nothing_to_train_on__is_zeros() -> None:
    found = service.split_rewards([], cast(Environment, Lengths()), cast(Tokenizer, Digits()), format=RAW)
    assert found == {"reward/task": 0.0, "reward/length_penalty": 0.0}


def test_split_rewards__shipped_environment_and_tokenizer__find_the_target_in_the_tokens() -> None:
    environment = registry.load(
        EnvironmentSpec(kind=DEMO.kind, options={**DEMO.options, "targets": [10], "alpha": 0.01})
    )
    tokenizer = load_tokenizer(tiny_folder())
    prompt = tuple(encode_prompt(tokenizer, environment.prompt(7).text, format=RAW))
    sample = replace(build_sample(5, 0.96, 1.0, 6), prompt=prompt)
    found = service.split_rewards([sample], environment, tokenizer, format=RAW)
    assert found == pytest.approx({"reward/task": 1.0, "reward/length_penalty": 0.04})


def test_retention__by_hand__what_judging_epoch_and_windows_take():
    """Two of quorum: four judgements of 30 s; the ledger takes an epoch every 50 s; windows of 100 and 1000 s."""
    terms = PoolTerms(
        trainer=Address("0x" + "11" * 20), arbiter=Address("0x" + "22" * 20), token=Address("0x" + "33" * 20),
        params_hash=Hash("0x" + "44" * 32), reward_per_unit=1, min_stake=1, slash_amount=1, quorum=2,
        challenge_window=100, veto_window=1000, unbond_window=10**6, epoch_length=50,
    )  # fmt: skip
    params = PoolParams(name="x", environment=EnvironmentParams(kind="x"), max_staleness=3, epoch_seconds=20)
    assert service.build_retention(2, terms, params) == Retention(keep=5, seconds=4 * 30 + 50 + 1100, lifetime=5)
    slower = params.model_copy(update={"epoch_seconds": 60})
    assert service.build_retention(9, terms, slower) == Retention(keep=9, seconds=4 * 30 + 60 + 1100, lifetime=5)
