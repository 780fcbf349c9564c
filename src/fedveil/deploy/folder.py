"""The folder of a federation: what ``fedveil deploy init`` writes, and what is changed in it later."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from fedveil import __version__
from fedveil.core.errors import Refused, one_of, positive
from fedveil.deploy.keys import LOOPBACK, Authority, general_name, names_in, node_key, pem
from fedveil.deploy.superlink import FLOWER

SECRET, PUBLIC, SCRIPT = 0o600, 0o644, 0o755
ROLES = ("shuffler", "computer", "controller")
EVERYWHERE = ("0.0.0.0", "::")
MARK = "superlink/superlink.conf"
"""A folder that holds this file was written here."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a federation is to be: its name, its sites, and where its SuperLink is reached."""

    name: str
    sites: tuple[str, ...]
    hosts: tuple[str, ...]
    port: int = 8000
    days: int = 397
    listen: str = "0.0.0.0"
    roles: tuple[str, ...] = ()
    """Parties that hold no data, such as the shuffler."""

    def __post_init__(self) -> None:
        _word("--name", self.name)
        if not self.sites:
            raise Refused("--site: a federation needs at least one; give --site NAME for each, or --sites NUMBER")
        for site in self.sites:
            _word("--site", site)
        for role in self.roles:
            one_of("--role", role, ROLES)
        if len({*self.sites, *self.roles}) < len(self.sites) + len(self.roles):
            raise Refused("--site: two sites have one name, or that of a role; give each its own")
        if not self.hosts:
            raise Refused(
                "--host: under which name do the sites reach the SuperLink? give --host superlink.example.org"
            )
        for host in (*self.hosts, self.listen):
            general_name(host)
        if not 0 < self.port < 65536:
            raise Refused(f"--port: {self.port} is no port; give a number from 1 to 65535")
        positive(**{"--days": self.days})

    @property
    def address(self) -> str:
        """Host and port that sites call."""
        host = self.hosts[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def write(plan: Plan, out: Path, *, force: bool = False) -> Path | None:
    """Write the folder whole or not at all; with ``force`` an earlier one is set aside, and where it went returned.

    A folder that was not written here is never touched.
    """
    if out.exists() and not force:
        raise Refused(f"{out}: it exists already; give another folder, or --force to set this one aside")
    if out.exists() and not (out / MARK).is_file():
        raise Refused(f"{out}: it was not written by `deploy init`, so that --force does not touch it; give another")
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.absolute().parent))  # for its owner alone
    except OSError as problem:
        raise Refused(f"{out}: cannot be written ({problem.strerror}); give another folder") from None
    try:
        _fill(draft, plan)
        aside = _set_aside(out) if out.exists() else None
        draft.rename(out)
    except OSError as problem:
        raise Refused(f"{out}: cannot be written ({problem.strerror}); make room, or give another folder") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return aside


def renew(folder: Path, hosts: Sequence[str], days: int) -> None:
    """Another server certificate from the same authority, with a fresh key, for these names or those of the old one."""
    _ours(folder)
    try:
        authority = Authority.read((folder / "ca/ca.key").read_bytes(), (folder / "superlink/ca.crt").read_bytes())
    except FileNotFoundError as problem:
        raise Refused(f"{problem.filename}: is not there; put the authority's key back for this one command") from None
    key, certificate = authority.server(hosts or names_in((folder / "superlink/server.crt").read_bytes()), days)
    put(folder / "superlink/server.key", key, SECRET)
    put(folder / "superlink/server.crt", certificate, PUBLIC)


def new_key(place: Path) -> None:
    """A key of a site's own making, in its folder; the one that it came with is replaced."""
    if not (place / "site.toml").is_file():
        raise Refused(f"{place}: this is no folder of a site (no site.toml); give the one that you were sent")
    private, public = node_key()
    put(place / "node.key", private, SECRET)
    put(place / "node.pub", public, PUBLIC)


def approve(folder: Path) -> str:
    """Write the check sum of the app, as it stands now, into every site's list; returns it."""
    _ours(folder)
    apps = [p.parent for p in (folder / "superlink").glob("*/pyproject.toml")]
    if len(apps) != 1:
        raise Refused(
            f"{folder / 'superlink'}: it holds {len(apps)} apps; there should be one folder with pyproject.toml"
        )
    digest = check_sum(apps[0])
    for place in sorted((folder / "sites").glob("*/approved.txt")):
        put(place, _template("site/approved.txt", {"approved": digest}), PUBLIC)
    return digest


def check_sum(app: Path) -> str:
    """SHA-256 of the bundle that Flower makes of an app."""
    try:
        from flwr.cli.build import build_fab_from_disk
    except ImportError:
        raise Refused("flwr: it is not installed; run pip install 'fedveil[flower]'") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Flower asks pathspec for a pattern by its old name
            return hashlib.sha256(build_fab_from_disk(app)).hexdigest()
    except ValueError as problem:
        raise Refused(f"{app}: Flower cannot make a bundle of it ({problem}); mend the app") from None


def put(path: Path, data: bytes, mode: int) -> None:
    """Replace a file in one step; nobody but its owner can ever read a secret, not even while it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.chmod(mode)
    draft.replace(path)


def _fill(root: Path, plan: Plan) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding

    authority = Authority.new(f"{plan.name} federation")
    anchor = authority.certificate.public_bytes(Encoding.PEM)
    here = () if plan.listen in EVERYWHERE else (plan.listen,)
    key, certificate = authority.server((*plan.hosts, *here), plan.days)
    words = {
        "app": plan.name,
        "publisher": "federation",
        "version": __version__,
        "flower": FLOWER,
        "count": str(len(plan.sites)),
        "port": str(plan.port),
        "listen": plan.listen,
        "address": plan.address,
        "names": ", ".join(dict.fromkeys((*plan.hosts, *LOOPBACK))),
        "days": str(plan.days),
        "sites": ",".join(plan.sites),
    }
    put(root / "ca/ca.key", pem(authority.key), SECRET)
    put(root / "superlink/ca.crt", anchor, PUBLIC)
    put(root / "superlink/server.key", key, SECRET)
    put(root / "superlink/server.crt", certificate, PUBLIC)
    app = root / "superlink" / plan.name
    put(app / "pyproject.toml", _template("app/project.toml", words), PUBLIC)
    put(app / "README.md", _template("app/README.md", words), PUBLIC)
    put(app / "LICENSE", b"Apache-2.0\n", PUBLIC)
    for name in ("server.py", "client.py"):
        put(app / "federation" / name, _template(f"app/{name}", words), PUBLIC)
    put(app / "federation/__init__.py", b"", PUBLIC)
    _copy("superlink", root / "superlink", words)
    approved = check_sum(app)
    for number, site in enumerate((*plan.sites, *plan.roles)):
        place = root / "sites" / site
        private, public = node_key()
        put(place / "node.key", private, SECRET)
        put(place / "node.pub", public, PUBLIC)
        put(root / "superlink/nodes" / f"{site}.pub", public, PUBLIC)
        put(place / "ca.crt", anchor, PUBLIC)
        own = {"site": site, "number": str(number), "data": f"/path/to/{site}.csv", "approved": approved}
        _copy("site", place, words | own)
        if site in plan.roles:
            put(place / "site.toml", _template("role.toml", words | own), PUBLIC)
    put(root / "README.md", _template("README.md", words), PUBLIC)
    for folder in (root / "superlink", *(root / "sites").iterdir()):
        put(folder / "wheels/.keep", b"", PUBLIC)
    for folder in (root / "ca", root / "superlink", *(root / "sites").iterdir()):
        folder.chmod(0o700)


def _copy(group: str, place: Path, words: Mapping[str, str]) -> None:
    for item in (resources.files("fedveil.deploy") / "templates" / group).iterdir():
        mode = SCRIPT if item.name.endswith(".sh") else PUBLIC
        put(place / item.name, _template(f"{group}/{item.name}", words), mode)


def _template(name: str, words: Mapping[str, str]) -> bytes:
    text = resources.files("fedveil.deploy").joinpath("templates", *name.split("/")).read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: words[found[1]], text).encode()


def _set_aside(out: Path) -> Path:
    for number in range(1, 1000):
        place = out.with_name(f"{out.name}.{number}")
        if not place.exists():
            out.rename(place)
            return place
    raise Refused(f"{out}: it was set aside too often; remove {out}.1 and the like")


def _ours(folder: Path) -> None:
    if not (folder / MARK).is_file():
        raise Refused(f"{folder}: this is no federation (no {MARK}); give the folder that `deploy init` wrote")


def _word(option: str, text: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,40}", text):
        raise Refused(f"{option}: {text!r} cannot name a folder here; use small letters, digits and -, a letter first")
