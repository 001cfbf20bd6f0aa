"""What a trainer refuses at its start, checked without a chain and without loading weights.

`covey pool open` and `covey up` make the same checks, before anything on chain depends on the pool.
"""

import importlib.util
from pathlib import Path

from covey.engines.installation import describe_hardware
from covey.environments.base import Environment, EnvironmentSpec
from covey.environments.grader import CHECKING_PATIENCE, GradingPool
from covey.errors import OperatorError
from covey.protocol.params import TrainingParams
from trainer.config import LearningSettings


def require_trainable(
    config: LearningSettings, params: TrainingParams, environment: Environment, *, source: str | Path | None
) -> None:
    """Check that a trainer with these settings can train with these parameters. `environment` is theirs.

    `source` is the folder or name of the first step's model. None means the tiny model, which is not checked.

    Raises OperatorError("short_rows"), OperatorError("no_held_out"), OperatorError("missing_extra"), or the errors of
    `describe_hardware`, `GradingPool`, `load_config`, `load_tokenizer` and `require_policy_format`.
    """
    config.model.choose_seq_len(params.model.longest)
    describe_hardware(config.device)
    require_extras(config)
    if config.eval.every and not environment.held_out(config.eval.prompts):
        raise OperatorError(
            "no_held_out",
            "the environment has no held-out question, so policies cannot be evaluated",
            fix="Set eval.every = 0 for the trainer, or use a data set with more rows, of which one in eight is "
            "held out",
        )
    if environment.requires_isolation:
        spec = EnvironmentSpec(kind=params.environment.kind, options=params.environment.options)
        GradingPool(spec, environment, params.grading, config, patience=CHECKING_PATIENCE).close()
    if source is not None:
        _require_model(source, params)


def require_extras(config: LearningSettings) -> None:
    """Check that the packages of settings are installed. Raises OperatorError("missing_extra")."""
    named = [("lora.rank", "peft", "lora")] if config.lora.rank is not None else []
    named += [("log.tensorboard", "tensorboard", "tensorboard")] if config.log.tensorboard else []
    named += [("log.sinks", sink, sink) for sink in config.log.sinks]
    for name, package, extra in named:
        if importlib.util.find_spec(package) is None:
            raise OperatorError(
                "missing_extra",
                f"the setting {name} requires the package {package}, which is not installed",
                fix=f"Run pip install 'covey[{extra}]', or remove {name} from the settings",
            )


def _require_model(source: str | Path, params: TrainingParams) -> None:
    from covey.model.policy_files import load_config, load_end_tokens, load_tokenizer
    from covey.model.prompts import require_policy_format

    load_config(source)
    tokenizer = load_tokenizer(source)
    require_policy_format(tokenizer, load_end_tokens(source, tokenizer), params.model)
