"""Templates out to eat time and memory or to get out of the sandbox: an error within two seconds,
and the next ordinary render works at once."""

from __future__ import annotations

import timeit

import pytest

from nextn.core.errors import TemplateError
from nextn.core.tokenizer import ChatTemplate

from .chat_templates import CHATML, CONVERSATIONS

QUESTION = CONVERSATIONS["one question"]

_GROW = (
    "{% set ns = namespace(x='aaaaaaaa') %}"
    "{% for i in range(60) %}{% set ns.x = BODY %}{% endfor %}"
)
BOMBS = {
    "power": "{{ 9**9**8 }}",
    "power in brackets": "{{ 9**(9**8) }}",
    "power of a fraction": "{{ 'a' ** 5 }}",
    "product": "{{ 'a' * 50000000 }}",
    "product, number first": "{{ 50000000 * 'a' }}",
    "product with a fraction": "{{ 'a' * 5e7 }}",
    "list product": "{{ ([1] * 100000000) | length }}",
    "growing number": "{% set ns = namespace(x=3) %}{% for i in range(60) %}"
    "{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    "ljust": "{{ 'a'.ljust(10**8) }}",
    "center": "{{ 'a' | center(10**8) }}",
    "indent": "{{ ('a\n' * 1000) | indent(1000000) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "percent width": "{{ '%100000000d' % 1 }}",
    "percent precision": "{{ '%.100000000f' % 1.5 }}",
    "percent star": "{{ '%*d' % (100000000, 1) }}",
    "format filter": "{{ '%100000000d' | format(1) }}",
    "format method": "{{ '{:100000000d}'.format(1) }}",
    "date": "{{ strftime_now('%100000000d') }}",
    "loops": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "printing loops": "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}"
    "{% endfor %}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "endless loop": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "long source": "a" * 50_000_000,
    "brackets": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "blocks": "{% if 1 %}" * 20_000 + "{% endif %}" * 20_000,
    "doubling": _GROW.replace("BODY", "ns.x + ns.x") + "{{ ns.x }}",
    "doubling with tilde": _GROW.replace("BODY", "ns.x ~ ns.x") + "{{ ns.x }}",
    "replacing": _GROW.replace("BODY", "ns.x | replace('a', 'aaaaaaaaaa')") + "{{ ns.x }}",
    "long join": "{{ ('a' * 1000000).join(range(100000) | map('string')) }}",
    "long range": "{{ range(10**9) | list }}",
    "long batch": "{{ [1] | batch(10**9, 'x') | list | length }}",
}
ESCAPES = {
    "CVE-2024-34359": "{% for x in ().__class__.__base__.__subclasses__() %}"
    "{% if 'warning' in x.__name__ %}"
    "{{ x()._module.__builtins__['__import__']('os').popen('id').read() }}{% endif %}{% endfor %}",
    "CVE-2024-56326": "{% set f = '{0.__class__}'.format %}{{ ['a'] | map(f) | join }}{{ f(1) }}",
    "CVE-2024-56326 by reference": "{{ ('{0.__class__.__mro__}'.format)(messages) }}",
    "CVE-2025-27516": "{{ ('{0.__class__.__init__}' | attr('format'))(messages) }}",
    "format_map": "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "class": "{{ ''.__class__ }}",
    "class by subscript": "{{ ''['__class__'] }}",
    "class by attr": "{{ '' | attr('__class__') }}",
    "class by map": "{{ [''] | map(attribute='__class__') | list }}",
    "subclasses": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "lipsum call": "{{ lipsum() }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "joiner": "{{ joiner.__init__.__globals__.os.popen('id').read() }}",
    "namespace": "{{ namespace.__init__.__globals__ }}",
    "namespace in disguise": "{% set ns = namespace(__class__=dict) %}{{ ns }}",
    "namespace put into disguise": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns }}",
    "self": "{{ self._TemplateReference__context }}",
    "own function": "{{ raise_exception.__globals__ }}",
    "own date function": "{{ strftime_now.__globals__.__builtins__ }}",
    "mutation": "{{ messages.append(1) }}",
    "import": "{% import 'os' as os %}",
    "include": "{% include '/etc/passwd' %}",
    "extends": "{% extends '/etc/passwd' %}",
}


def outcome_of(source: str) -> str:
    try:
        return ChatTemplate(source).render(QUESTION)
    except TemplateError as error:
        return f"refused: {error}"


@pytest.fixture(autouse=True)
def _worker_is_up() -> None:
    ChatTemplate(CHATML).render(QUESTION)


@pytest.mark.parametrize("name", [*BOMBS, *ESCAPES])
def test_ends_in_an_error_and_does_no_harm(name: str) -> None:
    outcome = outcome_of((BOMBS | ESCAPES)[name])
    assert outcome.startswith("refused: chat template: ")
    assert "\n" not in outcome
    assert len(outcome) < 600
    assert outcome_of(CHATML).startswith("<|im_start|>system\n")


@pytest.mark.timing
def test_a_render_costs_little_once_the_worker_runs() -> None:
    assert min(timeit.repeat(lambda: outcome_of(CHATML), number=1, repeat=20)) < 0.02
