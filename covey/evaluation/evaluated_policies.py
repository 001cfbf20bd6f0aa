"""The models of an evaluation: a model, a policy, or the newest policy of a training run, each as a folder.

Main names: `find_policy`, `open_folder_of`, `compute_policy_digest`.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from covey.errors import OperatorError, ProtocolError
from covey.model.model_names import CONFIG_FILE, find_model
from covey.protocol.policy_record import PIECES_FILE, RECORD_FILE

EXPORTS = "exports"
"""Folder of a trainer's `home` with one subfolder per exported policy."""
_SUFFIXES = frozenset({".json", ".safetensors", ".jinja", ".txt", ".model"})


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluatedPolicy:
    """A model to evaluate. Example: EvaluatedPolicy(label="run step 40", source="run/exports/40")."""

    label: str
    """Name in tables and plots."""
    source: str
    """Folder of the model, or its name on a model hub."""


def find_policies(arguments: list[str], step: int | None) -> list[EvaluatedPolicy]:
    """Return the models that arguments name, with labels that differ.

    `step` selects an exported policy of runs. None selects the newest one. Raises the errors of `find_policy`.
    """
    found = [find_policy(argument, step) for argument in arguments]
    labels = [policy.label for policy in found]
    return [
        policy if labels.count(policy.label) == 1 else EvaluatedPolicy(label=policy.source, source=policy.source)
        for policy in found
    ]


def find_policy(argument: str, step: int | None) -> EvaluatedPolicy:
    """Return the model that an argument names: the folder of a model, a policy or a run, or a name on a hub.

    Raises OperatorError("no_export") if a run has not exported the policy, OperatorError("no_model") for a folder that
    is neither a model nor a run, and OperatorError("model_unavailable") for a folder that does not exist.
    """
    folder = Path(argument)
    if not folder.is_dir():
        return EvaluatedPolicy(label=argument, source=find_model(argument))
    if (folder / CONFIG_FILE).is_file():
        return EvaluatedPolicy(label=_name_folder(folder), source=str(folder))
    exports = next((path for path in (folder / EXPORTS, folder / "trainer" / EXPORTS) if path.is_dir()), None)
    if exports is None:
        raise OperatorError(
            "no_model",
            f"{folder} is neither a model with {CONFIG_FILE} nor a run with {EXPORTS}",
            fix="Name the folder of a model in the format of Hugging Face, of a policy, or of a training run",
        )
    steps = sorted(int(path.name) for path in exports.iterdir() if path.name.isdecimal())
    chosen = step if step is not None else max(steps, default=None)
    if chosen not in steps:
        listed = f"the steps {', '.join(map(str, steps))}" if steps else "no policy yet"
        wanted = "a policy" if chosen is None else f"step {chosen}"
        raise OperatorError(
            "no_export",
            f"{wanted} of {folder} was requested, but {exports} has {listed}",
            fix="Choose one of these steps with --step, or wait until the run has exported a policy",
        )
    return EvaluatedPolicy(label=_name_folder(exports / str(chosen)), source=str(exports / str(chosen)))


def prepare_folder(policy: EvaluatedPolicy, scratch: Path) -> Path:
    """Return a folder with one weights file that every engine loads.

    It is the model's own folder, if that has the form of a policy. Otherwise the model is saved again in `scratch`, in
    the data type that it is stored in, so no value changes. Raises OperatorError("model_unavailable") if it cannot be
    loaded.
    """
    from covey.model.policy_files import DTYPES, load_config, load_model, load_tokenizer, require_policy, save_policy

    if Path(policy.source).is_dir():
        try:
            require_policy(Path(policy.source), names=frozenset())
            return Path(policy.source)
        except ProtocolError:
            pass  # for example, several weights files, or a tied head that is stored twice
    stored = str(getattr(load_config(policy.source), "dtype", "")).removeprefix("torch.")
    dtype = stored if stored in DTYPES else "float32"
    save_policy(load_model(policy.source, dtype), load_tokenizer(policy.source), scratch, dtype)
    return scratch


def compute_policy_digest(folder: Path) -> str:
    """Return the SHA-256 over the files of a model: weights, configuration, tokenizer and template.

    Files that describe a policy to relays do not count.
    """
    left_out = {RECORD_FILE, PIECES_FILE}
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in _SUFFIXES and path.name not in left_out:
            with path.open("rb") as file:
                digest.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def _name_folder(folder: Path) -> str:
    path = folder.resolve()
    if path.parent.name == EXPORTS and path.name.isdecimal():
        run = path.parent.parent
        name = run.parent.name if run.name == "trainer" else run.name
        return f"{name} step {path.name}"
    return path.name
