"""The learner: float32 master weights, AdamW and a sequence of updates.

On one thread equal batches produce equal bits, even if the process was restarted in between. With several ranks each
has its shards of master weights and moments, receives the same batches and computes its share of them.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from transformers import PreTrainedModel

from covey.errors import OperatorError
from covey.model.policy_files import DTYPES, get_head, get_weights
from trainer.algorithm.claims import bound_claims
from trainer.algorithm.custom_functions import load_function
from trainer.algorithm.forward import (
    PackingConfig,
    Predictor,
    compute_logprobs,
    explain_trainer_memory,
    find_families,
    max_over_ranks,
    require_borders,
    require_supported,
    share_samples,
    sum_over_ranks,
)
from trainer.algorithm.grpo import CustomLoss, TokenSums, compute_loss
from trainer.algorithm.lora import compute_base_hash
from trainer.algorithm.loss_settings import LossSettings
from trainer.algorithm.offload import HostMasters, offload_activations
from trainer.data.packing import MicroBatch, PrefixTree, build_rows
from trainer.data.samples import Batch
from trainer.distributed.commands import RankCommand, Verb
from trainer.distributed.host_copies import HostCopies
from trainer.distributed.ranks import ALONE, Ranks
from trainer.distributed.sharding import make_whole, set_gradient_sync, shard


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimiser:
    """AdamW and its schedule. Example: Optimiser(learning_rate=5e-4, betas=(0.9, 0.99), clip=1.0, ...)."""

    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    warm_up: int
    """Number of updates over which the learning rate rises to its full value."""
    clip: float
    """Maximum gradient norm."""
    offload: bool = False
    """Whether master weights and moments are in main memory, and updated there."""

    def get_rate(self, update: int) -> float:
        """Return the learning rate of update number `update`, counted from 0."""
        return self.learning_rate * min(1.0, (update + 1) / max(1, self.warm_up))


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateMetrics:
    """Metrics of one update. Means are taken over the tokens that went through the model."""

    loss: float
    gradient_norm: float
    """Norm of the whole gradient before clipping."""
    clip_ratio: float
    """Fraction of tokens whose gradient was removed by clipping or changed by a bound of the importance weight."""
    masked: float
    """Fraction of tokens without a policy gradient because of a mask."""
    ratio_mean: float
    """Mean probability ratio between the policy and the policy that sampled, before clipping and capping."""
    outside_clip: float
    """Fraction of tokens whose ratio to the policy that sampled is outside the clip range, clipped or not."""
    mismatch_kl: float
    """Estimated KL divergence between the policy that sampled and the policy, in nats per token."""
    mismatch_kl_max: float
    """Maximum contribution of one token to `mismatch_kl`, in nats."""
    entropy: float
    """Mean entropy of the policy, in nats per token."""
    kl: float
    """Mean estimate of the KL divergence from the reference, in nats per token. 0 without a reference."""
    learning_rate: float
    tokens: int
    """Number of tokens in the update that have a loss."""
    trained_tokens: int
    """Number of tokens with a loss that went through the model."""
    claims_replaced: float = 0.0
    """Fraction of the step's tokens whose claimed log-probability was replaced by the trainer's own."""


class Learner:
    """Owns the master weights and the optimizer. `updates` is the number of optimizer steps so far."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        optimiser: Optimiser,
        objective: LossSettings,
        shape: PackingConfig,
        ranks: Ranks = ALONE,
        fill: Callable[[PreTrainedModel], None] | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Several ranks pass a `model` on the meta device, and `fill`, which gives their shards values.

        `device` is the device of the computation, if it is not that of the model.
        """
        self.model, self.ranks, self.updates = model, ranks, 0
        self.copies = HostCopies()
        """Copies of the tensors that are being written."""
        self._settings, self._objective, self._shape = optimiser, objective, shape
        device = device or (model.device if ranks.mesh is None else torch.device(ranks.mesh.device_type))
        self._masters = HostMasters(model, device) if optimiser.offload and ranks.mesh is None else None
        self._predictor = Predictor(model, shape, device=device, masters=self._masters)
        if ranks.mesh is not None:
            assert fill is not None, "shards have no values"
            shard(self._predictor, ranks.mesh, dtype=DTYPES[shape.compute_dtype], offload=optimiser.offload)
            fill(model)
        self.base_hash = compute_base_hash(model)
        """Hash of the frozen weights that adapters depend on. Empty if the whole model is trained."""
        self._custom: CustomLoss | None = None
        if objective.custom_loss is not None:
            self._custom = load_function(objective.custom_loss, "loss.custom_loss")
        require_supported(self._predictor)
        require_borders(self._predictor)
        self._named = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._optimizer = torch.optim.AdamW(
            self._named.values(),
            lr=optimiser.learning_rate,
            betas=optimiser.betas,
            eps=optimiser.epsilon,
            weight_decay=optimiser.weight_decay,
            fused=True,
        )

    @property
    def is_saved_apart(self) -> bool:
        """Whether a step is written from copies while the next one runs. What is in main memory is not copied."""
        return self._predictor.device.type != "cpu" and not self._settings.offload

    @property
    def vocabulary(self) -> int:
        """Number of token ids that the model accepts."""
        return int(get_head(self.model).weight.shape[0])

    def learn(self, batches: Sequence[Batch]) -> list[UpdateMetrics]:
        """Run all updates of a step. All gradients are freed afterwards.

        Later updates use log-probabilities under the policy before the first update, which are computed in advance. The
        first update needs none, because it starts from that policy, unless claims are compared with them.

        Raises OperatorError("trainer_out_of_memory"), and the errors of `update`.
        """
        with self.ranks.together(RankCommand(verb=Verb.LEARN, batches=tuple(batches))), explain_trainer_memory():
            is_bounded = self._objective.old_policy == "claimed"
            later = [self._look_back(batch) for batch in batches[0 if is_bounded else 1 :]]
            prepared, replaced = bound_claims(later) if is_bounded else ([*batches[:1], *later], 0.0)
            updates = [replace(self.update(batch), claims_replaced=replaced) for batch in prepared]
        self._optimizer.zero_grad()
        return updates

    def update(self, batch: Batch) -> UpdateMetrics:
        """Take one optimizer step. Take none if no sample has a gradient.

        Raises OperatorError("diverged") before it applies an update that would produce NaN or Inf.
        """
        self._optimizer.zero_grad()
        micro_batches = share_samples(self.model, batch.samples, self._shape)
        with self._predictor.with_working_weights():
            parts = []
            for left, micro_batch in enumerate(micro_batches, 1 - len(micro_batches)):  # as many on all ranks
                set_gradient_sync(self._predictor, self._shape.sync_each_batch or left == 0)
                parts.append(self._backpropagate(batch, micro_batch))
        if self._masters is not None:
            self._masters.collect(self._named.values())
        sums = self._sum(parts)
        factor = sums.weight / sums.kept_weight if sums.kept_weight else 1.0  # 1 unless masked tokens were dropped
        norm, rate = 0.0, self._settings.get_rate(self.updates)
        if micro_batches:
            for parameter in self._named.values():  # also those that no sample reaches, so that all moments are as old
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                if factor != 1:
                    parameter.grad.mul_(factor)
            norm = self._clip()
            if not norm < float("inf"):
                raise OperatorError(
                    "diverged",
                    f"training diverged: the gradient norm is {norm}",
                    fix="Lower optim.learning_rate and resume from a checkpoint",
                )
            self._optimizer.param_groups[0]["lr"] = rate
            self._optimizer.step()
            self.updates += 1
        return _build_metrics(sums, factor=factor, norm=norm, rate=rate, tokens=batch.tokens)

    def find_families(self, batch: Batch) -> list[PrefixTree]:
        """Return the prefix trees of a batch, as they go through the model."""
        return find_families(self.model, batch.samples, self._shape)

    def get_masters(self) -> dict[str, Tensor]:
        """Return the live tensors that a checkpoint contains, by name: the model's weights, or only its adapters."""
        frozen = {id(each) for each in self.model.parameters() if not each.requires_grad}
        return {name: each for name, each in get_weights(self.model).items() if id(each) not in frozen}

    def get_optimizer_tensors(self) -> dict[str, Tensor]:
        """Return AdamW's moments by "<parameter>.exp_avg" and "<parameter>.exp_avg_sq".

        Empty before the first update.
        """
        state = self._optimizer.state
        return {
            f"{name}.{moment}": state[parameter][moment]
            for name, parameter in self._named.items()
            if parameter in state
            for moment in ("exp_avg", "exp_avg_sq")
        }

    def build_tensors(self, updates: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return empty tensors with the names and shapes of `get_masters` and `get_optimizer_tensors` after `updates`
        updates.
        """
        masters = {name: torch.empty_like(each) for name, each in self.get_masters().items()}
        moments = {
            f"{name}.{moment}": torch.empty_like(parameter)
            for name, parameter in (self._named.items() if updates else ())
            for moment in ("exp_avg", "exp_avg_sq")
        }
        return masters, moments

    def restore(self, tensors: dict[str, Tensor], updates: int) -> None:
        """Restore the moments that `get_optimizer_tensors` returned after `updates` updates.

        The master weights are restored separately.
        """
        self.updates = updates
        self._optimizer.state.clear()
        for name, parameter in self._named.items() if updates else ():
            moments = {moment: tensors[f"{name}.{moment}"].to(parameter.device) for moment in ("exp_avg", "exp_avg_sq")}
            step = torch.tensor(float(updates), device=parameter.device)
            self._optimizer.state[parameter] = {"step": step, **moments}

    def _look_back(self, batch: Batch) -> Batch:
        """Add log-probabilities under the current policy where the objective or samples without `old` need them."""
        is_needed = self._objective.is_decoupled or self._objective.old_policy == "claimed"
        if not is_needed and all(sample.old is not None for sample in batch.samples):
            return batch
        logprobs = compute_logprobs(self._predictor, batch.samples)
        pairs = zip(batch.samples, logprobs, strict=True)
        return replace(batch, samples=tuple(replace(s, old=s.old or each, proximal=each) for s, each in pairs))

    def _backpropagate(self, batch: Batch, micro_batch: MicroBatch) -> TokenSums:
        """Accumulate the gradient of one micro-batch and return its statistics."""
        rows = build_rows(batch.samples, batch.weights, micro_batch).to(self._predictor.device)
        with offload_activations(self.model) if self._shape.activation_offload else nullcontext():
            logprobs, entropy = self._predictor(rows)
        loss, sums = compute_loss(
            logprobs=logprobs,
            old=rows.old,
            proximal=rows.proximal,
            advantages=rows.advantages,
            weights=rows.weights,
            segments=rows.segments,
            entropy=entropy,
            reference=rows.reference,
            settings=self._objective,
            custom=self._custom,
        )
        torch.autograd.backward(loss)
        return sums

    def _sum(self, sums: Sequence[TokenSums]) -> TokenSums:
        """Return the statistics summed over all micro-batches and ranks. The gradients have already been summed."""
        names = [each.name for each in fields(TokenSums) if each.name != "mismatch_kl_max"]
        totals = self._build_statistics([sum(getattr(each, name) for each in sums) for name in names])
        highest = self._build_statistics([max((each.mismatch_kl_max for each in sums), default=0.0)])
        return TokenSums(
            **dict(zip(names, sum_over_ranks(totals).tolist(), strict=True)),
            mismatch_kl_max=max_over_ranks(highest).item(),
        )

    def _build_statistics(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self._predictor.device)

    def _clip(self) -> float:
        """Clip the gradient. Returns its norm before clipping. The norm is the same on all ranks."""
        parameters = list(self._named.values())
        norm = make_whole(get_total_norm([each.grad for each in parameters if each.grad is not None]))
        if (unclipped := float(norm)) > self._settings.clip:
            clip_grads_with_norm_(parameters, self._settings.clip, norm)
        return unclipped


def _build_metrics(sums: TokenSums, *, factor: float, norm: float, rate: float, tokens: int) -> UpdateMetrics:
    count = max(1.0, sums.tokens)
    return UpdateMetrics(
        loss=sums.loss * factor,
        gradient_norm=norm,
        clip_ratio=sums.clipped / count,
        masked=sums.masked / count,
        ratio_mean=sums.ratio / count,
        outside_clip=sums.outside_clip / count,
        mismatch_kl=sums.mismatch_kl / count,
        mismatch_kl_max=sums.mismatch_kl_max,
        entropy=sums.entropy / count,
        kl=sums.kl / count,
        learning_rate=rate,
        tokens=tokens,
        trained_tokens=int(sums.tokens),
    )
