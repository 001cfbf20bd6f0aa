"""The module of kind "verifiers" that imports the package: it loads a taskset and scores replies.

It runs under a Python that has verifiers 0.4 but need not have Covey, so apart from verifiers it imports only
the standard library. As a script it reads one request, a line of JSON on standard input, and writes lines of
JSON to standard output. `python -P verifiers_server.py versions` lists the package versions, and `python -P
verifiers_server.py tasks` also lists the tasks. A grading process imports the module and uses `Scorer`.
"""

import asyncio
import hashlib
import importlib.metadata
import inspect
import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import verifiers.v1 as vf

MAX_TASKS = 100_000
"""Maximum number of tasks of one taskset. A larger taskset must be truncated with the option `tasks`."""
RefusalCode = Literal["no_verifiers", "no_taskset", "bad_taskset"]


class TasksetRefusal(Exception):  # noqa: N818
    """Raised for a taskset that cannot be used. `code` becomes the code of an OperatorError."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code: RefusalCode = code


@dataclass(frozen=True, kw_only=True)
class Score:
    """Reward of one reply. Example: Score(reward=0.75, parts={"right": 0.75, "form": 0.0})."""

    reward: float
    """Sum of the parts, or 0 if scoring failed or the sum is NaN or Inf."""
    parts: Mapping[str, float]
    """Weighted score of each reward, by the reward's name."""


class Scorer:
    """Scores replies to the tasks of a taskset, without loading the taskset's data.

    Example: Scorer("arithmetic-tasks", {}).score({"prompt": "What is 2 + 3?", "truth": 5}, "<answer>5</answer>").
    """

    def __init__(self, taskset: str, config: Mapping[str, object]) -> None:
        """Import the taskset's package. Raises TasksetRefusal if it does not load or rejects the config."""
        self._config = _read_config(taskset, config).task
        self._task_type = _find_class(taskset).task_type()
        self._data_type = self._task_type.data_type()

    def warm_up(self) -> None:
        """Score a reply to a task without rewards, so that one-time set-up is done before the first grade."""
        import verifiers.v1 as vf

        task: vf.Task[vf.TaskData] = vf.Task(vf.TaskData(prompt="Is this the first task?"))
        asyncio.run(task.score(_build_trace(task, "It is.")))

    def score(self, data: Mapping[str, object], text: str) -> Score:
        """Score a reply to a task. `data` comes from `list_tasks`. Raises ValueError if it is malformed."""
        import verifiers.v1 as vf

        task = self._task_type(self._data_type.model_validate(dict(data)), self._config)
        trace = _build_trace(task, text)
        try:
            asyncio.run(task.score(trace))
        except vf.RolloutError as error:
            # verifiers wraps the exceptions of rewards. Lack of memory is a limit of the grade. Any other exception
            # makes the answer wrong.
            if isinstance(error.__cause__, MemoryError):
                raise MemoryError from error
            return Score(reward=0.0, parts={})
        parts = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        reward = math.fsum(parts.values())
        return Score(reward=reward if math.isfinite(reward) else 0.0, parts=parts)


def find_module(taskset: str) -> str:
    """Return the name of the module that contains a taskset, which verifiers derives from the taskset's id."""
    return taskset.replace("-", "_").lower()


def list_versions(taskset: str) -> dict[str, str]:
    """Return the versions of verifiers and the taskset's package. Raises TasksetRefusal if one is not installed."""
    module = find_module(taskset)
    try:
        versions = {"verifiers": importlib.metadata.version("verifiers")}
    except importlib.metadata.PackageNotFoundError as error:
        raise TasksetRefusal("no_verifiers", f"the package verifiers is not installed in {sys.executable}") from error
    packages = importlib.metadata.packages_distributions().get(module, [])
    if not packages or module in sys.stdlib_module_names:
        raise TasksetRefusal("no_taskset", f"no package with the taskset {taskset!r} is installed in {sys.executable}")
    return versions | {name: importlib.metadata.version(name) for name in sorted(set(packages))}


def list_tasks(taskset: str, config: Mapping[str, object], count: int | None) -> Iterator[dict[str, object]]:
    """Yield {"data", "question", "system"} for each of the first `count` tasks, then {"data_hash", "count"}.

    None as `count` means all tasks. `data_hash` is the SHA-256 of the tasks' own hashes, each followed by a
    newline. Raises TasksetRefusal if the taskset or one of its tasks cannot be used.
    """
    tasks = _open_taskset(taskset, config)
    if count is not None:
        tasks = tasks.take(count)
    if not tasks.bounded:
        raise TasksetRefusal(
            "bad_taskset", f"the taskset {taskset!r} has infinitely many tasks, but the option tasks is not set"
        )
    total, digest = 0, hashlib.sha256()
    for task in tasks:
        if total == 0:
            _require_single_turn(task)
        if total == MAX_TASKS:
            raise TasksetRefusal(
                "bad_taskset",
                f"the taskset {taskset!r} has more than {MAX_TASKS} tasks, but the option tasks is not set",
            )
        yield _describe(task, tasks)
        digest.update(f"{task.hash}\n".encode())
        total += 1
    yield {"data_hash": f"0x{digest.hexdigest()}", "count": total}


def _find_class(taskset: str) -> "type[vf.Taskset]":
    try:
        from verifiers.v1.utils.loaders import taskset_class
    except ImportError as error:
        raise TasksetRefusal("no_verifiers", f"the package verifiers 0.4 could not be imported: {error}") from error
    try:
        kind: type[vf.Taskset] = taskset_class(taskset)
        return kind
    except ModuleNotFoundError as error:
        raise TasksetRefusal("no_taskset", f"the taskset {taskset!r} could not be imported: {error}") from error
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise TasksetRefusal("bad_taskset", f"the taskset {taskset!r} could not be imported: {error}") from error


def _read_config(taskset: str, config: Mapping[str, object]) -> "vf.TasksetConfig":
    _find_class(taskset)
    from verifiers.v1.utils.loaders import taskset_config_type

    try:
        return taskset_config_type(taskset).model_validate({**config, "id": taskset})
    except ValueError as error:
        raise TasksetRefusal("bad_taskset", f"the taskset {taskset!r} rejected its config: {error}") from error


def _open_taskset(taskset: str, config: Mapping[str, object]) -> "vf.Taskset":
    import verifiers.v1 as vf

    kind = _find_class(taskset)
    if vf.environment_class(taskset) is not vf.SingleAgentEnv:
        raise TasksetRefusal(
            "bad_taskset",
            f"the taskset {taskset!r} has its own environment with several turns, but only one turn is supported",
        )
    if _is_overridden(kind, vf.Taskset, "toolsets"):
        raise TasksetRefusal(
            "bad_taskset",
            f"the taskset {taskset!r} has tools, which need several turns, but only one turn is supported",
        )
    return kind(_read_config(taskset, config))


def _require_single_turn(task: "vf.Task") -> None:
    """Require that the reward depends only on the text of one reply. Raises TasksetRefusal otherwise."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.decorators import discover_decorated

    kind, reason = type(task), ""
    hooks = [name for name in ("setup", "finalize", "stage_verifier") if _is_overridden(kind, vf.Task, name)]
    rewards = [reward.__name__ for reward in task.hooks("reward") if _requires_runtime(reward)]
    if rewards:
        reason = f"its rewards {', '.join(rewards)} need a runtime"
    elif hooks or kind.NEEDS_CONTAINER:
        reason = f"its tasks need a runtime for {', '.join(hooks) or 'a container'}"
    elif task.config.judges:
        reason = "its completions are judged by a model"
    elif _is_overridden(kind, vf.Task, "toolsets"):
        reason = "its tasks have tools, which need several turns"
    elif discover_decorated(task, "intercept"):
        reason = "its tasks modify messages"
    elif not task.hooks("reward"):
        reason = "its tasks have no rewards"
    if reason:
        raise TasksetRefusal("bad_taskset", f"the taskset of {kind.__name__} is not supported: {reason}")


def _requires_runtime(reward: object) -> bool:
    parameter = inspect.signature(reward).parameters.get("runtime") if callable(reward) else None
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _is_overridden(kind: type, base: type, name: str) -> bool:
    return inspect.getattr_static(kind, name) is not inspect.getattr_static(base, name)


def _describe(task: "vf.Task", tasks: "vf.Taskset") -> dict[str, object]:
    """Describe a task as JSON. Raises TasksetRefusal if the task cannot be rebuilt from that description."""
    kind, index = type(tasks).task_type(), task.data.idx
    if type(task) is not kind or task.config != tasks.config.task:
        raise TasksetRefusal(
            "bad_taskset", f"task {index} is not of type {kind.__name__}, or its config differs from its taskset's"
        )
    if task.data.image is not None or task.data.skills or task.data.artifacts:
        raise TasksetRefusal("bad_taskset", f"task {index} has an image, skills or artifacts, which need a runtime")
    system, question = _read_prompt(task.data)
    data = task.data.model_dump(mode="json", exclude_none=True)
    if kind(kind.data_type().model_validate(data), task.config).hash != task.hash:
        raise TasksetRefusal("bad_taskset", f"the data of task {index} is changed by conversion to JSON and back")
    return {"data": data, "question": question, "system": system}


def _read_prompt(data: "vf.TaskData") -> tuple[str, str]:
    """Return the system message and the question of a task.

    Raises TasksetRefusal for a prompt that has several turns or images.
    """
    import verifiers.v1 as vf

    if isinstance(data.prompt, str):
        messages: list[vf.Message] = [vf.UserMessage(content=data.prompt)]
    else:
        messages = list(data.prompt or [])
    texts = [message.content for message in messages]
    roles = [message.role for message in messages]
    if roles not in (["user"], ["system", "user"]) or not all(isinstance(text, str) and text for text in texts):
        raise TasksetRefusal("bad_taskset", f"the prompt of task {data.idx} is not a single user message with text")
    systems = [text for text in (data.system_prompt, *texts[:-1]) if text]
    return "\n\n".join(map(str, systems)), str(texts[-1])


@cache
def _read_version() -> str:
    return importlib.metadata.version("verifiers")


def _build_trace(task: "vf.Task", text: str) -> "vf.Trace":
    """Build a trace of one turn: the task's prompt, and the reply as the only sampled message."""
    import verifiers.v1 as vf
    from verifiers.v1.state import state_cls

    system, question = _read_prompt(task.data)
    messages: list[vf.Message] = [vf.SystemMessage(content=system)] if system else []
    messages += [vf.UserMessage(content=question), vf.AssistantMessage(content=text)]
    last = len(messages) - 1
    nodes = [
        vf.MessageNode(parent=index - 1 if index else None, message=message, sampled=index == last)
        for index, message in enumerate(messages)
    ]
    trace = vf.Trace(
        # The default value would start a git process to find a commit.
        verifiers=vf.VersionInfo(version=_read_version()),
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        state=state_cls(type(task))(),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
        calls=[vf.ModelCall(node=last, finish_reason="stop")],
    )
    trace.stop("agent_completed")
    return trace


def _answer(order: str, request: Mapping[str, object]) -> Iterable[dict[str, object]]:
    taskset, config, count = request["taskset"], request["config"], request["tasks"]
    if not isinstance(taskset, str) or not isinstance(config, dict) or not isinstance(count, int | None):
        raise ValueError("the request has fields of the wrong type")
    python = ".".join(platform.python_version_tuple()[:2])
    yield {"python": python, "versions": list_versions(taskset)}
    if order == "tasks":
        yield from list_tasks(taskset, config, count)


def main() -> None:
    """Write the response to the request. On failure its last line is {"refusal": code, "message": text}."""
    # The output of a taskset's own print calls must not be read as an answer.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        try:
            for answer in _answer(sys.argv[1], json.loads(sys.stdin.readline())):
                answers.write(json.dumps(answer) + "\n")
        except TasksetRefusal as refusal:
            answers.write(json.dumps({"refusal": refusal.code, "message": str(refusal)}) + "\n")


if __name__ == "__main__":
    main()
