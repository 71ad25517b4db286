"""The placement of examples and steps, and what all processes agree on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import tangent_jax as tj
from tangent_jax.core import placement
from tangent_jax.core.checks import InputError
from tangent_jax.io import hosts, job
from tangent_jax.io.job import cluster
from tangent_jax.train.batches import Batches
from tangent_jax.train.features import Features


def test_features_are_copied_to_the_device_once():
    pairs = tuple((f"{i}", f"{i}.jpg") for i in range(6))
    features = Features(np.arange(12.0, dtype=np.float32).reshape(6, 2), np.arange(6), pairs)
    first, second = (features.batches(jax.random.key(i), batch_size=2 + i).resident()[0] for i in range(2))
    assert first is second
    assert features.take(np.arange(3)).batches().resident()[0] is not first
    assert Batches(features.inputs, features.targets).resident()[0] is not first


def test_one_process_agrees_with_itself():
    placement.check_alike(lambda: pytest.fail("nobody to compare with"))
    assert hosts.is_writer()
    value = np.array([1, 2], np.uint32)
    assert placement.agree(value) is value
    assert isinstance(placement.replicate({"a": np.ones(2)})["a"], jax.Array)
    assert placement.divide(jnp.ones((3, 2)), 0).shape == (3, 2)


SRUN = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "a[1-2]"}
OMPI_4 = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911"}


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, None),  # a script of sbatch, before srun
        ({**SRUN, "SLURM_NTASKS": "1"}, None),  # a task of an array
        ({**SRUN, "SLURM_NTASKS": "2"}, "slurm"),
        ({"OMPI_COMM_WORLD_SIZE": "2", **OMPI_4}, "ompi"),
        ({"OMPI_COMM_WORLD_SIZE": "2", **OMPI_4, **SRUN, "SLURM_NTASKS": "2"}, "ompi"),  # mpirun within a Slurm job
        ({"OMPI_COMM_WORLD_SIZE": "1"}, None),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),  # any pod
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, None),  # told by flags
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "gketpu"),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
    ],
)
def test_environment_describes_the_job(environment, name):
    assert cluster({"JAX_PLATFORMS": "cpu", **environment}) == name


def test_an_installed_libtpu_is_no_tpu(monkeypatch):
    """JAX sets TPU_SKIP_MDS_QUERY where it finds no TPU."""
    monkeypatch.setattr(job, "find_spec", lambda name: name)
    assert cluster({}) == "gcetpu"
    assert cluster({"TPU_SKIP_MDS_QUERY": "1"}) is None


def test_open_mpi_5_needs_mpi4py_or_flags(monkeypatch):
    environment = {"OMPI_COMM_WORLD_SIZE": "2"}
    monkeypatch.setattr(job, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="give coordinator=HOST:PORT, processes=N and process_id="):
        cluster(environment)
    monkeypatch.setattr(job, "find_spec", lambda name: object())
    assert cluster(environment) == "mpi4py"


def test_explicit_mesh_trains_and_solves():
    divided = NamedSharding(jax.make_mesh((1,), ("d",)), PartitionSpec("d"))
    assert AxisType.Explicit in divided.mesh.axis_types
    x, start = jax.device_put((np.eye(8, 5, dtype=np.float32), {"k": np.zeros((5, 3), np.float32)}), divided)
    data = Batches(x, np.arange(8) % 3, jax.random.key(0), batch_size=4)

    def linear(dw, x):
        return x @ dw["k"]

    fitted = tj.fit(linear, data, start=start, epochs=1)
    solution = tj.solve(linear, data, tj.make_objective("rsl", 0.1), start=start)
    assert tj.outputs(linear, fitted.dw, x).shape == (8, 3)
    assert tj.evaluate(linear, solution.dw, data) == 0.75
