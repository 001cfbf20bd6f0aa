"""vLLM's engine in its own process: one call is a batch of requests, run to its end.

No call overlaps another, so a policy never changes inside a completion.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind

from covey.engines.vllm.frames import Arrays, Frame
from covey.engines.vllm.recorder import KEY
from covey.engines.vllm.sampler import SEED, TEMPERATURE, SeededSampler
from covey.errors import OperatorError, ProtocolError
from covey.model.files import require_policy

GIB = 1 << 30
Longs = NDArray[np.int64]


class Serving:
    """One engine of vLLM."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine, self._replays = engine, 0
        engine.collective_rpc("covey_install")

    def try_out(self) -> None:
        """Two tokens, so that what the kernels cannot do is said at the start and not of each call."""
        self._run([(0, {"prompt_token_ids": [0]}, SamplingParams(**_COMMON, max_tokens=2))])

    def describe(self) -> Frame:
        """Answer to "start"."""
        config = self._engine.model_config
        return Frame(
            "started",
            {
                "hidden": config.get_hidden_size(),
                "vocabulary": config.get_vocab_size(),
                "longest": config.max_model_len,
            },
        )

    def answer(self, question: Frame) -> Frame:
        """By kind: "check", "reload", "generate", "replay"."""
        values, arrays = question.values, question.arrays
        if question.kind == "check":
            require_policy(Path(str(values["folder"])))
            return Frame("checked")
        if question.kind == "reload":
            self._reload(str(values["folder"]))
            return Frame("reloaded")
        if question.kind == "generate":
            return self._generate(values, arrays)
        return self._replay(values, arrays)

    def _reload(self, folder: str) -> None:
        require_policy(Path(folder))
        self._engine.collective_rpc("covey_reload", args=(folder,))
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM keeps a cache of the old policy")

    def _generate(self, values: Mapping[str, Any], arrays: Arrays) -> Frame:
        prompts, seeds, limits = _cut(arrays["prompts"], arrays["prompt_lengths"]), arrays["seeds"], arrays["limits"]
        self._begin(values)
        tokens = self._run(
            (
                key,
                {"prompt_token_ids": prompt},
                SamplingParams(
                    **_COMMON,
                    max_tokens=limit,
                    stop_token_ids=[values["eos"]],
                    extra_args={KEY: key, SEED: seed, TEMPERATURE: values["temperature"]},
                ),
            )
            for key, (prompt, seed, limit) in enumerate(zip(prompts, seeds.tolist(), limits.tolist(), strict=True))
        )
        lengths = np.array([len(tokens[key]) for key in range(len(seeds))], np.int64)
        flat = np.array([token for key in range(len(seeds)) for token in tokens[key]], np.int64)
        return Frame("generated", {}, {"tokens": flat, "lengths": lengths, **self._take(len(seeds))})

    def _replay(self, values: Mapping[str, Any], arrays: Arrays) -> Frame:
        prompts = list(_cut(arrays["prompts"], arrays["prompt_lengths"]))
        claims, seeds = list(_cut(arrays["tokens"], arrays["lengths"])), arrays["seeds"].tolist()
        # Siblings read their prompt once; what another call left behind is no evidence.
        self._replays += 1
        salt = {"cache_salt": f"replay {self._replays}"}

        def request(key: int, skip: bool) -> tuple[int, dict[str, Any], SamplingParams]:
            params = SamplingParams(**_COMMON, max_tokens=1, skip_reading_prefix_cache=skip, extra_args={KEY: key})
            return key, {"prompt_token_ids": prompts[key] + claims[key][:-1], **salt}, params

        firsts = [len(prompt) - 1 for prompt in prompts]
        self._begin(values, list(zip(firsts, claims, seeds, strict=True)))
        self._run(request(key, False) for key in range(len(seeds)))
        self._run(request(key, True) for key in self._engine.collective_rpc("covey_missed")[0])
        return Frame("replayed", {}, self._take(len(seeds)))

    def _begin(self, values: Mapping[str, Any], claims: Sequence[tuple[int, list[int], int]] = ()) -> None:
        arguments = (values["window"], values["top_k"], values["temperature"], list(claims))
        self._engine.collective_rpc("covey_begin", args=arguments)

    def _take(self, count: int) -> Arrays:
        return load(self._engine.collective_rpc("covey_take", args=(count,))[0])

    def _run(self, requests: Iterable[tuple[int, Any, SamplingParams]]) -> dict[int, list[int]]:
        """Tokens of each request by its key; all run together."""
        for key, prompt, params in requests:
            self._engine.add_request(str(key), prompt, params)
        tokens: dict[int, list[int]] = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    tokens[int(output.request_id)] = list(output.outputs[0].token_ids)
        return tokens


_COMMON = {
    "temperature": 0.0,
    "ignore_eos": True,
    "detokenize": False,
    "output_kind": RequestOutputKind.FINAL_ONLY,
}


def start(question: Frame) -> Serving:
    """Load the policy of the question "start".

    Raises ProtocolError "policy_mismatch", OperatorError "model_unavailable", "model_too_large", "bad_device" or
    "engine_start".
    """
    values = question.values
    require_policy(Path(str(values["folder"])))
    if values["device"] != current_platform.device_type:
        raise OperatorError(
            "bad_device",
            f"this build of vLLM runs on {current_platform.device_type}, not on {values['device']}",
            fix=f"Set device to {current_platform.device_type}; CUDA_VISIBLE_DEVICES chooses among several",
        )
    try:
        serving = Serving(LLMEngine.from_engine_args(build_arguments(values)))
        serving.try_out()
        return serving
    except (ValueError, RuntimeError, NotImplementedError, torch.OutOfMemoryError) as error:
        raise _explain(error) from error


def build_arguments(values: Mapping[str, Any]) -> EngineArgs:
    """What vLLM is started with, from the values of the question "start"."""
    on_cpu = current_platform.is_cpu()
    cache = values["cache_bytes"] or (GIB if on_cpu else None)
    return EngineArgs(
        model=str(values["folder"]),
        dtype=values["dtype"],
        max_model_len=values["max_length"],
        max_num_seqs=values["batch"],
        max_num_batched_tokens=values["batch_tokens"],
        kv_cache_memory_bytes=cache,
        gpu_memory_utilization=values["memory_share"],
        tensor_parallel_size=values["tensor_parallel"],
        enable_prefix_caching=values["prefix_caching"],
        block_size=values["block_size"] or (32 if on_cpu else None),
        enforce_eager=values["eager"],
        load_format="safetensors",
        skip_tokenizer_init=True,  # text is the parent's
        generation_config="vllm",  # the policy's own might change what is sampled
        async_scheduling=False,  # a token's row would be gone when it is known
        trust_remote_code=False,
        worker_extension_cls="covey.engines.vllm.extension.CoveyWorker",
        logits_processors=[SeededSampler],
        seed=0,
        disable_log_stats=True,
    )


def _explain(error: Exception) -> OperatorError | ProtocolError:
    message = " ".join(str(error).split())
    if "memory" in message.lower():
        return OperatorError(
            "model_too_large",
            f"the model does not fit: {message}",
            fix="Raise cache_bytes or memory_share, lower max_length or batch, or raise tensor_parallel",
        )
    return OperatorError("engine_start", f"vLLM does not start: {message}", fix="Choose another model or engine")


def _cut(flat: NDArray[Any], lengths: NDArray[Any]) -> Iterator[list[int]]:
    return (part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1]))
