"""Programs of one host share its environment: a variable means the same to each that reads it."""

from __future__ import annotations

from itertools import combinations

import click
from ringcast import WorkerConfig
from ringcast.dispatch import ADDRESS_VARIABLE
from ringcast_cli._common.config import CONFIG_FILE_VARIABLE, CliConfig
from ringcast_config_service.__main__ import main as config_service
from ringcast_heartbeat_agent.__main__ import main as agent
from ringcast_wire import agent_token

SAME_MEANING = {
    ("client", "agent"): {agent_token.VARIABLE},  # the file that the agent writes is the one that its clients read
    ("client", "worker"): {agent_token.SOCKET_VARIABLE},
    ("worker", "cli"): {"RINGCAST_KEY_RING", "RINGCAST_SERVERS", "RINGCAST_WORKER_ID"},
    ("cli", "agent"): {agent_token.VARIABLE},
    ("client", "cli"): {agent_token.VARIABLE},
}


def of_command(command: click.Command) -> set[str]:
    """What a command reads each of its options from."""
    context = command.make_context(command.name, [], resilient_parsing=True)
    options = [option for option in command.params if isinstance(option, click.Option) and option.allow_from_autoenv]
    named = {f"{context.auto_envvar_prefix}_{option.name}".upper() for option in options if option.name != "version"}
    return named | {name for option in options for name in option.envvar or () if name.startswith("RINGCAST_")}


def test_no_two_programs_read_one_variable_for_two_things() -> None:
    readers = {
        "client": {ADDRESS_VARIABLE, agent_token.VARIABLE, agent_token.SOCKET_VARIABLE},
        "worker": {f"RINGCAST_{name.upper()}" for name in WorkerConfig.__struct_fields__} | {"RINGCAST_CONFIG_FILE"},
        "cli": {f"RINGCAST_{name.upper()}" for name in CliConfig.__dataclass_fields__} | {CONFIG_FILE_VARIABLE},
        "config service": of_command(config_service),
        "agent": of_command(agent),
    }
    assert all(len(names) > 2 for names in readers.values())
    shared = {(one, other): readers[one] & readers[other] for one, other in combinations(readers, 2)}
    assert {pair: names for pair, names in shared.items() if names} == SAME_MEANING


def test_every_program_names_its_settings_file_alike() -> None:
    assert "RINGCAST_AGENT_CONFIG_FILE" in of_command(agent)
    assert "RINGCAST_CONFIG_SERVICE_CONFIG_FILE" in of_command(config_service)
    assert "RINGCAST_AGENT_ID" in of_command(agent)
    assert CONFIG_FILE_VARIABLE == "RINGCAST_CLI_CONFIG_FILE"
