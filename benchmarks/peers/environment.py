"""Environments of the programs that benchmarks compare with: built once, in the user's cache folder."""

import os
import subprocess
import sys
from pathlib import Path

UV = Path(sys.executable).parent / "uv"


def python_with(name, requirement, overrides=()):
    """The interpreter of an environment that holds `requirement`; builds it if it is not there.

    `overrides` replace versions that the requirement's own metadata asks for.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asyncrl" / "benchmarks" / name
    python, ready = root / "bin" / "python", root / "ready"
    if ready.exists() and ready.read_text() == requirement:
        return python
    print(f"building {root} for {requirement}", flush=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([UV, "venv", "--quiet", "--clear", "--python", sys.executable, root], check=True)
    listed = root / "overrides.txt"
    listed.write_text("\n".join(overrides))
    subprocess.run(
        [UV, "pip", "install", "--quiet", "--python", python, "--override", listed, requirement], check=True
    )
    ready.write_text(requirement)
    return python
