"""`covey eval` has the scores and texts of a plain loop over transformers, row by row, without batches or caches."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from covey.model.tiny import tiny_folder
from covey.protocol.seeding import compute_trial_seed
from covey.sampling.noise import philox_words
from tests.fakes.spelling_rows import evaluate_tiny, write_rows

pytestmark = pytest.mark.integration

ROWS = 500 if os.environ.get("COVEY_FULL") == "1" else 60
BOS, EOS, MOST = 2, 1, 8


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.float32).eval()


def sample_plainly(model: torch.nn.Module, prompt: list[int], seed: int, temperature: float) -> list[int]:
    """Sample one token after the other, each from logits of the whole sequence."""
    tokens: list[int] = []
    while len(tokens) < MOST and (not tokens or tokens[-1] != EOS):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0, -1].double().numpy()
        if temperature:
            position = np.array([len(tokens)], np.uint32)
            words = philox_words(np.array([seed], np.uint64), position, len(logits))[0]
            logits = logits / temperature - np.log(-np.log((words + 0.5) / 2**32))
        tokens.append(int(logits.argmax()))
    return tokens


@pytest.mark.parametrize(("temperature", "samples"), [(0.6, 2), (0.0, 1)])
def test_evaluate__rows_of_a_file__equals_a_plain_loop(
    tmp_path: Path, model: torch.nn.Module, temperature: float, samples: int
) -> None:
    pairs = write_rows(tmp_path / "rows.jsonl", ROWS)
    results = evaluate_tiny(tmp_path / "rows.jsonl", tmp_path / "out", samples=samples, temperature=temperature)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_folder())
    expected = {}
    for number, (question, answer) in enumerate(pairs):
        prompt = [BOS, *tokenizer.encode(f"{question}\n", add_special_tokens=False)]
        for sample in range(samples):
            seed = compute_trial_seed("eval", 0, number, sample)
            tokens = sample_plainly(model, prompt, seed, temperature)
            has_ended = tokens[-1] == EOS
            text = tokenizer.decode(tokens[:-1] if has_ended else tokens)
            is_right = has_ended and text.strip().casefold() == answer.casefold()
            expected[number, sample] = (text, len(tokens), has_ended, float(is_right))
    rows = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    found = {
        (row["question"], row["sample"]): (row["text"], row["tokens"], row["finished"], row["score"]) for row in rows
    }
    assert found == expected
    (scores,) = results.models
    assert scores.mean.value == pytest.approx(np.mean([score for *_, score in expected.values()]), abs=1e-12)
    assert 0.2 < scores.mean.value < 0.98
    assert scores.finished.value == np.mean([has_ended for _, _, has_ended, _ in expected.values()])


def test_evaluate__the_most_likely_token__equals_generate_of_transformers(
    tmp_path: Path, model: torch.nn.Module
) -> None:
    pairs = write_rows(tmp_path / "rows.jsonl", 12)
    evaluate_tiny(tmp_path / "rows.jsonl", tmp_path / "out", temperature=0.0)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_folder())
    texts = []
    for question, _ in pairs:
        prompt = torch.tensor([[BOS, *tokenizer.encode(f"{question}\n", add_special_tokens=False)]])
        made = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=MOST)
        texts.append(tokenizer.decode(made[0, prompt.shape[1] :], skip_special_tokens=True))
    rows = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == texts
