"""What a validator costs: CPU seconds of judging over those of generating the same work, for `verification`.

Real files, the real checks with their processes, one thread.  64 completions of up to 128 tokens.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks import isolated_process
from benchmarks.harness import Measurement
from benchmarks.verification.policy_variants import build_large, build_policies
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
from covey.protocol.submission_file.codec import encode
from covey.protocol.verdict import Decision
from covey.runtime.settings import SandboxSettings
from covey.sandbox import Sandbox
from covey.toploc.topk import build_capture
from validator import judging
from validator.checks import Claim as Submitted
from validator.checks import Tools
from worker import generation, receipts

RUNS = 5
"""Of each measurement in a process; the least counts."""
PROCESSES = 3
AUDIT_RATE = 0.1
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
    """`cost_full` and `cost_audit_10` of the small policy, and of one of over 20M parameters.

    Medians over fresh processes: where a process happens to lie in memory moves either side by some percent.
    """
    claims = []
    for suffix, folder in (("", build_policies("qwen2") / "true"), (".large", build_large())):
        runs = [isolated_process.call("benchmarks.verification.cost:measure", str(folder)) for _ in range(PROCESSES)]
        full = [run["full"] / run["generate"] for run in runs]
        cheap = [run["cheap"] / run["generate"] for run in runs]
        values = {
            "cost_full": full,
            "cost_audit_10": [AUDIT_RATE * a + (1 - AUDIT_RATE) * b for a, b in zip(full, cheap, strict=True)],
            "cost_cheap_checks": cheap,
        }
        peer = f"generation {median(run['generate'] for run in runs):.2f} s"
        claims += [
            Measurement(
                name=name + suffix, value=median(each), unit="validator s / generation s", n=len(each), peer=peer
            )
            for name, each in values.items()
        ]
    return claims


def measure(folder: str) -> dict[str, float]:
    """Least CPU seconds of generating, of judging fully, and of the cheap checks, in this process."""
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
    tools = Tools(
        params=PARAMS,
        domain=domain,
        engine=validator,
        environment=environment,
        decode=decoder.call,
        grade=grader,
    )
    order = TaskOrder(
        task=TaskId(1), lease=LeaseId(1), policy_version=Step(0), manifest_hash=MANIFEST, groups=8, deadline=2e9
    )
    slots = generation.build_slots(
        order, PARAMS, pool=PoolId(1), node=wallet.address, environment=tools.environment, engine=worker
    )
    drafts = generation.roll_out(slots, PARAMS, worker, version=order.policy_version)
    rows = generation.build_rollouts(drafts, tools.grade)
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

    def judge(full: bool) -> None:
        claim = Submitted(receipt=receipt, signature=signature, manifest_hash=MANIFEST, file=file)
        judgement = judging.judge(claim, tools, full=full)
        if judgement.decision is not Decision.ACCEPT:
            raise RuntimeError(f"honest work was not accepted: {judgement}")

    requests, children = [slot.request for slot in slots], (decoder, grader)
    capture = build_capture(PARAMS.verification)
    return {
        "generate": _time(lambda: worker.generate(requests, temperature=1.0, capture=capture), children),
        "full": _time(lambda: judge(True), children),
        "cheap": _time(lambda: judge(False), children),
    }


def _time(call: Callable[[], object], children: tuple[Sandbox | GradingPool, ...]) -> float:
    """Least CPU seconds of this process and of its sandboxes' calls over some runs."""
    taken = []
    for _ in range(RUNS):
        before = time.process_time() + sum(child.cpu_seconds for child in children)
        call()
        taken.append(time.process_time() + sum(child.cpu_seconds for child in children) - before)
    return min(taken)
