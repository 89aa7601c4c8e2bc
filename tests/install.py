"""Installs what it is told into the environment that runs it, by constraints.txt: `python tests/install.py -e .`

By uv, which unpacks in parallel and takes a third of pip's time. It is told where pip looks for packages, and where it
cannot be had or fails, pip itself installs.
"""

import os
import subprocess
import sys
from pathlib import Path

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
CONSTRAINED = ["-c", str(Path(__file__).parent.parent / "constraints.txt")]
UV = str(Path(sys.executable).with_name("uv"))  # not resolved: the environment's, whatever its Python links to
NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
    "trusted-host": "UV_INSECURE_HOST",
}
"""What pip is told of sources, and the variables that tell uv the same."""


def sources(listed: str) -> dict[str, str]:
    """The variables for uv, from what `pip config list` prints; a variable of pip's stands above its files.

    >>> sources("global.extra-index-url='a b'\\n:env:.find-links='c'\\nglobal.find-links='d'")
    {'UV_INDEX': 'a b', 'UV_FIND_LINKS': 'c'}
    """
    lines = (line.partition("=") for line in listed.splitlines())
    told = [(*key.rpartition(".")[::2], " ".join(value.strip("'").split("\\n"))) for key, _, value in lines]
    found = {}
    for place, name, value in sorted(told, key=lambda line: line[0] == ":env:"):
        if name in NAMES and place in ("global", "install", ":env:"):
            found[NAMES[name]] = value.strip()
    if "UV_FIND_LINKS" in found:
        found["UV_FIND_LINKS"] = ",".join(found["UV_FIND_LINKS"].split())
    return found


def by_uv(wanted: list[str]) -> bool:
    """Whether uv has installed them."""
    if not Path(UV).exists():
        subprocess.run([*PIP, "install", "-qq", "--no-compile", *CONSTRAINED, "uv"], stderr=subprocess.DEVNULL)
    if not Path(UV).exists():
        return False
    known = sources(subprocess.check_output([*PIP, "config", "list"], text=True))
    environment = {"UV_INDEX_STRATEGY": "unsafe-best-match", **known, **os.environ}  # any index may have a version
    command = [UV, "pip", "install", "-q", "--python", sys.executable, *CONSTRAINED, *wanted]
    return subprocess.run(command, env=environment).returncode == 0


if __name__ == "__main__":
    if not by_uv(sys.argv[1:]):
        command = [*PIP, "install", "-qq", "--no-compile", *CONSTRAINED, *sys.argv[1:]]
        sys.exit(subprocess.run(command).returncode)
