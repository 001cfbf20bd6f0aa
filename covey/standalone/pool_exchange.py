"""The way from a run on one machine to a pool, and back: `covey init pool --from`, `covey train --from-pool`."""

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from covey.environments.base import EnvironmentSpec
from covey.errors import OperatorError
from covey.local.plan import read_shipped_params
from covey.local.sizing import Sizes, choose_pool_sizes
from covey.network.coordinator_client import CoordinatorClient
from covey.network.entry import load_environment
from covey.network.public_policies import choose_policy, fetch_policy, require_on_chain
from covey.protocol.api.public import PoolView, StatusView
from covey.protocol.params import PoolParams, TrainingParams
from covey.shardcast.policy_folder import read_step
from covey.shardcast.policy_store import PolicyStore
from covey.standalone.config import DataSection, TrainConfig
from covey.standalone.manifest import list_values, read_manifest
from covey.standalone.preparation import DATA_SET, Questions, prepare
from covey.standalone.run import PARAMS_FILE
from covey.tasks.catalog import DataSetCatalog, list_digests
from trainer.config import LEARNING

POLICIES = "policies"
"""Folder of the pool's policy from which a run starts, below its home."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolDraft:
    """What a run on one machine determines of a new pool; the fields of `PoolPlan` with the same names."""

    environment: EnvironmentSpec
    model: str | None
    data_set: Path | None
    sizes: Sizes
    training: TrainingParams
    learning: dict[str, Any]
    device: str


def load_run(path: Path) -> TrainConfig:
    """Return the settings in a TOML file, or those of a run by its folder or its manifest.

    Raises the errors of `TrainConfig.load`, `read_manifest` and `list_values`, and OperatorError("bad_settings") if the
    run has the questions of a pool.
    """
    if not path.is_dir() and path.suffix != ".json":
        return TrainConfig.load(path, {})
    manifest = read_manifest(path)
    if manifest.from_pool is not None:
        raise OperatorError(
            "bad_settings",
            f"the run {path} has the questions of the pool at {manifest.from_pool}, which its manifest does not "
            "contain",
            fix="Create the pool with the settings of that pool, as docs/guides/run-a-pool.md shows",
        )
    return TrainConfig.load(None, list_values(manifest, (path if path.is_dir() else path.parent) / DATA_SET))


def draft_pool(config: TrainConfig, scratch: Path) -> PoolDraft:
    """Turn a run's settings into those of a pool with the same model, questions, lengths, loss and seed.

    The data set is imported into `scratch`. Raises the errors of `prepare`, and OperatorError("bad_settings") if a
    Python function grades.
    """
    if config.data.reward is not None:
        raise OperatorError(
            "bad_settings",
            f"data.reward is {config.data.reward}, but nobody else in a pool could repeat what this function grades",
            fix="Write the reward as a kind of environment, as docs/guides/write-an-environment.md shows",
        )
    plan = prepare(config.model_copy(update={"home": scratch}))
    params, base = plan.params, read_shipped_params()
    shared = {name: getattr(params, name) for name in TrainingParams.model_fields}
    chosen = choose_pool_sizes(
        base.model_copy(update=shared), params.model.max_prompt_tokens, params.model.max_completion_tokens
    )
    elsewhere = {"model": {"path", "dtype"}, "eval": {"lenient_extraction"}}  # in PoolDraft, or in no pool
    learning = plan.config.model_dump(mode="json", include=LEARNING, exclude=elsewhere, exclude_unset=True)
    return PoolDraft(
        environment=EnvironmentSpec(kind=params.environment.kind, options=params.environment.options),
        model=config.model.path,
        data_set=scratch / DATA_SET if (scratch / DATA_SET).exists() else None,
        sizes=Sizes(prompt_format=None, model={}, params=chosen, evaluation={}),
        training=params,
        learning={name: value for name, value in learning.items() if value != {}} | {"steps": config.steps},
        device=plan.config.device,
    )


def follow_pool(
    config: TrainConfig, url: str, *, step: int | None = None, rpc_url: str | None = None
) -> tuple[TrainConfig, Questions]:
    """Return the settings with a pool's questions, lengths, sizes and policy, which its coordinator names.

    The pool's relays deliver the rows of a data set and the policy of `step`. None is the newest policy, or the one
    with which the run in the folder was begun. Without a step, a model that the settings name replaces it. What is
    delivered is compared with its hash, and the policy's hash with the chain if `rpc_url` is the URL of a node.

    Raises ProtocolError or TransientError if the coordinator or the relays do not deliver. Raises
    OperatorError("no_policy") if the pool has not published the step, OperatorError("another_run") if the run was begun
    with another one, and OperatorError("bad_settings") if the settings name questions of their own or a second model.
    """
    if config.data != DataSection():
        raise OperatorError(
            "bad_settings",
            "--from-pool cannot be combined with an environment or a data set, because the pool names them",
            fix="Remove [data] from the settings",
        )
    if step is not None and config.model.path is not None:
        raise OperatorError(
            "bad_settings",
            f"the run cannot start from both policy {step} of the pool and model.path, {config.model.path}",
            fix="Remove --from-step or model.path",
        )
    view, status = asyncio.run(_ask(url))
    params = PoolParams.from_text(view.params, view.params_hash)
    model, sampling = params.model, config.sampling
    values = {
        **{name: getattr(model, name) for name in ("temperature", "max_prompt_tokens", "max_completion_tokens")},
        **{name: getattr(model, name) for name in ("prompt_format", "chat_template_kwargs")},
        **{name: getattr(params, name) for name in ("group_size", "groups_per_step", "groups_per_task")},
        **{name: getattr(params, name) for name in ("max_staleness", "online_filter", "max_sampling")},
        "pool": view.pool,
    }
    catalog = DataSetCatalog([], relays=view.relays, cache=config.home / "datasets")
    for digest in list_digests(EnvironmentSpec(kind=params.environment.kind, options=params.environment.options)):
        catalog(digest)
    path = config.model.path or str(_take_policy(config.home, view, status, step=step, rpc_url=rpc_url))
    changed = config.model_copy(
        update={
            "sampling": sampling.model_copy(update=values),
            "model": config.model.model_copy(update={"dtype": model.compute_dtype, "path": path}),
            "grading": params.grading,
        }
    )
    load = partial(load_environment, params, catalog, config.list_interpreters())
    return changed, Questions(params=params.environment, load=load, from_pool=url)


def _take_policy(home: Path, view: PoolView, status: StatusView, *, step: int | None, rpc_url: str | None) -> Path:
    """Return the folder of the policy from which a run starts, below its home."""
    store = PolicyStore(home / POLICIES, keep=1)
    folders = list(store.list_folders().values())
    if folders and (home / PARAMS_FILE).exists():
        begun = read_step(folders[-1])
        if step not in (None, begun):
            raise OperatorError(
                "another_run",
                f"the run in {home} was begun with policy {begun} of the pool, not with policy {step}",
                fix="Set home to a new folder, or leave the step out",
            )
        return folders[-1]
    chosen, record_hash = choose_policy(status, step)
    if rpc_url is not None:
        require_on_chain(view, chosen, record_hash, rpc_url)
    return fetch_policy(view, store, chosen, record_hash)


async def _ask(url: str) -> tuple[PoolView, StatusView]:
    async with CoordinatorClient(url, None, chain_id=0) as client:
        return await client.get_pool(), await client.get_status()
