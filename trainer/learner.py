"""Float32 masters, AdamW and one update after another; also log-probabilities under any other policy.

Called by `loop`.  On one thread equal batches give equal bits, whatever happened in between to the process.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from covey.errors import OperatorError
from covey.model.files import DTYPES, WEIGHTS_FILE, get_head, load_weights
from trainer.batch import Batch, Rows, Sample, build_rows, pack
from trainer.grpo import Objective, TokenSums, compute_entropy, compute_loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimiser:
    """AdamW and its schedule.  Example: Optimiser(learning_rate=5e-4, betas=(0.9, 0.99), clip=1.0, ...)."""

    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    warm_up: int
    """Updates until the learning rate is full."""
    clip: float
    """Largest gradient norm."""

    def get_rate(self, update: int) -> float:
        """Learning rate of the update number `update`, counted from 0."""
        return self.learning_rate * min(1.0, (update + 1) / max(1, self.warm_up))


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How rows go through the model."""

    row_tokens: int
    micro_batch_rows: int
    compute_dtype: str
    """Key of DTYPES; the masters are float32 whatever it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateMetrics:
    """One update.  Means are over the tokens that went through the model."""

    loss: float
    gradient_norm: float
    """Before clipping."""
    clip_ratio: float
    """Share of tokens whose gradient the clipping removed."""
    ratio_mean: float
    entropy: float
    kl: float
    learning_rate: float
    tokens: int
    """Loss-bearing tokens of the update."""
    trained_tokens: int
    """Of them, those that went through the model."""


class Learner:
    """Owner of the masters.  `updates` counts the optimizer's steps."""

    def __init__(self, model: PreTrainedModel, *, optimiser: Optimiser, objective: Objective, shape: Shape) -> None:
        self.model = model
        self.updates = 0
        self._settings, self._objective, self._shape = optimiser, objective, shape
        self._named = dict(model.named_parameters())
        self._optimizer = torch.optim.AdamW(
            self._named.values(),
            lr=optimiser.learning_rate,
            betas=optimiser.betas,
            eps=optimiser.epsilon,
            weight_decay=optimiser.weight_decay,
        )

    @property
    def vocabulary(self) -> int:
        """Tokens that the model can be given."""
        return int(get_head(self.model).weight.shape[0])

    def update(self, batch: Batch) -> UpdateMetrics:
        """One optimizer step, or none when no sample has a gradient; raise OperatorError("diverged") before a step
        that would leave numbers that are none."""
        self._optimizer.zero_grad()
        loss, sums = 0.0, []
        for rows in self._parts(batch):
            part, statistics = self._compute_loss(rows)
            torch.autograd.backward(part)
            loss += float(part.detach())
            sums.append(statistics)
        norm, rate = 0.0, self._settings.get_rate(self.updates)
        if sums:
            norm = float(clip_grad_norm_(self._named.values(), self._settings.clip))
            if not norm < float("inf"):
                raise OperatorError(
                    "diverged", f"the gradient's norm is {norm}", fix="Lower learning_rate and resume from a checkpoint"
                )
            self._optimizer.param_groups[0]["lr"] = rate
            self._optimizer.step()
            self.updates += 1
        return _build_metrics(sums, loss=loss, norm=norm, rate=rate, tokens=batch.tokens)

    def get_optimizer_tensors(self) -> dict[str, Tensor]:
        """Moments by "<parameter>.exp_avg" and "<parameter>.exp_avg_sq"; empty before the first update."""
        state = self._optimizer.state
        return {
            f"{name}.{moment}": state[parameter][moment]
            for name, parameter in self._named.items()
            if parameter in state
            for moment in ("exp_avg", "exp_avg_sq")
        }

    def restore(self, tensors: dict[str, Tensor], updates: int) -> None:
        """Take back what `get_optimizer_tensors` gave after so many updates; the masters are loaded beside it."""
        self.updates = updates
        self._optimizer.state.clear()
        for name, parameter in self._named.items() if updates else ():
            moments = {moment: tensors[f"{name}.{moment}"].to(parameter.device) for moment in ("exp_avg", "exp_avg_sq")}
            self._optimizer.state[parameter] = {"step": torch.tensor(float(updates)), **moments}

    def _parts(self, batch: Batch) -> Iterator[Rows]:
        return build_parts(batch.samples, batch.weights, self._shape, device=str(self.model.device))

    def _compute_loss(self, rows: Rows) -> tuple[Tensor, TokenSums]:
        distribution = compute_distribution(self.model, rows, self._shape.compute_dtype)
        with torch.set_grad_enabled(self._objective.entropy > 0):
            entropy = compute_entropy(distribution)
        return compute_loss(
            logprobs=_pick(distribution, rows),
            old=rows.old[rows.mask],
            advantages=rows.advantages[rows.mask],
            weights=rows.weights[rows.mask],
            entropy=entropy,
            reference=rows.reference[rows.mask] if self._objective.kl > 0 else None,
            objective=self._objective,
        )


class Recomputer:
    """Log-probabilities under published policies, computed as workers compute them; `model` is its own scratch."""

    def __init__(self, model: PreTrainedModel, shape: Shape) -> None:
        self._model, self._shape = model, shape

    @torch.no_grad()
    def compute(self, folder: Path, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """log p(token) of each completion under the policy in `folder`."""
        load_weights(self._model, folder / WEIGHTS_FILE)
        order = [i for row in pack_samples(samples, self._shape) for i in row]
        parts = build_parts(samples, [0.0] * len(samples), self._shape, device=str(self._model.device))
        dtype = self._shape.compute_dtype
        flat = torch.cat([_pick(compute_distribution(self._model, each, dtype), each) for each in parts]).tolist()
        found: dict[int, tuple[float, ...]] = {}
        start = 0
        for i in order:
            found[i] = tuple(flat[start : start + len(samples[i].tokens)])
            start += len(samples[i].tokens)
        return [found[i] for i in range(len(samples))]


def pack_samples(samples: Sequence[Sample], shape: Shape) -> list[list[int]]:
    """Rows of sample indices; one sample that is longer than a row makes all rows as long as itself."""
    lengths = [sample.fed for sample in samples]
    return pack(lengths, max([shape.row_tokens, *lengths]))


def build_parts(samples: Sequence[Sample], weights: Sequence[float], shape: Shape, *, device: str) -> Iterator[Rows]:
    """The micro-batches of some samples, in the order of `pack`."""
    rows = pack_samples(samples, shape)
    for start in range(0, len(rows), shape.micro_batch_rows):
        yield build_rows(samples, weights, rows[start : start + shape.micro_batch_rows]).to(device)


def compute_distribution(model: PreTrainedModel, rows: Rows, dtype: str) -> Tensor:
    """float32 [n, V]: log-probabilities of every token at the n predictions of `rows.mask`, row after row.

    They are of the unmodified model (temperature 1), which is also what workers claim.
    Only loss-bearing positions reach the language-model head, which is where memory goes.
    """
    is_mixed = DTYPES[dtype] is not torch.float32 and model.dtype is torch.float32
    with torch.autocast(model.device.type, dtype=DTYPES[dtype] if is_mixed else torch.bfloat16, enabled=is_mixed):
        hidden = model.base_model(
            input_ids=rows.tokens, position_ids=rows.positions, attention_mask=rows.attention, use_cache=False
        ).last_hidden_state
        logits = get_head(model)(hidden[rows.mask])
    return torch.log_softmax(logits.float(), dim=-1)


def _pick(distribution: Tensor, rows: Rows) -> Tensor:
    return distribution.gather(1, rows.targets[rows.mask][:, None])[:, 0]


def _build_metrics(sums: Sequence[TokenSums], *, loss: float, norm: float, rate: float, tokens: int) -> UpdateMetrics:
    trained = sum(s.tokens for s in sums)
    count = max(1, trained)
    return UpdateMetrics(
        loss=loss,
        gradient_norm=norm,
        clip_ratio=sum(s.clipped for s in sums) / count,
        ratio_mean=sum(s.ratio for s in sums) / count,
        entropy=sum(s.entropy for s in sums) / count,
        kl=sum(s.kl for s in sums) / count,
        learning_rate=rate,
        tokens=tokens,
        trained_tokens=trained,
    )
