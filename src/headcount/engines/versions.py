"""Release numbers, as engines write them."""

from __future__ import annotations


def release(version: str) -> tuple[int, ...]:
    """``v0.8.5.post1`` -> (0, 8, 5); () when there are no two leading numbers."""
    out: list[int] = []
    for part in version.strip().removeprefix("v").split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        out.append(int(digits))
    return (*out, *[0] * (3 - len(out))) if len(out) >= 2 else ()
