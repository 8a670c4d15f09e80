"""What a model and its state take in memory, known before anything is allocated.

`check_weights` refuses a file that does not fit at all before any of its weights is read.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ..backend.interface import Backend, Working
from ..backend.layers import StateShape
from ..errors import ConfigError, ModelError
from .sizes import PAGE_LEN, WINDOW, StateSizes
from .windows import WindowedPages, state_bytes_each

MUCH_LARGER = 1.2  # than in the file: repacking alone adds up to 3 %
_GIB = 1 << 30
_NOTHING = Working()


class MemoryBudget(Struct, frozen=True):
    sizes: StateSizes
    weights: int  # bytes
    page_bytes: int
    slot_bytes: int
    available: int | None  # bytes that are left for the state; None: unknown
    draft: int = 0  # bytes that the state of a draft model takes
    working: Working = _NOTHING
    savings: tuple[str, ...] = ()  # flags that would help, beside -c and -np
    windows: WindowedPages | None = None  # if windowed layers have pages of their own
    windowed_page_bytes: int = 0

    @property
    def kv(self) -> int:
        return self.sizes.n_pages * self.page_bytes + self.windowed_kv

    @property
    def windowed_kv(self) -> int:
        """Of the windowed layers, if they have pages of their own."""
        return self.windows.n_pages * self.windowed_page_bytes if self.windows else 0

    @property
    def recurrent(self) -> int:
        return (self.sizes.n_slots + self.sizes.n_checkpoints) * self.slot_bytes

    @property
    def needed(self) -> int:
        """Beside the weights."""
        return self.kv + self.recurrent + self.draft + self.working.total

    @property
    def fits(self) -> bool:
        return self.available is None or self.needed <= self.available

    def describe(self) -> str:
        """One line, for people."""
        sizes = self.sizes
        tokens = f"{sizes.n_tokens} tokens"
        if self.windows is not None:
            tokens += f"; {_gib(self.windowed_kv)} of it for layers that see a window"
        parts = [f"weights {_gib(self.weights)}", f"KV {_gib(self.kv)} ({tokens})"]
        if self.slot_bytes:
            states = f"{sizes.n_slots} + {sizes.n_checkpoints} states"
            parts.append(f"recurrent {_gib(self.recurrent)} ({states})")
        if self.draft:
            parts.append(f"draft model's state {_gib(self.draft)}")
        if work := self.working.total:
            graphs = f"{self.working.n_graphs} graphs {_gib(self.working.graphs)}"
            libraries = f"libraries {_gib(self.working.reserve)}"
            parts.append(f"working memory {_gib(work)} ({graphs}, {libraries})")
        total = _gib(self.weights + self.needed)
        left = "" if self.available is None else f", {_gib(self.available)} free for the state"
        return f"{' + '.join(parts)} = {total}{left}"


class TooLargeError(ConfigError):
    """The requested state does not fit; `longest` is the context that would, 0 if none."""

    def __init__(self, budget: MemoryBudget, longest: int) -> None:
        super().__init__(_refusal(budget, longest))
        self.budget, self.longest = budget, longest


class WeightsTooLargeError(ModelError):
    """No context is short enough for a model of this size."""


def make_budget(
    backend: Backend,
    shape: StateShape,
    sizes: StateSizes,
    available: int | None,
    weights: int | None = None,
    draft: int = 0,
    working: Working = _NOTHING,
) -> MemoryBudget:
    """The budget of these sizes, with fewer checkpoints if need be; refused if it cannot fit.

    `available` is beside the weights, which are in memory already unless their size is given.
    """
    page_bytes, windowed_page_bytes, slot_bytes = state_bytes_each(backend, shape, sizes)
    if not shape.recurrent:
        sizes = replace(sizes, n_checkpoints=0)
    if weights is None:
        weights = backend.weight_bytes()
    savings = backend.savings
    budget = MemoryBudget(
        sizes,
        weights,
        page_bytes,
        slot_bytes,
        available,
        draft,
        working,
        savings,
        WindowedPages.of(backend, shape, sizes),
        windowed_page_bytes,
    )
    # Checkpoints only save time, so they are the first to go.
    while not budget.fits and budget.sizes.n_checkpoints:
        sizes = replace(budget.sizes, n_checkpoints=budget.sizes.n_checkpoints // 2)
        budget = replace(budget, sizes=sizes)
    if not budget.fits:
        raise TooLargeError(budget, _longest_context(backend, shape, budget))
    return budget


def check_weights(
    backend: Backend,
    shape: StateShape,
    weights: int,
    stored: int,
    available: int,
    working: Working = _NOTHING,
) -> None:
    """Refuse a model that no context length would make fit.

    The file's own pages are not counted: they are let go of as soon as they are repacked.
    """
    page_bytes, slot_bytes = backend.state_bytes(shape, page_len=PAGE_LEN, window=WINDOW)
    least = slot_bytes + page_bytes * StateSizes(1).n_pages
    if weights + least + working.total <= available:
        return
    if weights > MUCH_LARGER * stored:
        advice = (
            "this device expands its types when they are loaded, so that a file of another type, "
            "such as Q4_K, may take less"
        )
    else:
        advice = "take a file with fewer bits per weight"
    work = f", what steps work with {_gib(working.total)}" if working.total else ""
    others = "".join(f", {flag}" for flag in backend.savings if flag.startswith("--device"))
    raise WeightsTooLargeError(
        f"not enough memory for this model: its weights take {_gib(weights)} ({_gib(stored)} in "
        f"the file), KV cache and state at least {_gib(least)}{work}, but {_gib(available)} are "
        f"free; {advice}{others}, or close other programs"
    )


def _refusal(budget: MemoryBudget, longest: int) -> str:
    sizes, available = budget.sizes, budget.available or 0
    least = sizes.n_slots * budget.slot_bytes
    parts = [f"{_gib(budget.kv)} of KV cache for {sizes.n_tokens} tokens"]
    if least:
        parts.append(f"{_gib(least)} of recurrent state")
    if budget.draft:
        parts.append(f"{_gib(budget.draft)} for the draft model")
    if work := budget.working.total:
        parts.append(f"{_gib(work)} to work with")
    each = " for each" if sizes.n_slots > 1 else ""  # a server's -c may be of all together
    smaller = f"-c (up to {longest}{each} would fit)" if longest else "model"
    advice = f"give a smaller {smaller}"
    if sizes.n_slots > 1:
        advice += " or fewer parallel sequences"
    if budget.savings:
        advice += f"; {', '.join(budget.savings[:-1])} or {budget.savings[-1]} may help, too"
    return (
        f"not enough memory for {sizes.n_slots} x {sizes.n_ctx} tokens of context: "
        f"needs {_gib(budget.needed)} ({', '.join(parts)}) beside the {_gib(budget.weights)} of "
        f"weights, but {_gib(available)} are free; {advice}"
    )


def _longest_context(backend: Backend, shape: StateShape, budget: MemoryBudget) -> int:
    """In whole pages: all contexts that are shorter fit, too."""
    fitting, too_many = 0, budget.sizes.pages_per_slot
    sizes = replace(budget.sizes, n_checkpoints=0, kv_pages=None)
    while too_many - fitting > 1:
        n_pages = (fitting + too_many) // 2
        tried = replace(sizes, n_ctx=n_pages * sizes.page_len)
        windows = WindowedPages.of(backend, shape, tried)
        if replace(budget, sizes=tried, windows=windows).fits:
            fitting = n_pages
        else:
            too_many = n_pages
    return fitting * sizes.page_len


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / _GIB:.2f} GiB"
