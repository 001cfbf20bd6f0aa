"""What the fork server of `processes` imports once, so that each process of the network starts with it.

It has one thread: a fork copies one, and what others hold would stay locked for ever.
"""

import gc
import importlib

MODULES = (
    "coordinator.app",
    "coordinator.api",
    "coordinator.jobs",
    "worker.app",
    "worker.loop",
    "validator.app",
    "validator.loop",
    "trainer.app",
    "trainer.loop",
    "trainer.models",
    "covey.shardcast.app",
    "covey.engines.hf",
    "covey.environments.grading",
    "transformers.models.qwen2.modeling_qwen2",
    "covey.cli",
)


def preload() -> None:
    """Import what the roles import, and load the sampler's kernels.

    All of it stays as long as the processes do, so the collection of garbage passes it over, here and in them: it would
    look through 600,000 objects each time, and copy the memory that the processes share.
    """
    gc.disable()
    for name in MODULES:
        importlib.import_module(name)
    torch = importlib.import_module("torch")
    importlib.import_module("covey.sampling.sampler").load_kernels(torch.device("cpu"))
    gc.freeze()
    gc.enable()


preload()
