"""Texts to be continued, in Python's manner: for the bundled model and for models without a chat.

The categories are those of `chat`, as they occur inside source files.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..record import Prompt
from . import counted_texts

N: int = 96  # tokens of each

CODE = (
    '''"""Fixed-width fields of text records."""

import io


class RecordReader:
    """Iterate over the records of a file, one dict for each line."""

    def __init__(self, stream, widths):
        self.stream = stream
        self.widths = widths

    def __iter__(self):
        return self

    def __next__(self):
''',
    '''import os
import sys


def walk_sizes(top, followlinks=False):
    """Yield (path, size) for every regular file below top."""
    for root, dirs, files in os.walk(top, followlinks=followlinks):
''',
    '''class Scheduler:
    def __init__(self, timefunc, delayfunc):
        self._queue = []
        self._lock = threading.RLock()
        self.timefunc = timefunc
        self.delayfunc = delayfunc

    def enter(self, delay, priority, action):
        """Enter a new event in the queue and return an ID for it."""
''',
)

EDIT = (
    """def mean(values):
    total = 0
    for value in values:
        total = total + value
    return total / len(values)


def variance(values):
    centre = mean(values)
    total = 0
    for value in values:
        total = total + (value - centre) ** 2
    return total / len(values)


# The same two functions, with a check that there are values:

def mean(values):
    if not values:
        raise ValueError("no values")
    total = 0
""",
    """class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __repr__(self):
        return "Point(%r, %r)" % (self.x, self.y)

    def __eq__(self, other):
        return self.x == other.x and self.y == other.y


class Point3:
    def __init__(self, x, y, z):
        self.x = x
""",
    """    def test_read_empty(self):
        with self.open("empty") as stream:
            self.assertEqual(stream.read(), "")
            self.assertTrue(stream.closed is False)

    def test_read_line(self):
        with self.open("line") as stream:
            self.assertEqual(stream.read(), "one line")
            self.assertTrue(stream.closed is False)

    def test_read_lines(self):
""",
)

EXPLAIN = (
    '''class LockError(Exception):
    """Raised when a lock cannot be taken.

    A lock belongs to the thread that took it. When another thread asks for it, the call waits
''',
    '''def isolation(level):
    """Return what a transaction sees of the others.

    The level is one of the names below. A higher level means that
''',
    """# How the cache decides what to throw away.
#
# Every entry has a counter that goes up when the entry is used. When the cache is full,
""",
)

SUMMARISE = (
    '''"""Read and write mailing list archives.

This module has two classes. Archive opens a file and gives access to its messages by number;
Index keeps a table of subjects, so that threads are found without reading all messages. Both
can be used in a with statement. Archives of the old format are converted when they are opened.

In short, this module
''',
    '''"""Changes of this version.

- the parser accepts numbers with underscores
- the writer no longer loses the last line
- open() has a new argument, newline

To summarise:
''',
    '''def close(self):
    """Flush what is in the buffer, wait until the other side has read it, send the closing
    message, wait for the answer, and give the socket back to the system. Calling it twice does
    nothing.

    This is short for
''',
)

TRANSLATE = (
    """MONTHS = {
    "January": "Januar",
    "February": "Februar",
    "March": "März",
    "April": "April",
    "May":""",
    """messages = [
    ("File not found", "Fichier introuvable"),
    ("Permission denied", "Permission refusée"),
    ("Out of memory",""",
    """def to_c(node):
    # Python: if x > 0: y = x
    # C:      if (x > 0) { y = x; }
    # Python: while x: x = x - 1
    # C:""",
)

CREATIVE = (
    '''"""The lighthouse.

A short story that is shown when the module is imported.

Once there was a keeper who wrote down every ship that passed. One night
''',
    '''POEM = """
The snake lies coiled in the noonday sun,
''',
    """# An imaginary conversation between two threads.
#
# First thread: I have been waiting for you since the program began.
# Second thread:
""",
)

MATHS = (
    """>>> 12 * 7
84
>>> 84 + 16
100
>>> 100 / 8
12.5
>>> 12.5 * 4
""",
    '''def solve(a, b, c):
    """Solve a*x*x + b*x + c = 0.

    Step 1: compute the discriminant, b*b - 4*a*c.
    Step 2:
''',
    """class TestGcd(unittest.TestCase):
    def test_pairs(self):
        self.assertEqual(gcd(12, 18), 6)
        self.assertEqual(gcd(35, 49), 7)
        self.assertEqual(gcd(81, 27), 27)
        self.assertEqual(gcd(64, 48),""",
)

CHAT = (
    ("Return the number of lines in a file.", "Return the longest of them."),
    ("Convert a string to a list of integers.", "Convert it back."),
    ("Open a socket and send a message.", "Close the socket."),
)


def prompts() -> Iterator[Prompt]:
    records = (",\n".join(counted_texts.json_lines(6, 10 * i)) for i in range(3))
    texts: counted_texts.Texts = {
        "code": CODE, "edit": EDIT, "explain": EXPLAIN, "summarise": SUMMARISE,
        "extract": [f"[\n{start},\n    {{" for start in records],
        "translate": TRANSLATE, "creative": CREATIVE, "maths": MATHS, "chat": CHAT,
        "long": [counted_texts.module(12, 5 * i) + "\n    def " for i in range(2)],
    }  # fmt: skip
    return counted_texts.numbered(texts, N, continues=True)
