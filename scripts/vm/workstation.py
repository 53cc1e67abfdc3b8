# SPDX-License-Identifier: GPL-2.0-or-later
"""A guest like somebody's own machine: DKMS, a compiler, the kernel's headers and the checkout.

All of it comes from the kernel's own suite, as there: that suite's compiler, its DKMS, its tools in
place of busybox's.
"""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

from . import base, cpio, module, overlay, paths, prepare, store
from .fetch import Fetched
from .prepare import Bootable, Options
from .qemu import Machine

CHECKOUT = "home/ptscope"
"""Where the checkout is in the guest."""

USERLAND = base.Userland(
    "workstation",
    (
        *base.PACKAGES,
        "base-files",
        "bash",
        "coreutils",
        "dash",
        "diffutils",
        "dkms",
        "findutils",
        "gcc",
        "grep",
        "kmod",
        "libelf1",
        "make",
        # DKMS makes a key and signs what it builds where there is openssl.
        "openssl",
        "sed",
        # What DKMS runs for a new kernel takes its messages from it.
        "sysvinit-utils",
    ),
    of_kernel=True,
    kept=(
        "usr/lib/*/libcrypto.so*",
        "usr/lib/*/libssl.so*",
        "usr/lib/ssl",
    ),
    dropped=(
        # dpkg-dev brings perl, and gcc what links and instruments programs of users.
        "usr/bin/*lto-dump*",
        "usr/bin/perl*",
        "usr/lib/*/lib[alt]san.so*",
        "usr/lib/*/libubsan.so*",
        "usr/lib/*/perl*",
        "usr/lib/gcc/*/*/lto1",
        "usr/share/perl*",
    ),
)


def headers_tree(fetched: Fetched) -> dict[str, cpio.Entry]:
    """The headers packages of a kernel, as they are when installed."""
    tree: dict[str, cpio.Entry] = {}
    links = {name: (fetched.modules / name).readlink() for name in ("build", "source")}
    for name, target in links.items():
        tree[f"usr/lib/modules/{fetched.release}/{name}"] = cpio.link(f"/usr/src/{target.name}")
    kbuild = [
        path.relative_to(fetched.root) for path in fetched.root.glob("usr/lib/linux-kbuild-*")
    ]
    # What these link to is among them, by paths that do not leave /usr.
    for folder in (*(Path("usr/src") / target.name for target in links.values()), *kbuild):
        tree |= cpio.from_dir(fetched.root / folder, f"{folder}/")
    # `fetch.relocate_headers` undone.
    for folder in {Path("usr/src") / target.name for target in links.values()}:
        makefile = tree[f"{folder}/Makefile"]
        text = makefile.content().replace(f"{fetched.root}/usr/src/".encode(), b"/usr/src/")
        tree[f"{folder}/Makefile"] = cpio.file(text, stat.S_IMODE(makefile.mode))
    return tree


def headers(fetched: Fetched) -> Path:
    """A cached archive of a kernel's headers."""
    name = f"headers-{fetched.release}"

    def make(partial: Path) -> None:
        with partial.open("wb") as out:
            cpio.write(headers_tree(fetched), out)

    key = store.digest(str(fetched.root), Path(__file__).read_bytes())
    final = store.make_file(paths.cache() / "images" / f"{name}-{key}.cpio", make, name)
    store.forget_others(final, f"{name}-????????????????.cpio")
    return final


def checkout() -> dict[str, cpio.Entry]:
    """What `make install` reads of the checkout."""
    tree = {
        f"{CHECKOUT}/{path.relative_to(paths.REPO)}": cpio.file(path)
        for path in (paths.REPO / "Makefile", paths.KMOD / "dkms.conf.in", *module.sources())
    }
    for folder in (paths.REPO / "scripts", paths.PACKAGE / "src" / "ptscope"):
        where = f"{CHECKOUT}/{folder.relative_to(paths.REPO)}"
        tree |= overlay.python_tree(folder, where, compiled=False)
    return tree


def machine(bootable: Bootable, options: Options, scratch: Path) -> Machine:
    """The same guest with this user space and the checkout."""
    fetched = bootable.fetched
    assert fetched is not None, "a kernel of the user's own has no headers here"
    _, modules = bootable.parts
    parts = (base.base(bootable.kernel, USERLAND), modules, headers(fetched))
    extra = {
        **options.contents.extra,
        **checkout(),
        # The user space has no state of dpkg, and this is in a package.
        "var/lib/dkms": cpio.directory(),
    }
    contents = replace(options.contents, extra=extra)
    # Byte code of another suite's python would be of no use.
    kernel = replace(bootable.kernel, userland=bootable.kernel.suite)
    return prepare.machine(
        replace(bootable, kernel=kernel, parts=parts), replace(options, contents=contents), scratch
    )
