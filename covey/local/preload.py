"""What the fork server of `processes` imports once, so that each process of the network starts with it.

It has one thread: a fork copies one, and what others hold would stay locked for ever.
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
    "covey.shardcast.app",
    "covey.engines.hf.engine",
    "covey.environments.grading_process",
    "transformers.models.qwen2.modeling_qwen2",
    "covey.cli",
)


def preload() -> None:
    """Import what the roles import, and load the sampler's kernels.

    What was imported is frozen, so that the garbage collector leaves it alone in this process and its forks.  A
    collection would find nothing in it to free, and would write to memory pages, which ends their sharing.
    """
    gc.disable()
    for name in MODULES:
        importlib.import_module(name)
    torch = importlib.import_module("torch")
    importlib.import_module("covey.sampling.sampler").load_kernels(torch.device("cpu"))
    gc.freeze()
    gc.enable()


preload()
