"""What dishonest workers hand in, for the benchmark of verification: each cheat as a function of a `SimulatedWorker`.

A cheat knows everything that an honest worker knows, the true policy included, and claims what serves it best: where
it can, it proves its tokens with the true policy.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.verification.policy_variants import get_paragraphs
from covey.engines.base import Completion, Engine, GenerationRequest, ReplayRequest
from covey.engines.hf import engine as hf
from covey.model.tiny import BOS, build_tokenizer
from covey.protocol.params import EnvironmentParams, ModelParams, PoolParams, VerificationParams
from covey.protocol.submission_file.rows import Rollout
from covey.sampling.sampler import sample
from covey.toploc.proofs import Bits, find_tops
from covey.toploc.topk import EVERYTHING, Capture, build_capture, join
from validator.calibration.calibrate import build_rollouts

GROUPS, GROUP_SIZE, MAX_TOKENS = 4, 4, 128
SUBMISSION = GROUPS * GROUP_SIZE
WORKER_BATCH, VALIDATOR_BATCH = 128, 48


@dataclass(frozen=True, kw_only=True)
class SimulatedWorker:
    """One architecture in one number format: a worker's engine by policy name, and where prompts come from."""

    folder: Path
    """Of the policies."""
    params: PoolParams
    build_worker: Callable[[], Engine]
    """The engine that the next policy is loaded into; a new one, or the last one."""

    @property
    def capture(self) -> Capture:
        """What a worker's engine keeps of the states."""
        return build_capture(self.params.verification)

    def load(self, policy: str) -> Engine:
        """A worker's engine with this policy."""
        engine = self.build_worker()
        engine.load_policy(self.folder / policy, 0)
        return engine

    def generate(
        self, policy: str, requests: Sequence[GenerationRequest], temperature: float = 1.0
    ) -> list[Completion]:
        """What a worker with this policy makes of the requests."""
        return self.load(policy).generate(requests, temperature=temperature, capture=self.capture)

    def read_states(self, requests: Sequence[GenerationRequest]) -> list[Bits]:
        """uint16[tokens, hidden] of each honest completion: all states of the worker, batches being the same."""
        engine = self.load("true")
        return [
            join(each.tops)
            for start in range(0, len(requests), WORKER_BATCH)
            for each in engine.generate(requests[start : start + WORKER_BATCH], temperature=1.0, capture=EVERYTHING)
        ]

    def draw_requests(self, submissions: int, seed: int) -> list[GenerationRequest]:
        """Requests of so many submissions: prompts of 16 to 40 bytes, four siblings each."""
        rng, tokenizer, paragraphs = random.Random(seed), build_tokenizer(), get_paragraphs()
        requests = []
        for _ in range(submissions * GROUPS):
            text = rng.choice(paragraphs)[: rng.randrange(16, 40)]
            prompt = (BOS, *tokenizer.encode(text, add_special_tokens=False))
            for _ in range(GROUP_SIZE):
                requests.append(GenerationRequest(prompt=prompt, seed=rng.getrandbits(63), max_tokens=MAX_TOKENS))
        return requests

    def build_submissions(
        self, requests: Sequence[GenerationRequest], completions: Sequence[Completion]
    ) -> list[tuple[Rollout, ...]]:
        """Rows of each submission, proven with the tops of the completions."""
        return [
            build_rollouts(requests[start : start + SUBMISSION], completions[start : start + SUBMISSION], self.params)
            for start in range(0, len(requests), SUBMISSION)
        ]


def build_params(dtype: str, **verification: Any) -> PoolParams:
    """Of a pool with submissions of `SUBMISSION` completions; `verification`: mode, engines, hardware, build."""
    return PoolParams(
        name="benchmark",
        environment=EnvironmentParams(kind="text"),
        model=ModelParams(compute_dtype=dtype, max_completion_tokens=MAX_TOKENS),
        verification=VerificationParams(**verification),
        group_size=GROUP_SIZE,
        groups_per_task=GROUPS,
    )


@dataclass(frozen=True, kw_only=True)
class AttackInput:
    """What a cheat is given: the orders, and the honest work that it knows the answers of."""

    worker: SimulatedWorker
    requests: list[GenerationRequest]
    honest: list[Completion]
    states: list[Bits]
    """Of the honest work, uint16[tokens, hidden] each: who cuts it proves other windows."""
    rng: random.Random

    def take(self, few: int, seed: int) -> "AttackInput":
        """The first so many orders, with dice of their own."""
        honest, states = self.honest[:few], self.states[:few]
        return replace(self, requests=self.requests[:few], honest=honest, states=states, rng=random.Random(seed))


Attack = Callable[[AttackInput], list[Completion]]


def run_policy(name: str) -> Attack:
    """Generates with another policy and claims its output as it is."""
    return lambda job: job.worker.generate(name, job.requests)


def other_seed(job: AttackInput) -> list[Completion]:
    other = [replace(each, seed=(each.seed + 1) % (1 << 63)) for each in job.requests]
    return job.worker.generate("true", other)


def prompt_changed(job: AttackInput) -> list[Completion]:
    """One byte of each prompt is another."""
    changed = []
    for each in job.requests:
        place = job.rng.randrange(1, len(each.prompt))
        token = 3 + (each.prompt[place] - 3 + job.rng.randrange(1, 256)) % 256
        changed.append(replace(each, prompt=(*each.prompt[:place], token, *each.prompt[place + 1 :])))
    return job.worker.generate("true", changed)


def swapped_token(job: AttackInput) -> list[Completion]:
    """One token of every window is another, and everything is proven anew with the true policy."""
    step, written = job.worker.params.verification.proof_window, []
    for each in job.honest:
        tokens = list(each.tokens)
        last = len(tokens) - each.finished  # the end token stays where it is
        for start in range(0, last, step):
            place = job.rng.randrange(start, min(start + step, last))
            tokens[place] = 3 + (tokens[place] - 3 + job.rng.randrange(1, 256)) % 256
        written.append(tuple(tokens))
    return prove(job, written)


def temperature_07(job: AttackInput) -> list[Completion]:
    return job.worker.generate("true", job.requests, temperature=0.7)


def top_p_09(job: AttackInput) -> list[Completion]:
    with _sampling_from_the_top(0.9):
        return job.worker.generate("true", job.requests)


def best_of_4(job: AttackInput) -> list[Completion]:
    """The likeliest of the slot's own completion and three with other seeds."""
    tries = [job.honest]
    for i in range(1, 4):
        other = [replace(each, seed=(each.seed + i) % (1 << 63)) for each in job.requests]
        tries.append(job.worker.generate("true", other))
    return [max(slot, key=lambda c: float(np.mean(c.logprobs))) for slot in zip(*tries, strict=True)]


def write_and_prove(policy: str) -> Attack:
    """Another policy writes with the right seeds, the true one proves."""

    def cheat(job: AttackInput) -> list[Completion]:
        written = job.worker.generate(policy, job.requests)
        return prove(job, [each.tokens for each in written])

    return cheat


def truncated(job: AttackInput) -> list[Completion]:
    """One completion of each submission stops at a random place."""
    made = list(job.honest)
    for start in range(0, len(made), SUBMISSION):
        i = _choose_long(job, start)
        made[i] = _cut(job, i, job.rng.randrange(1, len(made[i].tokens)))
    return made


def false_eos(job: AttackInput) -> list[Completion]:
    """Every completion ends at a random place with a forged end token."""
    return _end(job, [i for i, each in enumerate(job.honest) if len(each.tokens) > 1])


def false_eos_once(job: AttackInput) -> list[Completion]:
    """As `false_eos`, one completion of each submission."""
    return _end(job, [_choose_long(job, start) for start in range(0, len(job.honest), SUBMISSION)])


def _end(job: AttackInput, chosen: Sequence[int]) -> list[Completion]:
    made = list(job.honest)
    cut = {i: (*made[i].tokens[: job.rng.randrange(len(made[i].tokens) - 1)], 1) for i in chosen}
    for i, completion in zip(cut, _prove_ends(job, cut), strict=True):
        made[i] = completion
    return made


def false_eos_best(job: AttackInput) -> list[Completion]:
    """As `false_eos`, at the place in any of four completions where the end token loses by least."""
    made = list(job.honest)
    engine = job.worker.load("true")
    for start in range(0, len(made), SUBMISSION):
        best: tuple[float, int, int] | None = None
        for i in range(start, start + GROUP_SIZE):
            tokens = made[i].tokens
            places = range(len(tokens) - 1)
            forged = [_claim(job, i, (*tokens[:place], 1)) for place in places]
            margins = [float(r.margins[-1]) for r in engine.replay(forged, temperature=1.0)]
            if margins:
                place = int(np.argmin(margins))
                best = min(best or (np.inf, 0, 0), (margins[place], i, place))
        assert best is not None
        _, i, place = best
        (made[i],) = _prove_ends(job, {i: (*made[i].tokens[:place], 1)})
    return made


def prove(job: AttackInput, written: Sequence[tuple[int, ...]]) -> list[Completion]:
    """Completions of given tokens with states and log-probabilities of the true policy: the best a cheat can claim."""
    claims = [_claim(job, i, tokens) for i, tokens in enumerate(written)]
    replays = job.worker.load("true").replay(claims, temperature=1.0, capture=job.worker.capture)
    return [
        Completion(
            policy_version=0,
            tokens=tokens,
            logprobs=tuple(replay.logprobs.tolist()),
            tops=replay.tops,
            finished=tokens[-1] == 1,
        )
        for tokens, replay in zip(written, replays, strict=True)
    ]


WINDOW_CHEATS: dict[str, Attack] = {
    "other_model": run_policy("other_model"),
    "other_seed": other_seed,
    "int8": run_policy("int8"),
    "int4": run_policy("int4"),
    "perturbed_1pct": run_policy("perturbed_1pct"),
    "stale_lr1e-3": run_policy("stale_lr1e-3"),
    "stale_lr1e-5": run_policy("stale_lr1e-5"),
    "stale_lr1e-6": run_policy("stale_lr1e-6"),
    "swapped_token": swapped_token,
    "prompt_changed": prompt_changed,
}
SUBMISSION_CHEATS: dict[str, Attack] = {
    "temperature_07": temperature_07,
    "top_p_09": top_p_09,
    "best_of_4": best_of_4,
    "small_writes_large_proves": write_and_prove("small"),
    "truncated": truncated,
    "false_eos": false_eos,
}
WITHOUT_A_BAR: dict[str, Attack] = {
    "stale_lr1e-6": run_policy("stale_lr1e-6"),
    "swapped_token": swapped_token,
    "int8_writes_true_proves": write_and_prove("int8"),
    "false_eos_once": false_eos_once,
    "false_eos_best_place": false_eos_best,
}
"""In bfloat16."""


def _claim(job: AttackInput, i: int, tokens: tuple[int, ...]) -> ReplayRequest:
    return ReplayRequest(prompt=job.requests[i].prompt, tokens=tokens, seed=job.requests[i].seed)


def _prove_ends(job: AttackInput, cut: Mapping[int, tuple[int, ...]]) -> list[Completion]:
    """Honest up to the last token, which was not sampled: only its log-probability is looked up."""
    replays = job.worker.load("true").replay([_claim(job, i, tokens) for i, tokens in cut.items()], temperature=1.0)
    tops = find_tops([job.states[i][: len(tokens)] for i, tokens in cut.items()], job.worker.capture)
    return [
        Completion(
            policy_version=0,
            tokens=tokens,
            logprobs=(*job.honest[i].logprobs[: len(tokens) - 1], float(replay.logprobs[-1])),
            tops=each,
            finished=True,
        )
        for (i, tokens), replay, each in zip(cut.items(), replays, tops, strict=True)
    ]


def _cut(job: AttackInput, i: int, length: int) -> Completion:
    (tops,) = find_tops([job.states[i][:length]], job.worker.capture)
    honest = job.honest[i]
    return Completion(
        policy_version=0, tokens=honest.tokens[:length], logprobs=honest.logprobs[:length], tops=tops, finished=False
    )


def _choose_long(job: AttackInput, start: int) -> int:
    """Index of a completion of the submission that has two tokens at least."""
    long = [i for i in range(start, start + SUBMISSION) if len(job.honest[i].tokens) > 1]
    return job.rng.choice(long)


@contextmanager
def _sampling_from_the_top(share: float) -> Iterator[None]:
    """The engine's sampler sees only the likeliest tokens that hold `share` of the probability."""

    def sample_top(logits: torch.Tensor, *rest: object) -> torch.Tensor:
        ordered, places = logits.sort(dim=-1, descending=True)
        above = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(1, places, above > share)
        return sample(logits.masked_fill(dropped, -1e30), *rest)  # type: ignore[arg-type]

    with mock.patch.object(hf, "sample", sample_top):
        yield
