"""Methods added to vLLM's workers and called with `collective_rpc`. Their names begin with `covey_`.

vLLM adds the class as a base of its own worker class. The class therefore has no constructor, and no state before
`covey_install`.
"""

import re
import signal
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.numpy import save
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.platforms import current_platform

from covey.engines.cpu_tuning import disable_amx_tiles
from covey.engines.vllm.exact_head import multiply_in_blocks
from covey.engines.vllm.layer_trace import LayerTrace
from covey.engines.vllm.logits_processor import SeededSampler
from covey.engines.vllm.recorder import KEY, Recorder, ReplayClaim
from covey.model.policy_files import find_changed, read_digests
from covey.model.weight_copies import WeightCopies
from covey.protocol.policy_record import WEIGHTS_FILE
from covey.toploc.topk import Capture

_LAYER = re.compile(r"(.*\.)?layers\.[0-9]+\.")

if current_platform.is_cpu():
    disable_amx_tiles()  # each worker's process imports this module before vLLM builds the worker


class CoveyWorker:
    """Mixin for each worker of the engine."""

    model_runner: Any
    covey_recorder: Recorder
    covey_layer_trace: LayerTrace
    covey_digests: Mapping[str, str]
    """Digests of the loaded tensors by name. Empty if they are unknown."""

    def covey_install(self) -> None:
        """Prepare the worker. Called once after its start."""
        for number in (signal.SIGINT, signal.SIGTERM):  # vLLM would end here, but the parent finishes its work first
            signal.signal(number, signal.SIG_IGN)
        self.covey_digests = {}

        multiply_in_blocks(self.model_runner.get_model())
        processors = self.model_runner.input_batch.logitsprocs.non_argmax_invariant
        sampler = next(each for each in processors if isinstance(each, SeededSampler))
        self.covey_recorder = Recorder(self.model_runner, sampler, get_tensor_model_parallel_rank() == 0)

    def covey_begin(
        self, window: int, top_k: int, temperature: float, claims: list[tuple[int, list[int], int]]
    ) -> None:
        """Prepare for new requests while nothing runs.

        A `window` of 0 captures nothing. `claims` contains the fields of a `ReplayClaim` for each request of a replay.
        It is empty for generations.
        """
        capture = Capture(window=window, top_k=top_k) if window else None
        self.covey_recorder.begin(capture, temperature, [ReplayClaim(*each) for each in claims])

    def covey_take(self, first: int, count: int) -> bytes:
        """Return the arrays of `Recorder.take` for finished requests, as safetensors.

        Only the first worker returns them. All other workers return nothing.
        """
        return save(dict(self.covey_recorder.take(first, count))) if get_tensor_model_parallel_rank() == 0 else b""

    def covey_missed(self) -> list[int]:
        """Return the result of `Recorder.take_missed`."""
        return self.covey_recorder.take_missed()

    def covey_start_trace(self, key: int, position: int) -> None:
        """Trace the layers at one token of the request with a number."""
        self.covey_layer_trace = LayerTrace(self.model_runner, KEY, key, position)

    def covey_stop_trace(self) -> dict[str, str]:
        """Return the result of `LayerTrace.stop`."""
        return self.covey_layer_trace.stop()

    def covey_reload(self, folder: str) -> None:
        """Replace the weights in place. The parent has checked that they fit.

        After the first call only the blocks in which a tensor has changed are loaded, if the policies have records.
        """
        digests = read_digests(Path(folder))
        changed = find_changed(self.covey_digests, digests)
        self.covey_digests = {}  # If the reload fails, the loaded tensors are unknown.
        blocks = None if changed is None else {_get_block(name) for name in changed}
        # With tensor parallelism vLLM takes a part of each tensor, and only that part should be sent.
        is_whole = get_tensor_model_parallel_world_size() == 1
        device = self.model_runner.device if is_whole else torch.device("cpu")
        weights = _read_weights(Path(folder) / WEIGHTS_FILE, blocks, device)
        self.model_runner.reload_weights(weights_iterator=weights)
        self.covey_digests = digests
        for module in self.model_runner.get_model().modules():
            # On a CPU the head has a packed copy of its weights. A reload packs only the weights that it loads. A head
            # that is tied to the embedding is not loaded, so without this it would keep the old policy.
            if isinstance(module, VocabParallelEmbedding):
                module.quant_method.process_weights_after_loading(module)


def _get_block(name: str) -> str:
    """Return the part of the model that has to be loaded as a whole if the tensor `name` has changed.

    vLLM fuses tensors of one decoder layer, such as the projections of queries, keys and values, and a partly loaded
    fused tensor would contain garbage. Example: "model.layers.3." for "model.layers.3.mlp.up_proj.weight".
    """
    found = _LAYER.match(name)
    return found[0] if found else name.rpartition(".")[0]


def _read_weights(path: Path, blocks: Set[str] | None, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a file, or those of some blocks.

    They are on `device`. A GPU gets them through pinned buffers.
    """
    copies = WeightCopies(device)
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  # the file is not a mapping
            if blocks is None or _get_block(name) in blocks:
                yield name, copies.send(file.get_tensor(name))
