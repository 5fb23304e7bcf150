"""One POST after the other over one kept connection: `python transports.py NAME URL CALLS`."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from ceiling import AUTHORIZATION, BareSocket

PATH = "/worker/response"
BODY = (
    b'{"request_id":"00000000-aaaa-bbbb-cccc-0123456789ab","status":"success","error_text":null,"result":"x"}'
)
HEADERS = {"Authorization": AUTHORIZATION, "Content-Type": "application/json"}

Post = Callable[[], int]


def bare_socket(url: str) -> Post:
    """The ceiling."""
    parts = urlsplit(url)
    connection = BareSocket(str(parts.hostname), parts.port or 80)
    return lambda: connection.call(b"POST", PATH.encode(), BODY)


def kiwi_worker(url: str) -> Post:
    """The data plane."""
    from kiwi_worker.transport import Channel, Endpoint

    channel = Channel(Endpoint(url), user_agent="benchmark")
    return lambda: channel.call("POST", PATH, BODY, authorization=AUTHORIZATION, read_timeout=10).status


def http_client(url: str) -> Post:
    """The standard library."""
    import http.client

    connection = http.client.HTTPConnection(urlsplit(url).netloc)

    def post() -> int:
        connection.request("POST", PATH, BODY, HEADERS)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    return post


def requests(url: str) -> Post:
    """What most people take."""
    import requests as library

    session = library.Session()
    session.trust_env = False
    return lambda: session.post(url + PATH, data=BODY, headers=HEADERS).status_code


def pycurl(url: str) -> Post:
    """libcurl."""
    import pycurl as library

    curl = library.Curl()
    curl.setopt(library.URL, url + PATH)
    curl.setopt(library.POSTFIELDS, BODY)
    curl.setopt(library.HTTPHEADER, [f"{name}: {value}" for name, value in HEADERS.items()])
    curl.setopt(library.WRITEFUNCTION, lambda data: None)

    def post() -> int:
        curl.perform()
        status: int = curl.getinfo(library.RESPONSE_CODE)
        return status

    return post


def main(name: str, url: str, calls: int) -> None:
    """Post, and print the figures."""
    post = {"socket": bare_socket, "kiwi-worker": kiwi_worker, "http.client": http_client}.get(name)
    post = (post or {"requests": requests, "pycurl": pycurl}[name])(url)
    for _ in range(100):
        assert post() == 200
    before, since = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(calls):
        post()
    seconds, after = time.perf_counter() - since, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"per_second": calls / seconds, "cpu_us": cpu / calls * 1e6}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
