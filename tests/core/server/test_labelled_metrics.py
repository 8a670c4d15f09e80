"""The expositions of several replicas as one."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from nextn.core.server.labelled_metrics import with_label

TEXT = """# HELP a_total Things.
# TYPE a_total counter
a_total {n}
# HELP b_total Things, by kind.
# TYPE b_total counter
b_total{{kind="x y",other="}}"}} {n}
b_total{{kind="z"}} 1
# HELP h Times.
# TYPE h histogram
h_bucket{{le="+Inf"}} {n}
h_sum 0.5
h_count {n}
"""


def test_every_sample_has_its_replica() -> None:
    lines = with_label("replica", {"0": TEXT.format(n=3), "2": TEXT.format(n=5)})
    found = {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families("\n".join(lines) + "\n")
        for sample in family.samples
    }
    assert len(found) == 12
    assert found["a_total[('replica', '0')]"] == 3
    assert found["a_total[('replica', '2')]"] == 5
    assert found["b_total[('kind', 'x y'), ('other', '}'), ('replica', '2')]"] == 5
    assert found["b_total[('kind', 'z'), ('replica', '0')]"] == 1
    assert found["h_bucket[('le', '+Inf'), ('replica', '2')]"] == 5
    assert found["h_sum[('replica', '0')]"] == 0.5


def test_a_metric_is_one_group() -> None:
    lines = with_label("replica", {"0": TEXT.format(n=3), "1": TEXT.format(n=5)})
    heads = [line for line in lines if line.startswith("#")]
    assert heads == [line for line in TEXT.splitlines() if line.startswith("#")]
