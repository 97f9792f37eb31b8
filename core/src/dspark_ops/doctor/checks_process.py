"""Checks of the process and its surroundings: caches, variables, and a fork after the device runtime has started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dspark_ops.doctor.facts import CacheFolder, Facts
from dspark_ops.doctor.finding import Check, Severity

Found = Iterator[tuple[Severity, str, str, str]]

#: File systems of other machines: locks and renames are slow or unsafe there, and many processes compile at once.
NETWORK: Final = frozenset(
    {
        *(
            "9p",
            "afs",
            "beegfs",
            "beegfs_nodev",
            "ceph",
            "cifs",
            "davfs",
            "glusterfs",
            "gpfs",
            "lustre",
            "ncpfs",
            "nfs",
        ),
        *("nfs3", "nfs4", "ocfs2", "orangefs", "pvfs2", "smb3", "smbfs", "wekafs", "fuse.ceph", "fuse.gcsfuse"),
        *("fuse.glusterfs", "fuse.juicefs", "fuse.lustre", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    }
)


def _caches(facts: Facts) -> Found:
    for cache in facts.caches:
        where = f"{cache.path} ({cache.origin})"
        fix = f"export {cache.variable}=/var/tmp/{cache.owner.lower().replace(' ', '-')}-$USER"
        if cache.problem:
            what = f"the cache of {cache.owner} cannot be written: every process compiles its kernels again, or fails"
            yield Severity.ERROR, what, f"{where}: {cache.problem}", fix
        if _is_network(cache):
            what = f"the cache of {cache.owner} is on a network file system: ranks wait, or read half a file"
            yield Severity.WARNING, what, f"{where} is on {cache.filesystem}, mounted at {cache.mount}", fix


def _is_network(cache: CacheFolder) -> bool:
    return cache.filesystem in NETWORK


def _variables(facts: Facts) -> Found:
    for name, instead in sorted(facts.removed_variables.items()):
        if name in facts.environment:
            what = f"{name} has no effect any more"
            yield Severity.ERROR, what, f"environment {name}={facts.environment[name]!r}", f"unset it; {instead}"
    if facts.configuration_problem:
        what = "the configuration is wrong, so no plan can be made with it"
        fix = "correct what each line names; unset variables that should have no effect"
        yield Severity.ERROR, what, facts.configuration_problem, fix


def _fork(facts: Facts) -> Found:
    torch = facts.torch
    held = ", ".join(facts.open_devices)
    if torch.in_forked_child:
        what = "this process was forked from one that had started the device runtime: no GPU call works here"
        fix = 'start workers with  multiprocessing.get_context("spawn"), or before the first GPU call'
        yield Severity.ERROR, what, "torch.cuda: in a forked child", fix
    if torch.started_by_plugins:
        what = "importing a plugin starts the device runtime: a process that forks afterwards cannot use the GPU"
        evidence = "torch.cuda was not initialised before discovery, and is after it"
        fix = "find it with  dspark-ops plugins  and plugins.deny; a plugin module must import nothing heavy"
        yield Severity.ERROR, what, evidence, fix
    elif (torch.started or held) and not torch.in_forked_child:
        evidence = "torch.cuda is initialised" if torch.started else f"open: {held}"
        method = facts.start_method
        if method == "fork":
            what = "the device runtime runs in this process, and its workers are forked: they cannot use the GPU"
            fix = 'multiprocessing.set_start_method("spawn"), or start the workers before the first GPU call'
            yield Severity.ERROR, what, f"{evidence}; multiprocessing starts by fork", fix
        elif not method:
            what = "the device runtime runs in this process: a fork from here on gives children without a GPU"
            fix = 'multiprocessing.set_start_method("spawn") before workers are started'
            yield Severity.NOTE, what, evidence, fix


CACHES = Check("caches", "Can compiled kernels be kept, on a disk of this machine?", _caches)
VARIABLES = Check("configuration", "Is every variable and every setting one that has an effect?", _variables)
FORK = Check("fork", "Can processes that are started from here use the GPU?", _fork)
CHECKS = (CACHES, VARIABLES, FORK)
