"""`spec convert check`: `inspect --run` by the name that it had."""

from __future__ import annotations

from ..flags import argument, flag, flag_group, takes_flags
from ..shared_options import PlaceOptions, VoiceOptions
from .judging import VerdictOptions, Wanted, give_verdict


@flag_group("File")
class CheckOptions:
    file: str = argument("FILE", "What inspect takes: a GGUF file, a folder, or a repository.")
    draft: str | None = flag(
        "--draft -md FILE", "Draft model, or file of a drafter or MTP head, for the trial runs."
    )
    no_run: bool = flag("--no-run", "No trial runs.")


@takes_flags
def check(
    file: CheckOptions, options: VerdictOptions, place: PlaceOptions, voice: VoiceOptions
) -> None:
    """The verdict of inspect --run: every number read, every drafter tried.

    spec convert check model.gguf
    """
    wanted = Wanted(file.file, file.draft, scans=True, runs=not file.no_run)
    give_verdict(wanted, options, place, voice.console())
