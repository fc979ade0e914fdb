//! `wirecap extcap`: Wireshark's interface for programs that capture. Wireshark and tshark start
//! the command several times: for the interfaces, for their link layers and settings, and to write
//! packets into a pipe.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use wirecap::DEFAULT_SNAP_LEN;
use wirecap::device::{self, ChosenEngine, Device};
use wirecap::filter::Filter;
use wirecap::savefile::LinkType;

use crate::shared::failure::Failure;
use crate::shared::output;

/// Capture for Wireshark and tshark, which start this command themselves
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// List the interfaces
    #[arg(long)]
    extcap_interfaces: bool,

    /// The version of Wireshark
    #[arg(long, value_name = "VERSION")]
    extcap_version: Option<String>,

    /// Interface, by its name in the list
    #[arg(long, value_name = "INTERFACE")]
    extcap_interface: Option<String>,

    /// Print the link layer of the interface
    #[arg(long)]
    extcap_dlts: bool,

    /// Print the settings of the interface
    #[arg(long)]
    extcap_config: bool,

    /// Capture only matching packets; without --capture, print the error of the expression
    #[arg(long, value_name = "FILTER")]
    extcap_capture_filter: Option<String>,

    /// Capture
    #[arg(long)]
    capture: bool,

    /// File for the packets
    #[arg(long, value_name = "FILE", required_if_eq("capture", "true"))]
    fifo: Option<PathBuf>,

    /// The engine: auto, xdp or packet
    #[arg(long, value_name = "ENGINE", default_value = "packet")]
    engine: String,

    /// Receive queues: 0-3
    #[arg(long, value_name = "QUEUES", default_value = "")]
    queues: String,

    /// Bytes kept of each packet
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    snaplen: u32,

    /// Buffer memory for all rings: 512M
    #[arg(long, value_name = "SIZE", default_value = "")]
    buffer: String,
}

/// The prefix of an interface's name: other sources may list the interface as well.
const PREFIX: &str = "wirecap-";

/// The step to be executed.
pub(crate) enum Step {
    /// Print this.
    Print(String),
    /// Run `wirecap` with these arguments.
    Run(Vec<OsString>),
}

pub(crate) fn step(arguments: &Arguments) -> Result<Step, Failure> {
    if arguments.extcap_interfaces {
        return Ok(Step::Print(interfaces(&device::devices()?)));
    }

    let Some(name) = &arguments.extcap_interface else {
        let message = "Wireshark and tshark start this command; `make install-extcap` installs it for them; try --extcap-interfaces";
        return Err(Failure::Usage(message.to_owned()));
    };
    let name = name.strip_prefix(PREFIX).unwrap_or(name);

    if arguments.capture {
        return Ok(Step::Run(arguments.capture_of(name)));
    }

    let devices = device::devices()?;
    let device = devices.iter().find(|device| device.name == name);
    let device =
        device.ok_or_else(|| Failure::Failed(format!("there is no interface {name}").into()))?;

    match &arguments.extcap_capture_filter {
        _ if arguments.extcap_dlts => Ok(Step::Print(link_layer(device))),
        _ if arguments.extcap_config => Ok(Step::Print(settings(device))),
        Some(filter) => Ok(Step::Print(fault_of(filter, device))),
        None => {
            Err(Failure::Usage("expected --extcap-dlts, --extcap-config or --capture".to_owned()))
        }
    }
}

/// Prints the output of a step.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match text.is_empty() {
        true => Ok(()),
        false => output::print(text.trim_end()),
    }
}

impl Arguments {
    /// The command that captures.
    fn capture_of(&self, name: &str) -> Vec<OsString> {
        let device = match self.queues.trim() {
            "" => name.to_owned(),
            queues => format!("{name}@{queues}"),
        };
        let mut words: Vec<OsString> =
            ["wirecap", "capture", "--quiet", "--format", "pcapng", "--interface"]
                .map(OsString::from)
                .into();
        words.push(device.into());
        words.extend(["--engine".into(), OsString::from(&self.engine), "--write".into()]);
        words.push(self.fifo.clone().unwrap_or_default().into());

        if self.snaplen > 0 {
            words.extend(["--snaplen".into(), self.snaplen.to_string().into()]);
        }
        if !self.buffer.trim().is_empty() {
            words.extend(["--buffer".into(), self.buffer.trim().into()]);
        }

        if let Some(filter) =
            self.extcap_capture_filter.as_ref().filter(|filter| !filter.is_empty())
        {
            words.extend(["--".into(), filter.into()]);
        }

        words
    }
}

/// A sentence: what makes one is read by Wireshark as a group of `{name=value}`.
fn plain(text: &str) -> String {
    text.replace(['{', '}'], " ")
}

fn interfaces(devices: &[Device]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("extcap {{version={version}}}{{display=wirecap}}\n");

    for device in devices.iter().filter(|device| device.up) {
        let name = &device.name;
        let engine = match device.choose_engine().engine {
            ChosenEngine::Xdp(_) => "xdp or packet",
            ChosenEngine::Packet => "packet",
        };

        let queues = match device.rx_queues {
            1 => String::new(),
            queues => format!(", {queues} receive queues"),
        };
        text += &format!(
            "interface {{value={PREFIX}{name}}}{{display=wirecap: {name} ({engine}{queues})}}\n"
        );
    }
    text
}

fn link_layer(device: &Device) -> String {
    match device.savefile_link_type() {
        LinkType::ETHERNET => "dlt {number=1}{name=EN10MB}{display=Ethernet}\n".to_owned(),
        link_type => {
            format!("dlt {{number={0}}}{{name=DLT_{0}}}{{display=link type {0}}}\n", link_type.0)
        }
    }
}

fn settings(device: &Device) -> String {
    let why = plain(&device.choose_engine().why.to_string());
    let last = device.rx_queues.saturating_sub(1);
    let lines = [
        "arg {number=0}{call=--engine}{display=Engine}{type=selector}\
         {tooltip=packet: the capture gets copies; xdp: the host does not receive captured packets}"
            .to_owned(),
        "value {arg=0}{value=packet}{display=packet: copies, nothing changes for the host}{default=true}"
            .to_owned(),
        "value {arg=0}{value=xdp}{display=xdp: only if the host does not use the interface}{default=false}"
            .to_owned(),
        format!("value {{arg=0}}{{value=auto}}{{display=auto: {why}}}{{default=false}}"),
        format!(
            "arg {{number=1}}{{call=--queues}}{{display=Receive queues}}{{type=string}}\
             {{tooltip=such as 0,2 or 0-{last}; empty: all}}{{validation=^[0-9,-]*$}}"
        ),
        "arg {number=2}{call=--snaplen}{display=Bytes kept of each packet}{type=unsigned}{default=0}\
         {tooltip=0: all}"
            .to_owned(),
        "arg {number=3}{call=--buffer}{display=Memory of all rings}{type=string}\
         {tooltip=512M, 2G; empty: by the speed of the link}{validation=^[0-9]*[KMG]?$}"
            .to_owned(),
    ];
    lines.join("\n") + "\n"
}

/// Empty, or the error of a filter.
fn fault_of(filter: &str, device: &Device) -> String {
    match Filter::compile(filter, device.savefile_link_type(), DEFAULT_SNAP_LEN) {
        Ok(_) => String::new(),
        Err(error) => wirecap_units::error::causes(&error) + "\n",
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn run(line: &[&str]) -> Vec<String> {
        let arguments = [&["extcap"], line].concat();
        match step(&Command::try_parse_from(arguments).unwrap().arguments).unwrap() {
            Step::Print(text) => text.lines().map(str::to_owned).collect(),
            Step::Run(words) => {
                words.iter().map(|word| word.to_str().unwrap().to_owned()).collect()
            }
        }
    }

    #[test]
    fn a_capture_is_one_of_the_command() {
        assert_eq!(
            run(&["--capture", "--extcap-interface", "wirecap-eth0", "--fifo", "/tmp/pipe"]),
            [
                "wirecap",
                "capture",
                "--quiet",
                "--format",
                "pcapng",
                "--interface",
                "eth0",
                "--engine",
                "packet",
                "--write",
                "/tmp/pipe"
            ]
        );
        let all = run(&[
            "--capture",
            "--extcap-interface=wirecap-eth0",
            "--fifo=/tmp/pipe",
            "--queues=0-3",
            "--snaplen=96",
            "--buffer=1G",
            "--extcap-capture-filter=udp port 53",
        ]);
        assert_eq!(all[6], "eth0@0-3");
        assert_eq!(all[11..], ["--snaplen", "96", "--buffer", "1G", "--", "udp port 53"]);
    }

    #[test]
    fn the_loopback_interface_has_a_link_layer_and_settings() {
        assert_eq!(
            run(&["--extcap-interface=wirecap-lo", "--extcap-dlts"]),
            ["dlt {number=1}{name=EN10MB}{display=Ethernet}"]
        );
        let settings = run(&["--extcap-interface=wirecap-lo", "--extcap-config"]);
        let is_line = |line: &String| {
            (line.starts_with("arg {number=") || line.starts_with("value {arg=0}"))
                && line.ends_with('}')
        };
        assert!(settings.len() == 7 && settings.iter().all(is_line), "{settings:#?}");
        assert!(settings.iter().all(|line| line.matches('{').count() == line.matches('}').count()));
    }
}
