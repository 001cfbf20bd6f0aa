"""Cheats that alter the rows of honest work.  Each is bound to the reason that it must earn."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

from covey.environments.registry import DEMO, build_grading
from covey.model.text import decode_completion
from covey.protocol.rollout import Rollout
from covey.protocol.seeding import SlotDomain, compute_prompt_draw
from covey.protocol.verdict import Reason
from tests.fakes.pool import make_address
from tests.fakes.tools import MANIFEST, Work, Worker, grade_here, make_task

END = 1
"""The tiny model's end token."""


def find(worker: Worker, wanted: Callable[[Rollout], bool]) -> tuple[Work, int]:
    """Honest work with a row as it is wanted, and the index of that row."""
    for task in range(7, 300):
        work = worker.work(make_task(task=task))
        for i, row in enumerate(work.rollouts):
            if wanted(row):
                return work, i
    raise LookupError("no honest rollout is as it is wanted")


class Cheat:
    """Takes a worker that can work, returns what it hands in."""

    reason: ClassVar[Reason]

    def cheat(self, worker: Worker) -> Work:
        raise NotImplementedError


class OtherSeed(Cheat):
    """Claims another slot's noise: the seed stands in the file, so that the margins are all right."""

    reason = Reason.WRONG_SEED

    def cheat(self, worker: Worker) -> Work:
        return worker.work().with_each(lambda row: {"seed": row.seed ^ 1})


class OtherTask(Cheat):
    """Hands in rollouts of a task that it would rather have had: other prompts."""

    reason = Reason.WRONG_PROMPT

    def cheat(self, worker: Worker) -> Work:
        other = worker.work(make_task(task=8))
        honest = worker.work()
        return dataclasses.replace(other, receipt=dataclasses.replace(other.receipt, task=honest.receipt.task))


class OneTokenOfThePrompt(Cheat):
    """Makes one prompt a little easier."""

    reason = Reason.WRONG_PROMPT

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        prompt = work.rollouts[3].prompt
        return work.with_one(3, prompt=(*prompt[:-2], prompt[-2] ^ 1, prompt[-1]))


class CopiedFromAnotherNode(Cheat):
    """Hands in what another node made for the same task: other seeds, and other prompts with them."""

    reason = Reason.WRONG_PROMPT

    def cheat(self, worker: Worker) -> Work:
        return worker.work(node=make_address("victim"))


class SwappedLastToken(Cheat):
    """Replaces the end of a cut completion: no state after it is proven, so only the seeded choice shows it."""

    reason = Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        work, i = find(worker, lambda row: not row.finished)
        row = work.rollouts[i]
        return with_right_rewards(worker, work.with_one(i, tokens=(*row.tokens[:-1], row.tokens[-1] ^ 3)))


class SwappedFirstToken(Cheat):
    """Replaces the first token and keeps the proof of the honest states."""

    reason = Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        row = work.rollouts[0]
        return with_right_rewards(worker, work.with_one(0, tokens=(row.tokens[0] ^ 3, *row.tokens[1:])))


class FalseEnd(Cheat):
    """Writes the end token where the model went on, to look like a short answer."""

    reason = Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        work, i = find(worker, lambda row: not row.finished)
        row = work.rollouts[i]
        graded = work.with_one(i, tokens=(*row.tokens[:-1], END), finished=True)
        return with_right_rewards(worker, graded)


class Truncated(Cheat):
    """Stops before the end and before the limit."""

    reason = Reason.FALSE_TERMINATION

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        row = work.rollouts[0]
        kept = len(row.tokens) - 1
        return work.with_one(0, tokens=row.tokens[:kept], logprobs=row.logprobs[:kept], finished=False)


class SaysUnfinished(Cheat):
    """Ends with the end token and says that it did not."""

    reason = Reason.FALSE_TERMINATION

    def cheat(self, worker: Worker) -> Work:
        work, i = find(worker, lambda row: row.finished)
        return work.with_one(i, finished=False)


class Padded(Cheat):
    """Writes on after the end token: more units."""

    reason = Reason.FALSE_TERMINATION

    def cheat(self, worker: Worker) -> Work:
        work, i = find(worker, lambda row: row.finished and len(row.tokens) < worker.params.model.max_completion_tokens)
        row = work.rollouts[i]
        more = worker.params.model.max_completion_tokens - len(row.tokens)
        return work.with_one(i, tokens=row.tokens + (END,) * more, logprobs=row.logprobs + (-0.1,) * more)


class InventedReward(Cheat):
    """Claims every answer right."""

    reason = Reason.REWARD

    def cheat(self, worker: Worker) -> Work:
        return worker.work().with_each(lambda row: {"reward": 1.0})


class MovedLogprobs(Cheat):
    """Claims likelier tokens than they were: clipping would go its way."""

    reason = Reason.LOGPROB

    def cheat(self, worker: Worker) -> Work:
        return worker.work().with_each(lambda row: {"logprobs": tuple(p + 0.002 for p in row.logprobs)})


class SlightlyMovedLogprobs(Cheat):
    """Each below the limit of one token, all together beyond the limit of the mean."""

    reason = Reason.LOGPROB

    def cheat(self, worker: Worker) -> Work:
        return worker.work().with_each(lambda row: {"logprobs": tuple(p + 1e-4 for p in row.logprobs)})


class ReplayedProof(Cheat):
    """Proves one rollout and copies the proof into its siblings."""

    reason = Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        rows = work.rollouts
        i, j = next(
            (i, j)
            for i in range(len(rows))
            for j in range(i)
            if len(rows[i].proofs[0]) == len(rows[j].proofs[0]) and rows[i].tokens != rows[j].tokens
        )
        return work.with_one(i, proofs=rows[j].proofs)


class PermutedSiblings(Cheat):
    """Exchanges the completions of two siblings: each was made with the other's noise."""

    reason = Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        rows = list(work.rollouts)
        i, j = next(
            (i, j) for i in range(4) for j in range(i) if rows[i].tokens != rows[j].tokens
        )  # siblings of group 0
        place = ("group", "sibling", "seed")
        rows[i], rows[j] = (
            dataclasses.replace(rows[j], **{name: getattr(rows[i], name) for name in place}),
            dataclasses.replace(rows[i], **{name: getattr(rows[j], name) for name in place}),
        )
        return work.with_rollouts(rows)


class MissingRow(Cheat):
    """Leaves a rollout out, and asks for the units of the rest."""

    reason = Reason.MISSING

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        return work.with_rollouts(work.rollouts[:-1])


class DuplicateRow(Cheat):
    """Hands one rollout in twice, in the place of another."""

    reason = Reason.DUPLICATE

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        return work.with_rollouts([*work.rollouts[:-1], work.rollouts[0]])


class WrongUnits(Cheat):
    """Signs for one token more than it made."""

    reason = Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        return work.with_file(work.file, units=work.receipt.units + 1)


class ProofOfNothing(Cheat):
    """Bytes of the right length that are no proof: the modulus is 0."""

    reason = Reason.MALFORMED
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
    reason = Reason.OVERSIZED
    proof = b"\x00" * 259


class NoProof(Cheat):
    reason = Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        return worker.work().with_one(1, proofs=())


class TokenBeyondTheVocabulary(Cheat):
    reason = Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        row = work.rollouts[0]
        return work.with_one(0, tokens=(259, *row.tokens[1:]))


def with_right_rewards(worker: Worker, work: Work) -> Work:
    """The rewards that a validator will compute, so that they are not what gives the cheat away."""
    receipt = work.receipt
    domain = SlotDomain(
        beacon=MANIFEST, pool=receipt.pool, policy_version=receipt.policy_version, node=receipt.node, task=receipt.task
    )
    tokenizer = worker.engine.tokenizer
    items = [
        (
            compute_prompt_draw(domain, row.group),
            decode_completion(tokenizer, row.tokens),
            row.finished,
            len(row.tokens),
        )
        for row in work.rollouts
    ]
    rewards = grade_here(build_grading(DEMO, items))
    rows = [dataclasses.replace(row, reward=reward) for row, reward in zip(work.rollouts, rewards, strict=True)]
    return work.with_rollouts(rows)


CONTENT: tuple[type[Cheat], ...] = (
    OtherSeed, OtherTask, OneTokenOfThePrompt, CopiedFromAnotherNode, SwappedLastToken, SwappedFirstToken, FalseEnd,
    Truncated, SaysUnfinished, Padded, InventedReward, MovedLogprobs, SlightlyMovedLogprobs, ReplayedProof,
    PermutedSiblings, MissingRow, DuplicateRow, WrongUnits, ProofOfNothing,
    ProofOutsideTheField, ProofCutShort, EmptyProof, OversizedProof, NoProof, TokenBeyondTheVocabulary,
)  # fmt: skip
