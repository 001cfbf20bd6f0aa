"""Builds the components that compute from a trainer's settings: learner, scratch model, regrader and evaluation."""

import json
from pathlib import Path
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from covey.engines.base import Engine
from covey.engines.hf.engine import HuggingFaceEngine, prepare_process
from covey.engines.installation import describe_hardware
from covey.environments.base import Environment, EnvironmentSpec, Grader
from covey.errors import OperatorError
from covey.model.policy_files import DTYPES, load_end_tokens, load_model, load_tokenizer
from covey.model.prompts import PromptFormat
from covey.model.tiny import tiny_folder
from covey.network.entry import Network
from covey.protocol.params import TrainingParams
from covey.runtime.log import get_logger
from trainer.algorithm.compilation import compile_layers
from trainer.algorithm.custom_functions import load_function
from trainer.algorithm.forward import PackingConfig, recompute_activations
from trainer.algorithm.learner import Learner, Optimiser
from trainer.algorithm.logprobs import Recomputer
from trainer.algorithm.lora import add_adapters, fill_adapters
from trainer.config import LEARNING, LearningSettings
from trainer.data.regrading import Regrader
from trainer.distributed.commands import RankCommand, Verb
from trainer.distributed.loading import build_empty_model, load_shards
from trainer.distributed.ranks import ALONE, Ranks
from trainer.monitoring.evaluation import Evaluator

LearningConfig = TypeVar("LearningConfig", bound=LearningSettings)


def get_source(config: LearningSettings) -> str | Path:
    """Return the folder or name of the first step's model."""
    return config.model.path or tiny_folder()


def build_learner(
    config: LearningSettings, params: TrainingParams, ranks: Ranks = ALONE
) -> tuple[Learner, Recomputer | None]:
    """Build the learner with the master weights of the first step and a new optimizer.

    The second value is a scratch model that computes log-probabilities under published policies. It is None if no
    setting requires them. All ranks call this at the same time.

    Raises OperatorError("short_rows") if a sample of the pool could be longer than a row.
    Raises OperatorError("bad_settings") if a custom function cannot be imported.
    Raises OperatorError("bad_device") if torch cannot use the device.
    """
    longest = params.model.longest
    seq_len, rows = config.model.choose_seq_len(longest), config.model.choose_micro_batch_size(longest)
    _require_loss(config, params)
    describe_hardware(config.device)
    prepare_process(threads=config.threads)
    is_repeatable = config.device == "cpu"  # on a GPU some kernels have no deterministic variant, and would be refused
    torch.use_deterministic_algorithms(is_repeatable or config.ckpt.every > 1, warn_only=not is_repeatable)
    dtype = params.model.compute_dtype
    shape = PackingConfig(
        seq_len=seq_len,
        micro_batch_size=rows,
        compute_dtype=dtype,
        temperature=params.model.temperature,
        sync_each_batch=config.model.sync_each_batch,
        activation_offload=config.model.activation_offload,
    )
    model = _load(config, "float32", ranks)
    lora = config.lora
    if lora.rank is not None:
        add_adapters(model, rank=lora.rank, alpha=lora.alpha, targets=lora.target_modules, dtype=DTYPES[dtype])

    def fill(model: PreTrainedModel) -> None:
        if ranks.is_shared:
            load_shards(model, get_source(config))
        if lora.rank is not None:
            fill_adapters(model, config.seed)

    if not ranks.is_shared:
        fill(model)
        if not config.model.optimizer_offload:
            torch.nn.Module.to(model, config.device)
    named = config.model.compile
    is_compiled = torch.device(config.device).type == "cuda" if named is None else named
    if config.model.activation_checkpointing:
        recompute_activations(model)
    if is_compiled:
        compile_layers(model)
    optim = config.optim
    optimiser = Optimiser(
        learning_rate=optim.learning_rate,
        betas=optim.betas,
        epsilon=optim.adam_epsilon,
        weight_decay=optim.weight_decay,
        warm_up=optim.warmup_steps,
        clip=optim.max_grad_norm,
        offload=config.model.optimizer_offload,
    )
    with ranks.together(RankCommand(verb=Verb.BUILD, text=encode_plan(config, params))):
        learner = Learner(
            model,
            optimiser=optimiser,
            objective=config.loss,
            shape=shape,
            ranks=ranks,
            fill=fill,
            device=torch.device(config.device),
        )
        if config.loss.old_policy != "behaviour" and config.loss.beta == 0:
            return learner, None
        scratch = _load(config, dtype, ranks)
        if is_compiled:
            compile_layers(scratch)
        if not ranks.is_shared:
            torch.nn.Module.to(scratch, config.device)
        return learner, Recomputer(scratch, shape, ranks)


def _require_loss(config: LearningSettings, params: TrainingParams) -> None:
    """Raise OperatorError("bad_settings") if the objective cannot be used with the pool, or on this rank."""
    if config.loss.custom_advantage is not None:
        load_function(config.loss.custom_advantage, "loss.custom_advantage")
    if config.loss.old_policy == "claimed" and params.model.temperature != 1:
        raise OperatorError(
            "bad_settings",
            f"loss.old_policy is claimed, but the pool samples at temperature {params.model.temperature}, and workers"
            " claim log-probabilities at temperature 1",
            fix="Set loss.old_policy to behaviour",
        )


def _load(config: LearningSettings, dtype: str, ranks: Ranks) -> PreTrainedModel:
    """Load the model of the first step into main memory. With several ranks it has no values yet."""
    return (build_empty_model if ranks.is_shared else load_model)(get_source(config), dtype)


def encode_plan(config: LearningSettings, params: TrainingParams) -> str:
    """Encode the settings of learning and the pool's parameters, which all ranks use, as JSON."""
    return json.dumps(
        {
            "settings": config.model_dump(mode="json", include=LEARNING),
            "params": params.model_dump(mode="json", include=set(TrainingParams.model_fields)),
        }
    )


def decode_plan(text: str, config: LearningConfig) -> tuple[LearningConfig, TrainingParams]:
    """Decode the pool's parameters and rank 0's settings.

    A model's path that is set in `config`, and what does not belong to learning, are this process's own.
    """
    plan = json.loads(text)
    settings = config.model_dump(exclude=LEARNING) | plan["settings"]
    settings["model"]["path"] = config.model.path or settings["model"]["path"]
    return type(config).model_validate(settings), TrainingParams.model_validate(plan["params"])


def build_regrader(config: LearningSettings, network: Network, *, vocabulary: int, grade: Grader) -> Regrader:
    """Build the regrader for work that no quorum replayed.

    It has its own environment and tokenizer, because its threads run concurrently with the evaluation.
    """
    source = get_source(config)
    tokenizer = load_tokenizer(source)
    return Regrader(
        pool=network.pool,
        spec=EnvironmentSpec(kind=network.params.environment.kind, options=network.params.environment.options),
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


def build_evaluator(
    config: LearningSettings,
    params: TrainingParams,
    environment: Environment,
    *,
    grade: Grader,
    engine: Engine | None = None,
) -> Evaluator:
    """Build the evaluation, by default with an engine of its own.

    If there are fewer held-out prompts than are set, it uses all.

    No other thread may use `environment`, because the evaluation runs concurrently with the training.
    """
    rules, prompts = params.model, config.eval.prompts
    if config.eval.every:
        prompts = len(environment.held_out(prompts))
        if prompts < config.eval.prompts:
            get_logger().warning("fewer held-out prompts than set", found=prompts, set=config.eval.prompts)
    engine = engine or HuggingFaceEngine(
        dtype=rules.compute_dtype, max_batch=config.eval.max_batch, base=get_source(config), device=config.device
    )
    return Evaluator(
        engine=engine,
        environment=environment,
        grade=grade,
        prompts=prompts,
        samples=config.eval.samples,
        seed=config.seed,
        max_tokens=rules.max_completion_tokens,
        temperature=rules.temperature,
        format=PromptFormat.of(rules),
    )
