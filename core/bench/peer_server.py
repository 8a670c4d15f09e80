"""llama.cpp's server in a process of its own, from the `xllamacpp` wheel: settings come as one line
of JSON on standard input, its address goes out, and it ends when that input ends.

So it cannot outlive the process that started it, however that one ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, Final

READY: Final = "nextn-peer "  # before the address: llama.cpp may write lines of its own
_ERRORS_ONLY: Final = 1


def common_params(xllamacpp: Any, settings: dict[str, Any]) -> Any:
    """Every choice that a fair comparison needs is made here; the rest is llama.cpp's default."""
    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_parallel = settings["n_slots"]
    params.n_ctx = settings["n_ctx"] * settings["n_slots"]
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.cache_type_k = _ggml_type(xllamacpp, settings["cache_type_k"])
    params.cache_type_v = _ggml_type(xllamacpp, settings["cache_type_v"])
    params.fit_params = params.ctx_shift = params.cache_prompt = False
    params.cache_ram_mib = params.n_ctx_checkpoints = 0
    params.endpoint_metrics = True
    params.verbosity = _ERRORS_ONLY
    if settings["types"]:
        _speculate(xllamacpp, params, settings)
    return params


def _ggml_type(xllamacpp: Any, name: str) -> Any:
    return getattr(xllamacpp.ggml_type, f"GGML_TYPE_{name.upper()}")


def _speculate(xllamacpp: Any, params: Any, settings: dict[str, Any]) -> None:
    kinds = xllamacpp.common_speculative_type
    params.speculative.types = [
        getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{name.upper().replace('-', '_')}")
        for name in settings["types"]
    ]
    for part, values in settings["sizes"].items():
        of = getattr(params.speculative, part) if part else params.speculative
        for name, value in values.items():
            setattr(of, name, value)
    if settings["draft_model"]:
        params.speculative.draft.mparams.path = settings["draft_model"]
        draft = params.speculative.draft
        draft.n_gpu_layers = 0
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = settings["threads"]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the benchmark ends this process
    settings = json.loads(sys.stdin.readline())
    import xllamacpp

    try:
        server = xllamacpp.Server(common_params(xllamacpp, settings))
    except Exception as error:  # noqa: BLE001 - one line for the benchmark; a traceback adds nothing
        sys.exit(str(error))
    sys.stdout.write(f"{READY}{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # its destructor waits for requests that are never read


if __name__ == "__main__":
    main()
