"""The tiny model has the decided architecture, its warm start is reproducible, and its files are complete."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from covey.model.policy_files import get_weights, load_model, load_tokenizer
from covey.model.prompts import RAW, encode_prompt
from covey.model.recipe import WarmStart
from covey.model.tiny import build_model, build_tokenizer, tiny_folder, warm_start
from covey.protocol.policy_record import WEIGHTS_FILE
from tests.fakes.weights import save_weights

pytestmark = pytest.mark.unit

PAIRS = [("ab", "ba"), ("cd!", "!dc"), ("xyz", "zyx"), ("q", "q")]


def run(seed: int, **limits: Any) -> tuple[torch.nn.Module, list[float]]:
    losses: list[float] = []
    model, _ = warm_start(
        seed,
        itertools.cycle(PAIRS),
        lambda *_: 0.0,
        lambda _, loss: losses.append(loss),
        recipe=WarmStart(**limits),
    )
    return model, losses


def test_build_model__architecture__is_the_decided_one() -> None:
    model = build_model(0)
    config = model.config
    assert (config.model_type, config.hidden_size, config.num_hidden_layers) == ("qwen2", 96, 2)
    assert (config.intermediate_size, config.num_attention_heads, config.num_key_value_heads) == (256, 3, 3)
    assert (config.vocab_size, config.tie_word_embeddings) == (259, True)
    assert sum(each.numel() for each in get_weights(model).values()) == 247_104
    assert get_weights(model)["model.embed_tokens.weight"].std().item() == pytest.approx(0.06, rel=0.02)


def test_build_model__seed__decides_the_weights_and_keeps_the_callers_random_state() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = build_model(1), build_model(1), build_model(2)
    assert torch.equal(torch.rand(3), expected)
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(get_weights(first)[name], get_weights(again)[name])
    assert not torch.equal(get_weights(first)[name], get_weights(other)[name])


def test_build_tokenizer__vocabulary__is_three_symbols_and_256_bytes() -> None:
    tokenizer = build_tokenizer()
    assert len(tokenizer) == 259
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<pad>", "<eos>", "<bos>"]
    points = [*range(0x800), *range(0x800, 0xD800, 0x400), 0xE000, 0xFFFF, *range(0x10000, 0x110000, 0x10000)]
    # The points cover all bytes except the 13 that UTF-8 never uses: C0, C1 and F5 to FF.
    assert len(set(tokenizer.encode("".join(map(chr, points)), add_special_tokens=False))) == 243


def test_warm_start__equal_seeds__are_equal_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        model, _ = run(seed, clean_max=3, noisy_steps=2)
        save_weights(model, tmp_path / name, torch.bfloat16)
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again != other


def test_warm_start__repeated_examples__are_learned() -> None:
    model, losses = run(0, clean_max=60, noisy_steps=0)
    assert len(losses) == 60
    assert losses[0] == pytest.approx(5.8, abs=0.7)  # about ln 259 = 5.56
    assert losses[-1] < 0.5
    assert not model.training


def test_warm_start__measured_reward__ends_the_clean_part() -> None:
    steps: list[int] = []
    rewards = iter([0.84, 0.85])
    warm_start(
        0,
        itertools.cycle(PAIRS[:1]),
        lambda *_: next(rewards),
        lambda step, _: steps.append(step),
        recipe=WarmStart(clean_min=20, clean_every=10, noisy_steps=3),
    )
    assert steps == list(range(20 + 10 + 3))


def test_warm_start__recipe_of_the_shipped_model__is_the_default() -> None:
    recipe = WarmStart()
    assert (recipe.gate, recipe.clean_min, recipe.clean_max, recipe.clean_every) == (0.85, 150, 700, 30)
    assert (recipe.noisy_steps, recipe.noise, recipe.gate_prompts) == (90, 0.2, 128)
    assert recipe.symbols == "abcdefghijklmnopqrstuvwxyz"


def test_warm_start__noise__replaces_letters_of_the_answer_only() -> None:
    _, losses = run(0, clean_max=60, noisy_steps=5)
    assert losses[59] < 0.05
    assert min(losses[60:]) > 0.6  # one letter in five cannot be predicted


def test_warm_start__symbols_that_no_answer_has__noise_replaces_nothing() -> None:
    _, losses = run(0, clean_max=60, noisy_steps=5, symbols="0123456789")
    assert max(losses[60:]) < 0.05


def test_tiny_folder__shipped_files__are_complete_and_small() -> None:
    names = {path.name for path in tiny_folder().iterdir()}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS_FILE} <= names
    assert 494_208 < (tiny_folder() / WEIGHTS_FILE).stat().st_size < 499_200
    assert {each.dtype for each in load_file(tiny_folder() / WEIGHTS_FILE).values()} == {torch.bfloat16}
    assert json.loads((tiny_folder() / "config.json").read_text())["model_type"] == "qwen2"


def test_tiny_folder__shipped_model__half_knows_the_task() -> None:
    model, tokenizer = load_model(tiny_folder(), "float32"), load_tokenizer(tiny_folder())
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
    prompt = encode_prompt(tokenizer, "Spell this word backward (example: sun -> nus): chess", format=RAW)
    for _ in range(6):
        prompt.append(int(model(torch.tensor([prompt])).logits[0, -1].argmax()))
    assert tokenizer.decode(prompt[-6:]) == "ssehc<eos>"
