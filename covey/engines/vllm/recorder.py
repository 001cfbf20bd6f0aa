"""Records the states, log-probabilities and margins of each request in a vLLM worker, by position.

vLLM runs a step in two halves. `execute_model` computes the states and logits of the batch. `sample_tokens` uses them
and samples a token in each row that is not a part of a prompt. The recorder wraps the second half, so it sees no
padding. If a request was preempted and computed again, each position counts once. Nothing depends on the new tokens,
which the host does not know yet with asynchronous scheduling.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch

from covey.engines.cpu_tuning import VLLM_LOGITS
from covey.engines.vllm.frames import Arrays
from covey.engines.vllm.hidden_states import States
from covey.sampling.sampler import Scored, score
from covey.toploc.topk import Capture

KEY = "covey_key"
"""Key of the request's number in `SamplingParams.extra_args`. For a replay this is the index of its claim."""
MAX_LOGITS = 1 << 26
"""Maximum number of replay logits that are computed at once on a GPU: 256 MiB in float32, in memory that vLLM does not
count. At a vocabulary of 150,000 the head then multiplies 440 rows.
"""
STEPS = 64
"""Number of steps whose log-probabilities are copied from the device together, because each copy waits for it."""


def count_rows(device: str, vocabulary: int) -> int:
    """Return the number of replay rows whose logits are computed at once."""
    return max(1, (VLLM_LOGITS if device == "cpu" else MAX_LOGITS) // vocabulary)


@dataclass(frozen=True, slots=True)
class ReplayClaim:
    """A claimed completion that a replay scores. Example: ReplayClaim(first=52, tokens=[71, 13, 1], seed=2**62 + 5)."""

    first: int
    """Row that predicts the first token: the row of the prompt's last token."""
    tokens: list[int]
    """Claimed tokens."""
    seed: int
    """Seed of the slot."""


@dataclass(slots=True)
class _Record:
    """Recorded values of one request."""

    rows: int = 0
    """Number of rows recorded so far. Workers other than the first record nothing else."""
    logprobs: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows of a step that predict the claimed tokens `first` .. `first` + `count` - 1 of a replay."""

    key: int
    """Number of the request."""
    start: int
    """First row in the states of the step."""
    first: int
    """Index of the first claimed token."""
    count: int
    """Number of claimed tokens."""


class Sampler(Protocol):
    """The part of `SeededSampler` that the recorder reads."""

    logprobs: torch.Tensor
    """Log-probability of the token that was sampled last in each row of the batch, float32[rows]."""


class Recorder:
    """The recorder of one worker.

    `is_first` is True for the worker that returns the results. The others only take part in computing the logits.
    """

    def __init__(self, runner: Any, sampler: Sampler, is_first: bool) -> None:
        self._runner, self._sampler, self._is_first = runner, sampler, is_first
        self._sample_tokens = runner.sample_tokens
        runner.sample_tokens = self.sample_tokens
        self.begin(None, 0.0)

    def begin(self, capture: Capture | None, temperature: float, claims: Sequence[ReplayClaim] = ()) -> None:
        """Clear everything recorded. If there are `claims`, the following requests are replays of them, by key."""
        self._temperature, self._claims = temperature, claims
        self._keys: dict[str, int] = {}
        self._names: list[str] = []
        self._ours: list[tuple[int, str]] = []
        """Row and name of each Covey request in the batch `_names`. It is cached, because the batch seldom changes."""
        self._records: dict[int, _Record] = {}
        self._steps: list[tuple[list[int], torch.Tensor]] = []
        """Keys and log-probabilities, on their device, of the last steps."""
        self._missed: set[int] = set()
        self._preempted = 0
        runner = self._runner
        self._states = None if capture is None else States(capture, runner.max_num_reqs, runner.max_model_len)

    def take(self, first: int, count: int) -> Arrays:
        """Remove and return the arrays of the finished requests `first` .. `first` + `count` - 1, in order.

        The arrays are "logprobs" and "margins" in float32, "indices" and "bits" of the top values, and "preempted", the
        number of preemptions since the last call.
        """
        keys = range(first, first + count)
        self._finish([name for name, key in self._keys.items() if key in keys])
        self._collect_logprobs()
        records = [self._records.pop(key) for key in keys]
        for record, claim in zip(records, self._claims, strict=bool(self._claims)):
            if record.rows != len(claim.tokens):
                raise RuntimeError(f"vLLM computed only {record.rows} of the {len(claim.tokens)} rows of a replay")
        tops = [] if self._states is None else [top for key in keys for top in self._states.pop_tops(key)]
        arrays: dict[str, Any] = {
            "preempted": np.array([self._preempted], np.int64),
            "logprobs": np.array([each for record in records for each in record.logprobs], np.float32),
            "margins": np.array([each for record in records for each in record.margins], np.float32),
            "indices": np.concatenate([np.empty(0, np.int64), *(top.indices for top in tops)]),
            "bits": np.concatenate([np.empty(0, np.uint16), *(top.bits for top in tops)]),
        }
        self._preempted = 0
        return arrays

    def take_missed(self) -> list[int]:
        """Remove and return the keys of replays that must run again, because vLLM took needed rows from its cache."""
        missed, self._missed = sorted(self._missed), set()
        return missed

    @torch.inference_mode()
    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """Call the runner's own `sample_tokens`, and record the step."""
        step = self._runner.execute_model_state
        if step is None:
            return self._sample_tokens(*args, **kwargs)
        names = list(self._runner.input_batch.req_ids)
        self._finish(step.scheduler_output.finished_req_ids)
        self._preempted += len(step.scheduler_output.preempted_req_ids or ())
        if names != self._names:
            self._names, self._ours = names, list(self._find_ours(names))
        ours = self._ours
        if self._claims:
            candidates = (self._find_run(row, name, step) for row, name in ours)
            runs = [run for run in candidates if run.count > 0]
            if runs:
                self._replay(runs, step.hidden_states)
        if self._claims or not ours or not self._is_first:
            return self._sample_tokens(*args, **kwargs)
        output = self._sample_tokens(*args, **kwargs)
        is_part = self._runner.discard_request_mask.np  # whether a row is a part of a prompt, which samples nothing
        sampled_rows = [row for row, name in ours if not is_part[row] and not self._has_ended(name)]
        if sampled_rows:
            logprobs, states = self._sampler.logprobs, step.sample_hidden_states
            if len(sampled_rows) < len(logprobs):
                index = torch.tensor(sampled_rows).to(states.device, non_blocking=True)
                logprobs, states = logprobs[index], states[index]
            self._keep([names[row] for row in sampled_rows], logprobs, states)
        return output

    def _find_ours(self, names: list[str]) -> Iterator[tuple[int, str]]:
        for row, name in enumerate(names):
            extra = self._runner.requests[name].sampling_params.extra_args
            if extra is not None and KEY in extra:
                self._keys[name] = extra[KEY]
                yield row, name

    def _has_ended(self, name: str) -> bool:
        """Return whether a request had ended before the token that was just sampled.

        With asynchronous scheduling vLLM schedules one more step before it knows that a token ends the request, and
        drops the result. The new token is unknown here, but the one before it is known.
        """
        request = self._runner.requests[name]
        if len(request.output_token_ids) < 2:
            return False
        if (previous := request.output_token_ids[-2]) < 0:
            raise RuntimeError("vLLM did not report the previous token of a request")
        return previous in request.sampling_params.stop_token_ids

    def _keep(self, names: list[str], logprobs: torch.Tensor, states: torch.Tensor) -> None:
        """Record one token of each request. `logprobs` is float32[n], and `states` is [n, hidden]."""
        keys = [self._keys[name] for name in names]
        for name, key in zip(names, keys, strict=True):
            record = self._records.setdefault(key, _Record())
            position = len(self._runner.requests[name].output_token_ids) - 1
            if position != record.rows:
                raise RuntimeError(f"vLLM returned token {position} of a request, but token {record.rows} was expected")
            record.rows += 1
        self._steps.append((keys, logprobs))
        if len(self._steps) == STEPS:
            self._collect_logprobs()
        if self._states is not None:
            self._states.add_each(keys, states)

    def _collect_logprobs(self) -> None:
        """Move the log-probabilities of the last steps into the records."""
        if self._steps:
            keys = chain.from_iterable(keys for keys, _ in self._steps)
            for key, logprob in zip(keys, torch.cat([values for _, values in self._steps]).tolist(), strict=True):
                self._records[key].logprobs.append(logprob)
            self._steps = []

    def _find_run(self, row: int, name: str, step: Any) -> _Run:
        """Return the new rows of a replay that this step computed.

        A step can compute only a part of a long sequence. After a preemption it can also compute rows that are already
        recorded.
        """
        key = self._keys[name]
        computed = int(self._runner.input_batch.num_computed_tokens_cpu[row])
        end = computed + step.scheduler_output.num_scheduled_tokens[name]
        known = self._records.setdefault(key, _Record()).rows
        begin = self._claims[key].first + known
        if begin < computed:  # a sibling has the same beginning, and its cache was read beyond the prompt
            self._missed.add(key)
            self._records[key] = _Record()
            if self._states is not None:
                self._states.drop(key)
            return _Run(key, start=0, first=0, count=0)
        offset = int(self._runner.query_start_loc.np[row])
        return _Run(key, start=offset + begin - computed, first=known, count=end - begin)

    def _replay(self, runs: list[_Run], states: torch.Tensor) -> None:
        """Record the log-probabilities and margins of the claimed tokens, and the states of their rows."""
        device = states.device
        rows = np.concatenate([np.arange(run.start, run.start + run.count) for run in runs])
        run_states = states[torch.from_numpy(rows).to(device)]
        counts = [run.count for run in runs]
        claimed = [self._claims[run.key].tokens[run.first : run.first + run.count] for run in runs]
        tokens = torch.tensor(list(chain.from_iterable(claimed)), device=device)
        seeds = torch.tensor(np.repeat([self._claims[run.key].seed for run in runs], counts), device=device)
        firsts = np.concatenate([np.arange(run.first, run.first + run.count) for run in runs])
        positions = torch.from_numpy(firsts).to(device)
        scored = list[Scored]()
        room = count_rows(device.type, self._runner.model_config.get_vocab_size())
        for start in range(0, len(rows), room):
            span = slice(start, start + room)
            logits = self._runner.model.compute_logits(run_states[span])
            if self._is_first:
                scored.append(score(logits, tokens[span], seeds[span], positions[span], self._temperature))
        # Copied from the device together, because each copy waits for it.
        margins, logprobs = torch.cat([torch.stack(each) for each in scored], dim=1).tolist() if scored else ([], [])
        offset = 0
        for run in runs:
            record, span = self._records[run.key], slice(offset, offset + run.count)
            record.rows += run.count
            record.logprobs += logprobs[span]
            record.margins += margins[span]
            if self._states is not None and self._is_first:
                self._states.add_run(run.key, run_states[span])
            offset += run.count

    def _finish(self, names: Iterable[str]) -> None:
        """Finish the requests with these names and free their windows."""
        for name in names:
            key = self._keys.pop(name, None)
            if key is not None and self._states is not None:
                self._states.finish(key)
