"""`covey.Pool`: what a pool's coordinator shows to everybody, for scripts and notebooks.

Nothing is signed and nothing is checked against a chain, except policies. `covey validator audit` repeats a verdict.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from covey.errors import OperatorError, ProtocolError
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol.canonical import sha256
from covey.protocol.ids import Address
from covey.protocol.messages import Receipt
from covey.protocol.object_keys import build_submission_key
from covey.protocol.params import PoolParams
from covey.protocol.status import SubmissionState
from covey.protocol.submission_file.decoder import open_decoder
from covey.protocol.submission_file.sandbox_frames import pack_call, unpack_rows
from covey.python.event_loops import run_apart
from covey.runtime.files import write_atomically
from covey.sandbox import ATTEMPTS

Answer = TypeVar("Answer")
DECODING_SECONDS, DECODING_BYTES = 10.0, 1 << 30
KEPT = 5
"""Number of policies that stay in a folder, newest first."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool by the URL of its coordinator. Example: `covey.Pool("http://127.0.0.1:8000").describe()`.

    All methods raise ProtocolError or TransientError if the coordinator refuses or does not answer.
    """

    url: str

    def describe(self) -> dict[str, Any]:
        """Return parameters, terms, requirements, contracts and relays, as `GET /v1/pool` has them.

        "params" is decoded, and its hash is checked.
        """
        view = self._ask(lambda client: client.get_pool())
        params = PoolParams.from_text(view.params, view.params_hash)
        return {**view.model_dump(mode="json"), "params": params.model_dump(mode="json")}

    def status(self) -> dict[str, Any]:
        """Return the pool at a glance: step, submissions by state, nodes, reasons of rejections, pause and alarms."""
        return self._ask(lambda client: client.get_status()).model_dump(mode="json")

    def submissions(
        self, *, state: str | None = None, node: str | None = None, contributor: str | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Return submissions, newest first. `state` is for example "accepted". `limit` is at most 1,000."""
        wanted = None if state is None else SubmissionState(state.upper())
        views = self._ask(
            lambda client: client.list_submissions(
                limit=limit,
                node=None if node is None else Address(node),
                contributor=None if contributor is None else Address(contributor),
                state=wanted,
            )
        )
        return [view.model_dump(mode="json") for view in views]

    def statement(self, contributor: str, *, epoch: int) -> dict[str, Any]:
        """Return what a contributor had earned by the end of an epoch, with the proof for a claim."""
        return self._ask(lambda client: client.get_reward(Address(contributor), epoch)).model_dump(mode="json")

    def rollouts(self, *, limit: int = 20) -> Iterator[dict[str, Any]]:
        """Yield the rows of settled submissions, newest first, from at most `limit` submissions.

        A row has task, group, sibling, node, policy_version, prompt and tokens (lists of token ids), logprobs, reward
        and finished. `pandas.DataFrame(pool.rollouts())` is a table of them. Files are decoded in a sandbox. A
        submission becomes public once its epoch is closed.

        Raises ProtocolError("digest_mismatch") if a file does not have the hash in its receipt.
        """
        params = PoolParams.model_validate(self.describe()["params"])
        with open_decoder(cpu_seconds=DECODING_SECONDS, memory_bytes=DECODING_BYTES, isolation="auto") as decoder:
            for view in self.submissions(state="settled", limit=limit):
                receipt, file = self._fetch(view["receipt_hash"], params)
                rows = unpack_rows(decoder.call(pack_call(file, params.build_budget()), attempts=ATTEMPTS))
                for row in rows:
                    yield {
                        "task": receipt.task,
                        "group": row.group,
                        "sibling": row.sibling,
                        "node": receipt.node,
                        "policy_version": receipt.policy_version,
                        "prompt": list(row.prompt),
                        "tokens": list(row.tokens),
                        "logprobs": list(row.logprobs),
                        "reward": row.reward,
                        "finished": row.finished,
                    }

    def texts(self, policy: str | Path, *, limit: int = 20) -> Iterator[dict[str, Any]]:
        """Yield what `rollouts` yields, with "question" and "completion" as text in place of the lists of tokens.

        `policy` is a folder or a name whose tokenizer is the pool's, for example `pool.policy()`.

        Raises the errors of `rollouts`, and OperatorError("model_unavailable") if there is no tokenizer.
        """
        from covey.model.policy_files import load_end_tokens, load_tokenizer
        from covey.model.prompts import PromptFormat, decode_question
        from covey.model.text import decode_completion

        format = PromptFormat.of(PoolParams.model_validate(self.describe()["params"]).model)
        tokenizer = load_tokenizer(policy)
        ends = load_end_tokens(policy, tokenizer)
        for row in self.rollouts(limit=limit):
            yield {
                "question": decode_question(tokenizer, row["prompt"], format=format),
                "completion": decode_completion(tokenizer, row["tokens"], ends),
                **{name: value for name, value in row.items() if name not in ("prompt", "tokens", "logprobs")},
            }

    def policies(self) -> dict[int, str]:
        """Return the record hashes of the published policies by step, oldest first."""
        from covey.network.public_policies import list_policies

        return {int(step): str(hash) for step, hash in list_policies(self._ask(lambda each: each.get_status())).items()}

    def policy(self, step: int | None = None, *, folder: str | Path = "policies") -> Path:
        """Download a policy from the pool's relays and return its folder, for `AutoModelForCausalLM.from_pretrained`.

        None is the newest one. Every file is compared with the policy's hash, which is the one that the coordinator
        reports. Policies in `folder` are not downloaded again.

        Raises OperatorError("no_policy") if the pool has not published the step, and the errors of `fetch_policy`.
        """
        from covey.network.public_policies import choose_policy, fetch_policy
        from covey.shardcast.policy_store import PolicyStore

        view, status = self._ask(lambda client: client.get_pool()), self._ask(lambda client: client.get_status())
        chosen, record_hash = choose_policy(status, step)
        return fetch_policy(view, PolicyStore(Path(folder), keep=KEPT), chosen, record_hash)

    def save_rollouts(self, folder: str | Path, *, limit: int = 20) -> Path:
        """Write the rows of `rollouts` to `folder`/rollouts.jsonl, which `datasets.load_dataset(folder)` reads.

        Raises OperatorError("no_rollouts") if no submission is public yet.
        """
        lines = [json.dumps(row) + "\n" for row in self.rollouts(limit=limit)]
        if not lines:
            raise OperatorError(
                "no_rollouts", f"{self.url} has no settled submission", fix="Wait until an epoch of the pool is closed"
            )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "rollouts.jsonl", "".join(lines).encode())
        return folder

    def _fetch(self, receipt_hash: str, params: PoolParams) -> tuple[Receipt, bytes]:
        detail = self._ask(lambda client: client.get_submission(receipt_hash))
        if detail.receipt is None:
            raise ProtocolError("not_public", f"the submission {receipt_hash} is not public yet")
        receipt = detail.receipt.to_message()
        key = build_submission_key(receipt.pool, receipt.task, receipt.lease, receipt.work_key)
        file = self._ask(lambda client: client.get_public(key, max_bytes=params.max_submission_bytes))
        if sha256(file) != receipt.work_key:
            raise ProtocolError("digest_mismatch", f"the file of {receipt_hash} does not have the hash in its receipt")
        return receipt, file

    def _ask(self, question: Callable[[CoordinatorClient], Awaitable[Answer]]) -> Answer:
        async def ask() -> Answer:
            async with CoordinatorClient(self.url, None, chain_id=0) as client:
                return await question(client)

        return run_apart(lambda _: asyncio.run(ask()))
