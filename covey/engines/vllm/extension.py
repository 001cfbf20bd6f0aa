"""What a vLLM worker gains: methods that `collective_rpc` calls, all beginning with `covey_`.

vLLM makes the class a base of its own worker class, so it has no state or constructor of its own.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.numpy import save
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.platforms import current_platform

from covey.engines.vllm.recorder import Recorder, ReplayClaim
from covey.model.policy_files import WEIGHTS_FILE
from covey.toploc.topk import Capture

if current_platform.is_cpu():
    # With the tiles of AMX a row of bfloat16 depends on the rows beside it, and no replay is bit for bit its original.
    # vLLM asks when a worker is built, and each worker's process imports this before.
    torch.cpu._is_amx_tile_supported = lambda: False


class CoveyWorker:
    """Mixed into each worker of the engine."""

    model_runner: Any
    covey_recorder: Recorder

    def covey_install(self) -> None:
        """Once, after the start."""
        for number in (signal.SIGINT, signal.SIGTERM):  # vLLM would end here, and what is in hand is finished first
            signal.signal(number, signal.SIG_IGN)
        self.covey_recorder = Recorder(self.model_runner, get_tensor_model_parallel_rank() == 0)

    def covey_begin(
        self, window: int, top_k: int, temperature: float, claims: list[tuple[int, list[int], int]]
    ) -> None:
        """Before requests, while nothing runs; `window` 0 captures nothing.  `claims`: as `Claim`, of a replay."""
        capture = Capture(window=window, top_k=top_k) if window else None
        self.covey_recorder.begin(capture, temperature, [ReplayClaim(*each) for each in claims])

    def covey_take(self, first: int, count: int) -> bytes:
        """After some of them, the arrays of `Recorder.take` in safetensors; of the first worker, nothing of others."""
        return save(dict(self.covey_recorder.take(first, count))) if get_tensor_model_parallel_rank() == 0 else b""

    def covey_missed(self) -> list[int]:
        """`Recorder.take_missed`."""
        return self.covey_recorder.take_missed()

    def covey_reload(self, folder: str) -> None:
        """Replace the weights in place by those of a policy that was found to fit."""
        self.model_runner.reload_weights(weights_iterator=_read_weights(Path(folder) / WEIGHTS_FILE))
        for module in self.model_runner.get_model().modules():
            # On a CPU a head holds a packed copy of its weights.  A reload packs anew what it loads, and a head that
            # is tied to the embedding is not loaded, so that it would go on with the old policy.
            if isinstance(module, VocabParallelEmbedding):
                module.quant_method.process_weights_after_loading(module)


def _read_weights(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  # no mapping
            yield name, file.get_tensor(name)
