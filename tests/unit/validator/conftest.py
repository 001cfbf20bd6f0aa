"""Fixtures: the tiny model's engine, a worker, and a validator's tools with a real decoder process."""

from collections.abc import Iterator

import pytest
import torch

from covey.devnet import deploy
from covey.engines.hf.engine import HuggingFaceEngine
from covey.model.tiny import tiny_folder
from covey.sandbox import CallLimits, Sandbox
from tests.fakes.tools import Work, Worker, build_tools, make_model_params
from validator.checks import CheckTools


@pytest.fixture(scope="session")
def engine() -> HuggingFaceEngine:
    torch.set_num_threads(1)
    engine = HuggingFaceEngine()
    engine.load_policy(tiny_folder(), 0)
    return engine


@pytest.fixture(scope="session")
def worker(engine: HuggingFaceEngine) -> Worker:
    return Worker(deploy.derive_wallet("test", "node"), make_model_params(), engine)


@pytest.fixture(scope="session")
def honest(worker: Worker) -> Work:
    return worker.work()


@pytest.fixture(scope="session")
def decoder() -> Iterator[Sandbox]:
    with Sandbox(
        "covey.protocol.submission_file.codec:build_decoder", limits=CallLimits(memory_bytes=1 << 29)
    ) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def tools(engine: HuggingFaceEngine, decoder: Sandbox) -> CheckTools:
    return build_tools(make_model_params(), engine, decoder)
