"""LLVM modules to machine code, kept in a cache folder between runs.

The key of a cached object holds all that its code depends on: every source file of this folder and
of the one above it, the instruction set, the CPU, and LLVM's version. A changed kernel can thus
never run as its old self.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
from llvmlite import binding, ir

from ...folders import cache_root
from .emit import KERNEL, Emitter
from .simd import Simd

Writer = Callable[[Emitter], None]  # writes the body of one kernel


class Kernels:
    """Machine code of named kernels; compiles those that are not cached."""

    def __init__(self, simd: Simd, folder: Path | None = None) -> None:
        self.simd = simd
        self.folder = cache_folder() if folder is None else folder
        self.addresses: dict[str, int] = {}
        self._machine = target_machine(simd)
        self._engines: list[Any] = []

    def get(
        self,
        wanted: Mapping[str, Writer],
        report: Callable[[int, int], None] | None = None,
        kinds: Mapping[str, Any] | None = None,
    ) -> dict[str, int]:
        """Addresses by name. `report(done, all)` is called while there is something to compile."""
        new = {name: write for name, write in wanted.items() if name not in self.addresses}
        objects, to_compile = {}, []
        for name in new:
            data = self._read(name)
            if data is None:
                to_compile.append(name)
            else:
                objects[name] = data
        for done, name in enumerate(to_compile):
            if report is not None:
                report(done, len(to_compile))
            objects[name] = self._compile(name, new[name], (kinds or {}).get(name, KERNEL))
            self._write(name, objects[name])
        if to_compile and report is not None:
            report(len(to_compile), len(to_compile))
        if objects:
            self._link(objects)
        return {name: self.addresses[name] for name in wanted}

    def _compile(self, name: str, write: Writer, kind: Any) -> bytes:
        module = optimised(name, write, self._machine, self.simd, kind)
        return bytes(self._machine.emit_object(module))

    def _link(self, objects: Mapping[str, bytes]) -> None:
        backing = binding.parse_assembly("")
        engine = binding.create_mcjit_compiler(backing, target_machine(self.simd))
        for data in objects.values():
            engine.add_object_file(binding.ObjectFileRef.from_data(data))
        engine.finalize_object()
        self._engines.append(engine)
        for name in objects:
            self.addresses[name] = engine.get_function_address(name)

    def _path(self, name: str) -> Path:
        key = hashlib.sha256(f"{name} {self.simd.name} {_identity(self.simd)}".encode())
        return self.folder / f"{name[:48]}-{key.hexdigest()[:24]}.o"

    def _read(self, name: str) -> bytes | None:
        try:
            data = self._path(name).read_bytes()
        except OSError:
            return None
        # The last 32 bytes guard against a file that was cut short or damaged.
        body, check = data[:-32], data[-32:]
        return body if hashlib.sha256(body).digest() == check else None

    def _write(self, name: str, data: bytes) -> None:
        """Best effort: a read-only home only means compiling again."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
                file.write(data + hashlib.sha256(data).digest())
            os.replace(file.name, self._path(name))


def optimised(name: str, write: Writer, machine: Any, simd: Simd, kind: Any = KERNEL) -> Any:
    """The module of one kernel, which `machine` can emit as an object or as assembly."""
    written = ir.Module(name)
    written.triple = machine.triple
    write(Emitter(written, name, simd, kind))
    # Without these LLVM keeps to 256-bit registers on many CPUs; llvmlite has no way to say it.
    wide = 'nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512"'
    module = binding.parse_assembly(str(written).replace("nounwind", wide))
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=2)
    # Vectors are written by hand; LLVM's own would only make compiling slower.
    options.loop_vectorization = options.slp_vectorization = False
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return module


def cache_folder() -> Path:
    return cache_root() / "kernels"


@cache
def _initialise() -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()


def add_symbols(symbols: Mapping[str, int]) -> None:
    """External functions that kernels call, as `name: address`."""
    for name, address in symbols.items():
        binding.add_symbol(name, address)


def target_machine(simd: Simd, triple: str | None = None) -> Any:
    """For this process, or for objects of another platform, given its target triple."""
    _initialise()
    jit = triple is None
    if not jit:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
    target = binding.Target.from_triple(triple or binding.get_default_triple())
    return target.create_target_machine(
        cpu=simd.cpu(), features=simd.feature_string(), opt=3, jit=jit
    )


@cache
def _identity(simd: Simd) -> str:
    """A digest of all that decides which code comes out, besides the kernel's name."""
    digest = hashlib.sha256()
    for path in _sources(Path(__file__).parent):
        digest.update(path.read_bytes())
    facts = (simd.cpu(), simd.feature_string(), llvmlite.__version__, binding.llvm_version_info)
    digest.update(repr((facts, binding.get_default_triple())).encode())
    return digest.hexdigest()


def _sources(folder: Path) -> Iterable[Path]:
    # The files beside the folder lay out what kernels read, and name what they are made for.
    return sorted([*folder.parent.glob("*.py"), *folder.rglob("*.py")])
