"""`asyncrl import`: the reference's YAML to a manifest, and what could not be carried over."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from asyncrl_runtime.app.nemo.chain import Reference, ReferenceInvalid, read_reference
from asyncrl_runtime.app.nemo.manifest import Manifest, build_manifest, job_name
from asyncrl_runtime.app.nemo.state import Import, Remark
from asyncrl_runtime.app.nemo.walk import carry_over

OK, LOSSES, INVALID = 0, 1, 2


def import_command(
    path: Path, output: Path | None, *, lossy: bool, name: str | None, verbose: bool = False
) -> int:
    """Write the manifest and tell what is to be known about it."""
    try:
        job, manifest = import_file(path, name)
    except ReferenceInvalid as invalid:
        if verbose:
            traceback.print_exception(invalid, file=sys.stderr)
        sys.stderr.write("".join(f"error: {line}\n" for line in invalid.lines))
        return INVALID
    problem = _write(manifest.text, output)
    if problem is not None:
        sys.stderr.write(f"error: {problem}\n")
        return INVALID
    sys.stderr.write(report(job, manifest, lossy=lossy))
    return LOSSES if job.lost and not lossy else OK


def import_file(path: Path, name: str | None = None) -> tuple[Import, Manifest]:
    """Read a file of the reference and make a manifest of it.

    Raises:
        ReferenceInvalid: it cannot be read, or holds what no manifest can say; everything is in it.
    """
    reference = read_reference(path)
    job = carry_over(reference)
    manifest = None if job.errors else build_manifest(job, name or job_name(path.stem))
    if manifest is None:
        raise ReferenceInvalid(tuple(_line(reference, error) for error in job.errors))
    return job, manifest


def report(job: Import, manifest: Manifest, *, lossy: bool) -> str:
    """Everything that a person should know about an import, by kind; empty if there is nothing."""
    gaps = [Remark(f"spec.{gap.target}", f"{gap.text}, such as {gap.example}") for gap in manifest.gaps]
    where = job.reference
    parts = [
        _part("not carried over, and the run is another one without it", where, job.lost),
        _part("not carried over, without effect on what is learned", where, job.left),
        _part("carried over in another form", where, job.notes),
        _part("not in the file, and the default differs", None, manifest.differing),
        _part("to be filled in by hand", None, gaps),
    ]
    if job.lost and not lossy:
        parts.append(f"{len(job.lost)} setting(s) that change the run were lost; --lossy accepts that\n")
    return "".join(parts)


def _part(title: str, where: Reference | None, remarks: Iterable[Remark]) -> str:
    lines = [f"  {_line(where, remark)}\n" for remark in remarks]
    return f"{title}:\n{''.join(lines)}" if lines else ""


def _line(where: Reference | None, remark: Remark) -> str:
    path = f"{remark.path}: " if remark.path else ""
    return f"{f'{where.where(remark.path)}: ' if where else ''}{path}{remark.text}"


def _write(text: str, output: Path | None) -> str | None:
    """Write the manifest to the file or the terminal; gives what went wrong."""
    if output is None:
        sys.stdout.write(text)
        return None
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return f"{output} exists: choose another file with --output, or remove it"
    except OSError as error:
        return f"{output} cannot be written: {error.strerror}; choose another file with --output"
    return None
