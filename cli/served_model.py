"""`ServedModel`: the model flags of a server. It can be sent to another process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from msgspec import Struct

from ..core.speculation.options import SpecOptions
from .console import Console
from .image_options import ProjectorOptions
from .open_model import open_runtime
from .sampling_options import not_given
from .shared_options import PlaceOptions
from .usage import flag_errors

if TYPE_CHECKING:
    from ..core.runtime import Runtime
    from ..core.tokenizer import ChatTemplate
    from ..core.worker.worker import Loaded


class ServedModel(Struct, frozen=True):
    model: Path
    place: PlaceOptions
    speculation: SpecOptions
    drafts: Sequence[Path] | None
    n_parallel: int
    cache_ram: int | None  # bytes
    template: str | None  # Jinja
    template_name: str | None  # of the model's file
    flags: frozenset[str] = frozenset()  # given on the command line
    projector: ProjectorOptions | None = None
    overrides: dict[str, bool | int | float | str] = {}
    lora: tuple[tuple[Path, float], ...] = ()  # files of adapters with their scales

    def load(self, output: Console) -> Loaded:
        from ..core.server.loading import plan, prepare

        runtime = open_runtime(
            self.model,
            self.place,
            output,
            self.speculation,
            self.drafts,
            self.projector,
            self.overrides,
            self.lora,
            lambda opened: plan(opened, self.n_parallel, self.cache_ram),
        )
        with flag_errors(), output.cleared():  # memory, or a drafter: flags chose it
            template = self._template(runtime)
            sampling = not_given(runtime.recommended_sampling, self.flags)
            return prepare(runtime, self.n_parallel, template, self.cache_ram, sampling)

    def _template(self, runtime: Runtime) -> ChatTemplate | None:
        from ..core.tokenizer import ChatTemplate, load_chat_template

        if self.template is not None:
            return ChatTemplate(self.template)
        name = self.template_name
        template = load_chat_template(runtime.file.metadata, name)
        if template is None and name is not None:
            raise typer.BadParameter(f"--chat-template: the model's file has none called {name!r}")
        return template
