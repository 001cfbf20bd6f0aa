"""The composition root: who may train, that its imports are light, and that real parts fit together."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from covey.errors import OperatorError
from covey.network.entry import Network
from covey.protocol.ids import Step
from covey.protocol.params import EnvironmentParams, ModelParams, PoolParams
from covey.protocol.submission_file import codec
from tests.fakes.grading import grade_here
from trainer.app import build, build_publisher, open_outbox
from trainer.factories import build_learner, get_source

pytestmark = pytest.mark.unit
Build = Callable[..., Any]
HEAVY = ("torch", "transformers", "numba", "reasoning_gym", "safetensors")


def test_import__app_and_config__bring_no_heavy_package() -> None:
    code = f"import sys, trainer.app, trainer.config; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "[]"


def test_build__key_that_is_not_the_trainers__is_refused(build_harness: Build) -> None:
    config = build_harness().config
    network = SimpleNamespace(
        pool=1, terms=SimpleNamespace(trainer="0x" + "aa" * 20), wallet=SimpleNamespace(address="0x" + "bb" * 20)
    )
    with ThreadPoolExecutor(max_workers=1) as thread, pytest.raises(OperatorError, match="not_the_trainer") as caught:
        build(
            config, cast(Network, network), decode=codec.decode_framed, grade=grade_here,
            publisher=cast(Any, None), chain_thread=thread, stop=asyncio.Event(),
        )  # fmt: skip
    assert (
        f"the trainer of pool 1 is {'0x' + 'aa' * 20}, but this key belongs to {'0x' + 'bb' * 20}"
        in caught.value.message
    )
    assert f"Set key_file to the key of {'0x' + 'aa' * 20}" in caught.value.fix


def test_build__fresh_home__has_step_0_on_disk_and_nothing_on_chain(build_harness: Build) -> None:
    harness = build_harness()
    with ThreadPoolExecutor(max_workers=1) as thread:
        ctx = harness.build(thread, asyncio.Event())
    assert (ctx.progress.step, ctx.progress.unpublished) == (0, 0)
    assert sorted(path.name for path in (harness.config.home / "exports").iterdir()) == ["0"]
    assert sorted(path.name for path in (harness.config.home / "checkpoints").iterdir()) == ["0"]
    assert harness.chain.hashes == []
    exported, source = ctx.exports.get_path(Step(0)), Path(get_source(harness.config))
    assert (exported / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    weights, shipped = (load_file(folder / "model.safetensors") for folder in (exported, source))
    assert all(torch.equal(weights[name], shipped[name]) for name in weights.keys() | shipped.keys())


def test_build__exported_policy_was_deleted__is_exported_again_from_the_checkpoint(build_harness: Build) -> None:
    harness = build_harness(steps=1)
    harness.run()
    weights = harness.config.home / "exports" / "1" / "model.safetensors"
    before = weights.read_bytes()
    shutil.rmtree(weights.parent)
    harness.run()
    assert weights.read_bytes() == before
    assert len(harness.chain.hashes) == 2


def test_build_learner__sample_that_could_be_longer_than_a_row__is_refused(build_harness: Build) -> None:
    params = PoolParams(
        name="t",
        environment=EnvironmentParams(kind="x"),
        model=ModelParams(max_prompt_tokens=100, max_completion_tokens=29),
    )
    with pytest.raises(OperatorError, match=r"short_rows: model.seq_len is 128, .* 129 tokens.*Set model.seq_len to"):
        build_learner(build_harness().config, params)
    build_learner(build_harness(model={"seq_len": 129}).config, params)


def test_build_learner__unknown_device__is_refused(build_harness: Build) -> None:
    config = build_harness(device="gpu", model={"seq_len": None}).config
    with pytest.raises(OperatorError, match="bad_device: the device gpu cannot be used"):
        build_learner(config, PoolParams(name="t", environment=EnvironmentParams(kind="x")))


def test_build_learner__settings__are_applied(build_harness: Build) -> None:
    # No pool may do this, but the trainer supports it.
    halved = ModelParams(max_prompt_tokens=64).model_copy(update={"compute_dtype": "bfloat16"})
    params = PoolParams(name="t", environment=EnvironmentParams(kind="x")).model_copy(update={"model": halved})
    config = build_harness(optim={"betas": (0.8, 0.95), "weight_decay": 0.3}, model={"seq_len": None}).config
    learner, _ = build_learner(config, params)
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}
    (group,) = learner._optimizer.param_groups
    assert (group["betas"], group["weight_decay"], group["lr"]) == ((0.8, 0.95), 0.3, 5e-4)
    assert learner.vocabulary == 259
    assert torch.get_num_threads() == 1
    assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("settings", "is_held"),
    [
        ({}, True),
        ({"old_policy": "recompute"}, False),
        ({"old_policy": "claimed"}, False),
        ({"old_policy": "recompute", "beta": 0.1}, True),
    ],
)
def test_build_learner__scratch_model__exists_if_a_setting_requires_another_policy(
    settings: dict[str, Any], is_held: bool, build_harness: Build
) -> None:
    harness = build_harness(threads=1, loss=settings)
    _, recomputer = build_learner(harness.config, harness.params)
    assert (recomputer is not None) is is_held


@pytest.mark.parametrize(
    ("loss", "temperature", "message"),
    [
        ({"old_policy": "claimed"}, 0.6, "loss.old_policy is claimed, but the pool samples at temperature 0.6"),
        ({"custom_advantage": "math:no_such"}, 1.0, "loss.custom_advantage is math:no_such, which cannot be imported"),
    ],
)
def test_build_learner__objective_that_cannot_be_used__is_refused(
    loss: dict[str, Any], temperature: float, message: str, build_harness: Build
) -> None:
    harness = build_harness(threads=1, loss=loss)
    model = harness.params.model.model_copy(update={"temperature": temperature})
    with pytest.raises(OperatorError, match=f"bad_settings: .*{message}"):
        build_learner(harness.config, harness.params.model_copy(update={"model": model}))


def test_build_publisher__real_outbox_and_store__are_in_the_configured_folders(build_harness: Build) -> None:
    harness = build_harness()
    terms = SimpleNamespace(challenge_window=100, veto_window=1000, epoch_length=1)
    network = SimpleNamespace(
        pool=1, contracts=SimpleNamespace(policies=harness.chain, deployment=None),
        chain=None, wallet=SimpleNamespace(address="0x1"), params=harness.params,
        receipt_domain=SimpleNamespace(chain_id=31337), registry_domain=None, terms=terms,
    )  # fmt: skip
    config = harness.config.model_copy(update={"keep_policies": 77})
    with closing(open_outbox(config)) as outbox:
        publisher = build_publisher(config, cast(Network, network), outbox)
    assert publisher._offering._retention.keep == 77
    assert publisher._offering._retention.seconds > 1100
    assert (harness.config.home / "outbox.sqlite3").exists()
    assert (harness.config.origin_root / "heads").is_dir()


def test_get_source__setting__overrides_the_shipped_model(build_harness: Build) -> None:
    assert get_source(build_harness(model={"path": "some/model"}).config) == "some/model"
