//! The table: one function for each kind of host. All use 10.9.0.1 for the client and 10.9.0.2 for
//! the server.

use std::fs::{self, File};

use tempfile::TempDir;
use wirecap_testbed::{
    Interface, Namespace, SetupError, TapCable, TapKind, open_macvtap, open_tap, pass_program,
    redirect_by_tc, redirect_by_tcx, wait_until,
};

use crate::arrival;
use crate::host::{
    Built, Host, Lacking, Use, cable, container, path, run, run_if_possible, script, sysctl,
};

/// A host that has its address on the port.
pub(crate) fn plain() -> Built {
    let host = Host::behind(&cable());
    run(&host.namespace, "ip address add 10.9.0.2/24 dev port");
    Ok(host)
}

/// A host whose DHCP client starts during the capture, as at boot, or when the carrier comes late.
pub(crate) fn dhcp_pending() -> Built {
    let cable = cable();
    let arrival = arrival::by_dhcp(&cable);
    Ok(Host { usage: Use::Later, arrival: Some(arrival), ..Host::behind(&cable) })
}

/// A host that waits for a router advertisement: no process listens, the kernel configures the
/// address.
pub(crate) fn slaac_pending() -> Built {
    let cable = cable();
    let (address, arrival) = arrival::by_router_advertisement(&cable);
    Ok(Host { address, usage: Use::Hidden, arrival: Some(arrival), ..Host::behind(&cable) })
}

/// A machine without addresses that connects the client, at `port`, with a container, at `lxc`, in
/// a way that the caller adds.
fn with_container() -> (Host, [Interface; 2]) {
    let cable = cable();
    let inner = container(&cable.receiver.namespace, "lxc");
    let server = inner.sender.namespace;
    run(&server, "ip address add 10.9.0.2/24 dev eth0");
    (Host { server, ..Host::behind(&cable) }, [cable.receiver, inner.receiver])
}

/// Redirection by a program at the clsact hook, as Cilium does it.
pub(crate) fn tc_redirect() -> Built {
    let (host, [port, lxc]) = with_container();
    redirect_by_tc(&port, &lxc).map_err(lacking)?;
    redirect_by_tc(&lxc, &port).map_err(lacking)?;
    Ok(host)
}

/// Redirection by the action mirred, as containerlab does it.
pub(crate) fn mirred() -> Built {
    let (host, _) = with_container();
    for (from, to) in [("port", "lxc"), ("lxc", "port")] {
        run_if_possible(&host.namespace, &format!("tc qdisc add dev {from} ingress"))?;
        let filter =
            format!("tc filter add dev {from} parent ffff: protocol all u32 match u32 0 0");
        run_if_possible(
            &host.namespace,
            &format!("{filter} action mirred egress redirect dev {to}"),
        )?;
    }
    Ok(host)
}

/// Redirection by a program at the tcx hook, as Cilium does it since Linux 6.6.
pub(crate) fn tcx() -> Built {
    let (host, [port, lxc]) = with_container();
    let links = [
        redirect_by_tcx(&port, &lxc).map_err(lacking)?,
        redirect_by_tcx(&lxc, &port).map_err(lacking)?,
    ];
    Ok(host.holding(links))
}

/// Redirection by nftables in the family netdev.
pub(crate) fn nft_ingress() -> Built {
    let (host, _) = with_container();
    let chain = |name, from, to| {
        format!(
            "chain {name} {{ type filter hook ingress device {from} priority 0; fwd to {to}; }};"
        )
    };
    let chains = chain("inwards", "port", "lxc") + &chain("outwards", "lxc", "port");
    script(&host.namespace, &format!("nft 'table netdev t {{ {chains} }}'"))?;
    Ok(host)
}

/// A port of a bridge.
pub(crate) fn bridge() -> Built {
    let (host, _) = with_container();
    run_if_possible(&host.namespace, "ip link add br0 type bridge")?;
    for line in ["link set br0 up", "link set port master br0", "link set lxc master br0"] {
        run(&host.namespace, &format!("ip {line}"));
    }
    Ok(host)
}

/// A bond of two cables on both sides, in this mode.
fn bond(mode: &str, interface: &'static str) -> Built {
    aggregate(interface, |namespace| {
        run_if_possible(namespace, &format!("ip link add agg type bond mode {mode} miimon 50"))
    })
}

/// Two cables between client and machine, whose ends on both sides are the ports of a device `agg`.
fn aggregate(interface: &'static str, create: impl Fn(&Namespace) -> Result<(), Lacking>) -> Built {
    let first = cable();
    let client = &first.sender.namespace;
    let machine = &first.receiver.namespace;
    run(client, &format!("ip link add far2 type veth peer name port2 netns {}", path(machine)));
    for (namespace, name, address) in
        [(client, "far", "10.9.0.1/24"), (machine, "port", "10.9.0.2/24")]
    {
        create(namespace)?;
        for port in [name.to_owned(), format!("{name}2")] {
            run(namespace, &format!("ip link set {port} down"));
            run(namespace, &format!("ip link set {port} master agg"));
            run(namespace, &format!("ip link set {port} up"));
        }
        run(namespace, "ip link set agg up");
        run(namespace, &format!("ip address add {address} dev agg"));
    }
    let far = if interface == "agg" { "agg" } else { "far" };
    Ok(Host {
        client: client.clone(),
        server: machine.clone(),
        address: [10, 9, 0, 2].into(),
        namespace: machine.clone(),
        interface,
        passes: 2,
        far: Some(Interface::find(client, far).map_err(lacking)?),
        usage: Use::Visible,
        arrival: None,
        held: Vec::new(),
    })
}

pub(crate) fn bond_active_backup() -> Built {
    bond("active-backup", "agg")
}

pub(crate) fn bond_balance_rr() -> Built {
    bond("balance-rr", "agg")
}

pub(crate) fn bond_balance_xor() -> Built {
    bond("balance-xor", "agg")
}

/// Built when both sides have negotiated that both cables are used.
pub(crate) fn bond_802_3ad() -> Built {
    let host = bond("802.3ad", "agg")?;
    for namespace in [&host.client, &host.namespace] {
        let status = || fs::read_to_string("/proc/thread-self/net/bonding/agg").unwrap();
        wait_until("LACP has negotiated", || uses_two_ports(&namespace.run_in(status).unwrap()));
    }
    Ok(host)
}

/// Whether two ports of a bond, and their partners, are collecting and distributing.
fn uses_two_ports(status: &str) -> bool {
    /// The bits of these two in a port's state (IEEE 802.1AX).
    const COLLECTS_AND_DISTRIBUTES: u8 = 0x30;
    let states =
        status.lines().filter_map(|line| line.trim().strip_prefix("port state: ")?.parse().ok());
    let states: Vec<u8> = states.collect();
    let are_ready =
        states.iter().all(|state| state & COLLECTS_AND_DISTRIBUTES == COLLECTS_AND_DISTRIBUTES);
    status.contains("Number of ports: 2") && states.len() == 4 && are_ready
}

/// The active port of a bond.
pub(crate) fn bond_port() -> Built {
    bond("active-backup", "port")
}

/// A team of two cables, with the address.
pub(crate) fn team() -> Built {
    aggregate("agg", |namespace| {
        run_if_possible(namespace, "ip link add agg type team")?;
        run_if_possible(namespace, "teamnl agg setoption mode roundrobin")
    })
}

/// A VLAN device on the port, with the address.
pub(crate) fn vlan() -> Built {
    let host = Host::behind(&cable());
    tagged(&host, &["802.1q id 5"], None)?;
    Ok(host)
}

/// A VLAN device on a VLAN device.
pub(crate) fn qinq() -> Built {
    let host = Host::behind(&cable());
    tagged(&host, &["802.1ad id 100", "802.1q id 5"], None)?;
    Ok(host)
}

/// A VLAN device on the port that was moved to a container.
pub(crate) fn vlan_elsewhere() -> Built {
    let server = Namespace::new().unwrap();
    let host = Host { server, usage: Use::Hidden, ..Host::behind(&cable()) };
    tagged(&host, &["802.1q id 5"], Some(&host.server))?;
    Ok(host)
}

/// Stacks VLAN devices on `far` and on `port`, and gives the highest ones the addresses.
fn tagged(host: &Host, tags: &[&str], machine_end: Option<&Namespace>) -> Result<(), Lacking> {
    run(&host.client, "ip address flush dev far");
    let ends = [
        (&host.client, "far", "10.9.0.1/24", None),
        (&host.namespace, "port", "10.9.0.2/24", machine_end),
    ];
    for (namespace, lowest, address, destination) in ends {
        let mut lower = lowest.to_owned();
        for (level, tag) in tags.iter().enumerate() {
            let upper = format!("v{level}");
            run_if_possible(
                namespace,
                &format!("ip link add link {lower} name {upper} type vlan proto {tag}"),
            )?;
            run(namespace, &format!("ip link set {upper} up"));
            lower = upper;
        }
        settle(namespace, &lower, destination, address);
    }
    Ok(())
}

/// Moves the device to its destination, if it has one, and gives it the address.
fn settle(namespace: &Namespace, device: &str, destination: Option<&Namespace>, address: &str) {
    if let Some(destination) = destination {
        run(namespace, &format!("ip link set {device} netns {}", path(destination)));
    }
    let namespace = destination.unwrap_or(namespace);
    run(namespace, &format!("ip link set {device} up"));
    run(namespace, &format!("ip address add {address} dev {device}"));
}

/// A device on the port with the address: `macvlan mode bridge`.
fn child(kind: &str, elsewhere: bool) -> Built {
    let host = Host::behind(&cable());
    let server = if elsewhere { Namespace::new().unwrap() } else { host.namespace.clone() };
    run_if_possible(&host.namespace, &format!("ip link add link port name child type {kind}"))?;
    settle(&host.namespace, "child", elsewhere.then_some(&server), "10.9.0.2/24");
    Ok(Host { server, usage: if elsewhere { Use::Hidden } else { Use::Visible }, ..host })
}

pub(crate) fn macvlan() -> Built {
    child("macvlan mode bridge", false)
}

/// A container's macvlan, whose hardware address the port also receives frames for.
pub(crate) fn macvlan_elsewhere() -> Built {
    Ok(Host { usage: Use::Visible, ..child("macvlan mode bridge", true)? })
}

/// A container's macvlan that puts the port into promiscuous mode.
pub(crate) fn passthru_elsewhere() -> Built {
    child("macvlan mode passthru", true)
}

pub(crate) fn ipvlan_l2() -> Built {
    child("ipvlan mode l2", false)
}

pub(crate) fn ipvlan_l2_elsewhere() -> Built {
    child("ipvlan mode l2", true)
}

/// Routed by the machine, whose address the port therefore has.
pub(crate) fn ipvlan_l3() -> Built {
    let host = Host { usage: Use::Visible, ..child("ipvlan mode l3", true)? };
    run(&host.namespace, "ip address add 10.9.0.3/24 dev port");
    run(&host.server, "ip address flush dev child");
    run(&host.server, "ip address add 10.9.0.2/32 dev child");
    run(&host.server, "ip route add default dev child");
    let port = Interface::find(&host.namespace, "port").map_err(lacking)?;
    let mac = port.mac.map(|byte| format!("{byte:02x}")).join(":");
    run(&host.client, &format!("ip neighbour add 10.9.0.2 lladdr {mac} dev far"));
    Ok(host)
}

/// A virtual machine's macvtap: its frames come out of a character device.
pub(crate) fn macvtap() -> Built {
    let host = Host::behind(&cable());
    run_if_possible(&host.namespace, "ip link add link port name child type macvtap mode bridge")?;
    run(&host.namespace, "ip link set child up");
    let mac = Interface::find(&host.namespace, "child").map_err(lacking)?.mac;
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");

    let server = Namespace::new().unwrap();
    let guest = open_tap(&server, "eth0", TapKind::Tap).map_err(lacking)?;
    for line in [&format!("link set eth0 address {mac} up"), "address add 10.9.0.2/24 dev eth0"] {
        run(&server, &format!("ip {line}"));
    }
    let cable = TapCable::between(macvtap_file(&host.namespace)?, guest);
    Ok(Host { server, ..host.holding(cable) })
}

/// The character device of the namespace's macvtap `child`. A new mount of sysfs shows the
/// namespace's interfaces.
fn macvtap_file(namespace: &Namespace) -> Result<File, Lacking> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("tap");
    let number = "mount -t sysfs sysfs /sys && cat /sys/class/macvtap/tap*/dev | tr : ' '";
    let make = format!("mknod {} c $(unshare --mount sh -c \"{number}\")", path.display());
    script(namespace, &make)?;
    open_macvtap(namespace, &path).map_err(lacking)
}

/// A bridge of Open vSwitch, whose kernel module is controlled without its daemon.
pub(crate) fn openvswitch() -> Built {
    let (host, _) = with_container();
    let flow = |from, to| {
        ["0x0800),ipv4(", "0x0806),arp("].map(|kind| {
            format!("ovs-dpctl add-flow dp 'in_port({from}),eth(),eth_type({kind})' {to}")
        })
    };
    let flows = [flow(1, 2), flow(2, 1)].concat().join(" && ");
    script(
        &host.namespace,
        &format!("ovs-dpctl add-dp dp && ovs-dpctl add-if dp port lxc && {flows}"),
    )?;
    Ok(host)
}

/// A port of a VRF.
pub(crate) fn vrf() -> Built {
    let host = Host::behind(&cable());
    run_if_possible(&host.namespace, "ip link add vrf0 type vrf table 10")?;
    for line in
        ["link set vrf0 up", "link set port master vrf0", "address add 10.9.0.2/24 dev port"]
    {
        run(&host.namespace, &format!("ip {line}"));
    }
    sysctl(&host.namespace, "net/ipv4/tcp_l3mdev_accept", "1");
    Ok(host)
}

/// A port with an XDP program of another tool, and nothing else that shows.
pub(crate) fn foreign_xdp() -> Built {
    let (host, port) = address_on_loopback();
    let program = pass_program(&port).map_err(lacking)?;
    Ok(Host { usage: Use::Visible, ..host.holding(program) })
}

/// A server of an anycast address: it has the address on `lo`, and answers through another
/// interface.
pub(crate) fn loopback_address() -> Built {
    Ok(address_on_loopback().0)
}

fn address_on_loopback() -> (Host, Interface) {
    let cable = cable();
    let host = Host { passes: 1, usage: Use::Hidden, ..Host::behind(&cable) };
    run(
        &host.namespace,
        &format!("ip link add back type veth peer name back netns {}", path(&host.client)),
    );
    for namespace in [&host.namespace, &host.client] {
        sysctl(namespace, "net/ipv4/conf/all/rp_filter", "0");
        run(namespace, "ip link set lo up");
        run(namespace, "ip link set back up");
    }
    run(&host.client, "ip address add 10.9.1.1/24 dev back");
    run(&host.namespace, "ip address add 10.9.1.2/24 dev back");
    run(&host.namespace, "ip address add 10.9.0.2/32 dev lo");
    run(&host.namespace, "ip route add 10.9.0.1/32 via 10.9.1.1 dev back");
    (host, cable.receiver)
}

/// A service address on a dummy interface, which packets do not pass; the host sends some into it.
pub(crate) fn dummy() -> Built {
    let host = plain()?;
    run_if_possible(&host.namespace, "ip link add dummy0 type dummy")?;
    run(&host.namespace, "ip link set dummy0 up");
    run(&host.namespace, "ip address add 10.9.9.9/32 dev dummy0");
    run(&host.client, "ip route add 10.9.9.9/32 via 10.9.0.2");
    let far = Some(Interface::find(&host.namespace, "dummy0").map_err(lacking)?);
    Ok(Host { address: [10, 9, 9, 9].into(), interface: "dummy0", passes: 0, far, ..host })
}

/// A tunnel of a program, whose packets have no link-layer header.
pub(crate) fn tun() -> Built {
    let host = Host::behind(&cable());
    let ends =
        [(&host.client, "10.9.2.1"), (&host.namespace, "10.9.2.2")].map(|(namespace, address)| {
            let file = open_tap(namespace, "tun0", TapKind::Tun).map_err(lacking);
            run(namespace, "ip link set tun0 up");
            run(namespace, &format!("ip address add {address}/24 dev tun0"));
            file
        });
    let [near, far] = ends;
    let cable = TapCable::between(near?, far?);
    Ok(Host { address: [10, 9, 2, 2].into(), interface: "tun0", far: None, ..host.holding(cable) })
}

/// A pod as Calico connects it: a route to its address, and an interface without one.
pub(crate) fn veth_pod() -> Built {
    let host = plain()?;
    let pod = container(&host.namespace, "cali0");
    let server = pod.sender.namespace.clone();
    for name in ["ip_forward", "conf/cali0/proxy_arp"] {
        sysctl(&host.namespace, &format!("net/ipv4/{name}"), "1");
    }
    run(&host.namespace, "ip route add default via 10.9.0.1 dev port");
    run(&host.namespace, "ip route add 10.9.3.3/32 dev cali0");
    run(&server, "ip address add 10.9.3.3/32 dev eth0");
    run(&server, "ip route add 169.254.1.1 dev eth0 scope link");
    run(&server, "ip route add default via 169.254.1.1 dev eth0");
    run(&host.client, "ip route add 10.9.3.3/32 via 10.9.0.2");
    let far = Some(pod.sender);
    Ok(Host { server, address: [10, 9, 3, 3].into(), interface: "cali0", far, ..host })
}

/// A pod on a netkit device, with redirection by tcx, as Cilium connects it.
pub(crate) fn netkit() -> Built {
    let cable = cable();
    let host = Host { server: Namespace::new().unwrap(), ..Host::behind(&cable) };
    run_if_possible(&host.namespace, "ip link add nk type netkit mode l2 peer name nkp")?;
    run(&host.namespace, "ip link set nk up");
    run(&host.namespace, &format!("ip link set nkp netns {} name eth0", path(&host.server)));
    settle(&host.server, "eth0", None, "10.9.0.2/24");
    let [nk, eth0] = [(&host.namespace, "nk"), (&host.server, "eth0")]
        .map(|(namespace, name)| Interface::find(namespace, name).unwrap());
    let port = cable.receiver;
    let links = [
        redirect_by_tcx(&port, &nk).map_err(lacking)?,
        redirect_by_tcx(&nk, &port).map_err(lacking)?,
    ];
    Ok(Host { interface: "nk", far: Some(eth0), ..host.holding(links) })
}

/// WireGuard, captured on its own interface or on the one below.
fn wireguard_on(interface: &'static str, passes: usize) -> Built {
    let host = plain()?;
    let keys = TempDir::new().unwrap();
    for (namespace, name) in [(&host.client, "client"), (&host.namespace, "machine")] {
        run_if_possible(namespace, "ip link add wg0 type wireguard")?;
        let file = keys.path().join(name).display().to_string();
        script(
            namespace,
            &format!("umask 077; wg genkey >{file} && wg pubkey <{file} >{file}.pub"),
        )?;
    }
    let ends = [(&host.client, "client", "machine", 1), (&host.namespace, "machine", "client", 2)];
    for (namespace, own, peer, number) in ends {
        let file = |name: &str| keys.path().join(name).display().to_string();
        let own = file(own);
        let peer = file(peer);
        let other = 3 - number;
        let peer = format!(
            "peer $(cat {peer}.pub) allowed-ips 10.9.4.0/24 endpoint 10.9.0.{other}:5182{other}"
        );
        script(
            namespace,
            &format!("wg set wg0 listen-port 5182{number} private-key {own} {peer}"),
        )?;
        settle(namespace, "wg0", None, &format!("10.9.4.{number}/24"));
    }
    let far = host.far.clone().filter(|_| interface == "port");
    Ok(Host { address: [10, 9, 4, 2].into(), interface, passes, far, ..host })
}

pub(crate) fn wireguard() -> Built {
    wireguard_on("wg0", 2)
}

/// The requests are encrypted here.
pub(crate) fn wireguard_below() -> Built {
    wireguard_on("port", 0)
}

fn lacking(error: SetupError) -> Lacking {
    let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
    Lacking(format!("{error}{}", source.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_bond_are_used_when_both_ends_collect_and_distribute() {
        let status = |states: &[u8]| {
            let states =
                states.iter().map(|state| format!("    port key: 15\n    port state: {state}\n"));
            format!("Active Aggregator Info:\n\tNumber of ports: 2\n{}", states.collect::<String>())
        };
        assert!(uses_two_ports(&status(&[61, 61, 63, 61])));
        assert!(!uses_two_ports(&status(&[61, 61, 61, 13])), "a partner does not collect yet");
        assert!(!uses_two_ports(&status(&[61, 29, 61, 61])), "a port does not distribute yet");
        assert!(!uses_two_ports(&status(&[61, 61])), "one port is missing");
    }
}
