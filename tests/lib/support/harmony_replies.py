"""Replies as gpt-oss writes them, behind a prompt that ends with `<|start|>assistant`.

`{end}` and its like are the characters of a mark, written with ordinary tokens.
"""

from __future__ import annotations

SAID = "<|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
PREAMBLE = "<|channel|>commentary<|message|>"
TO = "<|channel|>commentary to=functions."
JSON = " <|constrain|>json<|message|>"
PLAN = "**Action plan**:\n1. Generate an HTML file\n2. Start the server\n---\nWill start now"
REPLIES = {
    "an answer": f"{FINAL}2 + 2 = 4.<|return|>",
    "thoughts, an answer": f"{THOUGHT}Simple arithmetic.<|end|>{SAID}{FINAL}2 + 2 = 4.<|return|>",
    "two thoughts": f"{THOUGHT}One.<|end|>{SAID}{THOUGHT}Two.<|end|>{SAID}{FINAL}Three.<|return|>",
    "empty thoughts": f"{THOUGHT}<|end|>{SAID}{FINAL}Hi.<|return|>",
    "a call": f'{THOUGHT}Need it.<|end|>{SAID}{TO}get_weather{JSON}{{"city":"Ulm"}}<|call|>',
    "the recipient behind the role": (
        f"{THOUGHT}Hm.<|end|>{SAID} to=functions.get_weather<|channel|>commentary json<|message|>"
        '{"city": "Ulm", "days": 3}<|call|>'
    ),
    "the same at once, with a mark": (
        " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>"
        '{"city": "Ulm"}<|call|>'
    ),
    "no blank, no type": f'{TO}make_file<|constrain|>json<|message|>{{"path": "a.html"}}<|call|>',
    "without a type": f"{TO}now<|message|>{{}}<|call|>",
    "a preamble": (
        f"{THOUGHT}Plan it.<|end|>{SAID}{PREAMBLE}{PLAN}<|end|>{SAID}{TO}make_file"
        f'<|constrain|>json<|message|>{{"template": "basic_html", "path": "index.html"}}<|call|>'
    ),
    "thoughts between": (
        f"{THOUGHT}First.<|end|>{SAID}{PREAMBLE}I look.<|end|>{SAID}{THOUGHT}Second.<|end|>{SAID}"
        f"{PREAMBLE}Found.<|end|>{SAID}{FINAL}Done.<|return|>"
    ),
    "several calls": (
        f'{TO}get_weather{JSON}{{"city": "Ulm"}}<|call|>{SAID}{TO}get_weather{JSON}'
        f'{{"city": "Bonn"}}<|call|>{SAID}{THOUGHT}And now.<|end|>{SAID}{TO}now{JSON}{{}}<|call|>'
    ),
    "calls in the channel of thoughts": (
        f"{THOUGHT}Search.<|end|>{SAID}<|channel|>analysis to=functions.search code<|message|>"
        '{"words": ["a", "b"], "deep": {"list": [1, [2, {}]]}}<|call|>'
    ),
    "the model's own tools": (
        "<|channel|>analysis to=python <|constrain|>code<|message|>"
        "[print(x) for x in range(3)]\nprint('end')<|call|>"
    ),
    "its browser": (
        "<|channel|>analysis to=browser.search<|message|>"
        '{"query": "weather in Ulm", "topn": 5}<|call|>'
    ),
    "JSON as the answer": f'{THOUGHT}JSON.<|end|>{SAID}<|channel|>final{JSON}{{"a": 1}}<|return|>',
    "white space": f"{THOUGHT}\n a \n<|end|>{SAID}{FINAL}\n  indented\n\tand more \n\n<|return|>",
    "other scripts": (
        f"{THOUGHT}日本語で考える。<|end|>{SAID}{FINAL}"
        "Grüße 世界 🙂👨‍👩‍👧 ﷽ \U0001f1e9\U0001f1ea<|return|>"
    ),
    "code": (
        f"{FINAL}```html\n<|a|> <b>x |> y <| z</b> <|endoftext\n```\n`if a<|b` and a <<|return|>"
    ),
    "marks in strings": (
        f'{THOUGHT}Quote.<|end|>{SAID}{TO}make_file{JSON}{{"text": "\\"{{end}}{{start}}user'
        '{message}<b>{call}", "more": ["{channel}"]}<|call|>'
    ),
    "only a preamble": f"{PREAMBLE}I shall begin.<|end|>",
    "cut in thoughts": f"{THOUGHT}I was just",
    "cut in an answer": f"{THOUGHT}Hm.<|end|>{SAID}{FINAL}It is",
    "cut in a call": f'{THOUGHT}Hm.<|end|>{SAID}{TO}get_weather{JSON}{{"city": "U',
    "cut in a header": f"{THOUGHT}Hm.<|end|>{SAID}{TO}get_wea",
    "cut behind a channel": f"{THOUGHT}Hm.<|end|>{SAID}<|channel|>final",
}
