"""Log-probabilities of samples under policies other than the learner's current one."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from covey.model.policy_files import DTYPES, get_weights
from covey.model.weight_files import load_weights, read_weights
from covey.protocol.policy_record import WEIGHTS_FILE
from trainer.algorithm.forward import (
    PackingConfig,
    Predictor,
    compute_logprobs,
    explain_trainer_memory,
)
from trainer.data.samples import Batch, Sample
from trainer.distributed.commands import RankCommand, Verb
from trainer.distributed.ranks import ALONE, Ranks
from trainer.distributed.sharding import scatter_weights, shard


class Recomputer:
    """Computes log-probabilities under published policies in the same way as workers.

    With several ranks each has its shards of the scratch `model`, which is on the meta device at first, and computes
    its share of the samples.
    """

    def __init__(self, model: PreTrainedModel, shape: PackingConfig, ranks: Ranks = ALONE) -> None:
        device = None if ranks.mesh is None else torch.device(ranks.mesh.device_type)
        self._model, self._predictor, self._ranks = model, Predictor(model, shape, device=device), ranks
        if ranks.mesh is not None:
            shard(self._predictor, ranks.mesh, dtype=DTYPES[shape.compute_dtype])

    def compute(self, folder: Path | None, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Return log p(token) of each completion under the policy in `folder`. Ranks other than 0 pass None as
        `folder`.

        Raises OperatorError("trainer_out_of_memory"). The errors of `load_weights` are raised before any command is
        sent to the other ranks.
        """
        weights = None
        if folder is not None and self._ranks.is_shared:
            weights = read_weights(get_weights(self._model), folder / WEIGHTS_FILE)
        elif folder is not None:
            load_weights(get_weights(self._model), folder / WEIGHTS_FILE)
        batch = Batch(samples=tuple(samples), weights=(0.0,) * len(samples), tokens=0)
        with self._ranks.together(RankCommand(verb=Verb.RECOMPUTE, batches=(batch,))), explain_trainer_memory():
            if self._ranks.is_shared:
                scatter_weights(self._model, weights)
            return compute_logprobs(self._predictor, samples)
