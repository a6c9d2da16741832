#!/usr/bin/env python3
"""Serves the files of the status page, and the answers of sample_answers.

Under the policy that the coordinator serves them with. Run by itself it is
what the page can be worked on with: sample_server.py PORT
"""

import http.server
import json
import os
import sys
import threading
import urllib.parse

import sample_answers

PAGE = "server/http/page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        self.server.asked.append(self.path)
        path = urllib.parse.unquote(url.path)
        if path.startswith("/api/v1/"):
            query = dict(urllib.parse.parse_qsl(url.query))
            return self.answer(path[len("/api/v1/") :], query)
        return self.send_page("/index.html" if path == "/" else path)

    def send_page(self, path):
        name = os.path.normpath(self.server.page + path)
        if not os.path.isfile(name) or not name.startswith(self.server.page):
            return self.send(404, "text/plain", b"")
        with open(name, "rb") as file:
            kind = TYPES[os.path.splitext(name)[1]]
            return self.send(200, kind, file.read())

    def answer(self, path, query):
        code, answer = self.server.world.answer(path, query)
        answer["now"] = self.server.world.now
        self.send(code, "application/json", json.dumps(answer).encode())

    def send(self, code, kind, body):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class World:
    """The jobs that the answers are of."""

    def __init__(self, jobs, knows_order=True, quarantined=()):
        self.jobs = {job.name: job for job in jobs}
        self.now = sample_answers.NOW
        self.knows_order = knows_order
        self.quarantined = list(quarantined)

    def answer(self, path, query):
        if path == "version":
            return 200, {
                "version": "0.1.0", "cluster_id": "a1b2", "term": 3,
                "started_at": self.now - 7200, "leader": True,
                "insecure": False,
            }
        if path == "jobs":
            rows = [self.jobs[name].row() for name in sorted(self.jobs)]
            return 200, {
                "cluster_id": "a1b2", "term": 3, "jobs": rows,
                "quarantined": self.quarantined[-64:],
                "quarantined_count": len(self.quarantined),
            }
        for name, job in self.jobs.items():
            if path == "jobs/" + name:
                return 200, job.detail(
                    int(query.get("first_rank", 0)),
                    int(query.get("ranks", 1024)),
                )
            if path == "jobs/%s/steps" % name:
                return self.steps(job, query)
            if path == "jobs/%s/events" % name:
                return 200, job.events(int(query.get("after", 0)))
        message = "there is no job '%s'" % path.split("/")[1]
        return 404, {"error": {"code": "NOT_FOUND", "message": message}}

    def steps(self, job, query):
        if "order" in query and not self.knows_order:
            message = "unknown parameter: order"
            error = {"code": "INVALID_ARGUMENT", "message": message}
            return 400, {"error": error}
        return 200, job.steps(
            int(query.get("last", 64)),
            int(query.get("first_rank", 0)),
            int(query.get("ranks", 64)),
            query.get("order", "rank"),
        )


class SampleServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, world, port=0, page=PAGE):
        super().__init__(("127.0.0.1", port), Handler)
        self.world = world
        self.page = os.path.abspath(page)
        self.asked = []
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    def close(self):
        self.shutdown()
        self.server_close()
        self.thread.join()

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.server_address[1]


if __name__ == "__main__":
    SampleServer(
        World(
            [
                sample_answers.Job("mnist", 8, slow=[5]),
                sample_answers.Job("vision", 4096, slow=range(70, 75)),
                sample_answers.Job("x/y <hostile>", 3, slow=[1],
                                   text=sample_answers.HOSTILE),
            ]
        ),
        int(sys.argv[1]),
    )
