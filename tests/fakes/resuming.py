"""A trainer over a recorded stream: `live` resumes where the last process was killed, and runs to the stream's end.

Everything is real except the coordinator, whose orders and files are on disk, and the chain, which is a file.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from covey.chain.sqlite_outbox import SqliteOutbox
from covey.environments import registry
from covey.environments.base import EnvironmentSpec
from covey.model.policy_files import load_tokenizer
from covey.model.prompts import RAW
from covey.model.tiny import tiny_folder
from covey.protocol.api.trainer import BatchItem, BatchOrder, LearningReport
from covey.protocol.canonical import sha256
from covey.protocol.ids import GroupId, Hash, Step, TaskId
from covey.protocol.params import EnvironmentParams, ModelParams, PoolParams
from covey.protocol.seeding import SlotDomain, compute_sampling_seed
from covey.protocol.submission_file.codec import encode
from covey.protocol.submission_file.rows import Rollout
from covey.slots import draw_prompts
from tests.fakes.samples import build_samples
from tests.fakes.training import NODE, Chain, TrainerHarness, build_domain

GROUP, TASKS, END = 2, 2, 1
MANIFEST = Hash("0x" + "33" * 32)
SPEC = EnvironmentSpec(kind="reasoning_gym", options={"name": "basic_arithmetic", "targets": [10], "alpha": 0.01})
"""Environment in which no random answer is right, but some are nearer to the requested length than others."""
PARAMS = PoolParams(
    name="test", environment=EnvironmentParams(kind=SPEC.kind, options=dict(SPEC.options)),
    model=ModelParams(max_prompt_tokens=128, max_completion_tokens=32), group_size=GROUP, groups_per_step=TASKS,
    groups_per_task=1, max_staleness=1,
)  # fmt: skip
SETTINGS: dict[str, Any] = {
    "optim": {"warmup_steps": 20, "max_grad_norm": 0.5}, "model": {"seq_len": 192}, "eval": {"every": 0},
}  # fmt: skip
"""Settings of an uninterrupted run, which has a checkpoint of each step."""
PUMPS_A_BLOCK = 4
TIMED = ("time/", "perf/", "trainer/idle_ratio")


class FileChain(Chain):
    """A file with one hash per line, so that published policies outlive the process.

    Blocks come slowly enough for a trainer to get ahead of the chain.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(hashes=[Hash(line) for line in read_lines(path)])
        self._path, self._pumps = path, 0

    def mine(self, outbox: SqliteOutbox) -> int:
        self._pumps += 1
        return super().mine(outbox) if self._pumps % PUMPS_A_BLOCK == 0 else 1

    def add(self, record_hash: Hash) -> None:
        super().add(record_hash)
        draft = self._path.with_suffix(".draft")
        draft.write_text("".join(f"{each}\n" for each in self.hashes))
        draft.replace(self._path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """A coordinator that has one order for each step, once the policies of its work are published."""

    folder: Path
    chain: Chain

    async def claim_batch(self, step: Step, *, wait_seconds: float) -> BatchOrder | None:
        order = BatchOrder.model_validate_json((self.folder / f"{step}.json").read_bytes())
        return order if max(item.policy_version for item in order.items) < len(self.chain.hashes) else None

    async def get_object(self, url: str, *, max_bytes: int) -> bytes:
        return (self.folder / url).read_bytes()

    async def report_learning(self, report: LearningReport) -> None:
        """Accept every report. Reports do not change what is trained."""


def record_stream(folder: Path, steps: int) -> None:
    """Record the stream. The first task of a step was replayed, and the others were not.

    An odd step has only work of the previous policy, so that it may be trained before its own policy is published. In
    an even step, the first task has the step's own policy.
    """
    stream = folder / "stream"
    stream.mkdir(parents=True)
    environment, tokenizer = registry.load(SPEC), load_tokenizer(tiny_folder())
    for step in range(steps):
        items = []
        for i in range(TASKS):
            task = step * TASKS + i
            version = Step(max(0, step - min(i + step % 2, 1)))
            domain = build_domain(MANIFEST, version, TaskId(task))
            drawn = draw_prompts(domain, 1, environment=environment, tokenizer=tokenizer, format=RAW, longest=64)
            file = encode(build_rollouts(domain, drawn[GroupId(0)].tokens))
            (stream / sha256(file)).write_bytes(file)
            item = BatchItem(
                receipt_hash=Hash("0x" + "22" * 32), task=TaskId(task), node=NODE, policy_version=version,
                record_hash=MANIFEST, work_key=sha256(file), url=sha256(file), replayed=i == 0,
            )  # fmt: skip
            items.append(item)
        (stream / f"{step}.json").write_text(BatchOrder(step=Step(step), items=tuple(items)).model_dump_json())


def build_rollouts(domain: SlotDomain, prompt: tuple[int, ...]) -> list[Rollout]:
    """Build one group of random answers and rewards."""
    rng, group = random.Random(domain.task), GroupId(0)
    return [
        Rollout(
            group=group, sibling=i, seed=compute_sampling_seed(domain, group, i), prompt=prompt,
            tokens=(*sample.tokens, END), logprobs=(*(sample.old or ()), -3.0), proofs=(), finished=True,
            reward=rng.random(),
        )
        for i, sample in enumerate(build_samples(GROUP, seed=domain.task))
    ]  # fmt: skip


def live(folder: Path, every: int = 1) -> None:
    """Run one process of the trainer, with `every` steps from one checkpoint to the next."""
    torch.set_num_threads(1)
    steps = len(list((folder / "stream").glob("*.json")))
    harness = TrainerHarness(folder, steps=steps, ckpt={"every": every}, **SETTINGS)
    harness.params, harness.chain = PARAMS, FileChain(folder / "chain")
    harness.coordinator = Recording(folder=folder / "stream", chain=harness.chain)
    harness.run()


def read_published(folder: Path) -> list[str]:
    """Return the hashes of the policies on the chain."""
    return read_lines(folder / "chain")


def read_lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return every line by event and step, without values that depend on the clock."""
    lines = [json.loads(line) for line in read_lines(folder / "home" / "metrics.jsonl")]
    lines.sort(key=lambda line: (line["event"], line["step"]))
    return [{name: value for name, value in line.items() if not is_timed(name)} for line in lines]


def is_timed(name: str) -> bool:
    return name == "time" or name.startswith(TIMED)


def read_checkpoint(folder: Path, step: int) -> dict[str, bytes]:
    """Return master weights and moments."""
    files = (folder / "home" / "checkpoints" / str(step)).glob("*.safetensors")
    return {path.name: path.read_bytes() for path in files}
