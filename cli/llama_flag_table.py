"""What llama.cpp's tools have and ours have not: flag by flag, what becomes of it.

Tools by their letters: S llama-server (`spec serve`), C llama-cli (`spec generate`), P
llama-speculative-simple. Spellings, values and variables are those of llama.cpp's `--help`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

Check = Callable[[str], object]  # whether a value is one
ALL: Final = "SCP"


def _is_like(pattern: str) -> Check:
    return re.compile(pattern).fullmatch


def _nothing(*_values: str) -> list[str]:
    return []


_INTEGER: Final = _is_like(r"[+-]?[0-9]+")
_NUMBER: Final = _is_like(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SWITCH: Final = _is_like("on|off|auto|enabled|disabled|true|false|1|0")
_KINDS: Final[dict[str, tuple[Check, str]]] = {
    "N": (_INTEGER, "a whole number"),
    "X": (_NUMBER, "a number"),
    "0|1": (_is_like("[01]"), "0 or 1"),
    "on|off|auto": (_SWITCH, "on, off or auto"),
    "LAYERS": (_is_like("[+-]?[0-9]+|auto|all"), "a number of layers, auto or all"),
    "MODE": (_is_like("none|layer|row|tensor"), "none, layer, row or tensor"),
    "NUMA": (_is_like("distribute|isolate|numactl"), "distribute, isolate or numactl"),
    "LIST": (_is_like(r"[0-9.,;/]+"), "a list of numbers"),
    "RANGE": (_is_like(r"[0-9]*-[0-9]*"), "a range such as 0-3"),
    "MASK": (_is_like("(0x)?[0-9a-fA-F]+"), "a hexadecimal mask"),
}


class Row(NamedTuple):
    names: tuple[str, ...]
    metavar: str  # of its values; "": a switch
    tools: str
    note: str = ""  # why it has no effect
    instead: str = ""  # it is refused: what to use
    ours: Callable[..., list[str]] = _nothing  # the words that take its place

    @property
    def n_values(self) -> int:
        return len(self.metavar.split())

    @property
    def wants(self) -> str:
        return _KINDS[self.metavar][1]

    def accepts(self, value: str) -> bool:
        return self.metavar not in _KINDS or bool(_KINDS[self.metavar][0](value))


def _row(spelling: str, tools: str, **what: object) -> Row:
    """`spelling` has the names, then a word for each value."""
    words = spelling.split()
    names = tuple(word for word in words if word.startswith("-"))
    metavar = " ".join(word for word in words if not word.startswith("-"))
    return Row(names, metavar, tools, **what)  # type: ignore[arg-type]


def _notes(note: str, tools: str, *spellings: str) -> list[Row]:
    return [_row(spelling, tools, note=note) for spelling in spellings]


def _refused(instead: str, tools: str, *spellings: str) -> list[Row]:
    return [_row(spelling, tools, instead=instead) for spelling in spellings]


def _ours(make: Callable[..., list[str]], tools: str, *spellings: str) -> list[Row]:
    return [_row(spelling, tools, ours=make) for spelling in spellings]


def _sets(*names: str) -> Callable[..., list[str]]:
    """These flags, to the value of another."""
    return lambda value: [word for name in names for word in (name, value)]


def _of_each(size: str) -> list[str]:
    return [f"--spec-{name}-{size}" for name in ("ngram-simple", "ngram-map-k", "ngram-map-k4v")]


def _verbosity(level: str) -> list[str]:
    """0 prints errors; 3 is llama.cpp's default."""
    return ["--quiet"] if int(level) <= 0 else ["--verbose"] if int(level) > 3 else []


def _log_level(level: str) -> list[str]:
    """The same of a server, whose log has levels."""
    n = min(max(int(level), 0), 4)
    levels = {1: "error", 2: "warning", 4: "debug"}
    return [*_verbosity(level), *(["--log-level", levels[n]] if n in levels else [])]


ROWS: Final[tuple[Row, ...]] = (
    # Threads and processors.
    *_notes(
        "all work is done by the threads of --threads", ALL,
        "--threads-batch -tb N",
        "--spec-draft-threads --threads-draft -td N",
        "--spec-draft-threads-batch --threads-batch-draft -tbd N",
    ),
    *_notes("one event loop answers all connections", "S", "--threads-http N"),
    *_notes(
        "threads run on the processors of this process; taskset, numactl and nice choose them", ALL,
        "--cpu-mask -C MASK", "--cpu-range -Cr RANGE", "--cpu-strict 0|1", "--prio N", "--poll N",
        "--cpu-mask-batch -Cb MASK", "--cpu-range-batch -Crb RANGE", "--cpu-strict-batch 0|1",
        "--prio-batch N", "--poll-batch N", "--numa NUMA",
        "--spec-draft-cpu-mask --cpu-mask-draft -Cd MASK",
        "--spec-draft-cpu-range --cpu-range-draft -Crd RANGE",
        "--spec-draft-cpu-strict --cpu-strict-draft 0|1",
        "--spec-draft-prio --prio-draft N", "--spec-draft-poll --poll-draft N",
        "--spec-draft-cpu-mask-batch --cpu-mask-batch-draft -Cbd MASK",
        "--spec-draft-cpu-range-batch --cpu-range-batch-draft -Crbd RANGE",
        "--spec-draft-cpu-strict-batch --cpu-strict-batch-draft 0|1",
        "--spec-draft-prio-batch --prio-batch-draft N",
        "--spec-draft-poll-batch --poll-batch-draft N",
    ),
    # Devices.
    *_notes(
        "all layers are on one device; --device cuda is the GPU, cuda:0,1 several", ALL,
        "--n-gpu-layers --gpu-layers -ngl LAYERS", "--split-mode -sm MODE", "--main-gpu -mg N",
        "--tensor-split -ts LIST", "--cpu-moe -cmoe", "--n-cpu-moe -ncmoe N",
        "--n-cpu-ffn -ncffn N", "--op-offload", "--no-op-offload", "--no-host",
        "--kv-offload -kvo", "--no-kv-offload -nkvo",
        "--spec-draft-device --device-draft -devd DEVICE",
        "--spec-draft-ngl --n-gpu-layers-draft --gpu-layers-draft -ngld LAYERS",
        "--spec-draft-cpu-moe --cpu-moe-draft -cmoed",
        "--spec-draft-n-cpu-moe --spec-draft-ncmoe --n-cpu-moe-draft -ncmoed N",
    ),
    *_notes("the vision tower runs where the model does", "SC",
        "--mmproj-offload", "--no-mmproj-offload", "--mmproj-device -mmdev DEVICE",
    ),
    *_notes("images are read in pieces, between which others have their turn", "S",
        "--mtmd-batch-max-tokens N",
    ),
    *_notes("a file beside the model is found", "SC", "--mmproj-auto"),
    *_refused("all tensors are on the device of --device", ALL,
        "--override-tensor -ot PATTERN",
        "--spec-draft-override-tensor --override-tensor-draft -otd PATTERN",
    ),
    *_refused("start a server on each machine, behind a proxy", ALL, "--rpc SERVERS"),
    # Weights and memory.
    *_notes("files are mapped, and read as they are needed", ALL,
        "--mlock", "--mmap", "--no-mmap", "--direct-io -dio", "--no-direct-io -ndio",
        "--load-mode -lm NAME", "--lazy-mode -lzm on|off|auto",
    ),
    *_notes("weights are always repacked for the CPU", ALL, "--repack", "--no-repack -nr"),
    *_notes("a context that was not chosen is as long as memory allows", ALL,
        "--fit -fit on|off|auto", "--fit-target -fitt LIST", "--fit-ctx -fitc N",
    ),
    *_notes("keys and values are kept in pages, which sequences share", ALL,
        "--defrag-thold -dt X", "--swa-full",
    ),
    *_notes("keys and values are kept in pages, which sequences share", "S",
        "--kv-unified-per-slot N",
    ),
    *_notes("a draft model's cache has the types of --cache-type-k and --cache-type-v", ALL,
        "--spec-draft-type-k --cache-type-k-draft -ctkd TYPE",
        "--spec-draft-type-v --cache-type-v-draft -ctvd TYPE",
    ),
    *_notes("states of recurrent layers are kept with prompts, in --cache-ram", "SC",
        "--ctx-checkpoints --swa-checkpoints -ctxcp N",
    ),
    *_notes("states of recurrent layers are kept with prompts, in --cache-ram", "S",
        "--checkpoint-min-step -cms N",
    ),
    *_notes("what was read stays in --cache-ram, for all slots", "S",
        "--cache-idle-slots", "--no-cache-idle-slots", "--slot-prompt-similarity -sps X",
    ),
    *_notes("the longest prefix that was read before is reused, and nothing else", "S",
        "--cache-reuse N",
    ),
    *_notes("one sequence keeps its own cache", "C", "--cache-ram -cram N"),
    # Steps.
    *_notes("prompts are read in pieces that fit the device; the size changes no result", ALL,
        "--ubatch-size -ub N",
    ),
    *_notes("attention is one pass over the cache on every device", ALL,
        "--flash-attn -fa on|off|auto",
    ),
    *_notes("tokens are picked where the logits are", ALL,
        "--backend-sampling -bs", "--spec-draft-backend-sampling",
        "--no-spec-draft-backend-sampling",
    ),
    *_notes("the sequences of all requests share each step; --parallel 1 runs one at a time", "S",
        "--cont-batching -cb", "--no-cont-batching -nocb",
    ),
    *_notes("one sequence runs", "CP", "--parallel -np N"),
    *_notes("a full context ends the text; nothing is shifted out", "P", "--keep N"),
    *_notes("kernels are compiled and loaded before the first request", "SC",
        "--warmup", "--no-warmup",
    ),
    *_notes("drafts are not trees", ALL, "--spec-draft-p-split --draft-p-split X"),
    # Speculation, under the names of other months and of ik_llama.cpp.
    *_ours(_sets("--spec-draft-n-max"), ALL, "--draft-max --draft --draft-n N"),
    *_ours(_sets("--spec-draft-n-min"), ALL, "--draft-min --draft-n-min N"),
    *_ours(_sets("--spec-draft-p-min"), ALL, "--spec-draft-conf-min X"),
    *_ours(_sets(*_of_each("size-n")), ALL, "--spec-ngram-size-n N"),
    *_ours(_sets(*_of_each("size-m")), ALL, "--spec-ngram-size-m N"),
    *_ours(_sets(*_of_each("min-hits")), ALL, "--spec-ngram-min-hits N"),
    *_ours(lambda: ["--spec-type", "mtp"], ALL, "--multi-token-prediction -mtp"),
    # Models.
    *_refused("download the file and give it with -m FILE, or -md FILE", ALL,
        "--model-url -mu URL", "--docker-repo -dr NAME",
    ),
    *_refused("download the file and give it with -m FILE, or -md FILE", "S",
        "--embd-gemma-default", "--fim-qwen-1.5b-default", "--fim-qwen-3b-default",
        "--fim-qwen-7b-default", "--fim-qwen-7b-spec", "--fim-qwen-14b-spec",
        "--fim-qwen-30b-default",
    ),
    *_refused("download the file and give it with -m FILE, or -md FILE", "SC",
        "--gpt-oss-20b-default", "--gpt-oss-120b-default", "--vision-gemma-4b-default",
        "--vision-gemma-12b-default",
    ),
    *_refused("vectors that steer a model are not applied", ALL,
        "--control-vector FILE", "--control-vector-scaled FILE:SCALE",
        "--control-vector-layer-range FIRST LAST",
    ),
    *_refused("spec convert check FILE looks at every tensor", ALL, "--check-tensors"),
    *_refused("download the file, and give it with --mmproj", "SC", "--mmproj-url -mmu URL"),
    *_refused("video and sound are not read", "SC",
        "--video-fps X", "--video-timestamp-interval N", "--video-ffmpeg-dir DIR",
    ),
    *_refused("video and sound are not read", "C", "--audio --video FILE"),
    *_ours(lambda: ["--no-mmproj"], "SC", "--no-mmproj-auto"),
    # Text and chat.
    *_refused("requests have the field stop", "S", "--reverse-prompt -r TEXT"),
    *_refused("spec generate has it", "P",
        "--grammar GBNF", "--grammar-file FILE", "--json-schema -j SCHEMA",
        "--json-schema-file -jf FILE",
    ),
    *_refused("return_tokens in requests, or --json, gives the ids of all tokens", "SC",
        "--special -sp",
    ),
    *_refused("text before and behind a gap is put together as the file says", "S", "--spm-infill"),
    *_refused("text files are read with --file", "CP", "--binary-file -bf FILE"),
    *_ours(_nothing, "C", "--jinja"),
    *_notes("chat templates are always Jinja", "SC", "--no-jinja"),
    *_ours(lambda: ["--chat"], "C", "--single-turn -st"),
    *_ours(_nothing, "C", "--no-conversation -no-cnv"),
    *_refused("--chat holds a conversation", "C",
        "--interactive -i", "--interactive-first -if", "--in-prefix TEXT", "--in-suffix TEXT",
    ),
    *_refused("thoughts are part of the reply, or of reasoning_content", "SC",
        "--skip-chat-parsing",
    ),
    *_ours(_nothing, "SC", "--no-skip-chat-parsing"),
    *_notes("what a conversation keeps of its thoughts is decided by the template", "SC",
        "--reasoning-preserve", "--no-reasoning-preserve",
    ),
    # Server.
    *_notes("all methods and headers that an API client sends are allowed", "S",
        "--cors-methods METHODS", "--cors-headers HEADERS", "--cors-credentials",
        "--no-cors-credentials",
    ),
    *_refused("the server's page is its own; --no-ui leaves it out", "S", "--path DIR"),
    *_notes("the page has no settings", "S",
        "--ui-config --webui-config JSON", "--ui-config-file --webui-config-file FILE",
    ),
    *_ours(lambda: ["--no-kv-unified"], "S", "-no-kvu"),
    *_refused("clients run tools; the server returns their calls", "S",
        "--tools A,B", "--tools-runtime NAME", "--mcp-servers-config FILE",
        "--mcp-servers-json JSON", "--agent -ag", "--ui-mcp-proxy --webui-mcp-proxy",
    ),
    *_ours(_nothing, "S", "--no-agent -no-ag", "--no-ui-mcp-proxy --no-webui-mcp-proxy"),
    # Printing.
    *_ours(lambda: ["--help"], ALL, "--usage"),
    *_ours(lambda: ["--quiet"], ALL, "--log-disable"),
    *_ours(lambda: ["--verbose"], ALL, "--log-verbose"),
    *_ours(_verbosity, "CP", "--verbosity --log-verbosity -lv N"),
    *_ours(_log_level, "S", "--verbosity --log-verbosity -lv N"),
    *_ours(_nothing, ALL, "--no-log-jsonl"),
    *_notes("lines on stderr have one form; NO_COLOR=1 leaves colours out", ALL,
        "--log-colors on|off|auto", "--log-prefix", "--no-log-prefix", "--log-timestamps",
        "--no-log-timestamps",
    ),
    *_ours(lambda: ["--log-format", "json"], "S", "--log-jsonl"),
    *_refused("lines on stderr are text", "CP", "--log-jsonl"),
    *_refused("--log-texts writes them into the log", "S", "--log-prompts-dir DIR"),
    *_refused("prompts are never written to a log", "C", "--log-prompts-dir DIR"),
    *_notes("colours are for terminals; NO_COLOR=1 leaves them out", "C",
        "--color -co on|off|auto",
    ),
    *_ours(lambda wanted: ["--color"] if wanted == "on" else [], "P", "-co on|off|auto"),
    *_notes("--quiet prints the text alone", "C", "--show-timings", "--no-show-timings"),
    *_notes("--quiet prints the text alone", ALL, "--perf", "--no-perf"),
    *_notes("--json counts the tokens of the prompt", "C",
        "--verbose-prompt",
    ),
    *_notes("the terminal is used plainly", "C", "--simple-io", "--multiline-input -mli"),
    *_refused("redirect stdout: > FILE", "C", "--output --output-file -o FILE"),
    *_refused("any OpenAI client talks to a server", "C", "--server-base URL"),
    *_refused("spec --show-completion prints that of the shell", ALL, "--completion-bash"),
    *_refused("files are named with -m", ALL, "--cache-list -cl"),
    *_refused("--device takes cpu, cuda, cuda:1 and so on", ALL, "--list-devices"),
)  # fmt: skip

# Variables of llama.cpp, and the flag that each sets where a command has it.
ENVIRONMENT: Final[dict[str, str]] = {
    f"LLAMA_ARG_{name}": flag
    for name, flag in {
        "MODEL": "--model",
        "HF_REPO": "--hf-repo",
        "HF_FILE": "--hf-file",
        "OFFLINE": "--offline",
        "SPEC_DRAFT_HF_REPO": "--spec-draft-hf",
        "CTX_SIZE": "--ctx-size",
        "N_PREDICT": "--predict",
        "THREADS": "--threads",
        "DEVICE": "--device",
        "CACHE_TYPE_K": "--cache-type-k",
        "CACHE_TYPE_V": "--cache-type-v",
        "TEMPERATURE": "--temp",
        "TOP_K": "--top-k",
        "TOP_P": "--top-p",
        "MIN_P": "--min-p",
        "REPEAT_PENALTY": "--repeat-penalty",
        "PRESENCE_PENALTY": "--presence-penalty",
        "FREQUENCY_PENALTY": "--frequency-penalty",
        "SPEC_TYPE": "--spec-type",
        "SPEC_DRAFT_MODEL": "--spec-draft-model",
        "DRAFT_MAX": "--spec-draft-n-max",
        "DRAFT_MIN": "--spec-draft-n-min",
        "SPEC_DRAFT_N_MAX": "--spec-draft-n-max",
        "SPEC_DRAFT_N_MIN": "--spec-draft-n-min",
        "SPEC_DRAFT_P_MIN": "--spec-draft-p-min",
        "MODELS_DIR": "--models-dir",
        "MODELS_PRESET": "--models-preset",
        "MODELS_MAX": "--models-max",
        "MODELS_AUTOLOAD": "--models-autoload",
        "HOST": "--host",
        "LOG_FILE": "--log-file",
        "ROPE_SCALING_TYPE": "--rope-scaling",
        "ROPE_SCALE": "--rope-scale",
        "ROPE_FREQ_BASE": "--rope-freq-base",
        "ROPE_FREQ_SCALE": "--rope-freq-scale",
        "YARN_ORIG_CTX": "--yarn-orig-ctx",
        "YARN_EXT_FACTOR": "--yarn-ext-factor",
        "YARN_ATTN_FACTOR": "--yarn-attn-factor",
        "YARN_BETA_SLOW": "--yarn-beta-slow",
        "YARN_BETA_FAST": "--yarn-beta-fast",
        "API_PREFIX": "--api-prefix",
        "REUSE_PORT": "--reuse-port",
        "PORT": "--port",
        "N_PARALLEL": "--parallel",
        "BATCH": "--batch-size",
        "ALIAS": "--alias",
        "API_KEY_FILE": "--api-key-file",
        "SSL_KEY_FILE": "--ssl-key-file",
        "SSL_CERT_FILE": "--ssl-cert-file",
        "CORS_ORIGINS": "--cors-origins",
        "TIMEOUT": "--timeout",
        "TAGS": "--tags",
        "POOLING": "--pooling",
        "RERANKING": "--reranking",
        "KV_UNIFIED": "--kv-unified",
        "MMPROJ": "--mmproj",
        "IMAGE_MIN_TOKENS": "--image-min-tokens",
        "IMAGE_MAX_TOKENS": "--image-max-tokens",
        "CACHE_RAM": "--cache-ram",
        "CACHE_PROMPT": "--cache-prompt",
        "ENDPOINT_METRICS": "--metrics",
        "ENDPOINT_SLOTS": "--slots",
        "UI": "--ui",
        "CHAT_TEMPLATE": "--chat-template",
        "CHAT_TEMPLATE_FILE": "--chat-template-file",
        "CHAT_TEMPLATE_KWARGS": "--chat-template-kwargs",
        "THINK": "--reasoning-format",
        "PREFILL_ASSISTANT": "--prefill-assistant",
        "REASONING": "--reasoning",
        "REASONING_EFFORT": "--reasoning-effort",
        "THINK_BUDGET": "--reasoning-budget",
        "THINK_BUDGET_MESSAGE": "--reasoning-budget-message",
    }.items()
} | {"LLAMA_API_KEY": "--api-key"}
