"""Servers on the loopback: of files with byte ranges, well and badly behaved, and of repositories."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import socket
import threading
import time
import types
import urllib.parse


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        answers = self.server.answers.get(self.path)
        if answers is None:
            return self.answer(404)
        answers = answers if isinstance(answers, list) else [answers]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        with contextlib.suppress(OSError):  # the other side may be gone
            answer(self)

    do_HEAD = do_GET

    def log_message(self, *arguments):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content_Length": len(body), **headers}.items():
            if value is not None:
                self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def hang_up(self):
        self.close_connection = True
        self.wfile.flush()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class Server(http.server.ThreadingHTTPServer):
    """A server with given answers.

    Attributes:
        answers: dict of paths to their answers: a function of the handler, or a list of them, one
            a request, the last for ever.
        seen: list of (command, path, headers) of each request.
    """

    daemon_threads, block_on_close = True, False

    def __init__(self, handler=Handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.answers, self.seen = {}, []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def ranges(self, path):
        """The Range header of each request for the path; None where it had none."""
        return [headers.get("Range") for _, seen, headers in self.seen if seen == path]

    def downloads(self, path):
        """The number of GET requests for the path."""
        return [(command, seen) for command, seen, _ in self.seen].count(("GET", path))

    def handle_error(self, request, client_address):
        pass  # clients are killed here


@contextlib.contextmanager
def serving(server):
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def serving_files(folder):
    """A server of the files of a folder."""
    with serving(Server()) as server:
        server.answers |= {f"/{path.name}": file(path.read_bytes()) for path in folder.iterdir()}
        yield server


def file(content, *, tag='"1"', ranges=True, packed=False, until=None, hang=None, declared=None):
    """An answer that holds a file.

    Args:
        tag: Its ETag.
        ranges: Whether a Range is honored; packed: whether a range has a gzip header.
        until: The connection is lost before this byte of the file; hang: an event to wait for first.
        declared: The Content-Length; None: the true one.
    """

    def answer(handler):
        asked = re.match(r"bytes=(\d+)-$", handler.headers.get("Range", ""))
        start, status = (int(asked[1]), 206) if asked and ranges else (0, 200)
        length = len(content) if declared is None else declared
        if status == 206 and start >= length:
            return handler.answer(416, Content_Range=f"bytes */{length}")
        headers = {"ETag": tag, "Content_Length": length - start}
        if status == 206:
            headers["Content_Range"] = f"bytes {start}-{length - 1}/{length}"
            headers["Content_Encoding"] = "gzip" if packed else None
        handler.answer(status, **headers)
        handler.wfile.write(content[start:until])
        if hang:
            handler.wfile.flush()
            hang.wait(20)
        if until is not None or length > len(content):
            handler.hang_up()

    return answer


def status(number, **headers):
    """An answer of a status alone."""
    return lambda handler: handler.answer(number, **headers)


def chunked(*chunks, end=True):
    """An answer in chunks, without a length; without its end, the connection is lost."""

    def answer(handler):
        handler.answer(200, Content_Length=None, Transfer_Encoding="chunked")
        for chunk in chunks:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        if end:
            handler.wfile.write(b"0\r\n\r\n")
        else:
            handler.hang_up()

    return answer


def without_length(content):
    """An answer that ends where the connection does."""

    def answer(handler):
        handler.answer(200, Content_Length=None, Connection="close")
        handler.wfile.write(content)
        handler.hang_up()

    return answer


class Hub(Handler):
    """What downloads of Hugging Face's library ask for, and creating a repository and a commit."""

    def do_GET(self):
        if asked := re.match(r"/api/datasets/([^/]+/[^/]+)/revision/([^/]+)$", self.path):
            return self._describe(*asked.groups())
        asked = re.match(r"/(?:datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)$", self.path)
        if not asked:  # other requests of the library
            return self.answer(404)
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        repo, revision, name = asked.groups()
        problem = self.server.problems.get(repo)
        if problem:
            return self.answer(problem[0], X_Error_Code=problem[1])
        versions = self.server.repositories.get(repo)
        if versions is None:
            return self.answer(401, X_Error_Code="RepoNotFound")
        if revision not in versions:
            return self.answer(404, X_Error_Code="RevisionNotFound")
        commit, files = versions[revision]
        if name not in files:
            return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        tag = f'"{hashlib.sha1(files[name], usedforsecurity=False).hexdigest()}"'
        self.answer(200, files[name], X_Repo_Commit=commit, ETag=tag, X_Linked_Size=len(files[name]))

    do_HEAD = do_GET

    def _describe(self, repo, revision):
        """The files of a revision of a data set."""
        versions = self.server.repositories.get(repo)
        if versions is None:
            return self.answer(401, X_Error_Code="RepoNotFound")
        if urllib.parse.unquote(revision) not in versions:
            return self.answer(404, X_Error_Code="RevisionNotFound")
        commit, files = versions[urllib.parse.unquote(revision)]
        about = {"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in files]}
        self.answer(200, json.dumps(about).encode(), Content_Type="application/json")

    def do_POST(self):
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.headers.get("authorization"):
            return self.answer(401)
        for pattern, answer in self.POSTS.items():
            if asked := re.match(pattern, self.path):
                return self.answer(*answer(self, body, *asked.groups()))
        self.answer(404)

    def _create(self, body):
        asked = json.loads(body)
        repo = f"{asked['organization']}/{asked['name']}"
        status = 409 if repo in self.server.repositories else 200
        self.server.repositories.setdefault(repo, {})
        self.server.created[repo] = asked
        return status, json.dumps({"url": f"{self.server.url}/{repo}"}).encode()

    def _validate(self, body):
        if "license: none" in json.loads(body)["content"]:
            return 400, json.dumps({"errors": [{"message": '"license" must be one of …'}]}).encode()
        return 200, b"{}"

    def _preupload(self, body):
        """All files go into the commit; a real hub wants large ones in other storage."""
        modes = {"uploadMode": "regular", "shouldIgnore": False}
        files = [{"path": file["path"], **modes} for file in json.loads(body)["files"]]
        return 200, json.dumps({"files": files}).encode()

    def _commit(self, body, repo):
        lines = [line["value"] for line in map(json.loads, body.splitlines()) if line["key"] == "file"]
        files = {value["path"]: base64.b64decode(value["content"]) for value in lines}
        commit = hashlib.sha1(body, usedforsecurity=False).hexdigest()
        versions = self.server.repositories[repo]
        versions["main"] = versions[commit] = commit, files
        url = f"{self.server.url}/{repo}/commit/{commit}"
        return 200, json.dumps({"commitUrl": url, "commitOid": commit}).encode()

    POSTS = {
        r"/api/repos/create$": _create,
        r"/api/validate-yaml$": _validate,
        r"/api/models/[^/]+/[^/]+/preupload/main$": _preupload,
        r"/api/models/([^/]+/[^/]+)/commit/main$": _commit,
    }


class HubServer(Server):
    """A hub of repositories.

    Attributes:
        repositories: dict of names to dicts of revisions to (commit, dict of file names to contents).
        problems: dict of names to (status, X-Error-Code) that answer every download of them.
        created: dict of names to the requests that created them.
    """

    def __init__(self):
        super().__init__(Hub)
        self.repositories, self.problems, self.created = {}, {}, {}


@contextlib.contextmanager
def asked_hub(folder, monkeypatch):
    """A hub that Hugging Face's library asks, and a folder for its cache; the library does not wait."""
    from huggingface_hub import close_session, constants
    from huggingface_hub.utils import _http

    with serving(HubServer()) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(_http, "time", types.SimpleNamespace(sleep=lambda seconds: None, time=time.time))
        yield server
        close_session()
