"""Tables in an object store that speaks S3, as a server of this machine does: read by ranges, written as parts; what is said of errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jupyter_dtrain import data
from jupyter_dtrain.errors import DataError

DATE = "2026-01-01T00:00:00.000Z"


class Store(ThreadingHTTPServer):
    """Objects of one bucket, ``rows``, in memory."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.sent = 0  # bytes of objects
        self.lock = threading.Lock()

    @property
    def query(self) -> str:
        return f"endpoint_override=127.0.0.1:{self.server_port}&scheme=http&region=here"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def asked(self) -> tuple[str, dict[str, str], bytes]:
        parts = urlsplit(self.path)
        if self.headers.get("Expect"):
            self.send_response_only(100)
            self.end_headers()
        body = self.chunks() if self.headers.get("Transfer-Encoding") else self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" in (self.headers.get("Content-Encoding") or ""):
            body = dechunked(body)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        return unquote(parts.path).removeprefix("/rows").removeprefix("/"), query, body

    def handle_expect_100(self) -> bool:
        return True  # `asked` says it

    def chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():  # what comes behind the last one
            pass
        return found

    def do_HEAD(self) -> None:
        key, _, _ = self.asked()
        found = self.server.objects.get(key)
        if found is None and key:
            self.answer(404)
        else:
            self.answer(200, length=len(found or b""), ETag='"1"')

    def do_GET(self) -> None:
        key, query, _ = self.asked()
        if not key:
            self.answer(200, self.listing(query.get("prefix", ""), query.get("delimiter", "")), Content_Type="application/xml")
            return
        found = self.server.objects.get(key)
        if found is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>", Content_Type="application/xml")
            return
        first, _, last = (self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")
        piece = found[int(first) : int(last) + 1 if last else None]
        with self.server.lock:
            self.server.sent += len(piece)
        self.answer(206, piece, Content_Range=f"bytes {first}-{int(first) + len(piece) - 1}/{len(found)}", ETag='"1"')

    def listing(self, prefix: str, delimiter: str) -> bytes:
        keys = sorted(key for key in self.server.objects if key.startswith(prefix))
        folders = {key[: key.index(delimiter, len(prefix)) + 1] for key in keys if delimiter and delimiter in key[len(prefix) :]}
        files = [key for key in keys if not (delimiter and delimiter in key[len(prefix) :])]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.server.objects[key])}</Size><LastModified>{DATE}</LastModified>"
            "<ETag>1</ETag></Contents>"
            for key in files
        )
        below = "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders))
        head = f"<Name>rows</Name><KeyCount>{len(files) + len(folders)}</KeyCount><IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult>{head}{contents}{below}</ListBucketResult>".encode()

    def do_PUT(self) -> None:
        key, query, body = self.asked()
        if "partNumber" in query:
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
        else:
            self.server.objects[key] = body
        self.answer(200, ETag='"1"')

    def do_POST(self) -> None:
        key, query, _ = self.asked()
        if "uploads" in query:
            upload = str(len(self.server.uploads))
            self.server.uploads[upload] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        else:
            parts = self.server.uploads.pop(query["uploadId"])
            self.server.objects[key] = b"".join(parts[number] for number in sorted(parts))
            text = "<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>"
        self.answer(200, text.encode(), Content_Type="application/xml")

    def do_DELETE(self) -> None:
        key, _, _ = self.asked()
        self.server.objects.pop(key, None)
        self.answer(204)


def dechunked(body: bytes) -> bytes:
    """Return what was sent in chunks that each say their length."""
    found = b""
    while body:
        head, _, body = body.partition(b"\r\n")
        size = int(head.partition(b";")[0], 16)
        if not size:
            break
        found, body = found + body[:size], body[size + 2 :]
    return found


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = Store()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    for part in range(3):
        sink = pa.BufferOutputStream()
        rows = np.arange(100) + 100 * part
        columns = {"a": rows * 0.5, "row": rows} | {
            f"other{number}": np.random.default_rng(number).normal(size=100) for number in range(200)
        }
        pq.write_table(pa.table(columns), sink, row_group_size=25, use_dictionary=False)
        server.objects[f"taxi/{part}.parquet"] = sink.getvalue().to_pybytes()
    server.objects["taxi/rows.csv"] = b"a,row\n" + b"".join(b"%f,%d\n" % (0.5 * row, row) for row in range(300))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_rows_are_read_by_ranges(store):
    for place in ("s3://rows/taxi", "s3://rows/taxi/*.parquet", "s3://rows/taxi/[01].parquet"):
        rows = data.parquet(f"{place}?{store.query}", features="a", target="row", seed=0)
        found = sorted((row, x) for xs, ys in rows.loader(32) for x, row in zip(xs.tolist(), ys.tolist(), strict=True))
        assert found == [(row, row * 0.5) for row in range(200 if "[" in place else 300)]
    assert len(data.parquet(f"s3://rows/taxi/?.parquet?{store.query}", features="a")) == 300
    assert len(data.csv(f"s3://rows/taxi?{store.query}", features="a", block_bytes=500)) == 300
    rows = data.parquet(f"s3://rows/taxi?{store.query}", features="a", shuffle=False)
    before = store.sent
    list(rows.loader(100))
    footers = sum(len(content) for key, content in store.objects.items() if key.endswith(".parquet")) - 3 * 100 * 202 * 8
    assert store.sent - before < 1.2 * footers  # once for each file; and not the other columns


def test_predictions_are_written_as_parts(store):
    place = f"s3://rows/preds?{store.query}"
    with data.to_parquet(place, part_rows=40) as preds:
        for row in range(0, 100, 10):
            preds.append(row=np.arange(row, row + 10))
    assert [key for key in store.objects if key.startswith("preds/part")] == [f"preds/part-{part:06}.parquet" for part in range(3)]
    rows = data.parquet(place, features="row", shuffle=False)
    assert [row for batch in rows.loader(30) for row in batch.tolist()] == list(range(100))


def test_an_object_that_vanishes_or_is_another_is_named(store):
    rows = data.parquet(f"s3://rows/taxi?{store.query}", features="a", shuffle=False, cache_bytes=500)
    del store.objects["taxi/1.parquet"]
    with pytest.raises(DataError, match=r"Row group 0 of rows/taxi/1\.parquet cannot be read: the file is not there any more"):
        list(rows.loader(25))
    store.objects["taxi/1.parquet"] = store.objects["taxi/0.parquet"] + b" "
    with pytest.raises(DataError, match="was changed since its metadata were read"):
        list(rows.loader(25))
    with pytest.raises(DataError, match="There is no file"):
        data.parquet(f"s3://rows/none?{store.query}", features="a")
