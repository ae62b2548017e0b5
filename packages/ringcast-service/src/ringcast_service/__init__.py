"""What every Ringcast service has: options, a start and a stop in phases, a ready file, NATS."""

from __future__ import annotations

from ringcast_service._calls import Context, check_known, end_call, refuse
from ringcast_service._errors import ConfigError
from ringcast_service._lifetime import Lifetime, bounded, end_tasks, ready_file
from ringcast_service._logs import LOG_FORMATS, log_format_setting
from ringcast_service._metrics import serving_metrics
from ringcast_service._options import (
    LOG_LEVELS,
    Duration,
    Size,
    config_file_option,
    listed,
    nats_login,
    nats_login_options,
    parse_bytes,
    parse_duration_ms,
)
from ringcast_service._process import open_standard_streams, run_process
from ringcast_service._ranges import Range, above, at_least, between
from ringcast_service._settings import (
    check_ranges,
    duration_ms,
    duration_s,
    required,
    setting,
    settings_from,
    settings_options,
    size,
)

__all__ = [
    "LOG_FORMATS",
    "LOG_LEVELS",
    "ConfigError",
    "Context",
    "Duration",
    "Lifetime",
    "Range",
    "Size",
    "above",
    "at_least",
    "between",
    "bounded",
    "check_known",
    "check_ranges",
    "config_file_option",
    "duration_ms",
    "duration_s",
    "end_call",
    "end_tasks",
    "listed",
    "log_format_setting",
    "nats_login",
    "nats_login_options",
    "open_standard_streams",
    "parse_bytes",
    "parse_duration_ms",
    "ready_file",
    "refuse",
    "required",
    "run_process",
    "serving_metrics",
    "setting",
    "settings_from",
    "settings_options",
    "size",
]
