"""The system calls that a sandbox refuses, as a seccomp program.

The namespaces take files, processes and the network out of sight. What is left of the kernel is open to every
process by system calls, and the calls of :data:`REFUSED` are ways out that were found before, or memory that
no limit counts. All others are allowed: a list of the allowed calls would break programs that nobody tried.
libseccomp knows the numbers of each machine and writes the program; a call of another ABI ends the process.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import socket
from collections.abc import Sequence

from agentlightning.types import UsageError

REFUSED = (
    # Namespaces and mounts: with a user namespace of its own, a process has all capabilities in it.
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree",
    "open_tree_attr", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
    # Other processes.
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp",
    # The kernel's keys, which no namespace divides.
    "keyctl", "add_key", "request_key",
    # Large parts of the kernel, of which most escapes were made.
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
    "fanotify_init", "name_to_handle_at", "open_by_handle_at", "quotactl", "quotactl_fd", "lookup_dcookie",
    "nfsservctl", "modify_ldt", "iopl", "ioperm", "migrate_pages", "move_pages",
    # Memory that belongs to no process.
    "memfd_create", "memfd_secret", "shmget", "msgget",
    # The machine.
    "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "create_module",
    "reboot", "swapon", "swapoff", "acct", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex",
    "sethostname", "setdomainname", "syslog", "vhangup",
)  # fmt: skip
_NEW_NAMESPACE = 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00020000
"""The flags of clone(2) that make a namespace: cgroup, uts, ipc, user, pid, net, mount."""
_TERMINAL = 0x5412, 0x541C
"""TIOCSTI types into a terminal as its user, TIOCLINUX pastes into a console."""
_DUMPABLE = 4
"""PR_SET_DUMPABLE."""
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Sockets that a namespace of the network holds, or that know an own part of it only. AF_VSOCK reaches the
host of a virtual machine."""
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EQUAL, _GREATER, _MASKED_EQUAL = 4, 6, 7


class _Compared(ctypes.Structure):
    """``struct scmp_arg_cmp``."""

    _fields_ = (
        ("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)
    )  # fmt: skip


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        found = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError:
        raise UsageError(
            "sandbox: libseccomp is not installed here: apt-get install libseccomp2, or "
            "dnf install libseccomp"
        ) from None
    found.seccomp_init.restype = ctypes.c_void_p
    found.seccomp_init.argtypes = [ctypes.c_uint32]
    found.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    found.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Compared)
    ]  # fmt: skip
    found.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    found.seccomp_release.argtypes = [ctypes.c_void_p]
    return found


class _Program:
    def __init__(self) -> None:
        self.library = _library()
        self.context = self.library.seccomp_init(_ALLOW)

    def refuse(self, name: str, error: int = errno.EPERM, *compared: Sequence[int]) -> None:
        number = self.library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # this machine has no such call
            return
        made = (_Compared * max(1, len(compared)))(*(_Compared(*one) for one in compared))
        done = self.library.seccomp_rule_add_array(self.context, _ERRNO | error, number, len(compared), made)
        if done != 0:
            raise OSError(-done, f"seccomp: {name}: {os.strerror(-done)}")


@functools.cache
def program() -> bytes:
    """Return the filter, as ``bwrap --seccomp`` reads it. Raise :class:`.UsageError` without libseccomp."""
    made = _Program()
    for name in REFUSED:
        made.refuse(name)
    for flag in _NEW_NAMESPACE:
        made.refuse("clone", errno.EPERM, (0, _MASKED_EQUAL, flag, flag))
    made.refuse("clone3", errno.ENOSYS)  # its flags are behind a pointer; libc falls back to clone
    # A process that hid itself would hide its open files from the watch. It is told that it does.
    made.refuse("prctl", 0, (0, _MASKED_EQUAL, 0xFFFFFFFF, _DUMPABLE))
    for request in _TERMINAL:
        made.refuse("ioctl", errno.EPERM, (1, _MASKED_EQUAL, 0xFFFFFFFF, request))
    for family in set(range(max(_FAMILIES))) - {int(one) for one in _FAMILIES}:
        made.refuse("socket", errno.EAFNOSUPPORT, (0, _EQUAL, family))
    made.refuse("socket", errno.EAFNOSUPPORT, (0, _GREATER, int(max(_FAMILIES))))
    file = os.memfd_create("filter")
    try:
        if (done := made.library.seccomp_export_bpf(made.context, file)) != 0:
            raise OSError(-done, "seccomp: the filter could not be written")
        os.lseek(file, 0, os.SEEK_SET)
        return os.read(file, 1 << 20)
    finally:
        os.close(file)
        made.library.seccomp_release(made.context)
