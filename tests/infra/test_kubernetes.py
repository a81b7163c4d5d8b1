"""The manifests with their defaults, held to the schemas of Kubernetes and KubeRay."""

import json
import subprocess
import sys
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.infra.dockerfile import Tree
from tests.inputs import SHARED, reads

INFRA = Path(__file__).parents[2] / "infra"
TEMPLATE, WORKER = (INFRA / "kubernetes" / f"{name}.yaml" for name in ("job-template", "worker"))
RAY = INFRA / "kuberay" / "raycluster.yaml"
SCHEMA = SHARED / "reference" / "crd" / "raycluster-v1-strict.json"


RENDER = """
import asyncio, json, os
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration
from pydantic import ValidationError
template = json.loads(os.environ["TEMPLATE"])
try:
    made = asyncio.run(KubernetesWorkerJobConfiguration.from_template_and_values(template, {}))
except ValidationError as error:
    print(json.dumps(str(error)))
else:
    made.command = "prefect flow-run execute"
    made._populate_env_in_manifest()
    made._populate_command_if_not_present()
    made.job_manifest["metadata"]["name"] = "run"  # as the cluster makes of generateName
    print(json.dumps(made.job_manifest))
"""
SETTINGS = """
import json
from prefect_kubernetes.settings import KubernetesSettings
settings = KubernetesSettings()
worker = settings.worker
print(json.dumps([worker.api_auth_string_secret_name, worker.api_auth_string_secret_key,
    sorted(settings.observer.namespaces)]))
"""


def said(image: Tree, code: str, **environment: str) -> Any:
    """Return the JSON that Python code prints where Prefect's worker for Kubernetes is installed,
    in the image."""
    given = {"CODE": code, "HOME": "/data", **environment}
    return json.loads(image.call('python -c "$CODE"', environment=given))


def job(image: Tree, template: dict[str, Any]) -> Any:
    """Return the job that Prefect's own worker makes of a run by a template's defaults, or its
    error."""
    return said(image, RENDER, TEMPLATE=json.dumps(template))


def template() -> dict[str, Any]:
    return yaml.safe_load(TEMPLATE.read_text())


def validated(*documents: Any, folder: Path) -> str:
    """Return what kubernetes-validate objects to; empty where it does not."""
    file = folder / "rendered.yaml"
    file.write_text(yaml.safe_dump_all(documents, sort_keys=False))
    command = [Path(sys.executable).with_name("kubernetes-validate"), "--strict", "--quiet", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert bool(done.returncode) == bool(done.stdout), done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_job_of_a_run_is_strictly_valid(image: Tree, tmp_path: Path) -> None:
    """But for two fields that Prefect demands where Kubernetes does not know them."""
    made = job(image, template())
    assert "{{" not in json.dumps(made)
    assert "completions" in validated(made, folder=tmp_path)
    pod = made["spec"]["template"]["spec"]
    assert (pod.pop("completions"), pod.pop("parallelism")) == (1, 1)
    assert validated(made, folder=tmp_path) == ""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_prefect_demands_what_kubernetes_does_not_know(image: Tree) -> None:
    """Once it does not, both fields go out of the template."""
    without = template()
    pod = without["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    del pod["completions"], pod["parallelism"]
    assert "/spec/template/spec/completions, /spec/template/spec/parallelism" in job(image, without)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_job_runs_once_and_holds_no_secret(image: Tree) -> None:
    made = job(image, template())
    assert made["spec"]["backoffLimit"] == 0
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["restartPolicy"] == "Never"
    assert container["envFrom"][1] == {"secretRef": {"name": "rl-pipeline"}}
    assert not [entry for entry in container["env"] if "AUTH" in entry["name"]]
    assert container["args"] == ["prefect", "flow-run", "execute"]


def test_the_worker_and_its_rights_are_strictly_valid(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all(WORKER.read_text()))
    assert validated(*documents, folder=tmp_path) == ""
    (rights,) = [each for each in documents if each["kind"] == "Role"]
    resources = {name for rule in rights["rules"] for name in rule["resources"]}
    assert "secrets" not in resources
    (deployment,) = [each for each in documents if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry for entry in container["env"]}
    where = env["PREFECT_API_AUTH_STRING"]["valueFrom"]["secretKeyRef"]
    kept = "PREFECT_INTEGRATIONS_KUBERNETES_WORKER_API_AUTH_STRING_SECRET_"
    assert (env[f"{kept}NAME"]["value"], env[f"{kept}KEY"]["value"]) == (
        where["name"],
        where["key"],
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_the_worker_is_told_it_reads(image: Tree) -> None:
    """Prefect ignores a variable that it does not know, and then writes the password into jobs."""
    documents = list(yaml.safe_load_all(WORKER.read_text()))
    (container,) = documents[-1]["spec"]["template"]["spec"]["containers"]
    told = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    read = said(image, SETTINGS, **told)
    assert read == ["rl-pipeline", "PREFECT_API_AUTH_STRING", ["rl-pipeline"]]


@reads(SCHEMA)
def test_the_ray_cluster_is_strictly_valid_and_asks_for_a_token() -> None:
    cluster = yaml.safe_load(RAY.read_text())
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    assert [error.message for error in validator.iter_errors(cluster)] == []
    wrong = deepcopy(cluster)
    wrong["spec"]["headGroupSpec"]["template"]["spec"]["container"] = []
    assert list(validator.iter_errors(wrong)), "the schema sees nothing"
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    assert cluster["spec"]["rayVersion"] == version("ray")


def test_ray_s_other_nodes_run_what_its_head_runs(tmp_path: Path) -> None:
    """Ranks and engines lie on either; other software there is refused before a run."""
    spec = yaml.safe_load(RAY.read_text())["spec"]
    head = spec["headGroupSpec"]["template"]["spec"]
    (group,) = spec["workerGroupSpecs"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node"}, **group["template"]}
    assert validated(pod, folder=tmp_path) == ""
    node, ray = group["template"]["spec"], head["containers"][0]
    (container,) = node["containers"]
    for key in ("image", "envFrom", "env", "resources", "securityContext", "volumeMounts"):
        assert container[key] == ray[key]
    assert {**head, "containers": [], "shareProcessNamespace": None} == {
        **node,
        "containers": [],
        "shareProcessNamespace": None,
    }


def test_the_pod_of_ray_is_strictly_valid_and_its_worker_has_the_token(tmp_path: Path) -> None:
    cluster = yaml.safe_load(RAY.read_text())
    template = cluster["spec"]["headGroupSpec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "head"}, **template}
    assert validated(pod, folder=tmp_path) == ""
    head, worker = template["spec"]["containers"]
    token = {entry["name"]: entry for entry in worker["env"]}["RAY_AUTH_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"] == {
        "name": cluster["metadata"]["name"],
        "key": "auth_token",
    }
    assert head["volumeMounts"] == worker["volumeMounts"]
