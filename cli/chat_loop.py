"""The loop of `spec generate --chat` on a terminal: read a message, print the answer, repeat."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from ..core.errors import InputError, NextnError
from ..core.sampling.params import MAX_SEED
from .console import READING, print_error
from .image_options import GivenImage, encodable, read_image
from .interrupts import rearm
from .line_input import LineDroppedError, read_message
from .print_answer import print_answer
from .summary import idle_lines, summary_lines, turn_line

if TYPE_CHECKING:
    from ..core.generation import GenerateParams
    from ..core.runtime import Runtime
    from .console import Console
    from .conversation import Conversation
    from .print_answer import Printer

WELCOME: Final = "Ctrl-C stops an answer, Ctrl-D leaves, /help lists commands."
HELP: Final = (
    "/regen  answer the last message again, differently",
    "/image FILE: an image for the next message",
    "/clear  forget the conversation",
    "/exit   leave, as Ctrl-D does",
    "Ctrl-C  stop the answer, or drop the line; twice: leave",
    "A line that ends with \\ goes on in the next one; pasted lines stay together.",
)
INTERRUPTED: Final = 130


@dataclass
class ChatLoop:
    runtime: Runtime
    conversation: Conversation
    params: GenerateParams
    printer: Printer
    output: Console
    images: list[GivenImage] = field(default_factory=list)  # for the next message

    def run(self) -> int:
        """Run until the user leaves; return the exit code."""
        self.output.remark(WELCOME)
        was_interrupted = False
        while True:
            rearm()
            try:
                message = read_message()
            except EOFError:
                return 0
            except LineDroppedError:
                was_interrupted = False
                continue
            except KeyboardInterrupt:
                if was_interrupted:
                    return INTERRUPTED
                self.output.remark("Ctrl-C again leaves, as Ctrl-D does.")
                was_interrupted = True
                continue
            if message.strip() in ("/exit", "/quit", "/bye"):
                return 0
            was_interrupted = self._take(message)

    def _take(self, message: str) -> bool:
        """Execute a command or answer; return whether the answer was interrupted."""
        word = message.strip()
        if not word:
            return False
        if word == "/clear":
            self.conversation.clear()
            self.output.remark("Forgotten.")
        elif word == "/regen":
            return self._again()
        elif word.split()[0] == "/image":
            self._show(word.removeprefix("/image").strip())
        elif word == "/help" or (word[0] == "/" and word[1:].isalpha()):
            for line in HELP:
                self.output.remark(line)
        else:
            return self._ask(message)
        return False

    def _show(self, name: str) -> None:
        """Keep an image for the next message."""
        try:
            if not name:
                raise InputError("/image needs the name of a file")
            encodable(self.runtime, [image := read_image(Path(name))])
        except NextnError as error:
            print_error(str(error))
            return
        self.images.append(image)
        self.output.remark(f"{image.name} goes with your next message.")

    def _ask(self, message: str) -> bool:
        images, self.images = self.images, []
        try:
            self.conversation.add_question(message, encodable(self.runtime, images))
        except NextnError as error:  # more marks than images
            print_error(str(error))
            return False
        return self._answer()

    def _again(self) -> bool:
        if not self.conversation.take_back("assistant"):
            self.output.remark("There is no answer yet.")
            return False
        # The old seed would give the old answer.
        sampling = self.params.sampling
        sampling = replace(sampling, seed=(sampling.seed + 1) % (MAX_SEED + 1))
        self.params = replace(self.params, sampling=sampling)
        return self._answer()

    def _answer(self) -> bool:
        """Answer; after a failure the message is removed and the conversation continues."""
        try:
            prompt = self.conversation.prompt()
            self.output.progress(READING, 0.0)
            params = self.conversation.limited(self.params)
            answer = print_answer(self.runtime, prompt, params, self.printer)
        except KeyboardInterrupt:
            self.conversation.take_back("user")
            return True
        except NextnError as error:
            self.output.clear_progress()
            print_error(str(error))
            self.conversation.take_back("user")
            self.output.remark("Your message was taken back. /clear forgets the conversation.")
            return False
        finally:
            self.output.clear_progress()
        self.output.end_text(always=True)
        if answer.events:
            self.conversation.add_answer(answer.text)
        else:  # stopped before the first token
            self.conversation.take_back("user")
        if self.output.verbose:
            lines = summary_lines(answer, verbose=True) + idle_lines(self.runtime, answer.stats)
            for line in lines:
                self.output.remark(line)
        else:
            self.output.remark(turn_line(answer))
        return answer.is_interrupted
