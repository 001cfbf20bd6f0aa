"""Forward passes of packed rows: borders of samples, refused models, and the choice of attention."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from covey.errors import OperatorError
from covey.model.policy_files import get_head, load_model
from covey.model.tiny import tiny_folder
from tests.fakes.samples import SHAPE, build_samples, nest
from trainer.algorithm import forward
from trainer.algorithm.forward import (
    Predictor,
    compute_logprobs,
    predict,
    recompute_activations,
    require_borders,
    require_supported,
    share_samples,
    shares_prefixes,
    with_working_weights,
)
from trainer.data.packing import build_rows

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def base() -> PreTrainedModel:
    return load_model(tiny_folder(), "float32")


def build_llama(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model: PreTrainedModel = LlamaForCausalLM(LlamaConfig(vocab_size=40, **sizes, **changes))
    return model.train(False)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(0, 1000), st.booleans())
def test_predict__samples_in_two_rows__equal_those_of_each_alone(
    base: PreTrainedModel, n: int, seed: int, is_shared: bool
) -> None:
    samples = build_samples(n, seed)
    together = build_rows(samples, [0.0] * n, nest(samples, [list(range(n)), [0]], is_shared=is_shared))
    found = predict(base, together, SHAPE)
    alone = [
        predict(base, build_rows(samples, [0.0] * n, nest(samples, [[i]], is_shared=False)), SHAPE)
        for i in (*range(n), 0)
    ]
    for ours, theirs in zip(found, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(ours, torch.cat(theirs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_predict__temperature__is_that_of_the_sampling_policy(base: PreTrainedModel, temperature: float) -> None:
    (sample,) = build_samples(1)
    rows = build_rows([sample], [0.0], nest([sample], [[0]], is_shared=False))
    logprobs, entropy = predict(base, rows, replace(SHAPE, temperature=temperature))
    tokens = torch.tensor([[*sample.prompt, *sample.tokens]])
    logits = base(input_ids=tokens).logits[0, len(sample.prompt) - 1 : -1]
    expected = torch.log_softmax(logits / temperature, dim=-1)
    torch.testing.assert_close(logprobs, expected.gather(1, torch.tensor(sample.tokens)[:, None])[:, 0])
    torch.testing.assert_close(entropy, -(expected.exp() * expected).sum(dim=-1))


def test_predict__attention_without_families__gets_borders_from_positions_alone(base: PreTrainedModel) -> None:
    rows, seen = build_rows(build_samples(3), [0.0] * 3, nest(build_samples(3), [[0, 1], [2]], is_shared=False)), []

    def read(*, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> Any:
        seen.append((input_ids, position_ids))
        return SimpleNamespace(last_hidden_state=get_head(base).weight[input_ids])

    fake: Any = SimpleNamespace(
        config=SimpleNamespace(_attn_implementation="eager"), device=torch.device("cpu"),
        dtype=torch.float32, base_model=read, get_output_embeddings=base.get_output_embeddings,
    )  # fmt: skip
    logprobs, _ = predict(fake, rows, SHAPE)
    assert seen[0][0].tolist() == [rows.tokens.tolist()]
    assert seen[0][1].tolist() == [rows.positions.tolist()]
    weight = get_head(base).weight
    logits = weight[rows.tokens[rows.places]] @ weight.T
    expected = torch.log_softmax(logits, dim=-1).gather(1, rows.targets[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected)


def test_share_samples__attention_without_families__takes_the_tokens_of_one_row_at_a_time() -> None:
    samples, shape = build_samples(9), replace(SHAPE, seq_len=48, micro_batch_size=4)
    model = build_llama()

    def count_tokens() -> list[int]:
        return [len(build_rows(samples, [1.0] * 9, batch).tokens) for batch in share_samples(model, samples, shape)]

    assert 48 < max(count_tokens()) <= 4 * 48
    model.set_attn_implementation("eager")
    assert max(count_tokens()) <= 48


def test_predict__layers_that_do_not_pass_families_on__give_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_llama()
    read = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda **options: read(**(options | {"families": None})))
    rows = build_rows(build_samples(2), [0.0] * 2, nest(build_samples(2), [[0, 1]], is_shared=True))
    rows = replace(rows, tokens=rows.tokens % 40, targets=rows.targets % 40)
    assert predict(model, rows, SHAPE)[0].isnan().all()
    with pytest.raises(OperatorError, match="unsupported_model"):
        require_supported(Predictor(model, SHAPE))


@pytest.mark.parametrize("is_lean", [False, True])
def test_with_working_weights__several_backward_passes__add_gradients_to_the_masters_in_float32(is_lean: bool) -> None:
    model, seen = build_llama(tie_word_embeddings=True), list[torch.dtype]()
    if is_lean:
        recompute_activations(model)
    masters = dict(model.named_parameters())
    model.model.layers[0].register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
    rows = build_rows(build_samples(2), [1.0] * 2, [(0,), (1,)])
    rows = replace(rows, tokens=rows.tokens % 40, targets=rows.targets % 40)
    shape, gradients = replace(SHAPE, compute_dtype="bfloat16"), list[torch.Tensor]()
    for passes in (1, 3):
        model.zero_grad()
        with with_working_weights(model, torch.bfloat16):
            assert model.model.embed_tokens.weight.dtype is torch.bfloat16
            assert get_head(model).weight is masters["model.embed_tokens.weight"]  # converted tile by tile
            for _ in range(passes):
                torch.autograd.backward(predict(model, rows, shape)[0].sum())
        assert all(each is masters[name] for name, each in model.named_parameters())
        gradients.append(torch.cat([each.grad.flatten() for each in masters.values() if each.grad is not None]))
    assert set(seen) == {torch.bfloat16}
    assert len(gradients[0]) == sum(each.numel() for each in masters.values())
    assert gradients[0].dtype is torch.float32
    torch.testing.assert_close(gradients[1], 3 * gradients[0], rtol=0, atol=0)  # in bfloat16 three parts are rounded


def test_with_working_weights__error_in_it__leaves_the_masters() -> None:
    model = build_llama()
    masters = dict(model.named_parameters())
    with pytest.raises(ValueError, match="stop"), with_working_weights(model, torch.bfloat16):
        raise ValueError("stop")
    with with_working_weights(model, torch.float32):
        assert all(each is masters[name] for name, each in model.named_parameters())
    assert all(each is masters[name] for name, each in model.named_parameters())


def test_compute_logprobs__no_samples__is_nothing(base: PreTrainedModel) -> None:
    assert compute_logprobs(Predictor(base, SHAPE), []) == []


def test_require_supported__shipped_and_untied_models__pass(base: PreTrainedModel) -> None:
    require_supported(Predictor(base, SHAPE))
    require_supported(Predictor(build_llama(), SHAPE))


def test_require_supported__head_with_a_bias__is_refused() -> None:
    model = build_llama()
    head = torch.nn.Linear(32, 40, bias=True)
    model.set_output_embeddings(head)
    with pytest.raises(OperatorError, match="unsupported_model"):
        require_supported(Predictor(model, SHAPE))


def test_require_supported__attention_across_borders__is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_llama(initializer_range=1.0)
    read = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda **options: read(**(options | {"position_ids": None})))
    with pytest.raises(OperatorError, match="unsupported_model"):
        require_supported(Predictor(model, SHAPE))


def test_require_supported__siblings_that_attend_to_each_other__is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_llama(initializer_range=1.0)
    read = model.model.forward
    alone = {"attention_mask": None, "families": None}
    monkeypatch.setattr(model.model, "forward", lambda **options: read(**(options | alone)))
    with pytest.raises(OperatorError, match="unsupported_model"):
        require_supported(Predictor(model, SHAPE))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spread", [0.02, 0.2, 1.0])
def test_require_borders__kernels_that_lose_them__are_refused(
    spread: float, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_llama(initializer_range=spread)
    predictor = Predictor(model, replace(SHAPE, compute_dtype=dtype))
    require_borders(predictor)
    monkeypatch.setattr(forward, "shares_prefixes", lambda model: False)
    require_borders(predictor)
    if spread < 0.1:  # the context of a token then has almost no effect
        return
    read = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda **options: read(**(options | {"position_ids": None})))
    with pytest.raises(
        OperatorError, match="unsupported_model: LlamaForCausalLM lets packed samples affect each other"
    ):
        require_borders(predictor)


@pytest.mark.parametrize(
    ("changes", "attention", "expected"),
    [
        ({}, "sdpa", True),
        ({}, "eager", False),
        ({"sliding_window": 8}, "sdpa", False),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sdpa", False),
    ],
)
def test_shares_prefixes__attention_that_takes_a_mask_and_has_no_window(
    changes: dict[str, Any], attention: str, expected: bool
) -> None:
    model: Any = SimpleNamespace(config=SimpleNamespace(_attn_implementation=attention, **changes))
    assert shares_prefixes(model) is expected
