"""The process that renders chat templates: requests on stdin, answers on stdout.

The limits set here bound the time that a render may take, its memory, and the process's life
should the parent be gone. The parent kills it when it does not answer.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable
from types import TracebackType

from jinja2 import Template, TemplateError, TemplateSyntaxError

from .template_sandbox import Sandbox
from .template_wire import read_message, write_message

MAX_OUTPUT_CHARS = 16 << 20
_MAX_MEMORY_BYTES = 768 << 20
_MAX_WALL_S = 40  # the parent's own limit is shorter
_MAX_COMPILED = 8


class _Renderer:
    def __init__(self) -> None:
        self._sandbox = Sandbox()
        self._compiled: dict[str, Template] = {}

    def answer(self, request: dict[str, object]) -> dict[str, object]:
        try:
            template = self._compile(str(request["source"]))
            values = request["values"]
            assert isinstance(values, dict), "the parent sends an object"
            return {"text": _joined(template.generate(values))}
        except MemoryError:
            return {"error": "needs too much memory", "line": None}
        except RecursionError:
            return {"error": "is nested too deeply, or calls itself without end", "line": None}
        except Exception as error:  # noqa: BLE001 - a template can raise anything
            return {"error": _reason(error), "line": _line(error)}

    def _compile(self, source: str) -> Template:
        template = self._compiled.get(source)
        if template is None:
            if len(self._compiled) >= _MAX_COMPILED:
                self._compiled.clear()
            template = self._compiled[source] = self._sandbox.from_string(source)
        return template


def _joined(parts: Iterable[str]) -> str:
    kept: list[str] = []
    n_chars = 0
    for part in parts:
        n_chars += len(part)
        if n_chars > MAX_OUTPUT_CHARS:
            raise TemplateError(f"makes more than {MAX_OUTPUT_CHARS} characters")
        kept.append(part)
    return "".join(kept)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, TemplateError) else f"{type(error).__name__}: {text}"


def _line(error: Exception) -> int | None:
    """Where in the template: Jinja makes its lines appear in the traceback."""
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    line = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _limit_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends us
    if sys.platform != "win32":
        import resource

        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        limits = {
            resource.RLIMIT_AS: _MAX_MEMORY_BYTES,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: 0,  # writes no file
            resource.RLIMIT_NPROC: 0,  # starts no process
        }
        for limit, value in limits.items():
            try:
                resource.setrlimit(limit, (value, value))
            except (OSError, ValueError):  # macOS takes some of them only on paper
                continue


def _set_limits(own_s: float, wall_s: int) -> None:
    """End the process when it has run for so long, or when so much time has passed; 0: never."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, own_s)
        signal.alarm(wall_s)


def main() -> None:
    _limit_process()
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    renderer = _Renderer()
    write_message(answers, b"{}")  # ready
    while (body := read_message(requests)) is not None:
        request = json.loads(body)
        _set_limits(request["limit_s"], _MAX_WALL_S)
        answer = renderer.answer(request)
        _set_limits(0, 0)
        write_message(answers, json.dumps(answer).encode())


if __name__ == "__main__":
    main()
