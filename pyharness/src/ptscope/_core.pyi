# SPDX-License-Identifier: GPL-2.0-or-later
from typing import Any

ffi: Any
lib: Any
