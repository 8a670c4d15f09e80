"""The narrow interface between models and machines: five contracts.

`weights` keeps matrices, `ops` computes layers, `runner` runs forward passes, `states` keeps what
sequences need, `device_loop` makes rounds of speculation without the host.
"""

from .backend import Backend as Backend
from .drafts import NO_DRAFT as NO_DRAFT
from .drafts import NO_REQUEST as NO_REQUEST
from .drafts import BlockDraft as BlockDraft
from .drafts import DraftLoop as DraftLoop
from .drafts import DraftLoopPlan as DraftLoopPlan
from .drafts import Drafts as Drafts
from .drafts import DraftSettings as DraftSettings
from .drafts import TokenPicker as TokenPicker
from .forward import Forward as Forward
from .forward import Run as Run
from .forward import RunRows as RunRows
from .ops import Ops as Ops
from .rows import MAXIMA_BLOCK as MAXIMA_BLOCK
from .rows import HostOutput as HostOutput
from .rows import Output as Output
from .rows import Packed as Packed
from .rows import Rows as Rows
from .rows import Taps as Taps
from .runner import PlannedSteps as PlannedSteps
from .runner import Relayed as Relayed
from .runner import StepRunner as StepRunner
from .runner import Working as Working
from .states import SlotImage as SlotImage
from .states import State as State
from .states import StateRoom as StateRoom
from .weights import Report as Report
