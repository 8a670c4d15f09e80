"""What several test processes need is made by one of them; the others wait for it."""

from __future__ import annotations

import getpass
import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # where there are no such locks each makes its own
    fcntl = None  # type: ignore[assignment]


@contextmanager
def alone(name: str) -> Iterator[None]:
    """No other thread or process of this user is within the same name."""
    folder = Path(tempfile.gettempdir()) / f"nextn-locks-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    digest = hashlib.sha256(name.encode()).hexdigest()[:20]
    with (folder / digest).open("ab") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed
        yield
