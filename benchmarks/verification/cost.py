"""CPU seconds in which a validator judges a submission, over those in which a worker generates it.

`cost_full` is every check with the replay, `cost_rows` is every check with a replay of 3 rows of 16,
`cost_cheap_checks` is all checks but the replay, and `cost_audit_10` is a tenth of work replayed with the cheap checks
on all of it.  The file, the checks and their processes are the real ones; one thread; 64 completions of up to 128
tokens in float32.

Whatever makes decoding cheaper raises the ratios.  Siblings share their prompt's prefill, and the sampler computes
little of its noise.  On a GPU decoding waits for memory and a replay does not, so that public figures there are 1/25
and less.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks import isolated_process
from benchmarks.measurement import Measurement
from benchmarks.verification.policy_variants import build_large, build_policies
from covey import rollouts
from covey.devnet import deploy
from covey.engines.hf.engine import HuggingFaceEngine, prepare_process
from covey.environments import registry
from covey.environments.base import Environment
from covey.environments.grader import GradingPool
from covey.environments.registry import DEMO
from covey.protocol import eip712
from covey.protocol.api.worker import TaskOrder
from covey.protocol.eip712 import Domain
from covey.protocol.ids import Address, Hash, LeaseId, PoolId, Step, TaskId
from covey.protocol.params import EnvironmentParams, ModelParams, PoolParams
from covey.protocol.seeding import SlotDomain
from covey.protocol.submission_file.codec import encode
from covey.protocol.verdict import Decision
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
DRAWN = tuple(range(0, 64, 16)) + tuple(range(5, 64, 16)) + tuple(range(10, 64, 16))
"""Rows that are replayed in `cost_rows`: 3 of each 16, as four submissions of 16 rows in one pass have them."""
PARAMS = PoolParams(
    name="cost",
    environment=EnvironmentParams(kind=DEMO.kind, options=dict(DEMO.options)),
    model=ModelParams(max_completion_tokens=128, max_prompt_tokens=64),
    group_size=8,
    groups_per_task=8,
    groups_per_step=8,
)
MANIFEST, COURT = Hash("0x" + "11" * 32), Address("0x" + "22" * 20)


def measure_cost() -> list[Measurement]:
    """Measure the cost of the small policy and, with the suffix ".large", of one of over 20M parameters."""
    measurements = []
    for suffix, folder in (("", build_policies("qwen2") / "true"), (".large", build_large())):
        runs = [isolated_process.call("benchmarks.verification.cost:measure", str(folder)) for _ in range(PROCESSES)]
        full = [run["full"] / run["generate"] for run in runs]
        cheap = [run["cheap"] / run["generate"] for run in runs]
        values = {
            "cost_full": full,
            "cost_rows": [run["rows"] / run["generate"] for run in runs],
            "cost_audit_10": [AUDIT_RATE * a + (1 - AUDIT_RATE) * b for a, b in zip(full, cheap, strict=True)],
            "cost_cheap_checks": cheap,
        }
        peer = f"generation {median(run['generate'] for run in runs):.2f} s"
        measurements += [
            Measurement(name=name + suffix, value=median(each), unit="ratio", n=len(each), peer=peer)
            for name, each in values.items()
        ]
    return measurements


def measure(folder: str) -> dict[str, float]:
    """Measure the least CPU seconds of generation, of the checks with and without replays, in this process."""
    prepare_process(threads=1)
    decoder = Sandbox("covey.protocol.submission_file.codec:build_decoder")
    environment = registry.load(DEMO)
    grader = GradingPool(DEMO, environment, PARAMS.grading, SandboxSettings(grading_processes=1))
    with decoder, grader:
        return _measure(Path(folder), environment, decoder, grader)


def _measure(folder: Path, environment: Environment, decoder: Sandbox, grader: GradingPool) -> dict[str, float]:
    worker, validator = (HuggingFaceEngine(max_batch=64) for _ in range(2))
    worker.load_policy(folder, 0)
    validator.load_policy(folder, 0)
    wallet, domain = deploy.derive_wallet("cost", "node"), Domain(chain_id=31337, contract=COURT)
    tools = CheckTools(
        params=PARAMS,
        domain=domain,
        engine=validator,
        environment=environment,
        decode=decoder.call,
        grade=grader,
    )
    order = TaskOrder(
        task=TaskId(1), lease=LeaseId(1), policy_version=Step(0), record_hash=MANIFEST, groups=8, deadline=2e9
    )
    slot_domain = SlotDomain(
        beacon=MANIFEST, pool=PoolId(1), policy_version=Step(0), node=wallet.address, task=order.task
    )
    slots = rollouts.build_slots(slot_domain, order.groups, PARAMS, environment=tools.environment, engine=worker)
    capture = build_capture(PARAMS.verification)
    drafts = rollouts.roll_out(slots, PARAMS, worker, version=order.policy_version, capture=capture)
    rows = rollouts.build_rollouts(drafts, rollouts.grade_drafts(drafts, tools.grade))
    file = encode(rows)
    receipt = receipts.build_receipt(
        order,
        PARAMS,
        pool=PoolId(1),
        node=wallet.address,
        contributor=wallet.address,
        rollouts=rows,
        file=file,
        now=1.0,
    )
    signature = eip712.sign(receipt, domain, wallet)

    def judge(full: bool, drawn: tuple[int, ...] = ()) -> None:
        claim = Submitted(
            receipt=receipt, signature=signature, record_hash=MANIFEST, contract="", drawn=drawn, file=file
        )
        judgement = verdicts.judge(claim, tools, full=full)
        if judgement.decision is not Decision.ACCEPT:
            raise RuntimeError(f"honest work was not accepted: {judgement}")

    requests, sandboxes = [slot.request for slot in slots], (decoder, grader)
    capture = build_capture(PARAMS.verification)
    return {
        "generate": _time(lambda: worker.generate(requests, temperature=1.0, capture=capture), sandboxes),
        "full": _time(lambda: judge(True), sandboxes),
        "rows": _time(lambda: judge(False, DRAWN), sandboxes),
        "cheap": _time(lambda: judge(False), sandboxes),
    }


def _time(call: Callable[[], object], sandboxes: tuple[Sandbox | GradingPool, ...]) -> float:
    """Measure the least CPU seconds of this process and of the calls of its sandboxes."""
    seconds = []
    for _ in range(RUNS):
        before = time.process_time() + sum(sandbox.cpu_seconds for sandbox in sandboxes)
        call()
        seconds.append(time.process_time() + sum(sandbox.cpu_seconds for sandbox in sandboxes) - before)
    return min(seconds)
