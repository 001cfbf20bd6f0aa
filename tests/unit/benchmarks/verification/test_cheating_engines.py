"""What each cheating engine changes, on the shipped tiny model: weights, states, keys and values, or tokens."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.verification.cheating_engines import (
    TEXT,
    CutPrompt,
    FalseText,
    Fp8Cache,
    GreedyFirst,
    ScaledTemperature,
    ShiftedRope,
    SomeRows,
    SpeculativeEngine,
    SteeredEngine,
    TopK,
    TopP,
    ZeroedHead,
)
from covey.demo.cheats import Wrapped
from covey.engines.base import Completion, Engine, GenerationRequest, ReplayRequest
from covey.engines.hf import engine as hf
from covey.engines.hf.engine import HuggingFaceEngine
from covey.engines.hf.kv_cache import BlockLayer
from covey.model.tiny import tiny_folder
from covey.toploc.topk import EVERYTHING, Capture, join

pytestmark = pytest.mark.unit
REQUESTS = [GenerationRequest(prompt=tuple(range(60, 80 + i % 2)), seed=100 + i, max_tokens=6) for i in range(8)]
CAPTURE = Capture(window=32, top_k=128)
LOGITS = torch.tensor([[0.05, 0.6, 0.25, 0.1], [0.05, 0.6, 0.25, 0.1]]).log()


class LastRequests(Wrapped):
    """An engine that keeps its last call."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.requests: list[GenerationRequest] = []
        self.temperature = 0.0

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        self.requests, self.temperature = list(requests), temperature
        return super().generate(requests, temperature=temperature, capture=capture)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def engine() -> HuggingFaceEngine:
    """The tiny model, which no test changes."""
    engine = HuggingFaceEngine()
    engine.load_policy(tiny_folder(), 0)
    return engine


def load(engine: Engine) -> Engine:
    engine.load_policy(tiny_folder(), 0)
    return engine


def generate(engine: Engine) -> list[Completion]:
    return engine.generate(REQUESTS, temperature=1.0, capture=CAPTURE)


def read_states(engine: Engine) -> torch.Tensor:
    """Return the states of a fixed completion, float32[tokens, hidden]."""
    claim = ReplayRequest(prompt=REQUESTS[0].prompt, tokens=(97, 98, 99, 100), seed=1)
    (replay,) = engine.replay([claim], temperature=1.0, capture=EVERYTHING)
    bits = torch.from_numpy(join(replay.tops).astype("int32"))
    return (bits << 16).view(torch.float32)


def test_zeroed_head__policy__lacks_the_columns_of_the_first_head_alone(tmp_path: Path) -> None:
    shutil.copytree(tiny_folder(), tmp_path / "policy")
    ZeroedHead(HuggingFaceEngine()).edit(tmp_path / "policy")
    before, after = (load_file(folder / "model.safetensors") for folder in (tiny_folder(), tmp_path / "policy"))
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == ["model.layers.0.self_attn.o_proj.weight"]
    assert after[changed[0]][:, :32].abs().max() == 0
    assert torch.equal(after[changed[0]][:, 32:], before[changed[0]][:, 32:])


def test_shifted_rope__policy__has_another_base(tmp_path: Path) -> None:
    shutil.copytree(tiny_folder(), tmp_path / "policy")
    ShiftedRope(HuggingFaceEngine(), by=0.01).edit(tmp_path / "policy")
    config = json.loads((tmp_path / "policy/config.json").read_text())
    assert config["rope_parameters"]["rope_theta"] == pytest.approx(10_100)
    assert load(ShiftedRope(HuggingFaceEngine(), by=0.01)).hidden_size == 96


@pytest.mark.parametrize("by", [0.01, 0.05])
def test_steered__states__move_with_the_size_of_the_vector(engine: HuggingFaceEngine, by: float) -> None:
    true, steered = read_states(engine), read_states(load(SteeredEngine(by=by)))
    moved = (steered - true).norm(dim=1) / true.norm(dim=1)
    assert 0.1 * by < moved.mean() < 5 * by


def test_fp8_cache__keys_and_values__are_fp8_while_it_generates(
    engine: HuggingFaceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    update = BlockLayer.update

    def watch(layer: BlockLayer, keys: torch.Tensor, values: torch.Tensor, *rest: object, **more: object) -> object:
        seen.extend((keys, values))
        return update(layer, keys, values, *rest, **more)

    monkeypatch.setattr(BlockLayer, "update", watch)
    generate(Fp8Cache(engine))
    assert seen
    assert all(torch.equal(each, each.to(torch.float8_e4m3fn).to(each.dtype)) for each in seen)
    seen.clear()
    generate(engine)
    assert not all(torch.equal(each, each.to(torch.float8_e4m3fn).to(each.dtype)) for each in seen)


def test_some_rows__first_of_four__are_those_of_the_other_engine(engine: HuggingFaceEngine) -> None:
    other = FalseText(engine, every=1)
    mixed, honest, false = (generate(each) for each in (SomeRows(engine, other, every=4), engine, other))
    assert [each.tokens for each in mixed] == [
        (false if i % 4 == 0 else honest)[i].tokens for i in range(len(REQUESTS))
    ]


def test_scaled_temperature__engine__is_given_it(engine: HuggingFaceEngine) -> None:
    watched = LastRequests(engine)
    ScaledTemperature(watched, scale=0.98).generate(REQUESTS, temperature=0.5)
    assert watched.temperature == pytest.approx(0.49)


def test_cut_prompt__engine__is_given_the_rest_and_at_least_one_token(engine: HuggingFaceEngine) -> None:
    watched = LastRequests(engine)
    CutPrompt(watched, tokens=16).generate(REQUESTS, temperature=1.0)
    assert [each.prompt for each in watched.requests] == [each.prompt[16:] for each in REQUESTS]
    CutPrompt(watched, tokens=99).generate(REQUESTS, temperature=1.0)
    assert [each.prompt for each in watched.requests] == [each.prompt[-1:] for each in REQUESTS]


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (lambda engine: TopP(engine, share=0.8), [[1, 2], [1, 2]]),
        (lambda engine: TopK(engine, count=3), [[1, 2, 3], [1, 2, 3]]),
        (GreedyFirst, [[1], [0, 1, 2, 3]]),
    ],
)
def test_other_sampler__logits_of_two_positions__keep_what_it_samples_from(
    change: type[GreedyFirst], kept: list[list[int]], engine: HuggingFaceEngine
) -> None:
    changed = change(engine).change(LOGITS, torch.tensor([0, 1]))
    assert [(row > -1e29).nonzero()[:, 0].tolist() for row in changed] == kept


def test_other_sampler__logprobs__are_those_of_the_model_and_the_sampler_comes_back(engine: HuggingFaceEngine) -> None:
    before = hf.sample
    made = generate(TopK(engine, count=1))
    assert hf.sample is before
    claims = [
        ReplayRequest(prompt=request.prompt, tokens=each.tokens, seed=request.seed)
        for request, each in zip(REQUESTS, made, strict=True)
    ]
    for each, replay in zip(made, engine.replay(claims, temperature=1.0), strict=True):
        assert each.logprobs == pytest.approx(replay.logprobs.tolist(), abs=1e-4)
    assert [each.tokens for each in made] == [
        each.tokens for each in engine.generate(REQUESTS, temperature=0.0, capture=CAPTURE)
    ]


def test_false_text__first_of_four__is_the_text_and_its_proof_is_true(engine: HuggingFaceEngine) -> None:
    made, honest = generate(FalseText(engine, every=4)), generate(engine)
    text = tuple(engine.tokenizer.encode(TEXT, add_special_tokens=False)[:6])
    assert [each.tokens == text for each in made] == [i % 4 == 0 for i in range(len(REQUESTS))]
    assert made[1].tokens == honest[1].tokens
    claim = ReplayRequest(prompt=REQUESTS[4].prompt, tokens=text, seed=REQUESTS[4].seed)
    (replay,) = engine.replay([claim], temperature=1.0, capture=CAPTURE)
    assert made[4].logprobs == pytest.approx(replay.logprobs.tolist(), abs=1e-4)
    assert not made[4].finished


@pytest.mark.parametrize(("least", "is_honest"), [(1.1, True), (0.0, False)])
def test_speculative__threshold__decides_whose_tokens_are_taken(
    least: float, is_honest: bool, engine: HuggingFaceEngine
) -> None:
    made = generate(load(SpeculativeEngine(least=least)))
    assert ([each.tokens for each in made] == [each.tokens for each in generate(engine)]) is is_honest
