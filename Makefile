# SPDX-License-Identifier: GPL-2.0-or-later
# Every command a person or CI needs. `make` alone lists them.
VM = python3 scripts/vm/main.py
VARIANT ?=
# Text for a shell, a path, arguments: as they were typed, neither make nor the recipe's shell
# expands anything in them.
override RUN := $(value RUN)
override FILES := $(value FILES)
override TESTS := $(value TESTS)
export RUN FILES TESTS
boot_options = $(if $(KERNEL),--debian $(KERNEL)) $(if $(VARIANT),--variant $(VARIANT)) $(if $(FILES),--files "$$FILES") $(if $(SMP),--smp $(SMP)) $(VMFLAGS)

.DEFAULT_GOAL := help
.PHONY: help packages install uninstall build demo test matrix agree bench bench-repeat bench-others bench-alike model-long lint vm vm-shell vm-quick clean clean-cache

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

packages: ## install the Debian packages that the other targets need and that are missing
	@$(VM) packages

install: ## build, install and load ptscope.ko through DKMS (as root; BOOT=yes loads it at each boot)
	@python3 scripts/dkms.py install $(if $(BOOT),--boot $(BOOT))

uninstall: ## unload ptscope.ko and remove everything that make install has made
	@python3 scripts/dkms.py uninstall

build: packages ## make .venv with the package, fetch the newest kernel, build ptscope.ko for it
	@$(VM) build

demo: packages ## walk a live process inside a guest and compare every entry with pagemap
	@$(VM) demo $(if $(VARIANT),--variant $(VARIANT))

test: packages ## run all tests, on the host and inside guests (ONLY='host 5-level ...' for some)
	@$(VM) test $(foreach row,$(ONLY),--only $(row))

matrix: packages ## the guest tests on every kernel and in every variant (ONLY='7.2-arm64 lpa2 race ...')
	@$(VM) matrix $(foreach row,$(ONLY),--only $(row))

agree: build ## the C decoder against the reference one: a million values for each layout, a quarter of an hour
	@PTSCOPE_VALUES=1000000 .venv/bin/python -m pytest -q tests/host/test_compiled.py -k random_values

bench: packages ## what ways of reading page tables cost, in instructions (KERNEL='debian-6.12-amd64 ...')
	@$(VM) bench $(foreach name,$(KERNEL),--debian $(name)) $(VMFLAGS)

bench-repeat: packages ## what ptscope bench measures, in two guests: apart by 0.1 % or less (KERNEL='debian-6.1-amd64 ...')
	@$(VM) repeat $(foreach name,$(KERNEL),--debian $(name)) $(VMFLAGS)

bench-others: build ## ptscope bench beside perf bench, stress-ng, the kernel's mremap selftest and bare loops, on this machine
	@$(VM) others $(VMFLAGS)

bench-alike: build ## how often ptscope bench compare finds a difference where there is none, on this machine
	@.venv/bin/python tests/host/alike.py

model-long: packages ## the model of memory management, 20000 steps on each kernel (KERNEL='debian-6.1-amd64 ...' STEPS=N SEED=N)
	@$(VM) model $(foreach name,$(KERNEL),--debian $(name)) $(if $(STEPS),--steps $(STEPS)) $(if $(SEED),--seed $(SEED)) $(VMFLAGS)

lint: build ## ruff, mypy, the module's own checks
	@scripts/lint.sh

vm: packages ## run a command in a guest: make vm RUN='ptscope doctor' [FILES=DIR] [KERNEL=NAME] [VARIANT=pti] [SMP=2] [TIMEOUT=SECONDS, otherwise 600]
	@test -n "$$RUN" || { echo "usage: make vm RUN='command' [FILES=DIR] [VARIANT=NAME] [SMP=N] [TIMEOUT=SECONDS]" >&2; exit 2; }
	@$(VM) run $(boot_options) $(if $(TIMEOUT),--timeout $(TIMEOUT)) -- "$$RUN"

vm-shell: packages ## a shell in a guest: make vm-shell [FILES=DIR] [VARIANT=4-level]
	@$(VM) shell $(boot_options)

vm-quick: packages ## guest tests on a saved guest, in seconds: make vm-quick [TESTS='-k walk'] [VARIANT=pti]
	@$(VM) quick $(if $(VARIANT),--variant $(VARIANT)) --tests="$$TESTS"

clean: ## remove what was built in the checkout
	rm -rf build .venv
	$(MAKE) -s -C tests/guest clean

clean-cache: ## remove downloads and built guests from the cache
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/ptscope"
