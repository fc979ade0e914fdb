//! `capture --config FILE`: the options of a service, under the names of the flags.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Command};

use crate::shared::failure::Failure;

/// The name of the filter in a configuration file.
pub(crate) const FILTER: &str = "filter";
/// The flag that the file's filter becomes: on the command line `--filter` is for one interface.
pub(crate) const FILTER_FLAG: &str = "config-filter";
const CONFIG: &str = "config";

/// The configuration file in the arguments of `capture`; the arguments include the program's name.
pub(crate) fn file_of(arguments: &[OsString]) -> Option<PathBuf> {
    if arguments.get(1)? != "capture" {
        return None;
    }
    let own = arguments[2..].iter().take_while(|argument| *argument != "--");
    let mut own = own.skip_while(|argument| !is_config(argument));
    let found = own.next()?;
    match found.to_str().and_then(|text| text.split_once('=')) {
        Some((_, path)) => Some(path.into()),
        None => own.next().map(PathBuf::from),
    }
}

fn is_config(argument: &OsString) -> bool {
    argument.to_str().is_some_and(|text| text == "--config" || text.starts_with("--config="))
}

/// The arguments after those of the file, so that the command line takes precedence. `command`
/// parses them.
pub(crate) fn with_file(
    arguments: &[OsString],
    file: &Path,
    command: &Command,
) -> Result<Vec<OsString>, Failure> {
    let name = file.display();
    let text = fs::read_to_string(file)
        .map_err(|error| Failure::Failed(format!("cannot read {name}: {error}").into()))?;
    let options =
        flags(&text, command).map_err(|error| Failure::Usage(format!("{name}: {error}")))?;
    let (program, others) = arguments.split_at(2.min(arguments.len()));
    let options = options.into_iter().map(OsString::from);
    Ok(program.iter().cloned().chain(options).chain(others.iter().cloned()).collect())
}

/// The flags of a file's text: a line for each, `name = value` or `name` alone. Lines that begin
/// with # are comments.
fn flags(text: &str, command: &Command) -> Result<Vec<String>, String> {
    let lines = text.lines().map(str::trim).zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    let flags = lines.map(|(line, number)| {
        let flag = flag(line, command).map_err(|problem| format!("line {number}: {problem}"))?;
        Ok(flag)
    });
    flags.filter_map(Result::transpose).collect()
}

fn flag(line: &str, command: &Command) -> Result<Option<String>, String> {
    let (name, value) = match line.split_once('=') {
        Some((name, value)) => (name.trim(), Some(unquoted(value.trim()))),
        None => (line, None),
    };
    if name == FILTER {
        let value = value.ok_or("filter needs a value: filter = udp port 53")?;
        return Ok(Some(format!("--{FILTER_FLAG}={value}")));
    }

    let arg =
        command.get_arguments().find(|arg| arg.get_long() == Some(name) && !arg.is_hide_set());
    let arg = arg.filter(|arg| !matches!(arg.get_action(), ArgAction::Help) && name != CONFIG);
    let arg = arg.ok_or_else(|| format!("unknown option {name:?}; see wirecap capture --help"))?;

    match (arg.get_action().takes_values(), value) {
        (true, Some(value)) => Ok(Some(format!("--{name}={value}"))),
        (true, None) => Err(format!("{name} needs a value: {name} = ...")),
        (false, None | Some("yes" | "on" | "true")) => Ok(Some(format!("--{name}"))),
        (false, Some("no" | "off" | "false")) => Ok(None),
        (false, Some(other)) => Err(format!("invalid {name} {other:?}: expected yes or no")),
    }
}

/// The text between quotation marks, if there are any.
fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn command() -> Command {
        let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
        let valued = |name: &'static str| Arg::new(name).long(name).action(ArgAction::Append);
        Command::new("capture")
            .arg(flag("force"))
            .arg(valued("interface"))
            .arg(valued("write"))
            .arg(valued("config"))
    }

    #[test]
    fn lines_are_flags() {
        let text = "# a comment\n\ninterface = eth1\ninterface=eth2\nwrite = \"/data/a # b.pcapng\"\n\
                    force\nfilter = not port 22\n";
        assert_eq!(
            flags(text, &command()).unwrap(),
            [
                "--interface=eth1",
                "--interface=eth2",
                "--write=/data/a # b.pcapng",
                "--force",
                "--config-filter=not port 22"
            ]
        );
        assert_eq!(flags("force = yes\nforce = no", &command()).unwrap(), ["--force"]);
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_number() {
        for (text, words) in [
            ("\nwirte = x", "line 2: unknown option \"wirte\""),
            ("config = x", "unknown option"),
            ("help", "unknown option"),
            ("write", "write needs a value"),
            ("force = maybe", "yes or no"),
            ("filter", "filter needs a value"),
        ] {
            let error = flags(text, &command()).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn the_file_is_that_of_the_capture() {
        let file = |line: &str| {
            let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            file_of(&arguments).map(|path| path.display().to_string())
        };
        assert_eq!(file("wirecap capture --config a.conf -i x").as_deref(), Some("a.conf"));
        assert_eq!(file("wirecap capture -i x --config=a.conf").as_deref(), Some("a.conf"));
        assert_eq!(file("wirecap capture -i x -w y -- --config a"), None);
        assert_eq!(file("wirecap count --config a.conf"), None);
        assert_eq!(file("wirecap"), None);
    }

    #[test]
    fn the_command_line_counts_more_than_the_file() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("a.conf");
        fs::write(&path, "write = file\n").unwrap();
        let arguments = ["wirecap", "capture", "--write", "line"].map(OsString::from);
        let all = with_file(&arguments, &path, &command()).unwrap();
        assert_eq!(
            all,
            ["wirecap", "capture", "--write=file", "--write", "line"].map(OsString::from)
        );
    }
}
