"""Imports that the fork server of `processes` makes once, so that each process of the network starts with them.

The server has one thread, because a fork copies only one thread, and locks held by others would never be released.
"""

import gc
import importlib

MODULES = (
    "coordinator.app",
    "coordinator.api.application",
    "coordinator.jobs",
    "worker.app",
    "worker.loop",
    "validator.app",
    "validator.loop",
    "trainer.app",
    "trainer.loop",
    "trainer.factories",
    "covey.shardcast.launch",
    "covey.engines.hf.engine",
    "covey.environments.grading_process",
    "transformers.models.qwen2.modeling_qwen2",
    "covey.cli",
)


def preload() -> None:
    """Import what the roles import, and load the sampler's kernels.

    The imported objects are frozen, so that the garbage collector ignores them in this process and its forks. A
    collection would free none of them, but would write to their memory pages and so end the sharing between processes.
    """
    gc.disable()
    for name in MODULES:
        importlib.import_module(name)
    torch = importlib.import_module("torch")
    importlib.import_module("covey.sampling.sampler").load_kernels(torch.device("cpu"))
    gc.freeze()
    gc.enable()


preload()
