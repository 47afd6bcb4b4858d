"""``package:NAME``: what is no name of a package is told apart from a package that is not here."""

from __future__ import annotations

import pytest

from headcount.errors import UsageError
from headcount.spec.package import package_path


@pytest.mark.parametrize(
    "name", ["__main__", "..", ".", "", "-", "_x", "a/b", "a b", "../x", "9", "é", "a" * 300, "a\0b"]
)
def test_no_name_of_a_package(name: str) -> None:
    with pytest.raises(UsageError, match="after package: comes the name") as caught:
        package_path("package:" + name)
    assert len(str(caught.value)) < 240


@pytest.mark.parametrize("name", ["no-such-package", "no.such", "os", "sys"])
def test_no_such_package(name: str) -> None:
    with pytest.raises(UsageError, match="is not installed here"):
        package_path("package:" + name)
