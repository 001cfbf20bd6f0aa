"""Loads a pool's policies into an engine, and rejects policies that do not match the pool's parameters."""

from pathlib import Path

from covey.engines.base import Engine
from covey.model.prompts import require_policy_format
from covey.protocol.params import ModelParams


def load_pool_policy(engine: Engine, folder: Path, version: int, params: ModelParams) -> None:
    """Load the policy in `folder` into the engine, with the checks that every role of a pool makes.

    Raises the errors of `Engine.load_policy`. Raises ProtocolError("policy_mismatch") if the chat template or the end
    tokens differ from those in `params`. In this case the policy is already loaded, and the caller must not use it.
    """
    engine.load_policy(folder, version)
    require_policy_format(engine.tokenizer, engine.end_tokens, params)
