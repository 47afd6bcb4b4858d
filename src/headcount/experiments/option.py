"""What an experiment may be asked: named options with a default, a quick default and a range, checked in one place."""

from __future__ import annotations

from itertools import pairwise

from headcount.errors import UnknownNameError, UsageError
from headcount.record import Record
from headcount.units import parse_count, parse_fraction

Value = int | float | str | tuple[int, ...] | tuple[float, ...]


class Option(Record):
    """``name`` is the keyword (``--head-width`` on the command line); numbers must lie within ``least`` to ``most``.

    A default that is a tuple makes the option a rising list; one that holds floats takes fractions, else whole numbers;
    ``choices`` makes it a name.
    """

    name: str
    words: str
    default: Value
    quick: Value
    least: float = 1
    most: float = 10**6
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """As typed: ``--head-width``."""
        return "--" + self.name.replace("_", "-")

    @property
    def many(self) -> bool:
        """Takes several values, separated by commas."""
        return isinstance(self.default, tuple)

    @property
    def whole(self) -> bool:
        """Takes whole numbers."""
        sample = self.default[0] if isinstance(self.default, tuple) else self.default
        return isinstance(sample, int)

    def parse(self, text: str) -> Value:
        """Read the command line's text; UsageError says what is allowed."""
        if isinstance(self.default, str):
            return self.check(text)
        numbers = [self._number(part) for part in (text.split(",") if self.many else [text])]
        return self.check(tuple(numbers) if self.many else numbers[0])

    def _number(self, text: str) -> int | float:
        if self.whole:
            return parse_count(text, what=self.flag, minimum=int(self.least), maximum=int(self.most))
        return parse_fraction(text, what=self.flag, low=self.least, high=self.most)

    def check(self, value: object) -> Value:
        """Return the value when it is allowed; UsageError or UnknownNameError otherwise."""
        if isinstance(self.default, str):
            if not isinstance(value, str):
                raise UsageError(f"{self.flag} must be a name; given {value!r}")
            if self.choices and value not in self.choices:
                raise UnknownNameError(what=f"value of {self.flag}", given=value, allowed=self.choices)
            return value
        numbers: tuple[int | float, ...] = (
            tuple(value) if self.many and isinstance(value, tuple | list) else (value,)  # type: ignore[assignment]
        )
        kinds = int if self.whole else int | float
        for number in numbers:
            good = isinstance(number, kinds) and not isinstance(number, bool)
            if not (good and self.least <= number <= self.most):
                raise UsageError(
                    f"{self.flag} must be {'whole, ' if self.whole else ''}{self.least:,g} to {self.most:,g}; "
                    f"given {number!r}"
                )
        if not self.many:
            return numbers[0]
        if not numbers or any(b <= a for a, b in pairwise(numbers)):
            raise UsageError(f"{self.flag} must be a rising list such as 64,128; given {value!r}")
        return numbers


class Experiment(Record):
    """One entry of the registry: the module ``headcount.experiments.<name>`` holds its ``measure``.

    ``seconds`` is about how long the default run takes on two CPU cores (docs/experiments.md).
    """

    name: str
    question: str
    options: tuple[Option, ...]
    repeats: int
    seconds: int
    quick_repeats: int = 2

    def option(self, name: str) -> Option:
        """The option of that name; UsageError names those there are."""
        for option in self.options:
            if option.name == name:
                return option
        flags = ", ".join(option.flag for option in self.options)
        raise UsageError(
            f"experiment {self.name} takes no --{name.replace('_', '-')}; its options are {flags}"
        )

    def as_document(self) -> dict[str, object]:
        """The JSON of the list: name, question, options with their defaults."""
        return {
            "name": self.name,
            "question": self.question,
            "repeats": self.repeats,
            "options": {option.flag: option.default for option in self.options},
        }
