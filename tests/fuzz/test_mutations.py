"""Ten thousand mutated proofs, files and receipts never crash this process, and nothing dishonest is accepted.

A fiftieth of them run by default; COVEY_FULL=1 runs all.
"""

import dataclasses
import random
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from covey.errors import ProtocolError
from covey.protocol import eip712
from covey.protocol.api.common import ReceiptBody
from covey.protocol.api.worker import SubmissionRequest
from covey.protocol.messages import Receipt
from covey.protocol.verdict import Decision
from covey.sandbox import Sandbox
from covey.toploc.finite_field import PRIME
from tests.fakes.tools import DOMAIN, Work, Worker, build_claim
from tests.fuzz.mutations import EDGES, mutate, mutate_parquet
from tests.fuzz.same import require_same
from validator import verdicts
from validator.checks import CheckTools

pytestmark = [pytest.mark.unit, pytest.mark.slow]


def judge(work: Work, honest: Work, signature: str, tools: CheckTools) -> str:
    """Return one word for the outcome. Accepted work must equal the honest work."""
    claim = build_claim(work, signature)
    judgement = verdicts.judge(claim, tools, full=True)
    assert judgement.decision is not Decision.UNKNOWN, judgement.details  # input never breaks the machine
    if judgement.decision is Decision.ACCEPT:
        assert judgement.units <= honest.receipt.units
        require_same(claim, honest, tools)
        return "ACCEPT"
    assert judgement.units == 0
    return judgement.reason.name


# -- proofs


def mutate_proof(proof: bytes, other: bytes, rng: random.Random) -> bytes:
    """Mutate the bytes, or replace a number of the proof with a different one in the range of its field."""
    if rng.random() < 0.5:
        return mutate(proof, other, rng)
    words = [int.from_bytes(proof[i : i + 2], "big") for i in range(0, len(proof), 2)]
    i = rng.randrange(len(words)) if rng.random() < 0.8 else 0
    words[i] = rng.choice((words[i] + 1, words[i] - 1, 0, 1, PRIME - 1, PRIME, PRIME + 1, rng.randrange(PRIME))) % 65536
    return b"".join(word.to_bytes(2, "big") for word in words)


def test_proofs__mutated__none_is_accepted(worker: Worker, tools: CheckTools, honest: list[Work], count: int):
    rng, found = random.Random(1), Counter[str]()
    for _ in range(count):
        work = rng.choice(honest)
        i = rng.randrange(len(work.rollouts))
        other = rng.choice(rng.choice(honest).rollouts).proofs[0]
        proofs = [mutate_proof(work.rollouts[i].proofs[0], other, rng)]
        if rng.random() < 0.05:
            proofs = proofs * rng.choice((0, 2, 3))
        changed = work.with_one(i, proofs=tuple(proofs))
        word = judge(changed, work, worker.sign(changed), tools)
        assert (word == "ACCEPT") == (changed.rollouts == work.rollouts)
        found[word] += 1
    print(dict(found))
    assert sum(found.values()) == count
    assert found["PROOF"] > count / 4  # many are well formed with different content
    assert found["MALFORMED"] > count / 8


# -- files


def test_files__mutated__none_is_accepted_that_says_something_else(
    worker: Worker, tools: CheckTools, decoder: Sandbox, honest: list[Work], count: int
):
    rng, found = random.Random(2), Counter[str]()
    for _ in range(count):
        work = rng.choice(honest)
        file = mutate_parquet(work.file, [each.file for each in honest], rng)
        changed = work.with_file(file)
        word = judge(changed, work, worker.sign(changed), tools)
        found[word if file != work.file else f"UNCHANGED {word}"] += 1
    print(dict(found), dict(decoder.counts))
    assert sum(found.values()) == count
    assert found["MALFORMED"] > count / 4
    assert judge(honest[0], honest[0], worker.sign(honest[0]), tools) == "ACCEPT"  # the tools still work


# -- receipts


def mutate_field(receipt: Receipt, rng: random.Random) -> Receipt:
    """Replace one field with a different value of any JSON type."""
    name = rng.choice(list(receipt.TYPES))
    value: Any = getattr(receipt, name)
    if isinstance(value, int) and rng.random() < 0.8:
        value = rng.choice((rng.choice(EDGES), value + 1, value - 1, -value, value << 64, value + 2**256))
    elif isinstance(value, str) and rng.random() < 0.8:
        i = rng.randrange(len(value))
        value = rng.choice(
            (value[:i] + rng.choice("0123456789abcdefABCDEFxg ") + value[i + 1 :], value.lower(), value[:i])
        )
    else:
        value = rng.choice((None, True, 1.5, float("nan"), "", "1", [], {}, [value], str(value), "\ud800"))
    return dataclasses.replace(receipt, **{name: value})


def is_taken(receipt: Receipt, signature: str) -> bool:
    """Return whether the coordinator's intake and the validator accept the receipt."""
    try:
        eip712.require_signer(receipt, DOMAIN, signature, receipt.node)
    except ProtocolError:
        return False
    return True


def test_receipts__mutated_bytes__are_refused_or_the_honest_one(worker: Worker, honest: list[Work], count: int):
    rng, found = random.Random(3), Counter[str]()
    requests = []
    for work in honest:
        signed = SubmissionRequest(receipt=ReceiptBody.of(work.receipt), signature=worker.sign(work))
        requests.append((work, signed, signed.model_dump_json().encode()))
    for _ in range(count):
        work, signed, data = rng.choice(requests)
        changed = mutate(data, rng.choice(requests)[2], rng)
        try:
            request = SubmissionRequest.model_validate_json(changed)
        except ValidationError:
            found["no request"] += 1
            continue
        if not is_taken(request.receipt.to_message(), request.signature):
            found["not signed"] += 1
            continue
        assert any(request == each for _, each, _ in requests)  # this receipt, or the one that it was spliced with
        found["honest"] += 1
    print(dict(found))
    assert found["no request"] > count / 2
    assert found["not signed"] > count / 50


def test_receipts__mutated_fields__are_never_accepted(
    worker: Worker, tools: CheckTools, honest: list[Work], count: int
):
    rng, found = random.Random(4), Counter[str]()
    signatures = [worker.sign(work) for work in honest]
    for _ in range(count):
        i = rng.randrange(len(honest))
        work, signature = honest[i], signatures[i]
        receipt = mutate_field(work.receipt, rng)
        if rng.random() < 0.2:
            signature = "0x" + mutate(bytes.fromhex(signature[2:]), b"\x00" * 65, rng).hex()
        changed = dataclasses.replace(work, receipt=receipt)
        word = judge(changed, work, signature, tools)
        is_honest = repr(receipt) == repr(work.receipt) and signature == signatures[i]
        assert is_honest or word != "ACCEPT", receipt
        found[word] += 1
    print(dict(found))
    assert found["MALFORMED"] > count / 2
