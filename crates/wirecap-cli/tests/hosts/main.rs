//! A capture with `--engine auto` never cuts off a host: each kind of host is built in namespaces,
//! and its client is answered while captures start, run and end on its interface; nothing is lost
//! for the capture either.
//!
//! A kind that this kernel cannot build says SKIP. `make hosts` runs this program in the virtual
//! machine, whose kernel can build all of them (`WIRECAP_WHOLE_KERNEL=1`: there a skip is a
//! failure).
//!
//! A client pings the host and asks it by TCP without a pause, while captures start, run and end on
//! the interface and on `any`, first unmarked, then dedicated. All requests must be answered. Each
//! exchange that took place while the capture ran, and each of fifty other frames, must be in the
//! file exactly as often as it passed the interface; the ledger must agree with the file, and the
//! verdict be `yes`. The other capturing commands, and tcpdump on the drop-in, run on five of the
//! hosts.

mod arrival;
mod client;
mod command;
mod host;
mod observe;
mod others;
mod rows;

use host::{Built, Lacking};
use observe::{Mark, Target, observe, works_by_itself};
use wirecap_testbed::{privileged, skip_on_this_machine};

/// Observes a kind of host in all ways, first without a capture.
#[track_caller]
fn is_never_cut_off(kind: &str, build: fn() -> Built) {
    if !privileged() {
        return;
    }
    let wrong = match build() {
        Ok(host) => works_by_itself(host),
        Err(Lacking(what)) => return lacks(kind, &what),
    };
    assert!(wrong.is_empty(), "{kind} does not work without a capture: {}", wrong.join("; "));
    let mut failures = Vec::new();
    for mark in [Mark::Absent, Mark::Present] {
        for target in [Target::Interface, Target::Any] {
            let host = match build() {
                Ok(host) => host,
                Err(Lacking(what)) => return lacks(kind, &what),
            };
            let wrong = observe(host, target, mark);
            if !wrong.is_empty() {
                failures.push(format!("{kind}, mark {mark:?}, {target:?}: {}", wrong.join("; ")));
            }
        }
    }
    assert!(failures.is_empty(), "{} of 4 wrong\n{}", failures.len(), failures.join("\n"));
}

#[track_caller]
fn lacks(kind: &str, what: &str) {
    assert!(!host::is_whole_kernel(), "WIRECAP_WHOLE_KERNEL=1, but {kind} cannot be built: {what}");
    skip_on_this_machine(&format!("host {kind}: {what}"));
}

/// A test for each row of the table.
macro_rules! hosts {
    ($($kind:ident)*) => {$(
        #[test]
        fn $kind() {
            is_never_cut_off(stringify!($kind), rows::$kind);
        }
    )*};
}

hosts! {
    plain dhcp_pending slaac_pending tc_redirect mirred tcx nft_ingress bridge
    bond_active_backup bond_balance_rr bond_balance_xor bond_802_3ad bond_port team
    vlan qinq vlan_elsewhere macvlan macvlan_elsewhere passthru_elsewhere macvtap
    ipvlan_l2 ipvlan_l2_elsewhere ipvlan_l3 netkit wireguard wireguard_below openvswitch vrf
    foreign_xdp loopback_address dummy tun veth_pod
}

/// The other commands, and tcpdump on the drop-in, on five of the hosts.
mod other_commands {
    use super::*;

    #[track_caller]
    fn cut_off_no(kind: &str, build: fn() -> Built) {
        if !privileged() {
            return;
        }
        for mark in [Mark::Absent, Mark::Present] {
            let wrong = others::run_all(build, mark);
            assert!(wrong.is_empty(), "{kind}, mark {mark:?}: {}", wrong.join("; "));
        }
    }

    #[test]
    fn plain() {
        cut_off_no("plain", rows::plain);
    }

    #[test]
    fn tc_redirect() {
        cut_off_no("tc_redirect", rows::tc_redirect);
    }

    #[test]
    fn bridge() {
        cut_off_no("bridge", rows::bridge);
    }

    #[test]
    fn passthru_elsewhere() {
        cut_off_no("passthru_elsewhere", rows::passthru_elsewhere);
    }

    #[test]
    fn loopback_address() {
        cut_off_no("loopback_address", rows::loopback_address);
    }
}
