"""The system calls that no solution needs, refused by the kernel: a seccomp filter for bubblewrap, in classic BPF.

Keys, namespaces, mounts, other processes' memory, kernel modules, clocks, memory that belongs to no process, and the
large interfaces that most holes in the kernel are found in. The calls are refused with EPERM; whatever is not of the
machine's own calling convention (32-bit, x32) ends the process, as its numbers would mean other calls.
Sources: seccomp(2), linux/filter.h, linux/seccomp.h, and the kernel's tables syscall_64.tbl and asm-generic/unistd.h.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable

NUMBERS: dict[str, tuple[int | None, int | None]] = {
    # kernel keyrings; keyctl has a rule of its own
    "add_key": (248, 217),
    "request_key": (249, 218),
    # programs and queues in the kernel
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # namespaces and mounts; clone has a rule of its own
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    # the machine
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    # memory that belongs to no process, which no limit counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
}
"""Calls that are always refused, with their numbers on x86-64 and on arm64 (None: there is no such call)."""

KEYCTL = (250, 219)
CLONE = (56, 220)
CLONE3 = (435, 435)
SOCKET = (41, 198)
SOCKETPAIR = (53, 199)
IOCTL = (16, 29)

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* by the name that `uname -m` prints, in the order of the numbers above."""

_JOIN_SESSION_KEYRING = 1
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: each belongs to the network namespace
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing on the caller's terminal
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000

Instruction = tuple[int, int, int, int]
"""struct sock_filter: operation, instructions to skip where it holds and where not, and its operand."""


def program(machine: str) -> bytes:
    """The filter for a machine of MACHINES, as bubblewrap reads it. Raises ValueError for another machine."""
    if machine not in MACHINES:
        raise ValueError(f"there is no system-call filter for {machine}, only for {' and '.join(MACHINES)}")
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions(machine))


def instructions(machine: str) -> list[Instruction]:
    """The filter's instructions, in order."""
    place = list(MACHINES).index(machine)
    refused = [number for name in NUMBERS if (number := NUMBERS[name][place]) is not None]
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, MACHINES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        *([(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)] if machine == "x86_64" else []),
        *(step for number in refused for step in _rule(number, [_error(errno.EPERM)])),
        # what clone3 is asked for lies in memory, which a filter cannot read; without it, libraries call clone
        *_rule(CLONE3[place], [_error(errno.ENOSYS)]),
        *_rule(CLONE[place], [*_argument(0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _error(errno.EPERM), _allow()]),
        *_rule(KEYCTL[place], _only_a_new_keyring()),
        *_rule(SOCKET[place], _only(_FAMILIES, 0, errno.EAFNOSUPPORT)),
        *_rule(SOCKETPAIR[place], _only(_FAMILIES, 0, errno.EAFNOSUPPORT)),
        *_rule(IOCTL[place], _all_but(_TERMINAL_INPUT, 1)),
        _allow(),
    ]


def _rule(number: int, steps: list[Instruction]) -> list[Instruction]:
    """`steps`, which end in a verdict, for one system call; the number is loaded before and after."""
    return [(_EQUAL, 0, len(steps), number), *steps]


def _only_a_new_keyring() -> list[Instruction]:
    """keyctl(KEYCTL_JOIN_SESSION_KEYRING, NULL), by which a process leaves its caller's keys, and nothing else."""
    return [
        *_argument(0), (_EQUAL, 0, 4, _JOIN_SESSION_KEYRING),
        *_argument(1), (_EQUAL, 0, 2, 0),
        *_argument(1, high=True), (_EQUAL, 1, 0, 0),
        _error(errno.EPERM), _allow(),
    ]  # fmt: skip


def _only(values: Iterable[int], argument: int, refusal: int) -> list[Instruction]:
    checks = [step for value in values for step in ((_EQUAL, 0, 1, value), _allow())]
    return [*_argument(argument), *checks, _error(refusal)]


def _all_but(values: Iterable[int], argument: int) -> list[Instruction]:
    checks = [step for value in values for step in ((_EQUAL, 0, 1, value), _error(errno.EPERM))]
    return [*_argument(argument), *checks, _allow()]


def _argument(place: int, *, high: bool = False) -> list[Instruction]:
    """Load the lower, or the upper, half of an argument of the call (both machines are little-endian)."""
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * place + 4 * high)]


def _error(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERROR | number)


def _allow() -> Instruction:
    return (_RETURN, 0, 0, _ALLOW)
