"""A corpus as a drafter uses it: look-ups at once, writing in a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import ConfigError, NextnError
from ...gguf.printable import printable_path
from ..drafters.suffix_native import Words
from .corpus_file import CorpusVocabulary, check_place
from .corpus_orders import AbandonedError
from .corpus_view import CorpusSnapshot, CorpusView
from .corpus_writer import CorpusWriter
from .writer_lock import LockedError

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_REFRESHED_S: Final = 1.0  # between two looks at what another process has written
_LEAST_TOKENS: Final = 8  # shorter texts are not kept


def vocabulary_of(tokenizer: Tokenizer, n_vocab: int) -> CorpusVocabulary:
    names = "\n".join((tokenizer.model, *tokenizer.tokens)).encode("utf-8", "surrogatepass")
    digest = blake2b(names, digest_size=16)
    return CorpusVocabulary(n_vocab, digest.digest())


class SharedCorpus:
    """Writes unless another process does, or the place cannot be written to."""

    def __init__(self, path: Path, vocabulary: CorpusVocabulary, budget: int) -> None:
        """`budget`: bytes on disk. Raises ConfigError or FileFormatError if the file is something
        else, or cannot be there."""
        check_place(path)
        self._path, self._view = path, CorpusView(path, vocabulary)
        self._texts: queue.Queue[Words | None] = queue.Queue()
        self._is_closing = threading.Event()
        self._next_look = 0.0
        self._thread: threading.Thread | None = None
        self.writes = False
        writer = self._make_writer(vocabulary, budget)
        if writer is not None:
            self.writes = True
            self._thread = threading.Thread(target=self._write, args=(writer,), daemon=True)
            self._thread.start()

    def snapshot(self) -> CorpusSnapshot:
        return self._view.snapshot

    def look(self) -> None:
        """A text begins: read what another process has written."""
        now = time.monotonic()
        if self._thread is None and now >= self._next_look:
            self._next_look = now + _REFRESHED_S
            with suppress(OSError, NextnError):  # the file is replaced, or gone
                self._view.refresh()

    def add(self, tokens: Words) -> None:
        if self.writes and len(tokens) >= _LEAST_TOKENS:
            self._texts.put(tokens)

    def close(self) -> None:
        """Texts that were added are in the file then."""
        if self._thread is not None:
            self._is_closing.set()
            self._texts.put(None)
            self._thread.join()
            self._thread = None

    def _make_writer(self, vocabulary: CorpusVocabulary, budget: int) -> CorpusWriter | None:
        shown = printable_path(self._path)
        try:
            return CorpusWriter(self._path, vocabulary, self._view, budget)
        except LockedError:
            logger.warning("%s: another process writes the corpus; here it is only read", shown)
        except OSError as error:
            if not self._path.exists():
                raise ConfigError(
                    f"{shown}: the corpus cannot be created: {error.strerror or error}"
                ) from None
            reason = error.strerror or error
            logger.warning("%s: the corpus is only read: %s", shown, reason)
        self._read(shown)
        return None

    def _read(self, shown: str) -> None:
        try:
            self._view.refresh()
        except FileNotFoundError:
            pass  # its writer is about to create it
        except OSError as error:
            raise ConfigError(
                f"{shown}: the corpus cannot be read: {error.strerror or error}"
            ) from None

    def _write(self, writer: CorpusWriter) -> None:
        """In the thread, until the corpus is closed. After an error nothing more is written."""
        try:
            with suppress(AbandonedError):
                writer.tidy(self._pause)
            while (tokens := self._texts.get()) is not None:
                writer.append(tokens)
                with suppress(AbandonedError):
                    if not self._is_closing.is_set():
                        writer.tidy(self._pause)
        except (OSError, NextnError) as error:
            shown = printable_path(self._path)
            reason = getattr(error, "strerror", None) or error
            logger.warning("%s: nothing more is added to the corpus: %s", shown, reason)
        finally:
            self.writes = False
            writer.close()

    def _pause(self, seconds: float) -> bool:
        """Merging takes no more than half of one thread's time."""
        return self._is_closing.wait(seconds)
