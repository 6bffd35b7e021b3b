"""The system calls that no solution needs, refused by the kernel: a seccomp filter for bubblewrap, made by libseccomp.

Keys, namespaces, mounts, other processes' memory, kernel modules, clocks, memory that belongs to no process, and the
large interfaces that most holes in the kernel are found in. The calls are refused with EPERM; whatever is not of the
machine's own calling convention (32-bit, x32) ends the process, as its numbers would mean other calls.
Sources: seccomp(2), seccomp_rule_add(3), linux/keyctl.h, linux/sched.h, asm-generic/ioctls.h.
"""

import ctypes
import errno
import functools
import tempfile
from pathlib import Path

REFUSED = tuple(Path(__file__).with_name("refused_calls.txt").read_text("utf-8").split())
"""Calls that are always refused, but for those that a machine does not have."""
_NEW = {"memfd_secret": 447, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "open_tree_attr": 467}
"""Numbers, the same on every machine, of calls that an older libseccomp does not know by name."""

_JOIN_SESSION_KEYRING = 1
_NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)  # CLONE_NEW*
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: each belongs to the network namespace
_ALL_FAMILIES = 64
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing on the caller's terminal

_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_BAD_ARCHITECTURE = 2  # SCMP_FLTATR_ACT_BADARCH
_DIFFERENT, _EQUAL, _AT_LEAST, _MASKED = 1, 4, 5, 7  # SCMP_CMP_NE, EQ, GE, MASKED_EQ


class _Condition(ctypes.Structure):
    """struct scmp_arg_cmp: an argument's place, how it compares, and with what: of `_MASKED` a mask and a value."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """libseccomp, or None where it is not installed."""
    try:
        loaded = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return None
    loaded.seccomp_init.restype = ctypes.c_void_p
    return loaded


def number(name: str) -> int:
    """The number of a system call on this machine; negative where it has none."""
    known = library()
    assert known is not None, "the sandbox is refused without libseccomp"
    resolved = int(known.seccomp_syscall_resolve_name(name.encode()))
    return _NEW.get(name, resolved) if resolved < 0 else resolved


@functools.cache
def program() -> bytes:
    """This machine's filter, as bubblewrap reads it."""
    known = library()
    assert known is not None, "the sandbox is refused without libseccomp"
    context = ctypes.c_void_p(known.seccomp_init(ctypes.c_uint32(_ALLOW)))
    known.seccomp_attr_set(context, _BAD_ARCHITECTURE, ctypes.c_uint32(_KILL))
    for name, refusal, condition in _rules():
        compared = [] if condition is None else [condition]
        if (call := number(name)) >= 0:
            action, array = ctypes.c_uint32(_ERROR | refusal), (_Condition * len(compared))(*compared)
            failed = known.seccomp_rule_add_array(context, action, call, len(compared), array)
            assert not failed, f"libseccomp cannot refuse {name}: error {-failed}"
    with tempfile.TemporaryFile() as file:
        failed = known.seccomp_export_bpf(context, file.fileno())
        assert not failed, f"libseccomp cannot write its filter: error {-failed}"
        known.seccomp_release(context)
        file.seek(0)
        return file.read()


def _rules() -> list[tuple[str, int, _Condition | None]]:
    """What is refused: a call, the error it gets, and of which argument (None: whatever its arguments)."""
    families = [_Condition(0, _EQUAL, family) for family in range(_ALL_FAMILIES) if family not in _FAMILIES]
    families.append(_Condition(0, _AT_LEAST, _ALL_FAMILIES))
    return [
        *((name, errno.EPERM, None) for name in REFUSED),
        # a process may leave its caller's keys by joining a new keyring without a name, and do nothing else with keys
        ("keyctl", errno.EPERM, _Condition(0, _DIFFERENT, _JOIN_SESSION_KEYRING)),
        ("keyctl", errno.EPERM, _Condition(1, _DIFFERENT, 0)),
        # what clone3 is asked for lies in memory, which a filter cannot read; without it, libraries call clone
        ("clone3", errno.ENOSYS, None),
        *(("clone", errno.EPERM, _Condition(0, _MASKED, flag, flag)) for flag in _NAMESPACES),
        *((call, errno.EAFNOSUPPORT, condition) for call in ("socket", "socketpair") for condition in families),
        *(("ioctl", errno.EPERM, _Condition(1, _MASKED, 0xFFFFFFFF, request)) for request in _TERMINAL_INPUT),
    ]
