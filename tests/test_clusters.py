"""The files of examples/cluster: Slurm's script on a real Slurm, Kubernetes' manifests by its schemas and as processes.

A pod is a process here, with its arguments and variables; /work is a folder.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import pytest
import run_binary
import slurm
import yaml
from helpers import content_of_stores, in_long
from photos import photographs
from run_binary import ROOT, output
from safetensors.numpy import load_file

from tangent_jax.core.checks import InputError
from tangent_jax.io import job
from tangent_jax.io.files import hold_lock

FILES = ROOT / "examples/cluster"
CLAIM, SCRIPT, PAGE = FILES / "work.yaml", FILES / "job.sbatch", ROOT / "docs/howto/clusters.md"
MANIFESTS = [path for path in sorted(FILES.glob("*.yaml")) if path != CLAIM]
MADE = re.findall(r"^(sed .*) \| kubectl apply -f -$", PAGE.read_text(), re.MULTILINE)
HOSTS, ONE, COMPOSED = MADE  # private in two pods, finetune in one, and the job after the parts


# What the library reads of a cluster


SRUN = {"SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("environment", "devices"),
    [
        ({}, None),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "2"}, []),  # alone on its host: all devices
        ({**SRUN, "SLURM_STEP_NUM_NODES": "1"}, None),  # two share a host: JAX takes device 1
        ({**SRUN, "SLURM_STEP_NUM_NODES": "1", "CUDA_VISIBLE_DEVICES": "0,1"}, None),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "1", "CUDA_VISIBLE_DEVICES": "0"}, []),  # Slurm gave each its own
        ({**SRUN, "SLURM_STEP_NUM_NODES": "2", "JAX_LOCAL_DEVICE_IDS": "3"}, None),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, []),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, None),
    ],
)
def test_lone_process_has_all_devices(environment, devices):
    assert job.local_devices(environment) == devices


def test_late_coordinator_is_waited_for(monkeypatch):
    """As the name of a pod that does not run yet."""
    asked, connect = [], socket.create_connection

    def resolve(address, timeout):
        asked.append(address)
        if len(asked) == 1:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return connect(("127.0.0.1", address[1]), timeout)

    monkeypatch.setattr(socket, "create_connection", resolve)
    with socket.create_server(("127.0.0.1", 0)) as server:
        job._reach(f"late:{server.getsockname()[1]}", time.monotonic() + 10)
    assert len(asked) == 2
    asked.clear()
    with pytest.raises(InputError, match=r"the host of never:1 must have an address"):
        job._reach("never:1", time.monotonic())


# Kubernetes


def documents(path):
    """The documents of a manifest: of a file, or what a command of the page makes."""
    is_made = path in MADE
    text = subprocess.check_output(path, shell=True, cwd=FILES, text=True) if is_made else path.read_text()
    return list(yaml.safe_load_all(text))


def name_of(path):
    return job_of(path)["metadata"]["name"]


def job_of(path):
    return next(document for document in documents(path) if document["kind"] == "Job")


@pytest.mark.parametrize("path", [*MANIFESTS, CLAIM, *MADE], ids=str)
def test_manifest_is_valid_kubernetes(path):
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is absent: no schemas")
    versions = ("1.29", validator.latest_version())  # before, schemas want onPodConditions in every rule
    for document in documents(path):
        for version in versions:
            validator.validate(document, version, strict=True)
        broken = {**document, "spec": {**document["spec"], "paralelism": 2}}
        with pytest.raises(validator.ValidationError):
            validator.validate(broken, versions[-1], strict=True)


def test_pod_takes_credentials_as_on_page():
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is absent: no schemas")
    (line,) = re.findall(r"^ +envFrom: .*?(?= +#)", PAGE.read_text(), re.MULTILINE)
    (secret,) = re.findall("^kubectl create secret generic (\\w+) ", PAGE.read_text(), re.MULTILINE)
    text = re.sub("^ +image: .*", rf"\g<0>\n{line}", (FILES / "private.yaml").read_text(), flags=re.MULTILINE)
    document = yaml.safe_load(text)
    validator.validate(document, validator.latest_version(), strict=True)
    (container,) = document["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": secret}}]


@pytest.mark.parametrize("path", [*MANIFESTS, *MADE], ids=str)
def test_manifest_restarts_pod_for_stops_alone(path):
    rules = job_of(path)["spec"]["podFailurePolicy"]["rules"]
    codes = {rule["action"]: {*rule["onExitCodes"]["values"]} for rule in rules if "onExitCodes" in rule}
    assert codes["Ignore"] == {128 + signal.SIGTERM, 128 + signal.SIGINT}
    assert codes.get("FailJob", {1}) == {1}
    assert job_of(path)["spec"]["template"]["spec"]["restartPolicy"] == "Never"  # else the rules are refused


@pytest.mark.parametrize("path", [*MANIFESTS, *MADE], ids=str)
def test_a_pod_has_the_folder_of_the_claim(path):
    (claim,) = documents(CLAIM)
    spec = job_of(path)["spec"]["template"]["spec"]
    (volume,) = spec["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert spec["containers"][0]["volumeMounts"] == [{"name": volume["name"], "mountPath": "/work"}]


@pytest.mark.parametrize("path", [FILES / "finetune.yaml", HOSTS], ids=str)
def test_service_names_pod_0(path):
    service, indexed = documents(path)
    spec, pod = indexed["spec"], indexed["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    name, port = indexed["metadata"]["name"], container["ports"][0]["containerPort"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"]["name"] == pod["subdomain"]
    assert variables["COORDINATOR"] == f"{name}-0.{pod['subdomain']}:{port}"
    assert int(variables["PROCESSES"]) == spec["completions"] == spec["parallelism"]


def test_there_are_as_many_parts_as_pods():
    spec = job_of(FILES / "compose.yaml")["spec"]
    arguments = spec["template"]["spec"]["containers"][0]["args"]
    assert f"--shard=$(JOB_COMPLETION_INDEX)/{spec['completions']}" in arguments
    composed = job_of(COMPOSED)["spec"]
    assert composed["completions"] == composed["parallelism"] == 1
    assert [word for word in arguments if "--shard=" not in word] == (
        composed["template"]["spec"]["containers"][0]["args"]
    )


def pod(path, work, index=0, **variables):
    """The process of a pod of a manifest, as the kubelet starts it: its own variables are put into its arguments."""
    (container,) = job_of(path)["spec"]["template"]["spec"]["containers"]
    own = {entry["name"]: entry["value"] for entry in container.get("env", [])}
    own |= {"JOB_COMPLETION_INDEX": f"{index}", **variables}
    arguments = [re.sub(r"\$\((\w+)\)", lambda of: own[of[1]], argument) for argument in container["args"]]
    arguments = [argument.replace("/work/", f"{work}/") for argument in arguments]
    files = {"stdout": work / f"{name_of(path)}-{index}.out", "stderr": work / f"{name_of(path)}-{index}.err"}
    return run_binary.start("tangent_jax", *arguments, **files, KUBERNETES_SERVICE_HOST="10.0.0.1", **own)


def ended(*processes):
    """The exit codes of processes."""
    try:
        for process in processes:
            process.join(300)
        return [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize("path", [FILES / "private.yaml", *in_long(FILES / "compose.yaml", *MADE)], ids=str)
def test_pod_without_data_ends_the_job(path, tmp_path):
    alone = {"PROCESSES": "1", "COORDINATOR": f"127.0.0.1:{slurm.free_port()}"}
    assert ended(pod(path, tmp_path, **alone)) == [1]
    _, line = (tmp_path / f"{name_of(path)}-0.err").read_text().splitlines()
    assert f"{tmp_path}/" in line


@pytest.fixture
def work(tiny, tmp_path):
    """A folder as the manifests expect it."""
    shutil.copy(tiny.partition("=")[2], tmp_path / "weights.safetensors")
    photographs(tmp_path / "photographs", 30)
    return tmp_path


@pytest.mark.long
def test_an_indexed_job_loses_a_pod_and_goes_on(work):
    path, again = FILES / "finetune.yaml", {"COORDINATOR": f"127.0.0.1:{slurm.free_port()}"}
    pods = [pod(path, work, index, **again) for index in range(2)]
    run_binary.wait_until(pods[0], lambda: [*work.glob("finetune/checkpoints/*/checkpoint.json")])
    pods[1].kill()
    survivor, killed = ended(*pods)
    assert killed == -signal.SIGKILL
    assert survivor not in (0, 130)
    said = (work / "finetune-0.err").read_text()
    assert survivor != 1 or re.search(r"^finetune: another process of the job ended", said, re.M)
    again = {"COORDINATOR": f"127.0.0.1:{slurm.free_port()}"}
    assert ended(*[pod(path, work, index, **again) for index in range(2)]) == [0, 0]
    assert json.loads((work / "finetune-0.out").read_text().splitlines()[-1])["steps"] == 60


@pytest.mark.long
def test_stopped_private_pays_no_step_twice(work):
    process = pod(FILES / "private.yaml", work)
    run_binary.wait_until(process, lambda: [*work.glob("private/**/ledger.json")])
    process.terminate()
    assert ended(process) == [130]
    assert ended(pod(FILES / "private.yaml", work)) == [0]
    result = json.loads((work / "private-0.out").read_text().splitlines()[-1])
    assert result["steps_paid"] == result["steps"]


@pytest.mark.long
def test_parts_of_pods_are_one_process(work):
    spec = job_of(FILES / "compose.yaml")["spec"]
    for index in range(spec["completions"]):
        assert ended(pod(FILES / "compose.yaml", work, index)) == [0]
    arguments = spec["template"]["spec"]["containers"][0]["args"]
    flags = [a.replace("/work/", f"{work}/") for a in arguments[1:] if not a.startswith(("--shard=", "--store"))]
    whole, _ = run_binary.run("compose", *flags, f"--store={work / 'alone'}", f"--out={work / 'out'}")
    assert ended(pod(COMPOSED, work)) == [0]
    assert (work / "composed-0.out").read_text().splitlines()[-1] == whole
    assert content_of_stores(work / "stores") == content_of_stores(work / "alone")


# The container


def instructions():
    """(instruction, argument) of each line of the container file."""
    lines = (FILES / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line and not line.startswith("#")]


def test_image_runs_installed_command():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    given = instructions()
    assert {name for name, _ in given} == {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "ENTRYPOINT"}
    tried = re.search(r"Python ([\d.]+)", (ROOT / "constraints.txt").read_text())[1]
    assert given[0] == ("FROM", f"python:{tried}-slim")
    for name, argument in given:
        if name == "COPY":
            assert all((ROOT / path).exists() for path in argument.split()[:-1])
        if name == "ARG":
            assert {*argument.partition("=")[2].split(",")} <= {*settings["optional-dependencies"]}
    assert json.loads(dict(given)["ENTRYPOINT"])[0] in settings["scripts"]
    for manifest in (*MANIFESTS, *MADE):
        (container,) = job_of(manifest)["spec"]["template"]["spec"]["containers"]
        assert "command" not in container  # the entry point's
        assert f"podman push {container['image']}\n" in (FILES / "Containerfile").read_text()


# Slurm


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """(submit, state of a job) of a Slurm that runs here, the only one of these tests."""
    if not slurm.IS_HERE:
        pytest.skip("Slurm is absent: apt-get install slurm-wlm munge")
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "bin").mkdir()
    (folder / "bin/tangent-jax").write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore -m tangent_jax "$@"\n')
    (folder / "bin/tangent-jax").chmod(0o755)
    lock = Path(tempfile.gettempdir()) / f"tangent_jax-slurm-{os.getuid()}.lock"
    with hold_lock(lock), slurm.running(folder) as environment:
        environment |= {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}"}
        yield lambda *command: slurm.call(*command, env=environment, cwd=folder)


def submit(call, log, *options, command):
    """The number of a job of the script that writes to `log`."""
    return call("sbatch", "--parsable", f"--output={log}", *options, SCRIPT, *command)


def fields(call, number):
    """What Slurm says of a job."""
    return dict(re.findall(r"(\w+)=(\S+)", call("scontrol", "show", "job", number)))


def finished(call, number, seconds=600):
    """The fields of a job, once it is over."""
    over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
    assert slurm.wait(lambda: fields(call, number)["JobState"] in over, seconds)
    return fields(call, number)


def test_slurm_repeats_no_refused_command(cluster, tmp_path):
    number = submit(cluster, tmp_path / "log", command=["finetune", "--epochs=none"])
    said = finished(cluster, number, 120)
    assert (said["JobState"], said["ExitCode"], said["Restarts"]) == ("FAILED", "1:0", "0")
    assert "finetune: flag --epochs=none" in (tmp_path / "log").read_text()


@pytest.mark.long
def test_stopped_slurm_job_keeps_bits(cluster, tmp_path):
    flags = ["finetune", "--epochs=40", "--metrics=", f"--cache_dir={tmp_path / 'cache'}"]
    number = submit(cluster, tmp_path / "log", "--nodes=2", command=[*flags, f"--out={tmp_path / 'stopped'}"])
    assert slurm.wait(lambda: [*tmp_path.glob("stopped/checkpoints/*/checkpoint.json")], 300)
    cluster("scancel", "--signal=TERM", number)  # as --signal does
    assert slurm.wait(lambda: fields(cluster, number)["Restarts"] == "1", 120)
    saved = json.loads(next(tmp_path.glob("stopped/checkpoints/*/checkpoint.json")).read_text())
    assert 1 <= len(saved["history"]) < 40
    said = finished(cluster, number)
    log = (tmp_path / "log").read_text()
    assert (said["JobState"], said["Restarts"]) == ("COMPLETED", "1"), log
    assert log.count("Exited with exit code 130") == log.count("interrupted; the same command goes on") == 2
    assert log.count('{"method": "taft"') == 1
    assert log.count("[Gloo] Rank 1 is connected to 1 peer") == 2  # one job of two processes, both times
    assert re.search(r"taft-\w+: resuming after epoch \d+ of 40\n", log)
    whole = submit(cluster, tmp_path / "whole.log", "--nodes=2", command=[*flags, f"--out={tmp_path / 'whole'}"])
    assert finished(cluster, whole)["Restarts"] == "0"
    stopped, whole = (load_file(tmp_path / name / "dw.safetensors") for name in ("stopped", "whole"))
    assert {k: v.tobytes() for k, v in stopped.items()} == {k: v.tobytes() for k, v in whole.items()}


SHARDS = ["compose", "--method=fc", "--shards=3", "--at_once=1"]


@pytest.mark.long
def test_slurm_array_trains_and_composes(cluster, tmp_path):
    flags = [*SHARDS, "--epochs=1", f"--cache_dir={tmp_path / 'cache'}"]
    command = [*flags, f"--store={tmp_path / 'stores'}", f"--out={tmp_path / 'out'}"]
    number = submit(cluster, tmp_path / "log-%a", "--array=0-1", command=command)
    (after,) = re.findall(r"--dependency=afterok:\$parts (\S+)", PAGE.read_text())
    composed = submit(cluster, tmp_path / "composed", f"--dependency=afterok:{number}", after, command=command)
    assert slurm.wait(lambda: not cluster("squeue", "-h", "-o", "%i"), 300)
    assert json.loads((tmp_path / "composed").read_text().splitlines()[-1])["shards"]["3"]["fc"] > 0.5
    assert fields(cluster, composed)["JobState"] == "COMPLETED"
    for part in range(2):
        assert fields(cluster, f"{number}_{part}")["JobState"] == "COMPLETED"
        assert f'{{"shard": {part}, "of": 2, "groups": 2}}' in (tmp_path / f"log-{part}").read_text()
    output(*flags, f"--store={tmp_path / 'alone'}", f"--out={tmp_path / 'alone-out'}")
    assert content_of_stores(tmp_path / "stores") == content_of_stores(tmp_path / "alone")


def stand_in(folder, at_term):
    """An option of sbatch: `tangent-jax` is a program that prints its arguments, and runs until SIGTERM or on."""
    (folder / "bin").mkdir()
    text = f"#!/bin/sh\necho $* $SRUN_CPUS_PER_TASK\ntrap '{at_term}' TERM\nwhile sleep 1; do :; done\n"
    (folder / "bin/tangent-jax").write_text(text)
    (folder / "bin/tangent-jax").chmod(0o755)
    return f"--export=ALL,PATH={folder / 'bin'}:{os.environ['PATH']}"


@pytest.mark.long
def test_array_task_is_requeued_alone(cluster, tmp_path):
    option = stand_in(tmp_path, "exit 130")
    number = submit(cluster, tmp_path / "log-%a", option, "--array=0-1", command=["compose"])
    logs = [tmp_path / f"log-{part}" for part in range(2)]
    assert slurm.wait(lambda: all(log.exists() and "--shard" in log.read_text() for log in logs), 60)
    assert [log.read_text().split() for log in logs] == [["compose", f"--shard={part}/2"] for part in range(2)]
    array, other = sorted(range(2), key=lambda i: fields(cluster, f"{number}_{i}")["JobId"] != number)
    assert fields(cluster, f"{number}_{array}")["JobId"] == number  # this task has the number of the whole array
    cluster("scancel", "--signal=TERM", f"{number}_{array}")
    assert slurm.wait(lambda: fields(cluster, f"{number}_{array}")["Restarts"] == "1", 60)
    said = fields(cluster, f"{number}_{other}")
    assert (said["JobState"], said["Restarts"]) == ("RUNNING", "0")
    cluster("scancel", number)
    more, log = (f"{option},PARTS=5", "--array=3", "--cpus-per-task=2"), tmp_path / "again"
    again = submit(cluster, log, *more, command=["compose"])
    assert slurm.wait(lambda: log.exists() and log.read_text() == "compose --shard=3/5 2\n", 60)
    cluster("scancel", again)


@pytest.mark.long
def test_unstopping_job_is_requeued_100_times(cluster, tmp_path):
    deaf = stand_in(tmp_path, "")
    over, last, cancelled = (
        submit(cluster, tmp_path / name, f"{deaf},SLURM_RESTART_COUNT={count}", "--time=1", *more, command=["finetune"])
        for name, count, *more in (("over", 99, "--array=0-1"), ("last", 100), ("cancelled", 0))
    )
    assert slurm.wait(lambda: f"{cancelled}.0" in cluster("squeue", "-h", "-s"), 60)
    cluster("scancel", cancelled)
    said = finished(cluster, cancelled, 60)
    assert (said["JobState"], said["Restarts"]) == ("CANCELLED", "0")
    said = finished(cluster, last, 150)
    assert (said["JobState"], said["Restarts"]) == ("TIMEOUT", "0")
    for task in (f"{over}_0", f"{over}_1"):
        assert slurm.wait(lambda task=task: fields(cluster, task)["JobState"] == "PENDING", 60)
        said = fields(cluster, task)
        assert (said["Reason"], said["Restarts"]) == ("BeginTime", "1")
    cluster("scancel", over)


def test_the_page_shows_these_files():
    """And no second copy."""
    page = PAGE.read_text()
    for path in FILES.iterdir():
        assert f"```{{literalinclude}} ../../examples/cluster/{path.name}\n" in page, path.name
    assert "#SBATCH" not in page
    assert not [line for line in page.splitlines() if line.startswith(("apiVersion", "FROM "))]
