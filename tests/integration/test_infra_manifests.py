"""The systemd unit and the Kubernetes manifests say what the programs really take.

Neither systemd nor Kubernetes runs here; what can be held against the code is.
"""

from __future__ import annotations

import configparser
import inspect
import json
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from ringcast import WorkerConfig
from ringcast._protocol.sticky.leader import LeaderTimes
from ringcast_config_service import app as service_app
from ringcast_config_service.config import Config
from ringcast_heartbeat_agent import app as agent_app
from ringcast_heartbeat_agent.config import Config as AgentConfig
from ringcast_testkit import ManagedProcess
from ringcast_wire import names

from tests.integration.cli_process import Cli
from tests.integration.infra_nats import INFRA, NATS, ROOT, WORKER_API, InfraNats, example_variables
from tests.integration.needed_tools import KUBERNETES_TOOLS, needed_tool

KUBERNETES = INFRA / "kubernetes"
SYSTEMD = INFRA / "systemd"
PREFIX = "RINGCAST_CONFIG_SERVICE_"
LOCKED_DOWN = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
PODS = [("Deployment", "config-service"), ("StatefulSet", "nats"), ("DaemonSet", "heartbeat-agent")]
"""What the base runs."""


@cache
def options(module: str = "ringcast_config_service") -> frozenset[str]:
    """The options of a program, from its own help."""
    command = [sys.executable, "-m", module, "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = frozenset(re.findall(r"^\s+(--[a-z-]+)", text, re.MULTILINE))
    assert {"--nats", "--stop-timeout", "--metrics-listen"} <= found
    return found


def as_option(variable: str, prefix: str = PREFIX) -> str:
    """The option that a variable sets."""
    assert variable.startswith(prefix), variable
    return "--" + variable.removeprefix(prefix).lower().replace("_", "-")


def seconds_to_stop(stop_timeout_s: float) -> float:
    """How long an orderly stop of the service takes at the most: its phases one after the other."""
    phases = inspect.getsource(service_app).count("bounded(")
    assert phases >= 5
    return phases * stop_timeout_s + 1


def seconds_to_stop_an_agent(stop_timeout_s: float) -> float:
    """The same of an agent, with a second more for the first two of its phases."""
    phases = inspect.getsource(agent_app).count("bounded(")
    assert phases >= 8
    assert AgentConfig().drain_timeout_s == stop_timeout_s
    return phases * stop_timeout_s + 2


# --- systemd ----------------------------------------------------------------------------------------------------------


def unit(name: str = "ringcast-config-service") -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((SYSTEMD / f"{name}.service").read_text())
    return parser


def exec_start() -> list[str]:
    return shlex.split(unit()["Service"]["ExecStart"])


def example_settings() -> dict[str, str]:
    """config-service.env.example, as systemd reads it."""
    lines = (SYSTEMD / "config-service.env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_the_unit_starts_the_command_with_options_that_it_has() -> None:
    scripts = tomllib.loads((ROOT / "services/config-service/pyproject.toml").read_text())["project"]["scripts"]
    program, *words = exec_start()
    assert Path(program).name in scripts
    given = [word for word in words if word.startswith("--")]
    assert given
    assert set(given) <= options()


def test_every_variable_of_the_example_is_an_option() -> None:
    text = (SYSTEMD / "config-service.env.example").read_text()
    names = re.findall(rf"^#?({PREFIX}[A-Z_]+)=", text, re.MULTILINE)
    assert len(names) >= 7
    assert {as_option(name) for name in names} <= options()


def test_the_unit_gives_the_service_the_time_that_it_needs_to_stop() -> None:
    words = exec_start()
    stop_timeout_s = float(words[words.index("--stop-timeout") + 1])
    assert float(unit()["Service"]["TimeoutStopSec"]) >= seconds_to_stop(stop_timeout_s)
    agent = unit("ringcast-heartbeat-agent")["Service"]
    assert f"--stop-timeout {stop_timeout_s:.0f}" in agent["ExecStart"]
    assert float(agent["TimeoutStopSec"]) >= seconds_to_stop_an_agent(stop_timeout_s)


def test_the_unit_is_locked_down() -> None:
    service = unit()["Service"]
    wanted = {"DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": ""}
    assert {name: service[name] for name in wanted} == wanted
    assert (service["Restart"], service["StateDirectory"]) == ("on-failure", "ringcast")
    database = example_settings()[PREFIX + "DATABASE"]
    assert database.startswith(f"sqlite:/var/lib/{service['StateDirectory']}/")


def test_the_unit_s_command_line_serves_and_stops(tmp_path: Path) -> None:
    """With the example's settings, but for addresses, the password and the place of the database."""
    ready = tmp_path / "config-service.json"
    words = [word.replace("${RUNTIME_DIRECTORY}", str(tmp_path)) for word in exec_start()[1:]]
    assert str(ready) in words
    with InfraNats(tmp_path) as nats_server:
        example = example_settings()
        assert example[PREFIX + "CLUSTER_STORE"] == f"{example[PREFIX + 'NATS']}/{names.CLUSTER_BUCKET}"
        cluster = f"{nats_server.url}/{names.CLUSTER_BUCKET}"
        env = example | {
            PREFIX + "NATS": nats_server.url,
            PREFIX + "CLUSTER_STORE": cluster,
            PREFIX + "NATS_PASSWORD": nats_server.login("config-service")["password"],
            PREFIX + "DATABASE": f"sqlite:{tmp_path / 'ringcast.db'}",
            PREFIX + "LISTEN": "127.0.0.1:0",
            PREFIX + "METRICS_LISTEN": "127.0.0.1:0",
        }
        service = ManagedProcess("service", [sys.executable, "-m", "ringcast_config_service", *words], env=env)
        try:
            service.wait_until(ready.exists)
            assert json.loads(ready.read_text())["pid"] == service.pid
            service.wait_until(lambda: any("event=cluster.registered" in line for line in list(service.log)))
            login = nats_server.login("tools")
            cli = Cli(tmp_path, cluster_store=cluster, jetstream_api=WORKER_API, servers=nats_server.url, **login)
            (member, fleet) = cli.ok("cluster", "list", "--json").documents
            assert (member["kind"], member["pid"], member["state"]) == ("service", service.pid, "active")
            assert fleet["whole"]
            assert cli.ok("store", "create", "gateway").out, "the service is found by its registration"
            service.signal(signal.SIGTERM)
            assert service.wait(float(unit()["Service"]["TimeoutStopSec"])) == 0
        finally:
            service.kill()
        assert nats_server.violations() == []


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def manifests() -> list[dict[str, Any]]:
    """Every object of every file, the Kustomizations among them, but for the objects of Prometheus' operator."""
    files = sorted([*KUBERNETES.glob("*.yaml"), NATS / "kustomization.yaml"])
    found = [document for file in files for document in yaml.safe_load_all(file.read_text())]
    assert len(found) >= 18
    return found


def the(kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in manifests() if (one["kind"], one.get("metadata", {}).get("name")) == (kind, name)]
    return found


def container(kind: str, name: str) -> dict[str, Any]:
    (found,) = the(kind, name)["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def ports(kind: str, name: str) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container(kind, name)["ports"]}


def policies() -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Every rule of every network policy: policy, direction, rule."""
    for policy in (one for one in manifests() if one["kind"] == "NetworkPolicy"):
        for direction in ("ingress", "egress"):
            for rule in policy["spec"].get(direction, []):
                yield policy, direction, rule


def test_the_example_of_workers_gives_hook_and_stop_their_time() -> None:
    pod = the("StatefulSet", "gateway-worker")["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    hook = worker["lifecycle"]["preStop"]["exec"]["command"][-1]
    patience_s = float(re.search(r"ringcast drain .* --wait --patience (\d+)", hook)[1])  # type: ignore[index]
    worker_config = WorkerConfig(store="gateway", keys=("limits",))
    stop_s = 2 * LeaderTimes().prepare_s + worker_config.drain_timeout_s + 3 * 5.0
    assert pod["terminationGracePeriodSeconds"] >= patience_s + stop_s
    (undrain,) = pod["initContainers"]
    assert "ringcast undrain" in undrain["command"][-1], "a drain outlives the pod"
    assert worker["securityContext"] == undrain["securityContext"] == LOCKED_DOWN
    assert pod["securityContext"] == the("StatefulSet", "nats")["spec"]["template"]["spec"]["securityContext"]


def test_every_object_is_whole_and_every_file_is_used() -> None:
    for one in manifests():
        assert one["apiVersion"]
        assert one["kind"] == "Kustomization" or one["metadata"]["name"]
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    used = {name for name in kustomization["resources"] if name.endswith(".yaml")}
    there = {file.name for file in KUBERNETES.glob("*.yaml")}
    assert used == there - {"kustomization.yaml", "secrets.example.yaml", "worker.example.yaml"}
    assert all((KUBERNETES / name).exists() for name in kustomization["resources"])
    (generator,) = yaml.safe_load((NATS / "kustomization.yaml").read_text())["configMapGenerator"]
    names = [name.partition("=")[::2] for name in generator["files"]]
    assert {source or name for name, source in names} == {file.name for file in NATS.glob("*.conf")} - {"accounts.conf"}
    assert {name for name, source in names if source} == {"accounts.conf"}, "no worker is named in the servers' files"
    volumes = the("StatefulSet", "nats")["spec"]["template"]["spec"]["volumes"]
    assert [volume["configMap"]["name"] for volume in volumes if "configMap" in volume] == [generator["name"]]


def test_every_argument_and_variable_of_the_service_is_an_option() -> None:
    service = container("Deployment", "config-service")
    arguments = dict(argument.split("=", 1) for argument in service["args"])
    variables = {as_option(entry["name"]) for entry in service["env"] if entry["name"] != "POD_NAMESPACE"}
    assert arguments.keys() | variables <= options()
    assert {"--tls-cert", "--tls-key", "--tokens", "--callout-tokens", "--nats-tls-ca"} <= arguments.keys()
    assert "--database" in variables
    replicas = the("StatefulSet", "nats")["spec"]["replicas"]
    assert int(arguments["--nats-replicas"]) == replicas
    stop = the("Deployment", "config-service")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    hook, wait_s = service["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == "sleep"
    assert stop >= float(wait_s) + seconds_to_stop(float(arguments["--stop-timeout"]))
    assert arguments["--nats-user"] == "config-service"
    # As the clients of the service call it: the certificate is for the name of the Service, and for that of no pod.
    (grpc,) = [port["port"] for port in the("Service", "config-service")["spec"]["ports"] if port["name"] == "grpc"]
    assert arguments["--cluster-address"] == f"tls://config-service.$(POD_NAMESPACE):{grpc}"
    assert arguments["--cluster-store"] == f"{arguments['--nats']}/{names.CLUSTER_BUCKET}"
    assert the_variable(service, "POD_NAMESPACE") == {"fieldRef": {"fieldPath": "metadata.namespace"}}


def the_variable(container: dict[str, Any], name: str) -> Any:
    """Where the value of a variable comes from."""
    (found,) = [entry["valueFrom"] for entry in container["env"] if entry["name"] == name]
    return found


def test_every_argument_and_variable_of_the_agent_is_an_option() -> None:
    agent = container("DaemonSet", "heartbeat-agent")
    arguments = dict(argument.split("=", 1) for argument in agent["args"])
    variables = {as_option(entry["name"], "RINGCAST_AGENT_") for entry in agent["env"] if entry["name"] != "POD_NAME"}
    assert arguments.keys() | variables <= options("ringcast_heartbeat_agent")
    assert "--api-token" in variables, "other pods reach it"
    assert arguments["--id"] == arguments["--nats-user"] == "$(POD_NAME)"
    assert arguments["--cluster-store"] == f"{arguments['--nats']}/{names.CLUSTER_BUCKET}"
    listens = {
        name: int(arguments[f"--{name}-listen"].rpartition(":")[2]) for name in ports("DaemonSet", "heartbeat-agent")
    }
    assert listens == ports("DaemonSet", "heartbeat-agent")
    assert the("Service", "heartbeat-agent")["spec"]["internalTrafficPolicy"] == "Local"
    assert "heartbeat-agent" in arguments["--allowed-hosts"].split(",")
    stop = the("DaemonSet", "heartbeat-agent")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert stop >= seconds_to_stop_an_agent(float(arguments["--stop-timeout"]))


def test_a_configuration_of_these_arguments_is_valid() -> None:
    arguments = dict(
        argument.removeprefix("--").split("=", 1) for argument in container("Deployment", "config-service")["args"]
    )
    config = Config(database="sqlite:x", listen=arguments["listen"], nats=(arguments["nats"],), nats_replicas=3)
    host, _, port = config.nats[0].removeprefix("tls://").partition(":")
    (client,) = the("Service", host)["spec"]["ports"]
    assert client["port"] == int(port)


def test_every_variable_of_the_nats_configuration_is_set() -> None:
    server = container("StatefulSet", "nats")
    set_here = {entry["name"] for entry in server["env"]}
    (secret,) = [one["secretRef"]["name"] for one in server["envFrom"]]
    from_secret = set(the("Secret", secret)["stringData"])
    assert set_here | from_secret == {name for name in example_variables() if "NATS_WORKER_" not in name}


def test_secrets_are_templates_and_have_what_is_asked_of_them() -> None:
    for secret in (one for one in manifests() if one["kind"] == "Secret"):
        assert not any(secret["stringData"].values())
    for kind, name in PODS:
        asked = [
            entry["valueFrom"]["secretKeyRef"]
            for entry in container(kind, name)["env"]
            if "secretKeyRef" in entry.get("valueFrom", {})
        ]
        assert asked
        for reference in asked:
            assert reference["key"] in the("Secret", reference["name"])["stringData"]


@pytest.mark.parametrize(("kind", "name"), PODS)
def test_every_file_that_is_named_is_one_of_a_secret(kind: str, name: str) -> None:
    there = mounted(kind, name)
    entries = container(kind, name)["env"]
    words = [*container(kind, name)["args"], *(f"={entry['value']}" for entry in entries if "value" in entry)]
    named = {path for word in words if re.match(r"/etc/(ringcast|nats-tls)/", path := word.partition("=")[2])}
    assert named <= there
    assert len(named) >= 2
    assert {path for path in there if not path.endswith("/ca.crt")} <= named


def mounted(kind: str, name: str) -> set[str]:
    """The paths of the files of Secrets in the container."""
    pod = the(kind, name)["spec"]["template"]["spec"]
    secrets = {volume["name"]: volume["secret"] for volume in pod["volumes"] if "secret" in volume}
    found = set()
    for mount in container(kind, name)["volumeMounts"]:
        if (secret := secrets.get(mount["name"])) is not None:
            keys = set(the("Secret", secret["secretName"])["stringData"])
            items = {item["key"]: item["path"] for item in secret.get("items", ())} or {key: key for key in keys}
            assert items.keys() <= keys
            found |= {f"{mount['mountPath']}/{path}" for path in items.values()}
    return found


def test_the_ports_agree() -> None:
    service, server = ports("Deployment", "config-service"), ports("StatefulSet", "nats")
    arguments = dict(argument.split("=", 1) for argument in container("Deployment", "config-service")["args"])
    assert arguments["--listen"].endswith(f":{service['grpc']}")
    assert arguments["--metrics-listen"].endswith(f":{service['metrics']}")
    listens = {entry["name"]: entry["value"] for entry in container("StatefulSet", "nats")["env"] if "value" in entry}
    for variable, port in (
        ("NATS_LISTEN", "client"),
        ("NATS_CLUSTER_LISTEN", "cluster"),
        ("NATS_MONITOR_LISTEN", "monitor"),
    ):
        assert listens[variable].endswith(f":{server[port]}")
    assert set(re.findall(r":(\d+)", listens["NATS_ROUTES"])) == {str(server["cluster"])}
    for probe in ("startupProbe", "readinessProbe"):
        assert container("Deployment", "config-service")[probe]["httpGet"] == {"path": "/ready", "port": "metrics"}
    agent = ports("DaemonSet", "heartbeat-agent")
    for name, backend in (
        ("config-service", service),
        ("nats", server),
        ("nats-headless", server),
        ("heartbeat-agent", agent),
    ):
        for port in the("Service", name)["spec"]["ports"]:
            assert backend[port["targetPort"]] == port["port"]


def test_network_policies_name_ports_that_somebody_listens_on() -> None:
    database, dns = 5432, 53
    known = {database, dns, *ports("Deployment", "config-service").values(), *ports("StatefulSet", "nats").values()}
    known |= set(ports("StatefulSet", "gateway-worker").values()) | set(ports("DaemonSet", "heartbeat-agent").values())
    named = {port["port"] for _, _, rule in policies() for port in rule["ports"]}
    assert named == known - {8222}  # probes come from the node


def test_workers_reach_nats_and_nothing_else() -> None:
    worker = {"ringcast/role": "worker"}
    reached = [
        (policy["metadata"]["name"], rule)
        for policy, direction, rule in policies()
        if direction == "egress" and policy["spec"]["podSelector"].get("matchLabels") == worker
    ]
    ((_, rule),) = reached
    assert [port["port"] for port in rule["ports"]] == [ports("StatefulSet", "nats")["client"]]
    (target,) = rule["to"]
    assert target["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "nats"}
    let_in = [
        policy["metadata"]["name"]
        for policy, direction, rule in policies()
        if direction == "ingress"
        and any(source.get("podSelector", {}).get("matchLabels") == worker for source in rule["from"])
    ]
    assert let_in == ["nats"]
    (database,) = the("NetworkPolicy", "database")["spec"]["ingress"]
    assert [source["podSelector"]["matchLabels"] for source in database["from"]] == [
        {"app.kubernetes.io/name": "config-service"}
    ]
    assert the("NetworkPolicy", "nobody-by-default")["spec"] == {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
    }


@pytest.mark.parametrize(("role", "port"), [("writer", "grpc"), ("monitor", "metrics")])
def test_writers_and_monitors_reach_the_config_service(role: str, port: str) -> None:
    """Both ends let them: their own namespace lets them out, and the service lets them in."""
    labels, number = {"ringcast/role": role}, ports("Deployment", "config-service")[port]
    (way_out,) = the("NetworkPolicy", role)["spec"]["egress"]
    assert the("NetworkPolicy", role)["spec"]["podSelector"]["matchLabels"] == labels
    assert [one["port"] for one in way_out["ports"]] == [number]
    (target,) = way_out["to"]
    assert target["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "config-service"}
    let_in = [
        [one["port"] for one in rule["ports"]]
        for rule in the("NetworkPolicy", "config-service")["spec"]["ingress"]
        if any(source["podSelector"]["matchLabels"] == labels for source in rule["from"])
    ]
    assert let_in == [[number]]


def test_the_selectors_select_the_pods() -> None:
    for kind, name in PODS:
        spec = the(kind, name)["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"] == labels
        assert the("Service", name)["spec"]["selector"] == labels
        if kind != "DaemonSet":  # whose pods no drain of a node moves
            assert the("PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"] == labels
        assert the("ServiceAccount", name)["automountServiceAccountToken"] is False
    assert the("StatefulSet", "nats")["spec"]["serviceName"] == "nats-headless"


def test_an_agent_is_called_by_consumers_of_its_node_and_reaches_nats_alone() -> None:
    agent, consumer = the("NetworkPolicy", "heartbeat-agent")["spec"], the("NetworkPolicy", "consumer")["spec"]
    (way_out,) = agent["egress"]
    assert [target["podSelector"]["matchLabels"] for target in way_out["to"]] == [{"app.kubernetes.io/name": "nats"}]
    of_consumers, of_monitors = agent["ingress"]
    assert [source["podSelector"]["matchLabels"] for source in of_consumers["from"]] == [
        consumer["podSelector"]["matchLabels"]
    ]
    (call,) = consumer["egress"]
    assert call["ports"] == of_consumers["ports"]
    assert [port["port"] for port in of_monitors["ports"]] == [ports("DaemonSet", "heartbeat-agent")["metrics"]]


@pytest.mark.parametrize(("kind", "name"), PODS)
def test_the_containers_are_locked_down(kind: str, name: str) -> None:
    assert container(kind, name)["securityContext"] == LOCKED_DOWN
    assert the(kind, name)["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True


def test_the_disk_holds_what_jetstream_may_keep() -> None:
    match = re.search(r"max_file_store: (\d+)GB", (NATS / "nats.conf").read_text())
    (claim,) = the("StatefulSet", "nats")["spec"]["volumeClaimTemplates"]
    assert match is not None
    assert int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) > int(match[1])


# --- Rendered -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".", "monitoring"])
def test_kustomize_builds_it(name: str) -> None:
    tool = needed_tool("KUBECTL", "kubectl", "kustomize", install=KUBERNETES_TOOLS)
    words = [tool, "kustomize"] if Path(tool).name == "kubectl" else [tool, "build"]
    done = subprocess.run([*words, str(KUBERNETES / name)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    assert len(built) >= 3
    assert all(one["metadata"].get("namespace") == "ringcast" or one["kind"] == "Namespace" for one in built)


def test_the_rules_of_the_operator_are_those_of_prometheus() -> None:
    made = subprocess.run(
        [sys.executable, str(KUBERNETES / "monitoring/make_rules.py")], capture_output=True, text=True, check=True
    )
    text = (KUBERNETES / "monitoring/rules.yaml").read_text()
    assert text == made.stdout, "run make_rules.py > rules.yaml in infra/kubernetes/monitoring"
    assert len(yaml.safe_load(text)["spec"]["groups"]) >= 5


def test_the_monitors_name_ports_and_labels_that_are_there() -> None:
    *services, worker = yaml.safe_load_all((KUBERNETES / "monitoring/monitors.yaml").read_text())
    assert [service["metadata"]["name"] for service in services] == ["config-service", "heartbeat-agent"]
    for service in services:
        (endpoint,) = service["spec"]["endpoints"]
        found = the("Service", service["metadata"]["name"])
        assert service["spec"]["selector"]["matchLabels"] == found["metadata"]["labels"]
        assert endpoint["port"] in {port["name"] for port in found["spec"]["ports"]}
    (endpoint,) = worker["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in ports("StatefulSet", "gateway-worker")
    labels = the("StatefulSet", "gateway-worker")["spec"]["template"]["metadata"]["labels"]
    assert worker["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_every_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    needed_tool("SYSTEMD", "systemd-analyze", install="it is in Debian's systemd")
    for file in sorted(SYSTEMD.glob("*.service")):
        # Programs that this machine does not have, in place of which it has one.
        text = re.sub(r"^(Exec\w+=)/(?:opt|usr/local)/\S+", r"\1/bin/true", file.read_text(), flags=re.MULTILINE)
        copy = tmp_path / file.name
        copy.write_text(text)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), file.name
