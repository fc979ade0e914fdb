//! Typical expressions, generated from a grammar and a seed.

use std::collections::BTreeSet;

use wirecap_filter::Filter;
use wirecap_filter::LinkType;

use crate::choices::Choices;
use crate::names::{ADDRESSES, ADDRESSES_6, MACS, NETS, NETS_6, PORTS, mac_text};

/// The first `count` different expressions of the seed that libpcap accepts. (It rejects
/// expressions that no packet can match, such as an IPv6 host in ARP.)
pub(crate) fn expressions(seed: u64, count: usize) -> Vec<String> {
    let mut choices = Choices::from_seed(seed, count * 4096);
    let mut known = BTreeSet::new();
    let mut list = Vec::new();
    while list.len() < count {
        assert!(!choices.is_used_up(), "the grammar has only {} expressions", list.len());
        let depth = choices.of(&[0, 1, 1, 1, 2, 2, 3]);
        let expression = boolean(&mut choices, depth);
        let accepted = Filter::compile(&expression, LinkType::ETHERNET, 0).is_ok();
        if accepted && known.insert(expression.clone()) {
            list.push(expression);
        }
    }
    list
}

/// The filters of the WinPcap paper (Risso and Degioanni, 2001): only IP; one TCP port among five;
/// ten addresses and ten ports.
pub(crate) fn winpcap_filters() -> [String; 3] {
    let list = |items: Vec<String>| items.join(" or ");
    let ports =
        |count: usize| list(PORTS[..count].iter().map(|port| format!("tcp port {port}")).collect());
    let hosts = list(ADDRESSES.iter().map(|address| format!("host {address}")).collect());
    ["ip".to_owned(), ports(5), format!("({hosts}) and ({})", ports(10))]
}

fn boolean(choices: &mut Choices, depth: u32) -> String {
    if depth == 0 {
        return primitive(choices);
    }
    let count = 1 + choices.of(&[1, 1, 1, 2, 2, 3, 5, 9]);
    let parts: Vec<String> = (0..count).map(|_| operand(choices, depth - 1)).collect();
    parts.join(choices.of(&[" and ", " or ", " and ", " or ", " && ", " || "]))
}

fn operand(choices: &mut Choices, depth: u32) -> String {
    let depth = choices.below(depth + 1);
    let part = boolean(choices, depth);
    let part = if depth > 0 { format!("({part})") } else { part };
    if choices.once_in(6) { format!("not {part}") } else { part }
}

fn primitive(choices: &mut Choices) -> String {
    match choices.below(20) {
        0..=2 => host(choices),
        3 | 4 => net(choices),
        5..=8 => port(choices),
        9 | 10 => protocol(choices),
        11 => ether(choices),
        12 => vlan(choices),
        13 => mpls_or_pppoe(choices),
        14 | 15 => length(choices),
        16 => flags(choices),
        _ => bytes(choices),
    }
}

fn direction(choices: &mut Choices) -> &'static str {
    choices.of(&["", "", "src ", "dst ", "src or dst ", "src and dst "])
}

fn host(choices: &mut Choices) -> String {
    let kind = choices.of(&["", "", "ip ", "arp "]);
    let direction = direction(choices);
    if choices.once_in(4) {
        return format!("{direction}host {}", choices.of(&ADDRESSES_6));
    }
    format!("{kind}{direction}host {}", choices.of(&ADDRESSES))
}

fn net(choices: &mut Choices) -> String {
    let direction = direction(choices);
    let net = if choices.once_in(4) { choices.of(&NETS_6) } else { choices.of(&NETS) };
    format!("{direction}net {net}")
}

fn port(choices: &mut Choices) -> String {
    let kind = choices.of(&["", "", "tcp ", "udp ", "sctp "]);
    let direction = direction(choices);
    let port = choices.of(&PORTS);
    if choices.once_in(4) {
        let last = port.saturating_add(choices.below(2000) as u16);
        return format!("{kind}{direction}portrange {port}-{last}");
    }
    format!("{kind}{direction}port {port}")
}

fn protocol(choices: &mut Choices) -> String {
    let simple = [
        "ip",
        "ip6",
        "arp",
        "rarp",
        "tcp",
        "udp",
        "sctp",
        "icmp",
        "icmp6",
        "igmp",
        "pim",
        "vrrp",
        "esp",
        "ah",
        "ip multicast",
        "ip6 multicast",
        "ether broadcast",
        "ether multicast",
        "stp",
        "atalk",
        "decnet",
        "ipx",
        "netbeui",
        "iso",
        "aarp",
        "lat",
        "moprc",
        "isis",
        "esis",
        "clnp",
    ];
    match choices.below(6) {
        0 => format!("ip proto {}", choices.of(&[1_u8, 2, 6, 17, 41, 47, 50, 89, 132])),
        1 => format!("ip6 proto {}", choices.of(&[0_u8, 6, 17, 43, 44, 58, 60])),
        2 => format!(
            "ether proto {:#x}",
            choices.of(&[0x800_u16, 0x806, 0x86dd, 0x88cc, 0x8100, 0x8847, 0x26])
        ),
        3 if choices.once_in(3) => {
            format!("{} protochain {}", choices.of(&["ip", "ip6"]), choices.of(&[6_u8, 17, 58]))
        }
        _ => choices.of(&simple).to_owned(),
    }
}

fn ether(choices: &mut Choices) -> String {
    let direction = choices.of(&["", "src ", "dst "]);
    format!("ether {direction}host {}", mac_text(choices.of(&MACS)))
}

/// `vlan` changes the meaning of the rest of the expression, so it is combined with a suitable
/// rest.
fn vlan(choices: &mut Choices) -> String {
    let tag = choices.of(&["vlan", "vlan 7", "vlan 42", "vlan 100", "vlan and vlan 42"]).to_owned();
    if choices.once_in(2) { format!("({tag} and {})", inner(choices)) } else { tag }
}

fn mpls_or_pppoe(choices: &mut Choices) -> String {
    let shell = choices.of(&[
        "mpls",
        "mpls 1024",
        "mpls 16 and mpls",
        "pppoed",
        "pppoes",
        "pppoes 1",
        "pppoes 0x7",
    ]);
    if choices.once_in(2) { format!("({shell} and {})", inner(choices)) } else { shell.to_owned() }
}

fn inner(choices: &mut Choices) -> String {
    match choices.below(5) {
        0 => choices.of(&["ip", "ip6", "tcp", "udp"]).to_owned(),
        1 => format!("host {}", choices.of(&ADDRESSES)),
        2 => format!("net {}", choices.of(&NETS)),
        3 => format!("tcp port {}", choices.of(&PORTS)),
        _ => format!("src host {} and dst port {}", choices.of(&ADDRESSES), choices.of(&PORTS)),
    }
}

fn length(choices: &mut Choices) -> String {
    let bytes = choices.of(&[0_u32, 42, 60, 64, 74, 128, 576, 1500, 1514, 9000, 65_535]);
    match choices.below(4) {
        0 => format!("greater {bytes}"),
        1 => format!("less {bytes}"),
        _ => format!("len {} {bytes}", choices.of(&["<", "<=", "=", "!=", ">=", ">"])),
    }
}

fn flags(choices: &mut Choices) -> String {
    let known = [
        "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn",
        "tcp[tcpflags] & tcp-rst != 0",
        "tcp[13] = 0x12",
        "tcp[13] & 7 != 0 and src net 10.0.0.0/8",
        "icmp[icmptype] = icmp-echo or icmp[icmptype] = icmp-echoreply",
        "icmp[icmptype] != icmp-unreach",
        "icmp6[icmp6type] = icmp6-neighborsolicit",
        "ip[6:2] & 0x1fff != 0",
        "ip[6] & 0x20 = 0x20",
        "ip[8] < 5",
        "(ip[2:2] - ((ip[0]&0xf)<<2) - ((tcp[12]&0xf0)>>2)) != 0",
        "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
        "udp[8:2] & 0x8000 = 0 and udp port 53",
        "ip[0] & 0xf > 5",
        "ether[0] & 1 = 0 and ip[16] >= 224",
        "ip6[6] = 44 and ip6[40] = 17",
        "ip6 and ip6[7] <= 1",
    ];
    choices.of(&known).to_owned()
}

fn bytes(choices: &mut Choices) -> String {
    let comparison = choices.of(&["=", "!=", "<", ">", "<=", ">=", "=="]);
    let left = arithmetic(choices, 2);
    let right =
        if choices.once_in(3) { arithmetic(choices, 1) } else { choices.below(70_000).to_string() };
    format!("{left} {comparison} {right}")
}

fn arithmetic(choices: &mut Choices, depth: u32) -> String {
    if depth == 0 || choices.once_in(2) {
        return accessor(choices);
    }
    let left = arithmetic(choices, depth - 1);
    if choices.once_in(12) {
        return format!("-{left}");
    }
    let operator = choices.of(&["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"]);
    let right = match operator {
        "<<" | ">>" => choices.below(32).to_string(),
        _ if choices.once_in(3) => arithmetic(choices, depth - 1),
        _ => (1 + choices.below(300)).to_string(),
    };
    format!("({left} {operator} {right})")
}

fn accessor(choices: &mut Choices) -> String {
    let layer = choices.of(&["ether", "ip", "ip", "ip6", "tcp", "tcp", "udp", "icmp", "arp"]);
    let size = choices.of(&["", ":1", ":2", ":4"]);
    match choices.below(10) {
        0 => "len".to_owned(),
        1 => format!("{layer}[{layer}[{}] & 0x1f{size}]", choices.below(20)),
        _ => format!("{layer}[{}{size}]", choices.below(36)),
    }
}
