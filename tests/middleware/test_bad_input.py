"""Whatever is sent to whatever route: one JSON object that says what is wrong, and nothing else is lost."""

from __future__ import annotations

import json
import random
import re
import urllib.request
from typing import Any

from kiwi_worker.testing.middleware import MiddlewareProcess

from .conftest import Workers
from .plain_worker import PlainWorker

VALUES: list[Any] = [None, True, 0, -1, 2**70, 1e300, "", "x", "\0", "\ud800", "a/b", [], [[]], {}, {"a": 1}]
FIELDS = [
    "request_id",
    "status",
    "error_text",
    "result",
    "rid",
    "st",
    "sn",
    "ft",
    "pr",
    "fc",
    "worker_id",
    "service_id",
    "run_mode",
    "methods",
    "ip",
    "port",
    "tags",
]
SEGMENTS = ["x", "%00", "%2F", "..", "%E2%98%83", "%FF", "%", "a b".replace(" ", "%20"), "x" * 500, ""]
QUERIES = [
    "",
    "?",
    "?wait=0",
    "?wait=1e999",
    "?wait=",
    "?=",
    "?&&",
    "?wait=0&wait=0",
    "?%FF=%FF",
    "?ttl=0",
    "?x",
]


def random_body(random_: random.Random) -> bytes:
    kind = random_.randrange(4)
    if kind == 0:
        return random_.randbytes(random_.randrange(60))
    if kind == 1:
        return json.dumps(random_.choice(VALUES)).encode()
    fields = {name: random_.choice(VALUES) for name in random_.sample(FIELDS, random_.randrange(8))}
    body = json.dumps(fields).encode()
    return body[: random_.randrange(len(body) + 1)] if kind == 2 else body


def client_token(middleware: MiddlewareProcess, plain: PlainWorker) -> str:
    form = {
        "grant_type": "client_credentials",
        "service_id": middleware.service_id,
        "auth_secret": middleware.client_secret,
    }
    token: str = plain.post_form("/client/auth_token", form)[1]["access_token"]
    return token


def test_anything_anywhere(middleware: MiddlewareProcess, workers: Workers) -> None:
    random_ = random.Random(4711)
    plain = workers(middleware)
    plain.register("m")
    kept = middleware.client.start("m", {"kept": True})
    tokens = [plain.token, client_token(middleware, plain), "x", ""]
    with urllib.request.urlopen(middleware.url + "/openapi.json") as answer:
        paths = [
            path
            for path in json.load(answer)["paths"]
            if path != "/worker/notify_worker_shutdown/{worker_id}"
        ]
    drained = []
    for _ in range(1500):
        path = re.sub(r"{\w+}", lambda _: random_.choice(SEGMENTS), random_.choice(paths))
        path = path.replace("/client/call/x/", f"/client/call/{middleware.service_id}/")
        headers = {"Authorization": f"Bearer {random_.choice(tokens)}"}
        if random_.random() < 0.5:
            headers["Content-Type"] = random_.choice(["application/x-www-form-urlencoded", "text/html", ""])
        if random_.random() < 0.1:
            headers["Last-Event-ID"] = random_.choice(["", "-1", "x", "9" * 30])
        method = random_.choice(["GET", "POST", "PUT", "DELETE"])
        query = random_.choice(QUERIES) or "?"
        target = path + (query if "wait" in query or "/client/call/" not in path else "?wait=0")
        status, body = plain.send(method, target, random_body(random_), headers)
        assert status < 500, (method, target, body)
        if status >= 400 and status != 405:
            assert set(body) == {"error", "message"}, (method, target, body)
        if isinstance(body, list):
            drained += [message["request_id"] for message in body]
    drained += [message["request_id"] for message in plain.drain()]
    assert kept in drained
    assert plain.respond(kept, result=1) == 200


def test_every_odd_id_is_unknown_and_harmless(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    for segment in SEGMENTS:
        assert worker.call("PUT", f"/worker/lock_request/{segment}")[0] in (404, 405)
    for value in VALUES:
        body = json.dumps({"request_id": value, "status": "success"}).encode()
        headers = {"Authorization": f"Bearer {worker.token}"}
        assert worker.send("POST", "/worker/response", body, headers)[0] in (400, 404)


def test_an_id_with_a_line_break_is_another_id(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    for other in ("%0A", "w1%0A", "%0Aw1", "a%0Ab"):
        assert worker.call("GET", f"/worker/heartbeat/{other}")[0] == 403
        assert worker.call("PUT", f"/worker/notify_worker_shutdown/{other}")[0] == 403
    assert worker.call("GET", "/worker/heartbeat/w1") == (200, True)


def test_what_is_no_utf_8_is_passed_on_to_nobody(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    request_id = middleware.client.start("m")
    worker.drain()
    headers = {"Authorization": f"Bearer {worker.token}"}
    answer = b'{"request_id":"%b","status":"success","result":"\xff"}' % request_id.encode()
    assert worker.send("POST", "/worker/response", answer, headers)[0] == 400
    feedback = b'{"rid":"%b","fc":"\xff","pr":true}' % request_id.encode()
    assert worker.send("POST", "/worker/feedback", feedback, headers)[0] == 400
    assert worker.respond(request_id, result="ÿ") == 200
    assert middleware.client.fetch(request_id).result == "ÿ"
