"""tensorir: tensor computations as lambdas, scheduled, checked, tuned and exported as readable CUDA or OpenCL.

Public names are imported on first use, so that ``import tensorir`` stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tensorir import _package

__version__ = _package.PACKAGE_VERSION

_HOMES = {
    "tensorir.expr.compute": ("placeholder", "constant", "reduce_axis", "scalar", "dim", "compute"),
    "tensorir.expr.tensor": ("Tensor",),
    "tensorir.expr.reducers": ("sum", "prod", "min", "max", "any", "all", "argmin", "argmax", "combiner"),
    "tensorir.expr.scan": ("scan",),
    "tensorir.expr.scatter": ("scatter",),
    "tensorir.expr.functions": (
        "where", "cast", "bitcast", "mulhi", "all_", "any_", "equal", "not_equal", "minimum", "maximum", "exp", "log",
        "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "floor", "ceil", "round", "pow", "exp2", "log2", "abs",
    ),
    "tensorir.algorithms.registry": ("algorithm",),
    "tensorir.api.schedule": ("Schedule", "replay"),
    "tensorir.api.automatic": ("auto_schedule", "fusions"),
    "tensorir.automatic.plan": ("auto",),
    "tensorir.api.workload": ("Workload",),
    "tensorir.api.build": ("Executable",),
    "tensorir.api.shape_set": ("tune_shapes",),
    "tensorir.api.export_shapes": ("export_shapes",),
    "tensorir.api.neighbours": ("nearest",),
    "tensorir.runtime.sequence": ("sequence",),
    "tensorir.runtime.arguments": ("empty",),
    "tensorir.tune.space": ("Space", "divisors", "permutations", "powers_of_two"),
    "tensorir.target": ("Target",),
    "tensorir.errors": (
        "TensorIRError", "DeclarationError", "ScheduleError", "LoweringError", "CompileError", "LaunchError",
        "CheckError", "DeviceError", "NotTuned", "Problem",
    ),
}  # fmt: skip
_WHERE = {name: module for module, names in _HOMES.items() for name in names}
_FOLDERS = ("nn", "ops", "errors", "interp", "lower", "runtime", "tune", "check", "export")

__all__ = [*_WHERE, *_FOLDERS, "__version__"]  # noqa: PLE0604


if not TYPE_CHECKING:  # a type checker knows the names below, and that there are no others

    def __getattr__(name):
        if name in _WHERE:
            value = getattr(importlib.import_module(_WHERE[name]), name)
        elif name in _FOLDERS:
            value = importlib.import_module(f"tensorir.{name}")
        else:
            from tensorir.errors.habits import unknown_here

            raise unknown_here(name, __all__)
        globals()[name] = value
        return value


_package.html_of = _package.Lazy("tensorir.show.cards", "html_of")


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from tensorir import check as check
    from tensorir import errors as errors
    from tensorir import export as export
    from tensorir import interp as interp
    from tensorir import lower as lower
    from tensorir import nn as nn
    from tensorir import ops as ops
    from tensorir import runtime as runtime
    from tensorir import tune as tune
    from tensorir.algorithms.registry import algorithm as algorithm
    from tensorir.api.automatic import auto_schedule as auto_schedule
    from tensorir.api.automatic import fusions as fusions
    from tensorir.api.build import Executable as Executable
    from tensorir.api.export_shapes import export_shapes as export_shapes
    from tensorir.api.neighbours import nearest as nearest
    from tensorir.api.schedule import Schedule as Schedule
    from tensorir.api.schedule import replay as replay
    from tensorir.api.shape_set import tune_shapes as tune_shapes
    from tensorir.api.workload import Workload as Workload
    from tensorir.automatic.plan import auto as auto
    from tensorir.errors import CheckError as CheckError
    from tensorir.errors import CompileError as CompileError
    from tensorir.errors import DeclarationError as DeclarationError
    from tensorir.errors import DeviceError as DeviceError
    from tensorir.errors import LaunchError as LaunchError
    from tensorir.errors import LoweringError as LoweringError
    from tensorir.errors import NotTuned as NotTuned
    from tensorir.errors import Problem as Problem
    from tensorir.errors import ScheduleError as ScheduleError
    from tensorir.errors import TensorIRError as TensorIRError
    from tensorir.expr.compute import compute as compute
    from tensorir.expr.compute import constant as constant
    from tensorir.expr.compute import dim as dim
    from tensorir.expr.compute import placeholder as placeholder
    from tensorir.expr.compute import reduce_axis as reduce_axis
    from tensorir.expr.compute import scalar as scalar
    from tensorir.expr.functions import abs as abs
    from tensorir.expr.functions import all_ as all_
    from tensorir.expr.functions import any_ as any_
    from tensorir.expr.functions import bitcast as bitcast
    from tensorir.expr.functions import cast as cast
    from tensorir.expr.functions import ceil as ceil
    from tensorir.expr.functions import cos as cos
    from tensorir.expr.functions import equal as equal
    from tensorir.expr.functions import erf as erf
    from tensorir.expr.functions import exp as exp
    from tensorir.expr.functions import exp2 as exp2
    from tensorir.expr.functions import floor as floor
    from tensorir.expr.functions import log as log
    from tensorir.expr.functions import log2 as log2
    from tensorir.expr.functions import maximum as maximum
    from tensorir.expr.functions import minimum as minimum
    from tensorir.expr.functions import mulhi as mulhi
    from tensorir.expr.functions import not_equal as not_equal
    from tensorir.expr.functions import pow as pow
    from tensorir.expr.functions import round as round
    from tensorir.expr.functions import rsqrt as rsqrt
    from tensorir.expr.functions import sin as sin
    from tensorir.expr.functions import sqrt as sqrt
    from tensorir.expr.functions import tanh as tanh
    from tensorir.expr.functions import where as where
    from tensorir.expr.reducers import all as all
    from tensorir.expr.reducers import any as any
    from tensorir.expr.reducers import argmax as argmax
    from tensorir.expr.reducers import argmin as argmin
    from tensorir.expr.reducers import combiner as combiner
    from tensorir.expr.reducers import max as max
    from tensorir.expr.reducers import min as min
    from tensorir.expr.reducers import prod as prod
    from tensorir.expr.reducers import sum as sum
    from tensorir.expr.scan import scan as scan
    from tensorir.expr.scatter import scatter as scatter
    from tensorir.expr.tensor import Tensor as Tensor
    from tensorir.runtime.arguments import empty as empty
    from tensorir.runtime.sequence import sequence as sequence
    from tensorir.target import Target as Target
    from tensorir.tune.space import Space as Space
    from tensorir.tune.space import divisors as divisors
    from tensorir.tune.space import permutations as permutations
    from tensorir.tune.space import powers_of_two as powers_of_two
