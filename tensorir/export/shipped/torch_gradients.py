"""Autograd and vmap support of ``torch_operator.py`` operators.

Nothing is lost in silence: what has a backward is recorded (also for ``torch.func``, which nests), a tensor of which
the gradient would be lost is refused by name, and so are second derivatives and tangents (forward mode).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad, function


def autograd_kernel(operator: Any) -> Callable[..., Any]:
    """Function for PyTorch's Autograd dispatch key; passes through if no input requires a gradient."""
    below, redispatch = torch._C._after_autograd_keyset, operator.op._handle.redispatch_boxed
    tensors, recorded = operator.tensors, recording(operator)
    plain = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU).raw_repr()  # nothing traces, or transforms

    def autograd(keyset: Any, *given: Any) -> Any:
        try:
            for n in tensors:
                if given[n].requires_grad and torch.is_grad_enabled() and operator.differentiable:
                    check_gradients(operator, given)
                    return recorded(keyset & below, *given)
            if forward_ad._current_level >= 0:
                check_tangents(operator, given)
            here = keyset & below
            if operator.packs is not None and here.raw_repr() == plain:
                return operator.run_packed(*given)
            return redispatch(here, *given)
        except (RuntimeError, AttributeError):  # a door, or PyTorch, says less than is known here
            operator.choose(given).refused(given)
            raise

    return autograd


def check_gradients(operator: Any, given: Sequence[object]) -> None:
    """Raise for an input that requires a gradient without a kernel for it."""
    check_tangents(operator, given)
    for n in () if operator.of else operator.tensors:  # a gradient's own is refused when it is asked for
        name = operator.names[n]
        if not given[n].requires_grad or name in operator.gradients:
            continue
        message = (
            f"{operator.name}: {name} requires a gradient and the operator has no backward for it; "
            f'backward={{"{name}": kernel}} when it is registered, or {name}.detach(), or torch.no_grad()'
        )
        raise operator.refuse("launch.gradient", message, RuntimeError)


def check_tangents(operator: Any, given: Sequence[object]) -> None:
    """Raise for forward-mode tangents, which are unsupported."""
    if forward_ad._current_level < 0 or not operator.differentiable:
        return
    for n in operator.tensors:
        if forward_ad.unpack_dual(given[n]).tangent is not None:
            message = (
                f"{operator.name}: {operator.names[n]} has a tangent, which would be lost: it is differentiated "
                "backward only (torch.func.vjp and jacrev, not jvp, jacfwd and hessian)"
            )
            raise operator.refuse("launch.gradient", message, RuntimeError)


def recording(operator: Any) -> Callable[..., Any]:
    """autograd.Function wrapper of the operator, given dispatch keys and arguments."""

    def forward(ctx: Any, below: Any, *given: Any) -> Any:
        with ExitStack() as modes:
            modes.enter_context(torch._C._AutoDispatchBelowAutograd())
            if torch._C._are_functorch_transforms_active():  # those outside this one differentiate as well
                modes.enter_context(torch.enable_grad())
                modes.enter_context(forward_ad._set_fwd_grad_enabled(True))
            made = operator.op.redispatch(below, *given)
        save(operator, ctx, given, made if isinstance(made, tuple) else (made,))
        return made

    def backward(ctx: Any, *incoming: Any) -> Any:
        return (None, *differentiate(operator, ctx, incoming))

    # autograd.Function.apply would go through the transforms of torch.func once more: the dispatcher did that already
    names = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    apply = type(operator.name.replace("::", "_"), (function._SingleLevelFunction,), names).apply  # type: ignore[attr-defined]

    def recorded(*given: Any) -> Any:
        if not torch._C._are_functorch_transforms_active():
            return apply(*given)
        with enable_single_level_autograd_function():
            return apply(*given)

    return recorded


def save(operator: Any, ctx: Any, given: Sequence[object], made: Sequence[Any]) -> None:
    """Save tensors needed by the required gradients in ``ctx``."""
    if operator.of:
        return
    wanted = [n for n, needed in zip(operator.names, ctx.needs_input_grad[1:], strict=True) if needed]
    taken = {name for n in wanted for name in operator.gradients[n][1]}
    results = [a.name for a in operator.kernels[0].results]
    known = dict(zip(results, made, strict=True)) | dict(zip(operator.names, given, strict=True))
    kept = {name: value for name, value in known.items() if name in taken}
    ctx.numbers = {name: value for name, value in kept.items() if not isinstance(value, torch.Tensor)}
    ctx.kept = tuple(name for name in kept if name not in ctx.numbers)
    ctx.save_for_backward(*(kept[name] for name in ctx.kept))
    ctx.mark_non_differentiable(*(t for t in made if not t.is_floating_point()))


def differentiate(operator: Any, ctx: Any, incoming: Sequence[object]) -> list[torch.Tensor | None]:
    """Gradient of each input that requires one; raises for second derivatives."""
    if operator.of:
        message = f"{operator.of}: no second derivative (that of {operator.name} was asked for)"
        raise operator.refuse("launch.second-derivative", message, RuntimeError)
    known = dict(zip(ctx.kept, ctx.saved_tensors, strict=True)) | ctx.numbers
    known |= {f"d_{a.name}": g for a, g in zip(operator.kernels[0].results, incoming, strict=True)}
    made: list[Any] = []
    for name, needed in zip(operator.names, ctx.needs_input_grad[1:], strict=True):
        if not needed:
            made.append(None)
            continue
        derived, taken = operator.gradients[name]
        made.append(derived.op(*(known[t] for t in taken)))
    return made


def batched(operator: Any, info: Any, dims: Sequence[int | None], *given: Any) -> tuple[object, object]:
    """(results, batch dimensions): ``torch.vmap`` rule that calls the kernel item by item."""
    if not info.batch_size:
        raise operator.refuse("launch.shape", f"{operator.name}: torch.vmap over no items")
    pairs = list(zip(given, dims, strict=True))
    rows = [[v if d is None else v.select(d, n) for v, d in pairs] for n in range(info.batch_size)]
    made = [operator.op(*row) for row in rows]
    if isinstance(made[0], tuple):
        return tuple(map(torch.stack, zip(*made, strict=True))), (0,) * len(made[0])
    return torch.stack(made), 0


def check_gradient(made: Any, of: str, derived: Any) -> None:
    """Raise unless a gradient kernel's arguments and result fit the operator."""
    inputs = [a.name for a in made.kernels[0].given if a.role == "input" and a.kind.is_floating_point]
    code, what = "torch.backward", f"{made.name}, backward of {of}"
    if of not in inputs:
        there = ", ".join(inputs) or "none"
        raise made.refuse(code, f"{what}: no input that has a gradient; there are {there}")
    if len(derived.kernels) != len(made.kernels):
        raise made.refuse(code, f"{what}: {len(derived.kernels)} kernels for the {len(made.kernels)} of the operator")
    for kernel, back in zip(made.kernels, derived.kernels, strict=True):
        known = {f"d_{a.name}": a for a in kernel.results if a.kind.is_floating_point}
        known |= {a.name: a for a in (*kernel.results, *kernel.given)}
        for a in back.given:
            if a.name not in known:
                raise made.refuse(code, f"{what}: takes {a.name}; there are {', '.join(known)}")
            check_alike(made, f"{what}: its {a.name}", a, known[a.name])
        if len(back.results) != 1:
            raise made.refuse(code, f"{what}: gives {len(back.results)} results, should give one")
        wanted = next(a for a in kernel.given if a.name == of)
        check_alike(made, f"{what}: its result", back.results[0], wanted)


def check_alike(made: Any, what: str, a: Any, b: Any) -> None:
    """Raise unless argument ``a`` of a gradient kernel matches ``b``, its namesake."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        message = f"{what} is {a.dtype}{list(a.shape)}, {b.name} is {b.dtype}{list(b.shape)}"
        raise made.refuse("torch.backward", message)
