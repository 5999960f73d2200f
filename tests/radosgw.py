"""A real S3 server for the tests: Ceph's object gateway on one memory store. It checks signatures and conditions."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.config import Config

from prefect_gpu.lab.sandbox import Process, free_port, wait_until

PROGRAMS = ("ceph", "ceph-mon", "ceph-mgr", "ceph-osd", "radosgw", "radosgw-admin", "monmaptool")
ACCESS_KEY, SECRET_KEY, BUCKET = "testaccesskey", "testsecretkey0123456789", "checkpoints"
ROLE = "arn:aws:iam:::role/runs"  # may do anything with the bucket
_TRUST = """{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":["arn:aws:iam:::user/test"]},
"Action":["sts:AssumeRole"]}]}"""
_MAY = f"""{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Action":["s3:*"],
"Resource":["arn:aws:s3:::{BUCKET}","arn:aws:s3:::{BUCKET}/*"]}}]}}"""


@dataclass(frozen=True)
class S3Server:
    """Where it is; the credentials are those of this module.

    Attributes:
        endpoint_url: As this machine reaches it.
        halt: The gateway ends at once; what it has stored stays.
        resume: It is there again.
    """

    endpoint_url: str
    halt: Callable[[], None]
    resume: Callable[[], None]

    @property
    def environment(self) -> dict[str, str]:
        """What boto3 reads from the environment."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "default",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, secret: str = SECRET_KEY) -> object:
        """A plain client."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name="default",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=secret,
            config=Config(s3={"addressing_style": "path"}),
        )


def missing() -> list[str]:
    """Programs that this machine lacks."""
    return [name for name in PROGRAMS if shutil.which(name, path="/usr/bin:/usr/sbin:/bin:/sbin") is None]


@contextlib.contextmanager
def s3_server(folder: Path, listen: str = "127.0.0.1", sts: bool = False) -> Iterator[S3Server]:
    """Start one, with a user and a bucket, below a folder; everything of it ends with the context.

    Args:
        listen: Address that it listens on; 0.0.0.0 lets containers reach it, too.
        sts: Whether it gives :data:`ROLE`. It then calls keys that it does not know denied, and not unknown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, mon_port = free_port(), free_port()
    cluster = str(uuid.uuid4())
    conf = folder / "ceph.conf"
    conf.write_text(f"""[global]
fsid = {cluster}
mon host = [v2:127.0.0.1:{mon_port}]
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data avail crit = 1
run dir = {folder}
log file = {folder}/$name.log
admin socket = {folder}/$name.asok
mon data = {folder}/mon
mgr data = {folder}/mgr
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 8589934592
osd memory target = 1073741824
mon pg warn on pool no redundancy = false
rgw frontends = beast endpoint={listen}:{port}
rgw data = {folder}/rgw
rgw s3 auth use sts = {str(sts).lower()}
rgw sts key = of-sixteen-bytes
""")
    for name in ("mon", "mgr", "osd", "rgw"):
        (folder / name).mkdir(exist_ok=True)

    def run(*command: str) -> str:
        done = subprocess.run([*command, "--conf", str(conf)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:] or done.stdout[-2000:]}")
        return done.stdout

    started: list[Process] = []

    def start(*command: str) -> None:
        started.append(
            Process([*command, "--conf", str(conf), "-f"], log=folder / f"{command[0]}.out", env=_ENV, cwd=folder)
        )

    try:
        monmap = folder / "monmap"
        subprocess.run(
            ["monmaptool", "--create", "--clobber", "--fsid", cluster, "--addv", "a", f"[v2:127.0.0.1:{mon_port}]",
             str(monmap)],
            check=True, capture_output=True,
        )  # fmt: skip
        run("ceph-mon", "--mkfs", "-i", "a", "--monmap", str(monmap))
        start("ceph-mon", "-i", "a")
        start("ceph-mgr", "-i", "a")
        osd = str(uuid.uuid4())
        wait_until(lambda: _succeeds(run, "ceph", "osd", "new", osd), what="the monitor to answer")
        run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", osd)
        start("ceph-osd", "-i", "0")
        run("radosgw-admin", "user", "create", "--uid", "test", "--display-name", "test", "--access-key", ACCESS_KEY,
            "--secret-key", SECRET_KEY)  # fmt: skip

        def resume() -> None:
            start("radosgw", "-n", "client.rgw")
            client = server.client()
            wait_until(lambda: _succeeds(client.create_bucket, Bucket=BUCKET), what="the gateway to answer")  # type: ignore[attr-defined]

        if sts:
            run("radosgw-admin", "role", "create", "--role-name", "runs", "--assume-role-policy-doc", _TRUST)
            run("radosgw-admin", "role-policy", "put", "--role-name", "runs", "--policy-name", "bucket",
                "--policy-doc", _MAY)  # fmt: skip

        server = S3Server(f"http://127.0.0.1:{port}", lambda: started.pop().kill(), resume)
        resume()
        yield server
    finally:
        for process in reversed(started):
            process.terminate(timeout_s=5.0)


_ENV = {"PATH": "/usr/bin:/usr/sbin:/bin:/sbin"}


def _succeeds(call: object, *arguments: object, **more: object) -> bool:
    try:
        call(*arguments, **more)  # type: ignore[operator]
    except Exception:
        return False
    return True
