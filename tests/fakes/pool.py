"""A pool as the coordinator's rows know it, driven by hand: a clock, nodes, policies, submissions and validators.

Signatures are placeholders, because the tested functions receive messages that are already verified.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from coordinator import chain_events
from coordinator.db.database import Database
from coordinator.db.models import NodeRow, StepRow, SubmissionRow, TaskRow, ValidatorRow
from coordinator.domain import exact_lane, judging, nodes, panel, signing, steps, submissions, sum_limits, tasks, turns
from coordinator.domain.audit_draws import DrawingBlock, FindBlock
from coordinator.domain.panel import Ruling, compute_ruling
from coordinator.domain.presence import NodeBeat, record_beats
from coordinator.domain.settlement import Ledger
from coordinator.domain.stakes import StakeRule
from coordinator.domain.submissions import Countersigned
from coordinator.domain.tasks import LeaseRequest
from coordinator.domain.turn_order import list_current
from coordinator.domain.turns import Commitment, Order, TurnQuery
from covey.chain.amounts import TokenUnit
from covey.chain.deployment import CONTRACTS, Deployment
from covey.chain.structs import PoolTerms
from covey.errors import CoveyError, ProtocolError
from covey.protocol import eip712, messages
from covey.protocol.canaries import CanaryKind
from covey.protocol.execution_contract import ExecutionContract
from covey.protocol.ids import Address, Hash, PoolId
from covey.protocol.messages import Countersignature, Receipt, Verdict
from covey.protocol.params import EnvironmentParams, PoolParams
from covey.protocol.prices import ScheduledPrice
from covey.protocol.running_sums import Sums
from covey.protocol.status import SubmissionState, TaskState
from covey.protocol.verdict import Decision, Reason, compute_severity

INSTANCE = "0" * 32
"""Instance of a worker. Another value means another machine."""
SIGNATURE = "0x" + "ab" * 65
POOL = 1
SECRET = b"the coordinator's"


def make_ledger(**changes: Any) -> Ledger:
    """Return the ledger of pool 1, with epochs of any size 20 s apart and a price of 3 per unit."""
    values: dict[str, Any] = {
        "chain_id": 1,
        "address": make_address("ledger"),
        "pool": PoolId(POOL),
        "prices": (ScheduledPrice(reward_per_million=3_000_000, start=0),),
        "epoch_units": 10**6,
        "epoch_length": 20,
        "windows": 20,
    }
    return Ledger(**(values | changes))


def make_params(**changes: Any) -> PoolParams:
    """Return parameters of a small pool.

    A step has two tasks of two groups of two rollouts. Every lease lasts 30 s, and every dropped one costs 5 s.
    """
    values: dict[str, Any] = {
        "name": "test",
        "environment": EnvironmentParams(kind="none"),
        "group_size": 2,
        "groups_per_step": 4,
        "groups_per_task": 2,
        "max_staleness": 0,
        "quorum": 2,
        "verification": {"audit_rate": 1.0, "confirm_rate": 0.0, "draw_seconds": 1},
    }
    return PoolParams.model_validate(values | changes)


def make_contract(**changes: Any) -> ExecutionContract:
    """Return an execution contract of an invented card."""
    values: dict[str, Any] = {
        "engine_version": "0.32.0",
        "torch": "2.13.0+cu130",
        "attention_backend": "TRITON_ATTN",
        "attention_version": "triton 3.6.0",
        "dtype": "float32",
        "tensor_parallel_size": 1,
        "architecture": "NVIDIA H200, sm_90",
        "batch_invariant": True,
        "compilation": "eager",
        "block_size": 0,
        "enable_prefix_caching": True,
        "threads": 0,
        "sampler": 1,
    }
    return ExecutionContract.model_validate(values | changes)


def make_exact(*contracts: ExecutionContract, **changes: Any) -> dict[str, Any]:
    """Return rules of a pool that has only the exact lane, by default with the contract of `make_contract`."""
    listed = [each.model_dump() for each in contracts or (make_contract(),)]
    engines = {"worker_engine": "vllm", "validator_engine": "vllm"}
    return {"mode": "exact", "contracts": listed, **engines, **changes}


STAKE_RULE = StakeRule(pool=PoolId(POOL), min_stake=100, unit=TokenUnit(2, "CVT"))


def make_terms(**changes: Any) -> PoolTerms:
    """Return terms of a pool in which a node requires a stake of 100."""
    values: dict[str, Any] = {
        "trainer": make_address("trainer"),
        "arbiter": make_address("arbiter"),
        "token": make_address("token"),
        "params_hash": make_hash("params"),
        "reward_per_million": 3_000_000,
        "min_stake": 100,
        "slash_amount": 60,
        "quorum": 2,
        "challenge_window": 10,
        "veto_window": 10,
        "unbond_window": 20,
    }
    return PoolTerms(**(values | changes))


def make_hash(text: str) -> Hash:
    return Hash("0x" + keccak(text=text).hex())


def make_address(name: str) -> Address:
    return Address(to_checksum_address(keccak(text=name)[:20]))


def make_deployment(**changes: Any) -> Deployment:
    """Return contracts that nobody has deployed, each at its own address."""
    places = {name: make_address(name) for name in (*CONTRACTS.values(), "token")}
    return Deployment(**{"chain_id": 31337, "rpc_url": "http://127.0.0.1:1", "start_block": 0, **places, **changes})


class FakePool:
    """A pool's rows and a clock. Example: `pool.publish(0); task = pool.lease("a"); receipt = pool.submit(task)`."""

    def __init__(self, database: Database, params: PoolParams | None = None, *, validators: int = 3) -> None:
        self.database, self.params, self.now = database, params or make_params(), 1000.0
        self.validators = [make_address(f"validator-{i}") for i in range(validators)]
        self.bondless: set[int] = set()
        """Indexes of validators that have withdrawn their bonds."""
        self.price, self.undrawn_limit = 0, 0
        """Pay for 1,000,000 units, and the maximum undrawn pay of a contributor. With price 0 there is no limit."""
        self.reveals: dict[int, tuple[Verdict, Hash]] = {}
        self.contracts: dict[int, str] = {}
        """Digests of validators' execution contracts, by number. Others work in the calibrated lane."""
        self.canaries: dict[str, CanaryKind] = {}
        """Kinds of canaries, by the name of the node."""
        self.told: dict[int, int | None] = {}
        self.naming_drawn: set[int] = set()
        """Validators whose evidence says that the drawn rows show why they reject."""
        """Number of live groups in the evidence of each validator. The evidence of others names none."""
        self.stated: dict[int, Sums] = {}
        """Sums in the evidence of each validator. The evidence of others has none."""
        self.find_block: FindBlock = lambda signed_at: DrawingBlock(signed_at, make_hash(f"block after {signed_at}"))

    # -- nodes, steps, tasks

    def register(self, *names: str, owner: str = "", block: int = 0, contract: str = "") -> list[Address]:
        """Register nodes of one contributor, or by default each node of its own contributor.

        `block` is the number of the newest block, and `contract` the digest of their execution contract.
        """
        with self.database.write() as rows:
            for name in names:
                contributor = make_address(owner or f"{name}'s owner")
                nodes.register_node(
                    rows, node=make_address(name), contributor=contributor, block=block, contract=contract
                )
        return [make_address(name) for name in names]

    def remove(self, name: str) -> None:
        """Apply the chain's event that the contributor no longer vouches for the node."""
        node = self.node(name)
        event = SimpleNamespace(node=node.address, contributor=node.contributor)
        with self.database.write() as rows:
            ctx = SimpleNamespace(params=self.params, clock=lambda: self.now)
            chain_events.on_node_removed(ctx, rows, event)  # type: ignore[arg-type]

    def publish(self, step: int, *, block: int | None = None) -> StepRow:
        block = 10 + step if block is None else block
        with self.database.write() as rows:
            return steps.open_step(
                rows, self.params, number=step, record_hash=make_hash(f"policy {step}"), block=block, now=self.now
            )

    def open_ahead(self, step: int) -> None:
        """Ask for the batch of a step, as the trainer does."""
        with self.database.write() as rows:
            steps.open_ahead(rows, self.params, number=step)

    def wait(
        self, name: str, *, slots: int = 1, version: int | None = None, seconds: float = 5.0, instance: str = INSTANCE
    ) -> None:
        with self.database.write() as rows:
            sign = NodeBeat(node=make_address(name), instance=instance, free_slots=slots, cached_version=version)
            (result,) = record_beats(rows, self.params, [sign], rule=STAKE_RULE, now=self.now)
            if isinstance(result, CoveyError):
                raise result
            if seconds:  # As a claim does, but without stake.
                row = nodes.require_node(rows, sign.node)
                row.free_slots, row.waiting_until = slots, self.now + seconds

    def assign(self) -> int:
        with self.database.write() as rows:
            return tasks.assign_tasks(rows, self.params, now=self.now)

    def collect(self, name: str, holding: Sequence[int] = (), *, instance: str = INSTANCE) -> TaskRow | None:
        ask = LeaseRequest(node=make_address(name), instance=instance, holding=tuple(holding))
        with self.database.write() as rows:
            (found,) = tasks.collect_tasks(rows, self.params, [ask], now=self.now)
        if isinstance(found, CoveyError):
            raise found
        return found

    def lease(self, name: str) -> TaskRow:
        """Register a node, let it wait, and return the task that it is assigned."""
        self.wait(name)
        self.assign()
        task = self.collect(name)
        assert task is not None, "no task for the node"
        return task

    def expire(self) -> int:
        with self.database.write() as rows:
            return tasks.expire_leases(rows, self.params, now=self.now)

    def tasks(self, *states: TaskState) -> Sequence[TaskRow]:
        with self.database.read() as rows:
            return rows.list_tasks(*(states or tuple(TaskState)))

    def node(self, name: str) -> NodeRow:
        with self.database.read() as rows:
            return nodes.require_node(rows, make_address(name))

    def strike(self, name: str, times: int) -> None:
        """Give the node's contributor strikes."""
        with self.database.write() as rows:
            for _ in range(times):
                nodes.add_strike(rows, self.params, nodes.require_node(rows, make_address(name)).contributor)

    def strikes(self, name: str) -> int:
        """Return the strikes of the node's contributor."""
        with self.database.read() as rows:
            return nodes.count_strikes(rows, nodes.require_node(rows, make_address(name)).contributor)

    # -- submissions

    def build_receipt(self, task: TaskRow, **changes: Any) -> Receipt:
        with self.database.read() as rows:
            node = nodes.require_node(rows, task.node or "")
        values: dict[str, Any] = {
            "pool": POOL,
            "task": task.id,
            "lease": task.lease,
            "node": task.node,
            "contributor": node.contributor,
            "policy_version": task.policy_version,
            "work_key": make_hash(f"file of {task.id}"),
            "groups": task.groups,
            "units": 20,
            "deadline": int(self.now) + 1000,
        }
        return Receipt(**(values | changes))

    def record(self, receipt: Receipt, *, signed_at: int = 50, due_by: int = 100_000) -> Countersigned:
        kinds = {make_address(name): kind for name, kind in self.canaries.items()}
        message = Countersignature(receipt_hash=eip712.compute_struct_hash(receipt), signed_at=signed_at, due_by=due_by)
        handed_in = submissions.VerifiedReceipt(
            receipt=receipt,
            signature=SIGNATURE,
            promise=Countersigned(message=message, signature=SIGNATURE),
            undrawn_limit=self.undrawn_limit,
            canary=kinds.get(receipt.node, CanaryKind.ORDINARY),
        )
        with self.database.write() as rows:
            (found,) = submissions.record_receipts(rows, self.params, [handed_in], price=self.price, now=self.now)
        if isinstance(found, CoveyError):
            raise found
        return found

    def submit(self, task: TaskRow, **changes: Any) -> Hash:
        return self.record(self.build_receipt(task, **changes)).message.receipt_hash

    def work(self, name: str, **changes: Any) -> Hash:
        """Lease a task and submit it."""
        return self.submit(self.lease(name), **changes)

    def submission(self, receipt_hash: str) -> SubmissionRow:
        with self.database.read() as rows:
            row = rows.get_submission(receipt_hash)
            assert row is not None
            len(row.turns)  # loaded, so that they can be read when the transaction is over
            return row

    # -- validators

    def list_active(self) -> list[Address]:
        """Return the validators that have their bond."""
        return [each for index, each in enumerate(self.validators) if index not in self.bondless]

    def seek_signatures(self) -> int:
        with self.database.write() as rows:
            return signing.seek_signatures(
                rows, self.params, validators=self.list_active(), seconds=86_400.0, now=self.now
            )

    def dispatch(self) -> None:
        with self.database.write() as rows:
            judging.dispatch(
                rows,
                self.params,
                rows.list_submissions(SubmissionState.SUBMITTED),
                validators=self.validators,
                active=self.list_active(),
                find_block=self.find_block,
                secret=SECRET,
                now=self.now,
            )

    def ask(self, *validators: int) -> None:
        """Open a poll for these validators."""
        with self.database.write() as rows:
            for validator in validators:
                exact_lane.note_asking(
                    rows, self.validators[validator], self.contracts.get(validator, ""), now=self.now
                )

    def find_validator(self, validator: int) -> ValidatorRow:
        """Return what the coordinator knows of a validator."""
        with self.database.read() as rows:
            return rows.list_validators()[self.validators[validator]]

    def claim(self, validator: int, *, holding: Sequence[int] = (), free_turns: int = 1) -> tuple[str, int] | None:
        self.ask(validator)
        with self.database.write() as rows:
            contract, orders = self.contracts.get(validator, ""), list[Order]()
            for room in (0, free_turns):  # A turn is taken only if there is nothing else to do.
                query = TurnQuery(self.validators[validator], self.list_active(), holding, room, contract=contract)
                orders = orders or turns.take_orders(rows, self.params, query, now=self.now)
            return (orders[0].kind, orders[0].turn.id) if orders else None

    def build_verdict(self, validator: int, about: str, decision: Decision, **changes: Any) -> Verdict:
        row = self.submission(about)
        reason = changes.get("reason", Reason.NONE if decision is not Decision.REJECT else Reason.PROOF)
        values: dict[str, Any] = {
            "pool": POOL,
            "receipt_hash": about,
            "work_key": row.work_key,
            "validator": self.validators[validator],
            "outcome": int(decision),
            "reason": int(reason),
            "severity": int(compute_severity(decision, Reason(reason), is_whole=self._is_whole(validator, about))),
            "units": row.receipt_units if decision is Decision.ACCEPT else 0,
            "evidence_hash": make_hash(f"evidence of {validator}"),
            "deadline": int(self.now) + 86_400,
        }
        return Verdict(**(values | changes))

    def _is_whole(self, validator: int, about: str) -> bool:
        """Return whether the validator's newest turn is a replay of all rows."""
        turns = [turn for turn in self.submission(about).turns if turn.validator == self.validators[validator]]
        return bool(turns and max(turns, key=lambda turn: turn.id).full)

    def commit(self, validator: int, judgement: int, verdict: Verdict) -> None:
        digest, salt = make_digest(verdict), make_hash(f"salt {judgement}")
        self.reveals[judgement] = (verdict, salt)
        with self.database.write() as rows:
            commitment = Commitment(self.validators[validator], judgement, messages.compute_commitment(digest, salt))
            raise_error(turns.record_commits(rows, self.params, [commitment], now=self.now))

    def reveal(self, judgement: int, verdict: Verdict | None = None) -> None:
        committed, salt = self.reveals[judgement]
        shown = verdict or committed
        validator = self.validators.index(Address(shown.validator))
        reveal = turns.Reveal(
            judgement=judgement,
            verdict=shown,
            digest=make_digest(shown),
            salt=salt,
            signature=SIGNATURE,
            live_groups=self.told.get(validator),
            is_in_drawn_rows=validator in self.naming_drawn,
            sums=self.stated.get(validator),
        )
        with self.database.write() as rows:
            raise_error(turns.record_reveals(rows, self.params, [reveal], now=self.now))

    def judge(self, receipt_hash: str, decisions: Sequence[tuple[int, Decision, dict[str, Any]]]) -> None:
        """Let these validators claim, commit and reveal, and tally the verdicts."""
        taken = []
        for validator, decision, changes in decisions:
            order = self.claim(validator)
            assert order is not None
            assert order[0] == "judge"
            self.commit(validator, order[1], self.build_verdict(validator, receipt_hash, decision, **changes))
            taken.append(order[1])
        for judgement in taken:
            self.reveal(judgement)
        self.dispatch()

    def accept(self, receipt_hash: str) -> None:
        """Let the quorum accept."""
        self.dispatch()
        self.judge(receipt_hash, [(i, Decision.ACCEPT, {}) for i in range(self.params.quorum)])

    def reject(self, receipt_hash: str, reason: Reason = Reason.PROOF) -> None:
        self.dispatch()
        self.judge(receipt_hash, [(i, Decision.REJECT, {"reason": reason}) for i in range(self.params.quorum)])

    def decide(self, receipt_hash: str, decision: Decision = Decision.ACCEPT, **changes: Any) -> None:
        """Let the quorum decide at once, whatever else is open."""
        self.dispatch()
        with self.database.write() as rows:
            row = rows.get_submission(receipt_hash)
            assert row is not None
            for index, judgement in enumerate(j for j in list_current(row) if not j.lapsed):
                validator = index % len(self.validators)  # some may be asked once more
                verdict = self.build_verdict(validator, receipt_hash, decision, **changes)
                judgement.validator, judgement.commitment = self.validators[validator], make_hash("commitment")
                judgement.verdict, judgement.signature = verdict, SIGNATURE
                judgement.live_groups = self.told.get(validator)
                judgement.sums = sum_limits.find_countable(self.params, row, judgement, self.stated.get(validator))
        self.dispatch()

    def states(self) -> dict[str, SubmissionState]:
        with self.database.read() as rows:
            return {row.receipt_hash: row.state for row in rows.list_submissions(*SubmissionState)}

    def find_ruling(self, receipt_hash: str) -> Ruling | None:
        with self.database.read() as rows:
            row = rows.get_submission(receipt_hash)
            assert row is not None
            is_over = panel.is_over(self.params, row, self.validators)
            return compute_ruling(self.params, row, is_over=is_over)


def raise_error(errors: Sequence[CoveyError | None]) -> None:
    """Raise the first error of a batch."""
    for error in errors:
        if error is not None:
            raise error


def make_digest(verdict: Verdict) -> Hash:
    """Return a substitute for the EIP-712 digest, which differs whenever a field does."""
    return make_hash(repr(verdict))


def code_of(call: Callable[..., object], *args: object) -> str:
    """Return the code of the ProtocolError that the call must raise."""
    with pytest.raises(ProtocolError) as caught:
        call(*args)
    return caught.value.code
