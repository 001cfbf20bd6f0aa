"""A network in memory around a real trainer.

The chain mines when it is pumped, and the coordinator derives batches from published policies. `TrainerHarness.run`
builds a trainer on its disk and runs it to the end; a second `run` continues from what the first has left.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from covey.chain.json_rpc import Call
from covey.chain.outbox import Attempt, Place
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.engines.base import GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.environments import registry
from covey.environments.registry import DEMO
from covey.model.prompts import RAW
from covey.model.text import decode_completion
from covey.network.entry import Network, get_spec, load_environment
from covey.protocol.api.trainer import BatchItem, BatchOrder, LearningReport, StepPoint
from covey.protocol.canonical import sha256
from covey.protocol.ids import Address, GroupId, Hash, PoolId, Step, TaskId
from covey.protocol.learning_signs import LearningSign
from covey.protocol.params import EnvironmentParams, ModelParams, PoolParams
from covey.protocol.seeding import SlotDomain, compute_sampling_seed
from covey.protocol.submission_file import codec
from covey.protocol.submission_file.codec import encode
from covey.protocol.submission_file.rows import Rollout
from covey.runtime.cycle import Pace
from covey.shardcast.origin_store import OriginStore
from covey.slots import draw_prompts
from tests.fakes.grading import grade_here
from tests.fakes.offered_policies import build_offering, read_policy
from trainer.app import build
from trainer.config import TrainerConfig
from trainer.context import Context
from trainer.loop import run_cycles
from trainer.monitoring.metrics import Sink
from trainer.publisher import Publisher

POOL = PoolId(1)
WALLET = Address("0x" + "11" * 20)
NODE = Address("0x" + "44" * 20)
"""Address of the worker's node."""


class Killed(BaseException):
    """Simulates a killed process: nothing in the package catches this."""


@dataclass
class Chain:
    """A PolicyRegistry of one pool."""

    hashes: list[Hash] = field(default_factory=list)
    die_before: str = ""
    """Step before which the pump dies once: "sign", "effect" or "record"."""

    def steps_of(self, pool: PoolId) -> int:
        return len(self.hashes)

    def policy_of(self, pool: PoolId, step: Step) -> Hash:
        return self.hashes[step]

    def publish(self, pool: PoolId, step: Step, record_hash: Hash) -> Call:
        return Call(to=WALLET, data=json.dumps([step, record_hash]).encode(), label="publish")

    def add(self, record_hash: Hash) -> None:
        """Add a policy, as mining its transaction does."""
        self.hashes.append(record_hash)

    def mine(self, outbox: SqliteOutbox) -> int:
        """Mine at once. Like the real pump, it may die between the effect and its record."""
        for entry in outbox.list_pending():
            step, record_hash = json.loads(entry.intent.call.data)
            attempt = Attempt(hash=Hash(f"0x{step:064x}"), raw=b"", max_fee=1, priority_fee=1)
            if entry.nonce is None and step != len(self.hashes):
                outbox.record_reverted(entry.intent.key, "WrongStep", None)
                continue
            self._live("sign", step)
            if entry.nonce is None:
                outbox.record_signed(entry.intent.key, step, attempt, offered_at=1)
            self._live("effect", step)
            if step == len(self.hashes):
                self.add(record_hash)
            self._live("record", step)
            place = Place(block_number=1, block_hash=Hash(f"0x{step:064x}"), transaction_hash=attempt.hash)
            outbox.record_mined(entry.intent.key, place)
        return 0

    def _live(self, point: str, step: int) -> None:
        if self.die_before == point and step > 0:
            self.die_before = ""
            raise Killed


def build_domain(record_hash: Hash, version: Step, task: TaskId) -> SlotDomain:
    """Return the domain of the slots of a task that was leased to the worker."""
    return SlotDomain(beacon=record_hash, pool=POOL, policy_version=version, node=NODE, task=task)


@dataclass
class Coordinator:
    """Gives the trainer the batch of each step.

    A batch has `tasks` submissions with the policy that is `staleness` steps old. Honest workers make them once that
    policy is on chain.
    """

    params: PoolParams
    chain: Chain
    store: OriginStore
    folder: Path
    tasks: int = 2
    staleness: int = 0
    replayed: bool = True
    forge: Callable[[Rollout], Rollout] = lambda row: row
    files: dict[str, bytes] = field(default_factory=dict)
    claims: list[int] = field(default_factory=list)
    reports: list[tuple[int, tuple[LearningSign, ...], bool]] = field(default_factory=list)
    """Steps, signs and pause of each report."""
    points: list[StepPoint | None] = field(default_factory=list)
    """Metrics in each report."""
    made: dict[tuple[Hash, int], list[Rollout]] = field(default_factory=dict)
    """Rollouts that exist already, also from other harnesses, because they depend only on policy and task."""

    async def claim_batch(self, step: Step, *, wait_seconds: float) -> BatchOrder | None:
        version = Step(max(0, step - self.staleness))
        if version >= len(self.chain.hashes):
            return None
        self.claims.append(step)
        items = []
        for task in range(step * self.tasks, (step + 1) * self.tasks):
            key = self.chain.hashes[version], task
            if key not in self.made:
                self.made[key] = self._roll_out(version, task)
            file = encode(map(self.forge, self.made[key]))
            self.files[sha256(file)] = file
            items.append(
                BatchItem(
                    receipt_hash=Hash("0x" + "22" * 32), task=TaskId(task), node=NODE, policy_version=version,
                    record_hash=self.chain.hashes[version], work_key=sha256(file), url=sha256(file),
                    replayed=self.replayed,
                )
            )  # fmt: skip
        return BatchOrder(step=step, items=tuple(items))

    async def report_learning(self, report: LearningReport) -> None:
        self.reports.append((report.steps, report.signs, report.pause))
        self.points.append(report.point)

    async def get_object(self, url: str, *, max_bytes: int) -> bytes:
        return self.files[url]

    def _roll_out(self, version: Step, task: int) -> list[Rollout]:
        engine, environment = HuggingFaceEngine(max_batch=64), registry.load(DEMO)
        engine.load_policy(self._download(version), version)
        domain = build_domain(self.chain.hashes[version], version, TaskId(task))
        drawn = draw_prompts(
            domain,
            self.params.groups_per_task,
            environment=environment,
            tokenizer=engine.tokenizer,
            format=RAW,
            longest=self.params.model.max_prompt_tokens,
        )
        rows = []
        for i in range(self.params.rollouts_per_task):
            group, sibling = GroupId(i // self.params.group_size), i % self.params.group_size
            seed = compute_sampling_seed(domain, group, sibling)
            request = GenerationRequest(prompt=drawn[group].tokens, seed=seed, max_tokens=8)
            rows.append((group, sibling, drawn[group].prompt, request))
        completions = engine.generate([row[3] for row in rows], temperature=1.0)
        return [
            Rollout(
                group=group, sibling=sibling, seed=request.seed, prompt=request.prompt, tokens=done.tokens,
                logprobs=done.logprobs, proofs=(), finished=done.finished,
                reward=environment.grade(
                    prompt.build_reply(
                        decode_completion(engine.tokenizer, done.tokens, engine.end_tokens),
                        finished=done.finished, tokens=len(done.tokens),
                    )
                ).reward,
            )
            for (group, sibling, prompt, request), done in zip(rows, completions, strict=True)
        ]  # fmt: skip

    def _download(self, version: Step) -> Path:
        record_hash = self.chain.hashes[version]
        return read_policy(self.store, POOL, record_hash, self.folder / record_hash)


def merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with changes. A section that is a dict has only the changed values."""
    sections = {
        name: merge(values[name], section)
        for name, section in changes.items()
        if isinstance(section, dict) and isinstance(values.get(name), dict)
    }
    return {**values, **changes, **sections}


class TrainerHarness:
    """A trainer's disk, chain and coordinator, which outlive its process."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.params = PoolParams(
            name="test", environment=EnvironmentParams(kind=DEMO.kind, options=cast("dict[str, Any]", DEMO.options)),
            model=ModelParams(max_prompt_tokens=64), group_size=8, groups_per_step=4, groups_per_task=2,
            max_staleness=1,
        )  # fmt: skip
        defaults: dict[str, Any] = {
            "home": root / "home", "pool": POOL, "deployment": root, "key_file": root, "origin_root": root / "origin",
            "steps": 2, "model": {"seq_len": 128}, "optim": {"learning_rate": 5e-4, "warmup_steps": 0},
            "eval": {"every": 1, "prompts": 4},
        }  # fmt: skip
        self.config = TrainerConfig.model_validate(merge(defaults, settings))
        self.config.home.mkdir(exist_ok=True)
        self.chain = Chain()
        self.coordinator: Any = Coordinator(
            params=self.params, chain=self.chain, store=OriginStore(root / "origin"), folder=root / "downloads"
        )
        self.grade = grade_here
        self.context: Context | None = None
        self.sinks: list[Sink] = []
        self._outboxes: list[SqliteOutbox] = []
        self.killed = Killed

    def build(self, chain_thread: ThreadPoolExecutor, stop: asyncio.Event) -> Context:
        network = SimpleNamespace(
            pool=POOL, params=self.params, terms=SimpleNamespace(trainer=WALLET),
            wallet=SimpleNamespace(address=WALLET), contracts=SimpleNamespace(policies=self.chain),
            coordinator=self.coordinator, load_environment=lambda: load_environment(self.params),
            environment=get_spec(self.params),
        )  # fmt: skip

        outbox = SqliteOutbox(self.config.home / "outbox.sqlite3")
        self._outboxes.append(outbox)
        publisher = Publisher(
            pool=POOL, registry=self.chain, outbox=outbox, pump=lambda: self.chain.mine(outbox),
            offering=build_offering(self.config.origin_root, pool=POOL),
        )  # fmt: skip
        return build(
            self.config, cast(Network, network), decode=codec.decode_framed, grade=self.grade,
            publisher=publisher, chain_thread=chain_thread, stop=stop, sinks=self.sinks,
        )  # fmt: skip

    def change(self, **settings: Any) -> None:
        """Give the next process other settings. A section that is a dict has only the changed values."""
        self.config = TrainerConfig.model_validate(merge(self.config.model_dump(), settings))

    def close(self) -> None:
        for outbox in self._outboxes:
            outbox.close()

    def run(self) -> None:
        """Run one process of the trainer to its end."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        stop = asyncio.Event()
        with ThreadPoolExecutor(max_workers=1) as chain_thread:
            self.context = ctx = self.build(chain_thread, stop)
            await run_cycles(ctx, pace=Pace(idle_wait_s=0.01, first_retry_s=0.01))

    def read_metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.config.home / "metrics.jsonl").read_text().splitlines()]
