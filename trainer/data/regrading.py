"""Work that no quorum replayed: the trainer computes again what its advantages rest on.

One validator alone has accepted such work, and might be the worker's accomplice.  Called by `loop` for each file, next
to the downloads of the others (docs/decisions/034-rewards-are-recomputed.md).
"""

import threading
from collections.abc import Set
from dataclasses import dataclass, field, replace

from covey import slots
from covey.environments.base import Environment, Grader
from covey.environments.grader import is_explained_by_limit
from covey.model.prompts import PromptFormat
from covey.model.text import Tokenizer
from covey.protocol.api.trainer import BatchItem
from covey.protocol.ids import PoolId
from covey.protocol.params import GradingParams
from covey.protocol.seeding import SlotDomain
from covey.runtime.log import get_logger
from trainer.data.samples import AcceptedWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrader:
    """What prompts and rewards of a pool follow from."""

    pool: PoolId
    environment: Environment
    tokenizer: Tokenizer
    format: PromptFormat
    """How the pool's questions become prompts."""
    ends: Set[int]
    """Ids of the tokens that end a completion."""
    limit: int
    """The pool's longest completion in tokens."""
    longest_prompt: int
    """The pool's longest prompt in tokens."""
    vocabulary: int
    grade: Grader
    limits: GradingParams
    """Limits of one grade on a worker."""
    _turn: threading.Lock = field(default_factory=threading.Lock)
    """Files are read in several threads, for which environment and tokenizer are not made."""

    def regrade(self, item: BatchItem, work: AcceptedWork) -> AcceptedWork | None:
        """`work` with the rewards that its rollouts earn, and how many of them were claimed otherwise.

        None, with a line in the log, where a row has another prompt or seed than its slot, or no lawful end, and
        where a limit may explain a reward that differs.
        """
        domain = SlotDomain(
            beacon=item.manifest_hash,
            pool=self.pool,
            policy_version=item.policy_version,
            node=item.node,
            task=item.task,
        )
        rows = work.rollouts
        groups = len({row.group for row in rows})
        with self._turn:
            prompts = slots.draw_prompts(
                domain,
                groups,
                environment=self.environment,
                tokenizer=self.tokenizer,
                format=self.format,
                longest=self.longest_prompt,
            )
            rejection = slots.find_wrong_slot(rows, domain, prompts) or slots.find_false_end(
                rows, ends=self.ends, limit=self.limit, vocabulary=self.vocabulary
            )
            if rejection is not None:
                code, details = rejection.reason.name.lower(), dict(rejection.details)
                get_logger().error("submission left out", task=item.task, node=item.node, code=code, **details)
                return None
            replies = slots.build_replies(rows, prompts, tokenizer=self.tokenizer, ends=self.ends)
            grades = self.grade(replies)
            wrong_answers = [self.environment.grade_wrong(reply) for reply in replies]
        for row, grade, answer in zip(rows, grades, wrong_answers, strict=True):
            if row.reward != grade.reward and is_explained_by_limit(row.reward, grade, answer, self.limits):
                get_logger().warning("submission left out: a limit ended a grade", task=item.task, node=item.node)
                return None
        rewards = [grade.reward for grade in grades]
        wrong = sum(row.reward != reward for row, reward in zip(rows, rewards, strict=True))
        if wrong:
            get_logger().error("rewards differ from the recomputed", task=item.task, node=item.node, rollouts=wrong)
        graded = tuple(replace(row, reward=reward) for row, reward in zip(rows, rewards, strict=True))
        return replace(work, rollouts=graded, regraded=wrong)
