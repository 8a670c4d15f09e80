"""The ledger against its plan, and its tables for the page in docs/benchmarks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from nextn.core.state.sizes import PAGE_LEN

from ..figures import Figure
from .counting import FACTORS
from .ledger import COPIED, Account, Ledger
from .plan import TOLERANCE, Plan
from .round_ledger import round_account

WIDTHS = (1, 4, 8, 16)
CONTEXTS = (1024, 32768, 131072)
MEGABYTE, MS = 1e6, 1e3
MULTIPLIED = 790e12  # bfloat16 operations in a second on an H200, at best
DRAFTED = 16  # tokens that may have to be taken back
PAGE = re.compile(r"(<!-- ledger:[^\n]*-->\n).*?(<!-- end of the ledger -->)", re.DOTALL)


def figures(plan: Plan, ledger: Ledger) -> list[Figure]:
    """What was planned, and what is."""
    plain = ledger.step(1)
    found = [Figure("launches of a plain step", plain.launches, at_most=plan.launches)]
    found += _layers(plan, ledger)
    for n_rows, ms in plan.weights_ms.items():
        measured = MS * ledger.step(n_rows).total.weights / COPIED
        name = f"weights, {n_rows} {'row' if n_rows == 1 else 'rows'}, at 4.3 TB/s"
        found.append(Figure(name, measured, "ms", at_most=TOLERANCE * ms))
    for n_rows, ms in plan.state_ms.items():
        measured = 1e6 * ledger.step(n_rows).total.state / COPIED
        name = f"recurrent state, {n_rows} rows, at 4.3 TB/s"
        found.append(Figure(name, measured, "us", at_most=TOLERANCE * 1e3 * ms))
    found += _rollback(plan, ledger)
    found += _prompts(plan, ledger)
    found += _rounds(plan, ledger)
    draft = ledger.draft_step()
    found.append(Figure("launches of a drafted token, full head", draft.launches))
    found.append(Figure("floor of a drafted token, full head", MS * draft.floor_s, "ms"))
    found.append(Figure("to the host, of a plain step", plain.fetched / 1e3, "kB"))
    found.append(Figure("copies from and to the host, of a plain step", plain.copies))
    return found


def _layers(plan: Plan, ledger: Ledger) -> list[Figure]:
    kinds = {"recurrent": plan.delta_layer, "attention": plan.attention_layer}
    found = []
    layers = ledger.layers()
    for kind, planned in kinds.items():
        mark = "gdn_step" if kind == "recurrent" else "attn_verify"
        own = [a.launches for a in layers if any(name.startswith(mark) for name in a.lines)]
        for launches, n in sorted(Counter(own).items()):
            name = f"launches of {kind} layers ({n} of {len(own)})"
            found.append(Figure(name, launches, at_most=planned))
    return found


def _rounds(plan: Plan, ledger: Ledger) -> Iterator[Figure]:
    """Draft, verify and accept, made by the device alone; with the whole head."""
    account, n = round_account(ledger, plan.n_draft), plan.n_draft
    name = f"a round of {n} draft tokens"
    yield Figure(f"launches of {name}", account.launches, at_most=plan.round_launches)
    yield Figure(f"floor of {name}", MS * account.floor_s, "ms")
    rate = plan.length / account.floor_s
    name = f"{name}, at length {plan.length} and its floor"
    yield Figure(name, rate, "tokens/s", at_least=plan.round_tokens_s)
    yield Figure("copies from and to the host, of a round", account.copies, at_most=0)


def _prompts(plan: Plan, ledger: Ledger) -> Iterator[Figure]:
    """What a piece of a prompt takes at best. Its rows are too many for a cache."""
    n = ledger.backend.machine.prompts.chunk
    account = ledger.prompt(n)
    total, products = account.total, account.flops / MULTIPLIED
    weights, rows = total.from_memory / COPIED, total.rows / COPIED
    name = f"{n} rows of a prompt"
    yield Figure(f"launches of {name}", account.launches)
    yield Figure(f"{name}: products, at 790 TFLOP/s", MS * products, "ms")
    yield Figure(f"{name}: weights, unpacked, at 4.3 TB/s", MS * weights, "ms")
    yield Figure(f"{name}: rows, at 4.3 TB/s", MS * rows, "ms")
    rate = n / (products + weights + rows)
    name = f"{name}: one after the other"
    yield Figure(name, rate, "tokens/s", at_least=plan.prompt_tokens_s)


def _rollback(plan: Plan, ledger: Ledger) -> Iterator[Figure]:
    """Of the arrays that a state is made of, and of what the backend says of itself."""
    window = DRAFTED + 1
    state = ledger.new_state(PAGE_LEN, 1, window)
    assert state._delta is not None
    arrays = (state._delta.keys, state._delta.updates, state._delta.decays)
    assert all(array.holds == FACTORS for array in arrays)
    factors = sum(array.nbytes for array in arrays)
    shape = ledger.model.state_shape
    slots = [ledger.backend.state_bytes(shape, page_len=PAGE_LEN, window=n)[1] for n in (1, window)]
    one = factors / MEGABYTE / 2 / window
    at_most = None if plan.factor_mb is None else TOLERANCE * plan.factor_mb
    yield Figure("factors of a token", one, "MB", at_most=at_most)
    name = f"factors for {DRAFTED} draft tokens"
    yield Figure(name, factors / MEGABYTE, "MB", at_most=plan.rollback_mb)
    name = f"a slot for {DRAFTED} draft tokens, beyond one for none"
    yield Figure(name, (slots[1] - slots[0]) / MEGABYTE, "MB")
    yield Figure("a state", state._delta.state.nbytes / MEGABYTE, "MB")


def tables(plan: Plan, ledger: Ledger) -> str:
    """Markdown."""
    accounts = [(n, c, ledger.step(n, c)) for n in WIDTHS for c in CONTEXTS]
    rows = [
        [str(n), f"{c // 1024}k", f"{a.launches:.0f}", *_megabytes(a), f"{MS * a.floor_s:.3f}"]
        for n, c, a in accounts
    ]
    head = ["rows", "context", "launches", "weights MB", "state MB", "KV MB", "rows MB", "floor ms"]
    parts = [f"### {plan.name}, Q4_K_M, one sequence", _markdown(head, rows)]
    parts += ["Of 8 sequences, each with so many rows:", _markdown(head, _together(ledger))]
    plain = ledger.step(1, CONTEXTS[1])
    head = ["kernel", "launches", "weights MB", "state MB", "KV MB", "rows MB", "floor µs"]
    title = f"One row at a context of {CONTEXTS[1] // 1024}k, by kernel:"
    parts += [title, _markdown(head, by_kernel(plain))]
    n = ledger.backend.machine.prompts.chunk
    title = (
        f"{n} rows of a prompt, by kernel; weights are read, written as bfloat16 and read again:"
    )
    return "\n\n".join([*parts, title, _markdown(head, by_kernel(ledger.prompt(n)))])


def _together(ledger: Ledger) -> list[list[str]]:
    made = [(n, ledger.step(n, CONTEXTS[0], n_sequences=8)) for n in (1, 2)]
    return [
        [str(n), "1k", f"{a.launches:.0f}", *_megabytes(a), f"{MS * a.floor_s:.3f}"]
        for n, a in made
    ]


def by_kernel(account: Account) -> list[list[str]]:
    lines = sorted(account.lines.items(), key=lambda item: -item[1].bytes.from_memory)
    found = []
    for name, line in lines:
        b = line.bytes
        sizes = [_short(value / MEGABYTE) for value in (b.weights, b.state, b.kv, b.rows)]
        floor = _short(1e6 * b.from_memory / COPIED)
        found.append([f"`{name}`", f"{line.launches:.0f}", *sizes, floor])
    return found


def _megabytes(account: Account) -> list[str]:
    total = account.total
    return [_short(n / MEGABYTE) for n in (total.weights, total.state, total.kv, total.rows)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 0.05 else "0"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def put_into(page: Path, text: str) -> None:
    """Between the marks of a page."""
    old = page.read_text(encoding="utf-8")
    new, n = PAGE.subn(lambda m: f"{m[1]}\n{text}\n\n{m[2]}", old)
    if n != 1:
        raise SystemExit(f"{page} has no place for the ledger: two marks, see docs/benchmarks")
    page.write_text(new, encoding="utf-8")
