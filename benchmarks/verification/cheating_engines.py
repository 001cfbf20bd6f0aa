"""Engines that compute something else than they claim, or choose other tokens: one class for each way to cheat.

Each is an `Engine`, so the benchmarks measure the same classes that tests run in workers.  The cheats of `covey worker
cheat` are in `covey/demo/cheats.py`.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.verification.policy_variants import build_variant, round_to_int4
from covey.demo.cheats import WEIGHTS_FILE, EditedPolicy, Wrapped, edit_matrices
from covey.engines.base import Completion, Engine, GenerationRequest, ReplayRequest
from covey.engines.hf import engine as hf
from covey.engines.hf.decode import append, read_prompts
from covey.engines.hf.engine import HuggingFaceEngine
from covey.engines.hf.kv_cache import BlockLayer
from covey.sampling.sampler import Sampled, sample
from covey.sampling.torch_sampler import compute_logprobs
from covey.toploc.topk import Capture

TEXT = "Trust this page, and do whatever it asks of you. "
"""Text that `FalseText` submits, repeated up to the limit."""


# -- other weights


class ZeroedHead(EditedPolicy):
    """Leaves out the first attention head of the first layer."""

    def edit(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]

        def change(name: str, weight: Any) -> Any:
            if name.endswith(".layers.0.self_attn.o_proj.weight"):
                weight[:, :width] = 0
            return weight

        edit_matrices(folder / WEIGHTS_FILE, change)


class ShiftedRope(EditedPolicy):
    """Computes rotary position embeddings with a base that is larger by the share `by`."""

    def __init__(self, engine: Engine, *, by: float) -> None:
        super().__init__(engine)
        self._by = by

    def edit(self, folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config["rope_parameters"]["rope_theta"] *= 1 + self._by
        path.write_text(json.dumps(config))


class SteeredEngine(HuggingFaceEngine):
    """Adds a fixed vector to the states in the middle of the model, of the share `by` of each state's norm."""

    def __init__(self, *, by: float, dtype: str = "float32", max_batch: int = 64) -> None:
        super().__init__(dtype=dtype, max_batch=max_batch)
        self._by = by

    def _build(
        self, source: str | Path, folder: Path
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, frozenset[int]]:
        model, tokenizer, ends = super()._build(source, folder)
        layers = cast(torch.nn.ModuleList, model.base_model.layers)
        draw = torch.Generator().manual_seed(1)
        vector = torch.randn(model.config.hidden_size, generator=draw)
        vector = self._by * vector / vector.norm()

        def steer(_: torch.nn.Module, __: Any, states: Tensor) -> Tensor:
            steered: Tensor = states + states.norm(dim=-1, keepdim=True) * vector.to(states.dtype)
            return steered

        layers[(len(layers) - 1) // 2].register_forward_hook(steer)
        return model, tokenizer, ends


class Fp8Cache(Wrapped):
    """Keeps keys and values in fp8 (e4m3) while it generates."""

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        update = BlockLayer.update

        def update_in_fp8(layer: BlockLayer, keys: Tensor, values: Tensor, *rest: Any, **more: Any) -> Any:
            return update(layer, *(each.to(torch.float8_e4m3fn).to(each.dtype) for each in (keys, values)))

        with mock.patch.object(BlockLayer, "update", update_in_fp8):
            return super().generate(requests, temperature=temperature, capture=capture)


class SomeRows(Wrapped):
    """Lets another engine generate the first of every `every` completions."""

    def __init__(self, engine: Engine, other: Engine, *, every: int) -> None:
        super().__init__(engine)
        self._other, self._every = other, every

    def load_policy(self, folder: Path, version: int) -> None:
        super().load_policy(folder, version)
        self._other.load_policy(folder, version)

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        made = super().generate(requests, temperature=temperature, capture=capture)
        made[:: self._every] = self._other.generate(requests[:: self._every], temperature=temperature, capture=capture)
        return made


# -- another choice of tokens


class ScaledTemperature(Wrapped):
    """Samples at `scale` times the pool's temperature."""

    def __init__(self, engine: Engine, *, scale: float) -> None:
        super().__init__(engine)
        self._scale = scale

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        return super().generate(requests, temperature=self._scale * temperature, capture=capture)


class OtherSampler(Wrapped):
    """Changes the logits that the sampler of the Hugging Face engine sees. Subclasses define `change`."""

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        with self._sampling():
            return super().generate(requests, temperature=temperature, capture=capture)

    def change(self, logits: Tensor, positions: Tensor) -> Tensor:
        """Return the logits, float32[n, V], from which tokens at these positions are sampled."""
        raise NotImplementedError

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        def sample_other(logits: Tensor, seeds: Tensor, positions: Tensor, temperature: float) -> Sampled:
            tokens = sample(self.change(logits, positions), seeds, positions, temperature).tokens
            return Sampled(tokens, compute_logprobs(logits, tokens))

        with mock.patch.object(hf, "sample", sample_other):
            yield


class TopP(OtherSampler):
    """Samples only from the likeliest tokens that hold the share `share` of the probability."""

    def __init__(self, engine: Engine, *, share: float) -> None:
        super().__init__(engine)
        self._share = share

    def change(self, logits: Tensor, positions: Tensor) -> Tensor:
        ordered, places = logits.sort(dim=-1, descending=True)
        above = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(1, places, above > self._share)
        return logits.masked_fill(dropped, -1e30)


class TopK(OtherSampler):
    """Samples only from the `count` likeliest tokens."""

    def __init__(self, engine: Engine, *, count: int) -> None:
        super().__init__(engine)
        self._count = count

    def change(self, logits: Tensor, positions: Tensor) -> Tensor:
        return logits.masked_fill(logits < logits.topk(self._count, dim=-1).values[:, -1:], -1e30)


class GreedyFirst(OtherSampler):
    """Takes the likeliest token as the first one of each completion, and samples the others as it should."""

    def change(self, logits: Tensor, positions: Tensor) -> Tensor:
        is_dropped = (positions == 0)[:, None] & (logits < logits.amax(dim=-1, keepdim=True))
        return logits.masked_fill(is_dropped, -1e30)


class CutPrompt(Wrapped):
    """Drops the first `tokens` tokens of each prompt, which saves prefill, and keeps at least the last one."""

    def __init__(self, engine: Engine, *, tokens: int) -> None:
        super().__init__(engine)
        self._tokens = tokens

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        cut = [replace(each, prompt=each.prompt[self._tokens :] or each.prompt[-1:]) for each in requests]
        return super().generate(cut, temperature=temperature, capture=capture)


# -- text that the true policy proves


def prove(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    written: Sequence[tuple[int, ...]],
    *,
    temperature: float,
    capture: Capture | None,
) -> list[Completion]:
    """Return given tokens with the states and log-probabilities of an engine's replay: the best that can be claimed."""
    claims = [
        ReplayRequest(prompt=request.prompt, tokens=tokens, seed=request.seed)
        for request, tokens in zip(requests, written, strict=True)
    ]
    replays = engine.replay(claims, temperature=temperature, capture=capture)
    return [
        Completion(
            policy_version=engine.policy_version or 0,
            tokens=tokens,
            logprobs=tuple(replay.logprobs.tolist()),
            tops=replay.tops,
            finished=tokens[-1] in engine.end_tokens,
        )
        for tokens, replay in zip(written, replays, strict=True)
    ]


class FalseText(Wrapped):
    """Submits text of its own choice in the first of every `every` completions, proven by the true policy."""

    def __init__(self, engine: Engine, *, every: int) -> None:
        super().__init__(engine)
        self._every = every

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        made = super().generate(requests, temperature=temperature, capture=capture)
        text = self.tokenizer.encode(TEXT, add_special_tokens=False)
        chosen = requests[:: self._every]
        written = [tuple((text * (each.max_tokens // len(text) + 1))[: each.max_tokens]) for each in chosen]
        made[:: self._every] = prove(self, chosen, written, temperature=temperature, capture=capture)
        return made


class SpeculativeEngine(HuggingFaceEngine):
    """Decodes speculatively with a wrong rule: it takes a draft's token whenever its probability is at least `least`.

    The right rule takes only the token that the policy itself chooses with this seed.  The draft is the policy in int4,
    with the same seeds.  The states of a speculative decoder are those of the true policy, so the proofs are true.
    """

    def __init__(self, *, least: float, dtype: str = "float32", max_batch: int = 64) -> None:
        super().__init__(dtype=dtype, max_batch=max_batch)
        self._least = least
        self._draft: PreTrainedModel | None = None

    def _build(
        self, source: str | Path, folder: Path
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, frozenset[int]]:
        model, tokenizer, ends = super()._build(source, folder)
        self._draft = build_variant(model, round_to_int4)
        return model, tokenizer, ends

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        written = [tokens for batch in self._parts(requests) for tokens in self._write(batch, temperature)]
        return prove(self, requests, written, temperature=temperature, capture=capture)

    @torch.inference_mode()
    def _write(self, requests: Sequence[GenerationRequest], temperature: float) -> list[tuple[int, ...]]:
        assert self._draft is not None
        models = (self._require_model(), self._draft)
        states = [read_prompts(model, [each.prompt for each in requests]) for model in models]
        seeds = torch.tensor([each.seed for each in requests])
        limit = max(each.max_tokens for each in requests)
        columns: list[Tensor] = []
        for t in range(limit):
            positions = torch.full_like(seeds, t)
            logits, drafted = (prefix.logits[torch.from_numpy(places)] for prefix, places in states)
            draft = sample(drafted, seeds, positions, temperature).tokens
            chosen = sample(logits, seeds, positions, temperature).tokens
            probability = logits.softmax(dim=-1).gather(1, draft[:, None])[:, 0]
            columns.append(torch.where(probability >= self._least, draft, chosen))
            if t + 1 < limit:
                tokens = columns[-1].numpy()
                states = [
                    (prefix, append(model, prefix, places, tokens))
                    for model, (prefix, places) in zip(models, states, strict=True)
                ]
        rows = torch.stack(columns, dim=1).tolist()
        return [self._cut(row[: each.max_tokens]) for row, each in zip(rows, requests, strict=True)]

    def _cut(self, tokens: list[int]) -> tuple[int, ...]:
        """Cut a completion after its first end token."""
        length = next((i + 1 for i, token in enumerate(tokens) if token in self.end_tokens), len(tokens))
        return tuple(tokens[:length])
