//! `wirecap dedicate` and `wirecap release`: ports that only capture.
//!
//! A port is marked last, after its settings are made, and released first. Each changed setting is
//! in a journal before it is changed, so `release` undoes a `dedicate` that failed or was killed as
//! well. Marks are kept across reboots; the settings are not, so `dedicate --restore` makes them
//! again after a boot, and the journal is in /run, which a reboot empties.
//!
//! The settings of a capture port are: no IPv6, no pause frames, no offloads that merge frames or
//! remove VLAN tags, link up. The journal is in `/run/wirecap/dedicated`. After a reboot
//! `wirecap-dedicate.service` makes the settings again.

use std::env;
use std::io;
use std::path::PathBuf;

use clap::Args;
use rustix::process::geteuid;
use wirecap::device::{self, ChosenEngine, Device, DeviceError, Mark, Reason};

use crate::host::doctor::finding::{Change, Setting};
use crate::host::doctor::fix::{Journal, value_now};
use crate::shared::failure::Failure;
use crate::shared::output;
use crate::size::count_of;

/// Dedicate interfaces to capturing, so that --engine auto selects xdp
///
/// The mark is a file in /etc/wirecap/dedicated with the interface's permanent hardware address. It
/// is kept across reboots; another device that gets the name is not meant. What a capture port
/// needs is set, and each change is printed: IPv6 off, pause frames off, the offloads off that
/// merge frames or remove VLAN tags, and the link up. "wirecap release" undoes exactly these
/// changes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sudo wirecap dedicate eth1
  sudo wirecap capture -i eth1 -w trace.pcapng
  sudo wirecap release eth1")]
pub(crate) struct Arguments {
    /// Interfaces
    #[arg(value_name = "IF", required_unless_present = "restore")]
    interfaces: Vec<String>,
    /// Dedicate an interface that the host uses; while the host uses it, --engine auto still
    /// selects packet
    #[arg(long)]
    force: bool,
    /// Make the settings of interfaces that are dedicated again, after a reboot [default: of all]
    #[arg(long, conflicts_with = "force")]
    restore: bool,
}

/// Undo "wirecap dedicate": remove the mark and revert the changed settings
///
/// Settings that were changed again since are left as they are, and printed. Works also after a
/// reboot, and if "wirecap dedicate" failed or was killed.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArguments {
    /// Interfaces
    #[arg(value_name = "IF", required = true)]
    interfaces: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    require_root("dedicate", &arguments.interfaces)?;
    if arguments.restore {
        return restore(&arguments.interfaces);
    }
    // Nothing is changed if one of them cannot be dedicated.
    let devices: Vec<Device> = arguments
        .interfaces
        .iter()
        .map(|name| suitable(name, arguments.force))
        .collect::<Result<_, _>>()?;
    devices.iter().try_for_each(dedicate)
}

fn require_root(command: &str, interfaces: &[String]) -> Result<(), Failure> {
    match geteuid().is_root() {
        true => Ok(()),
        false => {
            let words = format!("wirecap {command} {}", interfaces.join(" "));
            Err(Failure::Failed(format!("it requires root: sudo {}", words.trim_end()).into()))
        }
    }
}

/// The interface, if it can be dedicated.
fn suitable(name: &str, force: bool) -> Result<Device, Failure> {
    let mut device = Device::find(name)?;
    device.look_for_hooks()?;

    let name = &device.name;
    let refused = |text: String| Err(Failure::Failed(text.into()));

    for reason in device.contradictions() {
        match reason {
            Reason::Loopback | Reason::NotEthernet(_) => {
                return refused(format!("{name} cannot be dedicated: {reason}"));
            }
            Reason::Controller(_) => {
                let ports = match device.ports.as_slice() {
                    [] => "its ports".to_owned(),
                    ports => format!("its ports: wirecap dedicate {}", ports.join(" ")),
                };
                return refused(format!("{name} cannot be dedicated: {reason}; dedicate {ports}"));
            }
            _ if force => {}
            reason => {
                return refused(format!(
                    "{name} is in use: {reason}; end that use, or add --force (auto selects packet as long as it is in use)"
                ));
            }
        }
    }

    match device.lasting_mac() {
        Some(_) => Ok(device),
        None => refused(format!("{name} cannot be dedicated: it has no hardware address")),
    }
}

fn dedicate(device: &Device) -> Result<(), Failure> {
    let name = &device.name;
    let failures = make_settings(device)?;
    device.dedicate().map_err(|error| {
        let path = device::dedicated_directory().join(name);
        Failure::Failed(
            format!("{name} is not dedicated: cannot write {}: {error}", path.display()).into(),
        )
    })?;

    output::print(said(&Device::find(name)?))?;

    match failures {
        0 => Ok(()),
        count => {
            let settings = count_of(count, "setting", "settings");
            Err(Failure::Failed(
                format!("{name} is dedicated, but {settings} could not be changed").into(),
            ))
        }
    }
}

/// The result: the engine that `auto` selects.
fn said(device: &Device) -> String {
    let name = &device.name;
    let choice = device.choose_engine();
    let mac = device.lasting_mac().map(|mac| mac.to_string()).unwrap_or_default();
    let engine = match choice.engine {
        ChosenEngine::Xdp(_) => format!("auto selects {}", choice.engine),
        ChosenEngine::Packet => format!("auto selects packet: {}", choice.why),
    };
    format!(
        "{name} ({mac}) is dedicated to capturing: {engine}. \"wirecap release {name}\" undoes it."
    )
}

/// Makes the settings of a capture port that it does not have yet, and prints them. Returns the
/// number of those that could not be made.
fn make_settings(device: &Device) -> Result<u64, Failure> {
    let name = &device.name;
    let mut journal = Journal::open(&journal_path(name))?;
    let mut failures = 0;

    for (setting, to) in settings(device)? {
        // A change may have made this one as well.
        let Ok(from) = value_now(&setting) else { continue };
        if from == to {
            continue;
        }

        let change = Change { setting, from, to };
        match journal.make(&change) {
            Ok(()) => print_change(name, &change)?,
            Err(error) => {
                eprintln!("{name}: not changed: {}: {error}", change.setting.line(&change.to));
                failures += 1;
            }
        }
    }

    Ok(failures)
}

fn print_change(name: &str, change: &Change) -> Result<(), Failure> {
    let Change { setting, from, to } = change;
    output::print(format_args!("{name}: {} (was {from})", setting.line(to)))
}

/// Offloads that merge frames, in the order in which they depend on each other.
const MERGING: [&str; 4] = ["rx-gro-hw", "rx-lro", "rx-gro-list", "rx-gro"];
/// Offloads that remove VLAN tags.
const REMOVING_TAGS: [&str; 2] = ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];

/// What a capture port needs, each with its value, as far as the device has it.
fn settings(device: &Device) -> Result<Vec<(Setting, String)>, Failure> {
    let interface = device.name.clone();
    let now = device.settings()?;

    // Mirrored router advertisements would give the port addresses and routes.
    let mut settings =
        vec![(Setting::WithoutIpv6 { interface: interface.clone() }, "1".to_owned())];

    if now.pause.is_some_and(|pause| pause.rx || pause.tx) {
        // They would slow down the switch that mirrors.
        let off = "autoneg off rx off tx off".to_owned();
        settings.push((Setting::Pause { interface: interface.clone() }, off));
    }

    // A veth removes no tags.
    let removing: &[&str] = if device.kind.is_some() { &[] } else { &REMOVING_TAGS };
    for name in MERGING.iter().chain(removing) {
        if now.features.get(*name).is_some_and(|feature| feature.active && feature.changeable) {
            let setting =
                Setting::Feature { interface: interface.clone(), name: (*name).to_owned() };
            settings.push((setting, "off".to_owned()));
        }
    }

    settings.push((Setting::Link { interface }, "up".to_owned()));
    Ok(settings)
}

/// Makes the settings of dedicated interfaces again. An interface that is absent, or is another
/// device now, is left alone: at boot it may come later.
fn restore(interfaces: &[String]) -> Result<(), Failure> {
    let names = match interfaces {
        [] => device::marked_names().map_err(|error| {
            let directory = device::dedicated_directory();
            Failure::Failed(format!("cannot read {}: {error}", directory.display()).into())
        })?,
        names => names.to_vec(),
    };
    let mut failures = 0;

    for name in names {
        let device = match Device::find(&name) {
            Ok(device) => device,
            Err(DeviceError::NoSuchDevice { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        match &device.mark {
            #[cfg(sabotage)]
            Mark::Dedicated if crate::sabotage::is("reboot-leaves-the-port-unset") => {}
            Mark::Dedicated => failures += make_settings(&device)?,
            Mark::Missing => {}
            _ => eprintln!("{name}: {}", device.choose_engine().why),
        }
    }

    match failures {
        0 => Ok(()),
        count => {
            let settings = count_of(count, "setting", "settings");
            Err(Failure::Failed(format!("{settings} could not be changed").into()))
        }
    }
}

pub(crate) fn release(arguments: &ReleaseArguments) -> Result<(), Failure> {
    require_root("release", &arguments.interfaces)?;
    let mut journals = Vec::new();
    let marked = device::marked_names().unwrap_or_default();

    for name in &arguments.interfaces {
        let path = journal_path(name);

        // Such a name leads to no other directory.
        let journal = if name.contains('/') { None } else { Some(Journal::open(&path)?) };
        match journal {
            Some(journal) if marked.contains(name) || !journal.is_empty() => {
                journals.push((name, journal));
            }
            _ => {
                return Err(Failure::Failed(
                    format!(
                        "{name} is not dedicated; wirecap devices lists the interfaces that are"
                    )
                    .into(),
                ));
            }
        }
    }

    journals.into_iter().try_for_each(|(name, journal)| release_one(name, journal))
}

fn release_one(name: &str, mut journal: Journal) -> Result<(), Failure> {
    // First of all: from now on auto selects packet.
    device::remove_mark(name).map_err(|error: io::Error| {
        let path = device::dedicated_directory().join(name);
        Failure::Failed(format!("cannot remove {}: {error}", path.display()).into())
    })?;

    // The settings of a device are gone with it.
    if let Err(DeviceError::NoSuchDevice { .. }) = Device::find(name) {
        journal.forget()?;
    }
    #[cfg(sabotage)]
    if crate::sabotage::is("release-keeps-the-settings") {
        journal.forget()?;
    }

    for change in journal.undo()? {
        print_change(name, &change)?;
    }

    output::print(format_args!("{name} is no longer dedicated to capturing."))
}

/// The journal of an interface's changes.
fn journal_path(name: &str) -> PathBuf {
    // Marks in another directory are of tests, whose changes belong to no other process.
    let directory = match env::var_os("WIRECAP_DEDICATED_DIR") {
        // Longer than the name of any interface, so that it is no mark.
        Some(directory) if !directory.is_empty() => {
            PathBuf::from(directory).join("settings-before-dedicate")
        }
        _ => "/run/wirecap/dedicated".into(),
    };
    directory.join(format!("{name}.json"))
}
