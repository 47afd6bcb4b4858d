"""What one SGLang release does differently from the next: versions as data.

Source: the released packages 0.5.3, 0.5.4, 0.5.5, 0.5.6.post2, 0.5.7, 0.5.10, 0.5.11, 0.5.15, 0.5.20 and 0.5.23 (PyPI). Releases
between two samples are taken to follow the older one; ``SglangRules.version`` says whose rules were used. Only what
changes a pool of given bytes is kept by release; the default of mem_fraction_static is that of 0.5.23 for all of them.
"""

from __future__ import annotations

from headcount.engines.versions import release
from headcount.errors import UnknownNameError
from headcount.record import Record

VERIFIED_VERSION = "0.5.23"


class SglangRules(Record):
    """What one release does.

    indexer_counted        the keys of a sparse-attention indexer are part of a token's bytes (pull request 11309)
    window_ratio_applies   swa_full_tokens_ratio sizes the pool of MiMo-V2; before, it is as long as the full one (15488)
    raw_rows_on_blackwell  fp8 rows of sparse latent attention carry no scales on Blackwell: its default kernels (trtllm)
                           read plain ones
    padding_slot           the state pool's spare slot is taken off its bytes
    extra_buffer           states of hybrid models are tracked in extra slots by default
    attention_groups       data-parallel attention is ``--attn-dp-size N``; before, ``--dp-size N --enable-dp-attention``
    honours_fraction       SGLANG_AITER_HONOR_EXPLICIT_MEM_FRACTION is read: a stated fraction stands for long contexts too
    tower_buffers          what images and sound need after the pools are cut is kept from them (kv_cache_configurator.py)
    amd_rotary_bytes       of a number in rotary tables on AMD; on NVIDIA they are float32 in every release
    factor_in_arguments    the long-context factor of aiter is applied while arguments are resolved, so that a printed
                           fraction holds it (0.5.5); before, the model runner applied it to its own copy
    """

    version: str
    indexer_counted: bool = True
    window_ratio_applies: bool = True
    raw_rows_on_blackwell: bool = True
    padding_slot: bool = True
    extra_buffer: bool = True
    attention_groups: bool = True
    honours_fraction: bool = True
    factor_in_arguments: bool = True
    tower_buffers: bool = True
    amd_rotary_bytes: int = 4


def _history() -> tuple[SglangRules, ...]:
    """Newest first; each release is the one after it with what differed undone."""
    newest = SglangRules(version=VERIFIED_VERSION)
    v20 = newest.replace(version="0.5.20", attention_groups=False, amd_rotary_bytes=2)
    v15 = v20.replace(version="0.5.15", padding_slot=False, honours_fraction=False, tower_buffers=False)
    v11 = v15.replace(version="0.5.11", extra_buffer=False)
    v10 = v11.replace(version="0.5.10")
    v07 = v10.replace(version="0.5.7", raw_rows_on_blackwell=False)
    v06 = v07.replace(version="0.5.6", window_ratio_applies=False)
    v05 = v06.replace(version="0.5.5")
    v04 = v05.replace(version="0.5.4", factor_in_arguments=False)
    v03 = v04.replace(version="0.5.3", indexer_counted=False)
    return (newest, v20, v15, v11, v10, v07, v06, v05, v04, v03)


RULES: dict[str, SglangRules] = {rules.version: rules for rules in _history()}


def rules_for(engine_version: str) -> SglangRules:
    """Return the rules in force: of the newest known release that is not newer than ``engine_version``.

    A release before the first sample gets the first one's. Raises UnknownNameError for text that is no version.
    """
    wanted = release(engine_version)
    if not wanted:
        raise UnknownNameError(
            what="SGLang version",
            given=engine_version,
            allowed=list(RULES),
            hint="written like 0.5.23 or v0.5.6.post2",
        )
    oldest = None
    for version, rules in RULES.items():
        if release(version) <= wanted:
            return rules
        oldest = rules
    assert oldest is not None
    return oldest
