"""Memory of the server: kept for the next batch, given back when there is none."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from regard.serve.web.memory import MemoryTrimmer
from tests.serve.server import ROOT

MB = 1 << 20
pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")


def test_memory_that_batches_compute_with_is_kept_and_what_is_larger_goes_back() -> None:
    code = """
import ctypes, threading
from regard.serve.web.memory import keep_memory
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def held():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
def use(megabytes):  # in a thread of its own, as engines do
    before, seen = held(), []
    def work():
        block = libc.malloc(megabytes << 20)
        libc.memset(block, 1, megabytes << 20)
        libc.free(block)
        seen.append(held() - before)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return seen[0]
found = [use(20)]
keep_memory()
found += [use(20), use(48)]
print(*found)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    unset, kept, large = map(int, done.stdout.split())
    assert unset < 4 and kept > 16 and large < 4


class Process:
    """The memory of a process: some in use, some freed."""

    def __init__(self) -> None:
        self.used, self.freed, self.trims = 100 * MB, 0, 0

    def trim(self) -> None:
        self.freed = 0
        self.trims += 1

    def held(self) -> int:
        return self.used + self.freed


def test_memory_is_given_back_once_the_server_has_been_idle() -> None:
    process = Process()
    trimmer = MemoryTrimmer(process.trim, process.held, now=0)
    process.freed = 500 * MB
    assert not trimmer.tick(in_flight=3, now=1)
    assert not trimmer.tick(in_flight=0, now=2)
    assert not trimmer.tick(in_flight=0, now=5.9)
    assert trimmer.tick(in_flight=0, now=6.1) and process.held() == 100 * MB
    trimmer.note_level()
    assert not any(trimmer.tick(in_flight=0, now=7 + n) for n in range(1_000))  # once is enough
    process.freed = 60 * MB
    assert not trimmer.tick(1, 2_000) and not trimmer.tick(0, 2_010)  # that is what the next batch needs


def test_a_server_that_is_never_idle_gives_memory_back_each_minute() -> None:
    process = Process()
    trimmer = MemoryTrimmer(process.trim, process.held, now=0)
    for second in range(600):
        process.freed += 10 * MB
        if trimmer.tick(in_flight=5, now=second):
            trimmer.note_level()
    assert 8 <= process.trims <= 10 and process.held() < 1_000 * MB


def test_what_is_used_for_good_is_no_reason_to_try_again_and_again() -> None:
    process = Process()
    trimmer = MemoryTrimmer(process.trim, process.held, now=0)
    process.used = 400 * MB  # torch was loaded
    assert not trimmer.tick(1, 1) and trimmer.tick(0, 7)
    trimmer.note_level()
    assert not trimmer.tick(1, 8) and not trimmer.tick(0, 14) and process.trims == 1


def test_the_c_library_gives_back_what_lies_between_used_blocks() -> None:
    code = """
import ctypes, threading, time
from regard.serve.web.memory import keep_memory, make_trimmer
keep_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def held():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
trimmer = make_trimmer(0.0)
before = held()
def work():
    blocks = [libc.malloc(1 << 20) for _ in range(200)]
    for block in blocks:
        libc.memset(block, 1, 1 << 20)
    for block in blocks[:-1]:  # the last keeps its heap from shrinking
        libc.free(block)
thread = threading.Thread(target=work)
thread.start()
thread.join()
full = held() - before
trimmer.tick(1, 1.0)
assert trimmer.tick(0, 7.0)
end = time.monotonic() + 60
while held() - before > 20 and time.monotonic() < end:
    time.sleep(0.01)
print(full, held() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    full, after = map(int, done.stdout.split())
    assert full > 150 and after <= 20
