import json
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.verification import policy_variants as variants
from covey.demo.cheats import (
    CHEATS,
    BestOfN,
    LikeliestOfN,
    PartialInt8,
    QuantizedWeights,
    Wrapped,
    coarsen_weights,
    edit_matrices,
    get_cheat,
    round_to_int8,
    score_spelling,
)
from covey.engines.base import Completion, GenerationRequest
from covey.errors import OperatorError
from covey.protocol.seeding import SEED_BITS
from covey.toploc.topk import Capture

pytestmark = pytest.mark.unit
CAPTURE = Capture(window=4, top_k=2)


class Letters:
    """A tokenizer with one letter per token: 1 is "a", 2 is "b" ..."""

    def decode(self, tokens, **_):
        return "".join(chr(96 + token) for token in tokens)


class Engine:
    policy_version, hidden_size, vocabulary_size, end_tokens, tokenizer = 4, 8, 27, frozenset({0}), Letters()

    def __init__(self):
        self.seeds, self.loaded = [], []

    def load_policy(self, folder, version):
        self.loaded.append(
            (folder, version, (folder / "model.safetensors").read_bytes(), (folder / "config.json").read_text())
        )

    def generate(self, requests, *, temperature, capture=None):
        assert (temperature, capture) == (0.7, CAPTURE)
        self.seeds.append([request.seed for request in requests])
        return [make_completion(token=1 + request.seed % 3) for request in requests]

    def replay(self, sequences, *, temperature, capture=None):
        return ["replayed", len(sequences), temperature, capture]


def make_completion(token):
    return Completion(policy_version=0, tokens=(token,), logprobs=(-1.0,), tops=(), finished=False)


def write_weights(path, words):
    header = json.dumps({"w": {"dtype": "BF16", "shape": [len(words)], "data_offsets": [0, 2 * len(words)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack(f"<{len(words)}H", *words))


def test_wrapped__passes_everything_on():
    engine = Engine()
    wrapped = Wrapped(engine)
    assert (wrapped.policy_version, wrapped.hidden_size, wrapped.vocabulary_size) == (4, 8, 27)
    assert wrapped.end_tokens == {0}
    assert wrapped.tokenizer is engine.tokenizer
    assert wrapped.replay([1, 2], temperature=0.5, capture=CAPTURE) == ["replayed", 2, 0.5, CAPTURE]
    assert wrapped.replay([1], temperature=0.5) == ["replayed", 1, 0.5, None]
    (made,) = wrapped.generate([GenerationRequest(prompt=(1,), seed=4, max_tokens=1)], temperature=0.7, capture=CAPTURE)
    assert made.tokens == (2,)


def test_coarsen_weights__by_hand__five_lowest_bits_are_gone_and_the_header_stays(tmp_path):
    path = tmp_path / "model.safetensors"
    write_weights(path, [0x3F80, 0x3FFF, 0x801F, 0x0020])
    before = path.read_bytes()
    coarsen_weights(path)
    after = path.read_bytes()
    assert after[:-8] == before[:-8]
    assert struct.unpack("<4H", after[-8:]) == (0x3F80, 0x3FE0, 0x8000, 0x0020)


def test_quantized__load_policy__a_cheaper_copy_and_the_policy_itself_is_untouched(tmp_path):
    write_weights(tmp_path / "model.safetensors", [0x3FFF])
    (tmp_path / "config.json").write_text("{}")
    before = (tmp_path / "model.safetensors").read_bytes()
    engine = Engine()
    QuantizedWeights(engine).load_policy(tmp_path, 4)
    ((folder, version, weights, config),) = engine.loaded
    assert (version, config) == (4, "{}")
    assert weights[-2:] == struct.pack("<H", 0x3FE0)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert not folder.exists()


def write_matrices(path, matrices):
    """Write bf16 matrices and one vector of equal values."""
    tensors = {name: torch.tensor(rows, dtype=torch.bfloat16) for name, rows in matrices.items()}
    save_file(tensors | {"model.norm.weight": torch.full((3,), 0.377, dtype=torch.bfloat16)}, path)


def test_round_to_int8__rows__have_127_steps_each_way_of_their_own_scale():
    weight = np.array([[1.27, 0.014, -0.5], [12.7, 0.1, -0.04]], np.float32)
    np.testing.assert_allclose(round_to_int8(weight), [[1.27, 0.01, -0.5], [12.7, 0.1, 0.0]], atol=1e-6)


def test_edit_matrices__any_values__are_rounded_as_torch_rounds_them(tmp_path):
    path, values = tmp_path / "model.safetensors", torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    write_matrices(path, {"w": values.tolist()})
    edit_matrices(path, lambda name, weight: round_to_int8(weight))
    found = load_file(path)
    assert torch.equal(found["w"], variants.round_to_int8(values.bfloat16().float()).bfloat16())
    assert found["model.norm.weight"].tolist() == [pytest.approx(0.377, rel=0.01)] * 3


@pytest.mark.parametrize(("layers", "changed"), [(None, [2, 3]), (1, [3]), (4, [0, 1, 2, 3])])
def test_partial_int8__load_policy__changes_the_matrices_of_the_last_layers(tmp_path, layers, changed):
    names = {i: f"model.layers.{i}.mlp.up_proj.weight" for i in range(4)}
    rows = [[1.0, 0.3, 0.377], [0.5, 0.123, 0.01]]
    write_matrices(tmp_path / "model.safetensors", dict.fromkeys([*names.values(), "lm_head.weight"], rows))
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 4}')
    cheat = PartialInt8(Engine(), layers=layers)
    cheat.edit(tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    before = torch.tensor(rows, dtype=torch.bfloat16)
    assert [i for i, name in names.items() if not torch.equal(found[name], before)] == changed
    assert torch.equal(found["lm_head.weight"], before)


def test_best_of_n__generate__n_seeds_for_each_and_the_best_of_them():
    engine = Engine()
    cheat = BestOfN(engine, n=3, score=lambda prompt, answer: float(answer == "c"))
    requests = [GenerationRequest(prompt=(1,), seed=seed, max_tokens=1) for seed in (0, 2**SEED_BITS - 1)]
    found = cheat.generate(requests, temperature=0.7, capture=CAPTURE)
    assert engine.seeds == [[0, 1, 2, 2**SEED_BITS - 1, 0, 1]]
    assert found[0].tokens == (3,)
    assert len(found) == 2


@pytest.mark.parametrize(
    ("prompt", "answer", "score"), [("spell abc", "cba", 1.0), ("x abc ", "cba", 1.0), ("x abc", "abc", 0.0)]
)
def test_score_spelling__by_hand(prompt, answer, score):
    assert score_spelling(prompt, answer) == score


def test_get_cheat__names__and_a_wrong_one():
    engine = Engine()
    assert {type(get_cheat(kind)(engine)) for kind in CHEATS} == {QuantizedWeights, BestOfN, LikeliestOfN, PartialInt8}
    with pytest.raises(
        OperatorError,
        match=r"bad_cheat: there is no kind of cheat called lazy. Use one of quantized, best-of-n, .*, partial-int8",
    ):
        get_cheat("lazy")
