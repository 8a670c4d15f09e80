"""The flags of speculation, and the `SpecOptions` made of them.

`SpecFlags` choose the drafters, for every command that speculates; `ControlFlags` set how drafts
are chosen and accepted, where there is an engine; `AuditFlags` request a check.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from ..core.errors import ConfigError
from ..core.speculation.acceptance import MATCH, RATIO, SYNTHETIC, Acceptance, parse_accept
from ..core.speculation.options import (
    AUTO,
    DRAFT,
    FROM_FILES,
    NGRAM_CACHE,
    NGRAM_MOD,
    NONE,
    SUFFIX,
    NgramModSizes,
    NgramSizes,
    SpecOptions,
    SuffixSizes,
    parse_types,
)
from .flags import flag, flag_group
from .usage import flag_errors

if TYPE_CHECKING:
    from ..core.generation import GenerateParams

DEFAULT: Final = SpecOptions()
_MATCH, _LENGTH = "Match length in tokens.", "Draft length in tokens."
_HITS: Final = "Minimum occurrences of a match."


def size_flag(drafter: str, size: str, help: str) -> Any:
    """A size of an n-gram drafter, with the drafter's own default."""
    default = getattr(getattr(DEFAULT, drafter.replace("-", "_")), size)
    return flag(f"--spec-{drafter}-{size.replace('_', '-')} N", help, default)


@flag_group("Speculation", DEFAULT)
class SpecFlags:
    """A field has the name of the option that it sets, as far as it sets just one."""

    spec_type: list[str] | None = flag(
        "--spec-type A,B",
        "Drafters: mtp, draft, eagle3, dflash, gemma4-assistant, ngram-simple, ngram-map-k, "
        "ngram-map-k4v, ngram-mod, ngram-cache, suffix; auto: all that the files contain, and "
        "ngram-mod; none. May be given several times. "
        " [default: auto]",
    )
    spec_default: bool = flag("--spec-default", "Addition of ngram-mod with its default sizes.")
    draft_models: list[Path] | None = flag(
        "--spec-draft-model -md --model-draft FILE",
        "Draft model file, GGUF, or a file with an MTP head, an EAGLE3 or a DFlash drafter or a "
        "Gemma 4 assistant for the model. May be given several times, once for each kind. Without "
        "it, networks beside the model's file are used; none: no file.",
    )
    draft_repo: str | None = flag(
        "--spec-draft-hf --hf-repo-draft -hfd -hfrd OWNER/NAME",
        "The same from the Hugging Face hub, as --hf-repo has it.",
    )
    draft_first: bool = flag(
        "--spec-draft-first",
        "Where memory is short, shorten the context, not leave out a drafter that was found beside "
        "the model. It is shortened for one that was named in any case.",
    )
    draft_n_max: int | None = flag(
        "--spec-draft-n-max N",
        "Maximum draft length of models and heads; the controller's choice if not given, 3 without "
        "a controller.",
    )
    draft_n_min: int = flag("--spec-draft-n-min N", "Minimum draft length of models and heads.")
    draft_p_min: float = flag(
        "--spec-draft-p-min --draft-p-min P",
        "Minimum probability of a token that a model or head proposes.",
    )
    draft_vocab: str = flag(
        "--spec-draft-vocab auto|full|N|FILE",
        "Vocabulary subset for mtp: the N most used tokens, or the token ids in a file.",
    )
    mtp_prefill: int = flag(
        "--spec-mtp-prefill N", "Number of last prompt tokens that mtp reads; -1: all."
    )
    simple_size_n: int = size_flag("ngram-simple", "size_n", _MATCH)
    simple_size_m: int = size_flag("ngram-simple", "size_m", _LENGTH)
    simple_min_hits: int = size_flag("ngram-simple", "min_hits", _HITS)
    map_k_size_n: int = size_flag("ngram-map-k", "size_n", _MATCH)
    map_k_size_m: int = size_flag("ngram-map-k", "size_m", _LENGTH)
    map_k_min_hits: int = size_flag("ngram-map-k", "min_hits", _HITS)
    map_k4v_size_n: int = size_flag("ngram-map-k4v", "size_n", _MATCH)
    map_k4v_size_m: int = size_flag("ngram-map-k4v", "size_m", _LENGTH)
    map_k4v_min_hits: int = size_flag("ngram-map-k4v", "min_hits", _HITS)
    mod_n_match: int = size_flag("ngram-mod", "n_match", _MATCH)
    mod_n_min: int = size_flag("ngram-mod", "n_min", "Minimum draft length.")
    mod_n_max: int = size_flag("ngram-mod", "n_max", "Maximum draft length.")
    suffix_n_match: int = size_flag("suffix", "n_match", "Minimum match length in tokens.")
    suffix_n_max: int = size_flag("suffix", "n_max", "Maximum draft length.")
    corpus: Path | None = flag(
        "--spec-corpus FILE",
        "Corpus of suffix, created if it is missing: texts of all requests, as a source of drafts "
        "for all.",
    )
    corpus_budget: int = flag("--spec-corpus-budget MIB", "Disk space of the corpus.")
    lookup_cache_static: Path | None = flag(
        "--lookup-cache-static -lcs FILE", "N-gram file of ngram-cache that is only read."
    )
    lookup_cache_dynamic: Path | None = flag(
        "--lookup-cache-dynamic -lcd FILE",
        "N-gram file of ngram-cache, read at the start and written at the end.",
    )

    @property
    def takes_companions(self) -> bool:
        """Whether networks beside the model would draft."""
        is_named = self.draft_models is not None or self.draft_repo is not None
        networks = {AUTO, *FROM_FILES} - {DRAFT}
        return not is_named and not networks.isdisjoint(parse_types(self.types()))

    def types(self) -> tuple[str, ...]:
        given = [name for text in self.spec_type or () for name in text.split(",")]
        if self.spec_default:
            given.append(NGRAM_MOD)
        return tuple(given) or DEFAULT.types

    def values(self) -> dict[str, Any]:
        """The arguments of `SpecOptions`."""
        same = (
            "draft_first", "draft_n_max", "draft_n_min", "draft_p_min", "draft_vocab",
            "mtp_prefill", "corpus_budget",
        )  # fmt: skip
        return {name: getattr(self, name) for name in same} | {
            "types": self.types(),
            "ngram_simple": NgramSizes(
                self.simple_size_n, self.simple_size_m, self.simple_min_hits
            ),
            "ngram_map_k": NgramSizes(self.map_k_size_n, self.map_k_size_m, self.map_k_min_hits),
            "ngram_map_k4v": NgramSizes(
                self.map_k4v_size_n, self.map_k4v_size_m, self.map_k4v_min_hits
            ),
            "ngram_mod": NgramModSizes(self.mod_n_match, self.mod_n_min, self.mod_n_max),
            "suffix": SuffixSizes(self.suffix_n_match, self.suffix_n_max),
            "corpus": _path(self.corpus),
            "lookup_cache_static": _path(self.lookup_cache_static),
            "lookup_cache_dynamic": _path(self.lookup_cache_dynamic),
        }


@flag_group("Speculation", DEFAULT)
class ControlFlags:
    fixed: bool = flag("--spec-fixed", "Drafts of the maximum length, without a controller.")
    costs: Path | None = flag(
        "--spec-costs FILE",
        "File of costs in place of measured ones, so that a run repeats exactly.",
    )
    trace: Path | None = flag(
        "--spec-trace FILE", "Output file for the controller's decisions, JSONL."
    )
    accept: str = flag(
        "--spec-accept RULE",
        "Acceptance rule. match: the text is unchanged; ratio: another text of the same "
        "distribution; relaxed[:N[,DELTA]]: lossy.",
    )
    synth_len: float | None = flag(
        "--spec-synth-len L", "Mean tokens per step of random acceptance, for benchmarks."
    )
    synth_rates: str | None = flag(
        "--spec-synth-rates P,P",
        "Probabilities that 1, 2, ... tokens are accepted at random, for benchmarks.",
        None,
    )

    def values(self) -> dict[str, Any]:
        return {
            "fixed": self.fixed,
            "costs": _path(self.costs),
            "trace": _path(self.trace),
            "accept": self.accept,
            "synth_len": self.synth_len,
            "synth_rates": _rates(self.synth_rates),
        }


@flag_group("Speculation")
class AuditFlags:
    verify_lossless: bool = flag(
        "--verify-lossless",
        "Second run without speculation and a bitwise comparison of all tokens and logits; exit "
        "code 1 if any differ.",
    )


FIXED: Final = ControlFlags(fixed=True)


def named_drafts(given: list[Path] | None) -> list[Path] | None:
    """Return the files of --spec-draft-model; None for those beside the model."""
    return [] if given == [Path(NONE)] else given


def build_spec(flags: SpecFlags, control: ControlFlags = FIXED) -> SpecOptions:
    """Return the options; wrong values raise a usage error."""
    with flag_errors():
        options = SpecOptions(**flags.values(), **control.values())
    _check_draft(options, flags)
    _check_use(options)
    if options.draft_vocab != DEFAULT.draft_vocab:
        from ..core.speculation.drafters.draft_vocab import check_option

        with flag_errors():
            check_option(options.draft_vocab)
    return options


def check_spec(audit: AuditFlags, options: SpecOptions, params: GenerateParams) -> None:
    """Refuse what excludes each other, or the text's other parameters."""
    _check_audit(audit, options, params)
    _check_acceptance(options, params)


def _check_audit(audit: AuditFlags, options: SpecOptions, params: GenerateParams) -> None:
    if not audit.verify_lossless:
        return
    if params.shift is not None:
        raise typer.BadParameter("--verify-lossless needs whole texts; leave --context-shift out")
    if not is_lossless(options):
        raise typer.BadParameter(
            "--verify-lossless is for --spec-accept match without synthetic acceptance: "
            "anything else is meant to change the text"
        )


def _check_acceptance(options: SpecOptions, params: GenerateParams) -> None:
    if options.types == (NONE,):
        return
    if options.is_synthetic and params.is_restricted:
        raise typer.BadParameter(
            "synthetic acceptance keeps draft tokens that no grammar has seen: a grammar or JSON "
            "schema, and --spec-synth-len or --spec-synth-rates, exclude each other"
        )
    sampling = params.sampling
    if parse_accept(options.accept).mode == RATIO and sampling.mirostat and sampling.temperature:
        raise typer.BadParameter(
            "--spec-accept ratio needs to know how likely each token is, which --mirostat does "
            "not say; give --spec-accept match"
        )


def is_lossless(options: SpecOptions) -> bool:
    return _kind_of_acceptance(options).mode == MATCH


def warning_of(options: SpecOptions) -> str | None:
    """Return a warning if the text may differ from plain decoding's."""
    warning = "" if options.types == (NONE,) else _kind_of_acceptance(options).warning
    return f"warning: {warning}" if warning else None


def _kind_of_acceptance(options: SpecOptions) -> Acceptance:
    """Return the rule without its numbers, which depend on the drafters."""
    return Acceptance(SYNTHETIC) if options.is_synthetic else parse_accept(options.accept)


def _check_draft(options: SpecOptions, flags: SpecFlags) -> None:
    has_file = bool(named_drafts(flags.draft_models))
    if DRAFT in options.types and not has_file:
        raise typer.BadParameter("--spec-type draft needs a model to draft with: give -md FILE")
    if has_file and not {AUTO, *FROM_FILES} & set(options.types):
        names, known = ",".join(options.types), ", ".join(FROM_FILES)
        raise typer.BadParameter(f"-md is for --spec-type {known} or auto, not {names}")


def _check_use(options: SpecOptions) -> None:
    """Refuse a file that the chosen drafters neither read nor write."""
    if options.fixed:
        for name, file in (("costs", options.costs), ("trace", options.trace)):
            if file is not None:
                raise typer.BadParameter(
                    f"--spec-{name} is for the controller, which --spec-fixed does without"
                )
    if options.types == (NONE,):
        return
    for drafter, name, file in (
        (NGRAM_CACHE, "lookup-cache-static", options.lookup_cache_static),
        (NGRAM_CACHE, "lookup-cache-dynamic", options.lookup_cache_dynamic),
        (SUFFIX, "spec-corpus", options.corpus),
    ):
        if file is not None and drafter not in options.types:
            names = ",".join(options.types)
            raise typer.BadParameter(f"--{name} is for --spec-type {drafter}, not {names}")


def _rates(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise ConfigError(
            f"spec-synth-rates are numbers with commas between, such as 0.8,0.5, got {text!r}"
        ) from None


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)
