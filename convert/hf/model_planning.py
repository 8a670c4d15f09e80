"""Models: which tensors of a checkpoint go into the file, and which heads."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from ...core.errors import ModelError
from ...core.gguf.printable import printable
from ..checkpoint import ModelCheckpoint
from .checkpoint_family import CheckpointFamily, MtpPlace, TensorMap, heads_apart
from .completeness import check_complete
from .conversion import ONLY, WITH, WITHOUT, Conversion, Options, PlannedFile, make_conversion
from .families import find_family
from .matrix_rows import OutputTensor, StoredMatrix
from .metadata_keys import model_keys
from .model_config import ModelConfig
from .model_sizes import ModelSizes, read_sizes
from .rope_setting import RopeSetting, read_rope
from .stored_names import SortedTensors, sort_tensors
from .tokenizer import tokenizer_keys

_HEAD_COUNTS: Final = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers")
_IN_MTP_ONLY: Final = ("embed_tokens.weight", "norm.weight", "lm_head.weight")


class Settings(NamedTuple):
    """What config.json says, with the tensors that go by it."""

    config: ModelConfig
    family: CheckpointFamily
    found: SortedTensors
    sizes: ModelSizes
    rope: RopeSetting
    notes: list[str]


def plan_model(checkpoint: ModelCheckpoint, folder: Path, options: Options) -> Conversion:
    settings = read_settings(checkpoint, options)
    source, notes = plan_tensors(settings, options), settings.notes
    n_rows = source.planned["token_embd.weight"].shape[0]
    kind = settings.family.tokenizer
    of_tokenizer, more = tokenizer_keys(checkpoint, kind, n_rows, options.pre)
    notes += [*_window_notes(settings.config, settings.family), *more]
    return make_conversion(source, of_tokenizer, options.kind, folder, notes)


def read_settings(checkpoint: ModelCheckpoint, options: Options) -> Settings:
    """Raises ModelError for what config.json must not say."""
    config = ModelConfig.of(checkpoint.label, checkpoint.config)
    family = find_family(config)
    config = config.with_defaults(family.defaults)
    notes = list[str]()
    found = sort_tensors(checkpoint.tensors, config)
    n_layers = config.size("num_hidden_layers")
    found.matrices = heads_apart(found.matrices, family, n_layers)
    if senses := found.other_senses:
        first = printable(senses[0])
        notes.append(f"{len(senses)} tensors of vision or audio are left out ({first}, ...)")
    n_mtp = _count_mtp(found, config, family, options, notes)
    sizes = read_sizes(config, n_mtp, head_dim=family.head_dim, of_family=family.sizes)
    rope = read_rope(config, family.rope, family.rope_theta, sizes.head_dim)
    notes += rope.notes
    return Settings(config, family, found, sizes, rope, notes)


def plan_tensors(settings: Settings, options: Options) -> PlannedFile:
    """Raises ModelError for tensors that are missing, left over or of a wrong shape."""
    config, family, found, sizes, rope, notes = settings
    mapping = TensorMap(family, config, sizes)
    for name, matrix in _wanted(found, config, family, options, notes).items():
        mapping.add(name, matrix)
    planned = mapping.finish()
    if (factors := family.rope_factors(config, sizes, rope)) is not None:
        name = "rope_freqs.weight"
        planned[name] = OutputTensor(name, factors.shape, (), constant=factors)
    own_keys = model_keys(config, family, sizes, rope)
    source = PlannedFile.of(config.label, family.architecture, sizes, own_keys, planned)
    check_complete(source.floats, planned, sizes, mtp_only=options.mtp == ONLY)
    return source


def _count_mtp(
    found: SortedTensors,
    config: ModelConfig,
    family: CheckpointFamily,
    options: Options,
    notes: list[str],
) -> int:
    """The number of heads to write."""
    names = [name for name in found.matrices if name.startswith("mtp.")]
    if options.mtp == WITHOUT:
        return 0
    if not names:
        if options.mtp == ONLY:
            where = "mtp.*" if family.mtp is not MtpPlace.BEHIND else "of a layer behind the last"
            raise ModelError(f"{config.label} has no MTP head: none of its tensors is {where}")
        if n_named := config.count(*_HEAD_COUNTS):
            notes.append(
                f"config.json names {n_named} MTP head(s), but the tensors are not there: written "
                "without"
            )
        return 0
    if family.mtp is MtpPlace.NONE:
        raise ModelError(
            f"{config.label}: an MTP head ({printable(names[0])}) is not known of architecture "
            f"{family.architecture}; convert without it: --no-mtp"
        )
    if config.get("mtp_share_layers") is True:
        return config.size(*_HEAD_COUNTS, default=1)
    return max(1, len({name.split(".")[2] for name in names if name.startswith("mtp.layers.")}))


def _wanted(
    found: SortedTensors,
    config: ModelConfig,
    family: CheckpointFamily,
    options: Options,
    notes: list[str],
) -> dict[str, StoredMatrix]:
    """The matrices to write."""
    matrices = dict(found.matrices)
    named = config.get("tie_word_embeddings")
    is_tied = family.is_tied if named is None else named is True
    if is_tied and "lm_head.weight" in matrices:
        del matrices["lm_head.weight"]
        notes.append("lm_head is left out: config.json ties it to the embeddings")
    elif not is_tied and "lm_head.weight" not in matrices:
        notes.append("no lm_head in the checkpoint: the embeddings are the output as well")
    if options.mtp == WITHOUT:
        return {name: m for name, m in matrices.items() if not name.startswith("mtp.")}
    is_part = options.mtp == WITH
    return {
        n: m for n, m in matrices.items() if is_part or n.startswith("mtp.") or n in _IN_MTP_ONLY
    }


def _window_notes(config: ModelConfig, family: CheckpointFamily) -> list[str]:
    window, uses = config.get("sliding_window"), config.get("use_sliding_window")
    is_qwen = config.model_type.startswith("qwen")
    is_known = family.is_windowed or uses is False or (is_qwen and uses is not True)
    if window is None or is_known:
        return []
    return [
        f"sliding_window {printable(window)} has no key in this architecture: what is further back "
        "is seen as well, as in llama.cpp"
    ]
