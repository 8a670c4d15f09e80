"""What bodies of requests are made of: types with limits, and the objects inside of them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ..sampling.params import MAX_SEED
from ..speculation.options import MAX_DRAFT

MAX_INT: Final = (1 << 31) - 1
MAX_LOGPROBS: Final = 100  # alternatives of a token
MAX_TOP_LOGPROBS: Final = 20  # the same in chats
MAX_TEXTS: Final = 128  # of one request

Flag = bool | None
Text = str | None
Texts = str | list[str] | None
Object = dict[str, Any] | None
ReasoningEffort = Annotated[
    Text, Meta(description="none: no thoughts; others, low to high, are given to the template")
]
ParallelCalls = Annotated[Flag, Meta(description="false: the reply ends behind its first call")]
JsonSchema = dict[str, Any] | bool | str | None
Number = float | None
Share = Annotated[float, Meta(ge=0, le=1)] | None
Count = Annotated[int, Meta(ge=0, le=MAX_INT)] | None
Limit = Annotated[int, Meta(ge=-1, le=MAX_INT)] | None
NonEmpty = Annotated[str, Meta(min_length=1)]
Stop = Annotated[str, Meta(max_length=4096)]
Stops = Stop | Annotated[list[Stop], Meta(max_length=256)] | None
Budget = Annotated[Limit, Meta(description="tokens of all thoughts of a chat's reply; -1: any")]
MaxTokens = Annotated[Limit, Meta(description="tokens to generate at most; -1: no limit")]
Seed = Annotated[int, Meta(ge=-1, extra_json_schema={"maximum": MAX_SEED})] | None
NTexts = Annotated[int, Meta(ge=1, le=MAX_TEXTS)] | None
Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None
DraftLength = Annotated[int, Meta(ge=0, le=MAX_DRAFT)] | None
GivenBiases = Annotated[
    dict[str, float | bool] | list[tuple[str | int, float | bool]],
    Meta(description='added to logits: `{"15043": -1}` or `[[15043, -1], ["text", false]]`'),
]

Regex = Annotated[str, Meta(min_length=1, description="that the whole text matches")] | None
Choices = Annotated[list[NonEmpty], Meta(min_length=1, max_length=1024)] | None
TokenIds = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=256)]
Refused = Annotated[Any, Meta(description="not supported: must be absent")]


def as_list(texts: Texts) -> list[str]:
    return [texts] if isinstance(texts, str) else texts or []


class ContentPart(msgspec.Struct):
    type: Annotated[
        NonEmpty,
        Meta(
            extra_json_schema={
                "enum": [
                    "text", "input_text", "output_text", "image_url", "input_image", "image",
                ]
            }
        ),
    ]  # fmt: skip
    text: Text = None
    image_url: Annotated[
        str | dict[str, Any] | None, Meta(description="a data URI, or an object with it as `url`")
    ] = None
    source: Annotated[Object, Meta(description="an image in Anthropic's form")] = None
    file_id: Text = None


Content = str | list[str | ContentPart] | None


class DraftOptions(msgspec.Struct):
    types: Annotated[Texts, Meta(description="drafters, of those loaded by the server")] = None
    type: Annotated[Texts, Meta(description="the same as `types`")] = None
    n_max: Annotated[DraftLength, Meta(description="longest draft")] = None
    n_min: Annotated[DraftLength, Meta(description="shorter drafts are dropped")] = None
    p_min: Annotated[Share, Meta(description="a draft ends before a less likely token")] = None
    accept: Annotated[Text, Meta(description="match, ratio or relaxed; for the whole text")] = None
    fixed: Annotated[Flag, Meta(description="drafts at every step, as long as may be")] = None
    off: Flag = None


class Speculative(DraftOptions):
    """Speculation for this request. Never changes the text, but for `accept` rules that say so."""

    thinking: DraftOptions | None = None
    answer: DraftOptions | None = None


class LmStudioDrafts(msgspec.Struct, rename="camel"):
    """LM Studio's settings of today, and those of its earlier requests."""

    draft_model: Text = None
    draft_mtp: Flag = None
    draft_simple: Flag = None
    draft_mtp_sidecar: Text = None
    draft_dflash_sidecar: Text = None
    draft_dspark_sidecar: Text = None
    draft_max_tokens: DraftLength = None
    draft_min_tokens: DraftLength = None
    draft_min_continue_probability: Share = None
    max_tokens_to_draft: DraftLength = None
    min_draft_length_to_consider: DraftLength = None
    min_continue_drafting_probability: Share = None
    num_draft_tokens_exact: DraftLength = None


class Prediction(msgspec.Struct):
    """OpenAI's predicted output: drafts are taken from it."""

    type: Literal["content"] | None = None
    content: Content = None


class NamedSchema(msgspec.Struct):
    schema: JsonSchema = None


class ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"] | None = None
    json_schema: NamedSchema | None = None
    schema: JsonSchema = None


class StructuredOutputs(msgspec.Struct):
    """vLLM's: one rule that the text follows."""

    json: JsonSchema = None
    regex: Regex = None
    choice: Choices = None
    grammar: Text = None
    json_object: Flag = None
    whitespace_pattern: Refused = None
    structural_tag: Refused = None


class StreamOptions(msgspec.Struct):
    include_usage: Flag = None


class InfillFile(msgspec.Struct):
    text: str
    filename: Text = None


class ToolCall(msgspec.Struct):
    function: dict[str, Any]


class ChatMessage(msgspec.Struct):
    role: NonEmpty
    content: Content = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Annotated[Any, Meta(extra_json_schema={"type": ["string", "null"]})] = None


class ToolFunction(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    parameters: Object = None


class Tool(msgspec.Struct):
    function: ToolFunction
    type: Literal["function"] | None = None


class FunctionName(msgspec.Struct):
    name: Text = None


class ToolChoice(FunctionName):
    function: FunctionName | None = None


class InputItem(msgspec.Struct):
    """An item of the Responses API. The fields that apply depend on `type`."""

    type: Text = None
    role: Text = None
    content: Any = None
    call_id: Text = None
    name: Text = None
    arguments: Text = None
    output: Any = None


class ResponseText(msgspec.Struct):
    format: Object = None


class ContentBlock(msgspec.Struct):
    """A content block of the Messages API. The fields that apply depend on `type`."""

    type: NonEmpty
    text: Text = None
    thinking: Text = None
    id: Text = None
    name: Text = None
    input: Object = None
    tool_use_id: Text = None
    content: Any = None
    source: Object = None


class BlockMessage(msgspec.Struct):
    role: Literal["user", "assistant", "system"] | None = None
    content: str | list[ContentBlock] | None = None


class BlockToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "none", "tool"] | None = None
    name: Text = None
    disable_parallel_tool_use: Flag = None


class Thinking(msgspec.Struct):
    type: Text = None
    budget_tokens: Budget = None


class Effort(msgspec.Struct):
    effort: Text = None
