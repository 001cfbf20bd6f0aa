"""Policies of a pool: loaded into an engine, and refused where they are not what the pool's parameters pin."""

from pathlib import Path

from covey.engines.base import Engine
from covey.model.prompts import require_policy_format
from covey.protocol.params import ModelParams


def load_pool_policy(engine: Engine, folder: Path, version: int, params: ModelParams) -> None:
    """Load the policy of `folder` as every role of a pool does; raise as `Engine.load_policy`.

    Raises ProtocolError("policy_mismatch") where its chat template or its end tokens are not those that `params` pins.
    It is in the engine all the same, and the caller must not use it.
    """
    engine.load_policy(folder, version)
    require_policy_format(engine.tokenizer, engine.end_tokens, params)
