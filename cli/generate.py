"""`spec generate`: continue a prompt, answer a message, or hold a conversation."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import typer
from msgspec.structs import replace as replaced

from .adapter_options import AdapterOptions
from .auditing import fail_if_different
from .console import READING, Console
from .context_options import ContextOptions
from .conversation import has_conversations, read_chat, start_renderer
from .flags import takes_flags
from .generate_params import build_params, with_file_defaults
from .image_options import ImageOptions, ProjectorOptions, encodable, with_images
from .open_model import choose_drafts, choose_model, open_runtime, print_choice, warm_up
from .override_options import OverrideOptions
from .print_answer import print_answer
from .printers import JsonPrinter, TextPrinter
from .prompt_source import unescaped
from .sampling_options import SamplingOptions
from .shared_options import (
    ChatOptions,
    ModelOptions,
    PlaceOptions,
    PromptOptions,
    ResultOptions,
    TextOptions,
    VoiceOptions,
)
from .spec_options import (
    AuditFlags,
    ControlFlags,
    SpecFlags,
    build_spec,
    check_spec,
    warning_of,
)
from .summary import idle_lines, images_line, summary_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..core.audit import RowRecorder
    from ..core.generation import GenerateParams
    from ..core.runtime import Runtime
    from ..core.speculation.options import SpecOptions
    from ..core.state.embedded_rows import ModelPrompt
    from .conversation import Conversation
    from .image_options import GivenImage
    from .print_answer import Printer


@takes_flags
def generate(  # noqa: PLR0913 - groups of flags
    prompts: PromptOptions,
    images: ImageOptions,
    models: ModelOptions,
    projector: ProjectorOptions,
    adapters: AdapterOptions,
    place: PlaceOptions,
    texts: TextOptions,
    context: ContextOptions,
    chats: ChatOptions,
    sampling: SamplingOptions,
    spec: SpecFlags,
    control: ControlFlags,
    overrides: OverrideOptions,
    audit: AuditFlags,
    results: ResultOptions,
    voice: VoiceOptions,
) -> None:
    """Continue a prompt, or chat.

    Without a prompt, on a terminal, a model with a chat template holds a conversation.
    The text goes to stdout, on a terminal after its prompt; progress and a summary to stderr.
    Sampling values come from flags, else from the model's file, else the defaults shown here.
    """
    output = voice.console()
    check_results(results, prompts, chats)
    texts, chats = without_escapes(prompts, texts, chats)
    params = replaced(build_params(texts, sampling, results), shift=context.shift)
    options, changes = build_spec(spec, control), overrides.values()
    check_spec(audit, options, params)
    # All that can be checked before comes before.
    sees = projector.is_looked_for and bool(images.image)
    model = choose_model(models, output, spec, with_mmproj=sees)
    is_on_terminal = not prompts.is_given and sys.stdin.isatty()
    setup = read_chat(chats, is_wanted=chats.chat or (is_on_terminal and has_conversations(model)))
    is_interactive = setup is not None and is_on_terminal
    if is_interactive:
        check_conversation(results, audit)
    text = "" if is_interactive else prompts.read()
    if images.image or is_interactive:
        projector = projector.beside(model, output)
    pictures = images.read(projector)
    drafts, lora = choose_drafts(spec, models, output), adapters.files()
    print_choice(models, model, output)
    remark_on_flags(results, options, output)
    if setup is not None:
        start_renderer()
    with open_runtime(model, place, output, options, drafts, projector, changes, lora) as runtime:
        params = with_file_defaults(params, runtime)
        conversation = None if setup is None else setup.start(runtime)
        printer = make_printer(results, output, runtime, model, conversation)
        warm_up(runtime, output)
        if is_interactive and conversation is not None:
            hold_conversation(runtime, conversation, params, printer, output, pictures)
        prompt = make_prompt(runtime, conversation, text, pictures, output)
        if conversation is not None:
            params = conversation.limited(params)
        elif not (results.json or results.jsonl):
            prompts.show(text, output)
        answer_once(runtime, prompt, params, printer, output, make_recorder(audit))


def hold_conversation(
    runtime: Runtime,
    conversation: Conversation,
    params: GenerateParams,
    printer: Printer,
    output: Console,
    images: list[GivenImage],
) -> NoReturn:
    from .chat_loop import ChatLoop

    raise typer.Exit(ChatLoop(runtime, conversation, params, printer, output, images).run())


def remark_on_flags(results: ResultOptions, speculation: SpecOptions, output: Console) -> None:
    if results.show_drafts and not output.has_colours:
        output.remark("--show-drafts shows nothing here: stdout is no terminal with colours")
    if warning := warning_of(speculation):
        output.remark(warning)


def make_prompt(
    runtime: Runtime,
    conversation: Conversation | None,
    text: str,
    images: Sequence[GivenImage],
    output: Console,
) -> str | Sequence[int] | ModelPrompt:
    """Return what is answered, its images encoded; say how many they are and what they took."""
    prompt: str | Sequence[int] | ModelPrompt
    if conversation is None:
        prompt = with_images(runtime, text, images)
    else:
        conversation.add_question(text, encodable(runtime, images))
        prompt = conversation.prompt()
    if images:
        output.remark(images_line(runtime, len(images)))
    return prompt


def without_escapes(
    prompts: PromptOptions, texts: TextOptions, chats: ChatOptions
) -> tuple[TextOptions, ChatOptions]:
    r"""With \n and the like replaced by what they stand for, unless --no-escape is given."""
    if not prompts.escape:
        return texts, chats
    if texts.stop is not None:
        texts = replace(texts, stop=list(map(unescaped, texts.stop)))
    if chats.system_prompt is not None:
        chats = replace(chats, system_prompt=unescaped(chats.system_prompt))
    return texts, chats


def make_recorder(audit: AuditFlags) -> RowRecorder | None:
    if not audit.verify_lossless:
        return None
    from ..core.audit import RowRecorder

    return RowRecorder()


def answer_once(
    runtime: Runtime,
    prompt: str | Sequence[int] | ModelPrompt,
    params: GenerateParams,
    printer: Printer,
    output: Console,
    recorder: RowRecorder | None,
) -> None:
    output.progress(READING, 0.0)
    try:
        answer = print_answer(runtime, prompt, params, printer, recorder)
    finally:
        output.clear_progress()
    output.remark(f"loaded     {answer.stats.load_ms:.0f} ms")
    lines = summary_lines(answer, verbose=output.verbose) + idle_lines(runtime, answer.stats)
    for line in lines:
        output.remark(line)
    if answer.is_interrupted:
        raise typer.Exit(130)
    if answer.verdict is not None:
        fail_if_different(answer.verdict, runtime.tokenizer, output)


def check_conversation(results: ResultOptions, audit: AuditFlags) -> None:
    if results.json or results.jsonl:
        raise typer.BadParameter("--json and --jsonl need a prompt")
    if audit.verify_lossless:
        raise typer.BadParameter("--verify-lossless needs a prompt")


def check_results(results: ResultOptions, prompts: PromptOptions, chats: ChatOptions) -> None:
    if results.json and results.jsonl:
        raise typer.BadParameter("--json and --jsonl exclude each other")
    is_json = results.json or results.jsonl
    if results.logprobs is not None and not is_json:
        raise typer.BadParameter("--logprobs needs --json or --jsonl to be printed in")
    if results.show_drafts and is_json:
        raise typer.BadParameter("--show-drafts colours text; JSON names the source of each token")
    if prompts.display_prompt and is_json:
        raise typer.BadParameter("--display-prompt is for text; JSON has the continuation alone")
    if prompts.display_prompt and chats.chat:
        raise typer.BadParameter("--display-prompt is for a prompt that is continued, not --chat")


def make_printer(
    results: ResultOptions,
    output: Console,
    runtime: Runtime,
    model: Path,
    conversation: Conversation | None,
) -> Printer:
    if results.json or results.jsonl:
        return JsonPrinter(output, runtime, model, each=results.jsonl)
    reply = None
    if conversation is not None:
        from .shown_reply import shown_reply

        reply = shown_reply(conversation.template)
    return TextPrinter(output, show_drafts=results.show_drafts, reply=reply)
