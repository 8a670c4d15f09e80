"""What no table of the code says of an architecture: names of models, and how they are spoken to.

Chat formats are read from the template that a file has; these are those that the models came with.
"""

from __future__ import annotations

from dataclasses import dataclass

from nextn.core.server.reply import styles
from nextn.core.server.reply.styles import CallStyle
from nextn.core.tokenizer import thinking
from nextn.core.tokenizer.harmony import ANALYSIS, END
from nextn.core.tokenizer.thinking import THINK

Marks = tuple[str, str]


@dataclass(frozen=True)
class ModelNote:
    models: str
    templates: str = ""  # names of `--chat-template`
    calls: tuple[CallStyle, ...] = ()
    thoughts: Marks | None = None


HERMES = (styles.HERMES,)


def _qwen(models: str, *, thinks: bool = True) -> ModelNote:
    return ModelNote(models, "chatml", HERMES, THINK if thinks else None)


NOTES: dict[str, ModelNote] = {
    "bailingmoe2": ModelNote("Ling 2.0, Ring 2.0", "bailing2", HERMES, THINK),
    "cohere2": ModelNote(
        "Command R7B, Command A, Aya", "command-r", (styles.COHERE,), thinking.COHERE
    ),
    "deepseek2": ModelNote(
        "DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash", "deepseek2 deepseek3 kimi-k2",
        (styles.DEEPSEEK, styles.KIMI, styles.GLM), THINK,
    ),
    "ernie4_5": ModelNote("ERNIE 4.5"),
    "ernie4_5-moe": ModelNote("ERNIE 4.5 with experts"),
    "exaone-moe": ModelNote("K-EXAONE", "exaone-moe", HERMES, THINK),
    "exaone4": ModelNote("EXAONE 4", "exaone4", HERMES, THINK),
    "falcon-h1": ModelNote("Falcon-H1", "chatml", HERMES),
    "gemma2": ModelNote("Gemma 2", "gemma"),
    "gemma3": ModelNote("Gemma 3", "gemma"),
    "gemma4": ModelNote("Gemma 4", "", (styles.GEMMA,), thinking.GEMMA),
    "glm4": ModelNote("GLM-4-0414, GLM-Z1", "chatglm4", (), THINK),
    "glm4moe": ModelNote("GLM-4.5, 4.6 and 4.7", "chatglm4", (styles.GLM,), THINK),
    "gpt-oss": ModelNote("gpt-oss", "gpt-oss", (styles.HARMONY,), (ANALYSIS, END)),
    "granite": ModelNote(
        "Granite 3 and 4", "granite granite-4.0 granite-4.1", (styles.GRANITE, *HERMES), THINK
    ),
    "granitehybrid": ModelNote(
        "Granite 4 H, Bamba", "granite-4.0 granite-4.1", (styles.GRANITE, *HERMES), THINK
    ),
    "granitemoe": ModelNote(
        "Granite 3 and 4 with experts", "granite granite-4.0 granite-4.1",
        (styles.GRANITE, *HERMES), THINK,
    ),
    "hunyuan-dense": ModelNote("Hunyuan 0.5B to 7B", "hunyuan-dense", (), THINK),
    "hunyuan-moe": ModelNote("Hunyuan-A13B", "hunyuan-moe", (), THINK),
    "kimi-linear": ModelNote("Kimi Linear", "kimi-k2", (styles.KIMI,), THINK),
    "lfm2": ModelNote("LFM2, LFM2.5", "chatml", (styles.LFM,), THINK),
    "lfm2moe": ModelNote("LFM2 with experts", "chatml", (styles.LFM,)),
    "llama": ModelNote(
        "Llama 1 to 3, Mistral, Mixtral, and others of their shape",
        "llama2 llama2-sys llama2-sys-bos llama2-sys-strip llama3 mistral-v1 mistral-v3 "
        "mistral-v3-tekken mistral-v7 mistral-v7-tekken",
        (styles.BARE, styles.LISTED, styles.NAMED, *HERMES),
    ),
    "llama4": ModelNote("Llama 4", "llama4", (styles.BARE,)),
    "mamba2": ModelNote("Mamba-2, Codestral Mamba"),
    "mimo2": ModelNote("MiMo-V2", "chatml", HERMES, THINK),
    "mistral3": ModelNote(
        "Mistral Small 3, Ministral 3", "mistral-v7 mistral-v7-tekken", (styles.NAMED,),
        thinking.MISTRAL,
    ),
    "nemotron_h": ModelNote("Nemotron-H, Nemotron Nano 2", "", (), THINK),
    "nemotron_h_moe": ModelNote("Nemotron 3 Nano", "chatml", HERMES, THINK),
    "olmo2": ModelNote("OLMo 2 and 3", "zephyr chatml", (), THINK),
    "phi3": ModelNote("Phi-3, Phi-3.5, Phi-4", "phi3 phi4"),
    "qwen2": _qwen("Qwen2, Qwen2.5, QwQ"),
    "qwen2moe": _qwen("Qwen1.5 MoE, Qwen2 MoE", thinks=False),
    "qwen2vl": _qwen("Qwen2-VL, Qwen2.5-VL", thinks=False),
    "qwen3": _qwen("Qwen3"),
    "qwen3moe": _qwen("Qwen3 MoE, Qwen3-Coder"),
    "qwen3next": _qwen("Qwen3-Next"),
    "qwen3vl": _qwen("Qwen3-VL"),
    "qwen3vlmoe": _qwen("Qwen3-VL MoE"),
    "qwen35": _qwen("Qwen3.5, Qwen3.6"),
    "qwen35moe": _qwen("Qwen3.5 and Qwen3.6 MoE"),
    "seed_oss": ModelNote("Seed-OSS", "seed_oss", (styles.SEED,), thinking.SEED),
    "smollm3": ModelNote("SmolLM3", "chatml", HERMES, THINK),
    "step35": ModelNote("Step-3.5, Step-3.7", "chatml", HERMES, THINK),
}  # fmt: skip
