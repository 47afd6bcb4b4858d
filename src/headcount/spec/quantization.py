"""How linear weights are packed: ``quantization_config`` -> bytes per tensor, with scales, zero points and exceptions.

    bytes(out x in) = ceil(out in b / 8) + groups x (scale + zero) + per-tensor and per-column extras

    method                 b   group             scale       zero         source
    fp8 (DeepSeek)         8   128 x 128 block   4           -            one fp32 per block
    fp8 (per tensor/row)   8   whole / row       4           -            one fp32 each
    gptq                   4   128 columns       2           b bits       + 4 B per input column (g_idx)
    awq                    4   128 columns       2           b bits
    bitsandbytes nf4       4   64 values         1           -            double quantised: + 4 B per 256 scales
    mxfp4                  4   32 values         1           -            one E8M0 per 32 (OCP MX)
    nvfp4                  4   16 values         1           -            one E4M3 per 16, + fp32 weight and input scales
    compressed-tensors     as its config_groups say                       scales in 16 bits; packed ints: + 16 B shape

Embeddings, norms, biases, routers and everything the config's ignore list names stay in the model's 16-bit type. So do
vision and audio towers under GPTQ and AWQ, whose tools pack the decoder's blocks only, and wherever the config lists no
exceptions at all; elsewhere the list decides.
That is why the bytes are not ``parameters x b / 8``. Left out, below 1 MB a model: bitsandbytes' code tables, and the
empty biases that AutoGPTQ writes beside every matrix. Checked against published checkpoints in the tests.
"""

from __future__ import annotations

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.record import Record
from headcount.spec.weight import EXPERTS, HEAD, ROUTER, SHARED_EXPERTS, TOWER_PARTS
from headcount.units import ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.spec.weight import Weight


class Packing(Record):
    """Storage of one linear weight; the module's equation.

    group        values of one row that share a scale; 0: the whole row (or tensor when ``per_tensor``)
    block_rows   rows that share a scale too (128 for DeepSeek blocks, else 1)
    scale_bytes  bytes of one scale; zero_bits: bits of one zero point per group
    column_bytes bytes per input column (GPTQ's g_idx); tensor_bytes: per tensor (NVFP4's global scales)
    super_scale_group  scales that share one fp32 scale of their own (double quantisation); 0: none
    """

    name: str
    bits: int
    group: int = 0
    block_rows: int = 1
    per_tensor: bool = False
    scale_bytes: int = 2
    zero_bits: int = 0
    column_bytes: int = 0
    tensor_bytes: int = 0
    super_scale_group: int = 0

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of one packed ``rows x columns`` matrix (rows = output features)."""
        packed = ceil_div(rows * columns * self.bits, 8)
        if self.per_tensor:
            groups = 1
        else:
            groups = ceil_div(rows, self.block_rows) * (ceil_div(columns, self.group) if self.group else 1)
        scales = groups * self.scale_bytes + ceil_div(groups * self.zero_bits, 8)
        if self.super_scale_group:
            scales += ceil_div(groups, self.super_scale_group) * 4
        return packed + scales + columns * self.column_bytes + self.tensor_bytes


FP8 = Packing(name="fp8", bits=8, per_tensor=True, scale_bytes=4)
FP8_ROW = Packing(name="fp8 per output row", bits=8, scale_bytes=4)
FP8_BLOCK = Packing(name="fp8 128x128 blocks", bits=8, group=128, block_rows=128, scale_bytes=4)
INT8_ROW = Packing(name="int8 per output row", bits=8, scale_bytes=4)
AWQ = Packing(name="awq", bits=4, group=128, zero_bits=4)
GPTQ = Packing(name="gptq", bits=4, group=128, zero_bits=4, column_bytes=4)
NF4 = Packing(name="nf4, double quantised", bits=4, group=64, scale_bytes=1, super_scale_group=256)
MXFP4 = Packing(name="mxfp4", bits=4, group=32, scale_bytes=1)
MXFP8 = Packing(name="mxfp8", bits=8, group=32, scale_bytes=1)
NVFP4 = Packing(name="nvfp4", bits=4, group=16, scale_bytes=1, tensor_bytes=8)
NVFP4_WEIGHT_ONLY = NVFP4.replace(name="nvfp4, 16-bit activations", tensor_bytes=4)

# What ``--weights NAME`` makes of a model that is stored in 16 bits.
RECIPES: dict[str, Packing] = {
    "fp8": FP8,
    "fp8_block": FP8_BLOCK,
    "int8": INT8_ROW,
    "int4": AWQ,
    "awq": AWQ,
    "gptq": GPTQ,
    "nf4": NF4,
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
}


class Rule(Record):
    """One packing and the modules it is for.

    targets   names, ``re:`` patterns, ``*`` wildcards, or the class ``Linear``
    parts     when not empty, only weights of these parts (MXFP4 of gpt-oss: experts)
    """

    packing: Packing
    targets: tuple[str, ...] = ("Linear",)
    parts: tuple[str, ...] = ()


class Quantization(Record):
    """A model's weight quantisation.

    method    as the config names it
    rules     first match wins
    ignore    modules left in 16 bits
    packs_head  whether the LM head is packed when no ignore entry names it
    packs_towers  the same of the linear weights of vision and audio towers
    notes     what the config leaves open, and what is assumed in its place
    """

    method: str
    rules: tuple[Rule, ...]
    ignore: tuple[str, ...] = ()
    packs_head: bool = False
    packs_towers: bool = False
    kv_cache_bits: int | None = None
    notes: tuple[str, ...] = ()

    def packing_of(self, weight: Weight, layer: int) -> Packing | None:
        """The packing of ``weight`` in layer ``layer`` (its ``{i}``); None when it stays in 16 bits."""
        if not weight.linear or weight.part == ROUTER or (weight.part == HEAD and not self.packs_head):
            return None
        # Only quantised models pay for the import.
        from headcount.spec.module_names import matches

        tower = weight.part in TOWER_PARTS
        if tower and not self.packs_towers:
            return None
        name = weight.name.replace("{i}", str(layer)).replace("*", "0")
        if matches(name, self.ignore, tower=tower):
            return None
        for rule in self.rules:
            if rule.parts and weight.part not in rule.parts:
                continue
            if "Linear" in rule.targets or matches(name, rule.targets, tower=tower):
                return rule.packing
        return None

    @property
    def depends_on_layer(self) -> bool:
        """Whether layers of one shape may be packed differently (an ignore list or target names layers)."""
        return any(any(ch.isdigit() for ch in entry) or entry.startswith("re:") for entry in self._entries())

    def _entries(self) -> list[str]:
        return [*self.ignore, *(target for rule in self.rules for target in rule.targets)]


def read_quantization(config: dict[str, Any]) -> Quantization | None:
    """Read ``quantization_config`` (or ``compression_config``); None when there is none.

    Raises UnsupportedModelError naming a method that is not known, ModelFileError for a value that makes no sense.
    """
    raw = config.get("quantization_config")
    raw = config.get("compression_config") if raw is None or raw == {} else raw
    if raw is None or raw == {}:
        return None
    if not isinstance(raw, dict):
        raise ModelFileError(f"quantization_config must be an object, not {type(raw).__name__}")
    method = (
        str(raw.get("quant_method") or raw.get("quantization_method") or _guess(raw))
        .lower()
        .replace("_", "-")
    )
    reader = _READERS.get(method)
    if reader is None:
        raise UnsupportedModelError(
            f"quantization method {method[:40]!r} is not known; known: {', '.join(sorted(_READERS))}"
        )
    return _as_deepseek_stores(reader(raw, method), config)


# Linear weights that DeepSeek's fp8 checkpoints keep in 16 or 32 bits without saying so in the config.
_UNSAID = {"deepseek_v32": ("weights_proj",), "deepseek_v4": ("compressor", "weights_proj", "hc_*")}


def _as_deepseek_stores(quantization: Quantization, config: dict[str, Any]) -> Quantization:
    """Add what DeepSeek's configs say outside ``quantization_config``, or nowhere.

    ``expert_dtype: fp4`` (V4): routed experts are E2M1, two to a byte, with one E8M0 scale per 32 values of a row,
    and the fp8 blocks' scales are E8M0 as well.
    """
    if quantization.method != "fp8":
        return quantization
    unsaid = _UNSAID.get(str(config.get("model_type")), ())
    quantization = quantization.replace(ignore=(*quantization.ignore, *unsaid))
    experts = config.get("expert_dtype")
    if experts in (None, "fp8"):
        return quantization
    if experts != "fp4":
        raise UnsupportedModelError(f"expert_dtype {str(experts)[:40]!r} is not known; known: fp4, fp8")
    rest = tuple(rule.replace(packing=rule.packing.replace(scale_bytes=1)) for rule in quantization.rules)
    return quantization.replace(rules=(Rule(packing=MXFP4, parts=(EXPERTS,)), *rest))


def _guess(raw: dict[str, Any]) -> str:
    """Old files name no method: bitsandbytes by its load flags, compressed-tensors by its groups."""
    if raw.get("load_in_4bit") or raw.get("load_in_8bit"):
        return "bitsandbytes"
    if "config_groups" in raw:
        return "compressed-tensors"
    if "quant_algo" in raw or isinstance(raw.get("quantization"), dict):
        return "modelopt"
    return "unnamed"


def _names(raw: dict[str, Any], *keys: str) -> tuple[str, ...]:
    found: list[str] = []
    for key in keys:
        value = raw.get(key)
        if value is None:
            continue
        # A list that is passed over would pack what the file holds in 16 bits.
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise ModelFileError(
                f"quantization_config: {key} must be a list of module names; given {str(value)[:40]!r}"
            )
        found += value
    return tuple(found)


_SKIPS = (
    "modules_to_not_convert",
    "ignored_layers",
    "ignore",
    "exclude_modules",
    "llm_int8_skip_modules",
    "modules_not_to_convert",
)


def _lists_exceptions(raw: dict[str, Any]) -> bool:
    """Whether the config lists unpacked modules at all; an empty list is a list, an abridged config has none."""
    return any(isinstance(raw.get(key), list) for key in _SKIPS)


def _unlisted(raw: dict[str, Any], method: str) -> tuple[str, ...]:
    if _lists_exceptions(raw):
        return ()
    return (
        f"quantization_config of {method} lists no modules left in 16 bits: all but embeddings, routers and the LM "
        "head is counted as packed, so the weights may be larger",
    )


def _number(raw: dict[str, Any], key: str, default: int, *, low: int, high: int) -> int:
    value = raw.get(key, default)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ModelFileError(
            f"quantization_config: {key} {str(value)[:40]!r} must be a whole number {low} to {high}"
        )
    return value


def _read_fp8(raw: dict[str, Any], method: str) -> Quantization:
    block = raw.get("weight_block_size")
    if block is not None:
        if not isinstance(block, list) or len(block) != 2:
            raise ModelFileError(
                f"quantization_config: weight_block_size must be two whole numbers; given {str(block)[:40]!r}"
            )
        rows, columns = (
            _number({"weight_block_size": b}, "weight_block_size", 128, low=1, high=65536) for b in block
        )
        packing = FP8_BLOCK.replace(group=columns, block_rows=rows)
    else:
        packing = FP8_ROW if method == "fbgemm-fp8" else FP8
    if raw.get("activation_scheme") == "static":
        packing = packing.replace(tensor_bytes=4)
    # Meta's fbgemm checkpoints keep attention, the first and the last block in 16 bits and list them
    # (arXiv 2407.21783, section 6.2); DeepSeek's and Qwen's fp8 configs need no list.
    notes = _unlisted(raw, method) if method == "fbgemm-fp8" else ()
    return Quantization(
        method=method,
        rules=(Rule(packing=packing),),
        ignore=_names(raw, *_SKIPS),
        packs_towers=_lists_exceptions(raw),
        notes=notes,
    )


def _read_group_int(raw: dict[str, Any], method: str) -> Quantization:
    bits = _number(raw, "bits" if "bits" in raw else "w_bit", 4, low=2, high=8)
    group = _number(raw, "group_size" if "group_size" in raw else "q_group_size", 128, low=-1, high=65536)
    base = GPTQ if method in ("gptq", "gptq-marlin") else AWQ
    zero = 0 if raw.get("zero_point") is False else bits
    packing = base.replace(name=method, bits=bits, group=max(group, 0), zero_bits=zero)
    rules, ignore = _gptq_overrides(raw, packing)
    blocks = raw.get("modules_in_block_to_quantize")
    if isinstance(blocks, list):
        nested = [entry if isinstance(entry, list) else [entry] for entry in blocks]
        targets = tuple(name for entry in nested for name in entry if isinstance(name, str))
        rules.append(Rule(packing=packing, targets=targets))
    else:
        rules.append(Rule(packing=packing))
    return Quantization(
        method=method,
        rules=tuple(rules),
        ignore=(*_names(raw, *_SKIPS), *ignore),
        packs_head=bool(raw.get("lm_head")),
    )


def _gptq_overrides(raw: dict[str, Any], packing: Packing) -> tuple[list[Rule], list[str]]:
    """Read GPTQModel's ``dynamic``: ``-:pattern`` leaves modules in 16 bits, ``+:pattern`` gives them other bits."""
    dynamic = raw.get("dynamic")
    if dynamic is None:
        return [], []
    if not isinstance(dynamic, dict):
        raise ModelFileError(
            f"quantization_config: dynamic must be an object of patterns, not {type(dynamic).__name__}"
        )
    rules, ignore = [], []
    for pattern, change in dynamic.items():
        if pattern.startswith("-:"):
            ignore.append("re:" + pattern[2:])
        elif isinstance(change, dict) and change:
            bits = _number(change, "bits", packing.bits, low=2, high=8)
            group = _number(change, "group_size", packing.group or -1, low=-1, high=65536)
            other = packing.replace(bits=bits, group=max(group, 0), zero_bits=bits)
            rules.append(Rule(packing=other, targets=("re:" + pattern.removeprefix("+:"),)))
    return rules, ignore


def _read_bitsandbytes(raw: dict[str, Any], method: str) -> Quantization:
    if raw.get("load_in_8bit"):
        packing = INT8_ROW.replace(name="bitsandbytes int8")
    elif not raw.get("load_in_4bit"):
        raise ModelFileError("quantization_config of bitsandbytes says neither load_in_4bit nor load_in_8bit")
    else:
        packing = (
            NF4
            if raw.get("bnb_4bit_use_double_quant")
            else NF4.replace(name="nf4", scale_bytes=4, super_scale_group=0)
        )
    # Every linear layer of the model is replaced, its towers' too, unless the list names them.
    return Quantization(
        method=method, rules=(Rule(packing=packing),), ignore=_names(raw, *_SKIPS), packs_towers=True
    )


def _read_mxfp4(raw: dict[str, Any], method: str) -> Quantization:
    # Only the experts of gpt-oss are packed; its list of exceptions names everything else.
    rule = Rule(packing=MXFP4, parts=(EXPERTS, SHARED_EXPERTS))
    return Quantization(method=method, rules=(rule,), ignore=_names(raw, *_SKIPS))


def _read_mxfp8(raw: dict[str, Any], method: str) -> Quantization:
    return Quantization(
        method=method,
        rules=(Rule(packing=MXFP8),),
        ignore=_names(raw, *_SKIPS),
        packs_towers=_lists_exceptions(raw),
    )


def _group_packing(weights: dict[str, Any], inputs: object, file_format: str) -> Packing:
    """Read one ``config_groups`` entry: its weights, its ``input_activations`` and its storage format."""
    bits = _number(weights, "num_bits", 8, low=1, high=16)
    kind = str(weights.get("type", "int"))
    strategy = str(weights.get("strategy") or "tensor")
    group = weights.get("group_size")
    zero = 0 if weights.get("symmetric", True) else bits
    if "24" in file_format or "sparse" in file_format:
        raise UnsupportedModelError(
            f"compressed-tensors format {file_format[:40]!r} is not known: sparse weights"
        )
    if "nvfp4" in file_format or (bits == 4 and kind == "float" and group == 16):
        return NVFP4 if isinstance(inputs, dict) else NVFP4_WEIGHT_ONLY
    if "mxfp4" in file_format or (bits == 4 and kind == "float" and group == 32):
        return MXFP4
    base = Packing(name=f"{kind}{bits} per {strategy}", bits=bits, scale_bytes=2, zero_bits=zero)
    if isinstance(inputs, dict) and inputs.get("dynamic") is False:
        base = base.replace(tensor_bytes=2)
    if file_format == "pack-quantized":
        # The unpacked shape, two int64; and with activation order the group of every input column, int32.
        ordered = weights.get("actorder") in ("group", "dynamic", True)
        base = base.replace(tensor_bytes=base.tensor_bytes + 16, column_bytes=4 if ordered else 0)
    if strategy == "tensor":
        return base.replace(per_tensor=True)
    if strategy == "channel":
        return base
    if strategy in ("group", "tensor_group"):
        return base.replace(group=_number(weights, "group_size", 128, low=1, high=65536))
    if strategy == "block":
        shape = weights.get("block_structure") or [128, 128]
        if (
            not isinstance(shape, list)
            or len(shape) != 2
            or not all(isinstance(s, int) and s > 0 for s in shape)
        ):
            raise ModelFileError(
                f"quantization_config: block_structure {str(shape)[:40]!r} must be two positive numbers"
            )
        return base.replace(block_rows=shape[0], group=shape[1])
    raise UnsupportedModelError(
        f"compressed-tensors strategy {strategy[:40]!r} is not known: tensor, channel, group, block"
    )


def _read_compressed_tensors(raw: dict[str, Any], method: str) -> Quantization:
    groups = raw.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        return _read_shorthand(raw, method)
    rules = []
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise ModelFileError(f"quantization_config: group {str(name)[:40]!r} has no weights")
        file_format = str(group.get("format") or raw.get("format") or "")
        if file_format == "dense":
            continue  # calibrated, stored unpacked
        targets = _names(group, "targets") or ("Linear",)
        packing = _group_packing(weights, group.get("input_activations"), file_format)
        rules.append(Rule(packing=packing, targets=targets))
    kv = raw.get("kv_cache_scheme")
    kv_bits = _number(kv, "num_bits", 8, low=1, high=16) if isinstance(kv, dict) else None
    # Rules that name modules go before the ones for every Linear.
    rules.sort(key=lambda rule: "Linear" in rule.targets)
    return Quantization(
        method=method,
        rules=tuple(rules),
        ignore=_names(raw, *_SKIPS),
        packs_head=_lists_exceptions(raw),
        packs_towers=_lists_exceptions(raw),
        kv_cache_bits=kv_bits,
        notes=_unlisted(raw, method),
    )


def _read_shorthand(raw: dict[str, Any], method: str) -> Quantization:
    """Abridged configs that only name the types: ``{"weights": "int8"}``."""
    word = str(raw.get("weights", "")).lower()
    packings = {
        "int8": INT8_ROW.replace(scale_bytes=2),
        "fp8": FP8_ROW.replace(scale_bytes=2),
        "int4": AWQ.replace(zero_bits=0),
    }
    if word not in packings:
        raise ModelFileError("quantization_config of compressed-tensors has no config_groups")
    notes = _unlisted(raw, method)
    if word == "int4":
        notes = (*notes, f"quantization_config of {method} states no group size: 128 is assumed")
    return Quantization(
        method=method, rules=(Rule(packing=packings[word]),), ignore=_names(raw, *_SKIPS), notes=notes
    )


_ALGORITHMS = {
    "FP8": FP8.replace(tensor_bytes=4),
    "FP8_PER_CHANNEL_PER_TOKEN": FP8_ROW,
    "FP8_PB_WO": FP8_BLOCK,
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": NVFP4_WEIGHT_ONLY,
    "MXFP8": MXFP8,
    "W4A16_AWQ": AWQ.replace(zero_bits=0),
    "INT4_AWQ": AWQ.replace(zero_bits=0),
    "W8A16": INT8_ROW,
    "W8A8_SQ_PER_CHANNEL": INT8_ROW,
}


def _algorithm(name: object) -> Packing:
    key = str(name).upper()
    if key not in _ALGORITHMS:
        raise UnsupportedModelError(
            f"modelopt algorithm {key[:40]!r} is not known; known: {', '.join(_ALGORITHMS)}"
        )
    return _ALGORITHMS[key]


def _read_modelopt(raw: dict[str, Any], method: str) -> Quantization:
    if isinstance(raw.get("config_groups"), dict) and "quant_algo" not in raw:
        return _read_compressed_tensors(raw, method)
    nested = raw.get("quantization")
    inner: dict[str, Any] = nested if isinstance(nested, dict) else raw
    algorithm = str(inner.get("quant_algo", "")).upper()
    ignore = _names(inner, *_SKIPS)
    kv_bits = 8 if str(inner.get("kv_cache_quant_algo", "")).upper() == "FP8" else None
    if isinstance(raw.get("kv_cache_scheme"), dict):
        kv_bits = _number(raw["kv_cache_scheme"], "num_bits", 8, low=1, high=16)
    layers = inner.get("quantized_layers")
    if algorithm == "MIXED_PRECISION":
        if not isinstance(layers, dict) or not layers:
            raise ModelFileError("quantization_config: MIXED_PRECISION lists no quantized_layers")
        by_packing: dict[Packing, list[str]] = {}
        for name, entry in layers.items():
            chosen = _algorithm(entry.get("quant_algo") if isinstance(entry, dict) else entry)
            by_packing.setdefault(chosen, []).append(str(name))
        rules = tuple(Rule(packing=packing, targets=tuple(names)) for packing, names in by_packing.items())
        return Quantization(
            method=method,
            rules=rules,
            ignore=ignore,
            packs_head=True,
            packs_towers=True,
            kv_cache_bits=kv_bits,
        )
    return Quantization(
        method=method,
        rules=(Rule(packing=_algorithm(algorithm)),),
        ignore=ignore,
        packs_head=_lists_exceptions(inner),
        packs_towers=_lists_exceptions(inner),
        kv_cache_bits=kv_bits,
        notes=_unlisted(inner, method),
    )


_READERS = {
    "fp8": _read_fp8,
    "fbgemm-fp8": _read_fp8,
    "gptq": _read_group_int,
    "gptq-marlin": _read_group_int,
    "awq": _read_group_int,
    "awq-marlin": _read_group_int,
    "bitsandbytes": _read_bitsandbytes,
    "mxfp4": _read_mxfp4,
    "mxfp8": _read_mxfp8,
    "compressed-tensors": _read_compressed_tensors,
    "modelopt": _read_modelopt,
    "modelopt-fp4": _read_modelopt,
    "modelopt-mixed": _read_modelopt,
}
