"""Evidence bundles, and what an audit does with one before it reads chain, store and relays."""

import asyncio
import dataclasses
import math
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from covey.demo.cheats import Wrapped
from covey.engines.hf.engine import HuggingFaceEngine
from covey.engines.installation import describe_hardware
from covey.environments.base import refuse_data_sets
from covey.errors import CoveyError, OperatorError, ProtocolError
from covey.model.tiny import tiny_folder
from covey.protocol import eip712
from covey.protocol.api.common import ReceiptBody
from covey.protocol.api.validator import JudgeOrder
from covey.protocol.evidence import Bundle
from covey.protocol.ids import PoolId
from covey.protocol.params import VerificationParams
from covey.protocol.running_sums import ItemSum
from covey.protocol.seeding import draw_rows
from covey.protocol.thresholds import Thresholds
from covey.protocol.verdict import Judgement, Reason
from covey.toploc.proofs import Distances
from tests.fakes.pool import make_contract, make_exact, make_hash
from tests.fakes.tools import DOMAIN, MANIFEST, Work, Worker, build_claim
from validator import audit, verdicts
from validator.audit import ComparisonRow, Report
from validator.audit_command import describe, find_worst, show
from validator.checks import CheckTools
from validator.config import AuditConfig
from validator.draw_check import Draw
from validator.evidence_bundle import JudgingEnvironment, build_bundle, describe_engine
from validator.replay import RolloutDistances

pytestmark = pytest.mark.unit
VENUE = JudgingEnvironment(
    chain_id=DOMAIN.chain_id,
    court=DOMAIN.contract,
    pool=PoolId(1),
    params_hash=make_hash("params"),
    engine=describe_engine("hf", dtype="float32", batch=16, device="cpu"),
    isolation="bwrap",
)
DRAW = make_hash("drawing block")
ROWS = (6, 1)
HOPPER = "NVIDIA H100 80GB HBM3"
HERE = describe_hardware("cpu", "exact")
LIMITS = Thresholds(exponent_max=4, mantissa_mean_max=0.02, margin_max=1e-4, logprob_max=1e-3)
QUIET = ComparisonRow(group=0, sibling=0, tokens=5, exponent=0, mantissa_rest=0.0, margin=0.0, logprob=0.0)


def make_draw(**changes: Any) -> Draw:
    return Draw(**({"block_number": 9, "block_hash": DRAW, "is_due": False} | changes))


def make_order(work: Work, worker: Worker, *, full: bool = True, contract: str = "") -> JudgeOrder:
    return JudgeOrder(
        judgement=3,
        receipt=ReceiptBody.of(work.receipt),
        signature=worker.sign(work),
        url="http://coordinator/file",
        record_hash=MANIFEST,
        contract=contract,
        draw=DRAW,
        full=full,
        seconds_left=30.0,
    )


def count_live(work: Work) -> int:
    """Return the number of groups in which a rollout has another reward than the first one."""
    first = {row.group: row.reward for row in work.rollouts if row.sibling == 0}
    return len({row.group for row in work.rollouts if row.reward != first[row.group]})


def make_report(
    work: Work, worker: Worker, judgement: Judgement, found: Judgement, *rows: ComparisonRow, full: bool = True
) -> Report:
    bundle = build_bundle(judgement, make_order(work, worker, full=full), VENUE, rows=ROWS)
    return Report(
        evidence_hash=bundle.compute_hash(), bundle=bundle, found=found, engine=VENUE.engine, limits=LIMITS, rows=rows
    )


def test_build_bundle__judgement__holds_everything_to_repeat_it(worker: Worker, honest: Work):
    order = make_order(honest, worker)
    bundle = build_bundle(Judgement.reject(Reason.PROOF, window=3, exponent=40), order, VENUE, rows=ROWS)
    assert (bundle.receipt.to_message(), bundle.signature) == (honest.receipt, order.signature)
    assert (bundle.record_hash, bundle.full, bundle.court) == (MANIFEST, True, DOMAIN.contract)
    assert (bundle.reason, bundle.units, dict(bundle.details)) == (Reason.PROOF, 0, {"window": 3, "exponent": 40})
    assert bundle.engine.versions["torch"] == metadata.version("torch")
    assert bundle.engine.hardware == HERE
    assert Bundle.from_bytes(bundle.to_bytes()) == bundle


def test_build_bundle__text_of_a_stranger__is_cut_and_made_utf8(worker: Worker, honest: Work):
    judgement = Judgement.reject(Reason.SCHEMA, what="\udc80" + "x" * 10_000)
    bundle = build_bundle(judgement, make_order(honest, worker), VENUE, rows=ROWS)
    assert bundle.details["what"] == "?" + "x" * 199


class Closable(Wrapped):
    """An engine that counts how often it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1
        super().close()


@pytest.mark.parametrize("is_policy", [True, False])
def test_judge__again_or_without_a_policy__closes_its_engine(
    worker: Worker, honest: Work, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_policy: bool
):
    engine = Closable(HuggingFaceEngine())
    monkeypatch.setattr(audit, "build_engine", lambda *_, **__: engine)
    config = AuditConfig.load(None, {"deployment": tmp_path / "d.json", "storage": f"file://{tmp_path}"}, {})
    judged = Judgement.accept(honest.receipt.units, live_groups=count_live(honest))
    bundle = build_bundle(judged, make_order(honest, worker), VENUE, rows=ROWS)
    judge = partial(audit.judge, config, bundle, worker.params, file=honest.file, data_sets=refuse_data_sets)
    if is_policy:
        assert judge(policy=tiny_folder()).agrees
    else:
        with pytest.raises(CoveyError):
            judge(policy=tmp_path)
    assert engine.closed == 1


@pytest.mark.parametrize(
    ("rows", "full", "replayed"),
    [((), False, 0), ((6, 1), False, 2), ((6, 2), False, 2), ((6, 1), True, 8)],
    ids=["no row", "other rows", "its row", "all"],
)
def test_judge__cheat_in_one_row__is_found_if_the_bundle_draws_the_row_or_with_a_replay(
    worker: Worker, honest: Work, tmp_path: Path, rows: tuple[int, ...], full: bool, replayed: int
):
    """The log-probabilities of row 2 are not the model's, and the bundle's validator accepted them."""
    cheat = honest.with_one(2, logprobs=tuple(p + 0.002 for p in honest.rollouts[2].logprobs))
    judged = Judgement.accept(cheat.receipt.units, live_groups=count_live(cheat))
    bundle = build_bundle(judged, make_order(cheat, worker, full=False), VENUE, rows=rows)
    values = {"deployment": tmp_path / "d.json", "storage": f"file://{tmp_path}", "full": full}
    report = audit.judge(
        AuditConfig.load(None, values, {}),
        bundle,
        worker.params,
        file=cheat.file,
        policy=tiny_folder(),
        data_sets=refuse_data_sets,
    )
    is_found = full or 2 in rows
    assert report.found.reason is (Reason.LOGPROB if is_found else Reason.NONE)
    assert (report.agrees, len(report.rows)) == (not is_found, replayed)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(("drawn", "is_whole"), [((6, 1), False), ((6, 1), True), ((), False)])
def test_judge__sums__are_those_of_the_rows_that_the_bundles_validator_replayed(
    worker: Worker,
    honest: Work,
    tools: CheckTools,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    drawn: tuple[int, ...],
    is_whole: bool,
    full: bool,
):
    """They are repeated bit for bit if the audit replays the same rows. A changed total is shown."""
    judged = verdicts.judge(build_claim(honest, worker.sign(honest), drawn=drawn), tools, full=is_whole)
    bundle = build_bundle(judged, make_order(honest, worker, full=is_whole), VENUE, rows=drawn)
    tokens = sum(len(honest.rollouts[row].tokens) for row in (range(8) if is_whole else drawn))
    assert sum(each.items for name, each in bundle.sums.items() if name == "logprob") == tokens
    values = {"deployment": tmp_path / "d.json", "storage": f"file://{tmp_path}", "full": full}
    audit_bundle = partial(
        audit.judge,
        AuditConfig.load(None, values, {}),
        params=worker.params,
        file=honest.file,
        policy=tiny_folder(),
        data_sets=refuse_data_sets,
    )
    report = dataclasses.replace(audit_bundle(bundle), engine=VENUE.engine)
    assert (report.agrees, report.differing_sums) == (True, [])
    if is_whole or not full:
        assert Bundle.from_bytes(bundle.to_bytes()).sums == report.sums
    if not bundle.sums:
        return
    higher = bundle.sums["logprob"].model_copy(update={"total": 1.0})
    false = dataclasses.replace(report, bundle=bundle.model_copy(update={"sums": bundle.sums | {"logprob": higher}}))
    assert describe(false)["sums"]["differing"] == false.differing_sums == ["logprob"]
    show(false, show_all=False)
    assert f"over {tokens} here: THE SUM DIFFERS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("hardware", "total", "differing"),
    [(HERE, 0.5, []), (HERE, math.nextafter(0.5, 1), ["logprob"]), (HOPPER, 0.509, []), (HOPPER, 0.511, ["logprob"])],
)
def test_report__sums_of_whole_replays__are_compared_in_every_bit_with_the_same_engine_alone(
    worker, honest, capsys, hardware, total, differing
):
    """On other hardware a fifth of the calibrated mean and one item may differ: 0.2 x 2e-5 x 2500 + 1e-5."""
    row = dataclasses.replace(QUIET, tokens=2500)
    report = make_report(honest, worker, Judgement.accept(40), Judgement.accept(40), row, row)
    stated = {"logprob": ItemSum(total=0.5, items=2500)}
    engine = VENUE.engine.model_copy(update={"hardware": hardware})
    bundle = report.bundle.model_copy(update={"engine": engine, "sums": stated})
    report = dataclasses.replace(report, bundle=bundle, sums={"logprob": ItemSum(total=total, items=2500)})
    assert report.differing_sums == differing
    drawn = dataclasses.replace(report, bundle=bundle.model_copy(update={"full": False}))
    assert drawn.differing_sums == (["logprob"] if total > 0.51 else []), "other rows may have shared the pass"
    missing = dataclasses.replace(report, bundle=bundle.model_copy(update={"sums": {}}))
    assert missing.differing_sums == ["logprob"]
    show(missing, show_all=False)
    assert "logprob has no sum in the bundle: THE SUM DIFFERS" in capsys.readouterr().out
    other = dataclasses.replace(missing, found=Judgement.reject(Reason.PROOF), sums={})
    assert (other.agrees, other.differing_sums) == (False, [])


OURS = make_contract()


@pytest.mark.parametrize(
    ("order", "rows", "found"),
    [
        ("", "", Judgement.accept(1)),
        ("", OURS.digest, Judgement.reject(Reason.SCHEMA)),
        (make_contract(torch="1.0").digest, make_contract(torch="1.0").digest, Judgement.unknown()),
    ],
    ids=["calibrated", "false rows", "another contract"],
)
def test_judge__bundle_of_a_validator_with_a_contract__is_repeated_in_the_lane_of_the_submission(
    worker: Worker, honest: Work, tmp_path: Path, order: str, rows: str, found: Judgement
):
    rules = make_exact(OURS, make_contract(torch="1.0"), mode="calibrated")
    params = worker.params.model_copy(update={"verification": VerificationParams.model_validate(rules)})
    work = honest.with_each(lambda _: {"contract": rows})
    venue = dataclasses.replace(VENUE, engine=VENUE.engine.model_copy(update={"contract": OURS.digest}))
    bundle = build_bundle(found, make_order(work, worker, contract=order), venue, rows=ROWS)
    values = {"deployment": tmp_path / "d.json", "storage": f"file://{tmp_path}", "engine": "hf"}
    config = AuditConfig.load(None, values, {})
    report = audit.judge(config, bundle, params, file=work.file, policy=tiny_folder(), data_sets=refuse_data_sets)
    assert (report.found.decision, report.found.reason) == (found.decision, found.reason)
    assert report.engine.contract == ""


@pytest.mark.parametrize(
    ("full", "draw", "is_ignored", "lines"),
    [
        (True, None, False, ["the work as drawn: its verdict rests on a replay", "the draw was not checked"]),
        (False, None, False, ["as not drawn: its verdict rests on the cheap", "the draw was not checked"]),
        (True, make_draw(is_due=True), False, ["as drawn", "block 9, requires a whole replay, which was done"]),
        (True, make_draw(is_due=False), False, ["as drawn", "no whole replay, but it was done for another reason"]),
        (False, make_draw(is_due=False), False, ["a replay of the rows 6, 1", "block 9, requires no whole replay"]),
        (False, make_draw(is_due=True), True, ["as not drawn", "a whole replay: THE DRAW WAS IGNORED"]),
    ],
    ids=range(6),
)
def test_show__draw__is_printed_with_what_it_demands(worker, honest, capsys, full, draw, is_ignored, lines):
    report = make_report(honest, worker, Judgement.accept(40), Judgement.accept(40), full=full)
    report = dataclasses.replace(report, draw=draw)
    assert report.is_draw_ignored is is_ignored
    described = describe(report)
    assert described["full"] is full
    assert described["rows"] == [6, 1]
    assert described["draw"] == (draw and dataclasses.asdict(draw) | {"is_ignored": is_ignored, "is_false": False})
    show(report, show_all=False)
    printed = capsys.readouterr().out.splitlines()[-3:]
    assert lines[0] in printed[0]
    assert lines[1] in printed[1]
    assert printed[2] == "the verdict is the same as in the bundle"


@pytest.mark.parametrize("full", [True, False])
def test_show__rows_of_another_block__the_draw_is_false_unless_all_rows_were_replayed(worker, honest, capsys, full):
    report = make_report(honest, worker, Judgement.accept(40), Judgement.accept(40), full=full)
    report = dataclasses.replace(report, draw=make_draw(block_hash=make_hash("another")))
    assert report.is_draw_false is describe(report)["draw"]["is_false"] is (not full)
    show(report, show_all=False)
    assert (f"another block, {DRAW}: THE DRAW IS FALSE" in capsys.readouterr().out) is not full


@pytest.mark.parametrize(("rows", "code"), [((), "bad_evidence"), ((0, 1, 2), "bad_evidence"), (None, None)])
def test_require_true__rows__must_be_those_that_the_draw_draws(worker, honest, rows, code):
    """Computed from the bundle's receipt and draw and the chain's parameters, so a validator cannot choose its rows."""
    params, receipt = worker.params, honest.receipt
    due = draw_rows(eip712.compute_struct_hash(receipt), DRAW, count=3, rows=8)
    judged = Judgement.accept(receipt.units)
    bundle = build_bundle(judged, make_order(honest, worker), VENUE, rows=due if rows is None else rows)
    contracts = SimpleNamespace(
        deployment=SimpleNamespace(chain_id=DOMAIN.chain_id, slashing_court=DOMAIN.contract),
        pools=SimpleNamespace(get_terms=lambda _: SimpleNamespace(params_hash=VENUE.params_hash)),
        policies=SimpleNamespace(policy_of=lambda *_: MANIFEST),
    )
    if code is None:
        audit.require_true(bundle, contracts, params)
    else:
        with pytest.raises(ProtocolError, match="its list of rows is"):
            audit.require_true(bundle, contracts, params)


def test_build_rows__judged__are_the_worst_of_each_rollout(worker: Worker, honest: Work, tools: CheckTools):
    claim = build_claim(honest, worker.sign(honest))
    assert audit.build_rows(claim) == ()
    verdicts.judge(claim, tools, full=True)
    rows = audit.build_rows(claim)
    assert [(row.group, row.sibling, row.tokens) for row in rows] == [
        (r.group, r.sibling, len(r.tokens)) for r in honest.rollouts
    ]
    claim.distances = {
        1: RolloutDistances(
            windows=tuple(
                Distances(**{f.name: values.get(f.name, 0) for f in dataclasses.fields(Distances)})
                for values in (
                    {"sign_exponent_mismatches": 2, "mantissa_rest": 0.5},
                    {"sign_exponent_mismatches": 7, "mantissa_rest": 0.25},
                )
            ),
            margins=np.array([0.0, 3.0], np.float32),
            deviations=np.array([0.125, 0.0]),
            finished=True,
        )
    }
    (row,) = audit.build_rows(claim)
    assert (row.group, row.sibling) == (0, 1)
    assert (row.tokens, row.exponent, row.mantissa_rest, row.margin, row.logprob) == (2, 7, 0.5, 3.0, 0.125)


def test_find_worst__rows__by_the_largest_share_of_a_limit():
    rows = tuple(
        dataclasses.replace(QUIET, sibling=i, **changes)
        for i, changes in enumerate(
            [{}, {"exponent": 2}, {"margin": 3e-4}, {"mantissa_rest": math.nan}, {"logprob": 1e-3}, {"exponent": 3}]
        )
    )  # shares of the limit: 0, 1/2, 3, NaN, 1, 3/4
    assert [row.sibling for row in find_worst(rows, LIMITS, 10)] == [3, 2, 4, 5, 1, 0]
    assert [row.sibling for row in find_worst(rows, LIMITS, 2)] == [3, 2]
    exact = LIMITS.model_copy(update={"margin_max": 0.0})
    assert find_worst(rows[:3], exact, 1) == [rows[2]]


@pytest.mark.parametrize(
    ("judgement", "found", "agrees"),
    [
        (Judgement.reject(Reason.PROOF, window=1), Judgement.reject(Reason.PROOF, window=2), True),
        (Judgement.reject(Reason.PROOF), Judgement.reject(Reason.LOGPROB), False),
        (Judgement.accept(40), Judgement.accept(40), True),
        (Judgement.accept(40), Judgement.accept(39), False),
        (Judgement.reject(Reason.PROOF), Judgement.unknown(error="x"), False),
        (Judgement.accept(40, live_groups=1), Judgement.accept(40, live_groups=1), True),
        (Judgement.accept(40, live_groups=0), Judgement.accept(40, live_groups=1), False),
        (Judgement.accept(40), Judgement.accept(40, live_groups=1), False),
        (Judgement.reject(Reason.PROOF, drawn=1), Judgement.reject(Reason.PROOF, drawn=0), False),
    ],
    ids=range(9),
)
def test_report__verdicts__agree_if_all_compared_fields_do(worker, honest, capsys, judgement, found, agrees):
    row = dataclasses.replace(QUIET, margin=math.inf)
    report = make_report(honest, worker, judgement, found, row)
    elsewhere = report.bundle.engine.model_copy(update={"hardware": HOPPER})
    report = dataclasses.replace(report, bundle=report.bundle.model_copy(update={"engine": elsewhere}))
    assert report.agrees is agrees
    described = describe(report)
    assert described["agrees"] is agrees
    assert (described["bundle"]["engine"]["hardware"], described["found"]["engine"]["hardware"]) == (HOPPER, HERE)
    assert described["rollouts"] == [
        {"group": 0, "sibling": 0, "tokens": 5, "exponent": 0, "mantissa_rest": 0.0, "margin": None, "logprob": 0.0}
    ]
    show(report, show_all=False)
    printed = capsys.readouterr().out
    assert ("the verdict is the same as in the bundle" in printed) is agrees
    bundles, ours = printed.index(f"hf, float32, on {HOPPER}, covey "), printed.index(f"hf, float32, on {HERE}, covey ")
    assert bundles < ours


def test_show__text_of_a_stranger__is_not_printed_as_a_terminal_command(worker, honest, capsys):
    judgement = Judgement.reject(Reason.SCHEMA, what="\x1b]0;x\x07[red]y[/red]")
    show(make_report(honest, worker, judgement, judgement), show_all=True)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "[red]" in printed


def read(config: AuditConfig, name: str) -> str:
    with pytest.raises(CoveyError) as caught:
        asyncio.run(audit.read_bundle(config, name))
    return caught.value.code


def test_read_bundle__unreadable_bundle__is_refused_with_a_code(tmp_path: Path, worker: Worker, honest: Work):
    store = tmp_path / "store"
    config = AuditConfig(deployment=tmp_path / "d.json", storage=f"file://{store}", pool=1)
    digest = make_hash("bundle")
    assert read(config, str(tmp_path / "absent.json")) == "no_bundle"
    assert read(config, str(tmp_path)) == "no_bundle"
    assert read(config, "0x12") == "bad_hash"
    assert read(config.model_copy(update={"pool": None}), digest) == "no_pool"
    assert read(config, digest) == "bad_store"
    assert not store.exists(), "reading must not create a folder"
    (store / "evidence/1").mkdir(parents=True)
    assert read(config, digest) == "missing"
    path = store / f"evidence/1/{digest}.json"
    path.write_bytes(b"{}")
    assert read(config, digest) == "digest_mismatch"
    path.write_bytes(b"x" * 65_537)
    assert read(config, digest) == "oversized"
    assert asyncio.run(audit.read_bundle(config, str(path))) == b"x" * 65_537  # at most one byte over the limit is read
    path.write_bytes(b"x" * 99_999)
    assert len(asyncio.run(audit.read_bundle(config, str(path)))) == 65_537


def test_describe_engine__interpreter__is_used_for_vllm_only() -> None:
    nobody = Path("/nonexistent/python")
    with pytest.raises(OperatorError, match=r"bad_device: the Python interpreter /nonexistent/python"):
        describe_engine("vllm", dtype="float32", batch=1, device="cpu", interpreter=nobody)
    assert describe_engine("hf", dtype="float32", batch=1, device="cpu", interpreter=nobody).name == "hf"
