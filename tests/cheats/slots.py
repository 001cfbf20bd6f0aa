"""Rows 5, 6, 9 and 10: honest completions in the wrong slot, with other seeds or prompts, or of another node."""

import dataclasses

from covey.protocol.submission_file.rows import Rollout
from covey.protocol.verdict import Reason
from tests.cheats.base import Cheat, is_slip, pick, with_right_rewards
from tests.fakes.pool import make_address
from tests.fakes.tools import Work, Worker

PLACE = ("group", "sibling", "seed")


class OtherSeed(Cheat):
    """Claims another slot's noise. Its seed is in the file, so all margins are right."""

    row, reason = 5, Reason.WRONG_SEED

    def cheat(self, worker: Worker) -> Work:
        return worker.work().with_each(lambda row: {"seed": row.seed ^ 1})


class OtherTask(Cheat):
    """Submits rollouts of a task that it prefers, with other prompts."""

    row, reason = 6, Reason.WRONG_PROMPT

    def cheat(self, worker: Worker) -> Work:
        other = worker.work(worker.change_task(task=worker.task.task + 1))
        return worker.hand_in(other.rollouts)


class OneTokenOfThePrompt(Cheat):
    """Makes one prompt a little easier."""

    row, reason = 6, Reason.WRONG_PROMPT

    def cheat(self, worker: Worker) -> Work:
        work, i = pick(worker)
        prompt = work.rollouts[i].prompt
        return work.with_one(i, prompt=(*prompt[:-2], prompt[-2] ^ 1, prompt[-1]))


class OwnOldWork(Cheat):
    """Submits the work of an earlier lease again, under the receipt of this one."""

    row, reason = 9, Reason.WRONG_PROMPT

    def cheat(self, worker: Worker) -> Work:
        old = worker.work(worker.change_task(task=worker.task.task + worker.rng.randrange(1, 300)))
        return worker.hand_in(old.rollouts)


class OldProofs(Cheat):
    """Generates this lease's rollouts with the proofs of an earlier lease, so that it need not keep hidden states."""

    row, reason = 9, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        work, i = pick(worker)
        wanted, length = work.rollouts[i], len(work.rollouts[i].proofs[0])
        for number in range(1, 40):
            old = worker.work(worker.change_task(task=worker.task.task + number))
            same = [r for r in old.rollouts if len(r.proofs[0]) == length and r.prompt != wanted.prompt]
            if same:
                return work.with_one(i, proofs=worker.rng.choice(same).proofs)
        raise LookupError("no earlier proof has this length")


class ReplayedProof(Cheat):
    """Proves one rollout and copies the proof into one of another group."""

    row, reason = 9, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        for task in worker.list_tasks():
            work = worker.work(task)
            pairs = [
                (i, other)
                for i, row in enumerate(work.rollouts)
                for other in work.rollouts
                if other.prompt != row.prompt and len(other.proofs[0]) == len(row.proofs[0])
            ]
            if pairs:
                i, other = worker.rng.choice(pairs)
                return work.with_one(i, proofs=other.proofs)
        raise LookupError("all groups have one prompt")


class PermutedSiblings(Cheat):
    """Swaps the completions of two siblings, so each was sampled with the other's noise."""

    row, reason = 9, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        for task in worker.list_tasks():
            work = worker.work(task)
            rows = work.rollouts
            pairs = [
                (i, j)
                for i in range(len(rows))
                for j in range(i + 1, len(rows))
                if rows[i].group == rows[j].group and is_slip(rows[i].tokens, rows[j].tokens)
            ]
            if pairs:
                i, j = worker.rng.choice(pairs)
                changed = list(rows)
                changed[i], changed[j] = put(rows[j], rows[i]), put(rows[i], rows[j])
                return work.with_rollouts(changed)
        raise LookupError("all siblings agree")


class PermutedGroups(Cheat):
    """Submits the groups under each other's numbers, including their prompts."""

    row, reason = 9, Reason.WRONG_PROMPT

    def cheat(self, worker: Worker) -> Work:
        last = worker.task.groups - 1
        for task in worker.list_tasks():
            work = worker.work(task)
            if work.rollouts[0].prompt != work.rollouts[-1].prompt:
                return work.with_each(lambda row: {"group": last - row.group})
        raise LookupError("all groups have one prompt")


class CopiedFromAnotherNode(Cheat):
    """Submits what another node generated for the same task, with other seeds and therefore other prompts."""

    row, reason = 10, Reason.WRONG_PROMPT

    def cheat(self, worker: Worker) -> Work:
        return worker.work(node=make_address("victim"))


class CopiedIntoOwnSlots(Cheat):
    """Puts another node's completions and proofs under its own prompts and seeds, with matching rewards."""

    row, reason = 10, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        own, theirs = worker.work(), worker.work(node=make_address("victim"))
        pairs = zip(theirs.rollouts, own.rollouts, strict=True)
        rows = [dataclasses.replace(put(a, b), prompt=b.prompt) for a, b in pairs]
        return with_right_rewards(worker, own.with_rollouts(rows))


def put(row: Rollout, where: Rollout) -> Rollout:
    """Return a row in the slot of another one."""
    return dataclasses.replace(row, **{name: getattr(where, name) for name in PLACE})


SLOTS: tuple[type[Cheat], ...] = (
    OtherSeed, OtherTask, OneTokenOfThePrompt, OwnOldWork, OldProofs, ReplayedProof, PermutedSiblings, PermutedGroups,
    CopiedFromAnotherNode, CopiedIntoOwnSlots,
)  # fmt: skip
