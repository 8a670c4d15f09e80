"""DeepSeek V3 and its kin: MLA, whose key-value matrix GGUF keeps as two, one of them turned.

llama.cpp's converter drops the head of V3; the files it belongs to can run it all the same.
"""

from __future__ import annotations

from .family import INDEXER, MLA, Family, behind_the_trunk

FAMILIES = (
    Family(
        "deepseek2",
        ("deepseek_v3", "deepseek_v2", "kimi_k2", "kimi_k25", "glm4_moe_lite"),
        behind_the_trunk,
        stems=MLA,
    ),
    Family("deepseek32", ("deepseek_v32",), behind_the_trunk, stems={**MLA, **INDEXER}),
    Family("glm-dsa", ("glm_moe_dsa",), behind_the_trunk, stems={**MLA, **INDEXER}),
)
