# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope decode` and `ptscope layout` as a person and as a program meet them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from ptscope.cli import run
from ptscope.decode.layout import Layout, load


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["decode", "0x8000000c2c063867", "--level", "pte"]) == 0
    assert capsys.readouterr().out == (
        "level    pte, 4 KiB\n"
        "raw      0x8000000c2c063867\n"
        "state    leaf: maps a page\n"
        "pa       0xc2c063000\n"
        "pfn      0xc2c063\n"
        "size     4 KiB\n"
        "access   rw-u\n"
        "page     accessed, dirty, soft-dirty, pkey 0\n"
        "bits     present(0) rw(1) user(2) accessed(5) dirty(6) soft-dirty(11) nx(63)\n"
        "layout   debian-6.1-amd64: 6.1.0-57-amd64, 5 levels\n"
    )


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["decode", "0x80082d6567965067", "--level", "PTE", "--set", "c_bit=51", "--json"]
    assert run(arguments) == 0
    entry = json.loads(capsys.readouterr().out)
    assert entry["pa"] == "0x2d6567965000"
    assert entry["encrypted"] is True
    assert (entry["layout"], entry["context"]) == ("debian-6.1-amd64", {"c_bit": 51})


def test_context_values(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "pti=true", "--set", "pkeys=FALSE", "--set", "c_bit=none"]
    assert run(["decode", "1", "--level", "pgd", *settings, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["context"] == {"pti": 1, "pkeys": 0, "c_bit": None}


@pytest.mark.parametrize(
    ("arguments", "cause", "remedy"),
    [
        ("0xzz --level pte", "'0xzz' is no entry", "0x"),
        ("8000000c2c063867 --level pte", "hex without 0x", "0x8000000c2c063867"),
        ("-1 --level pte", "entry -1 is negative", "entries are 0 to"),
        ("--lvel pte 1", "No such option", "decode --help"),
        ("0x10000000000000000 --level pte", "64 bits", "0xffffffffffffffff"),
        ("1", "no level", "pgd, p4d, pud, pmd, pte"),
        ("1 --level leaf", "no level is called 'leaf'", "pgd, p4d, pud, pmd, pte"),
        ("1 --level p4d --set paging_levels=4", "folded", "pgd, pud, pmd, pte"),
        ("1 --level pte --layout nope", "'nope'", "debian-6.1-amd64"),
        ("1 --level pte --set colour=1", "'colour'", "paging_levels, c_bit"),
        ("1 --level pte --set c_bit=5", "c_bit cannot be 5", "address bit"),
        ("1 --level pte --set c_bit=x", "'x'", "number, true, false or none"),
        ("1 --level pte --set c_bit", "KEY=VALUE", "c_bit=47"),
    ],
)
def test_mistakes(
    arguments: str, cause: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["decode", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    said, advised = err.splitlines()
    assert out == ""
    assert said.startswith("ptscope: ")
    assert cause in said
    assert remedy in advised

    assert run(["decode", *arguments.split(), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["kind"], error["exit_status"]) == ("UsageError", 2)
    assert cause in error["cause"]


def test_usage_shows_the_level_as_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["decode", "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: ptscope decode --level LEVEL [OPTIONS] RAW\n")


def test_layout_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layout", "--name", "debian-6.1-amd64", "--json"]) == 0
    assert Layout.from_json(capsys.readouterr().out) == load("debian-6.1-amd64")
    assert run(["layout", "--name", "debian-6.1-amd64", "--set", "paging_levels=4"]) == 0
    text = capsys.readouterr().out
    assert "pgd      shift 39, 512 entries of 512 GiB\n" in text
    assert "folded   p4d\n" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_layout_is_renamed_for_shipping(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layout", "--name", "debian-6.1-amd64", "--as", "mine", "--json"]) == 0
    written = Layout.from_json(capsys.readouterr().out)
    assert (written, written.name) == (load("debian-6.1-amd64"), "mine")


def test_layout_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layout", "--list"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert names == sorted(names)
    assert {"debian-5.10-amd64", "debian-7.2-arm64-16k", "debian-6.12-riscv64"} <= set(names)


def test_decoding_needs_nothing_heavy() -> None:
    """It has to start fast, and to work where the C core cannot be loaded."""
    script = (
        "import sys\n"
        "from ptscope.cli import run\n"
        "assert run(['decode', '0x67', '--level', 'pmd']) == 0\n"
        "heavy = {'rich', 'cffi', '_cffi_backend', 'psutil', 'ptscope._core'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
