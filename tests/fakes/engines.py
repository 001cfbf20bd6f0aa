"""Engines on a machine that fails, engines whose replay equals their generation, and engines with given texts."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from covey.demo.cheats import Wrapped
from covey.engines.base import Completion, Engine, GenerationRequest, Replay, ReplayRequest
from covey.model.tiny import EOS, build_tokenizer
from covey.toploc.proofs import find_tops
from covey.toploc.topk import EVERYTHING, Capture, join

Change = Callable[[list[Completion]], list[Completion]]
"""Function that changes completions, given with all their states."""


class Broken:
    """An engine whose replay fails with an error of the machine."""

    def __init__(self, engine: Engine, error: Exception) -> None:
        self._engine, self._error = engine, error

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def replay(self, *_: object, **__: object) -> object:
        raise self._error


class Replaying(Wrapped):
    """An engine that claims the results of its own replay, like one whose decoding equals its prefill."""

    def __init__(self, engine: Engine, change: Change = lambda completions: completions) -> None:
        super().__init__(engine)
        self.change = change

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        completions = super().generate(requests, temperature=temperature)
        claims = [
            ReplayRequest(prompt=request.prompt, tokens=completion.tokens, seed=request.seed)
            for request, completion in zip(requests, completions, strict=True)
        ]
        replays = self.replay(claims, temperature=temperature, capture=EVERYTHING)
        changed = self.change(
            [
                dataclasses.replace(completion, tops=replay.tops, logprobs=tuple(replay.logprobs.tolist()))
                for completion, replay in zip(completions, replays, strict=True)
            ]
        )
        assert capture is not None
        tops = find_tops([join(each.tops) for each in changed], capture)
        return [dataclasses.replace(each, tops=found) for each, found in zip(changed, tops, strict=True)]


class Alone(Wrapped):
    """An engine that replays each completion alone, so that no result depends on a batch."""

    def replay(
        self, sequences: Sequence[ReplayRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Replay]:
        return [
            replay
            for each in sequences
            for replay in super(Alone, self).replay([each], temperature=temperature, capture=capture)
        ]


class Scripted:
    """An engine that generates given texts, by the seed of the request, with the tokenizer of the tiny model.

    A text that ends with "..." is cut off at the token limit.
    """

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._texts = texts
        self.tokenizer = build_tokenizer()
        self.end_tokens = frozenset({EOS})
        self.calls: list[list[GenerationRequest]] = []

    def generate(self, requests: Sequence[GenerationRequest], *, temperature: float) -> list[Completion]:
        self.calls.append([*requests])
        return [self._complete(request) for request in requests]

    def _complete(self, request: GenerationRequest) -> Completion:
        text = self._texts[request.seed]
        finished = not text.endswith("...")
        tokens = (*self.tokenizer.encode(text, add_special_tokens=False), *[EOS] * finished)
        return Completion(policy_version=0, tokens=tokens, logprobs=(), tops=(), finished=finished)
