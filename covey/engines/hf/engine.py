"""The reference engine on Hugging Face transformers. It decodes in batches with a KV cache, and replays by prefill.

Its float32 results for different batches agree within a pool's default limits. The caller sets the number of threads.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from covey.engines.base import Completion, GenerationRequest, Replay, ReplayRequest
from covey.engines.cpu_tuning import REPLAY_TOKENS, keep_memory, make_products_repeatable
from covey.engines.hf.decode import append, read_prompts, widen_head
from covey.engines.hf.packed_replay import packed, read_completions
from covey.engines.hf.proof_windows import Windows
from covey.engines.process_memory import explain_memory
from covey.errors import OperatorError, ProtocolError
from covey.model.generation_config import get_end_tokens
from covey.model.policy_files import (
    describe_policy,
    find_changed,
    get_head,
    get_weights,
    load_end_tokens,
    load_model,
    load_tokenizer,
    read_digests,
    require_vocabulary,
)
from covey.model.weight_files import load_weights, stage_weights
from covey.protocol.policy_record import WEIGHTS_FILE
from covey.sampling.sampler import load_kernels, sample, score
from covey.toploc.topk import Capture
from covey.toploc.topk_torch import find_tops

MAX_LOGITS = 1 << 26
"""Maximum number of logits that a replay computes at once, 256 MiB in float32."""
MAX_ACTIVATIONS = 2 << 30
"""Maximum size in bytes of what a layer computes at once in a replay pass with several completions on a GPU. For a
model of 1.5 billion parameters in bfloat16 these are 29,000 tokens.
"""


class HuggingFaceEngine:
    """An `Engine` on transformers.

    `base` is the name of the model whose weights the policies replace. None means that every policy's folder is
    complete.
    """

    def __init__(
        self, *, dtype: str = "float32", max_batch: int = 64, base: str | Path | None = None, device: str = "cpu"
    ) -> None:
        if max_batch < 1:
            raise OperatorError(
                "bad_batch", f"batch is {max_batch}, but must be at least 1", fix="Set batch to at least 1"
            )
        self._dtype = dtype
        self._max_batch = max_batch
        self._base = base
        self._device = device
        self._model: PreTrainedModel | None = None
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._end_tokens = frozenset[int]()
        self._version: int | None = None
        self._turn, self._loading = threading.RLock(), threading.Lock()
        """Locks. `_turn` is held by each call that computes, and while weights change. `_loading` is held while a
        policy is loaded, so that there is one at a time.
        """
        self._described: Mapping[str, str] | None = None
        """Digests of the files, except the weights, from which model and tokenizer were built. None if they were not
        built from a policy's folder.
        """
        self._digests: Mapping[str, str] = {}
        """Digests of the loaded tensors. Empty if they are unknown."""
        self._pause = 0.0

    @classmethod
    def from_model(
        cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, version: int = 0, max_batch: int = 64
    ) -> Self:
        """Build an engine around a model in memory. The caller shares the model and may continue to train it."""
        load_kernels(model.device)
        engine = cls(max_batch=max_batch, device=str(model.device))
        engine._model, engine._tokenizer, engine._version = model, tokenizer, version
        engine._end_tokens = get_end_tokens(model, tokenizer)
        return engine

    @property
    def policy_version(self) -> int | None:
        """Version of the loaded policy. None before the first one."""
        return self._version

    @property
    def load_pause(self) -> float:
        """Seconds for which the last `load_policy` kept this engine from computing."""
        return self._pause

    @property
    def hidden_size(self) -> int:
        """Width of the last hidden state."""
        return int(get_head(self._require_model()).weight.shape[1])

    @property
    def vocabulary_size(self) -> int:
        """Number of rows of the language-model head."""
        return int(get_head(self._require_model()).weight.shape[0])

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Tokenizer of the policy."""
        if self._tokenizer is None:
            raise _no_policy()
        return self._tokenizer

    @property
    def end_tokens(self) -> frozenset[int]:
        """Ids of the tokens that end a completion."""
        self._require_model()
        return self._end_tokens

    def load_policy(self, folder: Path, version: int) -> None:
        """Replace the weights in place. The first call also builds the model, from `base` or from `folder`.

        Only tensors that differ from the loaded policy are read, if the records of both policies are known. They are
        read and checked while generations run, and then copied between two calls. Without a base, model and tokenizer
        are built again if the other files of `folder` have changed. Otherwise the results of a policy would depend on
        which policy this process loaded first.
        Raises ProtocolError("policy_mismatch") and keeps the old policy if the new one does not fit. Raises
        TransientError("disk_failed") and keeps it if the file cannot be read.
        """
        described = describe_policy(folder) if self._base is None else None
        digests = read_digests(folder)
        with self._loading:
            changed = find_changed(self._digests, digests)
            if self._model is not None and (self._described is None or self._described == described):
                staged = stage_weights(get_weights(self._model), folder / WEIGHTS_FILE, names=changed)
            else:
                staged = None
            with self._turn:
                started = time.monotonic()
                if staged is not None:
                    self._version, self._digests = None, {}  # if copying fails, a half-loaded policy must not be used
                    staged.apply()
                else:
                    self._build_again(folder, described)
                self._version, self._digests = version, digests
                self._pause = time.monotonic() - started

    def _build_again(self, folder: Path, described: Mapping[str, str] | None) -> None:
        """Build the first model, or another one for other files than `self._described`."""
        try:
            built = self._build(folder if self._base is None else self._base, folder)
        except OperatorError as error:
            if self._model is None:
                raise
            # Another policy did load, so this policy is wrong and not the machine.
            raise ProtocolError("policy_mismatch", error.message) from error
        (self._model, self._tokenizer, self._end_tokens), self._described = built, described

    def _build(
        self, source: str | Path, folder: Path
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, frozenset[int]]:
        model, tokenizer = load_model(source, self._dtype), load_tokenizer(source)
        end_tokens = load_end_tokens(source, tokenizer)
        require_vocabulary(tokenizer, end_tokens, int(get_head(model).weight.shape[0]))
        torch.nn.Module.to(model, self._device)
        widen_head(model)
        load_kernels(self._device, int(get_head(model).weight.shape[0]))
        load_weights(get_weights(model), folder / WEIGHTS_FILE)
        return model, tokenizer, end_tokens

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        """Sample a completion for each request; see `Engine`.

        Raises ValueError for an empty prompt or a limit below one token, which is a bug of the caller.
        Raises OperatorError("engine_out_of_memory") if memory is exhausted.
        """
        if any(not each.prompt or each.max_tokens < 1 for each in requests):
            raise ValueError("a request has an empty prompt or a token limit below 1")
        with self._evaluating() as model:
            try:
                return [
                    completion
                    for batch in self._parts(requests)
                    for completion in self._generate_batch(model, batch, temperature, capture)
                ]
            except (MemoryError, RuntimeError) as error:
                out_of_memory = explain_memory(error, "the engine")
                if out_of_memory is None:
                    raise
                raise out_of_memory from error

    @torch.inference_mode()
    def replay(
        self, sequences: Sequence[ReplayRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Replay]:
        """Score each claimed completion by prefill; see `Engine`. Each prompt is computed once per pass."""
        _require_tokens(sequences, self.vocabulary_size)
        with self._evaluating() as model, packed(model):
            return [
                replay
                for batch in self._pack(sequences)
                for replay in self._replay_batch(model, batch, temperature, capture)
            ]

    def close(self) -> None:
        """Do nothing, because the model is in this process."""

    def _generate_batch(
        self, model: PreTrainedModel, requests: Sequence[GenerationRequest], temperature: float, capture: Capture | None
    ) -> list[Completion]:
        prefix, places = read_prompts(model, [each.prompt for each in requests])
        seeds = torch.from_numpy(np.array([each.seed for each in requests], np.uint64).view(np.int64)).to(model.device)
        live_seeds = seeds
        limits = np.array([each.max_tokens for each in requests])
        live = np.arange(len(requests))  # indices of the requests that still run
        ends = np.array(sorted(self._end_tokens))
        chosen = np.empty((len(requests), limits.max()), np.int64)
        sampled_logprobs, lengths = list[torch.Tensor](), np.zeros_like(live)
        windows = Windows(len(requests), int(limits.max()), capture)
        for t in range(int(limits.max())):
            is_direct = np.array_equal(places, np.arange(len(prefix.logits)))
            logits = prefix.logits if is_direct else prefix.logits[torch.from_numpy(places).to(model.device)]
            positions = torch.full((len(live),), t, device=model.device)
            sampled = sample(logits, live_seeds, positions, temperature)
            tokens = chosen[live, t] = sampled.tokens.cpu().numpy()
            sampled_logprobs.append(sampled.logprobs)
            lengths[live] = t + 1
            stays = ~np.isin(tokens, ends) & (limits[live] > t + 1)
            windows.add(prefix.hidden, places, live, stays)
            if not stays.any():
                break
            if not stays.all():
                live = live[stays]
                live_seeds = seeds[torch.from_numpy(live).to(model.device)]
            places = append(model, prefix, places[stays], tokens[stays])
        assert self._version is not None
        logprobs = _arrange(torch.cat(sampled_logprobs).cpu().numpy(), lengths)
        return [
            Completion(
                policy_version=self._version,
                tokens=tuple(chosen[request, :length].tolist()),
                logprobs=tuple(logprobs[request].tolist()),
                tops=windows.get_tops(request),
                finished=int(chosen[request, length - 1]) in self._end_tokens,
            )
            for request, length in enumerate(lengths.tolist())
        ]

    def _replay_batch(
        self, model: PreTrainedModel, sequences: Sequence[ReplayRequest], temperature: float, capture: Capture | None
    ) -> list[Replay]:
        lengths = np.array([len(each.tokens) for each in sequences])
        tokens = torch.from_numpy(np.concatenate([np.array(each.tokens) for each in sequences])).to(model.device)
        seeds = np.repeat(np.array([each.seed for each in sequences], np.uint64), lengths)
        positions = np.concatenate([np.arange(length, dtype=np.uint32) for length in lengths])
        results = torch.empty(2, len(tokens), device=model.device)
        states = torch.empty(len(tokens), self.hidden_size, dtype=torch.bfloat16, device=model.device)
        rows, end = max(1, MAX_LOGITS // self.vocabulary_size), 0
        chunks = read_completions(
            model, [each.prompt for each in sequences], [each.tokens for each in sequences], rows=rows
        )
        for hidden, logits in chunks:
            span = slice(end, end := end + len(logits))
            scored = score(logits, tokens[span], seeds[span], positions[span], temperature)
            results[:, span] = torch.stack(scored)
            states[span] = hidden  # rounds to bfloat16, which proofs are made of
        tops = find_tops(states, lengths.tolist(), capture) if capture is not None else [()] * len(sequences)
        parts = np.split(results.cpu().numpy(), np.cumsum(lengths)[:-1], axis=1)
        pairs = zip(tops, parts, strict=True)
        return [Replay(tops=tops, logprobs=logprobs, margins=margins) for tops, (margins, logprobs) in pairs]

    def _pack(self, sequences: Sequence[ReplayRequest]) -> Iterator[list[ReplayRequest]]:
        """Yield the requests of each replay pass. The number of completions and of tokens per pass is limited."""
        room, is_on_cpu = self._count_replay_tokens(), torch.device(self._device).type == "cpu"
        batch, tokens, prompts = list[ReplayRequest](), 0, set[tuple[int, ...]]()
        for sequence in sequences:
            is_known = is_on_cpu and sequence.prompt in prompts  # a GPU's kernel takes a copy of the prompt's keys
            tokens += len(sequence.tokens) + (0 if is_known else len(sequence.prompt))
            if batch and (len(batch) == self._max_batch or tokens > room):
                yield batch
                batch, tokens, prompts = [], len(sequence.tokens) + len(sequence.prompt), set()
            batch.append(sequence)
            prompts.add(sequence.prompt)
        if batch:
            yield batch

    def _count_replay_tokens(self) -> int:
        """Return the maximum number of tokens of a replay pass with several completions."""
        if torch.device(self._device).type == "cpu":
            return REPLAY_TOKENS
        model, width = self._require_model(), self.hidden_size
        values = 8 * width + 4 * int(getattr(model.config.get_text_config(), "intermediate_size", None) or 4 * width)
        return max(1, MAX_ACTIVATIONS // (values * model.dtype.itemsize))

    def _parts(self, requests: Sequence[GenerationRequest]) -> Iterator[Sequence[GenerationRequest]]:
        return (requests[start : start + self._max_batch] for start in range(0, len(requests), self._max_batch))

    @contextmanager
    def _evaluating(self) -> Iterator[PreTrainedModel]:
        """Yield the model in evaluation mode.

        The previous mode is restored on exit, because a trainer may share the model.
        Raises OperatorError("no_policy") if there is no policy, or if `load_policy` has failed between its tensors.
        """
        with self._turn:
            model = self._require_model()
            if self._version is None:
                raise _no_policy()
            if not model.training:  # the mode is not set again, because layers may have modes of their own
                yield model
                return
            model.train(False)
            try:
                yield model
            finally:
                model.train()

    def _require_model(self) -> PreTrainedModel:
        if self._model is None:
            raise _no_policy()
        return self._model


def _arrange(values: NDArray[np.float32], lengths: NDArray[np.int64]) -> list[NDArray[np.float32]]:
    """Return the values of each completion, given those of all running completions token by token.

    Example: lengths [1, 2] and values [a0, b0, b1] give [[a0], [b0, b1]].
    """
    running = np.arange(lengths.max())[:, None] < lengths
    by_token = np.full(running.shape, np.nan, np.float32)
    by_token[running] = values
    return [by_token[:length, request] for request, length in enumerate(lengths.tolist())]


def _require_tokens(sequences: Sequence[ReplayRequest], vocabulary: int) -> None:
    # An index beyond the embedding raises an exception on a CPU, but ends the process on a GPU.
    for sequence in sequences:
        if not sequence.prompt or not sequence.tokens:
            raise ProtocolError("malformed_tokens", "a sequence has an empty prompt or an empty completion")
        tokens = (*sequence.prompt, *sequence.tokens)
        if min(tokens) < 0 or max(tokens) >= vocabulary:
            raise ProtocolError(
                "malformed_tokens", f"a token id is outside the vocabulary, which has {vocabulary} tokens"
            )


def _no_policy() -> OperatorError:
    return OperatorError("no_policy", "no policy has been loaded into the engine", fix="Call load_policy first")


def prepare_process(*, threads: int) -> None:
    """Set the number of torch threads, repeatable products and the memory behavior of a process that runs an engine.

    If several processes share a machine, more than one thread per process slows the others down.
    """
    make_products_repeatable()
    torch.set_num_threads(threads)
    keep_memory()
