"""Real servers for the tests and benchmarks of Ringcast: launchers and pytest fixtures. Internal."""

from __future__ import annotations

from ringcast_testkit._agent import AgentProcess
from ringcast_testkit._attempts import attempt
from ringcast_testkit._cluster import NatsCluster
from ringcast_testkit._config_service import ConfigServiceProcess
from ringcast_testkit._disk import SmallDisk
from ringcast_testkit._etcd import EtcdServer, etcd_binary
from ringcast_testkit._fleet import WrittenFleet
from ringcast_testkit._history import History, Report
from ringcast_testkit._nats import NatsServer, nats_server_binary
from ringcast_testkit._ports import ReservedPort
from ringcast_testkit._postgres import PostgresServer
from ringcast_testkit._process import PATIENCE_S, ManagedProcess, ManagedServer, ServerFailedError
from ringcast_testkit._proxy import TcpProxy
from ringcast_testkit._readme import run_readme_examples
from ringcast_testkit._settings import flags_table, settings_table
from ringcast_testkit._silent import SilentAddress
from ringcast_testkit._spark import ClassArchive, frugal_jvm, make_spark_home
from ringcast_testkit._standby import PostgresStandby
from ringcast_testkit._waiting import end_task, until, until_done, until_workers
from ringcast_testkit._warm import WarmProcess, WarmProgram
from ringcast_testkit._worker import WorkerProcess

__all__ = [
    "PATIENCE_S",
    "AgentProcess",
    "ClassArchive",
    "ConfigServiceProcess",
    "EtcdServer",
    "History",
    "ManagedProcess",
    "ManagedServer",
    "NatsCluster",
    "NatsServer",
    "PostgresServer",
    "PostgresStandby",
    "Report",
    "ReservedPort",
    "ServerFailedError",
    "SilentAddress",
    "SmallDisk",
    "TcpProxy",
    "WarmProcess",
    "WarmProgram",
    "WorkerProcess",
    "WrittenFleet",
    "attempt",
    "etcd_binary",
    "flags_table",
    "frugal_jvm",
    "make_spark_home",
    "nats_server_binary",
    "run_readme_examples",
    "settings_table",
    "end_task",
    "until",
    "until_done",
    "until_workers",
]
