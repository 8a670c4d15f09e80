"""`ServeFlags`: the flags of one model of a server, and what they come to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .adapter_options import ServedAdapterOptions
from .console import Console
from .context_options import ContextOptions
from .conversation import read_switches, read_template
from .flags import Values, fill
from .image_options import ProjectorOptions
from .open_model import choose_drafts, choose_model
from .override_options import OverrideOptions
from .sampling_options import SamplingOptions
from .serve_options import (
    CacheOptions,
    EmbeddingOptions,
    LimitOptions,
    ListenOptions,
    LogOptions,
    TemplateOptions,
    build_settings,
    share_context,
)
from .served_model import ServedModel
from .shared_options import ModelOptions, PlaceOptions, RuleOptions
from .spec_options import ControlFlags, SpecFlags, build_spec, warning_of

if TYPE_CHECKING:
    from ..core.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class ServeFlags:
    models: ModelOptions
    projector: ProjectorOptions
    adapters: ServedAdapterOptions
    place: PlaceOptions
    listen: ListenOptions
    limits: LimitOptions
    cache: CacheOptions
    context: ContextOptions
    templates: TemplateOptions
    vectors: EmbeddingOptions
    sampling: SamplingOptions
    spec: SpecFlags
    control: ControlFlags
    rules: RuleOptions
    overrides: OverrideOptions
    log: LogOptions
    given: frozenset[str]
    is_verbose: bool = False

    @classmethod
    def of(cls, values: Values) -> ServeFlags:
        """`values`: those that are given."""
        return cls(
            fill(ModelOptions, values),
            fill(ProjectorOptions, values),
            fill(ServedAdapterOptions, values),
            fill(PlaceOptions, values),
            fill(ListenOptions, values),
            fill(LimitOptions, values),
            fill(CacheOptions, values),
            fill(ContextOptions, values),
            fill(TemplateOptions, values),
            fill(EmbeddingOptions, values),
            fill(SamplingOptions, values),
            fill(SpecFlags, values),
            fill(ControlFlags, values),
            fill(RuleOptions, values),
            fill(OverrideOptions, values),
            fill(LogOptions, values),
            frozenset(values),
            bool(values.get("verbose")),
        )

    def settings(self) -> ServerSettings:
        """Raises what is wrong with the flags, before anything slow."""
        build_spec(self.spec, self.control)
        read_template(self.templates)
        self.overrides.values()
        share_context(self.place, self.listen)
        return build_settings(
            self.listen, self.limits, self.cache, self.context, self.templates, self.vectors,
            self.sampling, self.rules, self.log, read_switches(self.templates),
            verbose=self.is_verbose,
        )  # fmt: skip

    def find(self, settings: ServerSettings, output: Console) -> tuple[ServedModel, ServerSettings]:
        """The files, which are downloaded if need be, and the settings for them."""
        from ..core.model_names import is_bundled

        speculation = build_spec(self.spec, self.control)
        model = choose_model(
            self.models, output, self.spec, with_mmproj=self.projector.is_looked_for
        )
        drafts = choose_drafts(self.spec, self.models, output)
        mmproj = self.projector.mmproj
        for path in (model, *(drafts or ()), *([mmproj] if mmproj else ())):
            if not path.is_file():
                raise FileNotFoundError(2, "no such file", str(path))
        projector = self.projector.beside(model, output)
        for line in self._warnings(settings):
            output.remark(line)
        found = ServedModel(
            model, share_context(self.place, self.listen), speculation, drafts,
            self.listen.parallel, self.cache.room, read_template(self.templates),
            self.templates.chat_template, self.given, projector, self.overrides.values(),
            tuple(self.adapters.files()),
        )  # fmt: skip
        return found, replace(settings, writes_text=is_bundled(model))

    def _warnings(self, settings: ServerSettings) -> Iterator[str]:
        speculation = build_spec(self.spec, self.control)
        if warning := warning_of(speculation):
            yield warning
        if speculation.corpus is not None and len(settings.api_keys) > 1:
            yield "--spec-corpus: what one API key's requests add is drafted for all keys"
