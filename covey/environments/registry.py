"""Finds and builds environments by kind.

`load` builds an environment from the spec in a pool's parameters. `require_same` compares it with the one
that the pool was created with. Kinds in other packages are found through the entry point group
`covey.environments`, as docs/guides/write-an-environment.md shows.
"""

import importlib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from covey.environments import mixture
from covey.environments.base import (
    DataSets,
    Environment,
    EnvironmentSpec,
    TaskSource,
    refuse_data_sets,
)
from covey.environments.environment import TaskEnvironment, split_options
from covey.errors import OperatorError
from covey.protocol import canonical
from covey.protocol.ids import Hash

GROUP = "covey.environments"
"""Entry point group in which other packages register kinds."""
KINDS: Mapping[str, str] = {
    "code": "covey.environments.kinds.code.code:CodeSource",
    "math": "covey.environments.kinds.row_kinds:MathSource",
    "multiple_choice": "covey.environments.kinds.row_kinds:MultipleChoiceSource",
    "reasoning_gym": "covey.environments.kinds.reasoning_gym.reasoning_gym:ReasoningGymSource",
    "short_answer": "covey.environments.kinds.row_kinds:ShortAnswerSource",
    "verifiers": "covey.environments.kinds.verifiers.verifiers:VerifiersSource",
}
"""Module and class of each kind's `TaskSource`. The module is imported when it is first needed."""

DEMO = EnvironmentSpec(
    kind="reasoning_gym",
    options={"name": "spell_backward", "config": {"min_word_len": 3, "max_word_len": 5}},
)
"""Environment of the demo. The tiny model that is shipped with Covey has partly learned its task."""
_OWN = "covey."
"""Prefix of Covey's own components in the versions of an environment."""
FINGERPRINT_DRAWS = 32
"""Number of prompts that a fingerprint covers. A few are enough, because a changed library changes nearly all
prompts.
"""


def load(
    spec: EnvironmentSpec, data_sets: DataSets = refuse_data_sets, interpreters: Mapping[str, Path] | None = None
) -> Environment:
    """Build the environment of a spec. `data_sets` opens the data sets that the spec uses.

    `interpreters` maps a kind to the path of the Python that it draws and grades with, for kinds that need a
    separate one (`TaskSource.use_interpreter`).

    Raises OperatorError("bad_environment") for an unknown kind or invalid options.
    """
    if spec.kind == mixture.KIND:
        return mixture.MixtureEnvironment(spec.options, lambda part: load(part, data_sets, interpreters))
    shared, options = split_options(spec.options)
    source = find_source(spec.kind)(options, data_sets)
    if interpreters and spec.kind in interpreters:
        source.use_interpreter(interpreters[spec.kind])
    return TaskEnvironment(source, shared, _name_version(spec.kind, source))


def find_source(kind: str) -> type[TaskSource]:
    """Return the `TaskSource` class of a kind, from this package or from another package's entry point.

    Raises OperatorError("bad_environment") if there is no such kind or its entry point does not load.
    """
    if kind in KINDS:
        module, _, name = KINDS[kind].partition(":")
        source: type[TaskSource] = getattr(importlib.import_module(module), name)
        return source
    entry = _find_entry(kind)
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise OperatorError(
            "bad_environment",
            f"the entry point {entry.value} of the environment {kind!r} could not be loaded: {error}",
            fix="Reinstall the package with all its dependencies",
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, TaskSource)):
        raise OperatorError(
            "bad_environment",
            f"the entry point {entry.value} of the environment {kind!r} is not a subclass of "
            "covey.environments.base.TaskSource",
            fix="Correct the entry point in the package so that it refers to the task source class",
        )
    return loaded


def compute_fingerprint(environment: Environment) -> Hash:
    """Return the SHA-256 of the canonical JSON {"prompts": [...], "versions": {...}}.

    It covers what identifies the prompts for the integers 0 to 31, and the versions of everything that prompts
    and rewards depend on.
    """
    prompts = [dict(environment.identify(draw)) for draw in range(FINGERPRINT_DRAWS)]
    return canonical.sha256(canonical.to_bytes({"prompts": prompts, "versions": dict(environment.versions)}))


def require_same(environment: Environment, *, versions: Mapping[str, str], fingerprint: Hash | None) -> None:
    """Require that this machine computes the same prompts and rewards as the machine that created the pool.

    A wrong prompt costs a worker its stake. Therefore a worker whose versions differ must not start, and a
    validator whose versions differ must not judge.

    Raises OperatorError("environment_differs") with the package or the fingerprints that differ.
    """
    here = environment.versions
    for name in sorted(versions):
        if here.get(name) != versions[name]:
            raise OperatorError(
                "environment_differs",
                f"{name} is {here.get(name, 'not installed')} on this machine, but the pool was created with"
                f" {versions[name]}",
                fix=_advise(name, versions[name]),
            )
    own = compute_fingerprint(environment)
    if fingerprint is not None and own != fingerprint:
        raise OperatorError(
            "environment_differs",
            f"the prompts on this machine have the fingerprint {own}, but the pool's prompts have {fingerprint}",
            fix="Install the versions of Covey and of the environment's packages with which the pool was created",
        )


def _name_version(kind: str, source: TaskSource) -> Mapping[str, str]:
    """Return the version of a kind by name: the kind's own version in this package, otherwise its package's."""
    if kind in KINDS:
        return {f"{_OWN}{kind}": source.version}
    package = _find_entry(kind).dist
    return {package.name: package.version} if package is not None else {}


def _advise(name: str, version: str) -> str:
    if name == "python":
        return f"Run covey with Python {version}"
    if name.startswith(_OWN):
        return "Install the version of Covey with which the pool was created"
    return f"Install {name}=={version}"


def _find_entry(kind: str) -> EntryPoint:
    matches = [entry for entry in entry_points(group=GROUP) if entry.name == kind]
    if not matches:
        known = sorted({*KINDS, mixture.KIND, *(entry.name for entry in entry_points(group=GROUP))})
        raise OperatorError(
            "bad_environment",
            f"there is no environment kind called {kind!r}",
            fix=f"Use one of {known} in the pool's parameters, or install the package that provides the kind",
        )
    return matches[0]
