"""Replay in one packed row equals a plain forward pass of each sequence, and leaves the model unchanged."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise

import numpy as np
import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

from covey.engines.base import GenerationRequest, ReplayRequest
from covey.engines.hf import engine as hf
from covey.engines.hf import packed_replay
from covey.engines.hf.decode import catch_states
from covey.engines.hf.engine import HuggingFaceEngine
from covey.engines.hf.packed_replay import Span, Spans, packed, read_completions
from covey.errors import OperatorError
from covey.model.tiny import build_tokenizer
from covey.toploc.topk import EVERYTHING, join

pytestmark = pytest.mark.unit

VOCABULARY = 259
WINDOW = 5
"""Window of the models with sliding attention, shorter than every sequence of `RAGGED`."""
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip
Pairs = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
SHARED = (2, 71, 13, 90, 14, 100, 7)
RAGGED: Pairs = [
    (SHARED, tuple(range(30, 42))),
    ((2, 9, 8, 7, 6), (50, 60)),
    (SHARED, (77,)),  # a sibling of the first that does not follow it directly
    ((2,), tuple(range(200, 220))),
    (SHARED, tuple(range(30, 42))),  # equal to the first
    ((2, 5, 2, 5, 2, 5), (1,)),
]


def build_qwen2_sliding() -> PreTrainedModel:
    """Build a model with one full layer, followed by one that attends to `WINDOW` tokens."""
    window = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    config = Qwen2Config(**SIZES, **window)
    assert config.layer_types == ["full_attention", "sliding_attention"]
    return Qwen2ForCausalLM(config)


BUILDERS = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama_all_heads": lambda: LlamaForCausalLM(LlamaConfig(**(SIZES | {"num_key_value_heads": 4}))),
    "qwen2_sliding": build_qwen2_sliding,
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=4.0)),
    "mixture": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4)),
    "mistral_sliding": lambda: MistralForCausalLM(MistralConfig(**SIZES, head_dim=8, sliding_window=WINDOW)),
}


def build(kind: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Build a model with large weights, so that attention to one token more or less changes the results much."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = BUILDERS[kind]().train(False)
        for weight in model.parameters():
            weight.data = 0.2 * torch.randn(weight.shape) if weight.ndim > 1 else 1 + 0.1 * torch.randn(weight.shape)
    return model.to(dtype)


@pytest.fixture(scope="module", params=list(BUILDERS))
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return build(request.param)


@torch.no_grad()
def read_alone(model: PreTrainedModel, pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `read_completions` should, from one pass per sequence with transformers' own attention."""
    hidden, logits = [], []
    for prompt, completion in pairs:
        rows = slice(len(prompt) - 1, -1)
        with catch_states(model) as states:
            logits.append(model(torch.tensor([prompt + completion]), use_cache=False).logits[0, rows].float())
        hidden.append(states[0][0, rows])
    return torch.cat(hidden), torch.cat(logits)


@torch.no_grad()
def read_packed(model: PreTrainedModel, pairs: Pairs, *, rows: int = 99) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all states and logits, with the head on `rows` rows at a time."""
    prompts, completions = [prompt for prompt, _ in pairs], [completion for _, completion in pairs]
    with packed(model):
        states, logits = zip(*read_completions(model, prompts, completions, rows=rows), strict=True)
    assert max(map(len, logits)) <= rows
    return torch.cat(states), torch.cat(logits)


@torch.no_grad()
def read_whole(model: PreTrainedModel, pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """Run one packed pass by the model's own forward, with the head on all rows at once."""
    spans, tokens, positions = packed_replay._lay_out([prompt for prompt, _ in pairs], [tokens for _, tokens in pairs])
    ends = list(accumulate(span.tokens for span in spans))
    predicting_rows = [
        [ends[span.prompt] - 1, *range(end - span.tokens, end)]
        for span, end in zip(spans, ends, strict=True)
        if span.prompt is not None
    ]
    ids, places, rows = (torch.tensor(list(chain.from_iterable(each))) for each in (tokens, positions, predicting_rows))
    with packed(model), catch_states(model) as states:
        packing = Spans.build(spans, model.device)
        logits = model(ids[None], position_ids=places[None], use_cache=False, logits_to_keep=rows, spans=packing).logits
    return states[0][0], logits[0].float()


def claim(pairs: Pairs) -> list[ReplayRequest]:
    return [ReplayRequest(prompt=prompt, tokens=tokens, seed=i) for i, (prompt, tokens) in enumerate(pairs)]


def attend_slowly(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, query_borders: torch.Tensor, key_borders: torch.Tensor,
    *_: int, scale: float, window_size: tuple[int, int], enable_gqa: bool,
) -> torch.Tensor:  # fmt: skip
    """Compute what torch's kernel for sequences of different lengths does on a GPU, one sequence after another."""
    parts = []
    borders = (pairwise(each.tolist()) for each in (query_borders, key_borders))
    for (first, last), (start, end) in zip(*borders, strict=True):
        distances = torch.arange(end - start - (last - first), end - start)[:, None] - torch.arange(end - start)
        is_seen = (distances >= 0) & ((window_size[0] < 0) | (distances <= window_size[0]))
        q, k, v = (each.transpose(0, 1)[None] for each in (query[first:last], key[start:end], value[start:end]))
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_seen, scale=scale, enable_gqa=enable_gqa)
        )
    return torch.cat(parts, dim=2)[0].transpose(0, 1)


@pytest.mark.parametrize("window", [None, 3])
def test_attend_together__spans_with_prompts__equals_span_by_span(
    monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    """The kernel needs a GPU, so its definition takes its place."""
    monkeypatch.setattr(packed_replay, "varlen_attn", attend_slowly)
    spans = [Span(3), Span(1), Span(4, prompt=0), Span(0, prompt=1), Span(6, prompt=1), Span(1, prompt=0)]
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, 15, 8, generator=generator) for heads in (4, 2, 2))
    packing = Spans.build(spans, torch.device("cpu"))
    together = packed_replay._attend_together(query, key, value, packing, 0.3, window)
    torch.testing.assert_close(together, packed_replay._attend_singly(query, key, value, spans, 0.3, window))


@pytest.mark.parametrize(
    "pairs",
    [RAGGED, RAGGED[:1], RAGGED[2:3], [(SHARED, (i + 3,)) for i in range(4)], [((2,), (1,))]],
    ids=["ragged", "alone", "alone with one token", "one token each", "one token after one token"],
)
def test_read_completions__packed__equals_each_sequence_alone(model: PreTrainedModel, pairs: Pairs) -> None:
    hidden, logits = read_packed(model, pairs)
    alone = read_alone(model, pairs)
    assert logits.shape == (sum(len(completion) for _, completion in pairs), VOCABULARY)
    torch.testing.assert_close(hidden, alone[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits, alone[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", list(BUILDERS))
def test_read_completions__head_alone__has_the_bits_of_the_whole_model(kind: str, dtype: torch.dtype) -> None:
    """This includes the model's changes to its logits. A head on fewer rows at a time may round differently."""
    model = build(kind, dtype)
    whole, separate = read_whole(model, RAGGED), read_packed(model, RAGGED)
    assert torch.equal(separate[0], whole[0])
    assert torch.equal(separate[1], whole[1])
    parts = read_packed(model, RAGGED, rows=5)
    assert torch.equal(parts[0], whole[0])
    torch.testing.assert_close(parts[1], whole[1], atol=1e-5 if dtype is torch.float32 else 0.05, rtol=0)


def test_read_completions__model_that_scales_its_logits__gives_scaled_logits() -> None:
    model = build("granite")
    _, logits = read_packed(model, RAGGED, rows=7)
    model.config.logits_scaling = 1.0
    _, plain = read_packed(model, RAGGED, rows=7)
    torch.testing.assert_close(logits, plain / 4.0, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["qwen2_sliding", "mistral_sliding"])
def test_read_completions__sliding_window__changes_the_result(kind: str) -> None:
    """Otherwise the comparison above would also hold for a packing that ignores the window."""
    model = build(kind)
    _, narrow = read_packed(model, RAGGED)
    model.config.sliding_window = 1000  # Mistral's layers read this; each layer of Qwen2 has its own copy
    for module in model.modules():
        if getattr(module, "sliding_window", None) == WINDOW:
            module.sliding_window = 1000
    _, wide = read_packed(model, RAGGED)
    assert (narrow[:4] - wide[:4]).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["qwen2_sliding", "mistral_sliding"])
def test_replay__sliding_window_generated_with_a_cache__is_accepted(kind: str) -> None:
    engine = HuggingFaceEngine.from_model(build(kind), build_tokenizer())
    requests = [GenerationRequest(prompt=prompt, seed=i, max_tokens=12) for i, (prompt, _) in enumerate(RAGGED)]
    completions = engine.generate(requests, temperature=1.0)
    assert max(len(each.tokens) for each in completions) > 2 * WINDOW
    claims = [
        ReplayRequest(prompt=request.prompt, tokens=completion.tokens, seed=request.seed)
        for request, completion in zip(requests, completions, strict=True)
    ]
    for completion, replay in zip(completions, engine.replay(claims, temperature=1.0), strict=True):
        assert replay.margins.max() <= 1e-4
        np.testing.assert_allclose(replay.logprobs, completion.logprobs, atol=2e-5)


def build_foreign(kind: str) -> PreTrainedModel:
    """Build a model whose token states depend on more than plain attention to the earlier tokens."""
    small = {name: value for name, value in SIZES.items() if name not in {"num_hidden_layers"}}
    if kind == "no backend":
        return BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=1, n_head=4))
    if kind == "convolution":
        return Lfm2ForCausalLM(Lfm2Config(**small, num_hidden_layers=3, full_attn_idxs=[1]))
    if kind == "sinks":
        return GptOssForCausalLM(GptOssConfig(**SIZES, head_dim=8, num_local_experts=2, num_experts_per_tok=1))
    if kind == "nothing passed on":  # the model does not pass the spans on to its attention
        return StableLmForCausalLM(StableLmConfig(**SIZES))
    experts = {"head_dim": 8, "attention_chunk_size": 5, "intermediate_size_mlp": 48, "num_local_experts": 2}
    return Llama4ForCausalLM(Llama4TextConfig(**small, num_hidden_layers=4, **experts))


@pytest.mark.parametrize("kind", ["no backend", "convolution", "sinks", "chunks", "nothing passed on"])
def test_read_completions__unsupported_attention__is_refused_and_stays_unchanged(kind: str) -> None:
    model = build_foreign(kind).train(False)
    before = model.config._attn_implementation
    with pytest.raises(OperatorError) as caught:
        read_packed(model, RAGGED)
    assert caught.value.code == "unsupported_model"
    assert model.config._attn_implementation == before
    assert model(torch.tensor([[2, 3, 4]]), use_cache=False).logits.isfinite().all()


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_read_completions__positions_that_follow_the_longest_row__are_refused(kind: str) -> None:
    """An honest completion would be replayed with other angles if a longer one is in the same pass."""
    model = build("qwen2")
    model.config.rope_parameters = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(OperatorError) as caught:
        read_packed(model, RAGGED)
    assert caught.value.code == "unsupported_model"
    model.config.rope_parameters = {
        "full_attention": {"rope_type": "default"},
        "sliding_attention": {"rope_type": kind},
    }
    with pytest.raises(OperatorError):
        read_packed(model, RAGGED)
    model.config.rope_parameters = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    read_packed(model, RAGGED)


def test_read_completions__model_fails_midway__gets_its_attention_back() -> None:
    model = build("qwen2")
    before, expected = model.config._attn_implementation, read_alone(model, RAGGED)
    handle = model.model.layers[1].mlp.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        read_packed(model, RAGGED)
    handle.remove()
    assert model.config._attn_implementation == before != "covey_packed"
    assert not get_hooks(model)
    assert all(torch.equal(a, b) for a, b in zip(read_alone(model, RAGGED), expected, strict=True))


def fail(*_: object) -> None:
    raise RuntimeError("out of memory")


def get_hooks(model: PreTrainedModel) -> list[object]:
    return [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]


def test_generate__after_a_replay__is_what_it_was() -> None:
    engine = HuggingFaceEngine.from_model(build("qwen2"), build_tokenizer())
    requests = [GenerationRequest(prompt=prompt, seed=i, max_tokens=9) for i, (prompt, _) in enumerate(RAGGED)]
    before = engine.generate(requests, temperature=1.0, capture=EVERYTHING)
    engine.replay(claim(RAGGED), temperature=1.0)
    for old, new in zip(before, engine.generate(requests, temperature=1.0, capture=EVERYTHING), strict=True):
        assert (old.tokens, old.logprobs) == (new.tokens, new.logprobs)
        assert np.array_equal(join(old.tops), join(new.tops))


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_replay__bfloat16__repeats_itself_and_hardly_depends_on_the_batch(kind: str) -> None:
    model = build(kind, torch.bfloat16)
    engines = [HuggingFaceEngine.from_model(model, build_tokenizer(), max_batch=batch) for batch in (6, 6, 1, 4)]
    replays = [engine.replay(claim(RAGGED), temperature=1.0, capture=EVERYTHING) for engine in engines]
    for first, again, *others in zip(*replays, strict=True):
        assert np.array_equal(join(first.tops), join(again.tops))
        assert np.array_equal(first.logprobs, again.logprobs)
        assert np.array_equal(first.margins, again.margins)
        for other in others:
            assert np.isfinite(other.margins).all()
            # A logit of 4 has steps of 1/64 in bfloat16. Another token than the claimed one is off by whole units.
            np.testing.assert_allclose(other.logprobs, first.logprobs, atol=0.25)
            np.testing.assert_allclose(other.margins, first.margins, atol=0.25)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Lengths of the completions of every pass."""
    lengths: list[list[int]] = []

    def record(
        model: PreTrainedModel, prompts: list, completions: list, *, rows: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        lengths.append([len(each) for each in completions])
        return read_completions(model, prompts, completions, rows=rows)

    monkeypatch.setattr(hf, "read_completions", record)
    return lengths


# The completions of RAGGED have 12, 2, 1, 20, 12 and 1 tokens. With its prompt, which counts once per pass, each adds
# 19, 7, 1, 21, 12 and 7 tokens.
@pytest.mark.parametrize(
    ("max_batch", "cpu_tokens", "expected"),
    [
        (6, 67, [[12, 2, 1, 20, 12, 1]]),  # 67 tokens are within 67
        (6, 66, [[12, 2, 1, 20, 12], [1]]),
        (4, 99, [[12, 2, 1, 20], [12, 1]]),
        (1, 99, [[12], [2], [1], [20], [12], [1]]),
        (6, 27, [[12, 2, 1], [20], [12, 1]]),  # the prompt of 7 tokens counts again in the last pass
        (6, 1, [[12], [2], [1], [20], [12], [1]]),  # no room for a single completion
    ],
)
def test_replay__more_tokens_than_a_pass_takes__uses_several_passes_in_order(
    passes: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    max_batch: int,
    cpu_tokens: int,
    expected: list[list[int]],
) -> None:
    model = build("qwen2")
    whole = HuggingFaceEngine.from_model(model, build_tokenizer()).replay(claim(RAGGED), temperature=1.0)
    passes.clear()
    monkeypatch.setattr(hf, "REPLAY_TOKENS", cpu_tokens)
    engine = HuggingFaceEngine.from_model(model, build_tokenizer(), max_batch=max_batch)
    parts = engine.replay(claim(RAGGED), temperature=1.0)
    assert passes == expected
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(other.logprobs, one.logprobs, atol=1e-5)
        np.testing.assert_allclose(other.margins, one.margins, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_replay__completion_with_more_logits_than_the_limit__is_scored_in_parts(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Proofs are identical to the bit. Log-probabilities and margins may differ, because the head may round
    differently."""
    engine = HuggingFaceEngine.from_model(build("qwen2", dtype), build_tokenizer())
    claims = claim(RAGGED[:1] + RAGGED[3:4])
    whole = engine.replay(claims, temperature=0.7, capture=EVERYTHING)
    monkeypatch.setattr(hf, "MAX_LOGITS", 5 * VOCABULARY)
    parts = engine.replay(claims, temperature=0.7, capture=EVERYTHING)
    alone = engine.replay(claims[:1], temperature=0.7, capture=EVERYTHING)
    assert np.array_equal(parts[0].logprobs, alone[0].logprobs)
    tolerance = 1e-5 if dtype is torch.float32 else 0.05
    for one, other in zip(whole, parts, strict=True):
        assert len(one.margins) in (12, 20)
        np.testing.assert_allclose(other.logprobs, one.logprobs, atol=tolerance)
        np.testing.assert_allclose(other.margins, one.margins, atol=10 * tolerance)
    if dtype is torch.float32:
        assert all(np.array_equal(join(one.tops), join(other.tops)) for one, other in zip(whole, parts, strict=True))


def test_replay__on_a_gpu__takes_as_many_tokens_as_fit_into_memory(
    passes: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = HuggingFaceEngine.from_model(build("qwen2"), build_tokenizer())
    engine._device = "cuda"  # affects only how passes are split; the model stays on the CPU
    monkeypatch.setattr(hf, "REPLAY_TOKENS", 1)
    engine.replay(claim(RAGGED), temperature=1.0)
    assert passes == [[12, 2, 1, 20, 12, 1]]
    config = engine._require_model().config
    size = 4 * (8 * config.hidden_size + 4 * config.intermediate_size)  # bytes of a token in float32
    monkeypatch.setattr(hf, "MAX_ACTIVATIONS", 27 * size)
    passes.clear()
    engine.replay(claim(RAGGED), temperature=1.0)
    assert passes == [[12, 2], [1], [20], [12, 1]]  # each completion counts with its prompt
