# The entry point for all tasks: `make demo`, `make test`, `make check`, `make bench`. Each target installs
# the packages that it needs.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help build archive archive-test demo performance picture test models clients check bench bench-quick bench-check mutants sabotage long fuzz-check instructions skew soak faults lab lab-build lab-test install install-lab install-service install-completions install-extcap deb deb-test service-test publish-check fresh nics nics-core hosts confined vm pcap install-pcap install-pcap-system uninstall-pcap c install-c uninstall-c deps-build deps-demo deps-duckdb deps-test deps-bench deps-lab deps-dpdk deps-fresh deps-vm deps-aarch64 test-sim test-model test-miri aarch64 race deps-check

# Programs that use the kernel's interfaces run as root; compilers do not.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)
# Cargo's directory, also if the environment names another one.
TARGET := $(or $(CARGO_TARGET_DIR),target)
WIRECAP := $(TARGET)/release/wirecap
# The lab is a separate workspace with the same target folder.
LAB := --manifest-path lab/Cargo.toml --target-dir $(abspath $(TARGET))
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
SYSCONFDIR ?= /etc
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# `cargo test` runs test programs as root. Cargo refuses an empty runner.
ifneq ($(SUDO),)
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER := $(SUDO)
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER := $(SUDO)
endif

# Only targets with ## are listed: those that people type. docs/testing.md has the others.
help: ## Lists the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /make \1	/' | expand -t 26

build: deps-build ## The wirecap command, in target/release
	cargo build --release --locked -p wirecap-cli

# A separate workspace that no other target compiles. It needs Rust 1.94.
archive: deps-build ## The wirecap-archive command, in archive/target/release: SQL over recordings; long to compile
	cargo build --release --locked --manifest-path archive/Cargo.toml

archive-test: deps-build deps-demo deps-duckdb ## Format, lints and tests of wirecap-archive
	@.ci/need tcpdump:tcpdump tshark:tshark unshare:util-linux zstd:zstd
	cargo fmt --manifest-path archive/Cargo.toml --check
	cargo test --no-run --all-targets --locked --manifest-path archive/Cargo.toml
	# Runs clippy with the dependencies just built. cargo clippy would build them again, which takes six minutes.
	RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings \
	  cargo test --no-run --all-targets --locked --manifest-path archive/Cargo.toml
	cargo build --locked -p wirecap-cli # the recorder, whose segments the tests upload
	cargo test --locked --manifest-path archive/Cargo.toml

# Experiments run the command.
lab-test: deps-test ## Tests of the lab, live and simulated: minutes
	cargo build --locked -p wirecap-cli
	cargo test $(LAB) --workspace --locked --no-fail-fast

# The build that the tests use, in a minute. The optimized build of `make build` takes three.
demo: deps-build deps-demo ## Sends, captures and accounts for packets between two temporary namespaces: a minute
	cargo build --locked -p wirecap-cli
	$(SUDO) $(TARGET)/debug/wirecap demo

# Uses cargo check, not cargo-fuzz: a check that the targets compile needs no sanitizers.
fuzz-check: deps-build # The fuzz targets compile. They need a nightly toolchain only to run.
	@.ci/need g++:g++
	cargo check --locked --manifest-path fuzz/Cargo.toml --target-dir target/fuzz-check

# Most tests wait for the kernel most of the time, hence two threads per processor.
test: export RUST_TEST_THREADS ?= $(shell echo $$((2 * $$(nproc))))
test: deps-test ## All tests of the product, on real veth pairs where a kernel is needed: ten minutes, and three for the build
	.ci/test
	.ci/at-least 40 cargo test --locked -p wirecap-savefile --no-default-features --lib

models: test-sim test-model test-miri ## 100,000 random schedules of the simulator, loom, and Miri: minutes

test-sim: deps-build # 100,000 random schedules of the simulator, and the papers' whole trace; a debug build runs fewer
	.ci/at-least 50 cargo test --locked -p wirecap --lib --profile quick -- sim::
	.ci/at-least 15 cargo test $(LAB) --locked --lib --profile quick -- paper::
	.ci/at-least 6 cargo test $(LAB) --locked --test paper --profile quick

# Installs the clients; the table in tests/clients lists each with its package. A client that cannot be
# installed or built is skipped.
clients: deps-test ## Runs some forty unmodified libpcap programs and libpcap's test programs on the drop-in and on libpcap
	.ci/need setsid:util-linux stdbuf:coreutils \
	  $$(cargo test -q --locked -p wirecap-pcap --test clients -- --needs | tr ' ' '\n' | sort -u) || true
	cargo test --locked --no-fail-fast -p wirecap-pcap --test clients --test testprogs

test-model: deps-build # Every interleaving of the rings' and queues' atomics (loom)
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 \
	  .ci/at-least 12 cargo test --locked -p wirecap --lib --profile quick --target-dir target/loom -- model

# The modules with unsafe code that need no kernel, and the modules that exercise them, in two halves.
MIRI_SCHEDULES := sim::tests::
MIRI_OTHERS := sim:: forward:: sieve:: kernel_ring:: umem:: ledger:: group:: sys::memory:: --skip $(MIRI_SCHEDULES)

# Miri needs a nightly toolchain, which .ci/nightly names and installs; without one the target reports SKIP. Miri uses
# one processor, so the halves run in parallel.
test-miri: deps-build
	@toolchain=$$(.ci/nightly miri rust-src) || { \
	  echo "SKIP: Miri needs a nightly toolchain (rustup toolchain install nightly)"; \
	  [ -z "$${WIRECAP_NO_SKIP:-}" ] || exit 1; \
	  exit 0; \
	}; \
	export MIRIFLAGS=-Zmiri-disable-isolation; \
	miri="cargo +$$toolchain miri test --locked -p wirecap --lib --target-dir target/miri"; \
	$$miri --no-run; \
	.ci/at-least 20 $$miri -- $(MIRI_SCHEDULES) & schedules=$$!; \
	failed=; \
	.ci/at-least 70 $$miri -- $(MIRI_OTHERS) || failed=1; \
	wait $$schedules || failed=1; \
	[ -z "$$failed" ]

# Unit tests, since qemu-user does not emulate bpf(2), AF_XDP and packet rings; tests that need them are skipped.
AARCH64 := aarch64-unknown-linux-gnu
aarch64: export CC_aarch64_unknown_linux_gnu := aarch64-linux-gnu-gcc
aarch64: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER := aarch64-linux-gnu-gcc
aarch64: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER := qemu-aarch64 -L /usr/aarch64-linux-gnu
aarch64: export WIRECAP_NO_SKIP :=
aarch64: deps-aarch64 # Builds everything for aarch64, and runs the unit tests under qemu-user: minutes
	rustup target add $(AARCH64)
	.ci/at-least 500 cargo test --locked --no-fail-fast --workspace --lib --bins --target $(AARCH64) \
	  -- $$(sed '/^#/d; /./s/^/--skip /' .ci/aarch64-untried)
	.ci/at-least 50 cargo test $(LAB) --locked --no-fail-fast --workspace --lib --bins --target $(AARCH64)
	@sed -n 's/^\([^#]\)/not tried: \1/p' .ci/aarch64-untried

# ThreadSanitizer sees only accesses of this process; loom and Miri test the kernel's half of the rings. It intercepts mmap and
# munmap only in libc, so rustix calls libc; otherwise ThreadSanitizer reports races on addresses that two tests use in turn.
# report_thread_leaks=0: one test leaves a thread behind. One test is skipped because its reader cannot keep up with 200,000
# packets/s. The drop-in is not tested in C programs, because they do not contain the sanitizer's runtime.
RACE = RUSTFLAGS='-Zsanitizer=thread --cfg sanitized --cfg rustix_use_libc' TSAN_OPTIONS=report_thread_leaks=0 WIRECAP_NO_SKIP=1 \
	.ci/at-least $(1) cargo +$$(.ci/nightly rust-src) test -Zbuild-std --locked --no-fail-fast --target x86_64-unknown-linux-gnu \
	--target-dir target/race
race: deps-test # The engine's tests and the drop-in's unit tests under ThreadSanitizer, with a nightly toolchain: half an hour
	$(call RACE,400) -p wirecap --lib --tests -- --skip joining::nothing_is_lost_when_others_join_and_leave
	$(call RACE,15) -p wirecap-pcap --lib

# A minimal toolchain lacks these two.
deps-check: deps-build
	@{ cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 || rustup component add rustfmt clippy

check: deps-check fuzz-check ## Format, lints and documentation, warnings denied
	cargo fmt --all --check
	cargo fmt --manifest-path lab/Cargo.toml -p wirecap-lab -p wirecap-nics --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy $(LAB) --workspace --all-targets --locked -- -D warnings
	cargo clippy --locked -p wirecap -- -D warnings # as users build it: without the simulator
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	RUSTDOCFLAGS="-D warnings" cargo doc $(LAB) --workspace --no-deps --locked

bench: build deps-bench ## Measures wirecap and its rivals, as ratios
	cargo bench --workspace --locked
	cargo bench $(LAB) --locked

bench-quick: deps-test # Runs the benches live, instructions and pcap_loop for a moment each, to see that they work: two minutes
	cargo test --locked --workspace --bench instructions --bench pcap_loop
	cargo build --locked -p wirecap-cli
	cargo test $(LAB) --locked --bench live

# A bench that misses a goal does not prevent the others from running. The results are in target/goals.csv.
BENCHES ?= filter instructions live pcap_loop
PACKAGE_OF_filter := -p wirecap-filter
PACKAGE_OF_instructions := -p wirecap-cli
PACKAGE_OF_live := $(LAB)
PACKAGE_OF_pcap_loop := -p wirecap-pcap
bench-check: export WIRECAP_GOALS := $(abspath $(TARGET))/goals.csv
bench-check: build deps-bench # Measures on an idle machine, and fails if a goal is missed, or the machine was not quiet: two hours
	rm -f "$$WIRECAP_GOALS"
	failed=; \
	$(foreach bench,$(BENCHES),cargo bench --locked $(PACKAGE_OF_$(bench)) --bench $(bench) -- --check || failed+=" $(bench)";) \
	[ -z "$$failed" ] || { echo "goals missed or void:$$failed" >&2; exit 1; }

CARGO_MUTANTS := target/tools/bin/cargo-mutants
$(CARGO_MUTANTS):
	cargo install --locked --root target/tools cargo-mutants@27.1.0

# MUTANTS=N: how many of each crate; MUTANTS_SEED=N: another sample; MUTANTS_CRATES='NAME NAME': some crates. Results are in
# target/mutants.
mutants: deps-test $(CARGO_MUTANTS) # Changes 120 places of each crate, one at a time, and lists changes that no test finds: days
	.ci/mutants $${MUTANTS:-120} $${MUTANTS_SEED:-21} $(MUTANTS_CRATES)

# One build has all saboteurs, in a directory of its own: product builds have none. The list is .ci/sabotage.toml.
# SABOTEURS='NAME NAME' or SABOTEURS=--core selects some.
sabotage: deps-test ## Breaks each promise in turn, and checks that the test that guards it fails: minutes
	.ci/sabotage $(SABOTEURS)

# LONG=--list shows the state of each lane, LONG='--lane NAME' runs one, LONG='--for 8h' begins none after eight hours.
long: deps-long ## Runs every check that must hold and has not since the code that it covers changed (.ci/long.toml): days
	.ci/long $(LONG)

soak: deps-test # Records for an hour with a thousand rotations, and checks memory and descriptors
	WIRECAP_NO_SKIP=1 WIRECAP_SOAK_SECONDS=3600 WIRECAP_SOAK_ROTATIONS=1000 WIRECAP_SOAK_RATE=300000 \
	  .ci/at-least 1 cargo test --locked --release -p wirecap-cli --test faults -- --nocapture soak

faults: deps-test # Records to failing disks in all combinations, and kills a hundred recordings: minutes
	WIRECAP_NO_SKIP=1 WIRECAP_FAULTS=all WIRECAP_KILLS=100 cargo test --locked -p wirecap-cli --test faults -- --test-threads=1
	WIRECAP_NO_SKIP=1 WIRECAP_FAULTS=all WIRECAP_STALL_SECONDS=10 WIRECAP_STALL_RATE=200000 \
	  .ci/at-least 1 cargo test --locked --release -p wirecap-cli --test faults -- a_stalled_disk

skew: deps-test # Skewed loads of twenty seconds, captured, forwarded and on the drop-in, instead of five: 15 minutes
	WIRECAP_NO_SKIP=1 WIRECAP_SKEW_SECONDS=20 .ci/at-least 6 cargo test --locked -p wirecap --test group -- skew::
	WIRECAP_NO_SKIP=1 WIRECAP_SKEW_SECONDS=20 .ci/at-least 1 cargo test --locked -p wirecap-cli --test forward -- load::with_heavy
	WIRECAP_NO_SKIP=1 WIRECAP_SKEW_SECONDS=20 .ci/at-least 2 cargo test --locked -p wirecap-pcap --test group -- heavy_handlers the_statistics

instructions: deps-bench # Counts instructions per packet without a kernel, and fails if they exceed the committed baseline
	cargo bench --locked -p wirecap-cli --bench instructions -- --check

lab-build: deps-build ## The wirecap-lab program, in target/release
	cargo build --release $(LAB) --locked

lab: build lab-build deps-lab ## Runs the lab on this machine, with wirecap and the common capture tools: minutes
	$(SUDO) $(TARGET)/release/wirecap-lab report --quick

# QEMU, a kernel and a small system are unpacked from Debian's archive into target/nics; nothing is installed.
VM := lab/nics/vm/run
nics: build pcap deps-vm ## Tests the engine with the drivers of NICs that a virtual machine emulates: minutes
	cargo build --release $(LAB) --locked -p wirecap-nics
	$(VM) $(TARGET)/release/wirecap-nics $(CHECKS)

# The machine's kernel can build every kind of host, so none is skipped. NICS=igb: the client's cable connects two NICs.
hosts: deps-build deps-vm # Tests that no capture cuts off a host, in the virtual machine: kinds of hosts that this kernel lacks, too
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$(CURDIR)/$(VM) env WIRECAP_WHOLE_KERNEL=1 $(if $(NICS),WIRECAP_HOSTS_NICS=$(NICS))" \
	  cargo test --locked --profile quick -p wirecap-cli --test hosts -- --test-threads=$(if $(NICS),1,3) $(ROWS)

confined: pcap deps-vm # Tests tcpdump on the drop-in under Debian's AppArmor profile, in the virtual machine
	$(SUDO) rm -rf target/confined
	$(MAKE) --no-print-directory install-pcap DESTDIR=$(CURDIR)/target/confined
	$(VM) env WIRECAP_NO_SKIP=1 crates/wirecap-pcap/tests/confined.sh target/confined

# A separate directory: this build has other features, and would replace the command that concurrent tests run.
nics-core: deps-build deps-vm # The part of nics that CI runs
	cargo build --profile quick --locked -p wirecap-cli --target-dir $(abspath $(TARGET))/nics-core
	cargo build --profile quick --locked -p wirecap-nics --manifest-path lab/Cargo.toml --target-dir $(abspath $(TARGET))/nics-core
	$(VM) $(TARGET)/nics-core/quick/wirecap-nics --core

vm: deps-vm # Runs a command in the virtual machine: make vm RUN='ip -br link'; WIRECAP_VM_SYSTEMD=1: as a service of systemd
	$(VM) $(if $(RUN),bash -c '$(RUN)')

# The files must already be built, with `make build pcap c` as the user who compiles. No install target
# builds, since it may run as root or for a package. All of them use DESTDIR, PREFIX, BINDIR, LIBDIR,
# INCLUDEDIR, MANDIR and SYSCONFDIR.
define built
	@[ -e $(1) ] || { echo "$(1) does not exist: run 'make $(2)' first" >&2; exit 1; }
endef
# Only an installation on this machine updates the loader's cache; a package does not.
LDCONFIG = [ -n "$(DESTDIR)" ] || $(SUDO) ldconfig

install: ## Installs the wirecap command and its man pages, after `make build`
	$(call built,$(WIRECAP),build)
	$(SUDO) install -Dm755 $(WIRECAP) $(DESTDIR)$(BINDIR)/wirecap
	$(SUDO) $(WIRECAP) man-pages $(DESTDIR)$(MANDIR)/man1

install-lab: ## Installs the wirecap-lab program and its man pages, after `make lab-build`
	$(call built,$(TARGET)/release/wirecap-lab,lab-build)
	$(SUDO) install -Dm755 $(TARGET)/release/wirecap-lab $(DESTDIR)$(BINDIR)/wirecap-lab
	$(SUDO) $(TARGET)/release/wirecap-lab man-pages $(DESTDIR)$(MANDIR)/man1

UNITDIR ?= $(PREFIX)/lib/systemd/system
install-service: ## Installs the systemd service, wirecap@NAME, which records with the settings of /etc/wirecap/NAME.conf
	$(SUDO) install -d $(DESTDIR)$(UNITDIR) $(DESTDIR)$(SYSCONFDIR)/wirecap/dedicated
	for unit in wirecap@ wirecap-dedicate; do \
	  sed 's|/usr/bin/wirecap|$(BINDIR)/wirecap|' packaging/systemd/$$unit.service | $(SUDO) tee $(DESTDIR)$(UNITDIR)/$$unit.service >/dev/null || exit 1; \
	done
	$(SUDO) install -Dm644 packaging/systemd/wirecap.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/wirecap.conf
	$(SUDO) install -Dm644 packaging/systemd/wirecap.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/wirecap.conf
	$(SUDO) install -Dm644 packaging/eth0.conf $(DESTDIR)$(PREFIX)/share/doc/wirecap/examples/eth0.conf
	[ -n "$(DESTDIR)" ] || { $(SUDO) systemd-sysusers; $(SUDO) systemd-tmpfiles --create; $(SUDO) systemctl daemon-reload; $(SUDO) systemctl enable wirecap-dedicate; }

BASHDIR ?= $(PREFIX)/share/bash-completion/completions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
install-completions: ## Installs completions for bash, fish and zsh, after `make build`
	$(call built,$(WIRECAP),build)
	$(WIRECAP) completions target/completions
	$(SUDO) install -Dm644 target/completions/wirecap.bash $(DESTDIR)$(BASHDIR)/wirecap
	$(SUDO) install -Dm644 target/completions/wirecap.fish $(DESTDIR)$(FISHDIR)/wirecap.fish
	$(SUDO) install -Dm644 target/completions/_wirecap $(DESTDIR)$(ZSHDIR)/_wirecap

# Debian uses /usr/lib/x86_64-linux-gnu/wireshark/extcap; `tshark -G folders` prints the directory.
EXTCAPDIR ?= $(LIBDIR)/wireshark/extcap
install-extcap: ## Lists wirecap's interfaces in Wireshark and tshark (EXTCAPDIR)
	$(SUDO) install -Dm755 packaging/extcap/wirecap $(DESTDIR)$(EXTCAPDIR)/wirecap

# The packages contain the files that `make build lab-build pcap c` has built. Build them on the oldest supported
# release: Debian 12.
deb: build lab-build pcap c deps-deb ## Debian packages of the command, the lab, the drop-in and the C library, in target/deb
	packaging/deb $(VERSION)

deb-test: deps-deb-test # Installs these packages on fresh Debian 12 and 13, tests them and removes them: minutes
	$(SUDO) packaging/deb-test bookworm trixie

fresh: deps-fresh # Tries make demo and make test on fresh Debian 12 and 13, and .ci/run on 13: hours; continues where it ended
	$(SUDO) .ci/fresh bookworm demo test
	$(SUDO) .ci/fresh trixie demo test ci

service-test: deps-vm deps-deb-test # Tests the package's service in the virtual machine: restart, reload, upgrade, reboot, removal: minutes
	$(SUDO) packaging/service-test

LIBRARIES := wirecap-units wirecap-savefile wirecap-filter wirecap wirecap-recorder wirecap-index
publish-check: deps-build # Runs cargo publish for the libraries without publishing
	cargo publish --dry-run --locked --allow-dirty $(addprefix -p ,$(LIBRARIES))

# All names of the drop-in under which programs load libpcap. They are links: as copies they would be loaded
# side by side.
PCAP_NAMES := libpcap.so.0.8 libpcap.so
# The libpcap soname in this system's programs. Debian and Ubuntu: libpcap.so.0.8; Fedora, Arch, SUSE and
# upstream: libpcap.so.1. It is detected, or set by `make pcap PCAP_SONAME=libpcap.so.1`.
PCAP_SONAME ?= $(shell .ci/pcap-soname)
PCAP_LIBRARY ?= $(TARGET)/release/libwirecap_pcap.so
pcap: deps-build ## The libpcap drop-in, in target/release/pcap, and the command that runs programs on it
	WIRECAP_PCAP_SONAME=$(PCAP_SONAME) cargo build --release --locked -p wirecap-pcap
	install -Dm644 $(PCAP_LIBRARY) $(TARGET)/release/pcap/libpcap.so.1
	for name in $(PCAP_NAMES); do ln -sf libpcap.so.1 $(TARGET)/release/pcap/$$name; done
	sed 's|@LIBRARIES@|$(abspath $(TARGET))/release/pcap|' crates/wirecap-pcap/wirecap-pcap > $(TARGET)/release/wirecap-pcap
	chmod +x $(TARGET)/release/wirecap-pcap

PCAP_FOLDER := $(LIBDIR)/wirecap
PCAP_PATH := $(SYSCONFDIR)/ld.so.conf.d/000-wirecap.conf
PCAP_PROFILE := $(SYSCONFDIR)/apparmor.d/abstractions/wirecap-pcap
install-pcap: ## Installs the drop-in for the command wirecap-pcap, after `make pcap`; other programs are not affected
	$(call built,$(PCAP_LIBRARY),pcap)
	$(SUDO) install -Dm644 $(PCAP_LIBRARY) $(DESTDIR)$(PCAP_FOLDER)/libpcap.so.1
	for name in $(PCAP_NAMES); do $(SUDO) ln -sf libpcap.so.1 $(DESTDIR)$(PCAP_FOLDER)/$$name; done
	$(SUDO) install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(dir $(PCAP_PROFILE))
	sed 's|@LIBRARIES@|$(PCAP_FOLDER)|' crates/wirecap-pcap/wirecap-pcap | $(SUDO) tee $(DESTDIR)$(BINDIR)/wirecap-pcap >/dev/null
	$(SUDO) chmod 755 $(DESTDIR)$(BINDIR)/wirecap-pcap
	sed 's|@LIBRARIES@|$(PCAP_FOLDER)|' crates/wirecap-pcap/apparmor | $(SUDO) tee $(DESTDIR)$(PCAP_PROFILE) >/dev/null
	$(SUDO) install -Dm644 crates/wirecap-pcap/wirecap-pcap.1 $(DESTDIR)$(MANDIR)/man1/wirecap-pcap.1

# Not for packages, because a change of the loader's path affects all programs. A package installs the command
# wirecap-pcap, or, if the user chooses so, diverts the system's library (dpkg-divert).
install-pcap-system: ## Installs the drop-in before the system's libpcap, for all programs of this machine
	@[ -z "$(DESTDIR)" ] || { echo "install-pcap-system is for this machine, not for a package (DESTDIR)" >&2; exit 1; }
	$(call built,$(PCAP_LIBRARY),pcap)
	@readelf -d $(PCAP_LIBRARY) | grep -qF 'soname: [$(PCAP_SONAME)]' || { \
	  echo "this system's programs ask for $(PCAP_SONAME), and $(PCAP_LIBRARY) has another name: run 'make pcap' again" >&2; exit 1; }
	$(MAKE) --no-print-directory install-pcap
	$(SUDO) install -d $(dir $(PCAP_PATH))
	echo '$(PCAP_FOLDER)' | $(SUDO) tee $(PCAP_PATH) >/dev/null
	$(SUDO) ldconfig
	@ldconfig -p | grep -F '$(PCAP_SONAME) ' | head -n 1 | grep -qF '$(PCAP_FOLDER)/' || { \
	  echo "the loader still finds another $(PCAP_SONAME) first; see ldconfig -p" >&2; exit 1; }

uninstall-pcap: ## Undoes install-pcap and install-pcap-system
	! grep -qxF '$(PCAP_FOLDER)' $(DESTDIR)$(PCAP_PATH) 2>/dev/null || $(SUDO) rm $(DESTDIR)$(PCAP_PATH)
	$(SUDO) rm -rf $(DESTDIR)$(PCAP_FOLDER) $(DESTDIR)$(BINDIR)/wirecap-pcap $(DESTDIR)$(PCAP_PROFILE)
	$(SUDO) rm -f $(DESTDIR)$(MANDIR)/man1/wirecap-pcap.1
	$(LDCONFIG)

c: deps-build ## The library of wirecap.h, in target/release
	cargo build --release --locked -p wirecap-c

C_LIBRARY ?= $(TARGET)/release/libwirecap_c.so
C_STATIC ?= $(C_LIBRARY:.so=.a)
C_SONAME := libwirecap.so.0
C_FILES := $(LIBDIR)/libwirecap.so.$(VERSION) $(LIBDIR)/$(C_SONAME) $(LIBDIR)/libwirecap.so $(LIBDIR)/libwirecap.a \
  $(LIBDIR)/pkgconfig/wirecap.pc $(INCLUDEDIR)/wirecap.h $(MANDIR)/man3/wirecap.3
install-c: ## Installs wirecap.h, its library and its manual page, after `make c`
	$(call built,$(C_LIBRARY),c)
	$(SUDO) install -Dm644 $(C_LIBRARY) $(DESTDIR)$(LIBDIR)/libwirecap.so.$(VERSION)
	$(SUDO) ln -sf libwirecap.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(C_SONAME)
	$(SUDO) ln -sf $(C_SONAME) $(DESTDIR)$(LIBDIR)/libwirecap.so
	$(SUDO) install -Dm644 $(C_STATIC) $(DESTDIR)$(LIBDIR)/libwirecap.a
	$(SUDO) install -Dm644 crates/wirecap-c/include/wirecap.h $(DESTDIR)$(INCLUDEDIR)/wirecap.h
	$(SUDO) install -Dm644 crates/wirecap-c/wirecap.3 $(DESTDIR)$(MANDIR)/man3/wirecap.3
	$(SUDO) install -d $(DESTDIR)$(LIBDIR)/pkgconfig
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' -e 's|@VERSION@|$(VERSION)|' \
	  crates/wirecap-c/wirecap.pc | $(SUDO) tee $(DESTDIR)$(LIBDIR)/pkgconfig/wirecap.pc >/dev/null
	$(LDCONFIG)

uninstall-c: ## Undoes install-c
	$(SUDO) rm -f $(addprefix $(DESTDIR),$(C_FILES))
	$(LDCONFIG)

TERMSNAP := target/tools/bin/termsnap
$(TERMSNAP):
	cargo install --locked --root target/tools termsnap@0.4.0

performance: deps-build # Writes the tables and pictures of docs/performance.md from the data in lab/results
	cargo run -q $(LAB) --locked --example pages

picture: build deps-demo $(TERMSNAP) # Writes docs/demo.svg, the demo's last screen, for the README
	LANG=C.UTF-8 script -qec "$(SUDO) $(WIRECAP) demo" -O /dev/null | $(TERMSNAP) --lines 49 --columns 82 --out docs/demo.svg

# Debian packages, each after a command or file that shows whether the package is installed.
deps-build:
	@.ci/need cargo:rust cc:gcc /usr/include/stdio.h:libc6-dev
deps-demo:
	@.ci/need ip:iproute2
deps-aarch64: deps-build
	@.ci/need aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu /usr/aarch64-linux-gnu/include/stdio.h:libc6-dev-arm64-cross qemu-aarch64:qemu-user
deps-vm:
	@.ci/need ip:iproute2 setpriv:util-linux /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring
deps-deb:
	@.ci/need dpkg-buildpackage:dpkg-dev dh:debhelper lintian:lintian
deps-long:
	@.ci/need python3:python3 git:git
deps-fresh:
	@.ci/need debootstrap:debootstrap unshare:util-linux
deps-deb-test:
	@.ci/need debootstrap:debootstrap dpkg:dpkg mkfs.ext4:e2fsprogs
# DuckDB, with which a test reads indexes, is from PyPI. Without it the test is skipped, which fails under
# WIRECAP_NO_SKIP=1.
DUCKDB := target/tools/duckdb
deps-duckdb:
	@.ci/need python3:python3 pip3:python3-pip
	@[ -d $(DUCKDB) ] || python3 -m pip install -q --no-deps --target $(DUCKDB) duckdb==1.4.4 || echo "continuing without DuckDB"
deps-test: deps-build deps-demo deps-duckdb
	@.ci/need git:git python3:python3 tcpdump:tcpdump tshark:tshark capinfos:wireshark-common ethtool:ethtool bpftool:bpftool pcap-config:libpcap-dev nm:binutils setcap:libcap2-bin valgrind:valgrind g++:g++ pkg-config:pkgconf ping:iputils-ping iperf3:iperf3 /bin/kill:procps promtool:prometheus chromium-headless-shell:chromium-headless-shell systemd-analyze:systemd lspci:pciutils phc_ctl:linuxptp apparmor_parser:apparmor nft:nftables
# Each is installed separately: the report lists those that cannot be installed as absent.
deps-lab: deps-demo deps-dpdk
	@for rival in tcpdump:tcpdump dumpcap:wireshark-common netsniff-ng:netsniff-ng stdbuf:coreutils; do \
	  .ci/need $$rival || echo "continuing without $${rival#*:}"; \
	done
deps-bench: deps-test deps-dpdk
	@.ci/need netsniff-ng:netsniff-ng valgrind:valgrind tcpreplay:tcpreplay
# The names of the drivers' packages contain a version. The bench lists drivers that cannot be installed as
# absent.
deps-dpdk:
	@-.ci/need dpdk-testpmd:dpdk-dev
	@-for driver in packet xdp; do \
	  ls /usr/lib/*/dpdk/pmds-*/librte_net_af_$$driver.so* >/dev/null 2>&1 || \
	  .ci/need "/none:$$(apt-cache search --names-only "^librte-net-af-$$driver[0-9]*$$" | cut -d' ' -f1 | tail -n 1)"; \
	done
