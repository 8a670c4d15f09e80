"""Requests to be answered, for models that follow instructions."""

from __future__ import annotations

from collections.abc import Iterator

from ..record import Prompt
from . import counted_texts

N: int = 192  # tokens of an answer

CODE = (
    "Write a Python function that merges two sorted lists into one sorted list without using "
    "sort(). Add type hints, a docstring and three assertions that test it.",
    "Write a C program that reads lines from standard input and prints them in reverse order. "
    "Free all memory.",
    "Implement an LRU cache in TypeScript with get, set and a capacity. No dependencies.",
)

EXPLAIN = (
    "Explain how a hash table works to somebody who knows only arrays. Use one small example.",
    "Why is the sky blue in the day and red in the evening? Explain in a few paragraphs.",
    "What happens between typing an address into a browser and seeing the page? Name each step.",
)

TRANSLATE = (
    "Translate into German:\n\nThe meeting was moved to Thursday because the train from Vienna was "
    "cancelled. Please bring the signed copies and a list of open questions, and tell the others.",
    "Translate into French:\n\nWhoever repairs old clocks needs patience more than tools. The "
    "smallest wheel decides whether the hand moves, and it is always the one that rolls away.",
    "Traduis en anglais :\n\nLe boulanger ouvre sa boutique avant l'aube. Quand les premiers "
    "clients arrivent, le pain est encore chaud et la rue sent la farine et le beurre.",
)

CREATIVE = (
    "Write the beginning of a story about a lighthouse keeper who receives a letter that is "
    "addressed to the lighthouse itself.",
    "Write a poem of four stanzas about a bicycle that has been left out in the snow.",
    "Invent a dialogue between two old chess pieces in a box, late at night.",
)

MATHS = (
    "A tank holds 240 litres. One pipe fills it in 6 hours, another empties it in 10 hours. Both "
    "are open. How long until it is full? Show each step.",
    "Anna is three times as old as Ben. In 8 years she will be twice as old. How old are both "
    "now? Work it out step by step and check the result.",
    "How many integers between 1 and 500 are divisible by 3 or 7, but not by both? Count step by "
    "step.",
)

CHAT = (
    (
        "I want to grow tomatoes on a balcony. What do I need?",
        "The balcony faces north. Does that change anything?",
        "Make a shopping list of all that, with rough prices.",
    ),
    (
        "Suggest a name for a small bookshop that sells only travel books.",
        "I like the second one. Write two sentences for its sign.",
        "Now the same sentences for children.",
    ),
    (
        "What is the difference between a process and a thread?",
        "When would you choose threads in Python?",
        "Show the smallest example where that choice goes wrong.",
    ),
)

ARTICLE = """The town council met on Tuesday to decide about the old swimming hall. The building
from 1968 has been closed for two years, since a part of the roof came down in a storm. An
engineer reported that the roof could be repaired for 2.1 million euros, but that the water pipes
and the heating would have to follow within five years, for another 3.4 million. A new hall of the
same size was estimated at 11 million. Several speakers remembered that every child of the town
had learnt to swim there. Others said that the nearest hall is only nine kilometres away, and that
the bus could be made free for schools. The mayor asked for a decision before the budget is closed
in November. In the end the council voted, with 14 to 9, to repair the roof first, to ask the
state for help with the pipes, and to look again in three years. The swimming club offered to
paint the walls and to look after the ticket office without pay."""

MANUAL = """Before the first use, rinse the tank with clear water and throw the first two cups
away. Fill in fresh water up to the line, never above it. The lamp blinks while the water heats
and stays on when it is ready. Do not open the lid while it blinks. If three short tones are
heard, the tank is empty: switch off, wait ten minutes, fill it, and begin again. Once a month run
the machine with a mixture of water and citric acid, one spoon for a litre, and then twice with
clear water. Hard water needs this every two weeks. The filter below the outlet is washed by hand,
not in the machine. Repairs are for the service alone; opening the base ends the warranty."""

MINUTES = """Present: Ola, Femi, Ruth, Jan. Ola reported that the test bench failed twice last
week, both times because of the same cable, which is now replaced. Femi wants to move the release
from the 4th to the 11th, since the translation is late; nobody objected. Ruth showed the figures
of the trial: of 120 users, 31 never opened the new page, and those who did stayed for forty
seconds on average. She suggested to put the page first. Jan was against it, because support would
have to answer for it. It was agreed to put it first for one half of the users and to compare.
Ruth will prepare that until Friday. Jan writes the answers for support. The next meeting is on
the 9th."""


def prompts() -> Iterator[Prompt]:
    summarised = (ARTICLE, MANUAL, MINUTES)
    texts: counted_texts.Texts = {
        "code": CODE, "edit": [_edit(i) for i in range(3)], "explain": EXPLAIN,
        "summarise": [f"Summarise in three sentences:\n\n{text}" for text in summarised],
        "extract": [_extraction(i) for i in range(3)],
        "translate": TRANSLATE, "creative": CREATIVE, "maths": MATHS, "chat": CHAT,
        "long": [_long(i) for i in range(2)],
    }  # fmt: skip
    return counted_texts.numbered(texts, N, continues=False)


def _edit(i: int) -> str:
    source = counted_texts.module(3, 5 * i)
    noun, verb = counted_texts.NOUNS[i], counted_texts.VERBS[i]
    return (
        f"In this class, rename the argument `value` to `new_{noun}` everywhere and let every "
        f"method return the name as well, as in `return name, entry`. Print the whole class, "
        f"nothing else (there is a method that begins with {verb}; treat it like the others).\n\n"
        f"```python\n{source}```"
    )


def _extraction(i: int) -> str:
    return (
        "Write these orders as a JSON list of objects with the keys id, item, colour, price, town "
        f"and stock. Only the JSON.\n\n{counted_texts.order_lines(8, 10 * i)}"
    )


def _long(i: int) -> str:
    return (
        f"{counted_texts.report(40, 7 * i)}\n\nWhich branch sold the most pieces in one week, and "
        "in which three weeks did managers mention a competitor first? Quote the sentences."
    )
