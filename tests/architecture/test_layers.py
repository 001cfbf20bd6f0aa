"""Which module may import which: no circles, few arrows, and heavy packages in named modules only."""

from fnmatch import fnmatch

import pytest

from tests.architecture.tree import NAMES, count_arrows, find_circles, list_arrows, list_imports, parse

pytestmark = pytest.mark.unit

MIGRATIONS = "coordinator/db/migrations/*"
ADDRESSES = {
    "web3": ["covey/chain/node_connection.py"],
    "eth_account": ["covey/protocol/accounts.py"],
    "vllm": ["covey/engines/vllm*"],
    "celery": ["coordinator/queue/celery_app.py", "coordinator/queue/folder_broker.py"],
    "kombu": ["coordinator/queue/celery_app.py", "coordinator/queue/folder_broker.py"],
    "sqlalchemy": [
        "coordinator/db/column_types.py",
        "coordinator/db/database.py",
        "coordinator/db/intent_row.py",
        "coordinator/db/models.py",
        "coordinator/db/repository.py",
        "coordinator/db/attestation_queries.py",
        "coordinator/db/chain_queries.py",
        "coordinator/db/node_queries.py",
        "coordinator/db/epoch_queries.py",
        "coordinator/db/fact_queries.py",
        "coordinator/db/judging_queries.py",
        "coordinator/db/omission_queries.py",
        "coordinator/db/page_queries.py",
        "coordinator/db/rate_queries.py",
        "coordinator/db/sum_queries.py",
        "coordinator/db/task_queries.py",
        "coordinator/db/writer.py",
        "coordinator/db/connection.py",
        "coordinator/db/schema_version.py",
        "coordinator/db/change_counter.py",
        "coordinator/db/leadership.py",
        MIGRATIONS,
    ],
    "alembic": ["coordinator/db/schema_version.py", MIGRATIONS],
    "httpx": ["covey/network/coordinator_client.py", "covey/network/coordinator_answers.py", "covey/shardcast/*"],
    "obstore": ["covey/object_store.py"],
    "numba": ["covey/toploc/*", "covey/sampling/*", "covey/shardcast/delta/*"],
    "triton": ["covey/sampling/triton_sampler.py"],
    "verifiers": ["covey/environments/kinds/verifiers/verifiers_server.py"],
    **{name: ["trainer/monitoring/sinks.py"] for name in ("tensorboard", "wandb", "mlflow", "trackio")},
    "sympy": ["covey/environments/kinds/*"],
    "math_verify": ["covey/environments/kinds/mathematics/scalars.py"],
    "latex2sympy2_extended": ["covey/environments/kinds/mathematics/scalars.py"],
    "torch": [
        "covey/toploc/*",
        "covey/sampling/*",
        "covey/model/*",
        "covey/engines/*",
        "validator/replay.py",
        "trainer/*",
    ],
}
ADDRESSES["transformers"] = ADDRESSES["torch"]


def test_imports__late_ones_included__have_no_circle():
    assert find_circles(list_arrows()) == []


def test_find_circles__two_of_five_modules__are_found():
    arrows = frozenset({("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("e", "a")})
    assert find_circles(arrows) == [{"b", "c"}]


@pytest.mark.parametrize(("package", "most"), [("coordinator", 42), ("trainer", 51)])
def test_role__arrows_between_its_parts__are_few(package, most):
    assert count_arrows(package) <= most


@pytest.mark.parametrize("package", ADDRESSES)
def test_heavy_import__only_at_its_address(package):
    wrong = [
        name
        for name in NAMES
        if any(found == package for found, _ in list_imports(parse(name)))
        and not any(fnmatch(name, pattern) for pattern in ADDRESSES[package])
    ]
    assert wrong == []


def test_numba__never_at_module_level():
    assert [n for n in NAMES if ("numba", True) in list_imports(parse(n))] == []


def test_protocol__neither_clock_nor_file_nor_socket():
    banned = {
        "time",
        "datetime",
        "os",
        "pathlib",
        "socket",
        "subprocess",
        "random",
        "secrets",
        "uuid",
        "torch",
        "threading",
    }
    wrong = {
        n: found & banned
        for n in NAMES
        if n.startswith("covey/protocol/")
        if (found := {p for p, _ in list_imports(parse(n))}) & banned
    }
    assert wrong == {}
