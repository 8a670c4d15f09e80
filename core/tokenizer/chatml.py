"""The chat template that is taken, as in llama.cpp, where there is no other. Imports nothing."""

from __future__ import annotations

from typing import Final

CHATML: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
