"""Recomputes rewards of work that no quorum replayed, because the trainer's advantages depend on them.

A single validator has accepted such work, and it might collude with the worker
(docs/decisions/034-rewards-are-recomputed.md). A file is regraded while others are still being downloaded.
Answers are looked up in all work, in a sample, because a run without answers cannot learn.
"""

import threading
from collections.abc import Set
from dataclasses import dataclass, field, replace

from covey import slots
from covey.environments.base import Environment, EnvironmentSpec, Grader
from covey.environments.grader import is_explained_by_limit
from covey.environments.mixture import name_task_types
from covey.model.prompts import PromptFormat
from covey.model.text import Tokenizer
from covey.protocol.api.trainer import BatchItem
from covey.protocol.ids import GroupId, PoolId
from covey.protocol.params import GradingParams
from covey.protocol.seeding import SlotDomain, compute_prompt_draw
from covey.runtime.log import get_logger
from trainer.data.samples import AcceptedWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrader:
    """Everything that determines the prompts and rewards of a pool."""

    pool: PoolId
    spec: EnvironmentSpec
    environment: Environment
    tokenizer: Tokenizer
    format: PromptFormat
    """Prompt format of the pool."""
    ends: Set[int]
    """Ids of the end tokens."""
    limit: int
    """Maximum length of a completion in tokens."""
    longest_prompt: int
    """Maximum length of a prompt in tokens."""
    vocabulary: int
    """Number of token ids that the model accepts."""
    grade: Grader
    limits: GradingParams
    """Limits of one grading call, as for a worker."""
    _turn: threading.Lock = field(default_factory=threading.Lock)
    """Lock for environment and tokenizer, which are not thread-safe. Files are read in several threads."""

    def regrade(self, item: BatchItem, work: AcceptedWork) -> AcceptedWork | None:
        """Return `work` with recomputed rewards, and with the number of rollouts that claimed a different one.

        Returns None, with a log line, if a row's prompt or seed is not its slot's, or if its end is not allowed. Also
        returns None if a grading limit may explain a reward that differs.
        """
        domain, rows = self._build_domain(item), work.rollouts
        with self._turn:
            prompts = self._draw_prompts(domain, len({row.group for row in rows}))
            rejection = slots.find_wrong_slot(rows, domain, prompts) or slots.find_false_end(
                rows, ends=self.ends, limit=self.limit, vocabulary=self.vocabulary
            )
            if rejection is not None:
                code, details = rejection.reason.name.lower(), dict(rejection.details)
                get_logger().error("submission skipped", task=item.task, node=item.node, code=code, **details)
                return None
            replies = slots.build_replies(rows, prompts, tokenizer=self.tokenizer, ends=self.ends)
            grades = self.grade(replies)
            wrong_answers = [self.environment.grade_wrong(reply) for reply in replies]
        for row, grade, answer in zip(rows, grades, wrong_answers, strict=True):
            if row.reward != grade.reward and is_explained_by_limit(row.reward, grade, answer, self.limits):
                get_logger().warning("submission skipped, a limit ended its grading", task=item.task, node=item.node)
                return None
        rewards = [grade.reward for grade in grades]
        wrong = sum(row.reward != reward for row, reward in zip(rows, rewards, strict=True))
        if wrong:
            get_logger().error(
                "claimed rewards differ from recomputed rewards", task=item.task, node=item.node, rollouts=wrong
            )
        graded = tuple(replace(row, reward=reward) for row, reward in zip(rows, rewards, strict=True))
        return replace(work, rollouts=graded, regraded=wrong)

    def count_answers(self, item: BatchItem, work: AcceptedWork) -> AcceptedWork:
        """Return `work` with the number of finished completions of its first group, and of those without an answer.

        One group of each submission is enough for a share. One prompt is drawn for it, and nothing is graded.
        """
        rows = [row for row in work.rollouts if row.group == 0 and row.finished]
        if not rows:
            return work
        with self._turn:
            prompts = self._draw_prompts(self._build_domain(item), 1)
            replies = slots.build_replies(rows, prompts, tokenizer=self.tokenizer, ends=self.ends)
            unanswered = sum(not self.environment.has_answer(reply) for reply in replies)
        return replace(work, looked_up=len(rows), unanswered=unanswered)

    def name_types(self, item: BatchItem, work: AcceptedWork) -> AcceptedWork:
        """Return `work` with the type of the task of each group."""
        domain, groups = self._build_domain(item), len({row.group for row in work.rollouts})
        draws = (compute_prompt_draw(domain, group) for group in map(GroupId, range(groups)))
        return replace(work, task_types=name_task_types(self.spec, draws))

    def _build_domain(self, item: BatchItem) -> SlotDomain:
        return SlotDomain(
            beacon=item.record_hash,
            pool=self.pool,
            policy_version=item.policy_version,
            node=item.node,
            task=item.task,
        )

    def _draw_prompts(self, domain: SlotDomain, groups: int) -> dict[GroupId, slots.DrawnPrompt]:
        return slots.draw_prompts(
            domain,
            groups,
            environment=self.environment,
            tokenizer=self.tokenizer,
            format=self.format,
            longest=self.longest_prompt,
        )
