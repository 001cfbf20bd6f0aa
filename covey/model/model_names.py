"""Models by the folder or the name that a user types."""

from pathlib import Path

from covey.errors import OperatorError

CONFIG_FILE = "config.json"


def find_model(model: str) -> str:
    """Return a model's folder as an absolute path, or its name on a hub.

    Raises OperatorError("model_unavailable") if the folder does not exist or has no model.
    """
    fix = "Name a folder with a model in the format of Hugging Face, or a model on the Hugging Face Hub"
    if Path(model).is_dir():
        if not (Path(model) / CONFIG_FILE).is_file():
            raise OperatorError("model_unavailable", f"the model folder {model} has no {CONFIG_FILE}", fix=fix)
        return str(Path(model).resolve())
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise OperatorError("model_unavailable", f"the model folder {model} does not exist", fix=fix)
    return model
