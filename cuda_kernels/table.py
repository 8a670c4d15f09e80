"""The table of all kernels: `python -m nextn.cuda_kernels.table docs/kernels.md`.

It stands between two marks of that page and is written there anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from .cache import CubinCache, default_folder
from .compile import ARCHITECTURES, Compiler, Cubin, nvrtc_version
from .kernel import Kernel, Source
from .registry import all_kernels, all_sources

BEGIN = "<!-- kernels: python -m nextn.cuda_kernels.table docs/kernels.md -->\n"
END = "<!-- end of kernels -->\n"
HEAD = "| kernel | source | equals | threads | registers | shared |\n"

Cubins = Mapping[tuple[Source, int], Cubin]


def table(cubins: Cubins) -> str:
    version = ".".join(map(str, nvrtc_version()))
    names = ", ".join(str(arch) for arch in ARCHITECTURES)
    n_kernels, n_sources = len(all_kernels()), len({s.file for s in all_sources()})
    lines = [
        f"{n_kernels} kernels of {n_sources} sources, compiled by NVRTC {version} for sm_{names}.\n"
        "Registers are the least and the most of these, shared memory is static + the most that "
        "of a launch, in bytes.\nNo kernel spills.\n\n",
        HEAD,
        "| --- | --- | --- | --- | --- | --- |\n",
        *(_row(kernel, cubins) for kernel in all_kernels()),
    ]
    return "".join(lines)


def rewritten(page: str, cubins: Cubins) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN.strip()} … {END.strip()}")
    return f"{before}{BEGIN}\n{table(cubins)}\n{END}{after}"


def _row(kernel: Kernel, cubins: Cubins) -> str:
    usage = [cubins[kernel.source, arch].usage[kernel.name] for arch in ARCHITECTURES]
    shared = _range(one.shared for one in usage)
    cells = (
        f"`{kernel.name}`",
        kernel.source.label,
        kernel.reference,
        str(kernel.threads),
        _range(one.registers for one in usage),
        f"{shared} + {kernel.dynamic_shared}" if kernel.dynamic_shared else shared,
    )
    return f"| {' | '.join(cells)} |\n"


def _range(values: Iterable[int]) -> str:
    found = sorted(set(values))
    return str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}"


def main(path: Path) -> None:
    compiler = Compiler(CubinCache(default_folder()))
    cubins = compiler.compile_all((s, arch) for s in all_sources() for arch in ARCHITECTURES)
    path.write_text(rewritten(path.read_text(encoding="utf-8"), cubins), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
