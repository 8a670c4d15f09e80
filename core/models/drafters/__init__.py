"""Networks that draft for a target: what each one computes. Speculation uses them.

A network in a file of its own is one row here and one in the table of drafters: the architecture of
its file is the drafter's name.
"""

from typing import Final

NETWORKS: Final = {
    "dflash": "dflash:DFlash",
    "eagle3": "eagle3:Eagle3",
    "gemma4-assistant": "gemma4_assistant:Gemma4Assistant",
}
