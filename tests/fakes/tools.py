"""A worker's and a validator's tools around the shipped tiny model, without network: honest work and its judgement."""

import dataclasses
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from covey import rollouts
from covey.engines.base import Engine
from covey.environments import registry
from covey.environments.registry import DEMO
from covey.protocol import eip712
from covey.protocol.api.worker import TaskOrder
from covey.protocol.canonical import sha256
from covey.protocol.eip712 import Domain
from covey.protocol.ids import Address, Hash, LeaseId, PoolId, Step, TaskId
from covey.protocol.messages import Receipt
from covey.protocol.params import PoolParams
from covey.protocol.seeding import SlotDomain
from covey.protocol.submission_file.codec import encode
from covey.protocol.submission_file.rows import Rollout, count_units
from covey.sandbox import Sandbox
from covey.toploc.topk import build_capture
from tests.fakes.grading import grade_here, grade_with
from tests.fakes.pool import make_address, make_hash, make_params
from validator.checks import CheckTools, SubmissionClaim
from worker import receipts

DOMAIN = Domain(chain_id=31337, contract=make_address("court"))
MANIFEST = make_hash("manifest")
NEEDS_BFLOAT16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="without bfloat16 kernels batches differ so much that honest limits let forgeries of the tiny model pass",
)
"""Mark of tests whose limits do not hold on such a machine, which a calibration refuses (`forgery_passes`)."""


@functools.cache
def has_even_products() -> bool:
    """Return whether a bfloat16 row gives the same product alone as among other rows.

    On processors with AVX-512 but without instructions for bfloat16, a single row uses a kernel that rounds a few
    values differently.
    """
    draw = torch.Generator().manual_seed(0)
    for _ in range(10):
        rows, weight = (torch.randn(n, 64, generator=draw).to(torch.bfloat16) for n in (64, 256))
        if not torch.equal(torch.cat([F.linear(row, weight) for row in rows.split(1)]), F.linear(rows, weight)):
            return False
    return True


def make_model_params(**changes: Any) -> PoolParams:
    """Return two groups of four rollouts of up to five tokens on the demo's task, which cuts words of five letters."""
    values: dict[str, Any] = {
        "environment": {"kind": DEMO.kind, "options": dict(DEMO.options)},
        "group_size": 4,
        "model": {"max_prompt_tokens": 64, "max_completion_tokens": 5},
        "max_submission_bytes": 1 << 20,
    }
    return make_params(**(values | changes))


def make_task(**changes: Any) -> TaskOrder:
    values: dict[str, Any] = {
        "task": TaskId(7),
        "lease": LeaseId(9),
        "policy_version": Step(0),
        "record_hash": MANIFEST,
        "groups": 2,
        "deadline": 2000.0,
    }
    return TaskOrder(**(values | changes))


def build_domain(task: TaskOrder, node: Address) -> SlotDomain:
    return SlotDomain(
        beacon=task.record_hash, pool=PoolId(1), policy_version=task.policy_version, node=node, task=task.task
    )


@dataclass(frozen=True, kw_only=True)
class Work:
    """A worker's submission, which cheats alter."""

    receipt: Receipt
    rollouts: list[Rollout]
    file: bytes

    def with_rollouts(self, rollouts: Sequence[Rollout]) -> "Work":
        """Return a submission of these rollouts, with a matching receipt."""
        return self.with_file(encode(rollouts), rollouts=list(rollouts), units=count_units(rollouts))

    def with_file(self, file: bytes, *, rollouts: list[Rollout] | None = None, units: int | None = None) -> "Work":
        changes: dict[str, Any] = {"work_key": sha256(file)} | ({} if units is None else {"units": units})
        return Work(receipt=dataclasses.replace(self.receipt, **changes), rollouts=rollouts or self.rollouts, file=file)

    def with_each(self, change: Callable[[Rollout], dict[str, Any]]) -> "Work":
        return self.with_rollouts([dataclasses.replace(row, **change(row)) for row in self.rollouts])

    def with_one(self, index: int, **changes: Any) -> "Work":
        rows = list(self.rollouts)
        rows[index] = dataclasses.replace(rows[index], **changes)
        return self.with_rollouts(rows)


OTHER_TASKS = 40
"""Number of tasks in which a worker without a lease searches for a suitable rollout."""


class Worker:
    """An honest worker. With another engine, seed or temperature, it cheats.

    `rng` draws the choices of a cheat. `leased` means that the task is a real lease, so no other task may be used.
    Honest work is made once per task and shared by all workers that `at` returns.
    """

    def __init__(
        self,
        wallet: Any,
        params: PoolParams,
        engine: Engine,
        *,
        task: TaskOrder | None = None,
        contributor: Address | None = None,
        now: float = 1000.0,
        leased: bool = False,
    ) -> None:
        self.wallet, self.params, self.engine = wallet, params, engine
        self.task, self.contributor = task or make_task(), contributor or make_address("contributor")
        self.now, self.leased, self.rng = now, leased, random.Random(0)
        self.environment = registry.load(DEMO)
        self._made: dict[TaskOrder, Work] = {}

    def at(self, number: int) -> "Worker":
        """Return the same worker in another trial, with its own task and choices."""
        worker = Worker(
            self.wallet, self.params, self.engine, task=make_task(task=number), contributor=self.contributor
        )
        worker.rng, worker._made, worker.environment = random.Random(number), self._made, self.environment
        return worker

    def using(self, engine: Engine) -> "Worker":
        """Return the same worker with another engine."""
        worker = Worker(
            self.wallet,
            self.params,
            engine,
            task=self.task,
            contributor=self.contributor,
            now=self.now,
            leased=self.leased,
        )
        worker.rng = self.rng
        return worker

    def change_task(self, **changes: Any) -> TaskOrder:
        """Return an order like this worker's, with changes."""
        return self.task.model_copy(update=changes)

    def list_tasks(self) -> Iterator[TaskOrder]:
        """Yield the worker's own task, then others that it could have been given."""
        yield self.task
        for i in range(1, 1 if self.leased else OTHER_TASKS):
            yield self.change_task(task=self.task.task + i)

    def work(
        self, task: TaskOrder | None = None, *, params: PoolParams | None = None, node: Address | None = None
    ) -> Work:
        """Return honest work, or the work of other parameters or of another node's slots."""
        task = task or self.task
        if params is not None or node is not None:
            return self._work(task, params or self.params, node or self.wallet.address)
        if task not in self._made:
            self._made[task] = self._work(task, self.params, self.wallet.address)
        return self._made[task]

    def _work(self, task: TaskOrder, params: PoolParams, node: Address) -> Work:
        slots = rollouts.build_slots(
            build_domain(task, node), task.groups, self.params, environment=self.environment, engine=self.engine
        )
        version, capture = self.engine.policy_version or Step(0), build_capture(params.verification)
        drafts = rollouts.roll_out(slots, params, self.engine, version=Step(version), capture=capture)
        return self.hand_in(rollouts.build_rollouts(drafts, rollouts.grade_drafts(drafts, grade_here)), task)

    def hand_in(self, rows: Sequence[Rollout], task: TaskOrder | None = None) -> Work:
        """Return a submission of these rows with a matching receipt."""
        file = encode(rows)
        receipt = receipts.build_receipt(
            task or self.task,
            self.params,
            pool=PoolId(1),
            node=self.wallet.address,
            contributor=self.contributor,
            rollouts=rows,
            file=file,
            now=self.now,
        )
        return Work(receipt=receipt, rollouts=list(rows), file=file)

    def sign(self, work: Work) -> str:
        return eip712.sign(work.receipt, DOMAIN, self.wallet)


def build_tools(params: PoolParams, engine: Engine, decoder: Sandbox) -> CheckTools:
    environment = registry.load(DEMO)
    return CheckTools(
        params=params,
        domain=DOMAIN,
        engine=engine,
        environment=environment,
        decode=decoder.call,
        grade=grade_with(environment),
    )


def build_claim(
    work: Work,
    signature: str,
    *,
    record_hash: Hash = MANIFEST,
    contract: str | None = None,
    drawn: tuple[int, ...] = (),
) -> SubmissionClaim:
    """Return the claim of a submission. Its order names `contract`, or that of the first row, and draws `drawn`."""
    return SubmissionClaim(
        receipt=work.receipt,
        signature=signature,
        record_hash=record_hash,
        contract=next((row.contract for row in work.rollouts), "") if contract is None else contract,
        drawn=drawn,
        file=work.file,
    )
