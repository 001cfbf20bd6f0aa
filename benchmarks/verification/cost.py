"""CPU seconds in which a validator judges a submission, over those in which a worker generates it.

`cost_full` is every check with the replay, `cost_cheap_checks` all checks but the replay, and `cost_audit_10` a tenth
of work replayed with the cheap checks on all of it.  `cost_rows` is every check with the replay of 3 of 16 rows, for 16
turns whose replays share a pass, and `turns_together_over_alone` compares it with the same turns one by one.  The file,
the checks and their processes are the real ones; one thread; 64 completions of up to 128 tokens in float32.

Whatever makes decoding cheaper raises the ratios.  Siblings share their prompt's prefill, and the sampler computes
little of its noise.  On a GPU decoding waits for memory and a replay does not, so that public figures there are 1/25
and less.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks import isolated_process
from benchmarks.measurement import Measurement
from benchmarks.verification.policy_variants import build_large, build_policies
from covey import rollouts
from covey.devnet import deploy
from covey.engines.base import Engine, GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine, prepare_process
from covey.environments import registry
from covey.environments.base import Environment
from covey.environments.grader import GradingPool
from covey.environments.registry import DEMO
from covey.protocol import eip712
from covey.protocol.api.worker import TaskOrder
from covey.protocol.eip712 import Domain
from covey.protocol.ids import Address, Hash, LeaseId, PoolId, Step, TaskId
from covey.protocol.messages import Receipt
from covey.protocol.params import EnvironmentParams, ModelParams, PoolParams
from covey.protocol.seeding import SlotDomain
from covey.protocol.submission_file.codec import encode
from covey.protocol.verdict import Decision, Judgement
from covey.runtime.settings import SandboxSettings
from covey.sandbox import Sandbox
from covey.toploc.topk import build_capture
from validator import verdicts
from validator.checks import CheckTools
from validator.checks import SubmissionClaim as Submitted
from worker import receipts

RUNS = 5
"""Runs of each measurement in a process, of which the fastest counts."""
PROCESSES = 3
"""Processes whose median counts.  The place of a process in memory changes either side by some percent."""
AUDIT_RATE = 0.1
"""Share of submissions that are replayed in `cost_audit_10`."""
PARAMS = PoolParams(
    name="cost",
    environment=EnvironmentParams(kind=DEMO.kind, options=dict(DEMO.options)),
    model=ModelParams(max_completion_tokens=128, max_prompt_tokens=64),
    group_size=8,
    groups_per_task=8,
    groups_per_step=8,
)
ROW_PARAMS = PARAMS.model_copy(update={"groups_per_task": 2})
"""Parameters of turns of drawn rows: 3 of 16."""
TURNS = 16
"""Number of turns of drawn rows that are judged together."""
TURNS_OVER_GENERATED = TURNS * ROW_PARAMS.rollouts_per_task / PARAMS.rollouts_per_task
"""Completions of all these turns, over those of which the generation is measured."""
MANIFEST, COURT = Hash("0x" + "11" * 32), Address("0x" + "22" * 20)


def measure_cost(*, with_large: bool = True) -> list[Measurement]:
    """Measure the cost of the small policy and, with the suffix ".large", of one of over 20M parameters."""
    measurements = []
    folders = {"": build_policies("qwen2") / "true"} | ({".large": build_large()} if with_large else {})
    for suffix, folder in folders.items():
        runs = [isolated_process.call("benchmarks.verification.cost:measure", str(folder)) for _ in range(PROCESSES)]
        full = [run["full"] / run["generate"] for run in runs]
        cheap = [run["cheap"] / run["generate"] for run in runs]
        values = {
            "cost_full": full,
            "cost_audit_10": [AUDIT_RATE * a + (1 - AUDIT_RATE) * b for a, b in zip(full, cheap, strict=True)],
            "cost_cheap_checks": cheap,
            "cost_rows": [run["turns_together"] / (run["generate"] * TURNS_OVER_GENERATED) for run in runs],
            "turns_together_over_alone": [run["turns_together"] / run["turns_alone"] for run in runs],
        }
        peer = f"generation {median(run['generate'] for run in runs):.2f} s"
        measurements += [
            Measurement(name=name + suffix, value=median(each), unit="ratio", n=len(each), peer=peer)
            for name, each in values.items()
        ]
    return measurements


def measure(folder: str) -> dict[str, float]:
    """Measure the least CPU seconds of generation, of all checks, of the cheap ones and of turns of drawn rows."""
    prepare_process(threads=1)
    decoder = Sandbox("covey.protocol.submission_file.codec:build_decoder")
    environment = registry.load(DEMO)
    grader = GradingPool(DEMO, environment, PARAMS.grading, SandboxSettings(grading_processes=1))
    with decoder, grader:
        return _measure(Path(folder), environment, decoder, grader)


@dataclass(frozen=True, kw_only=True)
class _HandedIn:
    """An honest submission, and the requests of its generation."""

    receipt: Receipt
    signature: str
    file: bytes
    requests: list[GenerationRequest]

    def build_claim(self, drawn: tuple[int, ...] = ()) -> Submitted:
        """Return a new claim, because the checks fill one in."""
        return Submitted(
            receipt=self.receipt,
            signature=self.signature,
            record_hash=MANIFEST,
            contract="",
            drawn=drawn,
            file=self.file,
        )


def _hand_in(worker: Engine, tools: CheckTools, task: int) -> _HandedIn:
    """Generate, grade and sign the work of a task."""
    params, wallet = tools.params, deploy.derive_wallet("cost", "node")
    order = TaskOrder(
        task=TaskId(task),
        lease=LeaseId(task),
        policy_version=Step(0),
        record_hash=MANIFEST,
        groups=params.groups_per_task,
        deadline=2e9,
    )
    slot_domain = SlotDomain(
        beacon=MANIFEST, pool=PoolId(1), policy_version=Step(0), node=wallet.address, task=order.task
    )
    slots = rollouts.build_slots(slot_domain, order.groups, params, environment=tools.environment, engine=worker)
    capture = build_capture(params.verification)
    drafts = rollouts.roll_out(slots, params, worker, version=order.policy_version, capture=capture)
    rows = rollouts.build_rollouts(drafts, rollouts.grade_drafts(drafts, tools.grade))
    file = encode(rows)
    receipt = receipts.build_receipt(
        order,
        params,
        pool=PoolId(1),
        node=wallet.address,
        contributor=wallet.address,
        rollouts=rows,
        file=file,
        now=1.0,
    )
    signature = eip712.sign(receipt, tools.domain, wallet)
    return _HandedIn(receipt=receipt, signature=signature, file=file, requests=[slot.request for slot in slots])


def _measure(folder: Path, environment: Environment, decoder: Sandbox, grader: GradingPool) -> dict[str, float]:
    worker, validator = (HuggingFaceEngine(max_batch=64) for _ in range(2))
    worker.load_policy(folder, 0)
    validator.load_policy(folder, 0)
    tools = CheckTools(
        params=PARAMS,
        domain=Domain(chain_id=31337, contract=COURT),
        engine=validator,
        environment=environment,
        decode=decoder.call,
        grade=grader,
    )
    work, sandboxes, capture = _hand_in(worker, tools, 1), (decoder, grader), build_capture(PARAMS.verification)

    def judge(full: bool) -> None:
        _require_accepted([verdicts.judge(work.build_claim(), tools, full=full)])

    return {
        "generate": _time(lambda: worker.generate(work.requests, temperature=1.0, capture=capture), sandboxes),
        "full": _time(lambda: judge(True), sandboxes),
        "cheap": _time(lambda: judge(False), sandboxes),
        **_measure_turns(worker, replace(tools, params=ROW_PARAMS), sandboxes),
    }


def _measure_turns(worker: Engine, tools: CheckTools, sandboxes: tuple[Sandbox | GradingPool, ...]) -> dict[str, float]:
    """Measure TURNS turns of drawn rows, judged one by one and together."""
    works = [_hand_in(worker, tools, task) for task in range(1, TURNS + 1)]
    draws = [tools.params.draw_rows(eip712.compute_struct_hash(work.receipt), MANIFEST) for work in works]

    def judge_alone() -> None:
        claims = [work.build_claim(drawn) for work, drawn in zip(works, draws, strict=True)]
        _require_accepted([verdicts.judge(claim, tools, full=False) for claim in claims])

    def judge_together() -> None:
        claims = [work.build_claim(drawn) for work, drawn in zip(works, draws, strict=True)]
        checked = [(claim, verdicts.check_cheaply(claim, tools)) for claim in claims]
        _require_accepted(verdicts.replay_together(checked, tools))

    return {
        "turns_alone": _time(judge_alone, sandboxes),
        "turns_together": _time(judge_together, sandboxes),
    }


def _require_accepted(judgements: Sequence[Judgement]) -> None:
    for judgement in judgements:
        if judgement.decision is not Decision.ACCEPT:
            raise RuntimeError(f"honest work was not accepted: {judgement}")


def _time(call: Callable[[], object], sandboxes: tuple[Sandbox | GradingPool, ...]) -> float:
    """Measure the least CPU seconds of this process and of the calls of its sandboxes."""
    seconds = []
    for _ in range(RUNS):
        before = time.process_time() + sum(sandbox.cpu_seconds for sandbox in sandboxes)
        call()
        seconds.append(time.process_time() + sum(sandbox.cpu_seconds for sandbox in sandboxes) - before)
    return min(seconds)
