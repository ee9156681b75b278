"""A real HTTP server on the loopback whose answers a test writes."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Patient(ThreadingHTTPServer):
    """Its queue holds a burst of connections; five, the default, would lose some for a second."""

    request_queue_size = 256


class Answer:
    """One answer: status, body (bytes, or anything JSON can say), headers, and how slowly."""

    def __init__(self, body=b"", status=200, headers=(), pause=0.0, drip=0.0, cut=0):
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.status, self.headers = status, dict(headers)
        self.pause, self.drip, self.cut = pause, drip, cut


class Server:
    """Requests as they came, and what answers them."""

    def __init__(self, respond, port=0):
        self.respond, self.requests = respond, []
        self.lock, self.released = threading.Lock(), threading.Event()
        self.current = self.most = 0
        self.http = _Patient(("127.0.0.1", port), self._handler())
        self.http.daemon_threads = True
        self.http.block_on_close = False
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def stop(self):
        """No connection is accepted any more."""
        self.released.set()
        if self.thread.is_alive():
            self.http.shutdown()
            self.thread.join()
        self.http.server_close()

    def _handler(server):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                with server.lock:
                    number = len(server.requests)
                    server.requests.append((self.path, dict(self.headers), body))
                    server.current += 1
                    server.most = max(server.most, server.current)
                try:
                    self.send(server.respond(number, body))
                except OSError:
                    pass  # the client has gone
                finally:
                    with server.lock:
                        server.current -= 1

            do_GET = do_POST

            def send(self, answer):
                if answer is None:  # never
                    server.released.wait(30)
                    return
                server.released.wait(answer.pause)
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(answer.body) + answer.cut))
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if not answer.drip:
                    self.wfile.write(answer.body)
                    return
                for i in range(len(answer.body)):
                    self.wfile.write(answer.body[i : i + 1])
                    time.sleep(answer.drip)

            def log_message(self, *_):
                pass

        return Handler


@contextmanager
def serving(respond, port=0):
    """A server whose `respond(number, payload)` gives an Answer, or None for silence."""
    server = Server(respond, port)
    try:
        yield server
    finally:
        server.stop()
