"""Whether planned tensors are a complete model, by the survey that the runtime makes of files; of
architectures that it does not run, by what every decoder and every MTP head has."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ...core.errors import ModelError
from ...core.gguf.printable import listing
from ...core.gguf.reader import GgufFile
from ...core.models import ARCHITECTURES, survey_model
from ...core.models.model import Share
from ..files.gguf_facts import GgufFacts
from ..files.llama_keys import misread_layers, misread_widths, missing_keys
from ..heads.family_table import find_mtp_family
from .matrix_rows import OutputTensor
from .model_sizes import ModelSizes

_MOST_NAMES = 4  # in a message
_ENDS = ("token_embd.weight", "output_norm.weight")
_IN_BLOCK = (("attn_output",), ("ffn_down", "ffn_down_exps"))  # one of each
_NO_TRUNK = Share(range(0), has_ends=True)


def check_complete(
    file: GgufFile, planned: Mapping[str, OutputTensor], sizes: ModelSizes, *, mtp_only: bool
) -> None:
    """Raises ModelError for missing tensors, else for surplus ones, else for wrong shapes, else for
    what config.json says against the tensors."""
    _check_tensors(file, planned, sizes, mtp_only=mtp_only)
    facts = GgufFacts(file, has_numbers=False)
    missing = (f"nothing gives {key}" for key in missing_keys(facts))
    for text in (*missing, *misread_widths(facts), *misread_layers(facts)):
        raise ModelError(f"{file.label}: config.json: {text}")


def _check_tensors(
    file: GgufFile, planned: Mapping[str, OutputTensor], sizes: ModelSizes, *, mtp_only: bool
) -> None:
    if file.metadata.architecture not in ARCHITECTURES:
        _raise_missing(file, _missing(file, planned, sizes, mtp_only=mtp_only), sizes)
        return
    if mtp_only:  # a survey refuses a file that has nothing of a trunk
        file = replace(file, tensors=file.tensors | {"blk.0.": next(iter(file.tensors.values()))})
    try:
        found = survey_model(file, share=_NO_TRUNK if mtp_only else None).weights.findings
    except (ArithmeticError, ValueError) as error:
        raise ModelError(
            f"{file.label}: the sizes of config.json make no sense together: {error}"
        ) from None
    _raise_missing(file, found.missing, sizes)
    if surplus := [name for name in planned if name not in found.used]:
        sources = listing([f"{planned[n].source} ({n})" for n in surplus], _MOST_NAMES)
        raise ModelError(
            f"{file.label}: a {file.metadata.architecture} has no use for {sources}; leaving it "
            "out would change the text"
        )
    for text in found.misshapen:
        source = planned[text.split(" ")[0]].source
        raise ModelError(f"{file.label}: {source} does not fit config.json: {text}")


def _raise_missing(file: GgufFile, missing: list[str], sizes: ModelSizes) -> None:
    if not missing:
        return
    head = tuple(f"blk.{n}." for n in range(sizes.n_layers, sizes.n_blocks))
    of_head = all(name.startswith(head) for name in missing)
    hint = "; the MTP head is incomplete, --no-mtp leaves it out" if of_head else ""
    names = listing(missing, _MOST_NAMES)
    raise ModelError(f"{file.label}: nothing in the checkpoint makes {names}{hint}")


def _missing(
    file: GgufFile, planned: Mapping[str, OutputTensor], sizes: ModelSizes, *, mtp_only: bool
) -> list[str]:
    found = [name for name in _ENDS if name not in planned]
    family = find_mtp_family(file.metadata.architecture)
    for n in range(sizes.n_layers if mtp_only else 0, sizes.n_blocks):
        block = f"blk.{n}."
        names = (name.removeprefix(block) for name in planned if name.startswith(block))
        stems = {name.removesuffix(".weight") for name in names}
        if n >= sizes.n_layers:
            found += [f"{block}{stem}.weight" for stem in family.missing(stems)]
        else:
            lacking = [any_of[0] for any_of in _IN_BLOCK if stems.isdisjoint(any_of)]
            found += [f"{block}{stem}.weight" for stem in lacking]
    return found
