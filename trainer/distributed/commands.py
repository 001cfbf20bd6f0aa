"""What rank 0 asks of the others, as bytes: safetensors with a header in JSON, so that nothing is unpickled.

Called by `ranks`.  A decoded order equals the encoded one, to the bit of every number.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from trainer.data.samples import Batch, Sample

_OPTIONAL = ("old", "proximal", "reference")


class Verb(StrEnum):
    """What all ranks do next."""

    BUILD = "build"
    """The learner and its scratch model, by the settings and pool's parameters that the text holds."""
    LEARN = "learn"
    """From the batches."""
    RECOMPUTE = "recompute"
    """Log-probabilities of the one batch, under weights that follow from rank 0."""
    GATHER = "gather"
    """The weights, for rank 0."""
    SAVE = "save"
    """Their shards of masters and moments, to the folder that the text names."""
    RESTORE = "restore"
    """Masters and moments from the folder that the text names."""
    BEAT = "beat"
    """Nothing: rank 0 lives."""
    STOP = "stop"
    """End with 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCommand:
    """Example: Order(verb=Verb.SAVE, text="/home/x/checkpoints/.7")."""

    verb: Verb
    text: str = ""
    batches: tuple[Batch, ...] = ()


def encode_order(order: RankCommand) -> bytes:
    """One safetensors file: the header in "header", the columns of batch n in "n/...".."""
    header = {"verb": order.verb, "text": order.text, "tokens": [batch.tokens for batch in order.batches]}
    tensors = {"header": torch.tensor(list(json.dumps(header).encode()), dtype=torch.uint8)}
    for n, batch in enumerate(order.batches):
        tensors |= {f"{n}/{name}": column for name, column in _to_columns(batch).items()}
    return save(tensors)


def decode_order(data: bytes) -> RankCommand:
    """What `encode_order` was given."""
    tensors = load(data)
    header = json.loads(bytes(tensors["header"].tolist()))
    batches = []
    for n, tokens in enumerate(header["tokens"]):
        prefix = f"{n}/"
        columns = {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}
        batches.append(_from_columns(columns, tokens))
    return RankCommand(verb=Verb(header["verb"]), text=header["text"], batches=tuple(batches))


def _to_columns(batch: Batch) -> dict[str, Tensor]:
    samples = batch.samples
    ids = [(s.id.task, s.id.group, s.id.sibling, s.policy_version) for s in samples]
    columns = {
        "ids": torch.tensor(ids, dtype=torch.int64),
        "values": torch.tensor([(s.reward, s.advantage) for s in samples], dtype=torch.float64),
        "weights": torch.tensor(batch.weights, dtype=torch.float64),
        "lengths": torch.tensor([(len(s.prompt), len(s.tokens)) for s in samples], dtype=torch.int64),
        "prompt": _concatenate([s.prompt for s in samples], torch.int32),
        "tokens": _concatenate([s.tokens for s in samples], torch.int32),
    }
    for name in _OPTIONAL:
        given = [getattr(sample, name) for sample in samples]
        columns[f"has_{name}"] = torch.tensor([each is not None for each in given], dtype=torch.bool)
        columns[name] = _concatenate([each for each in given if each is not None], torch.float64)
    return columns


def _concatenate(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=dtype)


def _from_columns(columns: dict[str, Tensor], tokens: int) -> Batch:
    lengths = columns["lengths"].view(-1, 2)
    prompts = _cut(columns["prompt"].tolist(), lengths[:, 0].tolist())
    completions = list(_cut(columns["tokens"].tolist(), lengths[:, 1].tolist()))
    given = {}
    for name in _OPTIONAL:
        has = columns[f"has_{name}"].tolist()
        counts = [len(each) for each, there in zip(completions, has, strict=True) if there]
        values = _cut(columns[name].tolist(), counts)
        given[name] = [next(values) if there else None for there in has]
    samples = [
        Sample(
            id=RolloutId(task=TaskId(task), group=GroupId(group), sibling=sibling),
            policy_version=Step(version),
            prompt=prompt,
            tokens=completion,
            reward=reward,
            advantage=advantage,
            old=given["old"][i],
            proximal=given["proximal"][i],
            reference=given["reference"][i],
        )
        for i, ((task, group, sibling, version), (reward, advantage), prompt, completion) in enumerate(
            zip(columns["ids"].tolist(), columns["values"].tolist(), prompts, completions, strict=True)
        )
    ]
    return Batch(samples=tuple(samples), weights=tuple(columns["weights"].tolist()), tokens=tokens)


def _cut(values: list[Any], lengths: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """Rows of so many values each."""
    return (tuple(values[start:end]) for start, end in pairwise(accumulate(lengths, initial=0)))
