"""Typed access to a Hugging Face config: the file's value, else the class default, else a rule; never a guess.

A key is looked up under its own name and under its aliases in the class's attribute map. Dotted names reach into
nested objects (``attn_config.kv_n_heads``). ``null`` counts as "not stated". Every value is checked: a string, a
float, NaN, a negative or an absurdly large number where a size belongs is refused with the key's name.
"""

from __future__ import annotations

from headcount.errors import ModelFileError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Larger than any width, vocabulary or expert count in use; keeps hostile files from allocating layers without end.
MAX_SIZE = 2**31
MAX_LAYERS = 4096


class Keys:
    """The keys of one model type's config. ``overrides`` holds what-ifs (``kv_heads``) asked for by the user."""

    def __init__(
        self,
        config: dict[str, Any],
        *,
        model_type: str,
        defaults: dict[str, Any],
        attribute_map: dict[str, str],
        overrides: dict[str, int] | None = None,
    ) -> None:
        self.config = config
        self.model_type = model_type
        self.defaults = defaults
        self.overrides = dict(overrides or {})
        self.used_overrides: set[str] = set()
        self.notes: list[str] = []
        self._aliases: dict[str, list[str]] = {}
        for alias, real in attribute_map.items():
            self._aliases.setdefault(real, []).append(alias)
            self._aliases.setdefault(alias, []).append(real)

    def over(self, config: dict[str, Any]) -> Keys:
        """The same class rules over a translated config; notes and used what-ifs are shared with this one."""
        other = Keys(
            config,
            model_type=self.model_type,
            defaults=self.defaults,
            attribute_map={},
            overrides=self.overrides,
        )
        other.used_overrides, other.notes, other._aliases = self.used_overrides, self.notes, self._aliases
        return other

    def stated(self, name: str) -> bool:
        """Whether the file itself carries ``name`` (or an alias), ``null`` included."""
        return any(_reach(self.config, key)[0] for key in (name, *self._aliases.get(name, ())))

    def value(self, name: str) -> Any:
        """The file's value of ``name``, else the class default, else None."""
        for source in (self.config, self.defaults):
            for key in (name, *self._aliases.get(name, ())):
                found, value = _reach(source, key)
                if found:
                    return value
        return None

    def integer(
        self, *names: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_SIZE
    ) -> int:
        """First stated whole number among ``names``, else ``default``; ModelFileError when there is none."""
        value = self.optional_integer(*names, minimum=minimum, maximum=maximum)
        if value is not None:
            return value
        if default is not None:
            return default
        raise ModelFileError(f"config of type {self.model_type!r} lacks {' or '.join(names)}")

    def optional_integer(self, *names: str, minimum: int = 1, maximum: int = MAX_SIZE) -> int | None:
        """First stated whole number among ``names``; None when all are absent or null."""
        for name in names:
            value = self.value(name)
            if value is None:
                continue
            return self.checked(name, value, minimum=minimum, maximum=maximum)
        return None

    def checked(self, name: str, value: Any, *, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """Return ``value`` when it is a whole number within the bounds; ModelFileError otherwise."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelFileError(f"config key {name} must be a whole number; given {str(value)[:60]!r}")
        if not minimum <= value <= maximum:
            raise ModelFileError(
                f"config key {name} must be {minimum:,} to {maximum:,}; given {str(value)[:40]}"
            )
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """First stated true/false among ``names``, else ``default``."""
        for name in names:
            value = self.value(name)
            if value is None:
                continue
            if isinstance(value, bool):
                return value
            raise ModelFileError(f"config key {name} must be true or false; given {str(value)[:60]!r}")
        return default

    def text(self, name: str, default: str = "") -> str:
        """A string, else ``default``."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ModelFileError(f"config key {name} must be text; given {str(value)[:60]!r}")
        return value

    def sequence(self, name: str) -> list[Any] | None:
        """A list, or None when absent or null; lists longer than ``MAX_LAYERS`` are refused."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > MAX_LAYERS:
            raise ModelFileError(f"config key {name} must be a list of at most {MAX_LAYERS:,} entries")
        return value

    def integers(self, name: str, *, minimum: int = 0) -> list[int] | None:
        """A list of whole numbers, or None."""
        values = self.sequence(name)
        if values is None:
            return None
        return [self.checked(f"{name}[{i}]", value, minimum=minimum) for i, value in enumerate(values)]

    def layer_count(self, *names: str) -> int:
        """Number of blocks, at most ``MAX_LAYERS``."""
        return self.integer(*(names or ("num_hidden_layers",)), maximum=MAX_LAYERS)

    def key_value_heads(self, query_heads: int, *names: str, default: int | None = None) -> int:
        """K: the what-if of ``--kv-heads``, else the config, else ``default``, else one per query head (MHA)."""
        override = self.overrides.get("kv_heads")
        if override is not None:
            self.used_overrides.add("kv_heads")
            if override > query_heads or query_heads % override:
                raise UsageError(
                    f"--kv-heads {override}: {query_heads} query heads must be a multiple of it; "
                    f"allowed: {', '.join(map(str, divisors(query_heads)[:16]))}"
                )
            return override
        heads = self.integer(*(names or ("num_key_value_heads",)), default=default or query_heads)
        if query_heads % heads:
            raise ModelFileError(
                f"config: {query_heads} query heads are not a multiple of {heads} key/value heads"
            )
        return heads

    def divided(self, name: str, total: int, parts: int) -> int:
        """``total / parts`` when it is whole (a head width); ModelFileError otherwise."""
        if total % parts:
            raise ModelFileError(
                f"config: {name} {total} does not divide by {parts} heads, and no head_dim is given"
            )
        return total // parts


def divisors(number: int) -> list[int]:
    """All divisors of ``number``, ascending."""
    from math import isqrt

    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def _reach(source: dict[str, Any], name: str) -> tuple[bool, Any]:
    if name in source:
        return True, source[name]
    if "." in name:
        head, _, rest = name.partition(".")
        inner = source.get(head)
        if isinstance(inner, dict):
            return _reach(inner, rest)
        if inner is not None:
            # Passing over it would answer with class defaults: a plausible, wrong model.
            raise ModelFileError(f"config key {head} must be an object; given {str(inner)[:40]!r}")
    return False, None
