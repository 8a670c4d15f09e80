"""`LanguageModel`: a loaded model, for calls from any thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, Unpack
from weakref import finalize

from ..engine.saving import SavedRequest, prompt_of
from ..errors import ConfigError, ModelError, NextnError
from ..state.embedded_rows import ImageRows, ModelPrompt
from ..state.snapshot import SequenceSnapshot
from ..worker.jobs import Job
from .argument_names import argument_names, errors_in_python
from .engine_thread import EngineThread
from .generation_options import GenerationOptions, params_of
from .image_sources import ImageSource, opened_image
from .inboxes import AsyncInbox, Inbox
from .results import Result
from .streams import AsyncStream, Call, Stream

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from ..runtime import Runtime
    from ..tokenizer import ChatTemplate

# Tokens; among them arrays (rows, `n_embd`) that take the place of tokens' embeddings.
Prompt = str | Sequence["int | NDArray[np.floating[Any]] | ImageRows"] | ModelPrompt
Message = Mapping[str, Any]
_POOLING: Final = ("mean", "last")


class LanguageModel:
    """Made by `nextn.load`. Calls from several threads are batched, and each gets the text that it
    would get alone. `close`, or `with`, frees the memory."""

    def __init__(self, runtime: Runtime, n_parallel: int = 1) -> None:
        self._runtime, self._n_parallel = runtime, n_parallel
        self._thread = EngineThread(runtime, n_parallel)
        # When it is dropped, and at the end of the program: its thread would go on.
        self._at_end = finalize(self, self._thread.close)

    # what it is

    @property
    def name(self) -> str:
        return self._runtime.name

    @property
    def architecture(self) -> str:
        return self._runtime.architecture

    @property
    def device(self) -> str:
        return self._runtime.device

    @property
    def n_embd(self) -> int:
        """Numbers of a row that takes the place of a token's embedding."""
        return self._runtime.model.hparams.row_width

    @property
    def n_ctx(self) -> int:
        """Tokens of a prompt and its continuation, at most."""
        return self._runtime.n_ctx

    @property
    def n_vocab(self) -> int:
        return self._runtime.n_vocab

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafters that are loaded, in the order of precedence."""
        return self._runtime.spec_types

    def __repr__(self) -> str:
        drafters = ", ".join(self.drafters) or "none"
        return (
            f"<nextn.LanguageModel {self.name!r}: {self.architecture} on {self.device}, "
            f"{self.n_ctx} tokens, {self._n_parallel} at once, drafters {drafters}>"
        )

    # texts

    def generate(
        self,
        prompt: Prompt,
        *,
        images: Sequence[ImageSource] = (),
        **options: Unpack[GenerationOptions],
    ) -> Result:
        """Continue a prompt, and return the whole continuation. `images`: see `with_images`."""
        return self.batch([self.with_images(prompt, images)], **options)[0]

    def batch(
        self, prompts: Sequence[Prompt], **options: Unpack[GenerationOptions]
    ) -> list[Result]:
        """Continue several prompts, as many at once as `load(parallel=...)` says."""
        call = self._call(prompts, options, Inbox())
        try:
            self._thread.submit(call.jobs)
            while call.n_open:
                call.take(*call.inbox.next())
        finally:
            self._thread.cancel(call.jobs)
        return call.results()

    def stream(
        self,
        prompt: Prompt,
        *,
        images: Sequence[ImageSource] = (),
        **options: Unpack[GenerationOptions],
    ) -> Stream:
        """Continue a prompt token by token, from the first `next` on. Leaving the loop, or closing
        the stream, ends it."""
        call = self._call([self.with_images(prompt, images)], options, Inbox())
        return Stream(self, self._thread, call)

    def resume(self, path: str | PathLike[str]) -> Stream:
        """Go on with a text that `Stream.pause` wrote, by its own options. All pieces together are
        those of the text without a pause. The model has to be the same, on a device of the same
        kind."""
        return Stream(self, self._thread, self._resumed(path, Inbox()))

    def chat(self, messages: Sequence[Message], **options: Unpack[GenerationOptions]) -> Result:
        """Answer a conversation, by the template of the model's file."""
        return self.generate(self.chat_prompt(messages), **options)

    def stream_chat(
        self, messages: Sequence[Message], **options: Unpack[GenerationOptions]
    ) -> Stream:
        return self.stream(self.chat_prompt(messages), **options)

    def with_images(self, prompt: Prompt, images: Sequence[ImageSource]) -> Prompt:
        """The prompt of a text with images, which are paths, bytes of files, or images of Pillow.
        Each takes the place of the next "<image>" in the text, or stands before it."""
        if not images:
            return prompt
        if not isinstance(prompt, str):
            raise TypeError("images stand in a prompt that is a str")
        from ..vision.image_prompt import split_at_marks

        with errors_in_python():
            return self._prompt_of(split_at_marks(prompt, len(images)), images)

    def chat_prompt(self, messages: Sequence[Message], **switches: Any) -> list[int] | ModelPrompt:
        """The prompt of a conversation. `switches` are the template's own: enable_thinking. The
        content of a message may be a list of parts {"type": "text", "text": ...} and
        {"type": "image", "image": ...}, with what `with_images` takes."""
        from ..tokenizer.chat_template import prompt_tokens, spelling

        tokenizer, mark, images = self._runtime.tokenizer, "", list[Any]()
        if any(isinstance(message.get("content"), list | tuple) for message in messages):
            from ..vision.image_prompt import marked_messages, new_mark

            mark = new_mark()
            messages, images = marked_messages(messages, mark)
        text = self._template.render(
            messages,
            bos_token=spelling(tokenizer, tokenizer.bos_id),
            eos_token=spelling(tokenizer, tokenizer.eos_id),
            switches=switches,
        )
        if images:
            from ..vision.image_prompt import split_rendered

            with errors_in_python():
                return self._prompt_of(split_rendered(text, mark, len(images)), images)
        return prompt_tokens(text, tokenizer)

    # the same for coroutines

    async def agenerate(
        self,
        prompt: Prompt,
        *,
        images: Sequence[ImageSource] = (),
        **options: Unpack[GenerationOptions],
    ) -> Result:
        if images:
            import asyncio

            prompt = await asyncio.to_thread(self.with_images, prompt, images)
        return (await self.abatch([prompt], **options))[0]

    async def abatch(
        self, prompts: Sequence[Prompt], **options: Unpack[GenerationOptions]
    ) -> list[Result]:
        call = self._call(prompts, options, AsyncInbox())
        try:
            self._thread.submit(call.jobs)
            while call.n_open:
                call.take(*await call.inbox.next_event())
        finally:
            self._thread.cancel(call.jobs)
        return call.results()

    def astream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> AsyncStream:
        return AsyncStream(self, self._thread, lambda: self._call([prompt], options, AsyncInbox()))

    def aresume(self, path: str | PathLike[str]) -> AsyncStream:
        return AsyncStream(self, self._thread, lambda: self._resumed(path, AsyncInbox()))

    async def achat(
        self, messages: Sequence[Message], **options: Unpack[GenerationOptions]
    ) -> Result:
        return await self.agenerate(self.chat_prompt(messages), **options)

    # tokens and numbers

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids, with the model's own beginning of text unless `add_special` is false."""
        return self._runtime.tokenizer.encode(text, add_special=add_special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        return self._runtime.tokenizer.decode(list(tokens))

    def logits(self, prompt: Prompt) -> NDArray[np.float32]:
        """Return the logits after every token of a prompt, (tokens, vocabulary)."""
        tokens = self._tokens(prompt)
        return _result(self._thread.call(lambda: self._runtime.logits(tokens)))

    def embed(self, prompt: Prompt, *, pooling: str = "mean") -> NDArray[np.float32]:
        """Return the last hidden rows of a prompt as one vector of length 1: their mean, or with
        pooling="last" that of the last token."""
        if pooling not in _POOLING:
            raise ConfigError(f"pooling must be one of {', '.join(_POOLING)}, got {pooling!r}")
        tokens = self._tokens(prompt)
        rows = _result(self._thread.call(lambda: self._runtime.hidden_rows(tokens)))
        vector = rows[-1] if pooling == "last" else rows.mean(axis=0)
        length = float((vector @ vector) ** 0.5)
        unit: NDArray[np.float32] = vector / length if length else vector
        return unit

    # its end

    def close(self) -> None:
        """End all calls, and free the memory. A closed model raises NextnError."""
        self._at_end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a model cannot be pickled: load it in each process")

    # inside

    @property
    def _template(self) -> ChatTemplate:
        from ..tokenizer import load_chat_template

        found = load_chat_template(self._runtime.file.metadata)
        if found is None:
            raise ModelError(f"{self._runtime.file.label} has no chat template; use generate")
        return found

    def _prompt_of(self, pieces: Sequence[str], images: Sequence[ImageSource]) -> ModelPrompt:
        """Pieces of text with an image between each two."""
        runtime = self._runtime
        read = [runtime.images.read(*opened_image(image, i)) for i, image in enumerate(images, 1)]
        prompt = runtime.image_prompt(pieces, read)
        return self._thread.call(lambda: runtime.encode_images(prompt)).result()

    def _tokens(self, prompt: Prompt) -> ModelPrompt:
        if isinstance(prompt, ModelPrompt):
            return prompt
        if isinstance(prompt, bytes):
            raise TypeError("a prompt is a str or a sequence of token ids, not bytes")
        if isinstance(prompt, str):
            return ModelPrompt(self.tokenize(prompt))
        return ModelPrompt.of(prompt)

    def _call(self, prompts: Sequence[Prompt], options: GenerationOptions, inbox: Any) -> Call:
        if isinstance(prompts, str):
            raise TypeError("batch takes a list of prompts; generate takes one")
        self._thread.check_open()
        jobs = []
        with errors_in_python():
            params = params_of(options, self._runtime.recommended_sampling)
            for place, prompt in enumerate(prompts):
                tokens = self._tokens(prompt)
                self._runtime.check_prompt(tokens)
                jobs.append(Job(tokens, params, inbox, place, index=0))
        return Call(jobs, params, inbox)

    def _resumed(self, path: str | PathLike[str], inbox: Any) -> Call:
        self._thread.check_open()
        with errors_in_python():
            snapshot = SequenceSnapshot.load(path)
            params = SavedRequest.read(snapshot).params
            job = Job(prompt_of(snapshot), params, inbox, saved=snapshot)
        return Call([job], params, inbox)


def _result(future: Future[NDArray[np.float32]]) -> NDArray[np.float32]:
    try:
        return future.result()
    except NextnError as error:
        raise type(error)(argument_names(str(error))) from None
