"""The cache of cubins: found again, never believed blindly, never needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextn.core.folders import cache_root
from nextn.cuda_kernels import compile as compile_module
from nextn.cuda_kernels.cache import CubinCache, Entry, default_folder
from nextn.cuda_kernels.compile import Compiler, nvrtc_problem
from nextn.cuda_kernels.kernel import Source

ENTRY = Entry("what was said: ü", bytes(range(256)))
CODE = 'extern "C" __global__ void fill(float* x) { x[threadIdx.x] = VALUE; }\n'


@pytest.fixture
def cache(tmp_path: Path) -> CubinCache:
    return CubinCache(tmp_path / "deep" / "cubins")


def test_what_was_written_is_read(cache: CubinCache) -> None:
    assert cache.read("a.cubin") is None
    cache.write("a.cubin", ENTRY)
    assert cache.read("a.cubin") == ENTRY
    assert cache.folder is not None
    assert [path.name for path in cache.folder.iterdir()] == ["a.cubin"]


def test_a_damaged_or_foreign_file_is_not_believed(cache: CubinCache) -> None:
    cache.write("a.cubin", ENTRY)
    assert cache.folder is not None
    path = cache.folder / "a.cubin"
    good = path.read_bytes()
    for bad in (b"", b"\x7fELF", good[:-1], good + b"x", good[:60] + b"?" + good[61:], b"?" + good):
        path.write_bytes(bad)
        assert cache.read("a.cubin") is None
    path.write_bytes(good)
    assert cache.read("a.cubin") == ENTRY


def test_no_folder_is_no_cache() -> None:
    CubinCache(None).write("a.cubin", ENTRY)
    assert CubinCache(None).read("a.cubin") is None


def test_a_folder_that_cannot_be_made_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = CubinCache(tmp_path / "file" / "cubins")
    cache.write("a.cubin", ENTRY)
    assert cache.read("a.cubin") is None


def test_a_full_disk_leaves_nothing_behind(
    cache: CubinCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    cache.write("a.cubin", ENTRY)
    assert cache.folder is not None
    assert list(cache.folder.iterdir()) == []


@pytest.mark.parametrize("variable", ["SPEC_CACHE_DIR", "XDG_CACHE_HOME", None])
def test_the_folder_is_where_core_keeps_its_caches(
    variable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPEC_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path))
    assert default_folder() == cache_root() / "cubins"


# With the compiler -------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Source:
    if reason := nvrtc_problem():
        pytest.skip(reason)
    path = tmp_path / "fill.cu"
    path.write_text(CODE)
    return Source(str(path), (("VALUE", 1),))


@pytest.fixture
def compiled(source: Source, monkeypatch: pytest.MonkeyPatch, nothing_compiles: None) -> list[str]:
    """Labels of what is really compiled of this source."""
    labels: list[str] = []
    real = compile_module._compile

    def noting(code: bytes, given: Source, arch: int, options: tuple[str, ...]) -> Entry:
        if given.file == source.file:
            labels.append(f"{given.defines[0][1]} sm_{arch}")
        return real(code, given, arch, options)

    monkeypatch.setattr(compile_module, "_compile", noting)
    return labels


def test_the_same_is_compiled_once(source: Source, cache: CubinCache, compiled: list[str]) -> None:
    first = Compiler(cache).compile(source, 90)
    again = Compiler(cache).compile(source, 90)
    assert again == first
    assert compiled == ["1 sm_90"]


def test_whatever_changes_the_code_compiles_again(
    source: Source, cache: CubinCache, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(cache)
    compiler.compile(source, 90)
    compiler.compile(source, 80)
    compiler.compile(Source(source.file, (("VALUE", 2),)), 90)
    assert len(compiled) == 3
    source.path.write_text(CODE + "// changed\n")
    compiler.compile(source, 90)
    assert len(compiled) == 4
    monkeypatch.setattr(compile_module, "nvrtc_version", lambda: (99, 9))
    compiler.compile(source, 90)
    assert len(compiled) == 5
    monkeypatch.setattr(compile_module, "OPTIONS", (*compile_module.OPTIONS, "--fmad=true"))
    compiler.compile(source, 90)
    assert len(compiled) == 6


def test_headers_are_part_of_what_is_compiled(
    source: Source,
    cache: CubinCache,
    compiled: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(compile_module, "INCLUDE", tmp_path)
    source.path.write_text('#include "first.cuh"\n' + CODE)
    (tmp_path / "first.cuh").write_text('#ifdef NEVER\n # include "second.cuh"\n#endif\n')
    compiler = Compiler(cache)
    for text, n in (("", 1), ("#define X 1", 2), ("#define X 1", 2), ("#define X 2", 3)):
        (tmp_path / "second.cuh").write_text(text)
        (tmp_path / "another.cuh").write_text(f"// not included, {n}")
        compiler.compile(source, 90)
        assert len(compiled) == n


def test_a_damaged_file_is_compiled_again(
    source: Source, cache: CubinCache, compiled: list[str]
) -> None:
    first = Compiler(cache).compile(source, 90)
    assert cache.folder is not None
    (path,) = cache.folder.iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    assert Compiler(cache).compile(source, 90) == first
    assert len(compiled) == 2
