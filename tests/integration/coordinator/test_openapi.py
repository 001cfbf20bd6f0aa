"""The API answers as its OpenAPI document says: no 500, no status and no body that the document does not describe.

Schemathesis derives valid and invalid requests from the document, and a hook signs them with the key of the role that
the route requires. The requests also name what the pool has: a node, its tasks, accepted submissions and an epoch.
"""

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from covey.protocol import eip712
from covey.protocol.api.common import MAX_WAIT_SECONDS
from covey.protocol.messages import Receipt
from tests.fakes.network import CoordinatorHarness, create_pool, open_harness
from tests.fakes.pool import INSTANCE, make_params
from tests.integration.chain.conftest import Chain
from tests.integration.coordinator.handing import decide, hand_in

pytestmark = [pytest.mark.integration, pytest.mark.slow]
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
SIGNERS = {"worker": "node", "validator": "validator-0", "trainer": "trainer"}
"""Names of the keys that sign, by the tag of a route. Routes with another tag need no signature."""


class Signing(requests.auth.AuthBase):
    """Signs a request as it is sent, after schemathesis has built it."""

    def __init__(self, harness: CoordinatorHarness, name: str) -> None:
        self._harness, self._name = harness, name

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        parts, body = urlsplit(str(request.url)), request.body or b""
        sent = body.encode() if isinstance(body, str) else body
        assert isinstance(sent, bytes)
        headers = self._harness.sign(self._name, sent, method=request.method, path=parts.path, query=parts.query)
        request.headers.update({name: value for name, value in headers.items() if name not in request.headers})
        return request


@pytest.fixture(scope="module")
def standing(running: Chain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorHarness]:
    """Open a coordinator that does not limit rates."""
    pool = create_pool(running, make_params(lease_seconds=3600, max_staleness=1, epoch_leaves=2))
    with open_harness(running, pool, tmp_path_factory.mktemp("coordinator"), requests_per_s=1e9) as harness:
        yield harness


NAMES = {
    "numbers": ("body.task", "body.lease", "body.judgement", "body.step"),
    "epochs": ("query.epoch",),
    "nodes": ("path.node", "query.node"),
    "contributors": ("path.contributor", "query.contributor"),
    "receipts": ("path.receipt_hash",),
    "instances": ("body.instance",),
}
"""Parameters and fields that name something, by the kind of what they name."""


@pytest.fixture
def document(harness: CoordinatorHarness) -> Any:
    """Return the OpenAPI document of a coordinator that has paid two submissions and leased a third task."""

    async def live() -> Receipt:
        async with harness.client("node") as client:
            for content in (b"first", b"second"):
                receipt = await hand_in(harness, client, content)
                await decide(harness)
            harness.run_job("settle")
            for _ in range(2):
                await harness.follow()
            await harness.claim(client)
        return receipt

    receipt = asyncio.run(live())
    known = {
        "numbers": [0, 1, 2],
        "epochs": [0],
        "nodes": [receipt.node],
        "contributors": [receipt.contributor],
        "receipts": [eip712.compute_struct_hash(receipt)],
        "instances": [INSTANCE],
    }
    config = {
        "generation": {"with-security-parameters": False},  # the hook signs instead
        "dictionaries": {kind: {"values": values} for kind, values in known.items()},
        "parameters": {
            name: {"dictionary": kind, "probability": 0.5} for kind, names in NAMES.items() for name in names
        },
    }
    return schemathesis.openapi.from_url(f"{harness.url}/openapi.json", config=SchemathesisConfig.from_dict(config))


def ask(harness: CoordinatorHarness, case: schemathesis.Case) -> None:
    """Send a request and check the answer."""
    signers = [SIGNERS[tag] for tag in case.operation.tags or () if tag in SIGNERS]
    if isinstance(case.body, dict) and case.path.endswith("/claim"):
        shorten(case.body)
    response = case.call(auth=Signing(harness, signers[0]) if signers else None, timeout=60)
    assert response.status_code != 500, response.text
    case.validate_response(response, checks=CHECKS)


def shorten(body: dict[str, Any]) -> None:
    """Replace the valid duration of a long poll by a short one."""
    try:
        is_valid = 0 <= float(body.get("wait_seconds", 0.0)) <= MAX_WAIT_SECONDS
    except (TypeError, ValueError):
        return
    if is_valid:
        body["wait_seconds"] = 0.01


@pytest.mark.parametrize(
    "examples",
    [pytest.param(20, id="slice"), pytest.param(300, id="full", marks=[pytest.mark.full])],
)
def test_api__any_request__is_answered_as_described(
    harness: CoordinatorHarness, document: Any, examples: int, subtests: pytest.Subtests
):
    """Each operation gets `examples` requests that fit the document, and as many that do not.

    No request is wrong for an operation without parameters, nor for one whose only parameter is any key.
    """
    rules = settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) >= 20
    for operation in operations:
        names = {parameter.name for parameter in (*operation.path_parameters, *operation.query)}
        can_be_wrong = bool(operation.body) or not names <= {"key"}
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)[: 2 if can_be_wrong else 1]:
            with subtests.test(operation=operation.label, mode=mode):
                rules(given(operation.as_strategy(mode))(lambda case: ask(harness, case)))()
