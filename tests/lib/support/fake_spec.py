"""The real `spec` on a scripted model: run as a program by the tests, with `SCRIPT` in JSON.

`pieces` are streamed, by the `sources` in turn; then, if wanted, `error` is raised (a class name of
`core.errors`) or the program waits for a signal. `echo` streams what was asked for instead.
`compiling` says what warming up reports. `template` is the file's chat template.
"""

from __future__ import annotations

import builtins
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec import to_builtins

import nextn.core
from nextn.cli import start
from nextn.core import errors
from nextn.core.generation import NO_TOKEN, Event, GenerateParams, SourceStats, Stats
from nextn.core.speculation.options import SpecOptions

SCRIPT = json.loads(os.environ.get("SCRIPT", "{}"))


class FakeTokenizer:
    """A token is a character; the model wants token 1 first."""

    bos_id, eos_id, add_bos = 1, 2, True

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        assert not add_special
        return [ord(char) for char in text.replace("<s>", "\1")]

    def token(self, token: int) -> str:
        return {1: "<s>", 2: "</s>"}[token]

    def piece(self, token: int, *, show_special: bool) -> bytes:
        assert show_special
        return b"\xc3" if token == 0 else b"piece %d" % token


class FakeRuntime(SimpleNamespace):
    is_first: bool

    def __enter__(self) -> FakeRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        if "closed" in SCRIPT:
            Path(SCRIPT["closed"]).write_text("closed")

    def warm_up(self) -> None:
        for stage, done in SCRIPT.get("compiling", []):
            self.progress(stage, done)
        if SCRIPT.get("wait_in_warm_up"):
            announce("warming")

    def generate(
        self, prompt: str | list[int], params: GenerateParams, *, on_row: object = None
    ) -> Iterator[Event]:
        assert on_row is None
        if not isinstance(prompt, str):
            prompt = "".join(map(chr, prompt))
        if SCRIPT.get("stall", "\0") in prompt:
            time.sleep(60)
        if SCRIPT.get("refuse", "\0") in prompt:
            raise errors.ConfigError("too long")
        stats = Stats(load_ms=12.0, prompt_n=3, prompt_ms=2.0, predicted_ms=4.0)
        return self.stream(prompt, params, stats)

    def stream(self, prompt: str, params: GenerateParams, stats: Stats) -> Iterator[Event]:
        self.stats = stats
        is_first, self.is_first = self.is_first, False
        if SCRIPT.get("wait_in_prompt"):
            announce("reading")
        for name, value in SCRIPT.get("stats", {}).items():
            setattr(stats, name, value)
        stats.by_source = {
            name: SourceStats(*values) for name, values in SCRIPT.get("by_source", {}).items()
        }
        pieces = SCRIPT.get("pieces", ["Hello", " world"])
        if SCRIPT.get("echo"):
            asked = {"prompt": prompt, "params": to_builtins(params), "load": self.load}
            pieces = [json.dumps(asked)]
        logprob = None if params.logprobs is None else -1.0
        top = ((0, -0.5), (7, -math.inf))[: params.logprobs or 0]
        sources = SCRIPT.get("sources", ["target"])
        for number in range(SCRIPT.get("repeat", 1)):
            for place, piece in enumerate(pieces):
                stats.predicted_n += 1
                stats.steps += 1
                source = sources[place % len(sources)]
                yield Event(number, piece, logprob, source, top_logprobs=top)
        if "error" in SCRIPT:
            raise error_named(SCRIPT["error"], "it broke\nbadly \x1b[31m")
        if SCRIPT.get("wait"):
            time.sleep(60)
        if SCRIPT.get("wait_once") and is_first:
            time.sleep(60)
        if SCRIPT.get("stubborn"):
            try:
                sys.stdout.write("?")  # from here on an interrupt is caught
                sys.stdout.flush()
                time.sleep(60)
            except KeyboardInterrupt:
                yield Event(0, "!", -1.0)
                time.sleep(60)
        yield Event(NO_TOKEN, "", stop_reason="limit")


def announce(what: str) -> None:
    """And wait for the signal."""
    sys.stdout.write(what)
    sys.stdout.flush()
    time.sleep(60)


def error_named(name: str, message: str) -> Exception:
    kind = getattr(errors, name, None) or getattr(builtins, name)
    made: Exception = kind(message)
    return made


def fake_load(  # noqa: PLR0913 - as the real one
    path: Path,
    device: str = "auto",
    *,
    n_ctx: int | None = None,
    n_batch: int | None = None,
    threads: int | None = None,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    repack_cache: bool = False,
    spec: SpecOptions | None = None,
    draft: Path | None = None,
    progress: Callable[[str, float], None] | None = None,
    overrides: Mapping[str, Any] | None = None,
    lora: Sequence[Any] = (),
) -> Any:
    assert progress is not None
    progress("loading weights", 0.5)
    if "load_error" in SCRIPT:
        raise error_named(SCRIPT["load_error"], "no good")
    if "load_os_error" in SCRIPT:
        raise OSError(SCRIPT["load_os_error"], "Odd reason", str(path))
    if SCRIPT.get("wait_in_load"):
        announce("loading")
    template = SCRIPT.get("template")
    return FakeRuntime(
        draft_files=(),
        idle_drafters=lambda _steps, _by_source: {},
        stats=Stats(load_ms=12.0),
        recommended_sampling=SCRIPT.get("recommended_sampling", {}),
        load={
            "path": str(path),
            "device": device,
            "n_ctx": n_ctx,
            "threads": threads,
            "cache": [cache_type_k, cache_type_v],
        }
        | ({"repack_cache": True} if repack_cache else {})
        | ({"draft": str(draft)} if draft else {})
        | ({"spec": to_builtins(spec)} if spec not in (None, SpecOptions()) else {}),
        spec_types=SCRIPT.get("spec_types", ()),
        name="fake\x1b[2J model",
        architecture="llama",
        device=device,
        n_ctx=64,
        n_vocab=9,
        progress=progress,
        is_first=True,
        backend=SimpleNamespace(details="2 threads", repacked_path=None, holdings=()),
        budget=SimpleNamespace(describe=lambda: "weights 1.00 GiB = 1.00 GiB"),
        tokenizer=FakeTokenizer(),
        file=SimpleNamespace(
            path=path, metadata={} if template is None else {"tokenizer.chat_template": template}
        ),
    )


if __name__ == "__main__":
    # The test run itself may be a background job, whose children ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nextn.core.__dict__["load"] = fake_load
    start.main()
