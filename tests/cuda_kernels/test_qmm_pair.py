"""Two products in one launch: what two launches give, up to where sums are split."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from shim.machine import HostMachine, Machine
from support.quantised import normal_rows, put_packed, relative_error, stored, workspace

from nextn.cuda_kernels.packed import PackedRows
from nextn.cuda_kernels.qmm import Matrix, Split, Workspace, product, split_product
from nextn.cuda_kernels.qmm_pair import Half, product_of_two

Floats = NDArray[np.float32]
WIDTH = 768


class Case(NamedTuple):
    """Two matrices side by side from column 1 on, as kernels take them."""

    machine: Machine
    x: PackedRows
    halves: tuple[Half, Half]
    n_columns: int

    def start(self) -> Floats:
        return normal_rows(self.x.q.shape[0], self.n_columns, 9)

    def joined(self, *, add: bool = False) -> Floats:
        y = self.machine.put(self.start())
        product_of_two(self.machine.launcher, self.x, *self.halves, y, add=add)
        self.check_counters()
        made: Floats = self.machine.get(y)
        return made

    def apart(self, *, add: bool = False) -> Floats:
        y = self.machine.put(self.start())
        for half in self.halves:
            space, column = half.workspace, half.column
            product(self.machine.launcher, self.x, half.matrix, y, space, column=column, add=add)
        made: Floats = self.machine.get(y)
        return made

    def check_counters(self) -> None:
        for half in self.halves:
            counters = self.machine.get(half.workspace.counters)
            assert not counters.any(), "the next launch needs zeros"


def case(machine: Machine, forms: tuple[str, str], rows: tuple[int, int], tokens: int) -> Case:
    weights = [stored(form, n, WIDTH) for form, n in zip(forms, rows, strict=True)]
    return of_matrices(machine, [one.matrix(machine) for one in weights], tokens)


def of_matrices(machine: Machine, matrices: list[Matrix], tokens: int) -> Case:
    one, two = matrices
    halves = (
        Half(one, 1, workspace(machine, tokens, one.rows)),
        Half(two, 1 + one.rows, workspace(machine, tokens, two.rows)),
    )
    x = put_packed(machine, normal_rows(tokens, WIDTH))
    return Case(machine, x, halves, one.rows + two.rows + 3)


@pytest.fixture(params=[1, 3, 7])
def processors(request: pytest.FixtureRequest, machine: Machine) -> Machine:
    if isinstance(machine, HostMachine):
        machine.launcher.n_processors = request.param
    return machine


def same(joined: Floats, apart: Floats) -> bool:
    """Up to roundings of float32: a launch of one matrix splits its sums over K elsewhere."""
    return relative_error(joined, apart.astype(np.float64)) < 2e-7


PAIRS = [("Q4_K", "Q6_K"), ("Q6_K", "Q4_K"), ("Q5_K", "Q6_K"), ("Q8_0", "NVFP4")]


@pytest.mark.parametrize("forms", PAIRS)
@pytest.mark.parametrize("rows", [(40, 24), (33, 272), (300, 16)])
@pytest.mark.slow
def test_what_two_launches_give(
    processors: Machine, forms: tuple[str, str], rows: tuple[int, int]
) -> None:
    """Odd tails, groups that blocks share, and a matrix with fewer units than there are blocks."""
    made = case(processors, forms, rows, 3)
    y = made.joined()
    assert same(y, made.apart())
    untouched = [0, made.n_columns - 2, made.n_columns - 1]
    assert np.array_equal(y[:, untouched], made.start()[:, untouched])


@pytest.mark.parametrize("tokens", [*range(1, 18), 33])
def test_every_number_of_rows(machine: Machine, tokens: int) -> None:
    made = case(machine, ("Q4_K", "Q6_K"), (48, 24), tokens)
    assert same(made.joined(), made.apart())


def test_is_the_product(machine: Machine) -> None:
    weights = stored("Q4_K", 40, WIDTH), stored("Q6_K", 24, WIDTH)
    made = of_matrices(machine, [one.matrix(machine) for one in weights], 5)
    every = np.concatenate([one.values for one in weights])
    exact = normal_rows(5, WIDTH).astype(np.float64) @ every.T
    assert relative_error(made.joined()[:, 1:65], exact) < 1e-4


def test_added_scaled_and_biased(processors: Machine) -> None:
    machine = processors
    matrices = []
    for i, (form, n) in enumerate((("Q6_K", 136), ("Q4_K", 40))):
        scale, bias = normal_rows(2, n, 4 + i)
        matrices.append(stored(form, n, WIDTH).matrix(machine, scale=scale, bias=bias))
    made = of_matrices(machine, matrices, 6)
    assert same(made.joined(add=True), made.apart(add=True))
    assert same(made.joined(), made.apart())


@pytest.mark.parametrize("forms", PAIRS[:2])
@pytest.mark.parametrize("columns", [70, 128, 136])
def test_split_rows_go_where_they_are_sent(
    processors: Machine, forms: tuple[str, str], columns: int
) -> None:
    """Of the first matrix, whichever comes first in the kernel."""
    machine = processors
    made = case(machine, forms, (136, 40), 4)
    first, second = made.halves
    place = machine.put(np.array([5, 0, 9, 2], np.int32))
    results = []
    for is_joined in (True, False):
        ring, y = machine.put(np.full((10, 140), 3, np.float32)), machine.put(made.start())
        split, left = Split(columns, ring, place), 136 - columns
        if is_joined:
            one = Half(first.matrix, 0, first.workspace)
            two = Half(second.matrix, left, second.workspace)
            product_of_two(machine.launcher, made.x, one, two, y, split=split)
        else:
            split_product(machine.launcher, made.x, first.matrix, y, split, first.workspace)
            space = second.workspace
            product(machine.launcher, made.x, second.matrix, y, space, column=left)
        results.append((machine.get(ring), machine.get(y)))
    for joined, apart in zip(*results, strict=True):
        assert same(joined, apart)


def test_a_row_has_the_same_bits_in_any_company(processors: Machine) -> None:
    every = case(processors, ("Q4_K", "Q6_K"), (48, 40), 20).joined()
    for tokens in (1, 4, 6, 11, 17):
        some = case(processors, ("Q4_K", "Q6_K"), (48, 40), tokens).joined()
        assert np.array_equal(some[:, 1:89], every[:tokens, 1:89]), tokens


def test_what_does_not_fit_is_refused(machine: Machine) -> None:
    made = case(machine, ("Q4_K", "Q6_K"), (48, 40), 2)
    first, second = made.halves
    y = machine.garbage((2, made.n_columns))

    def refused(
        text: str,
        one: Half,
        two: Half,
        *,
        x: PackedRows = made.x,
        add: bool = False,
        split: Split | None = None,
    ) -> None:
        with pytest.raises(ValueError, match=text):
            product_of_two(machine.launcher, x, one, two, y, add=add, split=split)

    refused("one product", first, first)
    refused("needed", first, Half(second.matrix, 60, second.workspace))
    refused("wide", first, second, x=put_packed(machine, normal_rows(2, 512)))
    ring, place = machine.garbage((4, 16)), machine.put(np.zeros(2, np.int32))
    refused("cannot take 17", first, second, split=Split(17, ring, place))
    refused("not added", first, second, add=True, split=Split(16, ring, place))
    space = Workspace(machine.garbage(8), second.workspace.counters)
    refused("partial sums", first, Half(second.matrix, 49, space))
