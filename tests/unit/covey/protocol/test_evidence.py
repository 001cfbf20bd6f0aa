"""The bundle of a judgement is canonical, bounded and named by its hash. Any other bytes are refused."""

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import ProtocolError
from covey.protocol.api.common import MAX_EVIDENCE_BYTES, ReceiptBody
from covey.protocol.evidence import Bundle, EngineFacts, get_live_groups, is_in_drawn_rows, require_object
from covey.protocol.object_keys import build_evidence_key
from covey.protocol.running_sums import STATISTICS, ItemSum
from covey.protocol.seeding import MAX_AUDIT_ROWS
from covey.protocol.verdict import Decision, Reason
from tests.fakes.pool import make_address, make_hash

pytestmark = pytest.mark.unit
RECEIPT = ReceiptBody(
    pool=1, task=7, lease=9, node=make_address("node"), contributor=make_address("contributor"), policy_version=0,
    work_key=make_hash("work"), groups=2, units=40, deadline=1000,
)  # fmt: skip


def make_bundle(**changes: object) -> Bundle:
    values = {
        "chain_id": 31337,
        "court": make_address("court"),
        "pool": 1,
        "params_hash": make_hash("params"),
        "receipt": RECEIPT,
        "signature": "0x" + "1b" * 65,
        "record_hash": make_hash("manifest"),
        "contract": make_hash("contract"),
        "draw": make_hash("drawing block"),
        "rows": (5, 0, 31),
        "full": True,
        "decision": Decision.REJECT,
        "reason": Reason.PROOF,
        "units": 0,
        "details": {"group": 1, "mantissa_mean": 0.5, "what": "é"},
        "sums": {"logprob": ItemSum(total=0.1 + 0.2, items=40), "exponent": ItemSum(total=3.0, items=2)},
        "engine": EngineFacts(
            name="hf",
            dtype="float32",
            batch=32,
            hardware="cpu",
            versions={"covey": "0.1", "torch": "2.13.0+cpu"},
            contract=make_hash("contract"),
        ),
        "isolation": "bwrap",
    }
    return Bundle(**(values | changes))


DATA = make_bundle().to_bytes()


def refuse(data: bytes) -> str:
    with pytest.raises(ProtocolError) as caught:
        Bundle.from_bytes(data)
    return caught.value.code


def test_bundle__bytes__are_sorted_json_and_their_hash_is_the_name():
    values = json.loads(DATA)
    assert json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() == DATA
    assert (values["decision"], values["reason"], values["receipt"]["task"]) == (2, 5, 7)
    assert make_bundle().compute_hash() == "0x" + hashlib.sha256(DATA).hexdigest()
    assert build_evidence_key(3, "0xab") == "evidence/3/0xab.json"


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9_]{0,47}", fullmatch=True),
        st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8"), max_size=200),
        max_size=32,
    ),
    st.sampled_from(Reason),
    st.integers(0, 2**63 - 1),
)
def test_bundle__any_details__round_trip(details, reason, units):
    bundle = make_bundle(details=details, reason=reason, units=units)
    again = Bundle.from_bytes(bundle.to_bytes())
    assert again == bundle
    assert {name: type(value) for name, value in again.details.items()} == {k: type(v) for k, v in details.items()}


def test_bundle__largest_details__fit():
    details = {f"a{i:02}".ljust(48, "x"): "\x00" * 200 for i in range(32)}
    sums = {name: ItemSum(total=1.7976931348623157e308, items=2**63 - 1) for name in STATISTICS}
    bundle = make_bundle(details=details, rows=tuple(range(10**9, 10**9 + MAX_AUDIT_ROWS)), sums=sums)
    assert Bundle.from_bytes(bundle.to_bytes()) == bundle
    with pytest.raises(ValueError, match="32"):
        make_bundle(details=details | {"one": 1})


@settings(max_examples=400)
@given(st.data())
def test_from_bytes__mutated__is_refused_or_has_another_hash(data):
    """Bits are flipped, and pieces are removed, duplicated and moved."""
    mutated = bytearray(DATA)
    for _ in range(data.draw(st.integers(1, 4))):
        at, size = data.draw(st.integers(0, len(mutated))), data.draw(st.integers(0, 40))
        piece = data.draw(
            st.binary(max_size=8) | st.sampled_from([b'"', b"{", b"[", b"1", b"-0", b"1e5", b"null", b" "])
        )
        mutated[at : at + size] = piece
    try:
        bundle = Bundle.from_bytes(bytes(mutated))
    except ProtocolError:
        assert refuse(bytes(mutated)) == "bad_evidence"
    else:
        assert bundle.to_bytes() == mutated
        assert bundle.compute_hash() == "0x" + hashlib.sha256(mutated).hexdigest()


@settings(max_examples=200)
@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_from_bytes__noise__is_refused(data):
    assert refuse(data) == "bad_evidence"


def change(**changes: object) -> bytes:
    values = json.loads(DATA)
    for name, value in changes.items():
        values[name] = value
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "data",
    [
        b" " + DATA,
        DATA + b"\n",
        DATA.replace(b'"units":0', b'"units":0,"units":0'),
        DATA.replace(b'"units":0', b'"units":0.0'),
        DATA.replace(b'"units":0', b'"units":"0"'),
        DATA.replace(b'"task":7', b'"task":"7"'),
        DATA.replace("é".encode(), b"\\u00e9"),
        DATA.replace(b'"mantissa_mean":0.5', b'"mantissa_mean":NaN'),
        DATA.replace(b'"mantissa_mean":0.5', b'"mantissa_mean":1e999'),
        DATA.replace(b'"mantissa_mean":0.5', b'"mantissa_mean":0.50'),
        DATA.replace(b'"mantissa_mean":0.5', b'"mantissa_mean":true'),
        DATA.replace(b'"mantissa_mean":0.5', b'"mantissa_mean":' + b"9" * 5000),
        DATA.replace(b'"mantissa_mean":0.5', b'"mantissa_mean":' + b"[" * 5000),
        DATA.replace("é".encode(), b"\xff"),
        change(version=4),
        change(sums=None),
        change(sums={"logprobs": {"items": 40, "total": 0.5}}),
        change(sums={"logprob": {"items": 40}}),
        change(sums={"logprob": {"items": 40.0, "total": 0.5}}),
        change(sums={"logprob": {"items": 40, "total": 1}}),
        change(sums={"logprob": {"items": 40, "total": "0.5"}}),
        change(sums={"logprob": {"items": 40, "total": -0.5}}),
        change(sums={"logprob": {"items": -1, "total": 0.5}}),
        change(sums={"logprob": {"items": 40, "total": 0.5, "mean": 1.0}}),
        DATA.replace(b'"total":3.0', b'"total":NaN'),
        DATA.replace(b'"total":3.0', b'"total":1e999'),
        DATA.replace(b'"total":3.0', b'"total":3.00'),
        change(rows=[True]),
        change(draw=""),
        change(decision=4),
        change(reason=200),
        change(extra=1),
        change(court="0x12"),
        change(details={"Upper": 1}),
        change(details={"what": "x" * 201}),
        change(receipt=None),
        change(details={"what": "x" * MAX_EVIDENCE_BYTES}),
        b"{}",
        b"[]",
        b"",
    ],
    ids=range(40),
)
def test_from_bytes__another_spelling_or_content__is_refused(data):
    assert data != DATA
    assert refuse(data) == "bad_evidence"


def test_require_object__object_of_a_later_version__passes():
    require_object(change(version=6, more=[1, {"a": None}]))
    for data in (b"[]", b'"x"', b"{", b'{"a":Infinity}', b"\xff", b"[" * 60_000):
        with pytest.raises(ProtocolError, match="bad_evidence"):
            require_object(data)


def test_get_live_groups__number_of_groups__is_read_from_the_bytes():
    for count in (0, 1, 2):
        bundle = require_object(make_bundle(details={"live_groups": count}).to_bytes())
        assert get_live_groups(bundle, groups=2) == count


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"live_groups":1}',
        '{"details":null}',
        '{"details":[1]}',
        '{"details":"live_groups"}',
        '{"details":{}}',
        '{"details":{"live_groups":null}}',
        '{"details":{"live_groups":true}}',
        '{"details":{"live_groups":"1"}}',
        '{"details":{"live_groups":1.0}}',
        '{"details":{"live_groups":1e0}}',
        '{"details":{"live_groups":-1}}',
        '{"details":{"live_groups":3}}',
        '{"details":{"live_groups":[1]}}',
        '{"details":{"live_groups":{"live_groups":1}}}',
        '{"details":{"live_groups":' + "9" * 400 + "}}",
    ],
)
def test_get_live_groups__hostile_or_missing__is_none(text: str):
    assert get_live_groups(require_object(text.encode()), groups=2) is None


def test_is_in_drawn_rows__one__is_read_from_the_bytes():
    for word in (0, 1):
        bundle = require_object(make_bundle(details={"drawn": word}).to_bytes())
        assert is_in_drawn_rows(bundle) == bool(word)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"drawn":1}',
        '{"details":[1]}',
        '{"details":{"drawn":true}}',
        '{"details":{"drawn":1.0}}',
        '{"details":{"drawn":"1"}}',
        '{"details":{"drawn":2}}',
    ],
)
def test_is_in_drawn_rows__hostile_or_missing__is_false(text: str):
    assert not is_in_drawn_rows(require_object(text.encode()))
