"""The tiny model, honest work and a validator's tools, with the decoder in its own process."""

import os
from collections.abc import Iterator, Sequence

import pytest
import torch

from covey.demo.cheats import Wrapped
from covey.devnet import deploy
from covey.engines.base import Replay, ReplayRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.model.tiny import tiny_folder
from covey.sandbox import CallLimits, Sandbox
from covey.toploc.topk import Capture
from tests.fakes.tools import Work, Worker, build_tools, make_model_params
from validator.checks import CheckTools

MUTATIONS = 10_000


class ReplayOnce(Wrapped):
    """A real engine that caches its replays, because most mutations do not change the tokens."""

    def __init__(self, engine: HuggingFaceEngine) -> None:
        super().__init__(engine)
        self._known: dict[tuple[object, ...], list[Replay]] = {}

    def replay(
        self, sequences: Sequence[ReplayRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Replay]:
        key = (temperature, capture, *((s.prompt, s.tokens, s.seed) for s in sequences))
        if key not in self._known:
            self._known[key] = super().replay(sequences, temperature=temperature, capture=capture)
        return self._known[key]


@pytest.fixture(scope="session")
def count() -> int:
    """Return the number of mutations of each kind: a fiftieth, or all of them with COVEY_FULL=1."""
    return MUTATIONS if os.environ.get("COVEY_FULL") == "1" else MUTATIONS // 50


@pytest.fixture(scope="session")
def worker() -> Worker:
    torch.set_num_threads(1)
    engine = HuggingFaceEngine()
    engine.load_policy(tiny_folder(), 0)
    return Worker(deploy.derive_wallet("test", "node"), make_model_params(), engine)


@pytest.fixture(scope="session")
def honest(worker: Worker) -> list[Work]:
    """Honest work for three tasks."""
    return [worker.at(number).work() for number in (7, 8, 9)]


@pytest.fixture(scope="session")
def decoder() -> Iterator[Sandbox]:
    with Sandbox(
        "covey.protocol.submission_file.codec:build_decoder", limits=CallLimits(memory_bytes=1 << 29)
    ) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def tools(worker: Worker, decoder: Sandbox) -> CheckTools:
    return build_tools(worker.params, ReplayOnce(worker.engine), decoder)
