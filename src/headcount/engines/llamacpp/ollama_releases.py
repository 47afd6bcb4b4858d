"""Which llama.cpp an Ollama release carries: from 0.30 on a numbered build, before that a commit, dated.

Read from the tags of ollama/ollama (newest commit fb30760, 2026-08-21): ``LLAMA_CPP_VERSION`` from 0.30.0 on, before it the
commit that ``Makefile.sync`` (``llama/vendoring``, the submodule ``llm/llama.cpp``) names, dated by the day of the first
tag that has it: llama.cpp's is at most that day. Two dates are earlier than their tags: the tree of 0.6.6 is without
llama.cpp's pull request 12801 (merged 2025-04-15), that of 0.12.11 without 16812 (2025-10-28).

Only from 0.30.0 on does Ollama start llama-server (pull request 16031). Before, it linked llama.cpp into runners of its
own, and from 0.6 on ran newer models on an engine of its own (``own_engine.py``).
"""

from __future__ import annotations

from headcount.engines.versions import release

FIRST_WITH_LLAMA_SERVER = (0, 30, 0)
NEWEST_RELEASE = "0.32.15"
# (first release, what ``builds.build`` reads); a release between two entries carries the older one's llama.cpp.
_CARRIED = (
    ("0.32.15", "b10488"),
    ("0.32.14", "b10434"),
    ("0.32.10", "b10380"),
    ("0.32.8", "b10353"),
    ("0.32.6", "b10242"),
    ("0.32.3", "b10091"),
    ("0.32.2", "b10069"),
    ("0.31.2", "b9888"),
    ("0.31.0", "b9840"),
    ("0.30.11", "b9781"),
    ("0.30.10", "b9672"),
    ("0.30.9", "b9626"),
    ("0.30.5", "b9509"),
    ("0.30.4", "b9493"),
    ("0.30.1", "b9479"),
    ("0.30.0", "b9452"),
    ("0.13.5", "2025-12-18"),
    ("0.13.3", "2025-12-11"),
    ("0.13.2", "2025-12-07"),
    ("0.12.11", "2025-10-27"),
    ("0.12.6", "2025-10-16"),
    ("0.12.4", "2025-10-09"),
    ("0.11.5", "2025-08-18"),
    ("0.7.0", "2025-05-14"),
    ("0.6.8", "2025-05-03"),
    ("0.6.7", "2025-04-30"),
    ("0.6.6", "2025-04-14"),
    ("0.5.13", "2025-03-03"),
    ("0.5.5", "2025-01-10"),
    ("0.5.3", "2024-12-16"),
    ("0.5.2", "2024-12-13"),
    ("0.3.14", "2024-10-17"),
    ("0.3.10", "2024-09-07"),
    ("0.3.4", "2024-08-06"),
    ("0.3.1", "2024-07-30"),
    ("0.2.8", "2024-07-22"),
    ("0.2.0", "2024-07-07"),
    ("0.1.45", "2024-06-20"),
    ("0.1.40", "2024-05-31"),
    ("0.1.39", "2024-05-28"),
    ("0.1.33", "2024-05-02"),
    # No rule that is kept here changed before 2024-04-30.
    ("0.0.1", "2024-04-16"),
)


def carried(version: str) -> str | None:
    """The llama.cpp of release ``version`` as ``builds.build`` reads it: the newest entry not above it; None for no release."""
    wanted = release(version)
    # Four digits before the point are a year.
    if not wanted or wanted[0] > 999:
        return None
    return next((text for first, text in _CARRIED if release(first) <= wanted), None)


def release_warnings(version: str, *, own: bool = False) -> tuple[str, ...]:
    """What a plan for release ``version`` rests on: nothing to say where it is known and starts llama-server."""
    wanted = release(version)
    if own:
        return (
            f"Ollama {version}'s own engine: its caches are by its source, its graph is taken as large as llama.cpp's",
        )
    if wanted and wanted < FIRST_WITH_LLAMA_SERVER:
        return (
            f"Ollama {version} does not start llama-server (0.30.0 and later do): llama.cpp's rules of that time are used; a "
            "model that its own engine runs needs ollama-engine=true",
        )
    if wanted > release(NEWEST_RELEASE):
        return (
            f"Ollama {version}: the rules of {NEWEST_RELEASE} are used, the newest release that was read",
        )
    return ()
