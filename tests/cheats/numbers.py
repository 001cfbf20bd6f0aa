"""Rows 8, 12, 19 and 39: invented rewards, log-probabilities, rows, units and proofs around honest completions."""

from typing import ClassVar

from covey.protocol.verdict import Reason
from tests.cheats.base import Cheat, find, pick
from tests.fakes.tools import Work, Worker

# -- 8: invented reward


class InventedReward(Cheat):
    """Claims that every answer is right."""

    row, reason = 8, Reason.REWARD

    def cheat(self, worker: Worker) -> Work:
        work, _ = find(worker, lambda row: row.reward != 1)
        return work.with_each(lambda row: {"reward": 1.0})


class InventedAmount(Cheat):
    """Claims another reward for one answer, slightly or much higher or lower."""

    row, reason = 8, Reason.REWARD

    def cheat(self, worker: Worker) -> Work:
        work, i = pick(worker)
        amount = worker.rng.choice((1, -1)) * 10 ** worker.rng.uniform(-8, 300)
        return work.with_one(i, reward=work.rollouts[i].reward + amount)


class MovedLogprobs(Cheat):
    """Claims higher log-probabilities than the true ones, so that clipping would favour it."""

    row, reason = 39, Reason.LOGPROB

    def cheat(self, worker: Worker) -> Work:
        return worker.work().with_each(lambda row: {"logprobs": tuple(p + 0.002 for p in row.logprobs)})


class SlightlyMovedLogprobs(Cheat):
    """Moves each log-probability by less than the limit for one token, and all by more than the limit for the mean."""

    row, reason = 39, Reason.LOGPROB

    def cheat(self, worker: Worker) -> Work:
        return worker.work().with_each(lambda row: {"logprobs": tuple(p + 1e-4 for p in row.logprobs)})


# -- 12: inflated counts


class MissingRow(Cheat):
    """Leaves out a rollout, and claims the units of the rest."""

    row, reason = 12, Reason.MISSING

    def cheat(self, worker: Worker) -> Work:
        work, i = pick(worker)
        return work.with_rollouts([row for j, row in enumerate(work.rollouts) if j != i])


class DuplicateRow(Cheat):
    """Submits one rollout twice, in place of another."""

    row, reason = 12, Reason.DUPLICATE

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        kept, lost = worker.rng.sample(range(len(work.rollouts)), 2)
        rows = list(work.rollouts)
        rows[lost] = rows[kept]
        return work.with_rollouts(rows)


class RowOfAnotherGroup(Cheat):
    """Gives a rollout a number beyond the task's groups or siblings."""

    row, reason = 12, Reason.MISSING

    def cheat(self, worker: Worker) -> Work:
        work, i = pick(worker)
        return work.with_one(i, **{worker.rng.choice(("group", "sibling")): worker.rng.randint(50, (1 << 31) - 1)})


class WrongUnits(Cheat):
    """Signs for more or fewer tokens than it generated."""

    row, reason = 12, Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        more = worker.rng.choice((1, -1, worker.rng.randint(2, 1 << 40)))
        return work.with_file(work.file, units=work.receipt.units + more)


# -- 19: invalid proofs and tokens


class ProofOfNothing(Cheat):
    """Submits bytes of the right length that are not a proof, because the modulus is 0."""

    row, reason = 19, Reason.MALFORMED
    proof: ClassVar[bytes] = b"\x00" * 258

    def cheat(self, worker: Worker) -> Work:
        return worker.work().with_one(1, proofs=(self.proof,))


class ProofOutsideTheField(ProofOfNothing):
    proof = b"\xff" * 258


class ProofCutShort(ProofOfNothing):
    proof = b"\xff\xd9" + b"\x00" * 255


class EmptyProof(ProofOfNothing):
    proof = b""


class OversizedProof(ProofOfNothing):
    row, reason = 18, Reason.OVERSIZED
    proof = b"\x00" * 259


class OtherModulus(Cheat):
    """Encodes an honest proof under another modulus, which for a small window means the same in other bytes."""

    row, reason = 19, Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        work, i = pick(worker)
        (proof,) = work.rollouts[i].proofs
        modulus = worker.rng.randrange(65_000, 65_497)
        return work.with_one(i, proofs=(modulus.to_bytes(2, "big") + proof[2:],))


class NoProof(Cheat):
    row, reason = 19, Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        return worker.work().with_one(1, proofs=())


class TokenBeyondTheVocabulary(Cheat):
    row, reason = 19, Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        work, i = pick(worker)
        row = work.rollouts[i]
        return work.with_one(i, tokens=(worker.rng.randint(259, (1 << 31) - 1), *row.tokens[1:]))


NUMBERS: tuple[type[Cheat], ...] = (
    InventedReward, InventedAmount, MovedLogprobs, SlightlyMovedLogprobs, MissingRow, DuplicateRow, RowOfAnotherGroup,
    WrongUnits, ProofOfNothing, ProofOutsideTheField, ProofCutShort, EmptyProof, OversizedProof,
    OtherModulus, NoProof, TokenBeyondTheVocabulary,
)  # fmt: skip
