"""A real Slurm on this machine: one controller, and two nodes on ports of their own, in a temporary folder."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager

DAEMONS = {name: shutil.which(name, path="/usr/sbin:/usr/bin") for name in ("munged", "slurmctld", "slurmd")}
IS_HERE = all(DAEMONS.values()) and shutil.which("sbatch") is not None

# The nodes' names need addresses, as the first one coordinates a job: it is this host's name.
CONFIG = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
MailProg=/bin/true
MpiDefault=none
KillWait=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SchedulerParameters=bf_interval=1,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
FirstJobId={first}
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8
NodeName={host}-2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8
PartitionName=test Nodes=ALL Default=YES State=UP
"""


@contextmanager
def running(folder):
    """Starts the daemons, and ends them; yields (sbatch's environment's part, a function that runs a command)."""
    host, ports = socket.gethostname().partition(".")[0], [free_port() for _ in range(3)]
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    config = folder / "slurm.conf"
    names = {"host": host, "user": getpass.getuser(), "folder": folder, "ports": ports, "first": os.getpid() % 4000 + 1}
    config.write_text(CONFIG.format(**names))
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log"}
    munge = [f"--{name}={folder / file}" for name, file in {**files, "seed-file": "munge.seed"}.items()]
    commands = {"munged": ["--foreground", "--force", *munge], "slurmctld": ["-D", "-f", config]}
    commands |= {f"slurmd {name}": ["-D", "-f", config, "-N", name] for name in (host, f"{host}-2")}
    environment, processes = {**os.environ, "SLURM_CONF": f"{config}"}, []
    try:
        for name, arguments in commands.items():
            with (folder / f"{name}.log").open("w") as log:
                command = [DAEMONS[name.split()[0]], *arguments]
                processes.append(subprocess.Popen(command, env=environment, stdin=-3, stdout=log, stderr=log))
            wait(lambda: (folder / "munge.socket").exists(), 10)
        wait(lambda: call("sinfo", "-h", "-o", "%D %t", check=False, env=environment) == "2 idle", 30)
        yield environment
    finally:
        if processes:
            call("scancel", "--user", getpass.getuser(), check=False, env=environment)
            wait(lambda: call("squeue", "-h", check=False, env=environment) == "", 60)
        for process in reversed(processes):
            process.terminate()
            process.wait(30)


def call(*command, check=True, **options):
    """Stdout of a command, without its last line break."""
    return subprocess.run([*map(os.fspath, command)], check=check, stdout=-1, text=True, **options).stdout.strip()


def wait(condition, seconds):
    """Waits until the condition holds; False where it never did."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
