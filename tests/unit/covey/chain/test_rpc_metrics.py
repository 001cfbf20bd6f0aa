import pytest

from covey.chain.json_rpc import ChainClient
from covey.chain.rpc_metrics import RpcMetrics
from covey.errors import TransientError
from covey.runtime.prometheus import build_registry

pytestmark = pytest.mark.unit


def test_measure__answer_and_refusal__are_counted_by_method_and_code():
    metrics = RpcMetrics()
    registry = build_registry(*metrics)
    with metrics.measure("eth_call"):
        pass
    with pytest.raises(TransientError), metrics.measure("eth_call"):
        raise TransientError("chain_unreachable", "gone")
    assert registry.get_sample_value("covey_rpc_seconds_count", {"method": "eth_call"}) == 2
    assert registry.get_sample_value("covey_rpc_errors_total", {"code": "chain_unreachable"}) == 1


def test_client__node_is_away__counts_it():
    client = ChainClient("http://127.0.0.1:9", timeout_s=1.0)
    with pytest.raises(TransientError):
        client.block_number()
    registry = build_registry(*client.metrics)
    assert registry.get_sample_value("covey_rpc_errors_total", {"code": "chain_unreachable"}) == 1
    assert registry.get_sample_value("covey_rpc_seconds_count", {"method": "eth_blockNumber"}) == 1
