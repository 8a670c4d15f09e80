"""The shape of the repository: who imports whom, sizes, what is forbidden, what is shipped.

Each check is a function from a root folder to a list of complaints, so that the tests can show it
a tree with that fault as well.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT: dict[str, set[str]] = {
    "cli": {"convert", "core"},
    "convert": {"core"},
    "core": {"cuda_kernels"},
    "cuda_kernels": set(),
}
# Parts of core, highest first, that do not import each other within a line, but for those of TOP.
PARTS = "warm_up load_runtime runtime model_names generation engine audit simple fitting"
TOP = {"", "try_drafter", *PARTS.split()}
LEVELS = [
    {"library"},
    {"api", "server", "bench"},
    {"worker"},
    TOP,
    {"speculation", "ranks", "vision"},
    {"models", "sampling"},
    {"state", "hub"},
    {"backend"},
    {"gguf", "tokenizer"},
    {"errors", "folders", "nano"},
]
LIBRARY = "core/library"  # the folder that is installed as `nextn` itself
MAX_FILE = 500
MAX_FUNCTION = 60
SHIPPED = (".html", ".css", ".js", ".py", "py.typed", ".cu", ".cuh", ".gguf", ".json")
# Spelled so that this file does not hold them.
MACHINE_PATH = re.compile(r"(?<![\w.])/(wor" + r"k|ro" + r"ot|hom" + r"e)/[\w.]")

Check = Callable[[Path], list[str]]


# Reading -----------------------------------------------------------------------------------------


def python_files(root: Path, *folders: str) -> Iterator[Path]:
    for folder in folders or (*MAY_IMPORT, "tests"):
        yield from sorted((root / folder).rglob("*.py"))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def relative_imports(root: Path, path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(line, parts of the imported module's path from the root), type-checking imports as well."""
    here = path.relative_to(root).parts[:-1]
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = here[: len(here) - node.level + 1]
            if node.module:
                yield node.lineno, (*base, *node.module.split("."))
            else:
                for alias in node.names:
                    yield node.lineno, _module(root, (*base, alias.name))


def _module(root: Path, parts: tuple[str, ...]) -> tuple[str, ...]:
    """`from .. import name`: a module if there is one, else something the package itself holds."""
    path = root.joinpath(*parts)
    is_module = len(parts) == 1 or path.is_dir() or path.with_suffix(".py").exists()
    return parts if is_module else parts[:-1]


def absolute_imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, first name)"""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.lineno, node.module.partition(".")[0]


def known_files(root: Path) -> Iterator[Path]:
    """Files that git tracks or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
    for name in sorted(listed.decode().split("\0")):
        path = root / name
        if name and path.is_file() and not path.is_symlink():
            yield path


# Checks ------------------------------------------------------------------------------------------


def wrong_folders(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{line}: {folder} must not import {target[0]}"
        for folder, allowed in MAY_IMPORT.items()
        for path in python_files(root, folder)
        for line, target in relative_imports(root, path)
        if target[0] not in {folder, *allowed}
    ]


def upward_imports(root: Path) -> list[str]:
    bad = []
    for path in python_files(root, "core"):
        part = part_of_core(path.relative_to(root).parts)
        for line, target in relative_imports(root, path):
            if target[0] == "core" and not may_import(part, part_of_core(target)):
                bad.append(f"{path.relative_to(root)}:{line}: {part} must not import {target[1:]}")
            if target[0] == "cuda_kernels" and path.parts[-3:-1] != ("backend", "cuda"):
                bad.append(f"{path.relative_to(root)}:{line}: only backend/cuda imports kernels")
    return bad


def part_of_core(parts: tuple[str, ...]) -> str:
    return parts[1].removesuffix(".py").replace("__init__", "") if len(parts) > 1 else ""


def may_import(part: str, target: str) -> bool:
    if part == target or {part, target} <= TOP:
        return True
    return level_of(part) < level_of(target)


def level_of(part: str) -> int:
    for i, parts in enumerate(LEVELS):
        if part in parts:
            return i
    raise AssertionError(f"core/{part} is not in LEVELS: say where it belongs")


def import_circles(root: Path) -> list[str]:
    """Imports inside functions would only hide a circle; those for type checkers count as well."""
    graph: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for path in python_files(root, *MAY_IMPORT):
        parts = path.relative_to(root).with_suffix("").parts
        module = parts[:-1] if parts[-1] == "__init__" else parts
        targets = {target for _line, target in relative_imports(root, path)}
        graph[module] = targets if path.stem != "__init__" else targets - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" imports ".join(".".join(module) for module in reversed(error.args[1]))]
    return []


def foreign_imports(root: Path) -> list[str]:
    """Ourselves by absolute name, which loads twice; cupy outside its folder."""
    bad = []
    for path in python_files(root, *MAY_IMPORT):
        folder = path.relative_to(root).parts[0]
        for line, name in absolute_imports(path):
            if name == "nextn" or (name == "cupy" and folder != "cuda_kernels"):
                bad.append(f"{path.relative_to(root)}:{line}: imports {name}")
    return bad


def unlisted_packages(root: Path) -> list[str]:
    """They work in an editable install and are silently absent from the wheel."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(settings["tool"]["setuptools"]["packages"])
    folders = {path.parent for path in python_files(root, *MAY_IMPORT)}
    found = {package_of(folder.relative_to(root).as_posix()) for folder in folders}
    bare = [folder for folder in folders if not (folder / "__init__.py").exists()]
    return [
        *(f"{name}: not listed in pyproject.toml" for name in sorted(found - listed)),
        *(f"{name}: listed, but not there" for name in sorted(listed - found)),
        *(f"{folder.relative_to(root)}: no __init__.py" for folder in sorted(bare)),
    ]


def package_of(folder: str) -> str:
    """The package that a folder is installed as."""
    return "nextn" if folder == LIBRARY else f"nextn.{folder.replace('/', '.')}"


def long_files(root: Path) -> list[str]:
    kernels = sorted((root / "cuda_kernels").rglob("*.cu*"))
    counts = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in python_files(root)}
    counts |= {path: len(path.read_text(encoding="utf-8").splitlines()) for path in kernels}
    return [f"{p.relative_to(root)}: {n} lines" for p, n in counts.items() if n > MAX_FILE]


def long_functions(root: Path) -> list[str]:
    bad = []
    for path in python_files(root):
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            n = (node.end_lineno or node.lineno) - node.lineno + 1
            excused = re.search(r"# noqa: \S+ - \w", lines[node.lineno - 1])
            if n > MAX_FUNCTION and not excused:
                bad.append(f"{path.relative_to(root)}:{node.lineno}: {node.name} has {n} lines")
    return bad


def reordered_arithmetic(root: Path) -> list[str]:
    """fastmath, parallel loops, relaxed LLVM flags: sums that depend on threads or on compilers."""
    return [
        f"{path.relative_to(root)}:{line}: {what}"
        for path in python_files(root, "core")
        for node in ast.walk(parse(path))
        for line, what in _relaxations(node)
    ]


def _relaxations(node: ast.AST) -> Iterator[tuple[int, str]]:
    pairs: list[tuple[str | None, ast.expr]] = []
    if isinstance(node, ast.keyword):
        pairs = [(node.arg, node.value)]
    elif isinstance(node, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        pairs = [(str(key), value) for key, value in zip(keys, node.values, strict=True)]
    for name, value in pairs:
        off = isinstance(value, ast.Constant) and not value.value
        if name in ("fastmath", "parallel") and not off:
            yield value.lineno, name
        if name == "flags" and re.search(r"'(fast|reassoc)'", ast.dump(value)):
            yield value.lineno, ast.unparse(value)


def missing_docstrings(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: does not open with a docstring"
        for path in python_files(root)
        if not ast.get_docstring(parse(path))
    ]


def machine_paths(root: Path) -> list[str]:
    """Absolute paths of the machine where something was written."""
    return [
        f"{path.relative_to(root)}:{number}: {line.strip()[:100]}"
        for path in known_files(root)
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]


def broken_links(root: Path) -> list[str]:
    """Relative links of the documents to files that are not there."""
    return [
        f"{path.relative_to(root)}: {link}"
        for path in known_files(root)
        if path.suffix == ".md"
        for link in re.findall(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)", path.read_text("utf-8"))
        if not (path.parent / link).exists()
    ]


def wrong_links(root: Path) -> list[str]:
    links = root / ".types" / "nextn"
    names = {path.name for path in links.iterdir()} - {"__pycache__"}
    expected = {name: f"../../{name}" for name in MAY_IMPORT}
    expected |= {name: f"../../{LIBRARY}/{name}" for name in ("__init__.py", "py.typed")}
    if names != set(expected):
        return [f".types/nextn holds {sorted(names)}"]
    targets = sorted((name, str((links / name).readlink())) for name in names)
    return [f"{name} -> {target}" for name, target in targets if target != expected[name]]


CHECKS: list[Check] = [
    wrong_folders,
    upward_imports,
    import_circles,
    foreign_imports,
    unlisted_packages,
    long_files,
    long_functions,
    reordered_arithmetic,
    missing_docstrings,
    machine_paths,
    broken_links,
]


@pytest.mark.parametrize("check", CHECKS)
def test_the_repository(check: Check) -> None:
    assert check(ROOT) == []


def test_links_that_lay_out_the_package() -> None:
    if not all((ROOT / ".types" / "nextn" / name).is_symlink() for name in MAY_IMPORT):
        pytest.skip("git made plain files of the symbolic links here (core.symlinks=false)")
    assert wrong_links(ROOT) == []


# The checks can fail -----------------------------------------------------------------------------

LONG_FUNCTION = "def f():\n" + "    pass\n" * MAX_FUNCTION
FAULTS: list[tuple[Check, str, str, str]] = [
    (wrong_folders, "core/models/a.py", "from ...cli import app", "core must not import cli"),
    (wrong_folders, "convert/a.py", "from ..cuda_kernels import x", "must not import cuda_kernels"),
    (wrong_folders, "cuda_kernels/a.py", "from .. import core", "must not import core"),
    (upward_imports, "core/gguf/a.py", "from ..models.model import M", "gguf must not import"),
    (upward_imports, "core/backend/a.py", "from .. import load", "backend must not import"),
    (upward_imports, "core/models/a.py", "from ..sampling import x", "models must not import"),
    (upward_imports, "core/api/a.py", "from ..server.x import y", "api must not import"),
    (upward_imports, "core/errors.py", "from .gguf import x", "errors must not import"),
    (upward_imports, "core/state/a.py", "def f():\n    from ..runtime import x", "state must not"),
    (upward_imports, "core/models/a.py", "from ...cuda_kernels import x", "only backend/cuda"),
    (
        import_circles,
        "core/models/a.py",
        "if TYPE_CHECKING:\n    from . import a",
        "a imports core",
    ),
    (foreign_imports, "cli/a.py", "import nextn.core", "imports nextn"),
    (foreign_imports, "core/a.py", "from cupy.cuda import x", "imports cupy"),
    (unlisted_packages, "core/new/__init__.py", "", "nextn.core.new: not listed"),
    (unlisted_packages, "core/new/a.py", "", "core/new: no __init__.py"),
    (long_files, "tests/a.py", "x = 1\n" * (MAX_FILE + 1), "tests/a.py: 501 lines"),
    (long_files, "cuda_kernels/a.cu", "//\n" * (MAX_FILE + 1), "cuda_kernels/a.cu: 501 lines"),
    (long_functions, "core/a.py", LONG_FUNCTION, "f has 61 lines"),
    (long_functions, "core/a.py", LONG_FUNCTION.replace(":", ":  # noqa: X1"), "f has 61 lines"),
    (reordered_arithmetic, "core/a.py", "@njit(fastmath=True)\ndef f(): ...", "fastmath"),
    (reordered_arithmetic, "core/a.py", "f(parallel=on)", "parallel"),
    (reordered_arithmetic, "core/a.py", "o = {'fastmath': {'nnan'}}", "fastmath"),
    (reordered_arithmetic, "core/a.py", "b.fadd(x, y, flags=('reassoc',))", "reassoc"),
    (missing_docstrings, "tests/a.py", "import sys", "does not open with a docstring"),
    (machine_paths, "docs/a.md", "see /ro" + "ot/x", "docs/a.md:1"),
    (broken_links, "docs/a.md", "see [it](b/c.md#d)", "docs/a.md: b/c.md"),
    (wrong_links, ".types/nextn/more", "", "more"),
]


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """A tree without faults."""
    packages = [f'"nextn.{name}"' for name in ("cli", "convert", "core", "cuda_kernels")]
    parts = ("backend", "gguf", "models", "sampling", "state")
    packages += [f'"nextn.core.{name}"' for name in parts]
    settings = f"[tool.setuptools]\npackages = [{', '.join(packages)}]\n"
    (tmp_path / "pyproject.toml").write_text(settings)
    for folder in (*MAY_IMPORT, "tests", *(f"core/{part}" for part in parts)):
        plant(tmp_path / folder / "__init__.py", '"""."""\n')
    for name in MAY_IMPORT:
        (tmp_path / ".types" / "nextn").mkdir(parents=True, exist_ok=True)
        (tmp_path / ".types" / "nextn" / name).symlink_to(f"../../{name}")
    for name in ("__init__.py", "py.typed"):
        (tmp_path / ".types" / "nextn" / name).symlink_to(f"../../{LIBRARY}/{name}")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def plant(path: Path, source: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)


@pytest.mark.parametrize(("check", "name", "source", "complaint"), FAULTS)
def test_a_fault_is_found(
    check: Check, name: str, source: str, complaint: str, clean: Path
) -> None:
    assert check(clean) == []
    plant(clean / name, source)
    assert complaint in "\n".join(check(clean))


EXCUSED: list[tuple[Check, str, str]] = [
    (upward_imports, "core/models/a.py", "from ..backend.step import S\nfrom .base import M"),
    (upward_imports, "core/runtime.py", "from .generation import x\nfrom .models import y"),
    (upward_imports, "core/backend/cuda/a.py", "from ....cuda_kernels import x"),
    (foreign_imports, "cuda_kernels/a.py", "import cupy"),
    (long_functions, "core/a.py", LONG_FUNCTION.replace(":", ":  # noqa: X1 - a table")),
    (reordered_arithmetic, "core/a.py", "f(parallel=False)"),
]


@pytest.mark.parametrize(("check", "name", "source"), EXCUSED)
def test_what_is_allowed_is_not_a_fault(check: Check, name: str, source: str, clean: Path) -> None:
    plant(clean / name, source)
    assert check(clean) == []


def test_a_link_to_elsewhere_is_found(clean: Path) -> None:
    link = clean / ".types" / "nextn" / "core"
    link.unlink()
    link.symlink_to("../../cli")
    assert wrong_links(clean) == ["core -> ../../cli"]


def test_a_part_of_core_without_a_level_is_found(clean: Path) -> None:
    plant(clean / "core/utils.py", "from .errors import x")
    with pytest.raises(AssertionError, match="core/utils is not in LEVELS"):
        upward_imports(clean)


# What is loaded, what is shipped -----------------------------------------------------------------

HEAVY = ("torch", "cupy", "starlette", "numba", "transformers")


def loaded_by(statement: str, packages: str = "") -> set[str]:
    """Top-level modules in a fresh interpreter after `statement`, or all of some packages."""
    name = "name" if packages else "name.partition('.')[0]"
    names = f"{{{name} for name in sys.modules if name.startswith({packages!r})}}"
    command = f"{statement}\nimport sys\nprint(*{names})"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, check=True)
    return set(done.stdout.decode().split())


@pytest.mark.parametrize(
    "statement", ["import nextn", "import nextn.cli.start", "import nextn.cli.app"]
)
def test_a_start_imports_no_command(statement: str) -> None:
    loaded = loaded_by(statement, packages="nextn.")
    assert {"nextn.cli.generate", "nextn.cli.serve", "nextn.core.runtime"}.isdisjoint(loaded)


def test_the_library_loads_the_bundled_model() -> None:
    statement = (
        "import nextn\n"
        "with nextn.load(n_ctx=64) as model:\n"
        "    tokens = model.generate('def ', max_tokens=3).tokens\n"
        "assert len(tokens) == 3"
    )
    assert "nextn" in loaded_by(statement)


@pytest.mark.parametrize(
    "module",
    [
        "core",
        "core.runtime",
        "core.gguf.reader",
        "core.sampling.params",
        "core.models",
        "cuda_kernels",
    ],
)
def test_imports_stay_light(module: str) -> None:
    assert loaded_by(f"import nextn.{module}").isdisjoint(HEAVY)


def test_heavy_imports_would_be_seen() -> None:
    assert "torch" in loaded_by("import nextn.core.backend.reference.backend")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves `build/` behind in the folder it builds."""
    folder = tmp_path_factory.mktemp("wheel")
    for path in known_files(ROOT):
        target = folder / "source" / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    shutil.copytree(ROOT / ".types/nextn", folder / "source/.types/nextn", symlinks=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(folder)]
    subprocess.run([*command, str(folder / "source")], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    shipped = {
        f"{package_of(path.parent.relative_to(ROOT).as_posix()).replace('.', '/')}/{path.name}"
        for path in known_files(ROOT)
        if path.relative_to(ROOT).parts[0] in MAY_IMPORT and path.name.endswith(SHIPPED)
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == shipped
    assert {"nextn/__init__.py", "nextn/py.typed", "nextn/core/py.typed"} <= names
    assert any(name.endswith("/licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_wheel_installs(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (python,) = map(str, [*venv.glob("bin/python"), *venv.glob("Scripts/python.exe")])
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index"]
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    assert [*venv.glob("bin/spec"), *venv.glob("Scripts/spec.exe")]
    statement = (
        "import nextn.core, nextn.core.errors as e; from importlib.util import find_spec; "
        "print(e.__file__, *map(find_spec, ['cli', 'core', 'convert', 'cuda_kernels']))"
    )
    command = [python, "-c", statement]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    file, *found = done.stdout.split()
    assert Path(file).is_relative_to(venv)
    assert found == ["None"] * 4
