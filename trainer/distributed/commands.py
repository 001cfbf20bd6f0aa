"""Commands from rank 0 to the other ranks, as bytes: safetensors with a JSON header, so that nothing is unpickled.

A decoded command equals the encoded one bit for bit.
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

Batches = tuple[Batch, ...]
"""Batches of the updates of a step, in their order."""
_OPTIONAL = ("old", "proximal", "reference")


class Verb(StrEnum):
    """Action that all ranks carry out next."""

    BUILD = "build"
    """Build the learner and its scratch model from the settings and pool parameters in `text`."""
    LEARN = "learn"
    """Run the updates of the batches."""
    RECOMPUTE = "recompute"
    """Compute log-probabilities of the only batch, under weights that rank 0 sends next."""
    GATHER = "gather"
    """Gather the weights on rank 0."""
    SAVE = "save"
    """Copy the shards of master weights and moments, and write them to the folder in `text` in a thread."""
    RESTORE = "restore"
    """Restore master weights and moments from the folder in `text`."""
    BEAT = "beat"
    """Do nothing. This is the heartbeat of rank 0."""
    STOP = "stop"
    """Exit with status 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCommand:
    """A command from rank 0. Example: RankCommand(verb=Verb.SAVE, text="/home/x/checkpoints/.7")."""

    verb: Verb
    text: str = ""
    batches: Batches = ()


def encode_order(order: RankCommand) -> bytes:
    """Encode a command as a safetensors file: the header in "header", the columns of batch n in "n/..."."""
    header = {"verb": order.verb, "text": order.text, "tokens": [batch.tokens for batch in order.batches]}
    tensors = {"header": torch.tensor(list(json.dumps(header).encode()), dtype=torch.uint8)}
    for n, batch in enumerate(order.batches):
        tensors |= {f"{n}/{name}": column for name, column in _to_columns(batch).items()}
    return save(tensors)


def decode_order(data: bytes) -> RankCommand:
    """Decode a command from `encode_order`."""
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
        "audited": torch.tensor([s.audited for s in samples], dtype=torch.bool),
        "lengths": torch.tensor([(len(s.prompt), len(s.tokens)) for s in samples], dtype=torch.int64),
        "prompt": _concatenate([s.prompt for s in samples], torch.int32),
        "tokens": _concatenate([s.tokens for s in samples], torch.int32),
    }
    for name in _OPTIONAL:
        rows = [getattr(sample, name) for sample in samples]
        columns[f"has_{name}"] = torch.tensor([row is not None for row in rows], dtype=torch.bool)
        columns[name] = _concatenate([row for row in rows if row is not None], torch.float64)
    return columns


def _concatenate(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=dtype)


def _from_columns(columns: dict[str, Tensor], tokens: int) -> Batch:
    lengths = columns["lengths"].view(-1, 2)
    prompts = _cut(columns["prompt"].tolist(), lengths[:, 0].tolist())
    completions = list(_cut(columns["tokens"].tolist(), lengths[:, 1].tolist()))
    optional = {}
    for name in _OPTIONAL:
        is_present = columns[f"has_{name}"].tolist()
        counts = [len(completion) for completion, present in zip(completions, is_present, strict=True) if present]
        rows = _cut(columns[name].tolist(), counts)
        optional[name] = [next(rows) if present else None for present in is_present]
    audited = columns["audited"].tolist()
    samples = [
        Sample(
            id=RolloutId(task=TaskId(task), group=GroupId(group), sibling=sibling),
            policy_version=Step(version),
            prompt=prompt,
            tokens=completion,
            reward=reward,
            advantage=advantage,
            old=optional["old"][i],
            proximal=optional["proximal"][i],
            reference=optional["reference"][i],
            audited=audited[i],
        )
        for i, ((task, group, sibling, version), (reward, advantage), prompt, completion) in enumerate(
            zip(columns["ids"].tolist(), columns["values"].tolist(), prompts, completions, strict=True)
        )
    ]
    return Batch(samples=tuple(samples), weights=tuple(columns["weights"].tolist()), tokens=tokens)


def _cut(values: list[Any], lengths: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """Split values into rows of the given lengths."""
    return (tuple(values[start:end]) for start, end in pairwise(accumulate(lengths, initial=0)))
