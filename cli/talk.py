"""The loop of `spec generate --chat` on a terminal: read a message, show the answer, remember."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..core.errors import NextnError
from ..core.sampling.params import MAX_SEED
from .answer import make_answer
from .interrupts import rearm
from .line_input import LineDroppedError, read_message
from .output import READING, print_error
from .report import summary_lines, turn_line

if TYPE_CHECKING:
    from ..core.generation import GenerateParams
    from ..core.runtime import Runtime
    from .answer import Printer
    from .chat import Conversation
    from .output import Output

WELCOME: Final = "Ctrl-C stops an answer, Ctrl-D leaves, /help lists commands."
HELP: Final = (
    "/regen  answer the last message again, differently",
    "/clear  forget the conversation",
    "/exit   leave, as Ctrl-D does",
    "Ctrl-C  stop the answer, or drop the line; twice: leave",
    "A line that ends with \\ goes on in the next one; pasted lines stay together.",
)
INTERRUPTED: Final = 130


def talk(
    runtime: Runtime,
    conversation: Conversation,
    params: GenerateParams,
    printer: Printer,
    output: Output,
) -> int:
    """Until the user leaves; returns the exit code."""
    output.remark(WELCOME)
    return _Talk(runtime, conversation, params, printer, output).run()


class _Talk:
    def __init__(
        self,
        runtime: Runtime,
        conversation: Conversation,
        params: GenerateParams,
        printer: Printer,
        output: Output,
    ) -> None:
        self.runtime, self.conversation, self.params = runtime, conversation, params
        self.printer, self.output = printer, output

    def run(self) -> int:
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
        """Obey or answer; says whether the answer was interrupted."""
        word = message.strip()
        if not word:
            return False
        if word == "/clear":
            self.conversation.clear()
            self.output.remark("Forgotten.")
        elif word == "/regen":
            return self._again()
        elif word == "/help" or (word[0] == "/" and word[1:].isalpha()):
            for line in HELP:
                self.output.remark(line)
        else:
            self.conversation.ask(message)
            return self._answer()
        return False

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
        """What cannot be answered is taken back, and the talk goes on."""
        try:
            prompt = self.conversation.prompt()
            self.output.progress(READING, 0.0)
            answer = make_answer(self.runtime, prompt, self.params, self.printer)
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
            self.conversation.answer(answer.text)
        else:  # stopped before the first token
            self.conversation.take_back("user")
        if self.output.verbose:
            for line in summary_lines(answer, verbose=True):
                self.output.remark(line)
        else:
            self.output.remark(turn_line(answer))
        return answer.is_interrupted
