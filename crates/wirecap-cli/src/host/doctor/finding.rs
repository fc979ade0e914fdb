//! The finding of a check: evidence, effect, and the change that fixes it.
//!
//! The severity sorts the list: *loses* (packets were lost, or none can arrive), *alters*
//! (captured packets differ from the wire), *may lose* (packets may be lost under load, or the
//! capture cannot be opened), *costs* (CPU time or memory), *note*. Values that could not be read
//! are listed with the reason.

use serde::{Deserialize, Serialize};

use super::host::{Host, Nic};

/// How bad a finding is; the worst comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Severity {
    /// Packets were lost, or none can arrive.
    Loses,
    /// Packets are captured otherwise than they were on the wire.
    Alters,
    /// Packets are lost under load, or a capture cannot be opened.
    MayLose,
    /// Processor time or memory is wasted.
    Costs,
    /// Information about the contents of a capture.
    Note,
}

impl Severity {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Loses => "loses packets",
            Self::Alters => "alters packets",
            Self::MayLose => "may lose packets",
            Self::Costs => "costs time or memory",
            Self::Note => "note",
        }
    }

    /// Their number as text: `2 may lose packets`.
    pub(crate) fn count_words(self, count: usize) -> String {
        let words = match (self, count) {
            (_, 1) | (Self::MayLose, _) => self.words(),
            (Self::Loses, _) => "lose packets",
            (Self::Alters, _) => "alter packets",
            (Self::Costs, _) => "cost time or memory",
            (Self::Note, _) => "notes",
        };
        format!("{count} {words}")
    }
}

/// Something on this host that loses or alters packets.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Finding {
    /// The check's name: short, stable, for programs.
    pub(crate) check: &'static str,
    pub(crate) severity: Severity,
    /// The interface; `None` if it is about the host.
    pub(crate) interface: Option<String>,
    /// The fact, in a line.
    pub(crate) title: String,
    pub(crate) evidence: Vec<Evidence>,
    pub(crate) consequence: String,
    /// The fix, as lines for a root shell.
    pub(crate) commands: Vec<String>,
    /// The fix, if there is no command for it.
    pub(crate) advice: Option<String>,
    /// The changes made by `--fix`: exact, reversible, and without interrupting the host's own
    /// traffic. Empty if there are none.
    pub(crate) changes: Vec<Change>,
}

/// A value that was read.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Evidence {
    /// A file, or the command that shows the same.
    pub(crate) source: String,
    pub(crate) value: String,
}

/// A setting from one value to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) setting: Setting,
    pub(crate) from: String,
    pub(crate) to: String,
}

/// A setting that can be changed and read back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub(crate) enum Setting {
    /// An offload by the kernel's name: `on`, `off`.
    Feature {
        interface: String,
        name: String,
    },
    /// Descriptors of a receive ring.
    RxRing {
        interface: String,
    },
    /// Queues that receive and send.
    CombinedChannels {
        interface: String,
    },
    /// Queues that only receive.
    RxChannels {
        interface: String,
    },
    /// Microseconds until an interrupt.
    RxUsecs {
        interface: String,
    },
    /// `autoneg on rx off tx off`.
    Pause {
        interface: String,
    },
    /// The hashed parts of a flow type.
    HashFields {
        interface: String,
        flow_type: String,
    },
    /// The key of the hash, as hexadecimal bytes with colons.
    HashKey {
        interface: String,
    },
    Mtu {
        interface: String,
    },
    /// Whether it has no IPv6: `1`, `0`.
    WithoutIpv6 {
        interface: String,
    },
    /// `up`, `down`.
    Link {
        interface: String,
    },
    /// The value of a sysctl.
    Sysctl {
        name: String,
    },
    /// The text of a file below /proc or /sys.
    File {
        path: String,
    },
}

impl Setting {
    /// The program and its arguments that set it to `value`.
    pub(crate) fn command(&self, value: &str) -> Vec<String> {
        let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        match self {
            Self::Feature { interface, name } => {
                words(format!("ethtool -K {interface} {} {value}", short_feature(name)))
            }
            Self::RxRing { interface } => words(format!("ethtool -G {interface} rx {value}")),
            Self::CombinedChannels { interface } => {
                words(format!("ethtool -L {interface} combined {value}"))
            }
            Self::RxChannels { interface } => words(format!("ethtool -L {interface} rx {value}")),
            Self::RxUsecs { interface } => {
                words(format!("ethtool -C {interface} rx-usecs {value}"))
            }
            Self::Pause { interface } => words(format!("ethtool -A {interface} {value}")),
            Self::HashFields { interface, flow_type } => {
                words(format!("ethtool -N {interface} rx-flow-hash {flow_type} {value}"))
            }
            Self::HashKey { interface } => words(format!("ethtool -X {interface} hkey {value}")),
            Self::Mtu { interface } => words(format!("ip link set dev {interface} mtu {value}")),
            Self::WithoutIpv6 { interface } => {
                words(format!("sysctl -w net/ipv6/conf/{interface}/disable_ipv6={value}"))
            }
            Self::Link { interface } => words(format!("ip link set dev {interface} {value}")),
            Self::Sysctl { name } => words(format!("sysctl -w {name}={value}")),
            Self::File { path } => {
                vec!["sh".to_owned(), "-c".to_owned(), format!("echo {value} > {path}")]
            }
        }
    }

    /// The command as a line for a shell.
    pub(crate) fn line(&self, value: &str) -> String {
        match self {
            Self::File { path } => format!("echo {value} > {path}"),
            _ => self.command(value).join(" "),
        }
    }

    /// The interface that it belongs to.
    pub(crate) fn interface(&self) -> Option<&str> {
        match self {
            Self::Feature { interface, .. }
            | Self::RxRing { interface }
            | Self::CombinedChannels { interface }
            | Self::RxChannels { interface }
            | Self::RxUsecs { interface }
            | Self::Pause { interface }
            | Self::HashFields { interface, .. }
            | Self::HashKey { interface }
            | Self::Mtu { interface }
            | Self::WithoutIpv6 { interface }
            | Self::Link { interface } => Some(interface),
            Self::Sysctl { .. } | Self::File { .. } => None,
        }
    }

    /// The file that it is, if it is one.
    pub(crate) fn file(&self) -> Option<String> {
        match self {
            Self::Sysctl { name } => Some(format!("/proc/sys/{}", name.replace('.', "/"))),
            Self::File { path } => Some(path.clone()),
            Self::WithoutIpv6 { interface } => {
                Some(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"))
            }
            _ => None,
        }
    }

    /// Its value on this host; `None` if it cannot be read.
    pub(crate) fn value(&self, host: &Host) -> Option<String> {
        if let Some(file) = self.file() {
            return host.text(&file).ok().map(chosen).map(str::to_owned);
        }

        let name = self.interface()?;
        let nic = host.nics.iter().find(|nic| nic.name == name)?;
        let settings = &nic.settings;

        match self {
            Self::Feature { name, .. } => {
                nic.feature(name).map(|feature| on_off(feature.active).to_owned())
            }
            Self::RxRing { .. } => settings.rx_ring.map(|ring| ring.descriptors.to_string()),
            Self::CombinedChannels { .. } => {
                settings.channels.map(|channels| channels.combined.to_string())
            }
            Self::RxChannels { .. } => settings.channels.map(|channels| channels.rx.to_string()),
            Self::RxUsecs { .. } => {
                settings.rx_coalescing.map(|coalescing| coalescing.usecs.to_string())
            }
            Self::Pause { .. } => settings.pause.map(|pause| {
                let autoneg = on_off(pause.autonegotiate);
                let rx = on_off(pause.rx);
                let tx = on_off(pause.tx);
                format!("autoneg {autoneg} rx {rx} tx {tx}")
            }),
            Self::HashFields { flow_type, .. } => settings.hash_fields.get(flow_type).cloned(),
            Self::HashKey { .. } => {
                settings.spreading.as_ref().map(|spreading| hex(&spreading.key))
            }
            Self::Mtu { .. } => Some(nic.mtu.to_string()),
            Self::Link { .. } => Some(if nic.up { "up" } else { "down" }.to_owned()),
            Self::WithoutIpv6 { .. } | Self::Sysctl { .. } | Self::File { .. } => None,
        }
    }
}

/// The selected entry of a file that lists the choices: `always [madvise] never`.
pub(crate) fn chosen(text: &str) -> &str {
    let bracketed =
        text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    bracketed.unwrap_or(text)
}

pub(crate) fn on_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

/// Bytes as ethtool(8) takes and prints a key.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// ethtool's name of an offload, if it has one; it also accepts the kernel's name.
fn short_feature(name: &str) -> &str {
    match name {
        "rx-gro" => "gro",
        "rx-lro" => "lro",
        "rx-vlan-hw-parse" => "rxvlan",
        "tx-generic-segmentation" => "gso",
        name => name,
    }
}

impl Finding {
    /// About the host.
    pub(crate) fn of_host(
        check: &'static str,
        severity: Severity,
        title: impl Into<String>,
    ) -> Self {
        Self {
            check,
            severity,
            interface: None,
            title: title.into(),
            evidence: Vec::new(),
            consequence: String::new(),
            commands: Vec::new(),
            advice: None,
            changes: Vec::new(),
        }
    }

    /// About an interface.
    pub(crate) fn of_nic(
        nic: &Nic,
        check: &'static str,
        severity: Severity,
        title: impl Into<String>,
    ) -> Self {
        Self { interface: Some(nic.name.clone()), ..Self::of_host(check, severity, title) }
    }

    /// With a value that was read.
    pub(crate) fn seen(mut self, source: impl Into<String>, value: impl Into<String>) -> Self {
        self.evidence.push(Evidence { source: source.into(), value: value.into() });
        self
    }

    /// Adds its effect.
    pub(crate) fn so(mut self, consequence: impl Into<String>) -> Self {
        self.consequence = consequence.into();
        self
    }

    /// With a line for a shell that fixes it, which `--fix` does not run.
    pub(crate) fn command(mut self, line: impl Into<String>) -> Self {
        self.commands.push(line.into());
        self
    }

    /// Adds the fix, if there is no command for it.
    pub(crate) fn advice(mut self, text: impl Into<String>) -> Self {
        self.advice = Some(text.into());
        self
    }

    /// With a change that fixes it and its command. `--fix` makes it only where it `is_safe`.
    pub(crate) fn change(
        mut self,
        setting: Setting,
        from: impl Into<String>,
        to: &str,
        is_safe: bool,
    ) -> Self {
        self.commands.push(setting.line(to));
        if is_safe {
            self.changes.push(Change { setting, from: from.into(), to: to.to_owned() });
        }
        self
    }

    /// With changes that fix it and one line for all of them.
    pub(crate) fn changes(
        mut self,
        line: impl Into<String>,
        changes: impl IntoIterator<Item = Change>,
    ) -> Self {
        self.commands.push(line.into());
        self.changes.extend(changes);
        self
    }
}

/// A value that a check needs and that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Unseen {
    pub(crate) interface: Option<String>,
    /// What is not known.
    pub(crate) what: String,
    /// Why not.
    pub(crate) why: String,
}

/// The findings of all checks, and the values that could not be read.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Diagnosis {
    /// The worst first.
    pub(crate) findings: Vec<Finding>,
    pub(crate) unseen: Vec<Unseen>,
}

impl Diagnosis {
    pub(crate) fn found(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    pub(crate) fn cannot_see(
        &mut self,
        nic: Option<&Nic>,
        what: impl Into<String>,
        why: impl Into<String>,
    ) {
        let interface = nic.map(|nic| nic.name.clone());
        let unseen = Unseen { interface, what: what.into(), why: why.into() };
        if !self.unseen.contains(&unseen) {
            self.unseen.push(unseen);
        }
    }

    /// The text of a file; records if it could not be read.
    pub(crate) fn text<'a>(&mut self, host: &'a Host, what: &str, path: &str) -> Option<&'a str> {
        match host.text(path) {
            Ok(text) => Some(text),
            Err(error) => {
                self.cannot_see(None, what, format!("{path}: {error}"));
                None
            }
        }
    }

    /// The number in a file; records if it could not be read.
    pub(crate) fn number(&mut self, host: &Host, what: &str, path: &str) -> Option<u64> {
        let text = self.text(host, what, path)?;
        let number = text.parse().ok();
        if number.is_none() {
            self.cannot_see(None, what, format!("{path} is {text:?}, not a number"));
        }
        number
    }
}
