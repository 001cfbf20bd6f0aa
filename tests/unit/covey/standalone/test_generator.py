"""The batch of a step: it follows from policy, parameters and step alone."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from covey.engines.hf.engine import HuggingFaceEngine, prepare_process
from covey.environments import registry
from covey.environments.base import Grade, Reply
from covey.environments.python_rewards import PythonEnvironment
from covey.environments.question_mask import pack_kept
from covey.model.tiny import tiny_folder
from covey.protocol.ids import GroupId, PoolId, Step, TaskId
from covey.protocol.params import EnvironmentParams, ModelParams, TrainingParams
from covey.protocol.seeding import SlotDomain, compute_sampling_seed
from covey.standalone.beacons import Beacons
from covey.standalone.generator import Generator
from covey.standalone.preparation import derive_node
from tests.fakes.pool import make_hash
from trainer.checkpoints.checkpoint import StepFolders

pytestmark = pytest.mark.unit
NODE = derive_node(0)


@pytest.fixture(scope="module")
def engine() -> HuggingFaceEngine:
    prepare_process(threads=1)
    return HuggingFaceEngine()


def build_generator(tmp_path: Path, engine: HuggingFaceEngine, grade: Any, **changes: Any) -> Generator:
    """Return a generator with two policies of equal weights and different record hashes."""
    exports = StepFolders(tmp_path / "exports")
    for step in (0, 1):
        exports.add(Step(step), lambda folder: shutil.copytree(tiny_folder(), folder, dirs_exist_ok=True))
    lines = [{"step": step, "record_hash": make_hash(str(step))} for step in (0, 1)]
    (tmp_path / "beacons.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    values: dict[str, Any] = {
        "environment": EnvironmentParams(kind=registry.DEMO.kind, options=dict(registry.DEMO.options)),
        "model": ModelParams(max_prompt_tokens=64, max_completion_tokens=2), "group_size": 2, "groups_per_step": 4,
        "groups_per_task": 2, "max_staleness": 0,
    }  # fmt: skip
    return Generator(
        engine=engine, environment=registry.load(registry.DEMO), grade=grade,
        params=TrainingParams.model_validate(values | changes), exports=exports,
        beacons=Beacons(tmp_path / "beacons.jsonl", exports, PoolId(1)), pool=PoolId(1), node=NODE,
    )  # fmt: skip


def give_nothing(replies: list[Reply]) -> list[Grade]:
    return [Grade(reward=0.0) for _ in replies]


def give_in_turn(replies: list[Reply]) -> list[Grade]:
    return [Grade(reward=float(n % 2)) for n, _ in enumerate(replies)]


def test_generate__step__has_the_draws_of_a_pool_with_one_node(tmp_path: Path, engine: HuggingFaceEngine):
    batch = build_generator(tmp_path, engine, give_nothing).generate(Step(1))
    assert [(work.task, work.policy_version) for work in batch.works] == [(3, 1), (4, 1)]
    for work in batch.works:
        domain = SlotDomain(
            beacon=make_hash("1"), pool=PoolId(1), policy_version=Step(1), node=NODE, task=TaskId(work.task)
        )
        seeds = [compute_sampling_seed(domain, GroupId(group), sibling) for group in (0, 1) for sibling in (0, 1)]
        assert [row.seed for row in work.rollouts] == seeds
        assert all(row.proofs == () for row in work.rollouts)
        assert work.replayed
    assert batch.tokens == sum(len(row.tokens) for work in batch.works for row in work.rollouts)


def test_generate__again__is_the_same_batch(tmp_path: Path, engine: HuggingFaceEngine):
    generator = build_generator(tmp_path, engine, give_in_turn)
    assert generator.generate(Step(1)).works == generator.generate(Step(1)).works
    assert generator.generate(Step(0)).works != generator.generate(Step(1)).works


@pytest.mark.parametrize(("staleness", "step", "version"), [(1, 0, 0), (1, 1, 0), (1, 2, 1), (2, 2, 0)])
def test_generate__staleness__samples_with_an_older_policy(
    tmp_path: Path, engine: HuggingFaceEngine, staleness: int, step: int, version: int
):
    generator = build_generator(tmp_path, engine, give_nothing, max_staleness=staleness)
    assert {work.policy_version for work in generator.generate(Step(step)).works} == {version}


@pytest.mark.parametrize(("grade", "groups"), [(give_nothing, 8), (give_in_turn, 4)])
def test_generate__online_filter__adds_tasks_until_enough_groups_are_live(
    tmp_path: Path, engine: HuggingFaceEngine, grade: Any, groups: int
):
    generator = build_generator(tmp_path, engine, grade, online_filter=True, max_sampling=2.0)
    works = generator.generate(Step(0)).works
    assert [work.task for work in works] == [*range(1, groups // 2 + 1)]
    assert generator.generate(Step(1)).works[0].task == 5  # tasks of steps do not overlap


def test_generate__filters_over_several_epochs__go_on_with_the_same_rows(tmp_path: Path, engine: HuggingFaceEngine):
    """Rows are drawn with replacement, so there is no last one. Both filters hold in every pass over the rows."""
    rows, numbers = [{"prompt": f"What is {n}?"} for n in range(40)], range(8)
    unfiltered = PythonEnvironment(rows, lambda _text, _row: 0.0)
    kept = {unfiltered.prompt(number).text for number in numbers}
    solved = min(kept)

    def grade(replies: list[Reply]) -> list[Grade]:
        is_solved = [reply.verification["prompt"] == solved for reply in replies]
        return [Grade(reward=1.0 if each else float(n % 2)) for n, each in enumerate(is_solved)]

    generator = replace(
        build_generator(tmp_path, engine, grade, max_staleness=64, online_filter=True, max_sampling=8.0),
        environment=PythonEnvironment(rows, lambda _text, _row: 0.0, {"kept": pack_kept(numbers)}),
    )
    drawn, live = Counter[str](), Counter[str]()
    for step in range(10):
        works = generator.generate(Step(step)).works
        groups = [work.rollouts[n : n + 2] for work in works for n in (0, 2)]
        texts = [engine.tokenizer.decode(list(group[0].prompt)).removeprefix("<bos>").strip() for group in groups]
        of_step = [text for text, group in zip(texts, groups, strict=True) if group[0].reward != group[1].reward]
        assert len(of_step) >= 4
        drawn.update(texts)
        live.update(of_step)
    assert sum(drawn.values()) >= 40 > 4 * len(kept)
    assert (set(drawn), set(live)) == (kept, kept - {solved})
