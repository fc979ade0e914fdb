#!/bin/sh
# confined.sh [TREE]: tests tcpdump under Debian's AppArmor profile with wirecap's libpcap, as root. It
# changes the profile and the configuration of the machine, so `make confined` runs it in the virtual machine
# of `make nics`. TREE is the DESTDIR of install-pcap; its files are installed first.
set -eu
say() { echo "ok: $1"; }
fail() { echo "failed: $1"; exit 1; }
skip() { echo "SKIP: $1"; [ -z "${WIRECAP_NO_SKIP:-}" ] || exit 1; exit 0; }
[ -d /sys/kernel/security/apparmor ] || skip "this kernel has no AppArmor"
profile=/etc/apparmor.d/usr.bin.tcpdump
[ -e "$profile" ] || skip "tcpdump's profile is not installed"
[ -z "${1:-}" ] || cp -a "$1/." /
local=/etc/apparmor.d/local/usr.bin.tcpdump
device=conf0
ip link add $device type veth peer name conf1
trap 'ip link del $device; [ ! -e "$local.kept" ] || mv "$local.kept" "$local"; apparmor_parser -r "$profile"' EXIT
ip link set $device up
ip link set conf1 up
cp "$local" "$local.kept" 2>/dev/null || : > "$local.kept"
# Not every machine has the user that tcpdump changes to.
capture() { timeout -s INT 5 wirecap-pcap "$@" tcpdump -Z root -ni $device -c 1 2>&1 || :; }

# Without the abstraction the loader uses the system's library, and wirecap-pcap reports it.
: > "$local"
apparmor_parser -r "$profile"
said=$(capture)
case $said in *"and not wirecap's"*) say "the loaded library is reported" ;; *) fail "the loaded library is not reported: $said" ;; esac
case $said in *"listening on $device"*) say "tcpdump captures with the system's library" ;; *) fail "tcpdump does not capture: $said" ;; esac

# With the abstraction the drop-in captures.
echo 'include <abstractions/wirecap-pcap>' > "$local"
apparmor_parser -r "$profile"
said=$(capture -v)
case $said in *"captured by the engine packet"*) say "the engine captures" ;; *) fail "the engine does not: $said" ;; esac

# A configuration file that the profile does not allow is ignored.
mkdir -p /etc/wirecap
echo 'engine = nonsense' > /etc/wirecap/pcap.conf
sed -i '/pcap.conf/d' /etc/apparmor.d/abstractions/wirecap-pcap
apparmor_parser -r "$profile"
said=$(capture)
rm /etc/wirecap/pcap.conf
case $said in *"listening on $device"*) say "a configuration file that may not be read is ignored" ;; *) fail "$said" ;; esac
