# The only door: `make demo`, `make test`, `make check`, `make bench`. Each installs what it needs.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help build demo picture test clients check bench lab install pcap install-pcap install-pcap-system uninstall-pcap c install-c uninstall-c stage-c deps-build deps-demo deps-test deps-bench deps-lab deps-dpdk test-sim test-model test-miri

# What talks to the kernel runs as root; what compiles does not.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)
WIRECAP := target/release/wirecap
PREFIX ?= /usr/local
# Test programs run as root wherever `cargo test` starts them. Cargo refuses an empty runner.
ifneq ($(SUDO),)
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER := $(SUDO)
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER := $(SUDO)
endif

help: ## What can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1	/' | expand -t 16

build: deps-build ## The wirecap command, in target/release
	cargo build --release --locked -p wirecap-cli

demo: build deps-demo ## Sends, captures and accounts for packets between two namespaces of its own
	$(SUDO) $(WIRECAP) demo

test: deps-test ## All tests, on real veth pairs where a kernel is needed
	cargo test --workspace --locked
	cargo test --locked -p wirecap-savefile --no-default-features --lib
	$(MAKE) --no-print-directory test-sim test-model test-miri

test-sim: deps-build # 100,000 random schedules of the simulator, and the papers' whole trace; a debug build runs less
	cargo test --locked -p wirecap --lib --release -- sim::
	cargo test --locked -p wirecap-lab --lib --release -- paper::
	cargo test --locked -p wirecap-cli --test paper --release

# Installs the clients, each of which the table in tests/clients names with its package; a client that cannot be
# installed or built is a skip.
clients: deps-test ## Some forty programs that use libpcap and its own test programs, as they are, on the drop-in and on libpcap
	.ci/need setsid:util-linux stdbuf:coreutils \
	  $$(cargo test -q --locked -p wirecap-pcap --test clients -- --needs | tr ' ' '\n' | sort -u) || true
	cargo test --locked --no-fail-fast -p wirecap-pcap --test clients --test testprogs

test-model: deps-build # Every interleaving of the rings' and queues' atomics (loom)
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 \
	  cargo test --locked -p wirecap --lib --release --target-dir target/loom -- model

# What has unsafe code and needs no kernel, and what drives it.
MIRI_MODULES := sim:: forward:: sieve:: kernel_ring:: umem:: ledger:: group:: sys::memory::

# Miri needs a nightly toolchain; where there is none the step says so.
test-miri: deps-build
	@if ! rustup toolchain list 2>/dev/null | grep -q nightly; then \
	  echo "SKIP: Miri needs a nightly toolchain (rustup toolchain install nightly)"; \
	  [ -z "$${WIRECAP_NO_SKIP:-}" ] || exit 1; \
	else \
	  rustup component add --toolchain nightly miri rust-src >/dev/null 2>&1 || true; \
	  MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --locked -p wirecap --lib --target-dir target/miri \
	    -- $(MIRI_MODULES); \
	fi

check: deps-build ## Format, lints and documentation, warnings denied
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

bench: build deps-bench ## Measures wirecap beside its rivals, as ratios
	cargo bench --workspace --locked

lab: build deps-lab ## Runs the lab on this machine, beside the tools that people use otherwise: minutes
	$(SUDO) $(WIRECAP) lab report --quick

install: build ## Installs the wirecap command and its man pages under PREFIX
	$(SUDO) install -Dm755 $(WIRECAP) $(DESTDIR)$(PREFIX)/bin/wirecap
	$(SUDO) $(WIRECAP) man-pages $(DESTDIR)$(PREFIX)/share/man/man1

# The drop-in under all names by which programs ask for libpcap. They are links: as copies they would be loaded
# side by side.
PCAP_NAMES := libpcap.so.0.8 libpcap.so
pcap: deps-build ## The libpcap drop-in, in target/release/pcap, and the command that runs programs on it
	cargo build --release --locked -p wirecap-pcap
	install -Dm644 target/release/libwirecap_pcap.so target/release/pcap/libpcap.so.1
	for name in $(PCAP_NAMES); do ln -sf libpcap.so.1 target/release/pcap/$$name; done
	sed 's|@LIBRARIES@|$(CURDIR)/target/release/pcap|' crates/wirecap-pcap/wirecap-pcap > target/release/wirecap-pcap
	chmod +x target/release/wirecap-pcap

PCAP_FOLDER := $(PREFIX)/lib/wirecap
PCAP_PATH := /etc/ld.so.conf.d/000-wirecap.conf
install-pcap: pcap ## Installs the drop-in for the command wirecap-pcap; no other program notices
	$(SUDO) install -Dm644 target/release/libwirecap_pcap.so $(DESTDIR)$(PCAP_FOLDER)/libpcap.so.1
	for name in $(PCAP_NAMES); do $(SUDO) ln -sf libpcap.so.1 $(DESTDIR)$(PCAP_FOLDER)/$$name; done
	sed 's|@LIBRARIES@|$(PCAP_FOLDER)|' crates/wirecap-pcap/wirecap-pcap > target/release/wirecap-pcap.installed
	$(SUDO) install -Dm755 target/release/wirecap-pcap.installed $(DESTDIR)$(PREFIX)/bin/wirecap-pcap
	$(SUDO) install -Dm644 crates/wirecap-pcap/wirecap-pcap.1 $(DESTDIR)$(PREFIX)/share/man/man1/wirecap-pcap.1

install-pcap-system: install-pcap ## Installs the drop-in before the system's libpcap, for all programs
	$(SUDO) install -d $(DESTDIR)$(dir $(PCAP_PATH))
	echo '$(PCAP_FOLDER)' | $(SUDO) tee $(DESTDIR)$(PCAP_PATH) >/dev/null
	[ -n "$(DESTDIR)" ] || $(SUDO) ldconfig

uninstall-pcap: ## Undoes install-pcap and install-pcap-system
	! grep -qxF '$(PCAP_FOLDER)' $(DESTDIR)$(PCAP_PATH) 2>/dev/null || $(SUDO) rm $(DESTDIR)$(PCAP_PATH)
	$(SUDO) rm -rf $(DESTDIR)$(PCAP_FOLDER) $(DESTDIR)$(PREFIX)/bin/wirecap-pcap
	$(SUDO) rm -f $(DESTDIR)$(PREFIX)/share/man/man1/wirecap-pcap.1
	[ -n "$(DESTDIR)" ] || $(SUDO) ldconfig

c: deps-build ## The library of wirecap.h, in target/release
	cargo build --release --locked -p wirecap-c

C_LIBRARY ?= target/release/libwirecap_c.so
C_FILES := lib/libwirecap.so.1 lib/libwirecap.so lib/pkgconfig/wirecap.pc include/wirecap.h share/man/man3/wirecap.3
install-c: c ## Installs wirecap.h, its library and its manual page under PREFIX
	$(MAKE) --no-print-directory stage-c
	[ -n "$(DESTDIR)" ] || $(SUDO) ldconfig

# What lies where; the tests do it to a folder of theirs.
stage-c:
	$(SUDO) install -Dm644 $(C_LIBRARY) $(DESTDIR)$(PREFIX)/lib/libwirecap.so.1
	$(SUDO) ln -sf libwirecap.so.1 $(DESTDIR)$(PREFIX)/lib/libwirecap.so
	$(SUDO) install -Dm644 crates/wirecap-c/include/wirecap.h $(DESTDIR)$(PREFIX)/include/wirecap.h
	$(SUDO) install -Dm644 crates/wirecap-c/wirecap.3 $(DESTDIR)$(PREFIX)/share/man/man3/wirecap.3
	$(SUDO) install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|' crates/wirecap-c/wirecap.pc | $(SUDO) tee $(DESTDIR)$(PREFIX)/lib/pkgconfig/wirecap.pc >/dev/null

uninstall-c: ## Undoes install-c
	$(SUDO) rm -f $(addprefix $(DESTDIR)$(PREFIX)/,$(C_FILES))
	[ -n "$(DESTDIR)" ] || $(SUDO) ldconfig

TERMSNAP := target/tools/bin/termsnap
$(TERMSNAP):
	cargo install --locked --root target/tools termsnap@0.4.0

picture: build deps-demo $(TERMSNAP) ## docs/demo.svg, the demo's last screen, for the README
	LANG=C.UTF-8 script -qec "$(SUDO) $(WIRECAP) demo" -O /dev/null | $(TERMSNAP) --lines 49 --columns 82 --out docs/demo.svg

# Debian packages by the commands or files that tell whether they are there.
deps-build:
	@.ci/need cargo:rust cc:gcc
deps-demo:
	@.ci/need ip:iproute2
deps-test: deps-build deps-demo
	@.ci/need tcpdump:tcpdump tshark:tshark capinfos:wireshark-common ethtool:ethtool pcap-config:libpcap-dev nm:binutils valgrind:valgrind g++:g++ pkg-config:pkgconf ping:iputils-ping iperf3:iperf3 /bin/kill:procps
# Each by itself: one that cannot be installed is named in the report as absent.
deps-lab: deps-demo deps-dpdk
	@for rival in tcpdump:tcpdump dumpcap:wireshark-common netsniff-ng:netsniff-ng stdbuf:coreutils; do \
	  .ci/need $$rival || echo "going on without $${rival#*:}"; \
	done
deps-bench: deps-test deps-dpdk
	@.ci/need netsniff-ng:netsniff-ng valgrind:valgrind tcpreplay:tcpreplay
# The drivers' packages bear their version in their names. What is not to be had, the bench reports as absent.
deps-dpdk:
	@-.ci/need dpdk-testpmd:dpdk-dev
	@-for driver in packet xdp; do \
	  ls /usr/lib/*/dpdk/pmds-*/librte_net_af_$$driver.so* >/dev/null 2>&1 || \
	  .ci/need "/none:$$(apt-cache search --names-only "^librte-net-af-$$driver[0-9]*$$" | cut -d' ' -f1 | tail -n 1)"; \
	done
