"""The narrow interface between models and machines: five contracts.

`weights` keeps matrices, `ops` computes layers, `runner` runs forward passes, `states` keeps what
sequences need, `device_loop` makes rounds of speculation without the host.
"""

from .backend import Backend as Backend
from .ops import Ops as Ops
from .rows import MAXIMA_BLOCK as MAXIMA_BLOCK
from .rows import HostOutput as HostOutput
from .rows import Output as Output
from .rows import Packed as Packed
from .rows import Rows as Rows
from .rows import Taps as Taps
from .runner import Forward as Forward
from .runner import PlannedSteps as PlannedSteps
from .runner import Relayed as Relayed
from .runner import Run as Run
from .runner import RunRows as RunRows
from .runner import Working as Working
from .states import SlotImage as SlotImage
from .states import State as State
from .states import StateRoom as StateRoom
from .weights import Report as Report
