"""What turns Python into machine code here: numba's compiler, and two ways of writing for it.

    @compiled, @inlined             a function of numbers and addresses, compiled when another compiled one calls it
    @emits(LANES, ADDRESS)          a function written as LLVM instructions: one new primitive

``inlined`` functions are pasted instead: each compiled one is compiled again with all it calls, so few levels are best.

Compiled code holds no Python object, raises nothing and checks nothing: every size is checked before it is called.
"""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable
from typing import Any, TypeVar

import llvmlite.binding  # type: ignore[import-untyped]
import llvmlite.ir  # type: ignore[import-untyped]
import numba
from numba.core import config, types
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

# LLVM's instructions, without types of their own.
ir: Any = llvmlite.ir
llvm: Any = llvmlite.binding

Function = TypeVar("Function", bound=Callable[..., Any])

ADDRESS = types.int64
INTEGER = types.int64
FLOAT = types.float32
DOUBLE = types.float64
NOTHING = types.void

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F32, F64 = ir.FloatType(), ir.DoubleType()

X86 = platform.machine().lower() in ("x86_64", "amd64")


def plain(function: Any) -> Any:
    """The function as written, without the checks that tests wrap around it."""
    return inspect.unwrap(function)


def compiled(function: Function) -> Function:
    """Compile ``function`` as part of whichever compiled function calls it."""
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    made: Function = numba.njit(nogil=True, error_model="numpy", **options)(plain(function))
    return made


def inlined(function: Function) -> Function:
    """Put the body of ``function`` wherever it is called, before anything is compiled: for what is called once."""
    made: Any = numba.njit(nogil=True, error_model="numpy", inline="always")(plain(function))
    found: Function = made
    return found


def emits(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a primitive of ``emit(builder, *values) -> value``, which writes LLVM instructions.

    ``result`` and ``arguments`` are its types; what a caller gives is converted to them.
    """

    def make(emit: Callable[..., Any]) -> Any:
        def define(context: Any, *given: Any) -> tuple[Signature, Callable[..., Any]]:
            def write(target: Any, builder: Any, signature: Signature, values: Any) -> Any:
                made = emit(builder, *values)
                return target.get_dummy_value() if made is None else made

            return result(*arguments), write

        define.__name__ = emit.__name__
        # The compiler asks for arguments by name, after its typing context.
        named = ["context", *(f"given{number}" for number in range(len(arguments)))]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        define.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, kind) for name in named]
        )
        define.__doc__ = emit.__doc__
        return intrinsic(define)

    return make


def constant(number: int) -> Any:
    """A 64-bit whole number."""
    return ir.Constant(I64, number)


def call(builder: Any, name: str, result: Any, *values: Any) -> Any:
    """Call an LLVM intrinsic or a C function by name."""
    kind = ir.FunctionType(result, [value.type for value in values])
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, kind, name=name)
    return builder.call(function, values)


@emits(NOTHING, ADDRESS, ADDRESS, ADDRESS, ADDRESS, INTEGER)
def act(b: Any, action: Any, row: Any, header: Any, private: Any, thread: Any) -> None:
    """Call the compiled function at address ``action``."""
    kind = ir.FunctionType(ir.VoidType(), [I64] * 4)
    b.call(b.inttoptr(action, kind.as_pointer()), [row, header, private, thread])


def features() -> frozenset[str]:
    """What the processor that is compiled for can do, in LLVM's names; code kept on disk is kept apart by them."""
    configured: Any = config
    if configured.CPU_FEATURES is not None:
        stated = configured.CPU_FEATURES.split(",")
        return frozenset(name[1:] for name in stated if name.startswith("+"))
    if configured.CPU_NAME not in (None, llvm.get_host_cpu_name()):
        return frozenset()
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)
