"""The engine of a run, which generates. vLLM also evaluates, and sleeps while the learner needs its GPU."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType

from covey.engines.base import Engine
from covey.engines.factory import build_engine
from covey.engines.process_memory import release_cache
from covey.engines.vllm.engine import VllmEngine
from covey.environments.base import Environment
from covey.errors import OperatorError
from covey.model.prompts import PromptFormat, encode_prompt
from covey.model.text import Tokenizer
from covey.protocol.params import TrainingParams
from covey.standalone.config import TrainConfig

SHARED_UTILIZATION = 0.4
"""Share of a GPU's memory that vLLM takes if the settings name none. The learner needs the rest."""


def _do_nothing() -> None:
    pass


class EngineTurns:
    """Turns of generator and evaluation at one engine. Use it as a context manager around each load and generation.

    Raises OperatorError("model_too_large") with the names of a run's settings instead of the engine's.
    """

    def __init__(self, *, before: Callable[[], None] = _do_nothing, after: Callable[[], None] = _do_nothing) -> None:
        """`before` and `after` are called in each turn, for example to free memory for the engine and the learner."""
        self._before, self._after, self._lock = before, after, threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            self._before()
        except RuntimeError:
            self._lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:  # otherwise the engine may be gone, and the run ends or starts it again
                self._after()
        finally:
            self._lock.release()
        if isinstance(error, OperatorError) and error.code == "model_too_large":
            raise OperatorError(
                "model_too_large",
                f"vLLM did not start: {error.message.removesuffix(f'. {error.fix}')}",
                fix="Raise sampling.vllm.gpu_memory_utilization, or lower it if the learner's share of the memory is "
                "too small; or lower sampling.max_batch, or name another GPU in sampling.device",
            ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEngine:
    """An engine and who may use it."""

    engine: Engine
    device: str
    """Device of the engine and of the evaluation."""
    evaluates: bool
    """Whether the engine also evaluates. Otherwise the evaluation has an engine of its own."""
    turn: AbstractContextManager[None]
    """Context of each load and generation."""
    is_alone: bool
    """Whether the learner may compute only while nothing is generated or evaluated."""


def build_run_engine(
    name: str,
    config: TrainConfig,
    params: TrainingParams,
    *,
    environment: Environment,
    tokenizer: Tokenizer,
    learner: str,
) -> RunEngine:
    """Build the engine of a run without a policy. `learner` is the learner's device.

    vLLM sleeps between its turns if it shares a GPU with the learner and they take turns, unless
    `vllm.enable_sleep_mode` is false.
    """
    model, device = params.model, config.sampling.device or learner
    is_vllm, is_shared = name == "vllm", _complete(device) == _complete(learner) and not device.startswith("cpu")
    is_wanted = config.sampling.vllm.enable_sleep_mode is not False and params.max_staleness == 0
    sleeps = is_vllm and is_shared and is_wanted
    questions = _measure_questions(config, params, environment, tokenizer) if is_vllm else 0
    options = config.sampling.vllm.fit(max(model.longest, questions)).model_copy(update={"enable_sleep_mode": sleeps})
    if is_shared and "gpu_memory_utilization" not in config.sampling.vllm.model_fields_set:
        options = options.model_copy(update={"gpu_memory_utilization": SHARED_UTILIZATION})
    engine = build_engine(
        name,
        dtype=model.compute_dtype,
        batch=config.sampling.max_batch,
        device=device,
        threads=config.threads,
        vllm=options,
    )
    turn: AbstractContextManager[None] = nullcontext()
    if isinstance(engine, VllmEngine):
        turn = EngineTurns(before=release_cache, after=engine.sleep) if sleeps else EngineTurns()
    return RunEngine(engine=engine, device=device, evaluates=is_vllm, turn=turn, is_alone=sleeps)


def _complete(device: str) -> str:
    """Return the name of a device with its number."""
    return "cuda:0" if device == "cuda" else device


def _measure_questions(
    config: TrainConfig, params: TrainingParams, environment: Environment, tokenizer: Tokenizer
) -> int:
    """Return the maximum number of tokens of a held-out question and its completion. 0 without evaluations."""
    if not config.eval.every:
        return 0
    format = PromptFormat.of(params.model)
    prompts = environment.held_out(config.eval.prompts)
    lengths = [len(encode_prompt(tokenizer, each.text, system=each.system, format=format)) for each in prompts]
    return max(lengths, default=0) + params.model.max_completion_tokens
