"""What dishonest workers submit: each attack is a function from an `AttackInput` to completions.

An attacker knows everything that an honest worker knows, including the true policy.  It claims what serves it best: it
proves its tokens with the true policy where it can.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.verification import cheating_engines
from benchmarks.verification.cheating_engines import TopP
from benchmarks.verification.policy_variants import get_paragraphs
from covey.engines.base import Completion, Engine, GenerationRequest, ReplayRequest
from covey.model.tiny import BOS, build_tokenizer
from covey.protocol.params import EnvironmentParams, ModelParams, PoolParams, VerificationParams
from covey.protocol.submission_file.rows import Rollout
from covey.toploc.proofs import Bits, find_tops
from covey.toploc.topk import EVERYTHING, Capture, build_capture, join
from validator.calibration.calibrate import build_rollouts

GROUPS, GROUP_SIZE, MAX_TOKENS = 4, 4, 128
SUBMISSION = GROUPS * GROUP_SIZE
"""Completions of a submission."""
WORKER_BATCH, VALIDATOR_BATCH = 128, 48
"""Sequences that an engine of a worker and of a validator computes together."""


@dataclass(frozen=True, kw_only=True)
class SimulatedWorker:
    """A worker that runs any policy of one architecture in one number format, and draws its own prompts."""

    folder: Path
    """Folder of the policies of one architecture, made by `build_policies`."""
    params: PoolParams
    """Parameters of the pool, made by `build_params`."""
    build_worker: Callable[[], Engine]
    """Function that returns the engine for the next policy: a new one, or the same one each time."""

    @property
    def capture(self) -> Capture:
        """Part of the hidden states that a worker's engine keeps for proofs."""
        return build_capture(self.params.verification)

    def load(self, policy: str) -> Engine:
        """Load a policy into the worker's engine and return the engine.  Example: load("int8")."""
        engine = self.build_worker()
        engine.load_policy(self.folder / policy, 0)
        return engine

    def generate(
        self, policy: str, requests: Sequence[GenerationRequest], temperature: float = 1.0
    ) -> list[Completion]:
        """Generate completions, with their proofs' values, by a policy."""
        return self.load(policy).generate(requests, temperature=temperature, capture=self.capture)

    def read_states(self, requests: Sequence[GenerationRequest]) -> list[Bits]:
        """Compute all hidden states of each honest completion, uint16[tokens, hidden], in the worker's own batches."""
        engine = self.load("true")
        return [
            join(each.tops)
            for start in range(0, len(requests), WORKER_BATCH)
            for each in engine.generate(requests[start : start + WORKER_BATCH], temperature=1.0, capture=EVERYTHING)
        ]

    def draw_requests(self, submissions: int, seed: int) -> list[GenerationRequest]:
        """Draw the requests of some submissions: prompts of 16 to 40 bytes with four siblings each."""
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
        """Build the rows of each submission with proofs from the completions."""
        return [
            build_rollouts(requests[start : start + SUBMISSION], completions[start : start + SUBMISSION], self.params)
            for start in range(0, len(requests), SUBMISSION)
        ]


def build_params(dtype: str, **verification: Any) -> PoolParams:
    """Build the parameters of a pool whose submissions have `SUBMISSION` completions.

    `verification` holds fields of VerificationParams, such as mode, engines, hardware and build.
    """
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
    """Input of an attack: requests, and the honest work that answers them."""

    worker: SimulatedWorker
    """Worker that the attacker controls."""
    requests: list[GenerationRequest]
    """Requests of whole submissions, in order."""
    honest: list[Completion]
    """Completion that an honest worker gives for each request."""
    states: list[Bits]
    """Hidden states of each honest completion, uint16[tokens, hidden].  An attack that cuts a completion proves other
    windows than the honest worker, and needs all of them."""
    rng: random.Random
    """Source of all random choices of the attack."""

    def take(self, count: int, seed: int) -> "AttackInput":
        """Return the inputs of the first `count` requests, with a new random generator."""
        honest, states = self.honest[:count], self.states[:count]
        return replace(self, requests=self.requests[:count], honest=honest, states=states, rng=random.Random(seed))


Attack = Callable[[AttackInput], list[Completion]]


def run_policy(name: str) -> Attack:
    """Return the attack that generates with another policy and claims its output unchanged."""
    return lambda inputs: inputs.worker.generate(name, inputs.requests)


def other_seed(inputs: AttackInput) -> list[Completion]:
    """Sample each completion with another seed than the assigned one."""
    other = [replace(each, seed=(each.seed + 1) % (1 << 63)) for each in inputs.requests]
    return inputs.worker.generate("true", other)


def prompt_changed(inputs: AttackInput) -> list[Completion]:
    """Replace one byte of each prompt."""
    changed = []
    for each in inputs.requests:
        place = inputs.rng.randrange(1, len(each.prompt))
        token = 3 + (each.prompt[place] - 3 + inputs.rng.randrange(1, 256)) % 256
        changed.append(replace(each, prompt=(*each.prompt[:place], token, *each.prompt[place + 1 :])))
    return inputs.worker.generate("true", changed)


def swapped_token(inputs: AttackInput) -> list[Completion]:
    """Replace one token of every window, and prove all tokens again with the true policy."""
    step, written = inputs.worker.params.verification.proof_window, []
    for each in inputs.honest:
        tokens = list(each.tokens)
        last = len(tokens) - each.finished  # the end token stays where it is
        for start in range(0, last, step):
            place = inputs.rng.randrange(start, min(start + step, last))
            tokens[place] = 3 + (tokens[place] - 3 + inputs.rng.randrange(1, 256)) % 256
        written.append(tuple(tokens))
    return prove(inputs, written)


def temperature_07(inputs: AttackInput) -> list[Completion]:
    """Sample at temperature 0.7."""
    return inputs.worker.generate("true", inputs.requests, temperature=0.7)


def top_p_09(inputs: AttackInput) -> list[Completion]:
    """Sample only from the likeliest tokens that hold 0.9 of the probability."""
    engine = TopP(inputs.worker.load("true"), share=0.9)
    return engine.generate(inputs.requests, temperature=1.0, capture=inputs.worker.capture)


def best_of_4(inputs: AttackInput) -> list[Completion]:
    """Submit the likeliest of four completions per slot: the honest one and three with other seeds."""
    tries = [inputs.honest]
    for i in range(1, 4):
        other = [replace(each, seed=(each.seed + i) % (1 << 63)) for each in inputs.requests]
        tries.append(inputs.worker.generate("true", other))
    return [max(slot, key=lambda c: float(np.mean(c.logprobs))) for slot in zip(*tries, strict=True)]


def write_and_prove(policy: str) -> Attack:
    """Return the attack that generates with another policy and the right seeds, and proves with the true policy."""

    def attack(inputs: AttackInput) -> list[Completion]:
        written = inputs.worker.generate(policy, inputs.requests)
        return prove(inputs, [each.tokens for each in written])

    return attack


def truncated(inputs: AttackInput) -> list[Completion]:
    """Cut one completion of each submission at a random place."""
    made = list(inputs.honest)
    for start in range(0, len(made), SUBMISSION):
        i = _choose_long(inputs, start)
        made[i] = _cut(inputs, i, inputs.rng.randrange(1, len(made[i].tokens)))
    return made


def false_eos(inputs: AttackInput) -> list[Completion]:
    """End every completion at a random place with a forged end token."""
    return _end(inputs, [i for i, each in enumerate(inputs.honest) if len(each.tokens) > 1])


def false_eos_once(inputs: AttackInput) -> list[Completion]:
    """Forge the end token of one completion of each submission at a random place."""
    return _end(inputs, [_choose_long(inputs, start) for start in range(0, len(inputs.honest), SUBMISSION)])


def _end(inputs: AttackInput, chosen: Sequence[int]) -> list[Completion]:
    made = list(inputs.honest)
    cut = {i: (*made[i].tokens[: inputs.rng.randrange(len(made[i].tokens) - 1)], 1) for i in chosen}
    for i, completion in zip(cut, _prove_ends(inputs, cut), strict=True):
        made[i] = completion
    return made


def false_eos_best(inputs: AttackInput) -> list[Completion]:
    """Forge one end token of each submission where it loses by least, in any of four completions."""
    made = list(inputs.honest)
    engine = inputs.worker.load("true")
    for start in range(0, len(made), SUBMISSION):
        best: tuple[float, int, int] | None = None
        for i in range(start, start + GROUP_SIZE):
            tokens = made[i].tokens
            places = range(len(tokens) - 1)
            forged = [_build_replay(inputs, i, (*tokens[:place], 1)) for place in places]
            margins = [float(r.margins[-1]) for r in engine.replay(forged, temperature=1.0)]
            if margins:
                place = int(np.argmin(margins))
                best = min(best or (np.inf, 0, 0), (margins[place], i, place))
        assert best is not None
        _, i, place = best
        (made[i],) = _prove_ends(inputs, {i: (*made[i].tokens[:place], 1)})
    return made


def prove(inputs: AttackInput, written: Sequence[tuple[int, ...]]) -> list[Completion]:
    """Prove given tokens with states and log-probabilities of the true policy: the best that an attack can claim."""
    worker = inputs.worker
    engine = worker.load("true")
    return cheating_engines.prove(engine, inputs.requests, written, temperature=1.0, capture=worker.capture)


WINDOW_ATTACKS: dict[str, Attack] = {
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
"""Attacks that change every window, by the name that measurements have."""
SUBMISSION_ATTACKS: dict[str, Attack] = {
    "temperature_07": temperature_07,
    "top_p_09": top_p_09,
    "best_of_4": best_of_4,
    "small_writes_large_proves": write_and_prove("small"),
    "truncated": truncated,
    "false_eos": false_eos,
}
"""Attacks that sample or end otherwise, so that only a whole submission shows them."""
OBSERVED_ATTACKS: dict[str, Attack] = {
    "stale_lr1e-6": run_policy("stale_lr1e-6"),
    "swapped_token": swapped_token,
    "int8_writes_true_proves": write_and_prove("int8"),
    "false_eos_once": false_eos_once,
    "false_eos_best_place": false_eos_best,
}
"""Attacks that are measured without a bar in bfloat16, where they differ from honest work by little."""


def _build_replay(inputs: AttackInput, i: int, tokens: tuple[int, ...]) -> ReplayRequest:
    return ReplayRequest(prompt=inputs.requests[i].prompt, tokens=tokens, seed=inputs.requests[i].seed)


def _prove_ends(inputs: AttackInput, cut: Mapping[int, tuple[int, ...]]) -> list[Completion]:
    """Prove completions that are honest but for the last token, whose log-probability the true policy gives."""
    replays = inputs.worker.load("true").replay(
        [_build_replay(inputs, i, tokens) for i, tokens in cut.items()], temperature=1.0
    )
    tops = find_tops([inputs.states[i][: len(tokens)] for i, tokens in cut.items()], inputs.worker.capture)
    return [
        Completion(
            policy_version=0,
            tokens=tokens,
            logprobs=(*inputs.honest[i].logprobs[: len(tokens) - 1], float(replay.logprobs[-1])),
            tops=each,
            finished=True,
        )
        for (i, tokens), replay, each in zip(cut.items(), replays, tops, strict=True)
    ]


def _cut(inputs: AttackInput, i: int, length: int) -> Completion:
    (tops,) = find_tops([inputs.states[i][:length]], inputs.worker.capture)
    honest = inputs.honest[i]
    return Completion(
        policy_version=0, tokens=honest.tokens[:length], logprobs=honest.logprobs[:length], tops=tops, finished=False
    )


def _choose_long(inputs: AttackInput, start: int) -> int:
    """Choose a completion of the submission that begins at `start` with at least two tokens; return its index."""
    long = [i for i in range(start, start + SUBMISSION) if len(inputs.honest[i].tokens) > 1]
    return inputs.rng.choice(long)
