# SPDX-License-Identifier: GPL-2.0-or-later
"""Reports of a kernel are found in a log, and ordinary boots have none."""

from __future__ import annotations

from pathlib import Path

import pytest
import vmpath  # noqa: F401
from vm import splat
from vm.accel import Accel
from vm.arches import ARCHES
from vm.errors import Splat
from vm.guest import Guest
from vm.qemu import Machine
from vm.variants import VARIANTS

BOOT = """\
[    0.000000] Linux version 6.1.0-57-amd64 (gcc-12) #1 SMP PREEMPT_DYNAMIC Debian 6.1.192-3
[    0.000000] Command line: console=ttyS0 rdinit=/init oops=panic panic=-1 hung_task_panic=0
[    0.100000] rcu: Hierarchical RCU implementation.
[    0.100000] rcu: RCU restricting CPUs from NR_CPUS=8192 to nr_cpu_ids=1.
[    0.200000] Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on
[    0.300000] kfence: initialized - using 2097152 bytes for 255 objects
[    0.400000] Lockdown: swapper/0: hibernation is restricted; see man kernel_lockdown.7
[    0.500000] clocksource: timekeeping watchdog on CPU0: Marking clocksource 'tsc' as unstable
[    1.000000] ptscope: loading out-of-tree module taints kernel.
[    1.000000] ptscope: module verification failed: signature and/or required key missing
[    2.000000] ptscope: version magic '6.1.0-57-cloud-amd64 SMP ' should be '6.1.0-57-amd64 SMP '
[    3.000000] zram0: detected capacity change from 0 to 262144
[    3.100000] Memory failure: 0x10a5f0: recovery action for dirty LRU page: Recovered
"""

# First lines of reports as kernels print them.
REPORTS = {
    "BUG": [
        "BUG: unable to handle page fault for address: ffffa0b1c0ffee00",
        "BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "BUG: sleeping function called from invalid context at mm/memory.c:5000",
        "BUG: scheduling while atomic: ptscope/123/0x00000002",
        "BUG: Bad page state in process python3  pfn:10a5f0",
        "BUG: Bad page map in process python3  pte:8000000 pmd:1079c1067",
        "BUG: Bad rss-counter state mm:00000000c0ffee type:MM_ANONPAGES val:1",
        "BUG: non-zero pgtables_bytes on freeing mm: 4096",
        "BUG: KASAN: use-after-free in walk_pte+0x1f/0x90 [ptscope]",
        "BUG: soft lockup - CPU#0 stuck for 22s! [churn:231]",
        "kernel BUG at mm/huge_memory.c:2000!",
        "kernel BUG at mm/page_table_check.c:86!",
        "kernel BUG at lib/list_debug.c:53!",
        "BUG: KASAN: slab-use-after-free in walk_ptes+0x1f/0x90 [ptscope]",
        "BUG: KASAN: slab-out-of-bounds in copy_run+0x1f/0x90 [ptscope]",
        "BUG: KASAN: vmalloc-out-of-bounds in open_run+0x1f/0x90 [ptscope]",
        "BUG: KASAN: double-free in ptscope_job_end+0x1f/0x90 [ptscope]",
        "BUG kmalloc-64 (Tainted: G           O      ): Poison overwritten",
        "BUG kmalloc-cg-4k (Not tainted): Object already free",
        "BUG: MAX_LOCKDEP_CHAINS too low!",
        "BUG: MAX_LOCKDEP_ENTRIES too low!",
        "BUG: workqueue leaked atomic, lock or RCU: kworker/0:1[12]",
        "BUG: using smp_processor_id() in preemptible [00000000] code: python3/99",
        "BUG: spinlock bad magic on CPU#0, python3/99",
        "BUG: stack guard page was hit at 0000000000c0ffee (stack is 0..1)",
    ],
    "WARNING": [
        "WARNING: CPU: 0 PID: 99 at mm/page_alloc.c:5500 __alloc_pages+0x2f/0x40",
        "WARNING: mm/memory.c:1234 at walk+0x1f/0x90, CPU#0: python3/99",
    ],
    "lockdep": [
        "WARNING: possible circular locking dependency detected",
        "WARNING: possible recursive locking detected",
        "WARNING: inconsistent lock state",
        "WARNING: suspicious RCU usage",
        "WARNING: bad unlock balance detected!",
        "WARNING: lock held when returning to user space!",
        "[ BUG: Invalid wait context ]",
        "INFO: trying to register non-static key.",
        "WARNING: possible irq lock inversion dependency detected",
        "WARNING: SOFTIRQ-safe -> SOFTIRQ-unsafe lock order detected",
        "WARNING: HARDIRQ-safe -> HARDIRQ-unsafe lock order detected",
        "WARNING: Nested lock was not taken",
        "WARNING: bad contention detected!",
        "WARNING: held lock freed!",
        "WARNING: python3/99 still has locks held!",
        "INFO: lockdep is turned off.",
    ],
    "oops": [
        "Oops: 0000 [#1] PREEMPT SMP PTI",
        "general protection fault, probably for non-canonical address 0xdead000000000108: 0000",
        "Internal error: Oops: 0000000096000004 [#1] SMP",
        "Unable to handle kernel paging request at virtual address ffff800000000000",
        "traps: PANIC: double fault, error_code: 0x0",
        "invalid opcode: 0000 [#1] PREEMPT SMP",
    ],
    "KASAN": [
        "KASAN: null-ptr-deref in range [0x0000000000000008-0x000000000000000f]",
        "KASAN: probably user-memory-access in range [0x0000000041414140-0x0000000041414147]",
        "UBSAN: array-index-out-of-bounds in walk.c:99:3",
    ],
    "bad page": [
        "mm/pgtable-generic.c:51: bad pmd 000000007c7a5e1b(80000001234008e7)",
        "mm/pgtable-generic.c:40: bad pud 000000007c7a5e1b(80000001234008e7)",
        "mm/pgtable-generic.c:29: bad p4d 000000007c7a5e1b(80000001234008e7)",
    ],
    "stall": [
        "rcu: INFO: rcu_preempt self-detected stall on CPU",
        "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        "rcu: rcu_preempt kthread starved for 5000 jiffies!",
        "rcu: rcu_preempt kthread timer wakeup didn't happen for 5000 jiffies! g1 f0x0",
        "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-.... }",
    ],
    "hung task": ["INFO: task ptscope:412 blocked for more than 120 seconds."],
    "lockup": [
        "BUG: soft lockup - CPU#0 stuck for 22s! [churn:231]",
        "watchdog: BUG: soft lockup - CPU#1 stuck for 134s! [walker:231]",
        "Watchdog detected hard LOCKUP on cpu 1",
    ],
    "panic": ["Kernel panic - not syncing: Fatal exception"],
    "refcount": ["refcount_t: underflow; use-after-free."],
}
LINES = [(kind, line) for kind, lines in REPORTS.items() for line in lines]


def test_an_ordinary_log_has_no_report() -> None:
    assert splat.find(BOOT) == []


@pytest.mark.parametrize(("kind", "line"), LINES, ids=[line[:40] for _, line in LINES])
def test_a_planted_report_is_found(kind: str, line: str) -> None:
    log = BOOT + f"[    9.000000] {line}\n[    9.000001] Call Trace:\n"
    (report,) = splat.find(log)
    assert report.line == len(BOOT.splitlines()) + 1
    assert any(line in shown for shown in report.lines)
    # Some first lines have two of the words; what counts is that the report is found and shown.
    assert report.kind == kind or report.kind in ("BUG", "lockdep")


def test_a_report_is_shown_to_its_end_and_counted_once() -> None:
    trace = "\n".join(f"[    9.1] frame{number}+0x1/0x2" for number in range(10))
    log = (
        f"{BOOT}[    9.0] WARNING: CPU: 0 PID: 9 at mm/mmap.c:1 f+0x0/0x1\n{trace}\n"
        "[    9.2] RIP: 0010:general protection fault is only part of it\n"
        "[    9.3] ---[ end trace 0000000000000000 ]---\n[    9.4] after\n"
        "[   10.0] Kernel panic - not syncing: Fatal exception\n"
    )
    first, second = splat.find(log)
    assert first.kind == "WARNING"
    assert "end trace" in first.lines[-1]
    assert any("frame9" in line for line in first.lines)
    assert second.kind == "panic"


CIRCULAR = """\
[    9.1] ======================================================
[    9.1] WARNING: possible circular locking dependency detected
[    9.1] 6.12.117 #1 Tainted: G           O
[    9.1] ------------------------------------------------------
[    9.1] python3/99 is trying to acquire lock:
[    9.1]  *** DEADLOCK ***
[    9.1] stack backtrace:
[    9.1]  <TASK>
[    9.1]  </TASK>
"""
FREED = """\
[    9.2] ==================================================================
[    9.2] BUG: KASAN: slab-use-after-free in use_after_free+0x46/0x60 [ptscope]
[    9.2] Read of size 8 at addr ffff888001234570 by task python3/99
[    9.2]  <TASK>
[    9.2]  </TASK>
"""
WANTED = (r"possible circular locking", r"KASAN: slab-use-after-free in use_after_free\S+ \[")


def test_reports_that_are_wanted_are_no_failure() -> None:
    verdict = splat.judge(BOOT + CIRCULAR + FREED, WANTED)
    assert (verdict.unexpected, verdict.missing) == ((), ())


def test_any_other_report_is_one() -> None:
    other = FREED.replace("use_after_free+", "walk_ptes+")
    verdict = splat.judge(BOOT + CIRCULAR + other + FREED, WANTED)
    assert [report.first for report in verdict.unexpected] == [other.splitlines()[1]]
    assert verdict.missing == ()


def test_a_report_is_wanted_once() -> None:
    verdict = splat.judge(BOOT + CIRCULAR + FREED + FREED, WANTED)
    assert len(verdict.unexpected) == 1


def test_the_lack_of_a_wanted_report_is_a_failure() -> None:
    assert splat.judge(BOOT + CIRCULAR, WANTED).missing == WANTED[1:]
    assert splat.judge(BOOT, WANTED).missing == WANTED
    # what only looks like it, further down in another report, is not it
    assert splat.judge(BOOT + FREED, (r"Read of size 8",)).missing == (r"Read of size 8",)


def machine_in(folder: Path) -> Machine:
    """A machine that is never started; its console's log is in ``folder``."""
    console = folder / "console.log"
    return Machine(
        ARCHES["amd64"], VARIANTS["5-level"], Accel("tcg", ""), folder, "6.12", folder, console)


def judged(folder: Path, log: str, expected: tuple[str, ...]) -> str:
    """What a guest that left this log is said to have done wrong, "" for nothing."""
    machine = machine_in(folder)
    machine.log.write_text(log)
    guest = Guest(machine, expected=expected)
    try:
        guest.check()
        guest.check_all_said()
    except Splat as error:
        return error.cause
    return ""


def test_a_guest_s_run_fails_by_what_its_kernel_says_and_by_what_it_does_not(
    tmp_path: Path,
) -> None:
    assert judged(tmp_path, BOOT, ()) == ""
    assert "possible circular" in judged(tmp_path, BOOT + CIRCULAR, ())
    assert "slab-use-after-free" in judged(tmp_path, BOOT + CIRCULAR + FREED, WANTED[:1])
    assert judged(tmp_path, BOOT + CIRCULAR + FREED, WANTED) == ""
    missing = judged(tmp_path, BOOT + CIRCULAR, WANTED)
    assert "did not report" in missing
    assert WANTED[1] in missing


def test_why_a_module_was_refused() -> None:
    assert [line.split("] ")[1].split()[0] for line in splat.about_module(BOOT)] == ["ptscope:"] * 3
    lockdown = (
        "[    0.400000] Lockdown: swapper/0: hibernation is restricted; see man kernel_lockdown.7"
    )
    refusal = (
        "[    5.1] Lockdown: insmod: unsigned module loading is restricted; see man"
        " kernel_lockdown.7"
    )
    assert splat.about_module(f"{lockdown}\n{refusal}\n") == [refusal]
    many = "\n".join(f"line {number}" for number in range(20))
    assert splat.about_module(many) == [f"line {number}" for number in range(12, 20)]

KASAN_AT_BOOT = """\
[    0.005523] ==================================================================
[    0.005523] BUG: KASAN: wild-memory-access in do_raw_spin_lock+0x10b/0x250
[    0.005523] Write of size 4 at addr ff1100010005a8a8 by task swapper/0/0
[    0.005523]  asm_common_interrupt+0x26/0x40
[    0.005523] RIP: 0010:memset+0x0/0x20
[    0.005523]  identify_cpu+0x269/0x1d40
[    0.005523]  arch_cpu_finalize_init+0x25/0x390
[    0.005523]  </TASK>
"""


@pytest.mark.parametrize(
    ("log", "known"),
    [
        (BOOT + KASAN_AT_BOOT, True),
        (BOOT, False),
        # The same report from elsewhere is a finding, and so is another report from there.
        (KASAN_AT_BOOT.replace("identify_cpu", "walk_table"), False),
        (KASAN_AT_BOOT.replace("wild-memory-access", "slab-use-after-free"), False),
    ],
)
def test_a_mistake_of_the_kernel_at_boot_is_known(log: str, known: bool) -> None:
    assert (splat.known_at_boot(log) is not None) is known


@pytest.mark.parametrize(("spoiled", "boots"), [(0, 1), (1, 2), (2, 3), (9, 3)])
def test_a_spoiled_guest_is_booted_again_a_few_times(
    spoiled: int, boots: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After the last boot its report counts as any other."""
    booted: list[str] = []

    def boot(guest: Guest) -> None:
        booted.append(KASAN_AT_BOOT if len(booted) < spoiled else BOOT)

    monkeypatch.setattr(Guest, "_boot", boot)
    monkeypatch.setattr(Guest, "log", lambda guest: booted[-1])
    with Guest(machine_in(tmp_path)) as guest:
        assert len(booted) == boots
        if spoiled >= boots:
            with pytest.raises(Splat, match="wild-memory-access"):
                guest.check()
        else:
            guest.check()
