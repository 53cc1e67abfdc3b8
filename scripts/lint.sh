#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# Every static check there is. Runs them all, then fails if any did.
cd "$(dirname "$0")/.." || exit 2
status=0

check() {
    printf '== %s\n' "$*"
    "$@" || status=1
}

check .venv/bin/ruff check --config pyharness/pyproject.toml pyharness scripts tests
check env MYPYPATH=pyharness/src .venv/bin/mypy --strict -p ptscope
check env MYPYPATH=scripts .venv/bin/mypy --strict -p vm
check env MYPYPATH=scripts:pyharness/src .venv/bin/mypy --strict scripts/dkms.py
check env MYPYPATH=pyharness/src:tests/guest .venv/bin/mypy --strict tests/guest
check env MYPYPATH=scripts:pyharness/src:tests/guest .venv/bin/mypy --strict tests/host
check shellcheck scripts/lint.sh
# Applets like setsid and insmod are what busybox makes of them.
check shellcheck -s dash scripts/vm/inside/init
check make -s -C kmod check KDIR="$(scripts/vm/main.py --quiet kdir)"
exit $status
