"""What computes in a trainer, composed of its settings: learner and scratch model, the evaluation and its engine.

Called by `app`, and by `follower` for the ranks beside rank 0.
"""

from pathlib import Path

import torch

from covey.engines.hf import HuggingFaceEngine, prepare_process
from covey.errors import OperatorError
from covey.model.files import load_model
from covey.model.tiny import tiny_folder
from covey.network import Network
from covey.protocol.params import PoolParams
from trainer.adapters import add_adapters
from trainer.config import TrainerConfig
from trainer.evaluation import Evaluator
from trainer.forward import Shape, recompute_activations
from trainer.grpo import Objective
from trainer.learner import Learner, Optimiser, Recomputer
from trainer.orders import Order, Verb
from trainer.ranks import ALONE, Ranks


def get_source(config: TrainerConfig) -> str | Path:
    """The model of the first step."""
    return config.initial_policy or tiny_folder()


def build_learner(config: TrainerConfig, params: PoolParams, ranks: Ranks = ALONE) -> tuple[Learner, Recomputer | None]:
    """The masters of the first step with a fresh optimizer, and a scratch model beside them where the settings ask for
    log-probabilities under published policies; on all ranks at once.

    Raises OperatorError("short_rows") where a sample of the pool could be longer than a row.
    """
    if config.row_tokens < params.model.longest:
        raise OperatorError(
            "short_rows",
            f"row_tokens is {config.row_tokens}, a prompt and its completion have up to {params.model.longest} tokens",
            fix=f"Set row_tokens to {params.model.longest} at least",
        )
    prepare_process(threads=config.threads)
    torch.use_deterministic_algorithms(config.device == "cpu")
    dtype = params.model.compute_dtype
    shape = Shape(
        row_tokens=config.row_tokens,
        micro_batch_rows=config.micro_batch_rows,
        compute_dtype=dtype,
        temperature=params.model.temperature,
    )
    model = load_model(get_source(config), "float32")
    torch.nn.Module.to(model, config.device)
    if config.lora_rank is not None:
        add_adapters(
            model, rank=config.lora_rank, alpha=config.lora_alpha, targets=config.lora_targets, seed=config.seed
        )
    if config.activation_checkpointing:
        recompute_activations(model)
    optimiser = Optimiser(
        learning_rate=config.learning_rate,
        betas=config.betas,
        epsilon=config.adam_epsilon,
        weight_decay=config.weight_decay,
        warm_up=config.warm_up_updates,
        clip=config.gradient_clip,
    )
    objective = Objective(
        kind=config.objective,
        epsilon=config.clip_epsilon,
        delta=config.clip_delta,
        cap=config.importance_cap,
        kl=config.kl_coefficient,
        entropy=config.entropy_coefficient,
    )
    with ranks.together(Order(verb=Verb.BUILD, text=params.model_dump_json())):
        learner = Learner(model, optimiser=optimiser, objective=objective, shape=shape, ranks=ranks)
    if config.old_policy == "recompute" and config.kl_coefficient == 0:
        return learner, None
    scratch = load_model(get_source(config), dtype)
    torch.nn.Module.to(scratch, config.device)
    return learner, Recomputer(scratch, shape, ranks)


def build_evaluator(config: TrainerConfig, network: Network) -> Evaluator:
    """The evaluation with an engine of its own."""
    rules = network.params.model
    engine = HuggingFaceEngine(
        dtype=rules.compute_dtype, max_batch=config.evaluation_batch, base=get_source(config), device=config.device
    )
    return Evaluator(
        engine=engine,
        environment=network.load_environment(),
        prompts=config.evaluation_prompts,
        samples=config.evaluation_samples,
        seed=config.seed,
        max_tokens=rules.max_completion_tokens,
        temperature=rules.temperature,
    )
