"""Runs vLLM's engine in the subprocess. Generations of several calls run together, and everything else runs alone.

A policy is loaded while nothing runs, so it never changes within a completion. Each response contains the policy's
version.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.inputs.engine import tokens_input
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext

from covey.engines.vllm.cache_size import compute_cache_bytes
from covey.engines.vllm.engine_process import build_too_large
from covey.engines.vllm.exact_proof import prove_exact
from covey.engines.vllm.frames import Arrays, Frame, Value
from covey.engines.vllm.logits_processor import SEED, TEMPERATURE, SeededSampler
from covey.engines.vllm.recorder import KEY, count_rows
from covey.engines.vllm.vllm_options import BLOCK
from covey.errors import OperatorError
from covey.toploc.proofs import TOP_K, WINDOW

Longs = NDArray[np.int64]


@dataclass(slots=True)
class _Call:
    """A running generation. Its requests have the numbers `first` .. `first` + `count` - 1."""

    number: int
    """Number of the parent's request, as in `Frame.call`."""
    first: int
    """Number of the first vLLM request."""
    count: int
    """Number of vLLM requests."""
    left: int
    """Number of unfinished vLLM requests."""


class Serving:
    """One vLLM engine and its running calls."""

    def __init__(self, engine: LLMEngine, version: int) -> None:
        self._engine, self._version, self._replays = engine, version, 0
        self._running: list[_Call] = []
        self._capture: tuple[int, int] | None = None
        """Window and top_k of all running calls. None before the first call."""
        self._next_key = 0
        self._is_asleep = False
        self._tokens: dict[int, list[int]] = {}
        """Tokens of finished vLLM requests in unfinished calls, by request number."""
        engine.collective_rpc("covey_install")

    @property
    def calls(self) -> tuple[int, ...]:
        """Numbers of the parent's requests whose generations are running."""
        return tuple(call.number for call in self._running)

    def try_out(self) -> None:
        """Generate two tokens of a full batch, and replay the largest piece, with Covey's sampler and recorder.

        If the kernels do not support the work, or memory does not suffice, this fails at the start and not during a
        lease.
        """
        most = self._engine.vllm_config.scheduler_config.max_num_batched_tokens
        self.generate_alone(_build_prompts(self.max_batch, self.vocabulary), limit=2)
        rows = min(count_rows(current_platform.device_type, self.vocabulary), most)
        length = min(rows, self.longest - 1)
        count = min(rows // length, self.max_batch)
        tokens = {"tokens": np.zeros(count * length, np.int64), "lengths": np.full(count, length)}
        self.replay_alone(_build_prompts(count, self.vocabulary), tokens)
        self.reset_cache()

    @property
    def max_batch(self) -> int:
        """Maximum number of vLLM requests that run together."""
        return int(self._engine.vllm_config.scheduler_config.max_num_seqs)

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a prompt and its completion."""
        return int(self._engine.model_config.max_model_len)

    @property
    def vocabulary(self) -> int:
        """Number of rows of the language-model head."""
        return int(self._engine.model_config.get_vocab_size())

    @property
    def next_key(self) -> int:
        """Number of the first vLLM request of the next generation."""
        return self._next_key

    def generate_alone(self, prompts: Arrays, limit: int) -> Arrays:
        """Generate a completion of at most `limit` tokens for each prompt. Nothing else may run."""
        limits = {"limits": np.full(len(prompts["seeds"]), limit), "ends": np.zeros(1, np.int64)}
        self._add(Frame("generate", _TRIAL, {**prompts, **limits}))
        finished: list[Frame] = []
        while not finished:
            finished = self.step()
        return finished[0].arrays

    def replay_alone(self, prompts: Arrays, made: Arrays) -> Arrays:
        """Replay the completions that `generate_alone` has made."""
        return self._replay(_TRIAL, {**prompts, "tokens": made["tokens"], "lengths": made["lengths"]})

    def reset_cache(self) -> None:
        """Forget the KV cache of all prompts."""
        self._engine.reset_prefix_cache()

    def start_trace(self, key: int, position: int) -> None:
        """Trace the layers at one token of the request with a number; see `LayerTrace`."""
        self._engine.collective_rpc("covey_start_trace", args=(key, position))

    def stop_trace(self) -> dict[str, str]:
        """Return the digests of the traced layers."""
        return dict(self._engine.collective_rpc("covey_stop_trace")[0])

    def describe(self, question: Frame) -> Frame:
        """Return the response to the request "start"."""
        config = self._engine.model_config
        return Frame(
            "started",
            {
                "hidden": config.get_hidden_size(),
                "vocabulary": config.get_vocab_size(),
                "longest": config.max_model_len,
            },
            call=question.call,
        )

    def can_join(self, question: Frame) -> bool:
        """Return whether a request can run together with the running `calls`."""
        return not self._running or (question.kind == "generate" and _get_capture(question.values) == self._capture)

    def answer(self, question: Frame) -> list[Frame]:
        """Serve a "wait", "sleep", "reload" or "replay".

        A "generate" is only queued, and a later `step` returns its response. Everything except "sleep" wakes vLLM up.
        """
        values, call = question.values, question.call
        if question.kind == "sleep":
            self._sleep()
            return [Frame("asleep", call=call)]
        self._wake_up()
        if question.kind == "generate":
            self._add(question)
            return []
        if question.kind == "wait":
            return [Frame("waited", call=call)]
        if question.kind == "reload":
            self._reload(str(values["folder"]))
            self._version = int(values["version"] or 0)
            return [Frame("reloaded", call=call)]
        return [Frame("replayed", {"version": self._version}, self._replay(values, question.arrays), call)]

    def step(self) -> list[Frame]:
        """Compute one token of each running request, or a part of its prompt.

        Return the responses of finished calls.
        """
        for output in self._engine.step():
            if output.finished:
                key = int(output.request_id)
                self._tokens[key] = list(output.outputs[0].token_ids)
                next(call for call in self._running if call.first <= key < call.first + call.count).left -= 1
        finished = [call for call in self._running if call.left == 0]
        self._running = [call for call in self._running if call.left > 0]
        return [self._finish(call) for call in finished]

    def _sleep(self) -> None:
        """Move the weights to main memory and discard the KV cache, if vLLM was started with its sleep mode."""
        if self._engine.model_config.enable_sleep_mode and not self._is_asleep:
            self._engine.sleep(level=1)
            self._is_asleep = True

    def _wake_up(self) -> None:
        if self._is_asleep:
            self._engine.wake_up()
            self._is_asleep = False

    def _reload(self, folder: str) -> None:
        self._engine.collective_rpc("covey_reload", args=(folder,))
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset the KV cache after loading a new policy")

    def _add(self, question: Frame) -> None:
        values, arrays = question.values, question.arrays
        if not self._running:
            self._begin(values)
        prompts, end_tokens = list(_cut(arrays["prompts"], arrays["prompt_lengths"])), arrays["ends"].tolist()
        call = _Call(question.call, first=self._next_key, count=len(prompts), left=len(prompts))
        self._running.append(call)
        self._next_key += call.count
        rows = zip(prompts, arrays["seeds"].tolist(), arrays["limits"].tolist(), strict=True)
        for key, (prompt, seed, limit) in enumerate(rows, call.first):
            params = SamplingParams(
                **_COMMON,
                max_tokens=limit,
                stop_token_ids=end_tokens,
                extra_args={KEY: key, SEED: seed, TEMPERATURE: values["temperature"]},
            )
            self._engine.add_request(str(key), tokens_input(prompt), params)

    def _finish(self, call: _Call) -> Frame:
        tokens = [self._tokens.pop(key) for key in range(call.first, call.first + call.count)]
        arrays = {
            "tokens": np.array([token for each in tokens for token in each], np.int64),
            "lengths": np.array([len(each) for each in tokens], np.int64),
            **self._take(call.first, call.count),
        }
        return Frame("generated", {"version": self._version}, arrays, call.number)

    def _replay(self, values: Mapping[str, Any], arrays: Arrays) -> Arrays:
        prompts = list(_cut(arrays["prompts"], arrays["prompt_lengths"]))
        claims, seeds = list(_cut(arrays["tokens"], arrays["lengths"])), arrays["seeds"].tolist()
        # The salt lets siblings share their prompt's cache, but excludes the cache of earlier calls, which proves
        # nothing.
        self._replays += 1
        salt = f"replay {self._replays}"

        def request(key: int, skip: bool) -> tuple[int, Any, SamplingParams]:
            params = SamplingParams(**_COMMON, max_tokens=1, skip_reading_prefix_cache=skip, extra_args={KEY: key})
            return key, tokens_input(prompts[key] + claims[key][:-1], cache_salt=salt), params

        firsts = [len(prompt) - 1 for prompt in prompts]
        self._begin(values, list(zip(firsts, claims, seeds, strict=True)))
        self._run(request(key, False) for key in range(len(seeds)))
        self._run(request(key, True) for key in self._engine.collective_rpc("covey_missed")[0])
        return self._take(0, len(seeds))

    def _begin(self, values: Mapping[str, Any], claims: Sequence[tuple[int, list[int], int]] = ()) -> None:
        self._capture = _get_capture(values)
        self._engine.collective_rpc("covey_begin", args=(*self._capture, values["temperature"], list(claims)))

    def _take(self, first: int, count: int) -> Arrays:
        return load(self._engine.collective_rpc("covey_take", args=(first, count))[0])

    def _run(self, requests: Iterable[tuple[int, Any, SamplingParams]]) -> None:
        """Run these vLLM requests alone until all are finished."""
        for key, prompt, params in requests:
            self._engine.add_request(str(key), prompt, params)
        while self._engine.has_unfinished_requests():
            self._engine.step()


_TRIAL: dict[str, Value] = {"temperature": 1.0, "window": WINDOW, "top_k": TOP_K}
"""Values of the calls with which an engine tries itself out."""
_REFUSALS = (
    ImportError, ValueError, RuntimeError, TypeError, AttributeError, AssertionError, LookupError, ArithmeticError,
)  # fmt: skip
"""Errors that vLLM raises if it cannot run a model here."""
_COMMON = {
    "temperature": 0.0, "ignore_eos": True, "detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY,
}  # fmt: skip


def start(question: Frame) -> Serving:
    """Start an engine with the policy in the request "start". The parent has checked its files.

    Raises OperatorError with the code "model_too_large", "model_too_short", "bad_device", "not_exact" or
    "engine_start".
    """
    values = question.values
    if values["device"] != current_platform.device_type:
        raise OperatorError(
            "bad_device",
            f"this build of vLLM supports only {current_platform.device_type}, but device is {values['device']}",
            fix=f"Set device to {current_platform.device_type}, and choose between several devices "
            "with CUDA_VISIBLE_DEVICES",
        )
    try:
        # The usage context sets how many prompt tokens a step takes. It matters because a replay is all prompt.
        engine = LLMEngine.from_engine_args(build_arguments(values), usage_context=UsageContext.LLM_CLASS)
        serving = Serving(engine, int(values["version"] or 0))
        serving.try_out()
        if values["exact"]:
            prove_exact(serving, length=int(values["proof_length"] or 0))
        return serving
    except _REFUSALS as error:
        raise _explain(error) from error


def build_arguments(values: Mapping[str, Any]) -> EngineArgs:
    """Build vLLM's arguments from the values of the request "start"."""
    on_cpu = current_platform.is_cpu()
    has_wide_head = values["dtype"] != "float32" and values["head_dtype"] == "float32"
    return EngineArgs(
        model=str(values["folder"]),
        dtype=values["dtype"],
        max_model_len=values["max_model_len"],
        max_num_seqs=values["batch"],
        max_num_batched_tokens=values["max_num_batched_tokens"],
        kv_cache_memory_bytes=values["kv_cache_memory_bytes"] or (compute_cache_bytes(values) if on_cpu else None),
        gpu_memory_utilization=values["gpu_memory_utilization"],
        tensor_parallel_size=values["tensor_parallel_size"],
        enable_prefix_caching=values["enable_prefix_caching"],
        block_size=values["block_size"] or (BLOCK if on_cpu else None),
        enforce_eager=values["enforce_eager"],
        attention_backend=values["attention_backend"],
        load_format="safetensors",
        hf_overrides={"head_dtype": "float32"} if has_wide_head else {},  # see `widen_head` of the engine hf
        skip_tokenizer_init=True,  # only the parent handles text
        generation_config="vllm",  # the policy's own generation config might change the sampling
        async_scheduling=values["async_scheduling"],
        enable_sleep_mode=bool(values["enable_sleep_mode"]) and current_platform.is_sleep_mode_available(),
        trust_remote_code=False,
        worker_extension_cls="covey.engines.vllm.extension.CoveyWorker",
        logits_processors=[SeededSampler],
        seed=0,
        disable_log_stats=True,
    )


def _explain(error: Exception) -> OperatorError:
    message = " ".join(str(error).split()) or type(error).__name__
    if "memory" in message.lower() and "illegal memory" not in message.lower():
        return build_too_large(message)
    if "max_model_len" in message or "maximum model length" in message:
        return OperatorError(
            "model_too_short",
            f"the model supports fewer positions than the pool's longest sequence has: {message}",
            fix="Lower max_model_len or the pool's max_prompt_tokens and max_completion_tokens, or "
            "choose another model",
        )
    fix = (
        "Install a C++ compiler, or set enforce_eager = true"
        if "compiler" in message
        else "Choose another model or engine"
    )
    return OperatorError("engine_start", f"vLLM failed to start: {message}", fix=fix)


def _build_prompts(count: int, vocabulary: int) -> Arrays:
    """Return prompts of one token each. Their tokens differ as far as possible, so that they share no cache."""
    numbers = np.arange(count)
    return {"prompts": numbers % vocabulary, "prompt_lengths": np.ones_like(numbers), "seeds": numbers}


def _get_capture(values: Mapping[str, Any]) -> tuple[int, int]:
    return values["window"], values["top_k"]


def _cut(flat: NDArray[Any], lengths: NDArray[Any]) -> Iterator[list[int]]:
    return (part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1]))
