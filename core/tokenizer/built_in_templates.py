"""Chat templates that need no file, under llama.cpp's names. The first is taken where there is no
other. Messages of roles that a format does not know are left out, as llama.cpp does.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from .template_turns import (
    ALL,
    TEXT,
    TRIMMED,
    Turn,
    bracketed,
    choice,
    for_each,
    going_on,
    named_turns,
    turns,
    with_system_inside,
    written,
)

CHATML: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _special(name: str) -> str:
    """A token as DeepSeek and Hunyuan spell theirs."""
    return f"<\uff5c{name.replace(' ', chr(0x2581))}\uff5c>"


def _mistral(lead: str, gap: str, *, trims: bool = False) -> str:
    """Up to version 3: the system's text is in the user's turn."""
    roles = {"system": ("", "\n\n"), "user": ("", f"{lead}[/INST]"), "": (gap, "</s>")}
    return bracketed(f"{lead}[INST]{gap}", roles, trims=("",) if trims else ())


def _mistral_7(gap: str) -> str:
    return turns(
        {
            "system": (f"[SYSTEM_PROMPT]{gap}", "[/SYSTEM_PROMPT]"),
            "user": (f"[INST]{gap}", "[/INST]"),
            "": (gap, "</s>"),
        }
    )


_SYSTEM_2: Final[Turn] = ("<<SYS>>\n", "\n<</SYS>>\n\n")


def _llama_2(system: Turn = _SYSTEM_2, later: str = "[INST] ", *, trims: bool = False) -> str:
    roles = {"system": system, "user": ("", " [/INST]"), "": ("", "</s>")}
    return bracketed("[INST] ", roles, later=later, trims=ALL if trims else ())


def _vicuna(system: Turn) -> str:
    roles = {"system": system, "user": ("USER: ", "\n"), "assistant": ("ASSISTANT: ", "</s>\n")}
    return turns(roles, "ASSISTANT:")


def _exaone(*more: str) -> str:
    end = "[|endofturn|]\n"
    roles = {role: (f"[|{role}|]", end) for role in ("system", "assistant", *more)}
    return turns(roles | {"user": ("[|user|]", "\n")}, "[|assistant|]", trims=ALL)


def _granite(role_of_calls: str) -> str:
    """`assistant_tool_call` is a role of clients that send a call as text."""
    begin, end = "<|start_of_role|>", "<|end_of_role|>"
    role = f"{{{{ {role_of_calls} if is_call else m.role }}}}"
    mark = f"{{% if is_call %}}{written('<|tool_call|>')}{{% endif %}}"
    is_call = "{% set is_call = m.role == 'assistant_tool_call' %}"
    turn = (
        f"{is_call}{written(begin)}{role}{written(end)}{mark}{TEXT}{{{{ '<|end_of_text|>\\n' }}}}"
    )
    return for_each(turn) + going_on(f"{begin}assistant{end}")


_GEMMA: Final = with_system_inside(
    "{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\\n' }}"
    "{% if ns.system and role != 'model' %}{{ ns.system + '\\n\\n' }}{% set ns.system = '' %}"
    f"{{% endif %}}{TRIMMED}{{{{ '<end_of_turn>\\n' }}}}",
    trims=True,
) + going_on("<start_of_turn>model\n")
_ORION: Final = with_system_inside(
    "{% if m.role == 'user' %}Human: "
    "{% if ns.system %}{{ ns.system + '\\n\\n' }}{% set ns.system = '' %}{% endif %}"
    f"{TEXT}{{{{ '\\n\\nAssistant: </s>' }}}}{{% else %}}{TEXT}</s>{{% endif %}}"
)
_OPENCHAT: Final = for_each(
    "{% if m.role != 'system' %}{{ 'GPT4 Correct ' + m.role | capitalize + ': ' }}{% endif %}"
    f"{TEXT}<|end_of_turn|>"
) + going_on("GPT4 Correct Assistant:")
_MONARCH: Final = for_each(
    f"{{% if not loop.first %}}<s>{{% endif %}}{{{{ m.role + '\\n' }}}}{TEXT}{{{{ '</s>\\n' }}}}"
) + going_on("<s>assistant\n")
_RWKV: Final = for_each(
    choice({role: (f"{role.capitalize()}: ", "\n\n") for role in ALL[:3]}, ALL)
    + "{% if loop.last and m.role == 'user' %}Assistant:{% endif %}"
)
_GIGACHAT: Final = (
    "<s>"
    + for_each(
        "{% if m.role != 'system' or loop.first %}"
        + choice(
            {
                "system": ("", "<|message_sep|>"),
                "user": (
                    "user<|role_sep|>",
                    "<|message_sep|>available functions<|role_sep|>[]<|message_sep|>",
                ),
                "assistant": ("assistant<|role_sep|>", "<|message_sep|>"),
            }
        )
        + "{% endif %}"
    )
    + going_on("assistant<|role_sep|>")
)
_BAILING_ROLE: Final = "'HUMAN' if m.role == 'user' else m.role | upper"
_BAILING: Final = named_turns("<role>", "</role>", prompt="", role=_BAILING_ROLE)
_HAS_SYSTEM: Final = "messages and messages[0].role == 'system'"
_BAILING_2: Final = (
    f"{{% if not ({_HAS_SYSTEM}) %}}"
    "<role>SYSTEM</role>detailed thinking off<|role_end|>{% endif %}"
    + named_turns(
        "<role>", "</role>", "<|role_end|>", prompt="<role>ASSISTANT</role>", role=_BAILING_ROLE
    )
)


def _hunyuan(roles: dict[str, Turn]) -> str:
    """The system's text counts in the first message alone."""
    first = f"{TEXT}{_special('hy_place holder no 3')}"
    return for_each(
        f"{{% if m.role == 'system' %}}{{% if loop.first %}}{first}{{% endif %}}"
        f"{{% else %}}{choice(roles)}{{% endif %}}"
    )


_HY_USER, _HY_ASSISTANT = _special("hy_User"), _special("hy_Assistant")
_HUNYUAN_DENSE: Final = _hunyuan(
    {
        "user": (_HY_USER, _HY_ASSISTANT),
        "assistant": (_HY_ASSISTANT, _special("hy_place holder no 2")),
    }
)
_HUNYUAN_VL: Final = _special("hy_begin of sentence") + _hunyuan(
    {"user": ("", _HY_USER), "assistant": ("", _HY_ASSISTANT)}
)
_PANGU: Final = (
    f"{{% if messages and not ({_HAS_SYSTEM}) %}}[unused9]系统：[unused10]{{% endif %}}"  # noqa: RUF001
    + turns(
        {
            role: (f"[unused9]{name}：", "[unused10]")  # noqa: RUF001
            for role, name in (
                ("system", "系统"), ("user", "用户"), ("assistant", "助手"), ("tool", "工具"),
                ("function", "方法"),
            )
        },
        "[unused9]助手：",  # noqa: RUF001
    )
)  # fmt: skip
# Without instructions about channels, which the template in the model's file has.
_GPT_OSS: Final = for_each(
    "{{ '<|start|>' + m.role + '<|message|>' + m.content }}"
    "{{ '<|return|>' if m.role == 'assistant' else '<|end|>' }}"
) + going_on("<|start|>assistant")
_EXAONE_MOE: Final = {role: (f"<|{role}|>\n", "<|endofturn|>\n") for role in ALL[:4]}
_KIMI: Final = {
    role: (f"<|im_{kind}|>{role}<|im_middle|>", "<|im_end|>")
    for role, kind in (
        ("system", "system"), ("user", "user"), ("assistant", "assistant"), ("tool", "system"),
    )
} | {"": ("", "<|im_end|>")}  # fmt: skip
_DEEPSEEK_END: Final = _special("end of sentence")
_ASSISTANT: Final = _special("Assistant")
_COHERE: Final = "<|START_OF_TURN_TOKEN|><|{}_TOKEN|>"
BUILT_IN: Final = MappingProxyType(
    {
        "chatml": CHATML,
        "bailing": _BAILING + going_on("<role>ASSISTANT</role>"),
        "bailing-think": _BAILING + going_on("<role>ASSISTANT</role><think>"),
        "bailing2": _BAILING_2,
        "chatglm3": named_turns("<|", "|>\n ", prompt="<|assistant|>", start="[gMASK]sop"),
        "chatglm4": named_turns("<|", "|>\n", start="[gMASK]<sop>"),
        "command-r": turns(
            {
                role: (_COHERE.format(name), "<|END_OF_TURN_TOKEN|>")
                for role, name in (("system", "SYSTEM"), ("user", "USER"), ("assistant", "CHATBOT"))
            },
            _COHERE.format("CHATBOT"),
            trims=ALL,
        ),
        "deepseek": turns(
            {
                "system": ("", ""),
                "user": ("### Instruction:\n", "\n"),
                "assistant": ("### Response:\n", "\n<|EOT|>\n"),
            },
            "### Response:\n",
        ),
        "deepseek2": turns(
            {
                "system": ("", "\n\n"),
                "user": ("User: ", "\n\n"),
                "assistant": ("Assistant: ", _DEEPSEEK_END),
            },
            "Assistant:",
        ),
        "deepseek3": turns(
            {
                "system": ("", "\n\n"),
                "user": (_special("User"), ""),
                "assistant": (_ASSISTANT, _DEEPSEEK_END),
            },
            _ASSISTANT,
        ),
        "deepseek-ocr": for_each(TEXT),
        "exaone3": _exaone(),
        "exaone4": _exaone("tool"),
        "exaone-moe": turns(_EXAONE_MOE, "<|assistant|>\n", trims=ALL),
        "falcon3": named_turns("<|", "|>\n", "\n"),
        "gemma": _GEMMA,
        "gigachat": _GIGACHAT,
        "glmedge": named_turns("<|", "|>\n", prompt="<|assistant|>"),
        "gpt-oss": _GPT_OSS,
        "granite": _granite("m.role"),
        "granite-4.0": _granite("'assistant'"),
        "granite-4.1": _granite("'assistant'"),
        "grok-2": turns(
            {
                role: (f"{name}: ", "<|separator|>\n\n")
                for role, name in (
                    ("system", "System"), ("user", "Human"), ("assistant", "Assistant"),
                )
            },
            "Assistant:",
            trims=("system", "user"),
        ),
        "hunyuan-dense": _HUNYUAN_DENSE,
        "hunyuan-moe": turns(
            {
                "system": ("<|startoftext|>", "<|extra_4|>"),
                "assistant": ("", "<|eos|>"),
                "": ("<|startoftext|>", "<|extra_0|>"),
            }
        ),
        "hunyuan-vl": _HUNYUAN_VL,
        "kimi-k2": turns(_KIMI, "<|im_assistant|>assistant<|im_middle|>"),
        "llama2": _llama_2(("", "\n")),
        "llama2-sys": _llama_2(),
        "llama2-sys-bos": _llama_2(later="<s>[INST] "),
        "llama2-sys-strip": _llama_2(trims=True),
        "llama3": named_turns(
            "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", trims=True
        ),
        "llama4": named_turns("<|header_start|>", "<|header_end|>\n\n", "<|eot|>", trims=True),
        "megrez": named_turns("<|role_start|>", "<|role_end|>", "<|turn_end|>"),
        "minicpm": turns({"user": ("<用户>", "<AI>"), "": ("", "")}, trims=ALL),
        "mistral-v1": _mistral(" ", " "),
        "mistral-v3": _mistral("", " ", trims=True),
        "mistral-v3-tekken": _mistral("", ""),
        "mistral-v7": _mistral_7(" "),
        "mistral-v7-tekken": _mistral_7(""),
        "monarch": _MONARCH,
        "openchat": _OPENCHAT,
        "orion": _ORION,
        "pangu-embedded": _PANGU,
        "phi3": named_turns("<|", "|>\n", "<|end|>\n"),
        "phi4": named_turns("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
        "rwkv-world": _RWKV,
        "seed_oss": for_each(
            f"{{{{ '<seed:bos>' + m.role + '\\n' }}}}{{% if m.role == 'assistant' %}}{TRIMMED}"
            f"{{% else %}}{TEXT}{{% endif %}}<seed:eos>"
        )
        + going_on("<seed:bos>assistant\n"),
        "smolvlm": turns(
            {
                "system": ("", "\n\n"),
                "user": ("User: ", "<end_of_utterance>\n"),
                "": ("Assistant: ", "<end_of_utterance>\n"),
            },
            "Assistant:",
            start="<|im_start|>",
        ),
        "solar-open": named_turns(
            "<|begin|>", "<|content|>", "<|end|>", prompt="<|begin|>assistant"
        ),
        "vicuna": _vicuna(("", "\n\n")),
        "vicuna-orca": _vicuna(("SYSTEM: ", "\n")),
        "yandex": turns(
            {"user": (" Пользователь: ", "\n\n"), "assistant": (" Ассистент: ", "\n\n")},
            " Ассистент:[SEP]",
        ),
        "zephyr": named_turns("<|", "|>\n", "<|endoftext|>\n"),
    }
)  # fmt: skip
