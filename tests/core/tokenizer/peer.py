"""llama.cpp's tokenizer, by way of xllamacpp's server on the loopback interface.

It loads no file without tensors, so the vocabulary goes into a copy with one tiny layer.
"""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gguf
import numpy as np

from .vocabularies import Metadata

_WIDTH = 32


class Peer:
    def __init__(self, metadata: Metadata, folder: Path) -> None:
        import xllamacpp

        path = folder / "model.gguf"
        _write_model(path, metadata)
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = 256
        params.n_parallel = 1
        params.warmup = False
        params.verbosity = -1
        params.port = 0
        self._server = xllamacpp.Server(params)
        address = urlsplit(self._server.listening_address)
        self._http = http.client.HTTPConnection(address.hostname or "", address.port)
        path.unlink()

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        request = {"content": text, "add_special": add_special, "parse_special": parse_special}
        ids: list[int] = self._ask("/tokenize", request)["tokens"]
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self._ask("/detokenize", {"tokens": ids})["content"]
        return text

    def close(self) -> None:
        self._http.close()
        del self._server

    def _ask(self, path: str, request: object) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        self._http.request("POST", path, json.dumps(request), headers)
        response = self._http.getresponse()
        body = response.read()
        assert response.status == 200, body
        answer: dict[str, Any] = json.loads(body)
        return answer


def _write_model(path: Path, metadata: Metadata) -> None:
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(str(metadata.get("general.name", "")))
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH)
    writer.add_vocab_size(len(tokens))
    for key, value in metadata.items():
        if key.startswith("tokenizer.ggml."):
            _write_value(writer, key, value)
    _write_tensors(writer, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, np.ndarray):
        writer.add_array(key, value.tolist())
    elif isinstance(value, list) and value:
        writer.add_array(key, value)


def _write_tensors(writer: gguf.GGUFWriter, n_tokens: int) -> None:
    def add(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", np.full(shape, 0.01, np.float32))

    add("token_embd", n_tokens, _WIDTH)
    add("output_norm", _WIDTH)
    for name in ("attn_norm", "ffn_norm"):
        add(f"blk.0.{name}", _WIDTH)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        add(f"blk.0.{name}", _WIDTH, _WIDTH)
