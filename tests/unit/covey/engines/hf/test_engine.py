"""The reference engine equals a plain loop without cache or padding, and its replay equals a plain forward pass."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from covey.engines.base import Completion, GenerationRequest, ReplayRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.engines.hf.kv_cache import BlockCache
from covey.environments.registry import DEMO, load
from covey.errors import OperatorError, ProtocolError
from covey.model.policy_files import load_model, load_tokenizer
from covey.model.prompts import RAW, encode_prompt
from covey.model.text import decode_completion
from covey.model.tiny import build_model, tiny_folder
from covey.protocol.policy_record import WEIGHTS_FILE
from covey.sampling.noise import gumbel
from covey.toploc.topk import EVERYTHING, join
from tests.fakes.weights import save_weights

pytestmark = pytest.mark.unit


@torch.no_grad()
def slow_generate(
    model: PreTrainedModel, request: GenerationRequest, temperature: float
) -> tuple[list[int], list[float], list]:
    """Generate one request by a full pass over the sequence for each token, without cache, padding or batch."""
    sequence, logprobs, hidden = list(request.prompt), [], []
    for t in range(request.max_tokens):
        state = model.model(input_ids=torch.tensor([sequence])).last_hidden_state[0, -1]
        logits = model.lm_head(state)
        noise = gumbel(np.array([request.seed], np.uint64), np.array([t], np.uint32), len(logits))[0]
        token = int((logits / temperature + torch.from_numpy(noise)).argmax())
        hidden.append(state.to(torch.bfloat16).view(torch.uint16).numpy())
        logprobs.append(math.log(torch.softmax(logits.double(), -1)[token].item()))
        sequence.append(token)
        if token == 1:
            break
    return sequence[len(request.prompt) :], logprobs, hidden


def claims_of(requests: Sequence[GenerationRequest], completions: Sequence[Completion]) -> list[ReplayRequest]:
    return [
        ReplayRequest(prompt=request.prompt, tokens=completion.tokens, seed=request.seed)
        for request, completion in zip(requests, completions, strict=True)
    ]


def test_generate__ragged_batch__equals_the_slow_loop(
    llama: HuggingFaceEngine, llama_folder: Path, long_requests: list[GenerationRequest]
) -> None:
    model = load_model(llama_folder, "float32")
    completions = llama.generate(long_requests[:5], temperature=0.9, capture=EVERYTHING)
    for request, completion in zip(long_requests, completions, strict=False):
        tokens, logprobs, hidden = slow_generate(model, request, 0.9)
        assert list(completion.tokens) == tokens
        assert completion.logprobs == pytest.approx(logprobs, abs=2e-5)
        assert join(completion.tops).shape == (len(tokens), 64)
        # A few values may round to another bfloat16. A wrong row or a missing norm would differ everywhere.
        assert (join(completion.tops) != np.stack(hidden)).mean() < 0.01


def test_generate__rows_that_end_early__leave_the_others_alone(
    qwen: HuggingFaceEngine, short_requests: list[GenerationRequest]
) -> None:
    together = qwen.generate(short_requests, temperature=1.0)
    assert len({len(each.tokens) for each in together}) > 2
    for i in (0, 17, 63, 64, 127):
        (alone,) = qwen.generate([short_requests[i]], temperature=1.0)
        assert alone.tokens == together[i].tokens
        assert alone.logprobs == pytest.approx(together[i].logprobs, abs=1e-5)


def test_generate__rows_that_still_agree__are_computed_once(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three requests with one seed share a row, although the first ends early. The fourth differs from the start."""
    model, tokens_read, copied = load_model(llama_folder, "float32"), [], []
    model.get_input_embeddings().register_forward_pre_hook(lambda _, inputs: tokens_read.append(inputs[0].numel()))
    rearrange = BlockCache.rearrange
    monkeypatch.setattr(BlockCache, "rearrange", lambda *args: (copied.append(args[1]), rearrange(*args))[1])
    engine = HuggingFaceEngine.from_model(model, load_tokenizer(llama_folder))
    seeds, limits = (7, 7, 7, 8), (2, 6, 6, 6)
    requests = [
        GenerationRequest(prompt=(2, 9, 4), seed=seed, max_tokens=n) for seed, n in zip(seeds, limits, strict=True)
    ]
    completions = engine.generate(requests, temperature=1.0, capture=EVERYTHING)
    assert [len(each.tokens) for each in completions] == [2, 6, 6, 6]
    assert completions[0].tokens == completions[1].tokens[:2]
    assert (completions[1].tokens, completions[1].logprobs) == (completions[2].tokens, completions[2].logprobs)
    assert np.array_equal(join(completions[1].tops), join(completions[2].tops))
    assert completions[3].tokens[0] != completions[1].tokens[0]
    assert tokens_read == [3, 2, 2, 2, 2, 2]
    assert copied == [[0, 0]]


def test_generate__row_ends_when_two_others_separate__keeps_the_right_prefix(llama: HuggingFaceEngine) -> None:
    """There are two prompts and, after the first request has ended, two rows. Both continue the second prompt."""
    requests = [GenerationRequest(prompt=(2, 9), seed=1, max_tokens=1)]
    requests += [GenerationRequest(prompt=(2, 7, 4), seed=seed, max_tokens=8) for seed in (2, 3)]
    _, *completions = llama.generate(requests, temperature=1.0)
    assert completions[0].tokens != completions[1].tokens
    for request, completion in zip(requests[1:], completions, strict=True):
        (alone,) = llama.generate([request], temperature=1.0)
        assert completion.tokens == alone.tokens
        assert completion.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_generate__every_completion__ends_with_eos_or_at_its_limit(
    qwen: HuggingFaceEngine, short_requests: list[GenerationRequest]
) -> None:
    requests = [
        GenerationRequest(prompt=r.prompt, seed=r.seed, max_tokens=1 + i % 8) for i, r in enumerate(short_requests)
    ]
    completions = qwen.generate(requests, temperature=1.0, capture=EVERYTHING)
    for request, completion in zip(requests, completions, strict=True):
        assert 1 <= len(completion.tokens) == len(completion.logprobs) == len(completion.tops)
        assert 1 not in completion.tokens[:-1]
        assert completion.finished == (completion.tokens[-1] == 1)
        assert completion.finished or len(completion.tokens) == request.max_tokens
        assert join(completion.tops).dtype == np.uint16


def test_generate__shorter_limit__cuts_the_same_completion(
    llama: HuggingFaceEngine, long_requests: list[GenerationRequest]
) -> None:
    whole = llama.generate(long_requests[:3], temperature=1.0)
    cut = [GenerationRequest(prompt=r.prompt, seed=r.seed, max_tokens=5) for r in long_requests[:3]]
    for short, long in zip(llama.generate(cut, temperature=1.0), whole, strict=True):
        assert short.tokens == long.tokens[:5]


def test_generate__greedy__answers_most_words(qwen: HuggingFaceEngine) -> None:
    environment = load(DEMO)
    prompts = environment.held_out(64)
    requests = [
        GenerationRequest(prompt=tuple(encode_prompt(qwen.tokenizer, prompt.text, format=RAW)), seed=0, max_tokens=8)
        for prompt in prompts
    ]
    rewards = [
        environment.grade(
            prompt.build_reply(
                decode_completion(qwen.tokenizer, c.tokens, qwen.end_tokens), finished=c.finished, tokens=len(c.tokens)
            )
        ).reward
        for prompt, c in zip(prompts, qwen.generate(requests, temperature=0.0), strict=True)
    ]
    assert sum(rewards) / 64 > 0.8


def test_generate__temperature_one__starts_at_about_a_third(
    qwen: HuggingFaceEngine, short_requests: list[GenerationRequest]
) -> None:
    environment = load(DEMO)
    prompts = [environment.prompt(draw) for draw in range(400)]
    requests = [
        GenerationRequest(prompt=tuple(encode_prompt(qwen.tokenizer, p.text, format=RAW)), seed=i, max_tokens=8)
        for i, p in enumerate(prompts)
    ]
    rewards = [
        environment.grade(
            prompt.build_reply(
                decode_completion(qwen.tokenizer, c.tokens, qwen.end_tokens), finished=c.finished, tokens=len(c.tokens)
            )
        ).reward
        for prompt, c in zip(prompts, qwen.generate(requests, temperature=1.0), strict=True)
    ]
    assert 0.26 < sum(rewards) / 400 < 0.40


def test_generate__no_requests__gives_no_completions(qwen: HuggingFaceEngine) -> None:
    assert qwen.generate([], temperature=1.0) == []
    assert qwen.replay([], temperature=1.0) == []


@pytest.mark.parametrize(
    "request_",
    [GenerationRequest(prompt=(), seed=0, max_tokens=2), GenerationRequest(prompt=(2,), seed=0, max_tokens=0)],
)
def test_generate__request_without_prompt_or_room__is_refused(
    qwen: HuggingFaceEngine, request_: GenerationRequest
) -> None:
    with pytest.raises(ValueError, match="has an empty prompt or a token limit"):
        qwen.generate([request_], temperature=1.0)


def test_replay__row_values__equal_a_plain_forward(
    llama: HuggingFaceEngine, llama_folder: Path, long_requests: list[GenerationRequest]
) -> None:
    model = load_model(llama_folder, "float32")
    claims = [
        ReplayRequest(prompt=(2, 40, 41), tokens=(50, 60, 1), seed=5),
        ReplayRequest(prompt=long_requests[5].prompt, tokens=(7,), seed=2**63 - 1),
    ]
    for claim, replay in zip(claims, llama.replay(claims, temperature=0.5, capture=EVERYTHING), strict=True):
        n = len(claim.tokens)
        with torch.no_grad():
            logits = model(torch.tensor([claim.prompt + claim.tokens])).logits[0, len(claim.prompt) - 1 : -1]
        expected = torch.log_softmax(logits.double(), -1)
        noise = gumbel(np.full(n, claim.seed, np.uint64), np.arange(n, dtype=np.uint32), 259)
        totals = (logits / 0.5).numpy() + noise
        chosen = np.array(claim.tokens)
        np.testing.assert_allclose(replay.logprobs, expected[np.arange(n), chosen], atol=1e-5)
        np.testing.assert_allclose(replay.margins, totals.max(1) - totals[np.arange(n), chosen], atol=1e-4)
        assert join(replay.tops).shape == (n, 64)


@pytest.mark.parametrize(
    ("prompt", "tokens"), [((), (5,)), ((2,), ()), ((2,), (259,)), ((2,), (5, -1)), ((2, 2**40), (5,)), ((-3,), (5,))]
)
def test_replay__tokens_outside_the_vocabulary__are_malformed(
    qwen: HuggingFaceEngine, prompt: tuple[int, ...], tokens: tuple[int, ...]
) -> None:
    good = ReplayRequest(prompt=(2,), tokens=(5,), seed=0)
    with pytest.raises(ProtocolError) as caught:
        qwen.replay([good, ReplayRequest(prompt=prompt, tokens=tokens, seed=0)], temperature=1.0)
    assert caught.value.code == "malformed_tokens"


def test_properties__tiny_model__are_its_config(qwen: HuggingFaceEngine) -> None:
    assert (qwen.hidden_size, qwen.vocabulary_size, qwen.end_tokens, qwen.policy_version) == (96, 259, {1}, 0)


def test_load_policy__new_weights__change_what_is_generated(
    tmp_path: Path, short_requests: list[GenerationRequest]
) -> None:
    engine = HuggingFaceEngine(base=tiny_folder())
    engine.load_policy(tiny_folder(), 3)
    before = engine.generate(short_requests[:4], temperature=1.0)
    save_weights(build_model(9), tmp_path / WEIGHTS_FILE, torch.bfloat16)
    engine.load_policy(tmp_path, 4)
    after = engine.generate(short_requests[:4], temperature=1.0)
    assert engine.policy_version == 4
    assert [c.tokens for c in before] != [c.tokens for c in after]
    fresh = HuggingFaceEngine(base=tiny_folder())
    fresh.load_policy(tmp_path, 4)
    for reloaded, loaded in zip(after, fresh.generate(short_requests[:4], temperature=1.0), strict=True):
        assert reloaded.tokens == loaded.tokens
        assert reloaded.logprobs == loaded.logprobs


def copy_policy(folder: Path, source: Path | None = None) -> Path:
    shutil.copytree(source or tiny_folder(), folder)
    return folder


def change_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def swap_letters(tokenizer: dict[str, Any]) -> None:
    """Swap the meaning of two tokens. The size of the tokenizer stays the same."""
    words = tokenizer["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]


def assert_equal_engines(
    engine: HuggingFaceEngine, fresh: HuggingFaceEngine, requests: Sequence[GenerationRequest]
) -> None:
    assert encode_prompt(engine.tokenizer, "abc", format=RAW) == encode_prompt(fresh.tokenizer, "abc", format=RAW)
    pairs = zip(engine.generate(requests, temperature=1.0), fresh.generate(requests, temperature=1.0), strict=True)
    assert all((a.tokens, a.logprobs) == (b.tokens, b.logprobs) for a, b in pairs)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_load_policy__description_changes__old_process_agrees_with_a_fresh_one(
    tmp_path: Path, short_requests: list[GenerationRequest], name: str
) -> None:
    """Otherwise a validator that started late would slash an honest worker that started early."""
    changed = copy_policy(tmp_path / "changed")
    change = swap_letters if name == "tokenizer.json" else lambda config: config.update(rms_norm_eps=0.1)
    change_json(changed / name, change)
    engine, fresh, first = HuggingFaceEngine(), HuggingFaceEngine(), HuggingFaceEngine()
    first.load_policy(tiny_folder(), 0)
    engine.load_policy(tiny_folder(), 0)
    engine.load_policy(changed, 1)
    fresh.load_policy(changed, 1)
    assert engine.policy_version == 1
    assert_equal_engines(engine, fresh, short_requests[:3])
    before, after = (each.generate(short_requests[:3], temperature=1.0) for each in (first, engine))
    if name == "tokenizer.json":
        assert encode_prompt(engine.tokenizer, "ab", format=RAW) == encode_prompt(first.tokenizer, "ba", format=RAW)
    else:
        assert [c.logprobs for c in before] != [c.logprobs for c in after]
    engine.load_policy(tiny_folder(), 0)  # as for a submission of the previous step
    assert_equal_engines(engine, first, short_requests[:3])


def test_load_policy__only_weights_change__model_and_tokenizer_stay(tmp_path: Path) -> None:
    again = copy_policy(tmp_path / "again")
    save_weights(build_model(9), again / WEIGHTS_FILE, torch.bfloat16)
    engine = HuggingFaceEngine()
    engine.load_policy(tiny_folder(), 0)
    model, tokenizer = engine._require_model(), engine.tokenizer
    engine.load_policy(again, 1)
    assert (engine._require_model() is model, engine.tokenizer is tokenizer) == (True, True)


def break_weights(folder: Path) -> None:
    (folder / WEIGHTS_FILE).write_bytes(b"no safetensors")


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def widen_config(folder: Path) -> None:
    change_json(folder / "config.json", lambda config: config.update(hidden_size=config["hidden_size"] * 2))


def deepen_config(folder: Path) -> None:
    change_json(folder / "config.json", lambda config: config.update(num_hidden_layers=9, layer_types=None))


def lose_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize("spoil", [break_weights, break_config, widen_config, deepen_config, lose_config])
def test_load_policy__broken_new_description__keeps_the_old_policy_and_loads_the_next_one(
    tmp_path: Path, short_requests: list[GenerationRequest], spoil: Callable[[Path], None]
) -> None:
    spoilt = copy_policy(tmp_path / "spoilt")
    change_json(spoilt / "tokenizer.json", swap_letters)
    spoil(spoilt)
    engine, first = HuggingFaceEngine(), HuggingFaceEngine()
    for each in (engine, first):
        each.load_policy(tiny_folder(), 3)
    with pytest.raises(ProtocolError) as caught:
        engine.load_policy(spoilt, 4)
    assert (caught.value.code, engine.policy_version) == ("policy_mismatch", 3)
    assert_equal_engines(engine, first, short_requests[:3])
    engine.load_policy(tiny_folder(), 5)
    assert engine.policy_version == 5


def test_load_policy__model_of_the_caller__gets_only_weights(tmp_path: Path) -> None:
    model = load_model(tiny_folder(), "float32")
    engine = HuggingFaceEngine.from_model(model, load_tokenizer(tiny_folder()))
    changed = copy_policy(tmp_path / "changed")
    change_json(changed / "tokenizer.json", swap_letters)
    engine.load_policy(changed, 1)
    assert engine._require_model() is model


def test_load_policy__weights_of_another_model__keep_the_old_policy(llama_folder: Path) -> None:
    engine = HuggingFaceEngine(base=tiny_folder())
    engine.load_policy(tiny_folder(), 3)
    with pytest.raises(ProtocolError) as caught:
        engine.load_policy(llama_folder, 4)
    assert caught.value.code == "policy_mismatch"
    assert (engine.policy_version, engine.hidden_size) == (3, 96)


def test_load_policy__first_weights_do_not_fit_the_base__leaves_no_policy(llama_folder: Path) -> None:
    engine = HuggingFaceEngine(base=tiny_folder())
    with pytest.raises(ProtocolError, match="missing"):
        engine.load_policy(llama_folder, 0)
    assert engine.policy_version is None


def test_engine__before_its_first_policy__raises_no_policy() -> None:
    engine = HuggingFaceEngine()
    assert engine.policy_version is None
    for use in (lambda: engine.hidden_size, lambda: engine.tokenizer, lambda: engine.generate([], temperature=1.0)):
        with pytest.raises(OperatorError, match="no policy has been loaded"):
            use()


def test_init__batch_of_zero__is_refused() -> None:
    with pytest.raises(OperatorError, match="batch is 0"):
        HuggingFaceEngine(max_batch=0)


def test_from_model__model_in_training__is_used_live_and_keeps_its_mode(
    short_requests: list[GenerationRequest],
) -> None:
    model = load_model(tiny_folder(), "float32").train()
    engine = HuggingFaceEngine.from_model(model, load_tokenizer(tiny_folder()), version=6)
    first = engine.generate(short_requests[:2], temperature=1.0)
    assert (model.training, engine.policy_version) == (True, 6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    second = engine.generate(short_requests[:2], temperature=1.0)
    assert second[0].logprobs[0] == pytest.approx(-math.log(259), abs=1e-5)
    assert first[0].tokens != second[0].tokens


def test_generate__16_prompts__take_one_pass_of_the_model_for_each_token(
    qwen: HuggingFaceEngine, short_requests: list[GenerationRequest]
) -> None:
    requests, passes = short_requests[::8], list[int]()
    model = qwen._require_model().model
    hook = model.register_forward_hook(lambda *_: passes.append(1))
    try:
        completions = qwen.generate(requests, temperature=1.0)
    finally:
        hook.remove()
    assert len(requests) == 16
    assert len(passes) == max(len(each.tokens) for each in completions)
