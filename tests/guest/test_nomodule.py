# SPDX-License-Identifier: GPL-2.0-or-later
"""A guest in which the module was not loaded: it is there, and fits."""

from __future__ import annotations

import command
import witness
from puppet import Puppet


def test_doctor_names_the_module_and_how_to_load_it() -> None:
    people = command.run("doctor")
    assert people.status == 5, people.out + people.err
    assert "the module ptscope is not loaded" in people.out + people.err
    assert "insmod /lib/ptscope/ptscope.ko" in people.out + people.err
    answer = command.ptscope("doctor", "--json").json
    checks = {check["name"]: check for check in answer["checks"]}
    assert checks["module"]["status"] == "fail"
    assert "insmod" in checks["module"]["remedy"]
    assert checks["module file"]["status"] == "ok"
    assert (answer["source"], answer["exit_status"]) == ("pagemap", 5)


def test_walk_by_the_module_names_it() -> None:
    result = command.ptscope("walk", "self", "0x1000", "--source", "module")
    assert (result.status, result.out) == (5, "")
    assert "the module ptscope is not loaded" in result.err
    assert "remedy: as root: `insmod /lib/ptscope/ptscope.ko`" in result.err


def test_walk_falls_back_to_pagemap_and_says_so(puppet: Puppet) -> None:
    address = puppet.map(4096)
    puppet.touch("write", address)
    result = command.ptscope("walk", puppet.pid, hex(address), "--json")
    assert result.status == 0
    assert "only leaves" in result.err
    assert "insmod" in result.err
    walk = result.json
    assert walk["source"] == "pagemap"
    assert walk["leaves_only"] is True
    assert int(walk["mapping"]["pfn"], 16) == witness.page(puppet.pid, address).pfn
    assert (walk["mapping"]["state"], walk["effective"], walk["layout"]) == ("leaf", None, None)
    puppet.unmap(address, 4096)
    hole = command.walk(puppet.pid, address)
    assert hole["mapping"]["state"] == "none"
    assert hole["vma"] is None


def test_huge_pages_are_seen_without_the_module(puppet: Puppet) -> None:
    address = puppet.map(1 << 21, huge=21)
    puppet.touch("write", address)
    walk = command.walk(puppet.pid, address + 3 * 4096)
    assert walk["mapping"]["page_size"] == 1 << 21
    assert int(walk["mapping"]["pfn"], 16) == witness.page(puppet.pid, address + 3 * 4096).pfn


def test_kernel_half_and_comparison_need_the_module() -> None:
    for words in (("kernel", "0xffffffff81000000"), ("self", "0x1000", "--compare")):
        result = command.ptscope("walk", *words)
        assert result.status == 5
        assert "not loaded" in result.err


def test_layout_of_the_running_kernel_needs_the_module() -> None:
    result = command.ptscope("layout")
    assert result.status == 5
    assert "remedy" in result.err
    shipped = command.ptscope("layout", "--name", "debian-6.1-amd64", "--json")
    assert shipped.status == 0
    assert shipped.json["arch"] == "x86_64"
