//! The host's hooks on the path of an interface's frames: tc filters, tcx programs, netfilter.
//!
//! Each may redirect or drop a frame before the stack sees it, so an interface with one is in use
//! even if it has no address. A frame that the engine `xdp` takes reaches none of them.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::netlink::{Attributes, Netlink, Payload};
use crate::bpf;
use crate::sys::opener::{GuardedHooks, opener};

/// The two places of an interface at which the filters of `clsact` run (`TC_H_CLSACT`); those of
/// the qdisc `ingress` are at the first one.
const TC_PARENTS: [u32; 2] = [0xffff_fff2, 0xffff_fff3];
/// Bytes of `struct tcmsg`.
const TC_HEADER_BYTES: usize = 20;

/// `struct nfgenmsg`.
const NETFILTER_HEADER_BYTES: usize = 4;
const NFPROTO_UNSPEC: u8 = 0;
const NFPROTO_NETDEV: u8 = 5;
/// `NFNL_SUBSYS_HOOK` and its only message, `NFNL_MSG_HOOK_GET`.
const HOOK_GET: u16 = 12 << 8;
const NFNLA_HOOK_HOOKNUM: u16 = 1;
const NFNLA_HOOK_DEV: u16 = 3;
/// `NF_NETDEV_INGRESS` and `NF_NETDEV_EGRESS`.
const HOOK_NUMBERS: [u32; 2] = [0, 1];
/// `NFNL_SUBSYS_NFTABLES`, with `NFT_MSG_GETCHAIN` and `NFT_MSG_GETFLOWTABLE`.
const GET_CHAINS: u16 = 10 << 8 | 4;
const GET_FLOW_TABLES: u16 = 10 << 8 | 23;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_FLOWTABLE_HOOK: u16 = 3;
/// In a chain's hook: one device, or several.
const NFTA_HOOK_DEV: u16 = 3;
const NFTA_HOOK_DEVS: u16 = 4;
/// In a flow table's hook.
const NFTA_FLOWTABLE_HOOK_DEVS: u16 = 3;
/// In a list of devices: a name, or the beginning of names.
const NFTA_DEVICE_NAME: u16 = 1;
const NFTA_DEVICE_PREFIX: u16 = 2;

/// The hooks of the host that an interface has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hooks {
    /// It has a tc filter of the qdisc `clsact` or `ingress`.
    pub tc: bool,
    /// It has a tcx program.
    pub tcx: bool,
    /// It has a netfilter hook.
    pub netfilter: bool,
    /// The hooks that could not be queried, each with the reason.
    pub unknown: Vec<String>,
}

impl Hooks {
    /// The hooks of the interface of this index and name, in the network namespace of `netlink` and
    /// of the calling thread.
    pub(super) fn of(netlink: &mut Netlink, index: u32, name: &str) -> Self {
        let mut hooks = Self::default();
        match has_tc_filter(netlink, index) {
            Ok(has) => hooks.tc = has,
            Err(error) => hooks.unknown.push(format!("tc filters ({error})")),
        }
        hooks.add_guarded(guarded(index, name));
        hooks
    }

    fn add_guarded(&mut self, guarded: GuardedHooks) {
        for (found, what, known) in [
            (&mut self.tcx, "tcx programs", guarded.tcx),
            (&mut self.netfilter, "netfilter hooks", guarded.netfilter),
        ] {
            match known {
                Ok(has) => *found = has,
                Err(why) => self.unknown.push(format!("{what} ({why})")),
            }
        }
    }
}

/// The hooks that only a privileged process can see; asks the process that has kept the privileges,
/// if there is one.
pub(super) fn guarded(index: u32, name: &str) -> GuardedHooks {
    let Some(opener) = opener() else { return guarded_hooks(index, name) };
    opener.guarded_hooks(index).unwrap_or_else(|error| {
        let why = Err(error.to_string());
        GuardedHooks { tcx: why.clone(), netfilter: why }
    })
}

/// The hooks of the interface of this index and name that only a process with CAP_NET_ADMIN can
/// see, in the network namespace of the calling thread.
pub fn guarded_hooks(index: u32, name: &str) -> GuardedHooks {
    let why = |error: io::Error| match error.raw_os_error() {
        Some(libc::EPERM) => "requires CAP_NET_ADMIN".to_owned(),
        _ => error.to_string(),
    };
    GuardedHooks {
        tcx: bpf::tcx_programs(index).map(|count| count > 0).map_err(why),
        netfilter: has_netfilter_hook(name).map_err(why),
    }
}

fn has_tc_filter(netlink: &mut Netlink, index: u32) -> io::Result<bool> {
    for parent in TC_PARENTS {
        let mut header = [0; TC_HEADER_BYTES];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        header[12..16].copy_from_slice(&parent.to_ne_bytes());
        let filters: usize =
            netlink.dump(libc::RTM_GETTFILTER, &Payload::new(&header), |count, _| *count += 1)?;
        if filters > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The kernel has no list of hooks: a question would make it look for a module each time.
static WITHOUT_HOOK_LIST: AtomicBool = AtomicBool::new(false);
/// The kernel has no nf_tables, whose chains and flow tables are all hooks of devices.
static WITHOUT_TABLES: AtomicBool = AtomicBool::new(false);

fn has_netfilter_hook(name: &str) -> io::Result<bool> {
    if !WITHOUT_HOOK_LIST.load(Ordering::Relaxed) {
        match has_listed_hook(name) {
            Err(error) if is_missing(&error) => WITHOUT_HOOK_LIST.store(true, Ordering::Relaxed),
            known => return known,
        }
    }

    if WITHOUT_TABLES.load(Ordering::Relaxed) {
        return Ok(false);
    }

    match has_table_hook(name) {
        Err(error) if is_missing(&error) => {
            WITHOUT_TABLES.store(true, Ordering::Relaxed);
            Ok(false)
        }
        known => known,
    }
}

/// Whether the kernel lacks what was asked.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT))
}

/// By the list of an interface's hooks (since Linux 5.14).
fn has_listed_hook(name: &str) -> io::Result<bool> {
    let mut netlink = Netlink::netfilter()?;

    for (number, is_first) in HOOK_NUMBERS.into_iter().zip([true, false]) {
        let request = netfilter_request(NFPROTO_NETDEV)
            .with(NFNLA_HOOK_HOOKNUM, &number.to_be_bytes())
            .with_text(NFNLA_HOOK_DEV, name);
        match netlink.dump(HOOK_GET, &request, |count: &mut usize, _| *count += 1) {
            Ok(0) => {}
            Ok(_) => return Ok(true),
            // A kernel without hooks for frames that leave.
            Err(error) if !is_first && is_missing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// By all chains and flow tables.
fn has_table_hook(name: &str) -> io::Result<bool> {
    let mut netlink = Netlink::netfilter()?;
    let request = netfilter_request(NFPROTO_UNSPEC);
    let in_chains = netlink.dump(GET_CHAINS, &request, |found: &mut bool, payload| {
        *found |= is_on(payload, NFTA_CHAIN_HOOK, NFTA_HOOK_DEVS, name);
    })?;
    let in_flow_tables = netlink.dump(GET_FLOW_TABLES, &request, |found: &mut bool, payload| {
        *found |= is_on(payload, NFTA_FLOWTABLE_HOOK, NFTA_FLOWTABLE_HOOK_DEVS, name);
    })?;
    Ok(in_chains || in_flow_tables)
}

fn netfilter_request(family: u8) -> Payload {
    Payload::new(&[family, 0, 0, 0])
}

/// Whether the hook of a chain or flow table is on the interface.
fn is_on(payload: &[u8], hook: u16, devices: u16, name: &str) -> bool {
    let hook = Attributes::after_header::<NETFILTER_HEADER_BYTES>(payload)
        .and_then(|(_, attributes)| attributes.nested(hook));
    let Some(hook) = hook else { return false };
    let is_only = devices == NFTA_HOOK_DEVS && hook.text(NFTA_HOOK_DEV).as_deref() == Some(name);

    let is_listed = |list: Attributes<'_>| {
        list.iter().any(|(kind, value)| {
            let value = value.strip_suffix(b"\0").unwrap_or(value);
            match kind {
                NFTA_DEVICE_NAME => value == name.as_bytes(),
                NFTA_DEVICE_PREFIX => name.as_bytes().starts_with(value),
                _ => false,
            }
        })
    };
    is_only || hook.nested(devices).is_some_and(is_listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(hook: Payload) -> Payload {
        netfilter_request(NFPROTO_NETDEV).with(NFTA_CHAIN_HOOK, hook.bytes())
    }

    fn is_chain_on(chain: &Payload, name: &str) -> bool {
        is_on(chain.bytes(), NFTA_CHAIN_HOOK, NFTA_HOOK_DEVS, name)
    }

    #[test]
    fn a_chain_belongs_to_its_devices_only() {
        let one = chain(Payload::new(&[]).with_text(NFTA_HOOK_DEV, "eth1"));
        assert!(
            is_chain_on(&one, "eth1") && !is_chain_on(&one, "eth10") && !is_chain_on(&one, "eth")
        );

        let names = Payload::new(&[])
            .with_text(NFTA_DEVICE_NAME, "eth1")
            .with_text(NFTA_DEVICE_NAME, "eth2");
        let several = chain(Payload::new(&[]).with(NFTA_HOOK_DEVS, names.bytes()));
        assert!(is_chain_on(&several, "eth2") && !is_chain_on(&several, "eth3"));

        let prefix = Payload::new(&[]).with(NFTA_DEVICE_PREFIX, b"eth");
        let all = chain(Payload::new(&[]).with(NFTA_HOOK_DEVS, prefix.bytes()));
        assert!(is_chain_on(&all, "eth7") && !is_chain_on(&all, "lan0"));
        assert!(!is_chain_on(&netfilter_request(NFPROTO_NETDEV), "eth1"), "a chain without a hook");
    }
}
