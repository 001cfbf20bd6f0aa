"""Runs the subprocess of the engine `vllm` on a CPU with asynchronous scheduling, which vLLM offers on GPUs only.

Scheduler, model runner and batch are vLLM's own. Streams and events do nothing, because a CPU computes at once.
Run it in place of Python: `python async_on_cpu.py -m covey.engines.vllm.engine_child 3`.
"""

import runpy
import sys
from contextlib import nullcontext
from typing import Any

import torch


class Stream:
    """Stream on which everything has been done."""

    device = torch.device("cpu")

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, _: Any) -> None:
        pass


class Event:
    """Event that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


def allow_asynchronous_scheduling() -> None:
    """Undo what vLLM's platform for CPUs does to the setting."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_keep(cls: type, config: Any) -> None:
        wanted = config.scheduler_config.async_scheduling
        check(cls, config)
        config.scheduler_config.async_scheduling = wanted

    CpuPlatform.check_and_update_config = classmethod(check_and_keep)


def main() -> None:
    """Run the module in the arguments."""
    torch.cuda.Stream, torch.cuda.Event = Stream, Event  # type: ignore[misc, assignment]
    torch.cuda.current_stream = lambda *_: Stream()  # type: ignore[assignment]
    torch.cuda.stream = lambda _: nullcontext()  # type: ignore[assignment, return-value]
    allow_asynchronous_scheduling()
    option, module, *sys.argv[1:] = sys.argv[1:]
    assert option == "-m"
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
