"""The JSON body of each kind of request: one field a line, with its type, limits and description.

`request_decoding` reads them, and `/openapi.json` is made from them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, cast

import msgspec
from msgspec import Meta

from .adapter_fields import LoraScales
from .body_parts import (
    MAX_INT,
    MAX_TOP_LOGPROBS,
    BlockMessage,
    BlockToolChoice,
    Budget,
    ChatMessage,
    Choices,
    Content,
    Count,
    Effort,
    Flag,
    GivenBiases,
    InfillFile,
    InputItem,
    JsonSchema,
    Limit,
    LmStudioDrafts,
    Logprobs,
    MaxTokens,
    NTexts,
    Number,
    Object,
    ParallelCalls,
    Prediction,
    ReasoningEffort,
    Regex,
    ResponseFormat,
    ResponseText,
    Seed,
    Share,
    Speculative,
    Stops,
    StreamOptions,
    StructuredOutputs,
    Text,
    Texts,
    Thinking,
    TokenIds,
    Tool,
    ToolChoice,
)
from .settings import ReasoningFormat


class Body(msgspec.Struct, dict=True):
    """A field that is absent or null is None; unknown fields are ignored."""

    @property
    def given(self) -> dict[str, Any]:
        """The JSON object that was sent, with unknown fields."""
        return cast("dict[str, Any]", self.__dict__["given"])

    @property
    def size(self) -> int:
        """Bytes of the JSON text."""
        return cast("int", self.__dict__["size"])


class SharedBody(Body):
    """Fields of all requests that generate text."""

    model: Annotated[Text, Meta(description="any name is accepted")] = None
    stream: Flag = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_k: Limit = None
    top_p: Share = None
    min_p: Share = None
    seed: Annotated[Seed, Meta(description="-1: random")] = None
    grammar: Annotated[Text, Meta(description="GBNF")] = None
    speculative: Annotated[
        bool | Speculative | None, Meta(description="false: off; true: as the server is set up")
    ] = None
    draft_model: Annotated[Text, Meta(description="LM Studio's: a drafter that is loaded")] = None
    speculative_decoding: LmStudioDrafts | None = msgspec.field(
        default=None, name="speculativeDecoding"
    )
    prediction: Prediction | None = None
    lora: LoraScales = None
    cache_prompt: Flag = None
    id_slot: Annotated[int, Meta(ge=-1, description="preferred slot; -1: any")] | None = None
    user: Annotated[Text, Meta(description="the same as `cache_salt`")] = None
    cache_salt: Annotated[Text, Meta(description="drafts come from texts of equal value")] = None
    store: Annotated[
        Flag, Meta(description="whether its tokens may be kept, where the server records")
    ] = None


class GenerationBody(SharedBody):
    """Adds the fields of llama.cpp and OpenAI that sample, stop and report."""

    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_n_sigma: Number = None
    min_keep: Count = None
    dynatemp_range: Number = None
    dynatemp_exponent: Number = None
    xtc_probability: Share = None
    xtc_threshold: Share = None
    repeat_last_n: Limit = None
    repeat_penalty: Annotated[float, Meta(gt=0)] | None = None
    repetition_penalty: (
        Annotated[float, Meta(gt=0, description="`repeat_penalty` over all of the text")] | None
    ) = None
    presence_penalty: Number = None
    frequency_penalty: Number = None
    dry_multiplier: Number = None
    dry_base: Number = None
    dry_allowed_length: Count = None
    dry_penalty_last_n: Limit = None
    dry_sequence_breakers: Texts = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: Number = None
    mirostat_eta: Number = None
    adaptive_target: Number = None
    adaptive_decay: Number = None
    samplers: Annotated[Texts, Meta(description="in their order, or their letters")] = None
    logit_bias: GivenBiases | None = None
    max_tokens: MaxTokens = None
    max_completion_tokens: MaxTokens = None
    n_predict: MaxTokens = None
    stop: Annotated[Stops, Meta(description="the text ends before any of these")] = None
    stop_token_ids: Annotated[TokenIds, Meta(description="each of them ends the text")] | None = (
        None
    )
    min_tokens: Annotated[Count, Meta(description="nothing ends the text before")] = None
    ignore_eos: Flag = None
    json_schema: JsonSchema = None
    guided_json: Annotated[JsonSchema, Meta(description="the same as `json_schema`")] = None
    guided_grammar: Annotated[Text, Meta(description="the same as `grammar`")] = None
    guided_regex: Regex = None
    guided_choice: Annotated[Choices, Meta(description="one of them is the text")] = None
    structured_outputs: StructuredOutputs | None = None
    response_format: ResponseFormat | None = None
    n: Annotated[
        NTexts, Meta(description="texts of each prompt; more than there are slots wait")
    ] = None
    n_cmpl: Annotated[NTexts, Meta(description="the same as `n`")] = None
    n_keep: Annotated[
        Limit, Meta(description="with --context-shift: tokens that stay; -1: of the prompt")
    ] = None
    n_discard: Annotated[Count, Meta(description="and those that go; 0: half of the rest")] = None
    t_max_predict_ms: Limit = None
    reasoning_budget_tokens: Budget = None
    thinking_budget_tokens: Annotated[
        Budget, Meta(description="the same as `reasoning_budget_tokens`")
    ] = None
    thinking_token_budget: Annotated[Budget, Meta(description="vLLM's name of it")] = None
    reasoning_budget_message: Annotated[
        Text, Meta(description="ends thoughts that the budget cuts, before their mark")
    ] = None
    stream_options: StreamOptions | None = None
    return_progress: Flag = None
    return_tokens: Flag = None
    return_sources: Annotated[Flag, Meta(description="the drafter of each token")] = None
    timings_per_token: Flag = None
    verbose: Annotated[Flag, Meta(description="prompt, settings and more, in `__verbose`")] = None
    response_fields: Annotated[Texts, Meta(description="only these are returned")] = None


BUDGETS: Final = ("reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget")
_OF_RESPONSES: Final = (
    "n", "n_cmpl", "stream_options", "return_progress", "return_tokens", "return_sources",
    "timings_per_token", "verbose", "response_fields",
)  # fmt: skip
# What all APIs understand about the text, though it is llama.cpp's or vLLM's word.
TEXT_FIELDS: Final = tuple(
    name for name in GenerationBody.__struct_fields__ if name not in _OF_RESPONSES
)


Prompts = Annotated[list[str | int | list[str | int] | dict[str, Any]], Meta(min_length=1)]
Prompt = Annotated[
    str | Prompts | dict[str, Any], Meta(description="a text, token ids, or lists of either")
]


class CompletionBody(GenerationBody, kw_only=True):
    prompt: Prompt
    logprobs: Logprobs = None
    best_of: Annotated[int, Meta(ge=0, le=MAX_INT, description="at most `n`")] | None = None


class NativeBody(GenerationBody, kw_only=True):
    prompt: Prompt
    n_probs: Logprobs = None
    logprobs: Annotated[Logprobs, Meta(description="the same as `n_probs`")] = None
    post_sampling_probs: Annotated[Flag, Meta(description="of `n_probs`, after sampling")] = None


class InfillBody(GenerationBody):
    input_prefix: Text = None
    input_suffix: Text = None
    prompt: Annotated[Text, Meta(description="what the middle begins with")] = None
    input_extra: Annotated[list[InfillFile], Meta(max_length=1024)] | None = None


class ChatBody(GenerationBody, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=10_000)]
    logprobs: Flag = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: ParallelCalls = None
    chat_template_kwargs: Annotated[Object, Meta(description="variables of the template")] = None
    add_generation_prompt: Flag = None
    continue_final_message: Annotated[Flag, Meta(description="continues the last message")] = None
    reasoning_format: ReasoningFormat | None = None
    reasoning_effort: ReasoningEffort = None


class OllamaBody(Body):
    """Fields of Ollama's requests."""

    model: Text = None
    stream: Annotated[Flag, Meta(description="true unless given")] = None
    format: Annotated[str | dict[str, Any] | None, Meta(description="json, or a schema")] = None
    options: Annotated[Object, Meta(description="num_predict, temperature and others")] = None
    think: bool | str | None = None
    keep_alive: Annotated[str | float | None, Meta(description="has no effect")] = None


class OllamaChatBody(OllamaBody):
    messages: Annotated[list[dict[str, Any]], Meta(max_length=10_000)] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] | None = None


class OllamaPromptBody(OllamaBody):
    prompt: Text = None
    system: Text = None
    suffix: Text = None
    template: Text = None
    images: list[str] | None = None
    raw: Annotated[Flag, Meta(description="the prompt as it is, without a template")] = None


class OllamaEmbedBody(OllamaBody):
    input: str | list[str] | None = None
    prompt: Text = None
    truncate: Annotated[Flag, Meta(description="has no effect: too long a text is refused")] = None


class EmbeddingBody(Body):
    model: Text = None
    input: Annotated[Prompt | None, Meta(description="a text, token ids, or lists of either")] = (
        None
    )
    content: Annotated[Prompt | None, Meta(description="the same, in llama.cpp's form")] = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count = None
    embd_normalize: (
        Annotated[int, Meta(ge=-1, le=1 << 30, description="-1: none; 0: 16 bits; 1, 2, p: norm")]
        | None
    ) = None
    user: Text = None


class RerankBody(Body):
    model: Text = None
    query: Text = None
    documents: Annotated[list[str], Meta(max_length=1000)] | None = None
    texts: Annotated[list[str], Meta(max_length=1000, description="TEI's word")] | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_text: Flag = None


class ResponsesBody(SharedBody):
    input: str | list[InputItem] | None = None
    instructions: Text = None
    previous_response_id: Annotated[
        Text, Meta(description="a response that is kept, which this one goes on from")
    ] = None
    max_output_tokens: MaxTokens = None
    stop: Stops = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: ParallelCalls = None
    chat_template_kwargs: Object = None
    text: ResponseText | None = None
    reasoning: Effort | None = None


class CountTokensBody(SharedBody, kw_only=True):
    messages: Annotated[list[BlockMessage], Meta(min_length=1)]
    system: Content = None
    max_tokens: MaxTokens = None
    stop_sequences: Stops = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: BlockToolChoice | None = None
    chat_template_kwargs: Object = None
    thinking: Thinking | None = None
    output_config: Effort | None = None


class MessagesBody(CountTokensBody, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=-1, le=MAX_INT)]


class PropsBody(Body):
    model: Text = None
    default_generation_settings: Annotated[
        Object, Meta(description="`params` in it: sampling values of requests that do not say")
    ] = None


class TokenizeBody(Body):
    content: Text = None
    prompt: Annotated[Text, Meta(description="vLLM's name; adds special tokens")] = None
    add_special: Flag = None
    add_special_tokens: Annotated[Flag, Meta(description="the same as `add_special`")] = None
    parse_special: Flag = None
    with_pieces: Flag = None


class DetokenizeBody(Body):
    tokens: list[int] | None = None


class SlotFileBody(Body):
    filename: Text = None
