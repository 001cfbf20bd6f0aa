"""Builds the components that compute from a trainer's settings: learner, scratch model, regrader and evaluation."""

import json
from pathlib import Path

import torch
from transformers import PreTrainedModel

from covey.engines.hf.engine import HuggingFaceEngine, prepare_process
from covey.engines.installation import describe_hardware
from covey.environments.base import Grader
from covey.model.policy_files import load_end_tokens, load_model, load_tokenizer
from covey.model.prompts import PromptFormat
from covey.model.tiny import tiny_folder
from covey.network.entry import Network
from covey.protocol.params import PoolParams
from covey.runtime.log import get_logger
from covey.runtime.settings import RoleSettings
from trainer.algorithm.forward import PackingConfig, recompute_activations
from trainer.algorithm.grpo import Objective
from trainer.algorithm.learner import Learner, Optimiser
from trainer.algorithm.logprobs import Recomputer
from trainer.algorithm.lora import add_adapters
from trainer.config import TrainerConfig
from trainer.data.regrading import Regrader
from trainer.distributed.commands import RankCommand, Verb
from trainer.distributed.ranks import ALONE, Ranks
from trainer.monitoring.evaluation import Evaluator

OWN = {*RoleSettings.model_fields, "origin_root", "initial_policy"}
"""Names of the settings that each process reads for itself. For all other settings rank 0's values apply."""


def get_source(config: TrainerConfig) -> str | Path:
    """Return the folder or name of the first step's model."""
    return config.initial_policy or tiny_folder()


def build_learner(config: TrainerConfig, params: PoolParams, ranks: Ranks = ALONE) -> tuple[Learner, Recomputer | None]:
    """Build the learner with the master weights of the first step and a new optimizer.

    The second value is a scratch model that computes log-probabilities under published policies. It is None if no
    setting requires them. All ranks call this at the same time.

    Raises OperatorError("short_rows") if a sample of the pool could be longer than a row.
    Raises OperatorError("bad_device") if torch cannot use the device.
    """
    config.require_long_rows(params.model.longest)
    describe_hardware(config.device)
    prepare_process(threads=config.threads)
    torch.use_deterministic_algorithms(config.device == "cpu")
    dtype = params.model.compute_dtype
    shape = PackingConfig(
        seq_len=config.seq_len,
        micro_batch_size=config.micro_batch_size,
        compute_dtype=dtype,
        temperature=params.model.temperature,
    )
    model = _load(config, "float32", ranks)
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
        warm_up=config.warmup_steps,
        clip=config.max_grad_norm,
    )
    objective = Objective(
        kind=config.objective,
        epsilon=config.clip_epsilon,
        delta=config.clip_delta,
        cap=config.importance_cap,
        kl=config.kl_coef,
        kl_estimator=config.kl_estimator,
        entropy=config.entropy_coef,
    )
    with ranks.together(RankCommand(verb=Verb.BUILD, text=encode_plan(config, params))):
        learner = Learner(model, optimiser=optimiser, objective=objective, shape=shape, ranks=ranks)
        if config.old_policy == "recompute" and config.kl_coef == 0:
            return learner, None
        return learner, Recomputer(_load(config, dtype, ranks), shape, ranks)


def _load(config: TrainerConfig, dtype: str, ranks: Ranks) -> PreTrainedModel:
    """Load the model of the first step.

    With several ranks each loads it into main memory, because its device may have room for only a shard.
    """
    model = load_model(get_source(config), dtype)
    if not ranks.is_shared:
        torch.nn.Module.to(model, config.device)
    return model


def encode_plan(config: TrainerConfig, params: PoolParams) -> str:
    """Encode the settings and pool parameters that all ranks use, as JSON."""
    return json.dumps(
        {"settings": config.model_dump(mode="json", exclude=OWN), "params": params.model_dump(mode="json")}
    )


def decode_plan(text: str, config: TrainerConfig) -> tuple[TrainerConfig, PoolParams]:
    """Decode the pool's parameters and rank 0's settings. Settings in OWN keep this process's values."""
    plan = json.loads(text)
    settings = plan["settings"] | config.model_dump(include=OWN)
    return TrainerConfig.model_validate(settings), PoolParams.model_validate(plan["params"])


def build_regrader(config: TrainerConfig, network: Network, *, vocabulary: int, grade: Grader) -> Regrader:
    """Build the regrader for work that no quorum replayed.

    It has its own environment and tokenizer, because its threads run concurrently with the evaluation.
    """
    source = get_source(config)
    tokenizer = load_tokenizer(source)
    return Regrader(
        pool=network.pool,
        environment=network.load_environment(),
        tokenizer=tokenizer,
        format=PromptFormat.of(network.params.model),
        ends=load_end_tokens(source, tokenizer),
        limit=network.params.model.max_completion_tokens,
        longest_prompt=network.params.model.max_prompt_tokens,
        vocabulary=vocabulary,
        grade=grade,
        limits=network.params.grading,
    )


def build_evaluator(config: TrainerConfig, network: Network, *, grade: Grader) -> Evaluator:
    """Build the evaluation with its own engine. If there are fewer held-out prompts than are set, it uses all."""
    rules, environment = network.params.model, network.load_environment()
    prompts = config.evaluation_prompts
    if config.evaluation_every:
        prompts = len(environment.held_out(prompts))
        if prompts < config.evaluation_prompts:
            get_logger().warning("fewer held-out prompts than set", found=prompts, set=config.evaluation_prompts)
    engine = HuggingFaceEngine(
        dtype=rules.compute_dtype, max_batch=config.evaluation_batch, base=get_source(config), device=config.device
    )
    return Evaluator(
        engine=engine,
        environment=environment,
        grade=grade,
        prompts=prompts,
        samples=config.evaluation_samples,
        seed=config.seed,
        max_tokens=rules.max_completion_tokens,
        temperature=rules.temperature,
        format=PromptFormat.of(rules),
    )
