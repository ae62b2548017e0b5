"""The steps of a migration that an operator may take."""

from __future__ import annotations

from ringcast_wire import (
    DEFAULT_CALL_BOUND_MS,
    DEFAULT_LEASE_TTL_MS,
    InvalidInputError,
    Migration,
    Mode,
    Stage,
    Strategy,
    check_ownership_times,
    next_stages,
    stage_name,
)

from ringcast_config_service.repository import StoreRecord


def next_step(
    store: StoreRecord, stage: Stage, lease_ttl_ms: int | None, call_bound_ms: int | None, now_ms: int
) -> Migration | None:
    """The step of a store to a stage; ``None``: it is at that stage, with the times that are given.

    Its number is a moment, so that it is above those of steps that a database has forgotten that was taken back to an
    earlier state.

    Raises:
        InvalidInputError: the store can't migrate, or not to this stage from where it is; or a time is out of range,
            does not go with the step, or is another than the one that the store migrates with.
    """
    before = store.migration
    was = before.stage if before is not None else Stage.OFF
    if was is not stage or stage is not Stage.FINISH:
        _check_able(store)
    given = {"lease_ttl_ms": lease_ttl_ms, "call_bound_ms": call_bound_ms}
    if was is stage:
        for name, value in given.items():
            if value is not None and (before is None or not before.is_on or value != getattr(before, name)):
                raise InvalidInputError(
                    f"{name} of store {store.name!r} can't become {value}: it is set by the step from off to shadow",
                    field=name,
                )
        return None
    able = next_stages(was)
    if stage not in able:
        raise InvalidInputError(
            f"store {store.name!r} is at the stage {stage_name(was)}: it can't go to {stage_name(stage)}, only to "
            f"{', '.join(map(stage_name, sorted(able)))}",
            field="stage",
        )
    if before is None or was is Stage.OFF:
        times = check_ownership_times(
            DEFAULT_LEASE_TTL_MS if lease_ttl_ms is None else lease_ttl_ms,
            DEFAULT_CALL_BOUND_MS if call_bound_ms is None else call_bound_ms,
        )
    else:
        for name, value in given.items():
            if value is not None:
                raise InvalidInputError(f"{name} {value} goes with the step to shadow alone", field=name)
        times = before.lease_ttl_ms, before.call_bound_ms
    number = max(now_ms, before.number + 1 if before is not None else 1)
    is_back = stage is Stage.SHADOW and was > Stage.SHADOW
    return Migration(stage=stage, number=number, lease_ttl_ms=times[0], call_bound_ms=times[1], is_back=is_back)


def _check_able(store: StoreRecord) -> None:
    settings = store.settings_now
    if settings.strategy is Strategy.STICKY:
        raise InvalidInputError(f"store {store.name!r} has the strategy sticky already", field="strategy")
    if settings.mode is not Mode.PARTITIONED:
        raise InvalidInputError(
            f"store {store.name!r} has the mode {settings.mode}: only PARTITIONED has owners", field="mode"
        )
