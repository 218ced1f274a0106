"""A Hub on this machine that speaks enough of the real protocol for the real client: commits, LFS, redirects, tokens.

Tests only. Repositories live in memory; every commit is a whole tree, so that a push is visible at once or not at all.
"""

import base64
import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import yaml
from huggingface_hub.utils import validate_repo_id

TOKEN = "hf_goodgoodgoodgoodgoodgoodgoodgood"
LFS_NAMES = (".safetensors", ".png", ".bin")


class Repo:
    """Commits by sha, each a tree path -> ("regular" | "lfs", bytes)."""

    def __init__(self, private: bool) -> None:
        self.private = private
        self.gated = False
        self.log: list[str] = []
        self.trees: dict[str, dict[str, tuple[str, bytes]]] = {}
        self.refs: dict[str, str] = {}
        self.commit("main", {".gitattributes": ("regular", b"*.safetensors filter=lfs\n")})

    def commit(self, branch: str, tree: dict[str, tuple[str, bytes]]) -> str:
        sha = hashlib.sha1(f"{len(self.trees)} {branch} {sorted(tree)}".encode()).hexdigest()
        self.trees[sha] = tree
        self.refs[branch] = sha
        self.log.append(sha)
        return sha

    def resolve(self, revision: str) -> str | None:
        return revision if revision in self.trees else self.refs.get(revision)

    def put(self, path: str, data: bytes, branch: str = "main") -> str:
        """What editing a file on the website does."""
        return self.commit(branch, {**self.trees[self.refs[branch]], path: (_mode(path), data)})

    def text(self, path: str, revision: str = "main") -> str:
        return self.trees[self.resolve(revision)][path][1].decode()


class StandIn(ThreadingHTTPServer):
    """The server; `with StandIn() as hub:` serves at `hub.url`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.storage = f"http://localhost:{self.server_port}"  # another host name, as the real Hub's storage has
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.break_uploads = False
        self.hold, self.holding = threading.Event(), threading.Event()  # uploads wait while `hold` is not set
        self.hold.set()
        self.on_race = lambda: None
        self.claimed_sizes: dict[str, dict[str, int]] = {}

    def __enter__(self) -> "StandIn":
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class Answer(Exception):
    """An HTTP answer."""

    def __init__(self, status: int, content: object = b"", **headers: str) -> None:
        self.status = status
        self.content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: StandIn

    def log_message(self, *args: object) -> None:
        pass

    def _handle(self) -> None:
        self.path_only = urlsplit(self.path).path
        self.server.requests.append(f"{self.command} {self.path_only}")
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            for method, pattern, function in ROUTES:
                found = re.fullmatch(pattern, self.path_only)
                if method == self.command and found:
                    function(self, *map(unquote, found.groups()))
            raise Answer(404, {"error": f"no route for {self.command} {self.path_only}"})
        except Answer as answer:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client was killed
                self._send(answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _handle

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        headers = {"Content-Length": str(len(answer.content)), "Content-Type": "application/json", **answer.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def json(self) -> dict:
        return json.loads(self.body or b"{}")

    def authorized(self) -> bool:
        given = self.headers.get("Authorization")
        if given is not None and given != f"Bearer {TOKEN}":
            raise Answer(401, {"error": "Invalid"}, X_Error_Message="Invalid credentials in Authorization header")
        return given is not None

    def must_write(self) -> None:
        if not self.authorized():
            raise Answer(401, {"error": "no token"}, X_Error_Message="Invalid username or password.")

    def repo(self, name: str, revision: str | None = None) -> tuple[Repo, str]:
        found, authorized = self.server.repos.get(name), self.authorized()
        if found is None or (found.private and not authorized):
            raise Answer(404 if authorized else 401, {"error": "not found"}, X_Error_Code="RepoNotFound")
        sha = found.resolve(revision or "main")
        if sha is None:
            raise Answer(404, {"error": "no revision"}, X_Error_Code="RevisionNotFound")
        return found, sha


def _mode(path: str) -> str:
    return "lfs" if path.endswith(LFS_NAMES) else "regular"


def _oid(mode: str, data: bytes) -> str:
    if mode == "lfs":
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


def create(request: Handler) -> None:
    request.must_write()
    asked = request.json()
    name = f"{asked.get('organization') or 'user'}/{asked['name']}"
    url = {"url": f"{request.server.url}/{name}", "name": name}
    if name in request.server.repos:
        raise Answer(409, {"error": "You already created this model repo", **url})
    private = asked.get("private") or asked.get("visibility") == "private"
    request.server.repos[name] = Repo(bool(private))
    raise Answer(200, url)


def validate_yaml(request: Handler) -> None:
    """The checks of the real one that a judge's card could fail."""
    content = request.json()["content"]
    found = re.match(r"\s*---\n(.*?)\n---", content, re.DOTALL)
    errors = []
    try:
        data = yaml.safe_load(found[1]) if found else {}
    except yaml.YAMLError as error:
        data, errors = {}, [{"message": str(error)}]
    for name in (data or {}).get("base_model") or []:
        try:
            validate_repo_id(name)
        except ValueError:
            errors.append({"message": f'"base_model" with value "{name}" is not valid'})
    if errors:
        raise Answer(400, {"errors": errors, "warnings": []})
    raise Answer(200, {"errors": [], "warnings": []})


def branch(request: Handler, name: str, new: str) -> None:
    request.must_write()
    repo, sha = request.repo(name, request.json().get("startingPoint"))
    if new in repo.refs:
        raise Answer(409, {"error": "Reference already exists"})
    repo.refs[new] = sha
    raise Answer(200, {})


def tag(request: Handler, name: str, revision: str) -> None:
    request.must_write()
    repo, sha = request.repo(name, revision)
    repo.refs[request.json()["tag"]] = sha
    raise Answer(200, {})


def preupload(request: Handler, name: str, revision: str) -> None:
    request.must_write()
    repo, sha = request.repo(name, revision)
    files = []
    for file in request.json()["files"]:
        there = repo.trees[sha].get(file["path"])
        files.append(
            {
                "path": file["path"],
                "uploadMode": _mode(file["path"]),
                "shouldIgnore": False,
                **({"oid": _oid(*there)} if there else {}),
            }
        )
    raise Answer(200, {"files": files})


def lfs_batch(request: Handler, name: str) -> None:
    request.must_write()
    request.repo(name)
    objects = []
    for asked in request.json()["objects"]:
        entry = {"oid": asked["oid"], "size": asked["size"]}
        if asked["oid"] not in request.server.objects:
            entry["actions"] = {
                "upload": {"href": f"{request.server.storage}/lfs/{asked['oid']}"},
                "verify": {"href": f"{request.server.url}/lfs-verify"},
            }
        objects.append(entry)
    raise Answer(200, {"transfer": "basic", "objects": objects})


def lfs_put(request: Handler, oid: str) -> None:
    if not request.server.hold.is_set():
        request.server.holding.set()
        request.server.hold.wait(60)
        raise Answer(503, {"error": "too late"})
    if request.server.break_uploads:
        raise Answer(403, {"error": "the storage closed"})
    if hashlib.sha256(request.body).hexdigest() != oid:
        raise Answer(400, {"error": "other content"})
    request.server.objects[oid] = request.body
    raise Answer(200)


def lfs_verify(request: Handler) -> None:
    asked = request.json()
    found = request.server.objects.get(asked["oid"])
    raise Answer(200 if found is not None and len(found) == asked["size"] else 404, {})


def lfs_get(request: Handler, oid: str) -> None:
    raise Answer(200, request.server.objects[oid], ETag=f'"{oid}"')


def commit(request: Handler, name: str, revision: str) -> None:
    request.must_write()
    repo, sha = request.repo(name, revision)
    tree = dict(repo.trees[sha])
    for line in request.body.splitlines():
        item = json.loads(line)
        value = item["value"]
        if item["key"] == "file":
            tree[value["path"]] = ("regular", base64.b64decode(value["content"]))
        elif item["key"] == "lfsFile":
            if value["oid"] not in request.server.objects:
                raise Answer(400, {"error": f"{value['path']} was not uploaded"})
            tree[value["path"]] = ("lfs", request.server.objects[value["oid"]])
        elif item["key"] == "deletedFile":
            del tree[value["path"]]
    new = repo.commit(revision, tree)
    raise Answer(200, {"success": True, "commitOid": new, "commitUrl": f"{request.server.url}/{name}/commit/{new}"})


def info(request: Handler, name: str, revision: str = "main") -> None:
    repo, sha = request.repo(name, revision)
    siblings = [{"rfilename": path} for path in repo.trees[sha]]
    raise Answer(200, {"id": name, "sha": sha, "private": repo.private, "siblings": siblings, "tags": []})


def tree(request: Handler, name: str, revision: str) -> None:
    repo, sha = request.repo(name, revision)
    found = []
    for path, (mode, data) in repo.trees[sha].items():
        entry = {"type": "file", "path": path, "size": len(data), "oid": _oid("regular", data)}
        if mode == "lfs":
            entry["lfs"] = {"oid": _oid(mode, data), "size": len(data), "pointerSize": 130}
        found.append(entry)
    raise Answer(200, found)


def resolve(request: Handler, name: str, revision: str, path: str) -> None:
    repo, sha = request.repo(name, revision)
    common = {"X_Repo_Commit": sha}
    if repo.gated and not request.authorized():
        raise Answer(401, {"error": "gated"}, X_Error_Code="GatedRepo", **common)
    if path not in repo.trees[sha]:
        raise Answer(404, {"error": "no entry"}, X_Error_Code="EntryNotFound", **common)
    mode, data = repo.trees[sha][path]
    oid = _oid(mode, data)
    claimed_size = request.server.claimed_sizes.get(name, {}).get(path)
    size = str(claimed_size or len(data))
    if mode == "lfs":
        request.server.objects[oid] = data
        location = f"{request.server.storage}/lfs/{oid}"
        linked = {"X_Linked_Etag": f'"{oid}"', "X_Linked_Size": size}
        raise Answer(302, b"", Location=location, ETag=f'"{oid}"', **linked, **common)
    claimed = {"Content_Length": size} if claimed_size else {}
    raise Answer(200, data, ETag=f'"{oid}"', Content_Type="text/plain", **claimed, **common)


def race(request: Handler) -> None:
    """Something that happens on the Hub in between two requests of a test."""
    request.server.on_race()
    raise Answer(200)


def whoami(request: Handler) -> None:
    request.must_write()
    raise Answer(200, {"type": "user", "name": "user", "orgs": [], "auth": {"accessToken": {"role": "write"}}})


NAME = r"([^/]+/[^/]+)"
ROUTES = [
    ("POST", "/api/repos/create", create),
    ("POST", "/api/validate-yaml", validate_yaml),
    ("GET", "/api/whoami-v2", whoami),
    ("GET", "/test/race", race),
    ("POST", f"/api/models/{NAME}/branch/([^/]+)", branch),
    ("POST", f"/api/models/{NAME}/tag/([^/]+)", tag),
    ("POST", f"/api/models/{NAME}/preupload/([^/]+)", preupload),
    ("POST", f"/api/models/{NAME}/commit/([^/]+)", commit),
    ("GET", f"/api/models/{NAME}/revision/([^/]+)", info),
    ("GET", f"/api/models/{NAME}/tree/([^/]+)", tree),
    ("GET", f"/api/models/{NAME}", info),
    ("POST", f"/{NAME}\\.git/info/lfs/objects/batch", lfs_batch),
    ("PUT", "/lfs/([0-9a-f]+)", lfs_put),
    ("POST", "/lfs-verify", lfs_verify),
    ("GET", "/lfs/([0-9a-f]+)", lfs_get),
    ("HEAD", "/lfs/([0-9a-f]+)", lfs_get),
    ("HEAD", f"/{NAME}/resolve/([^/]+)/(.+)", resolve),
    ("GET", f"/{NAME}/resolve/([^/]+)/(.+)", resolve),
]
