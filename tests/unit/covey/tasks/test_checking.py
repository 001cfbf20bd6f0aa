import numpy as np
import pytest

from covey.environments.task_draws import is_held_out
from covey.errors import OperatorError
from covey.tasks import likeness
from covey.tasks.checking import Lengths, check_data_set
from covey.tasks.likeness import MinHasher, compute_share
from tests.fakes.tasks import make_data_set, make_row
from tests.unit.covey.tasks.test_dataset import seal

pytestmark = pytest.mark.unit

STORY = (
    "A baker in a small town by the sea makes fresh bread every morning before the sun rises and sells it at the"
    " market where all of the fishermen buy some on their way home from a long night at work"
)


def find_prompts(text, split, count=1):
    """Find variants of a text that fall into a split."""
    is_wanted = split == "held_out"
    return [f"{text} {word}" for word in WORDS if is_held_out(f"{text} {word}") == is_wanted][:count]


WORDS = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(400)]


def test_sign__five_words_each__worked_by_hand():
    signer = MinHasher()
    six, seven = (signer.sign(text).grams for text in ("a b c d e f", "A, b; c d e f - g"))
    assert (len(six), len(seven)) == (2, 3)
    assert compute_share(six, seven) == pytest.approx(2 / 3)
    assert np.array_equal(MinHasher().sign("a b c d e f").grams, six)
    assert len(signer.sign("x x x x x x x x").grams) == 1
    two, other = signer.sign("What is 2 + 3?"), signer.sign("what is 2 + 41")
    assert len(two.grams) == 1
    assert compute_share(two.grams, other.grams) == 0
    assert two.mask == other.mask
    assert two.mask != signer.sign("What was 2 + 3?").mask
    assert len(signer.sign("?!").grams) == 1


def test_check__near_duplicate_across_the_split__is_named(tmp_path):
    (held_out,), train = find_prompts(STORY, "held_out"), find_prompts(STORY, "train", 2)
    rows = [make_row(n, prompt=prompt, problem_id=f"t{n}") for n, prompt in enumerate(train)]
    rows += [make_row(9, prompt=held_out, problem_id="h"), *(make_row(n) for n in range(100, 140))]
    make_data_set(tmp_path / "tasks", rows)
    report = check_data_set(tmp_path / "tasks")
    assert report.near_duplicates == 1
    (pair,) = report.first_near_duplicates
    assert (pair.held_out, pair.train) == ("h", "t0")
    assert pair.share == pytest.approx(38 / 39, abs=0.001)  # 43 words, of which the last differs
    assert report.are_all_compared


def test_check__generated_arithmetic__counts_as_same_but_numbers(tmp_path):
    make_data_set(tmp_path / "tasks", [make_row(n) for n in range(200)])
    report = check_data_set(tmp_path / "tasks")
    assert report.near_duplicates == 0
    assert report.same_but_numbers == report.rows["held_out math"] > 10


def test_check__long_template_with_other_numbers__is_not_a_near_duplicate(tmp_path):
    make_data_set(tmp_path / "tasks", [make_row(n, prompt=f"{STORY} {n}") for n in range(100)])
    report = check_data_set(tmp_path / "tasks")
    assert report.near_duplicates == 0
    assert report.same_but_numbers == report.rows["held_out math"] > 3


def test_check__counts__worked_by_hand(tmp_path):
    rows = [make_row(n, prompt="a" * n, solve_rate_x=0.5 if n % 2 else None) for n in range(1, 11)]
    data_set = make_data_set(tmp_path / "tasks", rows)
    sizes = []
    report = check_data_set(tmp_path / "tasks", advance=sizes.append)
    assert report.digest == data_set.digest
    assert sum(report.rows.values()) == 10
    assert report.prompt_characters == Lengths(median=5, p99=9, largest=10)
    assert (report.without_solve_rates, report.solve_rates) == (5, {"x": 5})
    assert sum(sizes) == data_set.manifest.size + report.bytes_of_rows


@pytest.mark.parametrize("name", ["rows.jsonl", "train.math.index"])
def test_check__one_flipped_bit__names_its_piece(tmp_path, name):
    make_data_set(tmp_path / "tasks", [make_row(n) for n in range(40)])
    path = tmp_path / "tasks" / name
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    with pytest.raises(OperatorError, match=f"bad_dataset: piece 0 of .*{name}"):
        check_data_set(tmp_path / "tasks")


def test_check__rows_that_no_index_lists__bad_dataset(tmp_path):
    folder = tmp_path / "tasks"
    make_data_set(folder, [make_row(n) for n in range(40)])
    (folder / "held_out.math.index").unlink()
    seal(folder)
    with pytest.raises(OperatorError, match="do not list every row"):
        check_data_set(folder)


def test_check__index_of_another_split__bad_dataset(tmp_path):
    folder = tmp_path / "tasks"
    make_data_set(folder, [make_row(n) for n in range(40)])
    train, held_out = folder / "train.math.index", folder / "held_out.math.index"
    a, b = train.read_bytes(), held_out.read_bytes()
    train.write_bytes(b)
    held_out.write_bytes(a)
    seal(folder)
    with pytest.raises(OperatorError, match=r"belongs to split .* and type math"):
        check_data_set(folder)


def test_sketches__many_candidates__stop_at_the_limit():
    sketches = likeness.Sketches()
    for n in range(20):
        sketches.add(n, f"{STORY} {WORDS[n]}", is_held_out=n < 5)
    assert len(sketches.find_candidates(most=100).pairs) == 75
    assert len(sketches.find_candidates(most=10).pairs) == 10
