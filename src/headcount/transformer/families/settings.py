"""A model's own constants: what its config states, else what its class takes when the config is silent.

``ModelSpec`` holds the geometry, which every count needs. Constants that change the numbers but no count (epsilons,
activations, rotary bases, multipliers) are read here, from the config that the spec carries.
"""

from __future__ import annotations

from typing import Any

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec.model import ModelSpec


class Settings:
    """Typed access to the config behind a spec; every value is checked, every fallback is the family's own."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.config = spec.config

    def value(self, *names: str) -> Any:
        """The first stated value that is not null; dotted names reach into nested objects; None when there is none."""
        for name in names:
            found: Any = self.config
            for step in name.split("."):
                found = found.get(step) if isinstance(found, dict) else None
            if found is not None:
                return found
        return None

    def number(
        self, *names: str, default: float, above: float = -1e30, least: float = -1e30, most: float = 1e30
    ) -> float:
        """A number above ``above``, from ``least`` to ``most``; the error says which values make sense."""
        found = self.value(*names)
        if found is None:
            return default
        known = isinstance(found, int | float) and not isinstance(found, bool)
        if not known or not (above < found and least <= found <= most):
            bounds = [
                f"above {above:g}" if above > -1e30 else "",
                f"at least {least:g}" if least > -1e30 else "",
                f"at most {most:g}" if most < 1e30 else "",
            ]
            raise self._wrong(
                names, found, " ".join(["a number", " and ".join(filter(None, bounds))]).strip()
            )
        return float(found)

    def optional_number(self, *names: str, above: float = -1e30) -> float | None:
        """The same; None when unstated."""
        return None if self.value(*names) is None else self.number(*names, default=0.0, above=above)

    def integer(self, *names: str, default: int | None = None, least: int = 0) -> int:
        """A whole number of ``least`` or more; ModelFileError when there is neither a value nor a default."""
        found = self.value(*names)
        if found is None:
            if default is None:
                raise ModelFileError(f"config of type {self.spec.family!r} lacks {' or '.join(names)}")
            return default
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found < 2**40:
            raise self._wrong(names, found, f"a whole number of {least} or more")
        return found

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false."""
        found = self.value(*names)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self._wrong(names, found, "true or false")
        return found

    def text(self, *names: str, default: str) -> str:
        """A word."""
        found = self.value(*names)
        if found is None:
            return default
        if not isinstance(found, str):
            raise self._wrong(names, found, "a word")
        return found

    def numbers(self, *names: str) -> list[float] | None:
        """A list of numbers; None when unstated."""
        found = self.value(*names)
        if found is None:
            return None
        if not isinstance(found, list) or any(
            isinstance(item, bool) or not isinstance(item, int | float) for item in found
        ):
            raise self._wrong(names, found, "a list of numbers")
        return [float(item) for item in found]

    def only(self, name: str, *allowed: object) -> None:
        """UnsupportedModelError when ``name`` is stated with a value whose network is not built here."""
        found = self.value(name)
        if found is not None and found not in allowed:
            known = ", ".join(str(value).lower() for value in allowed) or "not stated"
            raise UnsupportedModelError(
                f"the transformer does not run model type {self.spec.family!r} with {name}={str(found)[:40].lower()}; "
                f"it runs: {known}"
            )

    def _wrong(self, names: tuple[str, ...], found: object, wanted: str) -> ModelFileError:
        return ModelFileError(f"config key {names[0]} must be {wanted}; given {str(found)[:40]!r}")
