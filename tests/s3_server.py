"""An S3 server on a socket (moto's), whose answers fail in the ways that were asked for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "bucket"
LOST = "stored, then 500"
FAULTS = ("500", "half a body", "other bytes", "no answer", LOST)


class _Quiet(WSGIRequestHandler):
    def log(self, *args: Any) -> None:
        pass


@dataclass
class S3Server:
    """A server with one bucket.

    Attributes:
        url: of the server.
        faults: how the next requests for objects fail, in order; `""` for one that does not.
    """

    url: str
    faults: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What boto reads."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }

    def put(self, name: str, data: bytes) -> None:
        self._client().put_object(Bucket=BUCKET, Key=name, Body=data)

    def get(self, name: str) -> bytes | None:
        client = self._client()
        try:
            data: bytes = client.get_object(Bucket=BUCKET, Key=name)["Body"].read()
        except client.exceptions.NoSuchKey:
            return None
        return data

    def delete(self, name: str) -> None:
        self._client().delete_object(Bucket=BUCKET, Key=name)

    def clear(self) -> None:
        self.faults.clear()
        client = self._client()
        for found in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
            client.delete_object(Bucket=BUCKET, Key=found["Key"])

    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3", endpoint_url=f"{self.url}", region_name="us-east-1",
            aws_access_key_id="direct", aws_secret_access_key="secret",
        )  # fmt: skip


class _Faulty:
    """Passes requests on; those of the product's client fail as `server.faults` says."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self.app = app
        self.server = S3Server("")

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        product = "Credential=key/" in environ.get("HTTP_AUTHORIZATION", "")
        fault = self.server.faults[0] if product and self.server.faults else ""
        if fault == LOST and environ["REQUEST_METHOD"] != "PUT":
            fault = ""  # It waits for something that is stored.
        elif fault or (product and self.server.faults):
            self.server.faults.pop(0)
        if fault in ("500", LOST):
            if fault != "500":
                b"".join(self.app(environ, lambda *_: None))
            else:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            body = b"<Error><Code>InternalError</Code><Message>a fault</Message></Error>"
            start("500 Internal Server Error", [("Content-Length", str(len(body)))])
            return [body]
        if fault == "no answer":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            start("200 OK", [])
            return []
        head: list[Any] = []
        body = b"".join(self.app(environ, lambda *given: head.extend(given)))
        status, headers = head[0], dict(head[1])
        if environ["REQUEST_METHOD"] != "HEAD":
            headers["Content-Length"] = str(len(body))
        if fault == "half a body":
            body = body[: len(body) // 2]
        elif fault == "other bytes" and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        start(status, list(headers.items()))
        return [body]


@contextmanager
def s3_server() -> Iterator[S3Server]:
    app = _Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    app.server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        app.server._client().create_bucket(Bucket=BUCKET)
        yield app.server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
