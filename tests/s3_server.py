"""A real S3 server on this machine: moto's, in a process of its own, whose requests a test can make fail.

    with serving(environment) as server:    server.url; `environment` receives what clients read
        server.fail("PUT", "objects/", "SlowDown", 503, after=2)

A failure answers requests of one method, whose path contains a text, as S3 would. `python tests/s3_server.py` is the
process: it prints its port.
"""

import contextlib
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
SKEWED = "The difference between the request time and the current time is too large."


class Server:
    """A server that runs."""

    def __init__(self, url):
        self.url = url

    def tell(self, **rule):
        request = urllib.request.Request(f"{self.url}/-/rule", json.dumps(rule).encode(), method="POST")
        urllib.request.urlopen(request).read()

    def fail(self, method, path, code, status, message="", after=0, count=1000, header="", lacking=""):
        """Answers, after so many that pass, so many requests of a method on paths that contain a text.

        header, lacking: only requests that have, or lack, a header whose name contains this.
        """
        rule = {"method": method, "path": path, "code": code, "status": status, "message": message}
        self.tell(**rule, after=after, count=count, header=header, lacking=lacking)

    def slow(self, method, path, seconds):
        """Answers requests of a method on paths that contain a text after some seconds."""
        self.tell(method=method, path=path, status=0, after=0, count=1000, seconds=seconds)

    def mend(self):
        """Answers all requests again."""
        self.tell(method="", path="", code="", status=0, message="", after=0, count=0)


@contextlib.contextmanager
def serving_bucket(scratch):
    """Yields a server with the empty bucket `bucket`, which this process and its children reach by the environment.

    Local copies of its URLs lie in `scratch`.
    """
    import fsspec
    import pytest

    from tangent_jax.remote import urls

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(urls, "SCRATCH", str(scratch))
        environment = {}
        with serving(environment) as server:
            for name, value in environment.items():
                patch.setenv(name, value)
            server.environment, server.fs = environment, fsspec.filesystem("s3", skip_instance_cache=True)
            server.fs.mkdir("bucket")
            yield server


@contextlib.contextmanager
def serving(environment):
    """Yields the server; `environment` is told its address and credentials."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()  # of another server
    command = [sys.executable, Path(__file__).resolve()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            url = f"http://127.0.0.1:{int(process.stdout.readline())}"
            environment |= {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
            environment |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
            yield Server(url)
        finally:
            process.kill()
            S3FileSystem.clear_instance_cache()


def is_of(rule, environ):
    """True if a request has the header that a rule names, and lacks the other."""
    names = " ".join(environ).lower().replace("_", "-")
    header, lacking = rule.get("header"), rule.get("lacking")
    return (not header or header in names) and (not lacking or lacking not in names)


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
        rule = rules.get(method, {"count": 0})
        if rule["count"] and rule["path"] in path and is_of(rule, environ):
            rule["after"] -= 1
            if rule["after"] < 0 and not rule["status"]:
                time.sleep(rule["seconds"])
            elif rule["after"] < 0:
                rule["count"] -= 1
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
