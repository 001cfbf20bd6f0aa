"""A file of two kilobytes that decodes to a hundred gigabytes is refused before it is decoded, within 512 MB."""

import resource
from collections.abc import Iterator
from typing import Any

import pytest

from covey.errors import ProtocolError
from covey.protocol.submission_file.codec import decode, encode
from covey.protocol.submission_file.rows import Budget, Rollout
from covey.protocol.submission_file.sandbox_frames import pack_call, unpack_rows
from covey.protocol.verdict import Decision, Reason
from covey.sandbox import CallLimits, Sandbox
from tests.fakes.cpu_unit import measure_cpu_unit
from tests.fakes.tools import Work, Worker, build_claim, build_tools
from tests.fuzz.bombs import MAX_VALUES, add_note, build_bomb
from tests.fuzz.thrift import I32, I64, STRUCT
from validator import verdicts

pytestmark = pytest.mark.unit
ROW = Rollout(
    group=0, sibling=0, seed=1, prompt=(1, 2), tokens=(3,), logprobs=(-0.5,), proofs=(b"x",), finished=True, reward=1.0
)
BUDGET = Budget(file_bytes=1 << 20, rows=8, prompt_tokens=64, completion_tokens=8)
MEGABYTE = 1 << 20
KILOBYTE_PROOF = (1000).to_bytes(4, "little") + b"A" * 1000
SEVEN = (7).to_bytes(4, "little")
HUNDRED_GB = 100 * 10**9
BOMBS = {
    "proofs": {"column": "proofs", "value": KILOBYTE_PROOF, "count": 10**8},
    "tokens in pages": {"column": "tokens", "value": SEVEN, "count": MAX_VALUES, "pages": 12},
    "log-probabilities in pages": {"column": "logprobs", "value": SEVEN, "count": MAX_VALUES, "pages": 12},
}


@pytest.fixture
def decoder() -> Iterator[Sandbox]:
    with Sandbox(
        "covey.protocol.submission_file.codec:build_decoder", limits=CallLimits(memory_bytes=512 * MEGABYTE)
    ) as sandbox:
        sandbox.call(pack_call(encode([ROW]), BUDGET))  # the decoder has started
        yield sandbox


def test_build_bomb__small__decodes_to_what_it_says():
    """The bombs are well formed: with small numbers they are ordinary files."""
    proofs = build_bomb(ROW, "proofs", value=(4).to_bytes(4, "little") + b"abcd", count=3, claimed=3)
    assert decode(proofs, BUDGET)[0].proofs == (b"abcd",) * 3
    prompt = build_bomb(ROW, "prompt", value=SEVEN, count=2, claimed=6, pages=3)
    assert decode(prompt, BUDGET)[0].prompt == (7,) * 6


@pytest.mark.parametrize("lies", [False, True], ids=["honest footer", "lying footer"])
@pytest.mark.parametrize("name", BOMBS)
def test_decode__bomb_of_a_hundred_gigabytes__is_refused_at_once_within_512_mb(decoder: Sandbox, name: str, lies: bool):
    values = BOMBS[name]
    count = values["count"] * values.get("pages", 1)
    decoded = count * (1000 if name == "proofs" else 4)
    assert decoded > 0.99 * HUNDRED_GB
    bomb = build_bomb(ROW, claimed=1 if lies else count, **values)
    bomb = add_note(bomb, 2700 - len(bomb) - 20)
    assert 2600 < len(bomb) <= 2700
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = decoder.run(pack_call(bomb, BUDGET))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    lie = "lying" if lies else "honest"
    print(f"{name}, {lie}: {len(bomb)} bytes, {outcome.cpu_seconds:.3f} s, {outcome.peak_bytes >> 20} MiB")
    assert isinstance(outcome.error, ProtocolError)
    assert outcome.error.code == ("malformed" if lies else "oversized")
    assert outcome.cpu_seconds < 100 * measure_cpu_unit()
    assert outcome.peak_bytes < 512 * MEGABYTE
    assert grown < 16 * MEGABYTE
    assert unpack_rows(decoder.call(pack_call(encode([ROW]), BUDGET))) == [ROW]


@pytest.mark.parametrize(
    "disguise",
    [
        [[7, STRUCT, [[1, I32, 1], [2, I32, 0]]]],
        [[8, STRUCT, [[1, I32, 1], [2, I32, 0], [3, I32, 1], [4, I32, 0], [5, I32, 0], [6, I32, 0]]]],
        [[5, STRUCT, [[1, I64, 1]]]],
        [[5 + (1 << 16), STRUCT, [[1, I32, 1]]]],
    ],
    ids=["dictionary too", "second version too", "count of another type", "field beyond 16 bits"],
)
def test_decode__bomb_in_disguise__is_refused_before_it_is_decoded(decoder: Sandbox, disguise: list[Any]):
    """Headers with contradictory fields, one of which a checking reader sees and another of which the decoder uses."""
    bomb = build_bomb(ROW, "proofs", value=KILOBYTE_PROOF, count=10**8, claimed=1, disguise=disguise)
    outcome = decoder.run(pack_call(bomb, BUDGET))
    assert isinstance(outcome.error, ProtocolError)
    assert outcome.error.code == "malformed"
    assert outcome.peak_bytes < 128 * MEGABYTE


def test_decode__dictionary_within_the_counts__is_refused_by_its_size(decoder: Sandbox):
    """As many values as are permitted, each of a hundred kilobytes: 51 MB, although eight rows may have 16 kB."""
    value = (100_000).to_bytes(4, "little") + b"A" * 100_000
    bomb = build_bomb(ROW, "proofs", value=value, count=BUDGET.column_values, claimed=BUDGET.column_values)
    outcome = decoder.run(pack_call(bomb, BUDGET))
    assert isinstance(outcome.error, ProtocolError)
    assert outcome.error.code == "oversized"
    assert outcome.peak_bytes < 128 * MEGABYTE


def test_judge__bomb__is_soft_and_the_next_submission_is_judged(decoder: Sandbox, worker: Worker, honest: list[Work]):
    tools, work = build_tools(worker.params, worker.engine, decoder), honest[0]
    for claimed, reason in ((10**8, Reason.OVERSIZED), (1, Reason.MALFORMED)):
        bomb = work.with_file(
            build_bomb(work.rollouts[0], "proofs", value=KILOBYTE_PROOF, count=10**8, claimed=claimed)
        )
        judgement = verdicts.judge(build_claim(bomb, worker.sign(bomb)), tools, full=True)
        assert (judgement.decision, judgement.reason, judgement.units) == (Decision.REJECT, reason, 0)
        accepted = verdicts.judge(build_claim(work, worker.sign(work)), tools, full=True)
        assert accepted.decision is Decision.ACCEPT
