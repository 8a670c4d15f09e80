"""The counters of several replicas as one."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from nextn.core.server.replicas.merging import Ledger, read_exposition

TEXT = """# HELP a_total Things.
# TYPE a_total counter
a_total {n}
# HELP b_total Things, by kind.
# TYPE b_total counter
b_total{{kind="x y",other="}}"}} {n}
b_total{{kind="z"}} 1
# HELP llamacpp:n_tokens_max Longest.
# TYPE llamacpp:n_tokens_max counter
llamacpp:n_tokens_max {n}
# HELP g Now.
# TYPE g gauge
g {n}
# HELP llamacpp:predicted_tokens_seconds Speed.
# TYPE llamacpp:predicted_tokens_seconds gauge
llamacpp:predicted_tokens_seconds {n}
"""


def note(ledger: Ledger, replica: int, n: float, life: int = 0) -> None:
    ledger.note(replica, life, read_exposition(TEXT.format(n=n)))


def values(lines: list[str]) -> dict[str, float]:
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families("\n".join(lines) + "\n")
        for sample in family.samples
    }


def test_sums_means_and_the_largest() -> None:
    ledger = Ledger()
    note(ledger, 0, 3)
    note(ledger, 1, 5)
    found = values(ledger.total([0, 1]))
    assert found["a_total[]"] == 8
    assert found["b_total[('kind', 'x y'), ('other', '}')]"] == 8
    assert found["b_total[('kind', 'z')]"] == 2
    assert found["g[]"] == 8
    assert found["llamacpp:predicted_tokens_seconds[]"] == 4
    assert "llamacpp:n_tokens_max 5" in ledger.total([0, 1])


def test_each_replica_with_a_label() -> None:
    ledger = Ledger()
    note(ledger, 0, 3)
    note(ledger, 1, 5)
    found = values(ledger.each([0, 1]))
    assert found["a_total[('replica', '1')]"] == 5
    assert found["b_total[('kind', 'x y'), ('other', '}'), ('replica', '0')]"] == 3


def test_counters_never_go_down() -> None:
    ledger = Ledger()
    note(ledger, 0, 30)
    note(ledger, 1, 5)
    assert values(ledger.total([0, 1]))["a_total[]"] == 35
    found = values(ledger.total([1]))  # 0 is lost: what it is doing now is nothing
    assert (found["a_total[]"], found["g[]"]) == (35, 5)
    note(ledger, 0, 1, life=1)
    found = values(ledger.total([0, 1]))
    assert (found["a_total[]"], found["g[]"]) == (36, 6)
    assert "llamacpp:n_tokens_max 5" in ledger.total([0, 1])
    note(ledger, 0, 2, life=2)
    assert values(ledger.total([0, 1]))["a_total[]"] == 38
