"""A sequence's recurrent state: saved, loaded, copied; all layers in one launch.

A snapshot is one array of 32-bit words. Its parts are those of the reference's slot image, each of
them for all layers (`snapshot_parts`). Its first word is the position that its states have seen.
"""

from __future__ import annotations

from .gdn_layout import GdnState
from .kernel import Array, Kernel, Launcher, Source
from .shapes import require_shape
from .state_layout import StateLayout

COPY_THREADS = 256
COPY_BLOCKS = 5  # on each multiprocessor
SOURCE = Source("gdn_state.cu")


def _copies(name: str, reference: str) -> Kernel:
    return Kernel(name, SOURCE, reference, COPY_THREADS, registers=48, is_snapshot=True)


SAVE = _copies("gdn_save", "save_slot")
LOAD = _copies("gdn_load", "load_slot")
COPY = _copies("gdn_copy", "copy_slot")
KERNELS = (SAVE, LOAD, COPY)

HEADER = 4  # words: base, pending factors, two that are 0


def snapshot_parts(
    shape: StateLayout, n_layers: int, n_pending: int
) -> dict[str, tuple[int, tuple[int, ...]]]:
    """First word and shape of each part, under its name in the reference's slot image."""
    parts, first = {}, HEADER
    for name, size in shape.image_shapes(n_pending).items():
        whole = (n_layers, *size)
        parts[name] = first, whole
        first += _product(whole)
    return parts


def snapshot_words(shape: StateLayout, n_layers: int, n_pending: int) -> int:
    first, size = snapshot_parts(shape, n_layers, n_pending)["decays"]
    return first + _product(size)


def _product(size: tuple[int, ...]) -> int:
    product = 1
    for n in size:
        product *= n
    return product


def state_save(
    launcher: Launcher, shape: StateLayout, states: GdnState, slot: int, n_pending: int, to: Array
) -> None:
    """Slot to snapshot (float32, `snapshot_words` of it), with the first `n_pending` factors."""
    n_layers, n_slots = _layers(states, shape, n_pending)
    _require_slots(n_slots, slot)
    require_shape("snapshot", to, (snapshot_words(shape, n_layers, n_pending),))
    arguments = [*states.arguments, to, slot, *_sizes(shape, n_layers, n_slots, n_pending)]
    launcher.launch(SAVE, launcher.n_processors * COPY_BLOCKS, arguments)


def state_load(
    launcher: Launcher,
    shape: StateLayout,
    states: GdnState,
    slot: int,
    n_pending: int,
    image: Array,
) -> None:
    """Snapshot to slot, not necessarily the one that it was taken of."""
    n_layers, n_slots = _layers(states, shape, n_pending)
    _require_slots(n_slots, slot)
    require_shape("snapshot", image, (snapshot_words(shape, n_layers, n_pending),))
    arguments = [*states.arguments, image, slot, *_sizes(shape, n_layers, n_slots, n_pending)]
    launcher.launch(LOAD, launcher.n_processors * COPY_BLOCKS, arguments)


def state_copy(
    launcher: Launcher,
    shape: StateLayout,
    states: GdnState,
    source: int,
    target: int,
    n_pending: int,
) -> None:
    """Slot to another slot, with the first `n_pending` factors."""
    n_layers, n_slots = _layers(states, shape, n_pending)
    _require_slots(n_slots, source, target)
    sizes = _sizes(shape, n_layers, n_slots, n_pending)
    arguments = [*states.arguments, source, target, *sizes]
    launcher.launch(COPY, launcher.n_processors * COPY_BLOCKS, arguments)


def _layers(states: GdnState, shape: StateLayout, n_pending: int) -> tuple[int, int]:
    """Numbers of layers and of slots."""
    if not 0 <= n_pending <= shape.window:
        raise ValueError(f"{n_pending} pending factors; a window holds {shape.window}")
    n_layers = int(states.state.shape[0])
    return n_layers, states.check(shape, n_layers=n_layers)


def _require_slots(n_slots: int, *slots: int) -> None:
    for slot in slots:
        if not 0 <= slot < n_slots:
            raise ValueError(f"slot {slot}; there are {n_slots}")
    if len(set(slots)) < len(slots):
        raise ValueError(f"slot {slots[0]} cannot be copied to itself")


def _sizes(shape: StateLayout, n_layers: int, n_slots: int, n_pending: int) -> list[int]:
    widths = [*shape.copied_widths, shape.decay_width, shape.state_values]
    return [n_layers, n_slots, *widths, shape.window, shape.ring_rows, shape.kernel - 1, n_pending]
