"""Shared parts of all cheats: the class, the search for suitable rows, and what a cheat with the true model can forge.

A cheat takes a worker and returns a submission, so it runs in tests of the checks and in a real network.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

from covey.engines.base import ReplayRequest
from covey.environments.registry import DEMO, load
from covey.model.text import decode_completion
from covey.protocol.seeding import SlotDomain, compute_prompt_draw
from covey.protocol.submission_file.rows import Rollout
from covey.protocol.verdict import Reason
from covey.toploc.proofs import build_many
from covey.toploc.topk import build_capture
from tests.fakes.grading import grade_with
from tests.fakes.tools import Work, Worker

END = 1
"""The tiny model's end token."""
FIRST_TEXT = 3
"""First token of the tiny model that is text."""


class Cheat:
    """A dishonest worker: takes an honest one and returns a submission."""

    row: ClassVar[int]
    """Row of docs/threats.md. Rows 1 to 16 are dishonest work."""
    reason: ClassVar[Reason]
    """Reason for which it must be rejected."""

    def cheat(self, worker: Worker) -> Work:
        raise NotImplementedError


class Elsewhere:
    """A threat that is not answered by a judgement. `shown_by` names the tests that show it, as path::function."""

    row: ClassVar[int]
    shown_by: ClassVar[tuple[str, ...]]


def find(worker: Worker, wanted: Callable[[Rollout], bool]) -> tuple[Work, int]:
    """Return honest work that has rows as `wanted`, and the index of one of them, chosen by the worker's `rng`."""
    for task in worker.list_tasks():
        work = worker.work(task)
        rows = [i for i, row in enumerate(work.rollouts) if wanted(row)]
        if rows:
            return work, worker.rng.choice(rows)
    raise LookupError("no honest rollout is as wanted")


def pick(worker: Worker) -> tuple[Work, int]:
    """Return honest work and the index of any of its rows."""
    return find(worker, lambda row: True)


def choose_other(worker: Worker, token: int) -> int:
    """Return a text token other than this one."""
    return worker.rng.choice([t for t in range(FIRST_TEXT, worker.engine.vocabulary_size) if t != token])


def is_slip(honest: Sequence[int], forged: Sequence[int]) -> bool:
    """Return whether the first token that differs from the seeded choice is text. A false end has its own reason."""
    differing = [b for a, b in zip(honest, forged, strict=False) if a != b]
    return bool(differing) and differing[0] != END


def prove(worker: Worker, row: Rollout) -> Rollout:
    """Return the row with proofs and log-probabilities of the true policy: everything that a replay can give."""
    claim = ReplayRequest(prompt=row.prompt, tokens=row.tokens, seed=row.seed)
    capture = build_capture(worker.params.verification)
    (replay,) = worker.engine.replay([claim], temperature=worker.params.model.temperature, capture=capture)
    (sent,) = build_many([replay.tops])
    return dataclasses.replace(row, proofs=tuple(sent), logprobs=tuple(replay.logprobs.tolist()))


def rewrite(worker: Worker, work: Work, i: int, tokens: Sequence[int]) -> Work:
    """Return the work with another completion in row i, which only the seeded choice gives away."""
    row = dataclasses.replace(work.rollouts[i], tokens=tuple(tokens), finished=tokens[-1] == END)
    rows = list(work.rollouts)
    rows[i] = prove(worker, row)
    return with_right_rewards(worker, work.with_rollouts(rows))


def with_right_rewards(worker: Worker, work: Work) -> Work:
    """Return the work with the rewards that a validator will compute, so that they do not give the cheat away."""
    receipt, tokenizer = work.receipt, worker.engine.tokenizer
    domain = SlotDomain(
        beacon=worker.task.record_hash,
        pool=receipt.pool,
        policy_version=receipt.policy_version,
        node=receipt.node,
        task=receipt.task,
    )
    environment = load(DEMO)
    replies = [
        environment.prompt(compute_prompt_draw(domain, row.group)).build_reply(
            decode_completion(tokenizer, row.tokens, worker.engine.end_tokens),
            finished=row.finished,
            tokens=len(row.tokens),
        )
        for row in work.rollouts
    ]
    grades = grade_with(environment)(replies)
    rows = [dataclasses.replace(row, reward=grade.reward) for row, grade in zip(work.rollouts, grades, strict=True)]
    return work.with_rollouts(rows)
