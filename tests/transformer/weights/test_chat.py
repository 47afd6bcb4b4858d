"""Chat templates: what the reference renders we render; what reaches out, or would never end, is one error, soon."""

from __future__ import annotations

import resource
import time
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_files import smollm2

from headcount.errors import HeadcountError, ModelFileError, UsageError
from headcount.transformer.weights.chat import render
from headcount.transformer.weights.template_fuel import FUEL

# The hook that checks shapes in tests would check types at every step of a template, forty times slower than the step.
pytestmark = pytest.mark.usefixtures("plain_signatures")
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'What\'s <b>2 + 2</b> & "why"?\n'},
    {
        "role": "assistant",
        "content": "<think>easy</think>4",
        "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}],
    },
    {"role": "tool", "content": "é日😀"},
    {"role": "user", "content": " more "},
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "int"}}}},
    }
]
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}

# What published templates use: turns, tools, thinking cut off, namespaces, macros, loop controls, generation marks.
TEMPLATES = {
    "turns": "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m.content | trim + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "tools": "{% if tools %}{{ tools | tojson(indent=2) }}\n{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}",
    "thinking": "{% set ns = namespace(last=-1, found=false) %}{% for m in messages[::-1] %}"
    "{% set i = messages|length - 1 - loop.index0 %}"
    "{% if m.role == 'user' and not ns.found and m.content is string and not m.content.startswith('<tool') %}"
    "{% set ns.last = i %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.last }}"
    "{% for m in messages %}{% if '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% endif %}{% endfor %}",
    "macro": "{% macro show(m, depth=0) -%}\n  [{{ m.role | upper }}:{{ m.content | length }}]\n{%- endmacro %}\n"
    "{%- for m in messages %}\n    {%- if loop.first %}{% continue %}{% endif %}\n"
    "{{ show(m) }}\n    {%- if loop.index > 3 %}{% break %}{% endif %}\n{%- endfor %}",
    "calls": "{% for m in messages if m.tool_calls is defined and m.tool_calls %}{% for c in m.tool_calls %}"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}{{ c.function.arguments.items() | list }}"
    "{% endfor %}{% endfor %}{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(' / ') }}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}"
    "{{ m.content | replace('2', '3') | default('') }}{% endif %}{% endfor %}",
    "arithmetic": "{{ (1 + 2) * 3 - 7 // 2 }} {{ 2 ** 10 }} {{ 7 % 4 }} {{ 'a' ~ 1 ~ none }} {{ '%s-%02d' % ('x', 5) }}"
    " {{ '-' * 8 }}"
    " {{ [1, 2] + [3] }} {{ '{} {:>4}'.format('y', 3) }} {{ 1 / 4 }} {{ [3, 1, 2] | sort | first }} {{ range(3) | list }}",
    "slices": "{{ messages[1:][0].content[:4] }}{{ messages[-1]['content'] }}{{ (messages | last).role.title() }}"
    "{{ 'x,y'.split(',') }}{{ messages | map(attribute='role') | unique | list }}{{ 'b' in 'abc' and 4 not in [1, 2] }}",
    "filters": "{{ [1, 2, 3] | sum }}{{ {'b': 1, 'a': 2} | dictsort }}{{ 'a\nb' | indent(2) }}{{ '<' | e }}{{ -3 | abs }}"
    "{{ 'x' | string }}{{ '3' | int + 1 }}{{ [1, none] | reject('none') | list }}{{ {'k': 1}.get('k') }}"
    "{{ {'k': 1} | items | list }}",
}  # fmt: skip


@pytest.mark.reference
@pytest.mark.parametrize("name", TEMPLATES)
def test_what_the_reference_renders(name: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    for prompt in (True, False):
        theirs, _ = render_jinja_template(
            conversations=[MESSAGES],
            tools=TOOLS,
            chat_template=TEMPLATES[name],
            add_generation_prompt=prompt,
            **NAMES,
        )
        ours = render(TEMPLATES[name], MESSAGES, names=NAMES, tools=TOOLS, add_generation_prompt=prompt)
        assert ours == theirs[0]


@pytest.mark.reference
def test_smollm2s_own_template() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    from headcount.transformer.weights.tokenizer import read_tokenizer

    tokenizer = read_tokenizer(smollm2())
    assert tokenizer.chat_template is not None
    theirs, _ = render_jinja_template(
        conversations=[MESSAGES[1:2]],
        chat_template=tokenizer.chat_template,
        add_generation_prompt=True,
        **tokenizer.names,
    )
    ours = render(tokenizer.chat_template, MESSAGES[1:2], names=tokenizer.names)
    assert ours == theirs[0]
    assert ours.endswith("<|im_start|>assistant\n")


def test_the_date_and_other_values() -> None:
    text = render(
        "{{ strftime_now('%d %B %Y, %-d') }} {{ mood }}",
        [],
        now=datetime(2026, 11, 5),
        values={"mood": "calm"},
    )
    assert text == "05 November 2026, 5 calm"


def test_a_template_may_refuse_the_messages() -> None:
    with pytest.raises(UsageError, match="refuses these messages: 'roles must alternate'"):
        render("{{ raise_exception('roles must alternate') }}", MESSAGES)
    with pytest.raises(UsageError, match="messages hold a object"):
        render("{{ messages }}", [{"role": "user", "content": object()}])
    with pytest.raises(UsageError, match="keys of a dictionary"):
        render("{{ messages }}", [{1: "user"}])  # type: ignore[dict-item]


def test_a_long_conversation_is_no_attack() -> None:
    many = [{"role": "user" if i % 2 == 0 else "assistant", "content": "word " * 400} for i in range(2000)]
    for template in (TEMPLATES["turns"], TEMPLATES["thinking"]):
        assert render(template, many, names=NAMES)
    assert len(render(TEMPLATES["turns"], many, names=NAMES)) > 3_900_000


HUGE = "for a in range(60000)"
GROW = "{% set n = namespace(a=[1], b=[1], s='aaaaaaaa', x=3) %}{% for i in range(60) %}"
BOMBS = {
    "loops": f"{{% {HUGE} %}}{{% {HUGE} %}}{{% endfor %}}{{% endfor %}}",
    "filtered loop": f"{{% {HUGE} %}}{{% {HUGE} if a < 0 %}}{{% endfor %}}{{% endfor %}}",
    "shadowed gauge": f"{{% set environment = 1 %}}{{% set step = 1 %}}{{% {HUGE} %}}{{% {HUGE} %}}{{% endfor %}}{{% endfor %}}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "calls": "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call f() %}" * 40
    + "x"
    + "{% endcall %}" * 40,
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "text times": "{{ 'a' * 10**12 }}",
    "list times": "{{ [1] * 999999999 }}",
    "doubled by ~": GROW + "{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubled by +": GROW + "{% set n.s = n.s + n.s %}{% endfor %}",
    "doubled by a block": GROW + "{% set x %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = x %}{% endfor %}",
    "doubled by format": GROW + "{% set n.s = '{0}{0}'.format(n.s) %}{% endfor %}",
    "doubled by %": GROW + "{% set n.s = '%s%s' % (n.s, n.s) %}{% endfor %}",
    "doubled by join": GROW + "{% set n.s = [n.s, n.s] | join %}{% endfor %}",
    "nested lists": GROW + "{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a }}",
    "nested tuples": GROW + "{% set n.a = (n.a, n.a) %}{% endfor %}{{ n.a | tojson }}",
    "nested dictionaries": GROW + "{% set n.a = {'x': n.a, 'y': n.a} %}{% endfor %}{{ n.a | string }}",
    "nested by dict()": GROW + "{% set n.a = dict(x=n.a, y=n.a) %}{% endfor %}{{ n.a }}",
    "compared": GROW + "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}",
    "powers": "{{ 10 ** 99999999 }}",
    "squares": GROW + "{% set n.x = n.x * n.x %}{% endfor %}",
    "wide %": "{{ '%9999999999d' % 1 }}",
    "starred %": "{{ '%*d' % (999999999, 1) }}",
    "wide format": "{{ '{:>9999999999}'.format(1) }}",
    "nested format": "{{ '{:>{}}'.format(1, 999999999) }}",
    "padding": "{{ 'a'.ljust(9999999999) }}",
    "centre": "{{ 'a' | center(9999999999) }}",
    "indent": "{{ 'a\nb' | indent(9999999999) }}",
    "replace": "{% set a = 'a' * 1000000 %}{{ a.replace('a', a) }}",
    "replace filter": "{% set a = 'a' * 1000000 %}{{ a | replace('a', a) }}",
    "join": "{% set a = 'a' * 100000 %}{{ a.join([''] * 100000) }}",
    "join filter": "{% set a = 'a' * 100000 %}{{ ([''] * 100000) | join(a) }}",
    "sum of lists": "{{ ([[1] * 1000] * 1000) | sum(start=[]) }}",
    "keys": "{{ dict.fromkeys(range(60000), 'a' * 10000) }}",
    "slices": "{{ [1] | slice(99999999) | list }}",
    "long texts": f"{{% {HUGE} %}}{{{{ 'x' * 10000 }}}}{{% endfor %}}",
    "counting": f"{{% set t = 'a' * 20000000 %}}{{% {HUGE} %}}{{{{ t.count('b') }}}}{{% endfor %}}",
    "copying": f"{{% set t = 'a' * 20000000 %}}{{% {HUGE} %}}{{% set u = t[1:] %}}{{% endfor %}}",
    "searching": f"{{% set t = range(60000) | list %}}{{% {HUGE} %}}{{{{ 1.5 in t }}}}{{% endfor %}}",
    "searching by test": f"{{% set t = range(60000) | list %}}{{% {HUGE} %}}{{{{ 1.5 is in t }}}}{{% endfor %}}",
    "rejecting": f"{{% {HUGE} %}}{{{{ range(60000) | reject | first }}}}{{% endfor %}}",
    "wide date": "{{ strftime_now('%999999999d') }}",
    "range": "{{ range(10**9) | list }}",
    "output": "{% set t = 'a' * 9000000 %}{{ t }}{{ t }}",
    "nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested loops": "{% for i in x %}" * 300 + "{% endfor %}" * 300,
    "length": "x" * 300_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_one_error_soon(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an eighth of the fuel, to be quick; without a bound the cheapest of these takes minutes."""
    monkeypatch.setattr("headcount.transformer.weights.chat.FUEL", FUEL // 8)
    start = time.process_time()
    with pytest.raises(ModelFileError) as caught:
        render(BOMBS[name], MESSAGES)
    assert "\n" not in str(caught.value)
    assert time.process_time() - start < 5


def test_all_the_fuel_burns_in_seconds() -> None:
    start = time.process_time()
    with pytest.raises(ModelFileError, match="more time or memory than any honest template"):
        render(BOMBS["macros"], MESSAGES)
    assert time.process_time() - start < 10


REPEAT = "{% for i in range(60000) %}{% for j in range(60000) %}"
LOOPS_END = "{% endfor %}{% endfor %}"
NEEDLE = "{% set t = 'a' * 29000 %}{% set k = 'a' * 50 ~ 'b' ~ 'a' * 48 %}"
STROKES = {
    "round": "{{ 1 | round(300000000, 'ceil') }}",
    "round by name": "{{ 1 | round(precision=300000000, method='ceil') }}",
    "replace by name": "{{ ('a' * 50000) | replace(old='a', new='b' * 50000) }}",
    "replace half by name": "{{ ('a' * 50000) | replace('a', new='b' * 50000) }}",
    "join over text": "{{ ('a' * 50000).join('b' * 50000) }}",
    "join over a generator": "{{ ('a' * 50000).join(range(50000) | map('string')) }}",
    "join by name": "{{ ('b' * 50000) | join(d='a' * 50000) }}",
    "to_bytes": "{{ (5).to_bytes(2000000000, 'big') | length }}",
    "json separators": "{{ range(50000) | list | tojson(separators=('a' * 50000, ':')) }}",
    "json indent": "{{ [1, 2] | tojson(indent='a' * 50000) }}",
    "json depth": "{% set n = namespace(a=[1]) %}{% for i in range(400) %}{% set n.a = [n.a] %}{% endfor %}"
    "{{ ([n.a] * 2000) | tojson(indent=16) }}",
    "many fields": "{{ ('{0:999}' * 1000000).format(1) }}",
    "large fields": "{{ ('{0}' * 100000).format('a' * 100000) }}",
    "large % fields": "{{ ('%(a)s' * 4000) % {'a': 'b' * 100000} }}",
    "% width behind a key": "{{ '%(a(b)c)99999999d' % {'a(b)c': 1} }}",
    "% width behind a %": "{{ '%(a%b)99999999d' % {'a%b': 1} }}",
    "% precision": "{{ '%.99999999d' % 1 }}",
    "title": "{{ ('é日' * 8000000) | title }}",
    "upper": "{{ ('\u0390' * 15000000).upper() }}",
    "split": "{{ ('a,' * 8000000).split(',') | length }}",
    "split at blanks": "{{ ('日 ' * 5000000).split() | length }}",
    "splitlines": "{{ ('日\\n' * 5000000).splitlines() | length }}",
    "list of text": "{{ ('日' * 16000000) | list | length }}",
    "search from the end": "{{ ('a' * 8000000).rfind('b' + 'a' * 4000000) }}",
    "strip": "{{ ('a' * 4000000).strip('b' * 2000000 + 'a') }}",
    "searching in text": NEEDLE + REPEAT + "{% if k in t %}{% endif %}" + LOOPS_END,
    "finding": NEEDLE + REPEAT + "{{ t.find(k) }}" + LOOPS_END,
    "slices kept": "{% set s = '😀' * 8000000 %}" + "".join(f"{{% set a{i} = s[1:] %}}" for i in range(1000)),
    "long bodies": REPEAT + "{% set a = b %}" * 4000 + LOOPS_END,
    "long macros": "{% macro f() %}" + "{% set a = b %}" * 4000 + "{% endmacro %}" + REPEAT + "{{ f() }}" + LOOPS_END,
    "hashed tuples": "{% set t = (0," + "1," * 20000 + ") %}{% set d = {t: 1} %}" + REPEAT + "{% set x = d[t] %}" + LOOPS_END,
    "hash collisions": "{% set m = 2 ** 61 - 1 %}{{ m * 2 }}",
    "views": "{% set d = dict(a=range(60000) | list) %}" + REPEAT + "{{ 1 in d.values() }}" + LOOPS_END,
    "smallest of long texts": "{% set l = ['A' * 10000] * 1000 %}" + REPEAT + "{{ l | min | length }}" + LOOPS_END,
    "indent by name": "{{ ('a\\n' * 60000) | indent(width=60000) }}",
    "long attribute": "{{ range(60000) | map(attribute='" + "a." * 20000 + "a') | list }}",
    "escapes in repr": "{{ ['\U000e0001' * 5000000] }}",
    "escapes in JSON": "{{ ['😀' * 8000000] | tojson(ensure_ascii=true) }}",
    "escape": "{{ ('&' * 8000000) | e }}",
    "markup": "{{ ('a' | safe) + '&' * 8000000 }}",
    "digits": "{{ ('f' * 4000000) | int(base=16) }}",
    "message": "{{ raise_exception([['a' * 1000] * 10000] * 1000) }}",
    "changed": "{% set l = range(60000) | list %}{% for i in range(60000) %}{{ loop.changed(l) }}{% endfor %}",
    "dates": REPEAT + "{% set x = strftime_now('%c%c%c') %}" + LOOPS_END,
}  # fmt: skip


@pytest.mark.parametrize("name", STROKES)
def test_a_stroke_is_one_error_soon(name: str) -> None:
    """What one call could make, however its arguments are passed, with all the fuel: no copy is larger than 200 MB."""
    start = time.process_time()
    with pytest.raises(ModelFileError) as caught:
        render(STROKES[name], MESSAGES)
    assert "\n" not in str(caught.value)
    assert time.process_time() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 'a-b'|replace(old='-', new='+') }}", "a+b"), ("{{ 2.345|round(precision=2) }}", "2.35"),
        ("{{ 'abc'|reverse }}{{ 'abc'|first }}{{ [1, 2]|reverse|list }}", "cbaa[2, 1]"),
        ("{{ '50%% of %s in 2024' % 'x' }}{{ 'in 2024: {0:>3}'.format(1) }}", "50% of x in 2024in 2024:   1"),
        ("{{ ','.join('abc') }}{{ '-'.join({'a': 1, 'b': 2}) }}", "a,b,ca-b"),
        ("{{ ('<'|safe) + '&' }}", "<&amp;"), ("{{ 'a b'.split(maxsplit=1) }}", "['a', 'b']"),
        ("{% for g in [{'k': 1}, {'k': 2}]|groupby('k') %}{{ g.grouper }}{{ g.list }}{% endfor %}", "1[{'k': 1}]2[{'k': 2}]"),
        ("{{ dict([('a', 1)], b=2) }}{{ {'a': 1}|tojson(separators=(',', ':')) }}", "{'a': 1, 'b': 2}{\"a\":1}"),
        ("{{ [[1], [2]]|sum(start=[]) }}{{ range(5)|slice(slices=2)|list }}", "[1, 2][[0, 1, 2], [3, 4]]"),
    ],
)  # fmt: skip
def test_what_is_metered_still_gives_what_python_gives(template: str, text: str) -> None:
    assert render(template, MESSAGES) == text


def test_running_out_of_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("headcount.transformer.weights.sandbox.json.dumps", none_left)
    with pytest.raises(ModelFileError, match="more memory than there is"):
        render("{{ 1 | tojson }}", MESSAGES)


INJECTIONS = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "function": "{{ namespace.__init__.__globals__ }}",
    "undefined": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "template": "{{ self.__init__.__globals__ }}",
    "namespace": "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "namespace call": "{{ namespace(__class__=1) }}",
    "append": "{% set x = [] %}{{ x.append(1) }}",
    "update": "{{ messages[0].update({'role': 'system'}) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import '/etc/passwd' as x %}",
    "extends": "{% extends '/etc/passwd' %}",
    "attr filter": "{{ '' | attr('__class__') }}",
    "printed function": "{{ range }}",
    "printed macro": "{% macro f() %}{% endmacro %}{{ f }}",
    "generator": "{{ lipsum.__globals__['os'] }}",
    "encode": "{{ 'a'.encode() }}",
    "syntax": "{% for %}",
    "division": "{{ 1 / 0 }}",
    "missing": "{{ missing.attribute }}",
}


@pytest.mark.parametrize("name", INJECTIONS)
def test_an_injection_is_one_error(name: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        render(INJECTIONS[name], MESSAGES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception.__globals__ }}", "{{ ''['__class__'] }}", "{{ '{0.__class__}'.format(1) }}",
     "{{ '{a.__class__}'.format_map({'a': 1}) }}", "{{ [''] | map(attribute='__class__') | list }}",
     "{{ messages | map(attribute='__init__') | first }}"],
)  # fmt: skip
def test_what_the_sandbox_answers_with_nothing(template: str) -> None:
    """Jinja gives an undefined value, or an error, for what must not be seen."""
    try:
        shown = render(template, MESSAGES)
    except ModelFileError:
        return
    assert "class" not in shown and "method" not in shown and "globals" not in shown


WORDS = ["{{", "}}", "{%", "%}", " for x in messages ", " endfor ", " if ", " endif ", "x", "'a'",
         "|join", "|list", "~", "*", "(", ")",
         "[", "]", "999", "**", ".format", "loop", "macro f() ",
         "set y = ", "messages", "|tojson", ".", "content", "__class__"]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=25))
def test_any_template_gives_text_or_one_error(words: list[str]) -> None:
    try:
        assert isinstance(render("".join(words), MESSAGES), str)
    except HeadcountError as error:
        assert "\n" not in str(error)
