"""A small Hub on loopback: repositories, commits, large files and downloads as huggingface_hub speaks of them."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_tests"


@dataclass
class Repo:
    """One repository: its commits by hash, each a whole tree, and its branches."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {}})
    branches: dict[str, str] = field(default_factory=lambda: {"main": "0" * 40})

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        name = hashlib.sha1(repr((len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[name] = files
        self.branches[branch] = name
        return name

    def files(self, branch: str = "main") -> dict[str, bytes]:
        return self.commits[self.branches.get(branch, branch)]


class Hub(ThreadingHTTPServer):
    """Its repositories by id, and the large files that came by their sha256."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, content: Any = None, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content or {}).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self, what: str) -> None:
        self.reply(404, None, X_Error_Code=f"{what}NotFound", X_Error_Message=f"{what} not found")

    def allowed(self) -> bool:
        if self.headers.get("authorization") == f"Bearer {TOKEN}":
            return True
        self.reply(401, {"error": "who are you?"})
        return False

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self.on(match[1], match[2] or "main", lambda repo, sha: self.reply(200, self.info(match[1], repo, sha)))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/?(.*)", path):
            self.on(match[1], match[2], lambda repo, sha: self.tree(repo.commits[sha], match[3]))
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.on(match[1], match[2], lambda repo, sha: self.file(repo, sha, match[3]))
        else:
            self.missing("Repo")

    do_HEAD = do_GET

    def on(self, id: str, revision: str, then: Any) -> None:
        repo = self.server.repos.get(id)
        if repo is None or (repo.private and self.headers.get("authorization") != f"Bearer {TOKEN}"):
            self.missing("Repo")
            return
        sha = repo.branches.get(revision, revision)
        if sha not in repo.commits:
            self.missing("Revision")
            return
        then(repo, sha)

    def info(self, id: str, repo: Repo, sha: str) -> dict[str, Any]:
        names = [{"rfilename": name} for name in repo.commits[sha]]
        return {"id": id, "modelId": id, "sha": sha, "private": repo.private, "siblings": names, "tags": []}

    def tree(self, files: dict[str, bytes], folder: str) -> None:
        within = {name: content for name, content in files.items() if not folder or name.startswith(f"{folder}/")}
        if folder and not within:
            self.missing("Entry")
            return
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in within.items()}
        listed = [
            {"type": "file", "path": path_within, "size": len(within[path_within]), "oid": digests[path_within]}
            for path_within in within
        ]
        self.reply(200, json.dumps(listed).encode())

    def file(self, repo: Repo, sha: str, name: str) -> None:
        if name not in repo.commits[sha]:
            self.reply(404, None, X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
            return
        content = repo.commits[sha][name]
        self.reply(200, content, X_Repo_Commit=sha, ETag=f'"{hashlib.sha256(content).hexdigest()}"')

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.blobs[hashlib.sha256(body).hexdigest()] = body
        self.reply(200)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        path = unquote(urlsplit(self.path).path)
        if path == "/api/validate-yaml":
            self.reply(200)
        elif not self.allowed():
            return
        elif path == "/api/repos/create":
            request = json.loads(body)
            id = f"{request['organization']}/{request['name']}"
            taken = id in self.server.repos
            self.server.repos.setdefault(
                id, Repo(request.get("visibility") == "private" or bool(request.get("private")))
            )
            self.reply(409 if taken else 200, {"url": f"{self.server.url}/{id}", "id": id})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/branch/(.+)", path):
            branches = self.server.repos[match[1]].branches
            branches.setdefault(match[2], branches["main"])
            self.reply(200)
        elif re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/.+", path):
            modes = {True: "lfs", False: "regular"}
            names = [file["path"] for file in json.loads(body)["files"]]
            described = [{"path": n, "uploadMode": modes[n.endswith(".safetensors")]} for n in names]
            self.reply(200, {"files": [{**file, "shouldIgnore": False} for file in described]})
        elif path.endswith("/info/lfs/objects/batch"):
            self.reply(
                200,
                {
                    "transfer": "basic",
                    "objects": [self.upload_address(upload) for upload in json.loads(body)["objects"]],
                },
            )
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
            self.commit(match[1], match[2], [json.loads(line) for line in body.splitlines()])
        else:
            self.missing("Repo")

    def upload_address(self, upload: dict[str, Any]) -> dict[str, Any]:
        return {**upload, "actions": {"upload": {"href": f"{self.server.url}/upload/{upload['oid']}", "header": {}}}}

    def commit(self, id: str, branch: str, lines: list[dict[str, Any]]) -> None:
        repo = self.server.repos[id]
        files = dict(repo.files(branch))
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = repo.commit(branch, files)
        self.reply(200, {"commitUrl": f"{self.server.url}/{id}/commit/{sha}", "commitOid": sha})


@contextmanager
def running() -> Iterator[Hub]:
    """A Hub in a thread."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
