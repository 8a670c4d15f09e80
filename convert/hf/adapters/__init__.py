"""LoRA adapters of PEFT, in llama.cpp's layout."""

from .adapter_planning import PlannedAdapter, plan_adapter
from .peft_folder import PeftAdapter, open_peft

__all__ = ["PeftAdapter", "PlannedAdapter", "open_peft", "plan_adapter"]
