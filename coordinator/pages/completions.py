"""Completions of settled submissions, as text. A file is a stranger's, so a sandbox decodes it."""

import asyncio
from collections import OrderedDict
from typing import Any, NamedTuple

from coordinator.pages.context import PagesContext
from covey.environments.answer_extraction import read_tags
from covey.environments.base import EnvironmentSpec
from covey.environments.length_costs import LengthCosts
from covey.errors import OperatorError, ProtocolError
from covey.protocol.canonical import sha256
from covey.protocol.ids import Hash, LeaseId, TaskId
from covey.protocol.object_keys import build_submission_key
from covey.protocol.submission_file.rows import Rollout
from covey.protocol.submission_file.sandbox_frames import pack_call, unpack_rows

DECODING_SECONDS, DECODING_BYTES = 10.0, 1 << 30
MAX_FILES = 64
MAX_SHOWN = 32
"""Maximum number of completions of a submission that are shown."""
MAX_CHARACTERS = 20_000
"""Maximum length of a text that is shown, in characters."""


class ShownCompletion(NamedTuple):
    """A completion as a page shows it."""

    group: int
    sibling: int
    question: str
    thinking: str
    """Text up to the end of the thinking. Empty: there is none."""
    answer: str
    reward: float
    tokens: int
    finished: bool
    task_reward: float | None = None
    """Part of the reward that the answer earned. None: the prompt has no text here that could name a target length."""
    length_reward: float | None = None
    """Part of the reward that the length cost, at most 0. None as in `task_reward`."""


class Completions:
    """Example: `await completions.read(task=3, lease=7, work_key=key)`."""

    def __init__(self, ctx: PagesContext) -> None:
        self._ctx = ctx
        self._decoding = asyncio.Lock()
        self._kept: OrderedDict[str, tuple[ShownCompletion, ...]] = OrderedDict()
        self._texts: _Texts | None = None

    async def read(self, *, task: int, lease: int, work_key: str) -> tuple[ShownCompletion, ...]:
        """Return the first completions of a file. The caller has checked that its epoch is closed.

        Raises ProtocolError("no_file") if the store has it no more, and the errors of decoding.
        """
        if work_key not in self._kept:
            async with self._decoding:  # One file at a time, whoever asks.
                if work_key not in self._kept:
                    self._kept[work_key] = await self._ctx.executor.run(lambda: self._decode(task, lease, work_key))
        self._kept.move_to_end(work_key)
        while len(self._kept) > MAX_FILES:
            self._kept.popitem(last=False)
        return self._kept[work_key]

    def _decode(self, task: int, lease: int, work_key: str) -> tuple[ShownCompletion, ...]:
        from covey.protocol.submission_file.decoder import open_decoder

        params = self._ctx.params
        key = build_submission_key(self._ctx.config.pool, TaskId(task), LeaseId(lease), Hash(work_key))
        try:
            file = self._ctx.store.get(key, max_bytes=params.max_submission_bytes)
        except ProtocolError as error:
            raise ProtocolError("no_file", "the file of the submission is not kept any more", status=404) from error
        if sha256(file) != work_key:
            raise ProtocolError("digest_mismatch", "the file does not have the hash in its receipt", status=409)
        with open_decoder(cpu_seconds=DECODING_SECONDS, memory_bytes=DECODING_BYTES, isolation="auto") as decoder:
            rows = unpack_rows(decoder.call(pack_call(file, params.build_budget())))
        texts = self._texts = self._texts or _Texts(self._ctx)
        return tuple(texts.show(row) for row in rows[:MAX_SHOWN])


class _Texts:
    """Turns tokens into text by the tokenizer of the setting `pages_tokenizer`, or into their numbers without one."""

    def __init__(self, ctx: PagesContext) -> None:
        self._tokenizer: Any = None
        _, self._closing = read_tags(ctx.params.environment.options)
        if not ctx.config.pages_tokenizer:
            return
        from covey.model.policy_files import load_end_tokens, load_tokenizer
        from covey.model.prompts import PromptFormat

        name = ctx.config.pages_tokenizer
        self._tokenizer = load_tokenizer(name)
        self._ends, self._format = load_end_tokens(name, self._tokenizer), PromptFormat.of(ctx.params.model)
        environment = ctx.params.environment
        self._costs = LengthCosts(EnvironmentSpec(kind=environment.kind, options=environment.options))

    def show(self, row: Rollout) -> ShownCompletion:
        question, text = self._decode(row)
        head, tag, answer = text.rpartition(self._closing)
        task = cost = None
        if self._tokenizer is not None:
            task, cost = self._costs.split(row.reward, question, completion_tokens=len(row.tokens))
        return ShownCompletion(
            group=row.group,
            sibling=row.sibling,
            question=question[:MAX_CHARACTERS],
            thinking=(head + tag)[:MAX_CHARACTERS],
            answer=answer[:MAX_CHARACTERS],
            reward=row.reward,
            tokens=len(row.tokens),
            finished=row.finished,
            task_reward=task,
            length_reward=None if cost is None else 0.0 - cost,
        )

    def _decode(self, row: Rollout) -> tuple[str, str]:
        if self._tokenizer is None:
            return " ".join(map(str, row.prompt)), " ".join(map(str, row.tokens))
        from covey.model.prompts import decode_question
        from covey.model.text import decode_completion

        try:
            question = decode_question(self._tokenizer, row.prompt, format=self._format)
            return question, decode_completion(self._tokenizer, row.tokens, self._ends)
        except (OverflowError, OperatorError) as error:
            raise ProtocolError("malformed", "a token is not one of the tokenizer's", status=409) from error
