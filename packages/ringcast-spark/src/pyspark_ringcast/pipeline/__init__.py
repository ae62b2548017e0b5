"""From raw files to a released list and back: read, check, compare, plan, apply, verify; export; capacity planning.

Small functions over DataFrames that work alone or one after another; the command ``ringcast-pipeline`` calls them.
Nothing is imported before it is asked for: what looks at a specification or a saved plan needs no Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_ringcast.pipeline._apply import (
        ApplyReport,
        NotVerifiedError,
        Verification,
        apply_plan,
        check_fresh,
        verify,
    )
    from pyspark_ringcast.pipeline._capacity import Layout, MoveReport, move_report, simulate_move, synthetic_ids
    from pyspark_ringcast.pipeline._difference import Planned, compare, make_plan, one_row_an_id, write_rejects
    from pyspark_ringcast.pipeline._export import Export, export_history, export_snapshot, read_export
    from pyspark_ringcast.pipeline._input import Checked, read_checked
    from pyspark_ringcast.pipeline._plan import (
        Plan,
        PlanRefusedError,
        StalePlanError,
        check_plan,
        describe_plan,
        refusals,
    )
    from pyspark_ringcast.pipeline._saved import load_plan, read_plan, save_plan
    from pyspark_ringcast.pipeline._spec import Guards, Spec, parse_spec, read_spec
    from pyspark_ringcast.pipeline._target import Target

_HOMES = {
    "_apply": ("ApplyReport", "NotVerifiedError", "Verification", "apply_plan", "check_fresh", "verify"),
    "_capacity": ("Layout", "MoveReport", "move_report", "simulate_move", "synthetic_ids"),
    "_difference": ("Planned", "compare", "make_plan", "one_row_an_id", "write_rejects"),
    "_export": ("Export", "export_history", "export_snapshot", "read_export"),
    "_input": ("Checked", "read_checked"),
    "_plan": ("Plan", "PlanRefusedError", "StalePlanError", "check_plan", "describe_plan", "refusals"),
    "_saved": ("load_plan", "read_plan", "save_plan"),
    "_spec": ("Guards", "Spec", "parse_spec", "read_spec"),
    "_target": ("Target",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ApplyReport",
    "Checked",
    "Export",
    "Guards",
    "Layout",
    "MoveReport",
    "NotVerifiedError",
    "Plan",
    "PlanRefusedError",
    "Planned",
    "Spec",
    "StalePlanError",
    "Target",
    "Verification",
    "apply_plan",
    "check_fresh",
    "check_plan",
    "compare",
    "describe_plan",
    "export_history",
    "export_snapshot",
    "load_plan",
    "make_plan",
    "move_report",
    "one_row_an_id",
    "parse_spec",
    "read_checked",
    "read_export",
    "read_plan",
    "read_spec",
    "refusals",
    "save_plan",
    "simulate_move",
    "synthetic_ids",
    "verify",
    "write_rejects",
]


if not TYPE_CHECKING:  # a checker would take any name for one of the module

    def __getattr__(name: str) -> Any:
        if name in _HOME_OF:
            return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
