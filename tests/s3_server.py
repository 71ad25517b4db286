"""A real S3 server on this machine: moto's, in a process of its own, whose requests a test can make fail.

    with serving(environment) as server:    server.url; `environment` receives what clients read
        server.fail("PUT", "run/", "AccessDenied", 403, after=2)

A failure answers requests of one method, whose path contains a text, as S3 would. `python tests/s3_server.py` is the
process: it prints its port.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

ANSWER = """<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>{code}</Code><Message>{message}</Message><RequestId>1</RequestId></Error>"""


class Server:
    """A server that runs."""

    def __init__(self, url):
        self.url = url
        self.numbers = itertools.count()

    def tell(self, **rule):
        request = urllib.request.Request(f"{self.url}/-/rule", json.dumps(rule).encode(), method="POST")
        urllib.request.urlopen(request).read()

    def fail(self, method, path, code, status, message="", after=0):
        """Answers, after so many that pass, the requests of a method on paths that contain a text."""
        self.tell(method=method, path=path, code=code, status=status, message=message, after=after)

    def mend(self):
        """Answers all requests again."""
        self.tell(method="")

    def fresh(self):
        """A URL in the bucket that holds nothing."""
        return f"s3://bucket/{next(self.numbers)}"

    def put(self, folder):
        """The URL of a copy of a folder."""
        url = self.fresh()
        for path in folder.rglob("*"):
            if path.is_file():
                self.fs.put_file(path, f"{url}/{path.relative_to(folder)}")
        return url


@contextlib.contextmanager
def serving_bucket(copies):
    """Yields a server with the empty bucket `bucket`, which this process and its children reach by the environment.

    Copies of its weights lie in `copies`.
    """
    import fsspec
    import pytest

    from tangent_jax.io import paths

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "COPIES", str(copies))
        environment = {}
        with serving(environment) as server:
            for name, value in environment.items():
                patch.setenv(name, value)
            server.environment, server.fs = environment, fsspec.filesystem("s3", skip_instance_cache=True)
            server.fs.mkdir("bucket")
            server.copies = copies
            yield server


@contextlib.contextmanager
def serving(environment):
    """Yields the server; `environment` is told its address and credentials."""
    forget_clients()  # of another server
    command = [sys.executable, Path(__file__).resolve()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            url = f"http://127.0.0.1:{int(process.stdout.readline())}"
            environment |= {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
            environment |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
            yield Server(url)
        finally:
            process.kill()
            forget_clients()


def forget_clients():
    """Forgets the clients of S3, which keep an address, credentials and listings."""
    from etils.epath import backend
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
    type(backend.fsspec_backend)._get_filesystem.cache_clear()


def main():
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    inner, rules = DomainDispatcherApplication(create_backend_app), {}

    def application(environ, start_response):
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == "/-/rule":
            rule = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            rules[rule["method"]] = rule
            if not rule["method"]:
                rules.clear()
            start_response("200 OK", [])
            return [b""]
        rule = rules.get(method)
        if rule and rule["path"] in path:
            rule["after"] -= 1
            if rule["after"] < 0:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start_response(f"{rule['status']} No", [("Content-Type", "application/xml")])
                return [] if method == "HEAD" else [ANSWER.format(**rule).encode()]
        return inner(environ, start_response)

    server = make_server("127.0.0.1", 0, application, threaded=True)
    print(server.port, flush=True)
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
