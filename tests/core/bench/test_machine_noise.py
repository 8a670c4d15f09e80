"""What a report warns of."""

from __future__ import annotations

from nextn.core.bench.machine_noise import MachineLoad, warnings_of
from nextn.core.bench.record import Chunk, Sample, Summary, Times


def warned(rates: list[float], drift: float | None = None, **machine: float) -> list[str]:
    summary = Summary("none", "", 1, times=Times(samples_ts=rates, drift=drift))
    return [line.partition(":")[0] for line in warnings_of([summary], [], machine)]


def test_a_quiet_run_warns_of_nothing() -> None:
    assert warned([100, 101, 99, 100], drift=1.01, others=0.02, stolen=0.001) == []


def test_noise_outliers_and_drift() -> None:
    assert warned([100, 112, 89, 101]) == ["noise too high"]
    assert warned([100, 100, 100, 100, 100, 100, 70]) == ["noise too high", "outliers"]
    assert warned([100, 100], drift=0.9) == ["drift"]
    (line,) = warned([1.0], stolen=0.2)
    assert line.startswith("the host took 20%")
    (line,) = warned([1.0], others=0.5)
    assert line.startswith("other processes used 50%")


def test_texts() -> None:
    def sample(name: str, n: int, n_chunks: int, error: str = "") -> Sample:
        chunks = [Chunk(float(i), 1) for i in range(n_chunks)]
        return Sample(name, "p", "c", predicted_n=n, chunks=chunks, error=error)

    found = warnings_of([], [sample("a", 9, 9), sample("b", 8, 1), sample("c", 9, 9, "bad")], {})
    assert found[0] == "1 texts failed, the first by c: bad"
    assert found[1].startswith("b sent whole texts at once")
    assert found[2] == "1 prompts were answered at different lengths by the configurations"


def test_own_work_is_not_others() -> None:
    before = MachineLoad.now()
    total = sum(i * i for i in range(400_000))
    found = before.until_now()
    assert total
    assert found["seconds"] >= 0
    if "others" in found:
        assert 0 <= found["others"] < 1000
        assert found["stolen"] >= 0
