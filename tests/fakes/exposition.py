"""Reads what an application says to Prometheus."""

from prometheus_client.parser import text_string_to_metric_families


def read_metrics(body: bytes) -> dict[tuple[str, str | None], float]:
    """Return the values by the name of the sample and the value of its only label, or None if it has no label."""
    values = {}
    for family in text_string_to_metric_families(body.decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            assert len(sample.labels) <= 1
            key = (sample.name, next(iter(sample.labels.values()), None))
            assert key not in values
            values[key] = sample.value
    return values
