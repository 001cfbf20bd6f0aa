"""The sandboxes in which validators and audits decode files and grade completions."""

from covey.environments.base import Environment
from covey.environments.grader import CHECKING_PATIENCE, GradingPool
from covey.network.entry import get_spec
from covey.protocol.params import PoolParams
from covey.protocol.submission_file.decoder import open_decoder
from covey.sandbox import Sandbox
from validator.config import CheckingSettings


def build_decoder(config: CheckingSettings) -> Sandbox:
    """Build the sandbox that decodes rollout files. The caller closes it."""
    return open_decoder(
        cpu_seconds=config.decoding_seconds,
        memory_bytes=config.decoding_memory_bytes,
        isolation=config.isolation,
    )


def build_grader(config: CheckingSettings, params: PoolParams, environment: Environment) -> GradingPool:
    """Build the pool of processes that grade completions. The caller closes it."""
    return GradingPool(get_spec(params), environment, params.grading, config, patience=CHECKING_PATIENCE)
