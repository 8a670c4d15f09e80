"""llama.cpp in this process, through `xllamacpp`: load a file, tokenize, write greedily.

One sequence, no prompt cache, no warm-up, no context shift: what it says depends on the request
alone. GGML_ASSERT aborts the process; its message goes to file descriptor 2, so a test should
uncapture that one (`capfd.disabled()`) around the calls.
"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from nextn.core.gguf.reader import open_gguf

TIMEOUT_S = 600  # beside busy processes it may take many times as long as alone
ERRORS_ONLY = 1  # llama.cpp's verbosity: 0 nothing, 1 errors, 2 warnings, 3 information


def _kind_of(head: Path) -> str:
    """llama.cpp's name of the drafter that a file is for."""
    with open_gguf(head) as file:
        if "markov_w1.weight" in file.tensors:
            return "DSPARK"
        return {"eagle3": "EAGLE3", "dflash": "DFLASH"}.get(file.metadata.architecture, "MTP")


@dataclass(frozen=True, slots=True)
class Written:
    """Tokens in order; per token the natural logarithms of the likeliest ones, by id."""

    tokens: list[int]
    logprobs: list[dict[int, float]]  # of the model itself, before bias and sampling
    timings: dict[str, float]  # prompt_ms, predicted_ms and more, as the server reports them


class LlamaCpp:
    """A loaded file. F32 key-value cache and no flash attention: as exact as llama.cpp can be.

    With `half_kv`, its defaults instead: half-precision cache, flash attention where it has it.
    `n_ctx` is shared by `n_parallel` sequences. `n_mtp`: draft so many tokens with the file's own
    MTP block, or with what the file `head` holds. `chat_template`: a built-in one, by its name.
    `mmproj`: the file of a vision tower. `lora`: adapters with their scales.
    """

    def __init__(  # noqa: PLR0913 - keywords, as a command has
        self,
        path: Path,
        *,
        n_ctx: int = 256,
        n_threads: int = 2,
        n_parallel: int = 1,
        half_kv: bool = False,
        n_mtp: int = 0,
        head: Path | None = None,
        chat_template: str | None = None,
        mmproj: Path | None = None,
        lora: Mapping[Path, float] = MappingProxyType({}),
    ) -> None:
        import xllamacpp

        params = _params(xllamacpp, path, n_ctx, n_threads)
        params.n_parallel = n_parallel
        if chat_template is not None:
            params.chat_template, params.use_jinja = chat_template, False
        if not half_kv:
            _make_exact(xllamacpp, params)
        if n_mtp:
            kinds = xllamacpp.common_speculative_type
            kind = "MTP" if head is None else _kind_of(head)
            params.speculative.types = [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_DRAFT_{kind}")]
            params.speculative.draft.n_max = n_mtp
            if head is not None:
                params.speculative.draft.mparams.path = str(head)
        if mmproj is not None:
            params.mmproj.path, params.mmproj_use_gpu = str(mmproj), False
        if lora:
            params.lora_adapters = [_adapter(xllamacpp, *each) for each in lora.items()]
        self._server = xllamacpp.Server(params)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Its loop answers this. A server that is ended before its loop has begun never ends.
        with suppress(OSError), urllib.request.urlopen(f"{self.address}/slots", timeout=TIMEOUT_S):
            pass
        del self._server  # its destructor joins llama.cpp's threads

    @property
    def address(self) -> str:
        """Of its HTTP server."""
        return str(self._server.listening_address)

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids without BOS; `special` reads the text of control tokens as these."""
        body = {"content": text, "add_special": False, "parse_special": special}
        tokens: list[int] = self._post("tokenize", body)["tokens"]
        return tokens

    def apply_template(self, messages: Sequence[dict[str, str]]) -> str:
        return str(self._post("apply-template", {"messages": list(messages)})["prompt"])

    def greedy(
        self, prompt: Sequence[int], n: int, *, n_probs: int = 0, banned: Sequence[int] = ()
    ) -> Written:
        """Append `n` tokens, fewer if the model ends the text; `banned` ids are never picked."""
        bias = [[token, False] for token in banned]
        plain = {"temperature": 0, "repeat_penalty": 1.0}  # a file may recommend other values
        return self.write(prompt, n, **plain, n_probs=n_probs, logit_bias=bias)

    def behind_images(
        self, pieces: Sequence[str], images: Sequence[bytes], n: int, banned: Sequence[int] = ()
    ) -> Written:
        """Append `n` tokens greedily to pieces of text with an image between each two; `banned` ids
        are never picked."""
        with urllib.request.urlopen(f"{self.address}/props", timeout=TIMEOUT_S) as answer:
            mark = json.load(answer)["media_marker"]
        data = [base64.b64encode(image).decode() for image in images]
        prompt = {"prompt_string": mark.join(pieces), "multimodal_data": data}
        bias = [[token, False] for token in banned]
        return self.write(prompt, n, temperature=0, ignore_eos=True, n_probs=20, logit_bias=bias)

    def write(self, prompt: Sequence[int] | Any, n: int, **settings: object) -> Written:
        """Append `n` tokens with the server's own sampling defaults, or other settings of its."""
        body = {
            "prompt": prompt if isinstance(prompt, dict) else list(prompt),
            "n_predict": n,
            "return_tokens": True,
            "cache_prompt": False,
            **settings,
        }
        answer = self._post("completion", body)
        rows = [
            {top["id"]: top["logprob"] for top in at["top_logprobs"]}
            for at in answer.get("completion_probabilities", [])
        ]
        return Written(answer["tokens"], rows, answer["timings"])

    def _post(self, name: str, body: dict[str, Any]) -> Any:
        """The server's own endpoints: its in-process call speaks OpenAI's, which lack tokens."""
        request = urllib.request.Request(
            f"{self.address}/{name}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)


def _params(xllamacpp: Any, path: Path, n_ctx: int, n_threads: int) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_gpu_layers = n_ctx, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = n_threads
    params.warmup = params.fit_params = params.ctx_shift = params.cache_prompt = False
    params.cache_ram_mib = params.n_ctx_checkpoints = 0
    params.verbosity = ERRORS_ONLY
    return params


def _adapter(xllamacpp: Any, path: Path, scale: float) -> Any:
    made = xllamacpp.CommonAdapterLoraInfo()
    made.path, made.scale = str(path), scale
    return made


def _make_exact(xllamacpp: Any, params: Any) -> None:
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
