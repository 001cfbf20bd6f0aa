"""The demo's plot: set up, let them work, end the pool, let them claim, sum up."""

import asyncio
import contextlib
import io
import json
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from covey.chain import events
from covey.chain.client import ChainClient
from covey.chain.contracts import Contracts
from covey.chain.follower import Follower, SeenBlock
from covey.client import CoordinatorClient
from covey.demo import show
from covey.demo.cast import BUDGET, CHALLENGE_SECONDS, MIN_STAKE, PRICE, VETO_SECONDS, Cast, DemoOptions
from covey.demo.processes import Processes, find_free_ports
from covey.devnet import Anvil, derive_wallet, fund, up
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.ids import PoolId, Step
from covey.protocol.wire import StatusView, SubmissionView

POOL = PoolId(1)
SETTLE_SECONDS = 60.0
GAIN = 0.25
"""By so much the mean reward of the last three steps must be over that of step 0."""


def run_demo(options: DemoOptions) -> tuple[dict[str, Any], list[str]]:
    """Run it all; return the summary and what failed.  Whatever happens, no process and no file is left behind."""
    if options.engine != "hf":
        raise OperatorError("bad_engine", f"there is no engine {options.engine}", fix="Use --engine hf")
    with tempfile.TemporaryDirectory(prefix="covey-demo-") as name:
        return asyncio.run(_run(Path(name), options))


async def _run(folder: Path, options: DemoOptions) -> tuple[dict[str, Any], list[str]]:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    demo: Demo | None = None
    try:
        demo = Demo(folder, options)
        demo.set_up()
        demo.start_roles()
        await demo.watch()
        await demo.settle()
        return await demo.conclude()
    finally:
        if demo is not None:
            previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # ending is not to be interrupted
            demo.stop()
            signal.signal(signal.SIGINT, previous)


class Demo:
    """One performance."""

    def __init__(self, folder: Path, options: DemoOptions) -> None:
        self._options = options
        self._cast = Cast(folder, options)
        self._processes = Processes(folder / "logs")
        self._screen = show.Screen(options.steps)
        self._api, self._origin, self._relay = find_free_ports(3)
        self._anvil: Anvil | None = None
        self._url = f"http://127.0.0.1:{self._api}"
        self._metrics = folder / "trainer" / "metrics.jsonl"
        self._read = 0
        self._rewards: dict[int, float] = {}
        self._slashed: dict[str, str] = {}
        self._claimed: Counter[str] = Counter()
        self._cursor: tuple[SeenBlock, ...] = ()

    # -- set-up, by the commands that a person would use

    def set_up(self) -> None:
        """Chain, contracts, pool, stakes, registrations; each transaction is mined at once, later every second."""
        cast, folder = self._cast, self._cast.folder
        self._screen.say("chain and contracts")
        seed = f"demo-{self._options.seed}"
        self._anvil, deployment = up(folder, block_time=None, seed=seed)
        self._chain = ChainClient(deployment.rpc_url)
        self._contracts = Contracts(self._chain, deployment)
        self._follower = Follower(self._chain, deployment)
        fund(deployment, derive_wallet(seed, "deployer"), cast.list_funded())
        self._screen.say("pool, stakes, registrations")
        self._command("pool", "create", str(cast.write_pool()), key="operator", pool=False)
        self._command("pool", "fund", str(BUDGET), key="operator")
        self._command("pool", "start", key="operator")
        for player in cast.players:
            self._command("stake", "add", str(2 * MIN_STAKE), key=player.contributor)
            node_key = str(cast.get_key_file(player.name))
            self._command("worker", "register", "--node-key-file", node_key, key=player.contributor)
        self._chain.request("evm_setAutomine", False)
        self._chain.request("evm_setIntervalMining", 1)

    def start_roles(self) -> None:
        """One process each; they find each other by HTTP and chain."""
        cast, processes = self._cast, self._processes
        origin_root = str(cast.folder / "origin")
        origin_url, relay_url = (f"http://127.0.0.1:{port}" for port in (self._origin, self._relay))
        config = cast.write_role(
            "coordinator", {"pool": POOL, "port": self._api, "relays": [relay_url]}, key="operator"
        )
        processes.start("coordinator", "coordinator", "serve", "--config", str(config))
        processes.start("origin", "origin", "run", "--root", origin_root, "--port", str(self._origin))
        relay_root = str(cast.folder / "relay")
        processes.start(
            "relay", "relay", "run", "--root", relay_root, "--upstream", origin_url, "--port", str(self._relay)
        )
        member = {"pool": POOL, "coordinator_url": self._url}
        learning = {"steps": self._options.steps, "origin_root": origin_root, "seed": self._options.seed}
        trainer = cast.write_role("trainer", member | learning | LEARNING)
        processes.start("trainer", "trainer", "run", "--config", str(trainer))
        for player in cast.players:
            command = ["worker", "cheat", player.cheat] if player.cheat else ["worker", "run"]
            processes.start(player.name, *command, "--config", str(cast.write_role(player.name, member)))
        for name in cast.validators:
            processes.start(name, "validator", "run", "--config", str(cast.write_role(name, member)))
        processes.start("jobs", "coordinator", "jobs", "--config", str(config))
        self._screen.say(f"{len(processes.running) + 1} processes start; the coordinator's API is {self._url}/docs")

    def _command(self, *arguments: str, key: str, pool: bool = True) -> dict[str, Any]:
        """Run a `covey` command in this process and return what it prints as JSON."""
        from covey.cli import app

        common = ["--deployment", str(self._cast.deployment), "--key-file", str(self._cast.get_key_file(key)), "--json"]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            app([*arguments, *common, *(["--pool", str(POOL)] if pool else [])], standalone_mode=False)
        printed: dict[str, Any] = json.loads(output.getvalue())
        return printed

    # -- the run

    async def watch(self) -> None:
        """Until the trainer has published and evaluated its last policy."""
        trainer = next(r for r in self._processes.running if r.name == "trainer")
        signer = derive_wallet("demo", "spectator")
        chain_id = self._contracts.deployment.chain_id
        self._client = CoordinatorClient(self._url, signer, chain_id=chain_id)
        while trainer.process.poll() is None:
            await self._look()
            await asyncio.sleep(0.2)
        await self._look()

    async def _look(self) -> StatusView | None:
        self._processes.require_alive(ended=("trainer",))
        await asyncio.to_thread(self._read_chain)
        try:
            status = await self._client.get_status()
        except (TransientError, ProtocolError):
            return None
        for line in self._read_metrics():
            if line["event"] == "evaluation":
                self._rewards[line["step"]] = line["reward"]
                self._screen.show_step(line["step"], line["reward"], status)
        for node, row in status.nodes.items():
            if row["suspended"]:
                name = self._get_name(node)
                self._screen.say_once(f"suspended {node}", f"[red]{name}[/red] is suspended: {row['suspended']}")
        if not status.ended:
            published = await asyncio.to_thread(self._contracts.policies.steps_of, POOL)
            self._screen.show_stage(show.find_stage(status, published=published), status.step)
        return status

    def _get_name(self, node: str) -> str:
        return next((p.name for p in self._cast.players if p.node == node), node)

    def _read_metrics(self) -> list[dict[str, Any]]:
        """Lines that are new and whole."""
        if not self._metrics.exists():
            return []
        with self._metrics.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def _read_chain(self) -> None:
        progress = self._follower.poll(self._cursor)
        self._cursor = progress.cursor
        for event in progress.events:
            match event:
                case events.CaseOpened():
                    name = self._get_name(event.node)
                    self._screen.say(f"[red]{name}[/red]: a quorum opened case {event.case_id}, its stake is locked")
                case events.CaseExecuted():
                    self._slashed[event.node] = event.transaction_hash
                    self._screen.say(f"[red]{self._get_name(event.node)}[/red] is slashed in {event.transaction_hash}")
                case events.RewardClaimed():
                    self._claimed[event.contributor] += event.amount
                case _:
                    pass

    # -- the end

    async def settle(self) -> None:
        """End the pool, wait until all work is settled and all cases are closed, claim."""
        self._screen.say("the pool ends; what was countersigned is settled")
        await asyncio.to_thread(self._command, "pool", "end", key="operator")
        await self._wait_for("settlement", lambda status: status.settled)
        self._advance_clock(CHALLENGE_SECONDS + VETO_SECONDS + 1)
        cheats = {p.node for p in self._cast.players if p.cheat}
        await self._wait_for("slashing", lambda _: cheats <= set(self._slashed))
        self._screen.say("epochs are final; contributors claim")
        for player in self._cast.players:
            with contextlib.suppress(ProtocolError):  # a cheat may have earned nothing
                await asyncio.to_thread(
                    self._command, "rewards", "claim", "--coordinator-url", self._url, key=player.contributor
                )
        await self._look()

    async def _wait_for(self, what: str, is_done: Callable[[StatusView], bool]) -> None:
        """Bounded: what does not come is reported by the summary's checks."""
        deadline = self._screen.seconds + SETTLE_SECONDS
        while self._screen.seconds < deadline:
            status = await self._look()
            if status is not None and is_done(status):
                return
            await asyncio.sleep(0.2)
        self._screen.say(f"[yellow]{what} did not come within {SETTLE_SECONDS:.0f} s[/yellow]")

    def _advance_clock(self, seconds: int) -> None:
        self._chain.request("evm_increaseTime", hex(seconds))
        self._chain.request("evm_mine")

    async def conclude(self) -> tuple[dict[str, Any], list[str]]:
        """Sum up, show, check; with --keep wait for the spectator to leave."""
        status = await self._client.get_status()
        submissions = await self._client.list_submissions(limit=1000)
        summary = self._sum_up(status, submissions)
        failures = self._check(summary, status, submissions)
        self._screen.show_summary(summary, self._describe_players(submissions), failures)
        if self._options.keep:
            self._screen.say(f"left running: API {self._url}/docs, chain {self._chain.rpc_url}, {self._cast.folder}")
            self._screen.say("Ctrl-C ends it")
            await asyncio.Event().wait()
        await self._client.close()
        return summary, failures

    def _sum_up(self, status: StatusView, submissions: list[SubmissionView]) -> dict[str, Any]:
        honest = {p.node for p in self._cast.players if not p.cheat}
        policies = self._contracts.policies
        return {
            "steps": max(self._rewards, default=0),
            "seconds": round(self._screen.seconds, 1),
            "reward": [self._rewards[step] for step in sorted(self._rewards)],
            "accepted": sum(1 for s in submissions if s.reason == "none" and s.units > 0),
            "rejected": dict(status.reasons),
            "slashed": dict(self._slashed),
            "honest_slashed": len(honest & set(self._slashed)),
            "claimed": sum(self._claimed.values()),
            "cumulative": self._contracts.ledger.units_of(POOL) * PRICE,
            "policies": {str(n): policies.policy_of(POOL, Step(n)) for n in range(policies.steps_of(POOL))},
            "processes": len(self._processes.running) + 1,
        }

    def _check(self, summary: dict[str, Any], status: StatusView, submissions: list[SubmissionView]) -> list[str]:
        honest = {p.node for p in self._cast.players if not p.cheat}
        reward, policies = summary["reward"], summary["policies"]
        gain = sum(reward[-3:]) / max(1, len(reward[-3:])) - (reward[0] if reward else 0.0)
        lost = [s for s in submissions if s.node in honest and s.reason != "none"]
        unslashed = [p.name for p in self._cast.players if p.cheat and p.node not in self._slashed]
        checks = (
            (
                len(reward) == self._options.steps + 1,
                f"{len(reward)} of {self._options.steps + 1} rewards were measured",
            ),
            (gain >= GAIN, f"the reward rose by {gain:.3f}, not by {GAIN}"),
            (not unslashed, f"not slashed: {', '.join(unslashed)}"),
            (summary["honest_slashed"] == 0, "an honest worker was slashed"),
            (not lost, f"honest workers lost {len(lost)} submissions"),
            (status.settled, "not all work was settled"),
            (summary["claimed"] == summary["cumulative"], "the claims are not what the ledger owes"),
            (
                all(policies.get(str(s.step)) == s.manifest_hash for s in status.steps)
                and all(str(s.policy_version) in policies for s in submissions),
                "a policy that was used is not on chain",
            ),
        )
        return [message for holds, message in checks if not holds]

    def _describe_players(self, submissions: list[SubmissionView]) -> dict[str, dict[str, Any]]:
        rows = {}
        for player in self._cast.players:
            mine = [s for s in submissions if s.node == player.node]
            reasons = Counter(s.reason for s in mine if s.reason != "none")
            rows[player.name + (f" ({player.cheat})" if player.cheat else "")] = {
                "node": player.node,
                "accepted": sum(1 for s in mine if s.reason == "none"),
                "rejected": ", ".join(f"{reason} {n}" for reason, n in reasons.items()) or 0,
                "claimed": self._claimed[self._cast.get_address(player.contributor)],
                "slashed": self._slashed.get(player.node, ""),
            }
        return rows

    def stop(self) -> None:
        """End every process."""
        self._processes.stop()
        if self._anvil is not None:
            self._anvil.stop()


LEARNING = {
    "learning_rate": 5e-4,
    "weight_decay": 0.0,
    "warm_up_updates": 0,
    "gradient_clip": 1.0,
}
