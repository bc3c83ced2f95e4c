"""A server of objects on loopback, and a proxy before it that does harm when it is told to."""

import http.client
import socket
import socketserver
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

KEYS = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
"""What every client says; moto believes everybody."""


PART = 5 << 20
QUICK = {
    "retry_config": {
        "max_retries": 3,
        "retry_timeout": 600,
        "backoff": {"init_backoff": 0.02, "max_backoff": 0.1, "base": 2},
    },
    "client_options": {"timeout": 120, "connect_timeout": 120},
    "part_size": PART,
}
"""Few retries, soon after one another; each may take as long as a busy machine does."""

CODES = {
    "401": b"<Error><Code>InvalidToken</Code></Error>",
    "403": b"<Error><Code>AccessDenied</Code></Error>",
    "500": b"<Error><Code>InternalError</Code></Error>",
    "503": b"<Error><Code>SlowDown</Code></Error>",
}
"""What S3 says with a status."""


@contextmanager
def refusing_port():
    """A port at which nobody listens, and which nobody else can be given meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


MOTO = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # until its parent ends it, or ends
"""


@contextmanager
def running_moto():
    """The port of moto's server in a process of its own, which chose it as it began to listen."""
    process = subprocess.Popen(
        [sys.executable, "-c", MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            port = process.stdout.readline()
            assert port, "the server did not start"
            yield int(port)
        finally:
            process.kill()


@dataclass
class Fault:
    """What is done to requests whose line (`PUT /bucket/key?query`) holds all the words.

    - `500`: that is the answer, and so with any status
    - `hang`: no answer, and the connection stays open
    - `drop`: the connection ends before the request is passed on
    - `lose`: the request is passed on, and the connection ends before the answer
    - `truncate`: half of the answer's body, and the connection ends
    """

    kind: str
    words: tuple[str, ...]
    left: float


@dataclass
class Proxy:
    """What lies between a client and a server."""

    upstream: int
    port: int = 0
    faults: list[Fault] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    asked_by: list[str] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    sockets: set[socket.socket] = field(default_factory=set)

    def harm(self, kind, *words, times=float("inf")):
        """From now on, a number of times."""
        self.faults.append(Fault(kind, words, times))

    def heal(self):
        """No harm any more, and what hangs is let go."""
        with self.lock:
            self.faults.clear()
        self.released.set()
        self.released = threading.Event()

    def fault(self, line):
        with self.lock:
            self.seen.append(line)
            for fault in self.faults:
                if fault.left > 0 and all(word in line for word in fault.words):
                    fault.left -= 1
                    return fault.kind
        return None


class _Handler(socketserver.StreamRequestHandler):
    def handle(self):
        try:
            while self.one():
                pass
        except OSError:  # the client is gone
            pass

    def one(self):
        head = self.rfile.readline()
        if not head:
            return False
        method, target, _ = head.decode().split()
        headers = http.client.parse_headers(self.rfile)
        body = self.rfile.read(int(headers.get("content-length", 0)))
        self.server.proxy.asked_by.append(headers.get("authorization", ""))
        kind = self.server.proxy.fault(f"{method} {target}")
        if kind == "hang":
            self.server.proxy.released.wait(300)
        if kind in ("hang", "drop"):
            return False
        if kind is not None and kind.isdigit():
            return self.say(int(kind), {}, CODES.get(kind, b""), method)
        answer = self.passed_on(method, target, headers, body)
        if kind == "lose":
            return False
        return self.say(*answer, method, truncated=kind == "truncate")

    def passed_on(self, method, target, headers, body):
        link = http.client.HTTPConnection("127.0.0.1", self.server.proxy.upstream, timeout=300)
        try:
            link.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() != "connection":
                    link.putheader(name, value)
            link.putheader("Connection", "close")
            link.endheaders(body)
            answer = link.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            link.close()

    def say(self, status, headers, body, method, truncated=False):
        dropped = ("connection", "transfer-encoding", "server", "date")
        lines = [f"{k}: {v}" for k, v in headers.items() if k.lower() not in dropped]
        if not any(line.lower().startswith("content-length") for line in lines):
            lines.append(f"Content-Length: {len(body)}")
        reason = http.client.responses.get(status, "")
        head = "\r\n".join([f"HTTP/1.1 {status} {reason}", *lines, "", ""])
        sent = b"" if method == "HEAD" else body[: len(body) // 2] if truncated else body
        self.wfile.write(head.encode("latin-1") + sent)  # in one piece, or it is late
        return not truncated


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, proxy):
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)
        proxy.port = self.server_address[1]

    def process_request(self, request, address):
        self.proxy.sockets.add(request)
        super().process_request(request, address)

    def shutdown_request(self, request):
        self.proxy.sockets.discard(request)
        super().shutdown_request(request)


@contextmanager
def running_proxy(upstream):
    """A `Proxy` that listens."""
    proxy = Proxy(upstream)
    with _Server(proxy) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.heal()
            server.shutdown()
            thread.join()
            for link in list(proxy.sockets):  # clients keep theirs open
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
