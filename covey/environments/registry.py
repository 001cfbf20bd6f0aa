"""Environments by kind: `load` builds one from the spec in a pool's parameters, `require_same` compares it with the one
that the pool was made with.

Kinds of other packages are found by the entry point group `covey.environments`; docs/guides/write-an-environment.md
shows one.
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
KINDS: Mapping[str, str] = {
    "code": "covey.environments.kinds.code.code:CodeSource",
    "math": "covey.environments.kinds.row_kinds:MathSource",
    "multiple_choice": "covey.environments.kinds.row_kinds:MultipleChoiceSource",
    "reasoning_gym": "covey.environments.kinds.reasoning_gym.reasoning_gym:ReasoningGymSource",
    "short_answer": "covey.environments.kinds.row_kinds:ShortAnswerSource",
    "verifiers": "covey.environments.kinds.verifiers.verifiers:VerifiersSource",
}
"""Where the `TaskSource` of each kind is; its module is imported when it is needed."""

DEMO = EnvironmentSpec(
    kind="reasoning_gym",
    options={"name": "spell_backward", "config": {"min_word_len": 3, "max_word_len": 5}},
)
"""The task that the shipped tiny model half knows."""
_OWN = "covey."
"""What precedes the name of a part of this package in the versions of an environment."""
FINGERPRINT_DRAWS = 32
"""Prompts that a fingerprint covers; a library that changed changes nearly all of them."""


def load(
    spec: EnvironmentSpec, data_sets: DataSets = refuse_data_sets, interpreters: Mapping[str, Path] | None = None
) -> Environment:
    """The environment of a spec; `data_sets` opens those that it names.

    `interpreters`: Python by kind, for kinds that draw and grade in another one (`TaskSource.use_interpreter`).

    Raises OperatorError("bad_environment") for an unknown kind or options that do not fit.
    """
    if spec.kind == mixture.KIND:
        return mixture.MixtureEnvironment(spec.options, lambda part: load(part, data_sets, interpreters))
    shared, options = split_options(spec.options)
    source = find_source(spec.kind)(options, data_sets)
    if interpreters and spec.kind in interpreters:
        source.use_interpreter(interpreters[spec.kind])
    return TaskEnvironment(source, shared, _name_version(spec.kind, source))


def find_source(kind: str) -> type[TaskSource]:
    """The class of a kind, of this package or of another one's entry point; raise OperatorError("bad_environment")."""
    if kind in KINDS:
        module, _, name = KINDS[kind].partition(":")
        source: type[TaskSource] = getattr(importlib.import_module(module), name)
        return source
    entry = _find_entry(kind)
    try:
        found = entry.load()
    except (ImportError, AttributeError) as error:
        raise OperatorError(
            "bad_environment",
            f"the entry point {entry.value} of the environment {kind!r} does not load: {error}",
            fix="Install the package again, with all that it needs",
        ) from error
    if not (isinstance(found, type) and issubclass(found, TaskSource)):
        raise OperatorError(
            "bad_environment",
            f"the entry point {entry.value} of the environment {kind!r} is not a covey.environments.base.TaskSource",
            fix="Name the class of the kind in the package's entry point",
        )
    return found


def compute_fingerprint(environment: Environment) -> Hash:
    """SHA-256 over the canonical JSON {"prompts": [...], "versions": {...}}: what identifies the prompts of draws 0 ..
    31, and the versions of all that decides about prompts and rewards."""
    prompts = [dict(environment.identify(draw)) for draw in range(FINGERPRINT_DRAWS)]
    return canonical.sha256(canonical.to_bytes({"prompts": prompts, "versions": dict(environment.versions)}))


def require_same(environment: Environment, *, versions: Mapping[str, str], fingerprint: Hash | None) -> None:
    """Return if prompts and rewards of this machine are the pool's: a wrong prompt costs the stake, so a worker with
    another version must not start, and a validator with one must not judge.

    Raises OperatorError("environment_differs"), which names the package or what was compared.
    """
    here = environment.versions
    for name in sorted(versions):
        if here.get(name) != versions[name]:
            raise OperatorError(
                "environment_differs",
                f"{name} is {here.get(name, 'not installed')} on this machine, the pool was made with {versions[name]}",
                fix=_advise(name, versions[name]),
            )
    found = compute_fingerprint(environment)
    if fingerprint is not None and found != fingerprint:
        raise OperatorError(
            "environment_differs",
            f"this machine's prompts have the fingerprint {found}, the pool's have {fingerprint}",
            fix="Install the release of Covey, and of the environment's packages, that the pool was made with",
        )


def _name_version(kind: str, source: TaskSource) -> Mapping[str, str]:
    """What a kind's version is called, and the version: its own in this package, else its package's."""
    if kind in KINDS:
        return {f"{_OWN}{kind}": source.version}
    package = _find_entry(kind).dist
    return {package.name: package.version} if package is not None else {}


def _advise(name: str, version: str) -> str:
    if name == "python":
        return f"Run covey with Python {version}"
    if name.startswith(_OWN):
        return "Install the release of Covey that the pool was made with"
    return f"Install {name}=={version}"


def _find_entry(kind: str) -> EntryPoint:
    found = [entry for entry in entry_points(group=GROUP) if entry.name == kind]
    if not found:
        known = sorted({*KINDS, mixture.KIND, *(entry.name for entry in entry_points(group=GROUP))})
        raise OperatorError(
            "bad_environment",
            f"there is no environment of kind {kind!r}",
            fix=f"Name one of {known} in the pool's parameters, or install the package that has it",
        )
    return found[0]
