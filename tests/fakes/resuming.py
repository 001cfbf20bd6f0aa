"""A trainer over a recorded stream: `live` goes on where the last process was killed, to the end of the stream.

It keeps what it learned as the trainer's loop does: the policy, then the checkpoint, then what the world is told.
"""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import torch

from covey.model.files import WEIGHTS_FILE, load_model, load_tokenizer
from covey.model.tiny import tiny_folder
from covey.protocol.ids import Step
from tests.fakes.samples import DECOUPLED, OPTIMISER, build_batch, build_learner, build_samples
from trainer.batch import Batch, Sample
from trainer.checkpoint import Checkpoints, StepFolders, export_policy
from trainer.learner import Learner

STREAM, PUBLISHED = "stream.json", "published.txt"


def record_stream(folder: Path, steps: int) -> None:
    """Samples of each step."""
    folder.mkdir()
    stream = [[asdict(sample) for sample in build_samples(4, seed=step)] for step in range(steps)]
    (folder / STREAM).write_text(json.dumps(stream))


def read_stream(folder: Path) -> list[Batch]:
    steps = json.loads((folder / STREAM).read_text())
    return [build_batch([read_sample(sample) for sample in step]) for step in steps]


def read_sample(values: dict[str, object]) -> Sample:
    (template,) = build_samples(1)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if name != "id"}
    return replace(template, **given)


def live(folder: Path) -> None:
    """One process."""
    torch.set_num_threads(1)
    stream, tokenizer = read_stream(folder), load_tokenizer(tiny_folder())
    learner = build_learner(
        load_model(tiny_folder(), "float32"), objective=DECOUPLED, optimiser=replace(OPTIMISER, warm_up=20, clip=0.5)
    )
    checkpoints, exports = Checkpoints(folder / "checkpoints", keep=2), StepFolders(folder / "exports")
    state = checkpoints.restore(learner)
    step = Step(0) if state is None else state.step
    exports.retain(lambda version: version <= step)
    if step not in exports.list_steps():
        export_policy(exports, learner, tokenizer, step)
    if state is None:
        checkpoints.save(learner, step, {})
    publish(folder, exports, learner, step)
    for batch in stream[step:]:
        learner.learn([batch])
        step = Step(step + 1)
        export_policy(exports, learner, tokenizer, step)
        checkpoints.save(learner, step, {})
        exports.retain(lambda version: step - version <= 1)  # noqa: B023
        publish(folder, exports, learner, step)


def publish(folder: Path, exports: StepFolders, learner: Learner, step: Step) -> None:
    """One line a step, with the hash of the policy; a line that stands there is not repeated."""
    if len(read_published(folder)) > step:
        return
    digest = hashlib.sha256((exports.get_path(step) / WEIGHTS_FILE).read_bytes()).hexdigest()
    with (folder / PUBLISHED).open("a") as file:
        file.write(f"{step} {learner.updates} {digest}\n")


def read_published(folder: Path) -> list[str]:
    """Step, updates and hash."""
    path = folder / PUBLISHED
    return path.read_text().splitlines() if path.exists() else []
