"""A short name for the numbers of a model file: a state saved under one fits no other."""

from __future__ import annotations

from hashlib import blake2b

from ..gguf.reader import GgufFile

_SAMPLE = 256  # bytes from the start, middle and end of each tensor: reading all would take long


def model_fingerprint(file: GgufFile) -> str:
    """Hyper-parameters, and of every tensor its name, shape, format and some of its bytes."""
    architecture = file.metadata.str("general.architecture")
    digest = blake2b(architecture.encode(), digest_size=16)
    for key in sorted(file.metadata):
        if key.startswith(f"{architecture}."):
            digest.update(f"\n{key} {file.metadata.entry(key).value!r}".encode())
    for name, tensor in sorted(file.tensors.items()):
        digest.update(f"\n{name} {tensor.shape} {tensor.format.name}".encode())
        data = tensor.data
        middle = len(data) // 2
        for part in (data[:_SAMPLE], data[middle : middle + _SAMPLE], data[-_SAMPLE:]):
            digest.update(part.tobytes())
        tensor.release()  # the system may have mapped megabytes around each sample
    return digest.hexdigest()
