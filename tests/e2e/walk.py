"""A pool with every part of a network in this process: real chain, real HTTP servers, real models.

The roles' cycles and the jobs are called one by one, so that a test can look at the state after each stop of the walk.
"""

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

import coordinator.app
import coordinator.context
import trainer.app
import trainer.context
import trainer.loop
import validator.app
import validator.context
import validator.loop
import worker.app
import worker.context
from coordinator import chain_events
from coordinator.api.application import build_api
from coordinator.api.process import cached_page
from coordinator.api.process.meters import Meters
from coordinator.api.process.status_page import build_status
from coordinator.config import CoordinatorConfig
from coordinator.db.models import SubmissionRow
from covey.chain.json_rpc import ChainClient
from covey.demo.demo_network import DemoNetwork
from covey.demo.participants import DemoOptions, Participants
from covey.engines.base import Engine
from covey.environments.grader import GradingPool
from covey.errors import TransientError
from covey.network.entry import join
from covey.protocol.api.public import StatusView
from covey.runtime.cycle import CycleResult
from covey.runtime.http import serve_http
from covey.sandbox import Sandbox
from covey.shardcast.origin import OriginSource
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.piece_cache import PieceCache
from covey.shardcast.piece_server import PieceServer
from covey.shardcast.relay import Relay
from covey.shardcast.upstream import Upstream
from tests.fakes.commands import invoke
from tests.fakes.network import run_job
from trainer.config import TrainerConfig
from validator.config import ValidatorConfig
from validator.epoch_signing import Attester
from worker.config import WorkerConfig


class Server:
    """An ASGI application on a real port, in a thread with its own event loop. A relay's tasks run there, too."""

    def __init__(self, app: object, port: int, *, relay: Relay | None = None) -> None:
        self._app, self._port, self._stop, self._relay = app, port, asyncio.Event(), relay
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        if self._relay is not None:
            self._relay.start()
        await serve_http(self._app, host="127.0.0.1", port=self._port, stop=self._stop)
        if self._relay is not None:
            await self._relay.close()
        await asyncio.sleep(0.1)  # closed transports finish in the next rounds of the loop

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)


@dataclass(kw_only=True)
class Walk:
    """The parts, composed as their processes compose them."""

    network: DemoNetwork
    coordinator: coordinator.context.Context
    trainer: trainer.context.Context
    workers: dict[str, worker.context.Context]
    validators: list[validator.context.Context]
    attesters: list[Attester]
    """The validators' cycles that sign epochs, in the same order."""
    closers: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def chain(self) -> ChainClient:
        return self.network.chain

    def mine(self, count: int = 1) -> None:
        for _ in range(count):
            self.chain.request("evm_mine")

    async def publish(self) -> None:
        """Publish the trainer's newest policy on chain."""
        assert await trainer.loop.publish(self.trainer) is CycleResult.DONE

    def read_update(self, step: int) -> dict[str, Any]:
        """Return the trainer's metrics of a step's update."""
        lines = map(json.loads, (self.trainer.config.home / "metrics.jsonl").read_text().splitlines())
        (update,) = [line for line in lines if (line["event"], line["step"]) == ("update", step)]
        return dict(update)

    def get_status(self) -> StatusView:
        """Return what the coordinator shows to the public."""
        with self.coordinator.database.read() as rows:
            return build_status(self.coordinator, rows)

    async def follow(self) -> None:
        """Let the coordinator read the chain to its head and send waiting transactions."""
        await chain_events.cycle(self.coordinator)
        await chain_events.cycle(self.coordinator)

    def run_jobs(self) -> None:
        """Mine the blocks that draw, and run every Celery job once with the functions of the jobs process."""
        with self.coordinator.database.write() as rows:  # The time of the drawing blocks has come.
            rows.session.execute(update(SubmissionRow).values(next_check_at=0.0))
        for job in (
            "assign_tasks",
            "expire_leases",
            "dispatch_validation",
            "seek_signatures",
            "settle",
            "mark_settled",
        ):
            run_job(self.coordinator, job)

    async def sign_epochs(self) -> None:
        """Let each validator sign the epoch that awaits signatures. A pool's epochs are not posted before."""
        for attester, ctx in zip(self.attesters, self.validators, strict=True):
            await attester.cycle(ctx)

    async def until(self, is_done: Callable[[], bool], *steps: Callable[[], object], seconds: float = 600) -> None:
        """Repeat `steps` until the condition holds, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if is_done():
                return
            for step in steps:
                outcome = step()
                if asyncio.iscoroutine(outcome):
                    with contextlib.suppress(TransientError):
                        await outcome
            await asyncio.sleep(0.01)
        raise AssertionError("the condition was not met in time")


async def take_judgement(ctx: validator.context.Context) -> None:
    """Handle one order of a validator, from its poll on."""
    await validator.loop.poll(ctx)
    if ctx.turns.held:
        await validator.loop.judge_next(ctx)


@contextlib.contextmanager
def open_network(
    folder: Path, options: DemoOptions, participants: type[Participants] = Participants
) -> Iterator[DemoNetwork]:
    network = DemoNetwork(participants(folder, options), invoke)
    try:
        network.open()
        network.chain.request("evm_setIntervalMining", 0)
        network.chain.request("evm_setAutomine", True)
        yield network
    finally:
        network.close()


@contextlib.asynccontextmanager
async def open_walk(
    folder: Path,
    options: DemoOptions,
    *,
    cheat: Callable[[Engine], Engine] | None = None,
    participants: type[Participants] = Participants,
) -> AsyncIterator[Walk]:
    """Open a network of workers, three validators and a trainer. `cheat` wraps the workers' engines.

    Public pages are of this moment, as they are where they cost little: on a slow machine they would be of some
    seconds ago.
    """
    with open_network(folder, options, participants) as network, contextlib.ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(cached_page, "CHEAP_SECONDS", math.inf)
        ctx = coordinator.app.build(CoordinatorConfig.load(folder / "coordinator.toml", {}, {}))
        stack.callback(ctx.database.close)
        relay_port, origin_port = int(ctx.config.relays[0].rpartition(":")[2]), network._origin
        relay = Relay(PieceCache(folder / "relay"), [Upstream(f"http://127.0.0.1:{origin_port}")])
        for server in (
            Server(build_api(ctx, Meters()), ctx.config.port),
            Server(PieceServer(OriginSource(OriginStore(folder / "origin"))), origin_port),
            Server(PieceServer(relay), relay_port, relay=relay),
        ):
            server.start()
            stack.callback(server.stop)
        stop = asyncio.Event()

        async def enter(config):
            for _ in range(3000):
                try:
                    joined = await join(config)
                except TransientError:
                    await asyncio.sleep(0.02)
                else:
                    return joined
            raise AssertionError("the coordinator does not answer")

        decoder = stack.enter_context(Sandbox("covey.protocol.submission_file.codec:build_decoder"))
        networks, workers, validators = [], {}, []
        environment = grade = None
        for participant in network.participants.workers:
            config = WorkerConfig.load(folder / f"{participant.name}.toml", {"wait_seconds": 3.0}, {})
            networks.append(await enter(config))
            wrap = cheat if cheat is not None else lambda engine: engine
            if grade is None:
                environment = networks[-1].load_environment()
                limits = networks[-1].params.grading
                grade = stack.enter_context(GradingPool(networks[-1].environment, environment, limits, config))
            workers[participant.name] = worker.app.build(
                config, networks[-1], environment=environment, grade=grade, stop=stop, wrap=wrap
            )
        for name in network.participants.validators:
            config = ValidatorConfig.load(folder / f"{name}.toml", {"wait_seconds": 0.2}, {})
            networks.append(await enter(config))
            validators.append(
                validator.app.build(
                    config, networks[-1], environment=environment, decoder=decoder, grade=grade, stop=stop
                )
            )
        config = TrainerConfig.load(
            folder / "trainer.toml", {"wait_seconds": 0.2, "eval.prompts": 8, "eval.samples": 1}, {}
        )
        networks.append(await enter(config))
        executor = stack.enter_context(trainer.app.ThreadPoolExecutor(max_workers=1))
        outbox = stack.enter_context(contextlib.closing(trainer.app.open_outbox(config)))
        publisher = trainer.app.build_publisher(config, networks[-1], outbox)
        learning = trainer.app.build(
            config,
            networks[-1],
            decode=decoder.call,
            grade=grade,
            publisher=publisher,
            chain_thread=executor,
            stop=stop,
        )
        try:
            yield Walk(
                network=network,
                coordinator=ctx,
                trainer=learning,
                workers=workers,
                validators=validators,
                attesters=[Attester(time.monotonic) for _ in validators],
                closers=stack,
            )
        finally:
            await learning.background.stop()
            for joined in networks:
                await joined.close()
            await network.client.close()
