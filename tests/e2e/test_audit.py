"""Anyone who doubts a verdict can judge again: `covey validator audit` alongside a network."""

import asyncio
import contextlib
import io
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import structlog
import torch
from safetensors.torch import load_file

from covey.cli import app
from covey.demo import cheats
from covey.demo.participants import DemoOptions
from covey.errors import CoveyError, TransientError
from covey.protocol import canonical
from covey.protocol.evidence import Bundle
from covey.protocol.head import Head
from covey.protocol.ids import Hash, PoolId, Step
from covey.protocol.object_keys import build_evidence_key
from covey.protocol.policy_record import WEIGHTS_FILE
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Decision, Reason
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.policy_export import build_row, write_weights
from covey.shardcast.policy_source import look_at_relay
from covey.shardcast.reachability import KEPT_POLICIES
from tests.e2e.test_walk import judge, list_submissions, publish_and_plan, work
from tests.e2e.walk import Walk, open_walk

pytestmark = [pytest.mark.e2e]


def build_arguments(walk: Walk, name: str, storage: str, *options: str) -> list[str]:
    """Return the command, which knows only where the coordinator's objects are."""
    deployment = ("--deployment", str(walk.network.participants.deployment), "--pool", "1")
    return ["validator", "audit", name, "--storage", storage, *deployment, *options]


async def audit(walk: Walk, name: str, storage: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, which has its imports. Return its output and its error as a shell shows it."""
    arguments, output = build_arguments(walk, name, storage, *options), io.StringIO()

    def run() -> tuple[int, str]:
        before = structlog.get_config()
        with contextlib.redirect_stdout(output):
            try:
                return app(arguments, standalone_mode=False) or 0, ""
            except CoveyError as error:
                return 1, f"covey: {error}"
            finally:
                structlog.configure(**before)  # the command logs only warnings; other tests read more

    code, error = await asyncio.to_thread(run)
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), error)


def rewrite(data: bytes, **changes: object) -> bytes:
    return canonical.to_bytes(json.loads(data) | changes)


async def test_audit__rejected_cheat__anybody_finds_the_same_verdict(tmp_path):
    options = DemoOptions(steps=1, workers=1, cheats=0, max_staleness=0)
    async with open_walk(tmp_path / "net", options, cheat=cheats.get_cheat("quantized")) as walk:
        await publish_and_plan(walk)
        await work(walk)
        await judge(walk)
        (row,) = list_submissions(walk)
        assert (row.state, row.reason) == (SubmissionState.REJECTED, Reason.PROOF)
        store, relay = walk.coordinator.config.store, walk.coordinator.config.relays[0]
        kept, policies = tmp_path / "bundle.json", tmp_path / "policies"
        kept.write_bytes(walk.coordinator.store.get(build_evidence_key(1, row.evidence_hash), max_bytes=1 << 16))
        bundle = Bundle.from_bytes(kept.read_bytes())
        assert bundle.receipt.work_key == row.work_key
        reached = ("--relay", relay, "--policies", str(policies))

        command = build_arguments(walk, row.evidence_hash, store, *reached, "--json")
        done = await asyncio.to_thread(  # as a person runs it; later audits run in this process
            subprocess.run, [sys.executable, "-m", "covey", *command],
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        report = json.loads(done.stdout)
        assert report["agrees"] is True
        assert (report["found"]["decision"], report["found"]["reason"], report["found"]["units"]) == (
            "reject",
            "proof",
            0,
        )
        assert report["found"]["details"] == report["bundle"]["details"] == dict(bundle.details)
        assert len(report["rollouts"]) == 4 * 8
        accused = (bundle.details["group"], bundle.details["sibling"])
        (worst,) = [r for r in report["rollouts"] if (r["group"], r["sibling"]) == accused]
        assert worst["exponent"] >= bundle.details["exponent"] > 3

        done = await audit(walk, str(kept), store, "--policies", str(policies))  # a table, and the policy from disk
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert "the verdict is the same as in the bundle" in done.stdout
        assert "10 of 32 rollouts" in done.stdout

        lie = tmp_path / "lie.json"  # a validator that accepted: well formed, and false
        lie.write_bytes(rewrite(kept.read_bytes(), decision=Decision.ACCEPT, reason=0, units=row.receipt_units))
        done = await audit(walk, str(lie), store, *reached)
        assert (done.returncode, done.stderr) == (1, "")
        assert "THE VERDICT DIFFERS" in done.stdout

        lie.write_bytes(  # a validator that accepted the drawn rows, as if the cheat were not drawn whole
            rewrite(kept.read_bytes(), full=False, decision=Decision.ACCEPT, reason=0, units=row.receipt_units)
        )
        for extra, replayed in (((), 3), (("--full",), 4 * 8)):
            done = await audit(walk, str(lie), store, *reached, "--json", *extra)
            report = json.loads(done.stdout)
            assert report["full"] is False
            assert f"{report['found']['decision']} {report['found']['reason']}" == "reject proof"
            assert len(report["rollouts"]) == replayed
        receipt = bundle.receipt.model_dump(mode="json")
        for code, data in {
            "bad_evidence: the data is not": kept.read_bytes()[:-1],
            "bad_evidence: the bundle contains a false value: its hash of the parameters": rewrite(
                kept.read_bytes(), params_hash="0x" + "12" * 32
            ),
            "bad_evidence: the bundle contains a false value: its record hash": rewrite(
                kept.read_bytes(), record_hash="0x" + "12" * 32
            ),
            "bad_evidence: the bundle contains a false value: its chain": rewrite(kept.read_bytes(), chain_id=1),
            "bad_evidence: the bundle contains a false value: its list of rows": rewrite(kept.read_bytes(), rows=[0]),
            "bad_signature": rewrite(kept.read_bytes(), receipt=receipt | {"units": 1}),
        }.items():
            lie.write_bytes(data)
            done = await audit(walk, str(lie), store, *reached)
            assert done.returncode == 1
            assert done.stderr.startswith(f"covey: {code}"), done.stderr
            assert done.stdout == ""

        url = walk.coordinator.config.base_url  # by the public routes: the file is private until its epoch closes
        done = await audit(walk, row.evidence_hash, url, *reached)
        assert done.returncode == 1
        assert done.stderr.startswith("covey: not_public: there is no public object submissions/")
        walk.network.command("pool", "end", "--yes", key="operator")
        await walk.follow()
        await walk.until(
            lambda: walk.network.contracts.ledger.epochs_of(1) == 1, walk.run_jobs, walk.sign_epochs, walk.follow
        )
        done = await audit(walk, row.evidence_hash, url, *reached, "--json")
        report = json.loads(done.stdout)
        assert (done.returncode, report["agrees"], report["draw"]["is_due"]) == (0, True, True)
        assert walk.chain.get_block(report["draw"]["block_number"]).hash == row.draw


def await_relay(url: str, record_hash: Hash) -> None:
    """Wait until a relay, which asks its upstream several times a second, knows a route to a policy."""
    for _ in range(1200):
        with contextlib.suppress(TransientError):
            look_at_relay(url, pool=PoolId(1), record_hash=record_hash)
            return
        time.sleep(0.05)
    raise AssertionError(f"{url} does not know policy {record_hash}")


async def publish_more(walk: Walk, folder: Path, steps: range) -> None:
    """Publish policies after the first, on chain and at the relay, each as a delta from the one before."""
    context, contracts = walk.trainer, walk.network.contracts
    weights = load_file(context.exports.get_path(Step(0)) / WEIGHTS_FILE)
    (relay,) = walk.coordinator.config.relays

    def publish(step: Step, base: Path) -> Path:
        target = shutil.copytree(context.exports.get_path(Step(0)), folder / str(step))
        tensors = {name: tensor * (1 + step) for name, tensor in weights.items()}
        rows = [build_row(name, "BF16", tensor.shape) for name, tensor in tensors.items()]
        write_weights(target, rows, lambda row: tensors[row.name].view(-1).view(torch.uint8).numpy().data, threads=1)
        record_hash = context.publisher.offer(target, step, base_folder=base)
        while not context.publisher.advance(step, record_hash):
            pass
        return target

    base = context.exports.get_path(Step(0))
    for step in map(Step, steps):
        base = await asyncio.get_running_loop().run_in_executor(context.chain_thread, publish, step, base)
        await asyncio.to_thread(await_relay, relay, contracts.policies.policy_of(1, step))


@pytest.mark.full
async def test_audit__accepted_work_of_a_policy_long_ago__by_the_public_routes_until_it_is_gone(tmp_path):
    options = DemoOptions(steps=1, workers=1, cheats=0, max_staleness=0)
    async with open_walk(tmp_path / "net", options) as walk:
        await publish_and_plan(walk)
        await work(walk)
        await judge(walk)
        (row,) = list_submissions(walk)
        assert (row.state, row.policy_version) == (SubmissionState.ACCEPTED, 0)
        await publish_more(walk, tmp_path / "policy", range(1, KEPT_POLICIES + 3))
        origin = OriginStore(tmp_path / "net" / "origin")
        steps = [policy.step for policy in origin.read_head(1).policies]
        assert sorted(steps) == list(range(KEPT_POLICIES + 3)), "younger than the windows: none may go"
        walk.network.command("pool", "end", "--yes", key="operator")
        await walk.follow()
        await walk.until(
            lambda: walk.network.contracts.ledger.epochs_of(1) == 1, walk.run_jobs, walk.sign_epochs, walk.follow
        )
        url, relay = walk.coordinator.config.base_url, walk.coordinator.config.relays[0]

        done = await audit(walk, row.evidence_hash, url, "--relay", relay, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        report = json.loads(done.stdout)
        assert (report["agrees"], report["found"]["decision"], report["found"]["units"]) == (True, "accept", row.units)

        head = origin.read_head(1)
        origin.write_head(1, Head(pool=1, policies=tuple(policy for policy in head.policies if policy.step > 0)))
        done = await audit(walk, row.evidence_hash, url, "--relay", relay)
        assert done.returncode == 1
        assert done.stderr.startswith(
            "covey: policy_gone: policy 0 is not available from any relay: no relay has a route to a policy of pool 1"
        )
        assert f"{relay} knows no route to the policy" in done.stderr
        assert "keep_policies" in done.stderr
        done = await audit(walk, row.evidence_hash, url, "--relay", relay, "--relay", "http://127.0.0.1:9")
        assert done.stderr.startswith("covey: no_relay: no relay has ")
