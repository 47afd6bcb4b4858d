"""Formulas in one small notation, drawn as MathML for a page and as short Unicode text for a picture.

W_Q  x_(i+1)  K^T  e^(-x)      subscript, superscript; brackets group and are dropped there
sqrt(d_k)  sum_j  log  exp      root, sum sign, functions upright
A * B                           entry by entry
alpha theta ... inf -> <= >=    Greek letters and signs by name
"if"                            words
dS'                             the gradient of L at S'
"""

from __future__ import annotations

import re
from html import escape

_TOKEN = re.compile(
    r"""(?P<space>\s+)|"(?P<text>[^"]*)"|(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)"""
    r"|(?P<word>[A-Za-z][A-Za-z0-9]*'*)|(?P<sign><-|->|<=|>=|!=|\|\||.)"
)
_GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "eps": "ε", "theta": "θ", "lambda": "λ", "mu": "μ",
    "rho": "ρ", "sigma": "σ", "omega": "ω",
}  # fmt: skip
_WORDS = {"inf": "∞", "sum": "∑", "prod": "∏"}
_SIGNS = {
    "->": "→", "<-": "←", "<=": "≤", ">=": "≥", "!=": "≠", "||": "‖", "*": "⊙", "-": "−", "'": "′", "~": "≈",
}  # fmt: skip


# After these a blank is a product, and needs air that MathML does not give.
_FACTORS = frozenset(("word", "number", ")"))


def inline(text: str) -> str:
    """Prose as HTML: ``code``, subscripts such as d_k, the transpose sign."""
    parts = escape(text).split("`")
    return "".join(
        f"<code>{part}</code>" if index % 2 else _scripts(part) for index, part in enumerate(parts)
    )


def _scripts(text: str) -> str:
    out = re.sub(r"(?<![\w.])(?<![A-Za-z]{2}/)(d?[A-Za-z])_([A-Za-z0-9]+)\b", r"\1<sub>\2</sub>", text)
    out = re.sub(r"\^T\b", "ᵀ", out)
    return re.sub(r"\^(\d+)|\^\(([^()]*)\)", lambda m: f"<sup>{m.group(1) or m.group(2)}</sup>", out)


def mathml(formula: str) -> str:
    """One formula as a ``<math>`` element; its plain text is the ``alttext``."""
    tokens = _Tokens(formula)
    body = _row(tokens, until="")
    plain = escape(formula.replace('"', ""), quote=True)
    return f'<math display="block" alttext="{plain}">{body}</math>'


class _Tokens:
    def __init__(self, formula: str) -> None:
        self.items = [
            (match.lastgroup or "sign", match.group(match.lastgroup or 0))
            for match in _TOKEN.finditer(formula)
        ]
        self.at = 0

    def peek(self) -> tuple[str, str]:
        return self.items[self.at] if self.at < len(self.items) else ("end", "")

    def take(self) -> tuple[str, str]:
        item = self.peek()
        self.at += 1
        return item

    def last(self) -> str:
        """What stood just before: a kind, or a closing bracket."""
        kind, text = self.items[self.at - 1] if self.at else ("", "")
        return text if kind == "sign" else kind

    def opens(self) -> bool:
        """Whether a factor follows."""
        kind, text = self.peek()
        return kind in ("word", "number") or text == "("


def _row(tokens: _Tokens, *, until: str) -> str:
    parts = []
    while tokens.peek()[0] != "end" and (not until or tokens.peek()[1] != until):
        kind, text = tokens.peek()
        if kind == "space":
            before = tokens.last()
            tokens.take()
            if len(text) > 1:
                parts.append(f'<mspace width="{0.5 * len(text):g}em"></mspace>')
            elif before in _FACTORS and tokens.opens():
                parts.append('<mspace width="0.22em"></mspace>')
            continue
        parts.append(_scripted(tokens))
    if until:
        tokens.take()
    return "<mrow>" + "".join(parts) + "</mrow>"


def _scripted(tokens: _Tokens) -> str:
    """An atom with its subscript and superscript, if any."""
    base = _atom(tokens)
    below = above = ""
    while tokens.peek()[1] in ("_", "^") and tokens.peek()[0] == "sign":
        sign = tokens.take()[1]
        script = _script(tokens)
        below, above = (script, above) if sign == "_" else (below, script)
    if below and above:
        return f"<msubsup>{base}{below}{above}</msubsup>"
    if below:
        return f"<msub>{base}{below}</msub>"
    return f"<msup>{base}{above}</msup>" if above else base


def _script(tokens: _Tokens) -> str:
    kind, text = tokens.peek()
    if text == "(":
        tokens.take()
        return _row(tokens, until=")")
    if kind == "word" and text == "T":
        tokens.take()
        return '<mi mathvariant="normal">T</mi>'
    if kind == "word":
        tokens.take()
        return f"<mi>{escape(_GREEK.get(text, text).replace(chr(39), '′'))}</mi>"
    return _atom(tokens)


def _atom(tokens: _Tokens) -> str:
    kind, text = tokens.take()
    if kind == "number":
        return f"<mn>{text}</mn>"
    if kind == "text":
        return f"<mtext>&#160;{escape(text)}&#160;</mtext>"
    if kind == "word":
        if text == "sqrt" and tokens.peek()[1] == "(":
            tokens.take()
            return f"<msqrt>{_row(tokens, until=')')}</msqrt>"
        return _word(text)
    if text == "(":
        return f"<mrow><mo>(</mo>{_row(tokens, until=')')}<mo>)</mo></mrow>"
    return f"<mo>{escape(_SIGNS.get(text, text))}</mo>"


def _word(text: str) -> str:
    plain = text.rstrip("'")
    primes = "<mo>′</mo>" * (len(text) - len(plain))
    if plain in _WORDS:
        return f"<mo>{_WORDS[plain]}</mo>"
    if plain in _GREEK:
        return f"<mi>{_GREEK[plain]}</mi>{primes}"
    if len(plain) > 1 and plain[0] == "d" and (plain[1].isupper() or len(plain) == 2):
        inner = f"<mi>d</mi><mi>{escape(plain[1:])}</mi>{primes}"
        return f"<mrow>{inner}</mrow>"
    return f"<mrow><mi>{escape(plain)}</mi>{primes}</mrow>" if primes else f"<mi>{escape(plain)}</mi>"


def unicode_text(formula: str) -> str:
    """The same as one line of Unicode: ``dS = dS' K^T`` with ``ᵀ``, ``Σ``, ``√``, ``⊙``; subscripts keep ``_``."""
    text = re.sub(r"\^T\b", "ᵀ", formula)
    text = re.sub(r"\bsum\b", "Σ", text)
    text = re.sub(r"\bsqrt\b", "√", text)
    text = re.sub(r"\binf\b", "∞", text)
    for name, sign in _GREEK.items():
        text = re.sub(rf"\b{name}\b", sign, text)
    return text.replace(" * ", " ⊙ ").replace("'", "′").replace("-∞", "−∞").replace(" - ", " − ")
