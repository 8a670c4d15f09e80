"""What `/metrics` says, under the names of several servers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.bench.counters import Counters, TypeCounters, parse_exposition, read_counters

LLAMA = """
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 9
llamacpp:prompt_tokens_cached_total 2
llamacpp:tokens_predicted_total 12
llamacpp:n_decode_total 7
llamacpp:spec_decode_num_draft_tokens_total 12
llamacpp:spec_decode_num_accepted_tokens_total 6
llamacpp:spec_decode_num_drafts_total 5
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 2
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 4
"""
VLLM = """
vllm:spec_decode_num_drafts_total{engine="0",model_name="big"} 5.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="big"} 2.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="other"} 100.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="big"} 1.5e1 1700000000
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="big"} 6.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="big",position="0"} 4
vllm:generation_tokens_total{engine="0",model_name="big"} 12.0
vllm:num_requests_running{engine="0",model_name="big"} 0.0
"""


def test_llama_cpp() -> None:
    found = read_counters(LLAMA)
    assert found == Counters(
        "llamacpp:", drafts=5, drafted=12, accepted=6, predicted=12, prompt=9, cached=2, steps=7,
        per_place=(4, 2), busy=3,
    )  # fmt: skip


def test_vllm_by_model_over_engines() -> None:
    found = read_counters(VLLM, "big")
    assert found is not None
    assert (found.drafts, found.drafted, found.accepted, found.predicted) == (7, 15, 6, 12)
    assert found.per_place == (4,)
    assert found.steps is None


def test_a_server_with_both_namings_is_not_counted_twice() -> None:
    found = read_counters(VLLM + LLAMA)
    assert found is not None
    assert (found.prefix, found.drafts) == ("llamacpp:", 5)


def test_types_beside_a_total() -> None:
    name = "llamacpp:spec_decode_num_draft_tokens_total"
    text = f'{name} 10\n{name}{{type="mtp"}} 7\n{name}{{type="ngram-mod"}} 3\n'
    found = read_counters(text)
    assert found is not None
    assert found.drafted == 10
    assert found.by_type == {"mtp": TypeCounters(7, 0), "ngram-mod": TypeCounters(3, 0)}


@pytest.mark.parametrize("text", ["", "<html>404</html>", "other_total 3", "llamacpp: x"])
def test_other_pages_have_none(text: str) -> None:
    assert read_counters(text) is None


def test_between_two_moments() -> None:
    before, now = read_counters(LLAMA), read_counters(LLAMA.replace(" 12\n", " 20\n"))
    assert before is not None
    assert now is not None
    found = now.since(before)
    assert found is not None
    assert (found.predicted, found.drafted, found.drafts, found.per_place) == (8, 8, 0, (0, 0))


def test_a_server_that_was_started_anew_is_seen() -> None:
    before = Counters("llamacpp:", drafted=12, per_place=(4, 2))
    assert Counters("llamacpp:", drafted=3, per_place=(1,)).since(before) is None
    assert Counters("llamacpp:", drafted=12, per_place=()).since(before) is None
    assert Counters("llamacpp:", drafted=12, per_place=(4, 2, 1)).since(before) is not None


LABELS = st.dictionaries(
    st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True), st.text(max_size=6)
)


@given(LABELS, st.floats(allow_nan=False))
def test_labels_come_back(labels: dict[str, str], value: float) -> None:
    labels = {name: "".join(text.splitlines()) for name, text in labels.items()}
    quoted = {name: text.replace("\\", r"\\").replace('"', r"\"") for name, text in labels.items()}
    inside = ",".join(f'{name}="{text}"' for name, text in quoted.items())
    (found,) = parse_exposition(f"some:name_total{{{inside}}} {value!r}")
    assert found.labels == labels
    assert found.value == value


@given(st.text(max_size=60))
def test_any_text_is_survived(text: str) -> None:
    read_counters("llamacpp:" + text)
