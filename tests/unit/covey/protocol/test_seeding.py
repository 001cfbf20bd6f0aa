import random
from collections import Counter
from itertools import pairwise, product

import pytest
from eth_utils.crypto import keccak

from covey.protocol.seeding import (
    SlotDomain,
    compute_prompt_draw,
    compute_sampling_seed,
    compute_trial_seed,
    draw_rows,
    is_audited,
)

pytestmark = pytest.mark.unit

ALICE, BOB = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266", "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
BEACON = "0x" + "ab" * 32


def make(**changes):
    return SlotDomain(**({"beacon": BEACON, "pool": 1, "policy_version": 3, "node": ALICE, "task": 7} | changes))


def pack(*words):
    """Encode static values as abi.encode does: a 32-byte word each, with numbers and addresses aligned to the right."""
    return b"".join(
        bytes.fromhex(w[2:]).rjust(32, b"\0") if isinstance(w, str) else w.to_bytes(32, "big") for w in words
    )


@pytest.mark.parametrize(("group", "sibling"), [(0, 0), (1, 2), (2**32 - 1, 1023)])
def test_sampling_seed__by_hand__first_63_bits_of_keccak_over_words(group, sibling):
    digest = keccak(pack(BEACON, 1, 3, ALICE, 7, group, sibling))
    assert compute_sampling_seed(make(), group, sibling) == int.from_bytes(digest, "big") >> (256 - 63)


def test_prompt_draw__by_hand__same_hash_without_the_sibling():
    digest = keccak(pack(BEACON, 1, 3, ALICE, 7, 5))
    assert compute_prompt_draw(make(), 5) == int.from_bytes(digest, "big") >> (256 - 63)


def test_seeds__every_input_altered__all_distinct_and_of_63_bits():
    domains = [
        make(beacon=beacon, pool=pool, policy_version=version, node=node, task=task)
        for beacon, pool, version, node, task in product(
            (BEACON, "0x" + "ac" * 32), (1, 2), (0, 1), (ALICE, BOB), (1, 2)
        )
    ]
    seeds = [compute_sampling_seed(d, g, s) for d in domains for g in range(3) for s in range(4)]
    draws = [compute_prompt_draw(d, g) for d in domains for g in range(3)]
    assert len({*seeds, *draws}) == 32 * 3 * 4 + 32 * 3
    assert all(0 <= seed < 2**63 for seed in seeds + draws)


def test_sampling_seed__swapped_numbers__differ():
    assert compute_sampling_seed(make(), 1, 2) != compute_sampling_seed(make(), 2, 1)
    assert compute_sampling_seed(make(pool=7, task=1), 0, 0) != compute_sampling_seed(make(pool=1, task=7), 0, 0)


def test_is_audited__by_hand__first_eight_bytes_below_the_rate():
    receipt, block = "0x" + "11" * 32, "0x" + "22" * 32
    draw = int.from_bytes(keccak(bytes.fromhex("11" * 32 + "22" * 32))[:8], "big") / 2**64
    assert is_audited(receipt, block, draw + 1e-9)
    assert not is_audited(receipt, block, draw - 1e-9)


def test_is_audited__bounds__never_at_0_always_at_1():
    rng = random.Random(1)
    hashes = ["0x" + rng.randbytes(32).hex() for _ in range(200)]
    assert not any(is_audited(h, BEACON, 0.0) for h in hashes)
    assert all(is_audited(h, BEACON, 1.0) for h in hashes)


def test_is_audited__6000_receipts__uniform():
    """At rate 0.1 of 6,000, the mean is 600 and the standard deviation 23. Five deviations never happen.

    Each tenth of the draws has the same share.
    """
    rng = random.Random(2)
    hashes = ["0x" + rng.randbytes(32).hex() for _ in range(6000)]
    counts = [sum(is_audited(h, BEACON, rate / 10) for h in hashes) for rate in range(11)]
    tenths = [after - before for before, after in pairwise(counts)]
    assert all(abs(tenth - 600) < 5 * 23.3 for tenth in tenths)
    assert sum(tenths) == 6000


def test_is_audited__another_block__is_another_draw():
    """Neither side knows the block when it signs. At rate 0.5, another block changes half of the draws."""
    rng = random.Random(3)
    hashes = ["0x" + rng.randbytes(32).hex() for _ in range(1000)]
    changed = sum(is_audited(h, BEACON, 0.5) != is_audited(h, "0x" + "cd" * 32, 0.5) for h in hashes)
    assert 420 < changed < 580


def test_draw_rows__by_hand__lowest_hashes_first():
    receipt, block = "0x" + "11" * 32, "0x" + "22" * 32
    shared = b"covey-rows-1" + bytes.fromhex("11" * 32 + "22" * 32)
    ranks = {row: keccak(shared + row.to_bytes(32, "big")).hex() for row in range(16)}
    expected = tuple(sorted(ranks, key=ranks.get))
    assert draw_rows(receipt, block, count=3, rows=16) == expected[:3]
    assert draw_rows(receipt, block, count=99, rows=16) == expected
    assert draw_rows(receipt, block, count=0, rows=16) == ()


def test_draw_rows__2000_receipts__uniform_without_replacement_and_repeatable():
    """3 of 8 rows: each row is drawn 750 times on average and comes first 250 times. Five deviations never happen."""
    rng = random.Random(4)
    hashes = ["0x" + rng.randbytes(32).hex() for _ in range(2000)]
    draws = [draw_rows(h, BEACON, count=3, rows=8) for h in hashes]
    assert all(len(set(drawn)) == 3 for drawn in draws)
    drawn, first = Counter(row for rows in draws for row in rows), Counter(rows[0] for rows in draws)
    assert all(abs(drawn[row] - 750) < 5 * 21.7 for row in range(8))
    assert all(abs(first[row] - 250) < 5 * 14.8 for row in range(8))
    assert draws[:50] == [draw_rows(h, BEACON, count=3, rows=8) for h in hashes[:50]]
    assert draws[:50] != [draw_rows(h, "0x" + "cd" * 32, count=3, rows=8) for h in hashes[:50]]


def test_compute_trial_seed__every_argument__changes_it():
    seeds = {
        compute_trial_seed(purpose, seed, i, j)
        for purpose in ("evaluation", "filter")
        for seed in (0, 1, 11)
        for i in range(50)
        for j in (0, 1, 2, 11)
    }
    assert len(seeds) == 1200
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    # The first 8 bytes of sha256("covey.evaluation/0/0/0"), halved.
    assert compute_trial_seed("evaluation", 0, 0, 0) == 6966992129750184359
