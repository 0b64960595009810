"""Ways out of a sandbox, tried from inside: ``python escapes.py NAME FACTS``.

An escape prints what it reached, as JSON: the way in, or ``null``. ``FACTS`` (JSON) are what somebody told
it of the outside: ports, sockets, paths, the word that is secret, the limits. The standard library is enough,
and nothing of the suite is imported. Some escapes are judged from outside: those that print ``null``, and
leave something behind.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
Escape = Callable[[Facts], str | None]
ESCAPES: dict[str, Escape] = {}
LIBC = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "x86_64": {"ptrace": 101, "process_vm_readv": 310, "keyctl": 250, "add_key": 248, "bpf": 321,
               "perf_event_open": 298, "userfaultfd": 323, "open_by_handle_at": 304, "clone": 56,
               "memfd_create": 319, "shmget": 29, "pivot_root": 155, "kcmp": 312, "syslog": 103},
    "aarch64": {"ptrace": 117, "process_vm_readv": 270, "keyctl": 219, "add_key": 217, "bpf": 280,
                "perf_event_open": 241, "userfaultfd": 282, "open_by_handle_at": 265, "clone": 220,
                "memfd_create": 279, "shmget": 194, "pivot_root": 41, "kcmp": 272, "syslog": 116},
}[os.uname().machine] | {"io_uring_setup": 425, "open_tree": 428, "fsopen": 430, "clone3": 435,
                         "pidfd_getfd": 438, "mount_setattr": 442}  # fmt: skip


def escape(function: Escape) -> Escape:
    ESCAPES[function.__name__] = function
    return function


def call(name: str, *arguments: Any) -> int:
    """A system call; -1 with an error, which is left in errno."""
    return int(LIBC.syscall(ctypes.c_long(NUMBERS[name]), *arguments))


def connected(family: int, address: Any, kind: int = socket.SOCK_STREAM) -> bool:
    with socket.socket(family, kind) as one:
        one.settimeout(3)
        try:
            one.connect(address)
        except OSError:
            return False
        return True


# ---------------------------------------------------------------------------------------------- the network
@escape
def loopback(facts: Facts) -> str | None:
    return "a server of this machine" if connected(socket.AF_INET, ("127.0.0.1", facts["port"])) else None


@escape
def own_address(facts: Facts) -> str | None:
    return facts["address"] if connected(socket.AF_INET, (facts["address"], facts["port"])) else None


@escape
def other_loopback(facts: Facts) -> str | None:
    for address in ("127.0.0.2", "0.0.0.0", "127.1.1.1"):
        if connected(socket.AF_INET, (address, facts["port"])):
            return address
    return None


@escape
def cloud_metadata(facts: Facts) -> str | None:
    return "169.254.169.254" if connected(socket.AF_INET, ("169.254.169.254", 80)) else None


@escape
def names(facts: Facts) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.sendto(b"\0" * 12, ("1.1.1.1", 53))
            return "a datagram left"
        except OSError:
            pass
    try:
        return str(socket.getaddrinfo("example.com", 80))
    except OSError:
        return None


@escape
def abstract_socket(facts: Facts) -> str | None:
    return "an abstract socket" if connected(socket.AF_UNIX, "\0" + facts["abstract"]) else None


@escape
def socket_in_a_folder(facts: Facts) -> str | None:
    return facts["socket"] if connected(socket.AF_UNIX, facts["socket"]) else None


@escape
def host_of_the_machine(facts: Facts) -> str | None:
    try:
        socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
        return "AF_VSOCK"
    except OSError:
        return None


@escape
def raw_packets(facts: Facts) -> str | None:
    for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW), (38, 5)):
        try:
            socket.socket(family, kind, 1).close()
            return f"family {family}"
        except OSError:
            continue
    return None


@escape
def new_interface(facts: Facts) -> str | None:
    done = (
        subprocess.run(["ip", "link", "add", "x", "type", "dummy"], capture_output=True)
        if _has("ip")
        else None
    )
    return "an interface" if done is not None and done.returncode == 0 else None


# ------------------------------------------------------------------------------------------------- files
@escape
def files_of_the_run(facts: Facts) -> str | None:
    for path in facts["files"]:
        try:
            Path(path).read_bytes()
            return str(path)
        except OSError:
            continue
    return None


@escape
def folders_of_the_run(facts: Facts) -> str | None:
    for path in facts["files"]:
        for folder in Path(path).parents:
            try:
                if any(Path(path).name == name for name in os.listdir(folder)):
                    return str(folder)
            except OSError:
                continue
    return None


@escape
def other_rollouts(facts: Facts) -> str | None:
    found = [str(one) for one in Path("/tmp").glob("agl-*")] + [
        one for one in os.listdir(Path(facts["other"]).parent.parent) if one.startswith("agl-sandbox-")
    ]
    return ", ".join(found) or None


@escape
def every_file(facts: Facts) -> str | None:
    """Search what there is for the secret word, in small files whose name says nothing of the system."""
    for top in (
        "/sandbox",
        "/tmp",
        "/etc",
        "/root",
        "/home",
        "/var",
        "/run",
        "/opt",
        "/srv",
        "/mnt",
        "/dev/shm",
    ):
        for place, _, names_ in os.walk(top):
            for name in names_:
                path = Path(place, name)
                try:
                    small = path.is_file() and path.stat().st_size < 1 << 16
                    if small and path.name != "escapes.py" and facts["word"].encode() in path.read_bytes():
                        return str(path)
                except OSError:
                    continue
    return None


@escape
def shadow(facts: Facts) -> str | None:
    return _readable("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/root/.ssh", "/root/.bashrc")


@escape
def writing_the_system(facts: Facts) -> str | None:
    for path in ("/usr/x", "/etc/x", "/etc/passwd", "/x", "/dev/x", "/usr/bin/env", sys.executable, "/sys/x",
                 f"{sys.prefix}/x", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger",
                 "/proc/sys/kernel/hostname", "/proc/1/mem"):  # fmt: skip
        try:
            with open(path, "ab"):
                return path
        except OSError:
            continue
    return None


@escape
def links_out(facts: Facts) -> str | None:
    """Judged from outside too: whoever reads these names of the folder must not get the file."""
    target = facts["files"][0]
    os.symlink(target, "answer")
    os.symlink("../../../../../.." + target, "relative")
    os.symlink(os.path.dirname(target), "folder")
    os.symlink("/proc/self/environ", "environ")
    for source in (target, "/etc/passwd", "/usr/bin/env", "/proc/self/environ"):
        try:
            os.link(source, "hard")
            return source
        except OSError:
            continue
    return _readable("answer", "relative")


@escape
def blocking_reader(facts: Facts) -> str | None:
    """Judged from outside: a reader of ``answer`` must not wait for ever."""
    os.mkfifo("answer")
    return None


@escape
def strange_names(facts: Facts) -> str | None:
    """Judged from outside: the folder is removed, and nothing else is."""
    for name in (
        "a\nb",
        "\n",
        "-rf",
        "--",
        "\x1b[2J",
        "a\xff".encode("latin-1"),
        "..\n",
        " ",
        "*",
        "$(touch x)",
    ):
        with open(name, "wb"):
            pass
    at = os.getcwd()
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
    os.mkdir("closed", 0)
    os.chdir(at)
    os.mkdir("unreadable")
    Path("unreadable/x").touch()
    os.chmod("unreadable", 0)
    return None


# --------------------------------------------------------------------------------- processes and their state
@escape
def own_environment(facts: Facts) -> str | None:
    found = " ".join([*os.environ.values(), *sys.argv[:2]])
    return "a secret" if facts["word"] in found else None


@escape
def other_processes(facts: Facts) -> str | None:
    for number in (name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()):
        for file in ("environ", "mem", "maps", "cmdline"):
            try:
                with open(f"/proc/{number}/{file}", "rb") as opened:
                    if facts["word"].encode() in opened.read(1 << 20) and file != "cmdline":
                        return f"/proc/{number}/{file}"
            except (OSError, ValueError, OverflowError):
                continue
        for link in ("root", "cwd"):
            for path in facts["files"]:
                try:
                    if os.path.exists(f"/proc/{number}/{link}{path}"):
                        return f"/proc/{number}/{link}"
                except OSError:
                    continue
    return "the judge's number" if _is_judge(facts) else None


@escape
def open_files(facts: Facts) -> str | None:
    """Descriptors that were left open: the result's pipes are 1 and 2, and there is nothing else."""
    found = [int(name) for name in os.listdir("/proc/self/fd")]
    left = []
    for number in found:
        if number > 2:
            try:
                left.append(os.readlink(f"/proc/self/fd/{number}"))
            except OSError:
                continue
    return ", ".join(one for one in left if not one.startswith("/proc/")) or None


@escape
def first_process(facts: Facts) -> str | None:
    """The init of the namespace, which comes from outside: its files, its memory."""
    for file in ("fd", "root", "cwd", "exe"):
        try:
            if file == "fd":
                for name in os.listdir("/proc/1/fd"):
                    target = os.readlink(f"/proc/1/fd/{name}")
                    if not target.startswith(
                        ("pipe:", "anon_inode:", "/dev/null", "socket:", "/memfd", "/tmp/#")
                    ):
                        return f"/proc/1/fd/{name}: {target}"
                    if target.startswith("socket:"):
                        return f"/proc/1/fd/{name}: {target}"
            elif file == "root" and set(os.listdir("/proc/1/root")) - set(os.listdir("/")):
                return "/proc/1/root"
        except OSError:
            continue
    return None


@escape
def signal_to_the_parent(facts: Facts) -> str | None:
    """Judged from outside: the judge lives, and the sandbox ends."""
    for number in (facts["judge"], os.getppid(), 1, 0):
        if number:
            try:
                os.kill(number, signal.SIGTERM)
                os.kill(number, signal.SIGKILL)
            except OSError:
                continue
    return None


@escape
def trace(facts: Facts) -> str | None:
    for number in (1, os.getppid()):
        for request in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
            if call("ptrace", request, number, 0, 0) == 0:
                return f"ptrace of {number}"
    return "PTRACE_TRACEME" if call("ptrace", 0, 0, 0, 0) == 0 else None


@escape
def memory_of_others(facts: Facts) -> str | None:
    local = (ctypes.c_char * 16)()
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(local), 16)
    if call("process_vm_readv", os.getppid(), vector, 1, vector, 1, 0) > 0:
        return "process_vm_readv"
    return "pidfd_getfd" if call("pidfd_getfd", os.pidfd_open(os.getpid()), 1, 0) >= 0 else None


@escape
def daemons(facts: Facts) -> str | None:
    """Judged from outside: no process with the facts' mark is left."""
    for _ in range(4):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
                os.execv(
                    sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", facts["mark"]]
                )
            os._exit(0)
    time.sleep(0.3)
    return None


# ------------------------------------------------------------------------------------- rights and namespaces
@escape
def root(facts: Facts) -> str | None:
    for become in (
        lambda: os.setuid(0),
        lambda: os.setgid(0),
        lambda: os.setgroups([0]),
        lambda: os.seteuid(0),
    ):
        try:
            before = os.getresuid(), os.getresgid(), os.getgroups()
            become()
            if (os.getresuid(), os.getresgid(), os.getgroups()) != before:
                return "setuid"
        except OSError:
            continue
    status = Path("/proc/self/status").read_text().splitlines()
    held = {
        line.split()[0]: int(line.split()[1], 16)
        for line in status
        if line.startswith(("CapEff", "CapPrm", "CapAmb"))
    }
    return f"capabilities {held}" if any(held.values()) else None


@escape
def setuid_programs(facts: Facts) -> str | None:
    for program in (["su", "-c", "id -u"], ["sudo", "-n", "id", "-u"], ["mount", "-t", "tmpfs", "x", "/tmp"],
                    ["pkexec", "id", "-u"], ["newgrp", "root"], ["unshare", "-r", "id", "-u"]):  # fmt: skip
        if _has(program[0]):
            done = subprocess.run(program, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode == 0 and (done.stdout.strip() in ("0", "") or program[0] == "mount"):
                return " ".join(program)
    try:
        Path("own").write_bytes(Path("/usr/bin/id").read_bytes())
        os.chmod("own", 0o6755)
        return (
            "a setuid file" if subprocess.run(["./own", "-u"], capture_output=True).stdout == b"0\n" else None
        )
    except OSError:
        return None


@escape
def new_namespaces(facts: Facts) -> str | None:
    for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000, 0x08000000, 0x04000000, 0x02000000):
        if LIBC.unshare(flag) == 0:
            return f"unshare({flag:#x})"
        if os.uname().machine == "x86_64" and (child := call("clone", flag | 17, 0, 0, 0, 0)) >= 0:
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            return f"clone({flag:#x})"
    arguments = struct.pack("<8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)
    if (child := call("clone3", arguments, len(arguments))) >= 0:
        if child == 0:
            os._exit(0)
        return "clone3"
    return None


@escape
def foreign_namespaces(facts: Facts) -> str | None:
    for name in ("mnt", "net", "pid", "user", "uts", "ipc", "cgroup"):
        try:
            file = os.open(f"/proc/1/ns/{name}", os.O_RDONLY)
        except OSError:
            continue
        if LIBC.setns(file, 0) == 0:
            return f"setns({name})"
    return None


@escape
def mounts(facts: Facts) -> str | None:
    ways = {
        "mount": lambda: LIBC.mount(b"x", b"/tmp", b"tmpfs", 0, None),
        "bind": lambda: LIBC.mount(b"/", b"/tmp", None, 4096, None),
        "remount": lambda: LIBC.mount(None, b"/usr", None, 32 | 4096, None),
        "umount": lambda: LIBC.umount2(b"/usr", 2),
        "pivot_root": lambda: call("pivot_root", b"/tmp", b"/tmp"),
        "fsopen": lambda: min(0, call("fsopen", b"tmpfs", 0)),
        "open_tree": lambda: min(0, call("open_tree", -100, b"/", 1)),
        "mount_setattr": lambda: call(
            "mount_setattr", -100, b"/usr", 0, (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32
        ),
    }
    return next((name for name, way in ways.items() if way() == 0), None)


@escape
def change_of_root(facts: Facts) -> str | None:
    os.mkdir("jail")
    try:
        os.chroot("jail")
    except OSError:
        return None
    return "chroot"


@escape
def devices(facts: Facts) -> str | None:
    names_ = "mem", "kmem", "port", "kmsg", "vda", "sda", "nvidia0", "kvm", "fuse", "vsock", "vhost-vsock"
    found = _readable("/proc/kcore", *(f"/dev/{name}" for name in names_))
    for kind, number in ((0o060600, os.makedev(254, 0)), (0o020600, os.makedev(1, 1))):
        try:
            os.mknod("device", kind, number)
            return found or "mknod"
        except OSError:
            continue
    return found


@escape
def kernel_keys(facts: Facts) -> str | None:
    if call("add_key", b"user", b"agl", b"x", 1, -3) >= 0:
        return "add_key"
    return "keyctl" if call("keyctl", 0, -3, 0) >= 0 else None


@escape
def large_parts_of_the_kernel(facts: Facts) -> str | None:
    block = (ctypes.c_char * 256)()
    for name, arguments in {
        "io_uring_setup": (4, block), "bpf": (0, block, 72), "userfaultfd": (1,), "kcmp": (1, 1, 0, 0, 0),
        "perf_event_open": (block, 0, -1, -1, 0), "open_by_handle_at": (-100, block, 0),
        "syslog": (3, block, 255),
    }.items():  # fmt: skip
        ctypes.set_errno(0)
        if call(name, *arguments) >= 0 or ctypes.get_errno() not in (1, 38):  # EPERM, ENOSYS
            return f"{name}: {os.strerror(ctypes.get_errno())}"
    return None


@escape
def other_abi(facts: Facts) -> str | None:
    """A filter that looks at one ABI's numbers only is passed by the calls of another."""
    if os.uname().machine != "x86_64":
        return None
    codes = {
        "int 0x80": b"\xb8\x14\x00\x00\x00\xcd\x80\xc3",  # getpid, as 32 bits
        "x32": b"\xb8\x27\x00\x00\x40\x0f\x05\xc3",  # getpid, with the bit of x32
    }
    for name, code in codes.items():
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
            page.write(code)
            place = ctypes.addressof(ctypes.c_char.from_buffer(page))
            os._exit(0 if ctypes.CFUNCTYPE(ctypes.c_int)(place)() == os.getpid() else 1)
        if os.waitpid(child, 0)[1] == 0:
            return name
    return None


@escape
def terminal(facts: Facts) -> str | None:
    for path in ("/dev/tty", "/dev/pts/0", "/dev/console", "/proc/self/fd/0", "/dev/ptmx"):
        try:
            file = os.open(path, os.O_RDWR | os.O_NOCTTY)
        except OSError:
            continue
        try:
            fcntl.ioctl(file, 0x5412, b"x")
            return f"TIOCSTI on {path}"
        except OSError as error:
            if error.errno not in (1, 25):  # EPERM, ENOTTY
                return f"TIOCSTI on {path}: {error}"
    return None


# --------------------------------------------------------------------------------------------------- limits
@escape
def raised_limits(facts: Facts) -> str | None:
    for name in ("DATA", "NPROC", "FSIZE", "NOFILE", "CORE"):
        kind = getattr(resource, f"RLIMIT_{name}")
        try:
            resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            return name
        except (OSError, ValueError):
            continue
    for what in (lambda: os.nice(-5), lambda: Path("/proc/self/oom_score_adj").write_text("-1000")):
        try:
            what()
            return "nice, or the order in which memory is freed"
        except OSError:
            continue
    return None


@escape
def fork_bomb(facts: Facts) -> str | None:
    """As many processes as there may be. The pause lets a look from outside fall in between."""
    count = 0
    for _ in range(4 * facts["processes"]):
        try:
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            count += 1
        except OSError:
            break
    print("null" if count <= facts["processes"] else json.dumps(f"{count} processes"), flush=True)
    time.sleep(0.2)
    os._exit(0)


@escape
def thread_bomb(facts: Facts) -> str | None:
    import threading

    count = 0
    for _ in range(4 * facts["processes"]):
        try:
            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
            count += 1
        except RuntimeError:
            break
    print("null" if count <= facts["processes"] else json.dumps(f"{count} threads"), flush=True)
    time.sleep(0.2)
    os._exit(0)


@escape
def memory_of_one(facts: Facts) -> str | None:
    held = []
    try:
        for _ in range(64):
            held.append(bytearray(os.urandom(1 << 20)) * (facts["memory"] >> 24))
    except MemoryError:
        held.clear()
        return None
    return f"{64 * (facts['memory'] >> 4):,} bytes"


@escape
def memory_of_many(facts: Facts) -> str | None:
    """Each process is below the limit, and all together are far above: the watch has to end them."""
    return _many(facts, lambda: bytearray(b"1") * (facts["memory"] * 3 // 4))


@escape
def shared_memory(facts: Facts) -> str | None:
    def take() -> mmap.mmap:
        page = mmap.mmap(-1, 2 * facts["memory"])  # shared, so no process's own data
        for place in range(0, len(page), 4096):
            page[place] = 1
        return page

    return _many(facts, take, processes=1)


@escape
def memory_of_nobody(facts: Facts) -> str | None:
    if call("memfd_create", b"x", 0) >= 0:
        return "memfd_create"
    return "shmget" if call("shmget", 0, ctypes.c_size_t(1 << 20), 0o1600) >= 0 else None


@escape
def disk_one_file(facts: Facts) -> str | None:
    return _fill(facts, (f"f{number}" for number in range(1)))


@escape
def disk_many_files(facts: Facts) -> str | None:
    return _fill(facts, (f"f{number}" for number in range(1000)), each=facts["disk"] // 8)


@escape
def disk_without_names(facts: Facts) -> str | None:
    """Files that no folder shows, because they were removed while they were open."""
    return _descriptors(facts, [os.open(f"f{number}", os.O_RDWR | os.O_CREAT) for number in range(40)])


@escape
def disk_without_names_in_tmp(facts: Facts) -> str | None:
    os.chdir("/tmp")
    return disk_without_names(facts)


@escape
def disk_in_a_closed_folder(facts: Facts) -> str | None:
    """Files in folders that their owner may not list, nor enter."""
    os.makedirs("outer/inner")
    files = [os.open(f"outer/inner/f{number}", os.O_RDWR | os.O_CREAT) for number in range(40)]
    os.chmod("outer/inner", 0o300)
    os.chmod("outer", 0)
    return _descriptors(facts, files, remove=False)


@escape
def disk_of_a_hidden_process(facts: Facts) -> str | None:
    """A process that says it is not to be looked into, or whose program may not be read."""
    LIBC.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    if not os.environ.get("AGAIN"):
        Path("python").write_bytes(Path(sys.executable).read_bytes())
        os.chmod("python", 0o111)
        library = os.path.join(os.path.dirname(os.path.dirname(sys.executable)), "lib")
        again = {
            **os.environ,
            "AGAIN": "1",
            "PYTHONHOME": os.path.dirname(library),
            "LD_LIBRARY_PATH": library,
        }
        os.execve("python", ["python", "-B", *sys.argv], again)
    return disk_without_names(facts)


@escape
def disk_of_a_thread(facts: Facts) -> str | None:
    """Open files of a process whose first thread has ended."""
    import threading

    threading.Thread(target=lambda: print(json.dumps(disk_without_names(facts)), flush=True)).start()
    LIBC.pthread_exit(None)
    return None


@escape
def disk_of_the_system(facts: Facts) -> str | None:
    for folder in (
        "/tmp",
        "/dev/shm",
        "/",
        "/dev",
        "/etc",
        "/proc",
        "/run",
        "/var/tmp",
        os.path.dirname(sys.executable),
    ):
        written = 0
        for number in range(64):
            try:
                with open(f"{folder}/{number}", "wb") as file:
                    for _ in range(facts["disk"] >> 20):
                        written += file.write(bytes(1 << 20))
            except OSError:
                break
        if written > facts["disk"] + (64 << 20):
            return f"{folder}: {written:,} bytes"
    return None


@escape
def many_empty_files(facts: Facts) -> str | None:
    count = 0
    while count < 200 * facts["files_limit"]:
        os.makedirs(f"d{count // 1000}", exist_ok=True)
        with open(f"d{count // 1000}/{count}", "wb"):
            count += 1
    return f"{count:,} files"


@escape
def many_empty_files_in_memory(facts: Facts) -> str | None:
    os.chdir("/tmp")
    return many_empty_files(facts)


@escape
def output_flood(facts: Facts) -> str | None:
    """Judged from outside: of gigabytes, the last megabyte is kept."""
    line = b"x" * (1 << 20)
    for _ in range(256):
        os.write(1, line)
    os.write(1, b"\nnull\n")
    return None


@escape
def endless(facts: Facts) -> str | None:
    """Judged from outside: the wall time ends it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
    return "ten minutes"


@escape
def processor_time(facts: Facts) -> str | None:
    """Judged from outside: processors that several processes use count together."""
    for _ in range(3):
        if os.fork() == 0:
            break
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    until = time.monotonic() + 120
    while time.monotonic() < until:
        pass
    return "two minutes"


# -------------------------------------------------------------------------------------------------- helpers
def _has(program: str) -> bool:
    return any(
        os.access(f"{folder}/{program}", os.X_OK) for folder in ("/usr/bin", "/usr/sbin", "/bin", "/sbin")
    )


def _readable(*paths: str) -> str | None:
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            if os.path.isdir(path) or os.read(file, 1):
                return path
        except OSError:
            continue
    return None


def _is_judge(facts: Facts) -> bool:
    try:
        return facts["mark"].encode() in Path(f"/proc/{facts['judge']}/environ").read_bytes()
    except OSError:
        return False


def _many(facts: Facts, take: Callable[[], Any], processes: int = 6) -> str | None:
    """Take memory in several processes, and hold it."""
    for _ in range(processes):
        if os.fork() == 0:
            held = take()
            time.sleep(5)
            os._exit(0 if held else 1)
    kept = sum(os.wait()[1] == 0 for _ in range(processes))
    return f"{kept} processes kept their memory" if kept == processes else None


def _fill(facts: Facts, files: Iterator[str], each: int | None = None) -> str | None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    written, wanted = 0, 8 * facts["disk"]
    for name in files:
        try:
            with open(name, "wb", 0) as file:
                while written < wanted and (each is None or file.tell() < each):
                    written += file.write(bytes(1 << 20))
        except OSError:
            continue
    time.sleep(1)
    return f"{written:,} bytes" if written > 2 * facts["disk"] else None


def _descriptors(facts: Facts, files: list[int], remove: bool = True) -> str | None:
    """Fill files by their descriptors alone."""
    for number in range(len(files) if remove else 0):
        os.unlink(f"f{number}")
    written = 0
    for file in files:
        for _ in range(facts["disk"] >> 21):
            written += os.write(file, bytes(1 << 20))
        time.sleep(0.1)
    return f"{written:,} bytes" if written > 2 * facts["disk"] else None


if __name__ == "__main__":
    print(json.dumps(ESCAPES[sys.argv[1]](json.loads(sys.argv[2]))))
