"""Rows 7, 13 and 14: completions that are shorter, longer or different from what the seeded choice wrote."""

import numpy as np

from benchmarks.verification.cheating_engines import FalseText
from covey.protocol.submission_file.rows import Rollout
from covey.protocol.verdict import Reason
from tests.cheats.base import END, FIRST_TEXT, Cheat, choose_other, find, rewrite, with_right_rewards
from tests.fakes.tools import Work, Worker

# -- 7: early stop, truncation, padding


class Truncated(Cheat):
    """Stops before the end and before the limit."""

    row, reason = 7, Reason.FALSE_TERMINATION

    def cheat(self, worker: Worker) -> Work:
        work, i = find(worker, lambda row: len(row.tokens) > 1)
        row = work.rollouts[i]
        kept = worker.rng.randrange(1, len(row.tokens))
        return work.with_one(i, tokens=row.tokens[:kept], logprobs=row.logprobs[:kept], finished=False)


class SaysUnfinished(Cheat):
    """Ends with the end token and claims that it did not."""

    row, reason = 7, Reason.FALSE_TERMINATION

    def cheat(self, worker: Worker) -> Work:
        work, i = find(worker, lambda row: row.finished)
        return work.with_one(i, finished=False)


class FalseEnd(Cheat):
    """Writes the end token where the length limit cut, to look like a short answer. The proof stays valid."""

    row, reason = 7, Reason.FALSE_TERMINATION

    def cheat(self, worker: Worker) -> Work:
        work, i = find(worker, lambda row: not row.finished)
        row = work.rollouts[i]
        return with_right_rewards(worker, work.with_one(i, tokens=(*row.tokens[:-1], END), finished=True))


class FalseEndProven(Cheat):
    """Ends anywhere, and lets the true policy prove it."""

    row, reason = 7, Reason.FALSE_TERMINATION

    def cheat(self, worker: Worker) -> Work:
        work, i = find(worker, lambda row: len(row.tokens) > 1)
        tokens = work.rollouts[i].tokens
        return rewrite(worker, work, i, (*tokens[: worker.rng.randrange(len(tokens) - 1)], END))


class Padded(Cheat):
    """Continues after the end token, for more units."""

    row, reason = 7, Reason.FALSE_TERMINATION

    def cheat(self, worker: Worker) -> Work:
        limit = worker.params.model.max_completion_tokens
        work, i = find(worker, lambda row: row.finished and len(row.tokens) < limit)
        row = work.rollouts[i]
        more = worker.rng.randint(1, limit - len(row.tokens))
        return work.with_one(i, tokens=row.tokens + (END,) * more, logprobs=row.logprobs + (-0.1,) * more)


class WritesOn(Cheat):
    """Leaves out the end token and writes to the limit, proven by the true policy, for more units."""

    row, reason = 7, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        limit = worker.params.model.max_completion_tokens
        work, i = find(worker, lambda row: row.finished and len(row.tokens) < limit)
        kept = work.rollouts[i].tokens[:-1]
        return rewrite(worker, work, i, (*kept, *(choose_other(worker, END) for _ in range(limit - len(kept)))))


# -- 13: poisoned text that looks valid


class SwappedLastToken(Cheat):
    """Replaces the end of a cut completion. No state after it is proven, so only the seeded choice shows it."""

    row, reason = 13, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        work, i = find(worker, lambda row: not row.finished)
        *kept, last = work.rollouts[i].tokens
        return with_right_rewards(worker, work.with_one(i, tokens=(*kept, choose_other(worker, last))))


class SwappedFirstToken(Cheat):
    """Replaces the first token and keeps the proof of the honest states."""

    row, reason = 13, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        work, i = find(worker, lambda row: len(row.tokens) > 2)
        first, *rest = work.rollouts[i].tokens
        return with_right_rewards(worker, work.with_one(i, tokens=(choose_other(worker, first), *rest)))


class EditedProven(Cheat):
    """Replaces a token anywhere. The true policy proves the completion, so only the seeded choice shows it."""

    row, reason = 13, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        work, i = find(worker, lambda row: row.tokens[0] != END)
        tokens = list(work.rollouts[i].tokens)
        position = worker.rng.randrange(len(tokens) - tokens.count(END))
        tokens[position] = choose_other(worker, tokens[position])
        return rewrite(worker, work, i, tokens)


class FalseTextInOneRow(Cheat):
    """Submits text of its own choice in one of 16 completions, proven by the true policy."""

    row, reason = 13, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        return worker.using(FalseText(worker.engine, every=16)).work()


class FalseTextInHalf(Cheat):
    """Submits text of its own choice in every second completion, proven by the true policy."""

    row, reason = 13, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        return worker.using(FalseText(worker.engine, every=2)).work()


class InsertedAnswer(Cheat):
    """Submits the right answer in every row, with true proofs and rewards: text that nobody would call poison."""

    row, reason = 13, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        def is_wrong_at_once(row: Rollout) -> bool:
            return row.tokens[0] not in (END, self.answer(worker, row)[0])

        work, i = find(worker, is_wrong_at_once)
        return rewrite(worker, work, i, self.answer(worker, work.rollouts[i]))

    def answer(self, worker: Worker, row: Rollout) -> list[int]:
        """Return the prompt's last word, backward, cut at the limit."""
        limit = worker.params.model.max_completion_tokens
        tokenizer = worker.engine.tokenizer
        prompt = tokenizer.decode(np.array(row.prompt, np.int64), skip_special_tokens=True)
        assert isinstance(prompt, str)
        word = prompt.strip().rsplit(" ", 1)[-1]
        return [*tokenizer.encode(word[::-1], add_special_tokens=False), END][:limit]


# -- 14: reward hacking


class StuffedAnswer(Cheat):
    """Writes every letter and claims that the grader rewards it."""

    row, reason = 14, Reason.REWARD

    def cheat(self, worker: Worker) -> Work:
        work, i = find(worker, lambda row: row.reward == 0)
        *kept, last = work.rollouts[i].tokens
        stuffing = worker.rng.sample(range(FIRST_TEXT, worker.engine.vocabulary_size), len(kept))
        return work.with_one(i, tokens=(*stuffing, last), reward=1.0)


CONTENT: tuple[type[Cheat], ...] = (
    Truncated, SaysUnfinished, FalseEnd, FalseEndProven, Padded, WritesOn, SwappedLastToken, SwappedFirstToken,
    EditedProven, FalseTextInOneRow, FalseTextInHalf, InsertedAnswer, StuffedAnswer,
)  # fmt: skip
