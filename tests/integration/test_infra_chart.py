"""The Helm chart renders what the kustomize base has, and its values change what they say."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.needed_tools import KUBERNETES_TOOLS, needed_tool

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "infra/kubernetes"
CHART = ROOT / "infra/helm/ringcast"
EXAMPLES = sorted((ROOT / "infra/helm/examples").glob("*.yaml"))
OF_THE_CHART = ("helm.sh/chart", "app.kubernetes.io/managed-by")
Objects = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def helm() -> str:
    return needed_tool("HELM", "helm", install=KUBERNETES_TOOLS)


def by_name(text: str) -> Objects:
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}
    assert found
    return found


@cache
def built() -> Objects:
    """The base and its monitors as kustomize builds them, without the hash in the name of the ConfigMap."""
    tool = needed_tool("KUBECTL", "kubectl", "kustomize", install=KUBERNETES_TOOLS)
    words = [tool, "kustomize" if Path(tool).name == "kubectl" else "build"]
    texts = [
        subprocess.run([*words, str(folder)], capture_output=True, text=True, check=True).stdout
        for folder in (BASE, BASE / "monitoring")
    ]
    return by_name(re.sub(r"\bnats-config-\w{10}\b", "nats-config", "---\n".join(texts)))


def template(helm: str, *words: str, namespace: str = "ringcast") -> subprocess.CompletedProcess[str]:
    command = [helm, "template", "ringcast", str(CHART), "--namespace", namespace, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rendered(helm: str, *words: str, namespace: str = "ringcast") -> Objects:
    done = template(helm, *words, namespace=namespace)
    assert done.returncode == 0, done.stderr
    return by_name(done.stdout)


def pod(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    found = objects[kind, name]["spec"]["template"]["spec"]
    assert isinstance(found, dict)
    return found


def without_marks(objects: Objects) -> Objects:
    """Without what a chart writes into each of its objects, and the sum by which a changed file restarts NATS."""
    copy: Objects = {name: json.loads(json.dumps(one)) for name, one in objects.items()}
    for one in copy.values():
        for label in OF_THE_CHART:
            assert one["metadata"]["labels"].pop(label)
    template = copy["StatefulSet", "nats"]["spec"]["template"]["metadata"]
    assert len(template.pop("annotations")["checksum/config"]) == 64
    return copy


def test_the_chart_has_each_file_of_the_base() -> None:
    """As links, so a change of one is a change of both; `helm package` packs what they lead to."""
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    files = {name for name in listed if name.endswith(".yaml")} - {"namespace.yaml"}
    assert {path.name for path in (CHART / "base").iterdir()} == files
    monitors = yaml.safe_load((BASE / "monitoring/kustomization.yaml").read_text())["resources"]
    assert {path.name for path in (CHART / "monitoring").iterdir()} == set(monitors)
    (generator,) = yaml.safe_load((ROOT / "infra/nats/kustomization.yaml").read_text())["configMapGenerator"]
    sources = {name.partition("=")[0]: name.partition("=")[2] or name for name in generator["files"]}
    assert {path.name for path in (CHART / "nats").iterdir()} == sources.keys()
    for name, source in sources.items():
        assert (CHART / "nats" / name).read_text() == (ROOT / "infra/nats" / source).read_text()
    for name in files:
        assert (CHART / "base" / name).read_text() == (BASE / name).read_text()


def test_without_values_it_is_the_base(helm: str) -> None:
    wanted = {name: one for name, one in built().items() if name[0] != "Namespace"}
    got = without_marks(rendered(helm, "--set", "monitoring.enabled=true"))
    assert got.keys() == wanted.keys()
    for name, one in wanted.items():
        assert got[name] == one, name
    of_prometheus = {name for name, one in wanted.items() if one["apiVersion"].startswith("monitoring")}
    assert len(of_prometheus) == 4
    assert rendered(helm).keys() == wanted.keys() - of_prometheus


def test_another_namespace_is_named_everywhere(helm: str) -> None:
    objects = rendered(helm, namespace="lists")
    assert all(one["metadata"]["namespace"] == "lists" for one in objects.values())
    text = yaml.safe_dump_all(objects.values())
    assert "kubernetes.io/metadata.name: ringcast" not in text
    assert text.count("kubernetes.io/metadata.name: lists") >= 5
    (hosts,) = [
        word
        for word in pod(objects, "DaemonSet", "heartbeat-agent")["containers"][0]["args"]
        if word.startswith("--allowed-hosts=")
    ]
    assert "heartbeat-agent.lists" in hosts
    assert "heartbeat-agent.ringcast" not in text


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_renders_with_all_that_it_says(file: Path, helm: str) -> None:
    objects, values = rendered(helm, "--values", str(file)), yaml.safe_load(file.read_text())
    for part, kind, name in (
        ("configService", "Deployment", "config-service"),
        ("heartbeatAgent", "DaemonSet", "heartbeat-agent"),
        ("nats", "StatefulSet", "nats"),
    ):
        given = values.get(part, {})
        if given.get("enabled") is False:
            assert not [one for one in objects if name in one[1]]
            continue
        found = pod(objects, kind, name)
        (container,) = found["containers"]
        base = pod(built(), kind, name)["containers"][0]
        assert container["image"] == given.get("image", base["image"])
        assert container["resources"] == given.get("resources", base["resources"])
        assert container["args"] == [*base["args"], *given.get("extraArgs", [])]
        assert found.get("tolerations", []) == given.get("tolerations", [])
        assert found.get("nodeSelector", {}) == given.get("nodeSelector", {})
        assert found.get("imagePullSecrets", []) == values.get("imagePullSecrets", [])
        # Whatever the values say, nobody gets more rights.
        assert container["securityContext"] == base["securityContext"]
        assert found["securityContext"] == pod(built(), kind, name)["securityContext"]
    replicas = values.get("configService", {}).get(
        "replicas", built()["Deployment", "config-service"]["spec"]["replicas"]
    )
    assert objects["Deployment", "config-service"]["spec"]["replicas"] == replicas
    policies = [one for kind, one in objects if kind == "NetworkPolicy"]
    assert bool(policies) == values.get("networkPolicies", {}).get("enabled", True)
    if database := values.get("database"):
        rule = objects["NetworkPolicy", "config-service"]["spec"]["egress"][-1]
        assert [target["ipBlock"]["cidr"] for target in rule["to"]] == database["cidrs"]
        assert [port["port"] for port in rule["ports"]] == [database["port"]]
        assert "database" not in policies, "no pod of this namespace is the database"
    if labels := values.get("monitoring", {}).get("labels"):
        monitors = [one for one in objects.values() if one["apiVersion"].startswith("monitoring")]
        assert monitors
        assert all(labels.items() <= one["metadata"]["labels"].items() for one in monitors)
    (claim,) = objects["StatefulSet", "nats"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"].get("storageClassName", "") == values.get("nats", {}).get("storageClass", "")
    wanted = values.get("nats", {}).get("storage", "25Gi")
    assert claim["spec"]["resources"]["requests"]["storage"] == wanted


def test_the_accounts_of_other_stores_restart_nats(helm: str, tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.conf"
    accounts.write_text('# of other stores: "{{ not a template }}"\naccounts: {}\n')
    changed, usual = rendered(helm, "--set-file", f"nats.accounts={accounts}"), rendered(helm)
    assert changed["ConfigMap", "nats-config"]["data"]["accounts.conf"] == accounts.read_text()
    sums = [one["StatefulSet", "nats"]["spec"]["template"]["metadata"]["annotations"] for one in (changed, usual)]
    assert sums[0] != sums[1]


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("configService.replica=3", "replica"),
        ("configService.replicas=0", "replicas"),
        ("nats.storage=much", "storage"),
        ("database.port=70000", "port"),
        ("configService.extraArgs={oops}", "extraArgs"),
        ("heartbeatAgent.image=two words", "image"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(word: str, named: str, helm: str) -> None:
    done = template(helm, "--set", word)
    assert done.returncode != 0
    assert named in done.stderr
    assert "values don't meet the specifications of the schema" in done.stderr


def test_every_value_is_documented() -> None:
    """Each of the schema stands in values.yaml, and none besides."""
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    schema.pop("global")
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values.keys() == schema.keys()
    for name, part in values.items():
        if isinstance(part, dict):
            assert part.keys() == schema[name]["properties"].keys(), name
