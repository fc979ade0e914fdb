//! `--fix` makes the changes of findings, and `--undo` reverts exactly those.
//!
//! A change is in the journal, on disk, before it is made. Afterwards the driver's value is read
//! back. The kernel forgets all these settings at a reboot, and so does the journal: it is in /run.
//! `wirecap dedicate` has such a journal for each interface.
//!
//! Only changes are made that have an exact inverse and do not interrupt the host's own traffic:
//! rings, queues, pause frames and the MTU are changed only on interfaces that the host does not
//! use. `--undo` does not change a setting that another program has changed since, or an interface
//! in another network namespace. Both reject a journal that belongs to another user, because
//! `--undo` executes its contents.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::finding::{Change, Finding, Setting, chosen};
use super::read;
use super::report::finding_text;
use crate::shared::failure::Failure;
use crate::shared::output;
use crate::size::count_of;

/// The default path of the journal.
pub(crate) const JOURNAL: &str = "/run/wirecap/doctor.json";

const NAMESPACE: &str = "/proc/self/ns/net";

/// A number of changes as text.
pub(super) fn changes(count: usize) -> String {
    count_of(count as u64, "change", "changes")
}

/// The changes that were made and not reverted.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    entries: Vec<Entry>,
}

/// A change that was made.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    /// The network namespace of the change: in another namespace, the same name is another
    /// interface.
    namespace: String,
    change: Change,
}

impl Journal {
    /// Reads it; empty if there is none.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |text: String| Failure::Failed(format!("{}: {text}", path.display()).into());
        let mut options = OpenOptions::new();
        let file = match options
            .read(true)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)
        {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { path: path.to_owned(), entries: Vec::new() });
            }
            file => file.map_err(|error| failed(error.to_string()))?,
        };

        // Its contents are executed: it must belong to the same user.
        let owner = file.metadata().map_err(|error| failed(error.to_string()))?.uid();
        if owner != rustix::process::geteuid().as_raw() {
            return Err(failed(format!("it belongs to user {owner} and is ignored")));
        }

        let entries = serde_json::from_reader(io::BufReader::new(file))
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self { path: path.to_owned(), entries })
    }

    /// Writes it in one piece.
    fn save(&self) -> io::Result<()> {
        if let Some(parent) = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent)?;
        }

        let mut name = self.path.clone().into_os_string();
        name.push(".part");

        let part = PathBuf::from(name);
        match fs::remove_file(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }

        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&part)?;
        file.write_all(&serde_json::to_vec_pretty(&self.entries)?)?;
        file.sync_all()?;

        fs::rename(&part, &self.path)
    }

    fn saved(&self) -> Result<(), Failure> {
        self.save().map_err(|error| output::cannot_write(&self.path, &error))
    }

    /// Whether there is anything to revert.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Makes a change and remembers it.
    pub(crate) fn make(&mut self, change: &Change) -> Result<(), Failure> {
        let Change { setting, from, to } = change;
        let now = value_now(setting)?;
        if !is_same(&now, from) {
            return Err(Failure::Failed(
                format!("{} is now {now}, not {from}: not changed", name_of(setting)).into(),
            ));
        }

        let namespace = namespace()?;
        self.entries.push(Entry { namespace, change: change.clone() });

        let saved = self.saved();
        #[cfg(sabotage)]
        let saved = if crate::sabotage::is("settings-changed-unrecorded") { Ok(()) } else { saved };
        saved?;

        let outcome = set(setting, to);
        let now = value_now(setting)?;
        if is_same(&now, from) {
            self.entries.pop();
            self.saved()?;
            outcome?;
            return Err(Failure::Failed(format!("{} is still {now}", name_of(setting)).into()));
        }

        // A driver may round the value.
        if let Some(entry) = self.entries.last_mut() {
            entry.change.to = now;
        }

        self.saved()?;
        outcome
    }

    /// Forgets the changes of interfaces in this network namespace, which are gone.
    pub(crate) fn forget(&mut self) -> Result<(), Failure> {
        let here = namespace()?;
        self.entries.retain(|entry| entry.namespace != here);
        self.save_or_remove()
    }

    fn save_or_remove(&self) -> Result<(), Failure> {
        if !self.entries.is_empty() {
            return self.saved();
        }
        let _there_was_none = fs::remove_file(&self.path);
        Ok(())
    }

    /// Reverts all changes made in this network namespace, the last one first. Returns the reverted
    /// ones.
    pub(crate) fn undo(&mut self) -> Result<Vec<Change>, Failure> {
        let here = namespace()?;
        let mut undone = Vec::new();
        let mut failures = 0;

        for index in (0..self.entries.len()).rev() {
            #[cfg(sabotage)]
            if crate::sabotage::is("undo-forgets-the-first-change") && index == 0 {
                break;
            }

            let Entry { namespace, change } = self.entries[index].clone();
            if namespace != here && change.setting.interface().is_some() {
                say(&format!(
                    "not changed, in another network namespace: {}",
                    name_of(&change.setting)
                ));
                continue;
            }

            match take_back(&change) {
                Ok(is_done) => {
                    self.entries.remove(index);
                    self.saved()?;
                    if is_done {
                        undone.push(Change { from: change.to, to: change.from, ..change });
                    }
                }
                Err(error) => {
                    say(&format!("{}: {error}", name_of(&change.setting)));
                    failures += 1;
                }
            }
        }

        if self.entries.is_empty() {
            let _there_was_none = fs::remove_file(&self.path);
        }

        match failures {
            0 => Ok(undone),
            _ => {
                Err(Failure::Failed(format!("{} could not be reverted", changes(failures)).into()))
            }
        }
    }
}

/// Whether it was reverted: not if another program has changed the setting since.
fn take_back(change: &Change) -> Result<bool, Failure> {
    let now = value_now(&change.setting)?;
    if is_same(&now, &change.from) {
        return Ok(false);
    }

    let is_ours = is_same(&now, &change.to);
    #[cfg(sabotage)]
    let is_ours = is_ours || crate::sabotage::is("undo-reverts-what-others-set");
    if !is_ours {
        say(&format!(
            "not changed, modified since: {} is {now}, was set to {}",
            name_of(&change.setting),
            change.to
        ));
        return Ok(false);
    }

    set(&change.setting, &change.from)?;

    match value_now(&change.setting)? {
        now if is_same(&now, &change.from) => Ok(true),
        now => Err(Failure::Failed(format!("it is {now}, expected {}", change.from).into())),
    }
}

/// Asks for each finding that can be fixed and fixes it. Returns the changes, and how many failed.
pub(crate) fn fix(
    findings: &[Finding],
    journal: &mut Journal,
    is_agreed: bool,
    shows: bool,
) -> Result<(Vec<Change>, usize), Failure> {
    let mut made = Vec::new();
    let mut failures = 0;
    let fixable: Vec<&Finding> =
        findings.iter().filter(|finding| !finding.changes.is_empty()).collect();

    for (finding, number) in fixable.into_iter().zip(1..) {
        if shows {
            output::printed(write!(io::stdout(), "{}", finding_text(finding, number)))?;
        }

        if !is_agreed {
            match ask()? {
                Answer::Yes => {}
                Answer::No => continue,
                Answer::Quit => break,
            }
        }

        for change in &finding.changes {
            match journal.make(change) {
                Ok(()) => made.push(change.clone()),
                Err(error) => {
                    say(&format!("not changed: {error}"));
                    failures += 1;
                }
            }
        }
    }

    Ok((made, failures))
}

enum Answer {
    Yes,
    No,
    Quit,
}

fn ask() -> Result<Answer, Failure> {
    let mut stderr = io::stderr();

    // If the question cannot be asked, no change is made.
    if write!(stderr, "   Run this? [y/N/q] ").and_then(|()| stderr.flush()).is_err() {
        return Ok(Answer::Quit);
    }

    let mut answer = String::new();
    if io::stdin().lock().read_line(&mut answer)? == 0 {
        say("");
        return Ok(Answer::Quit);
    }

    Ok(match answer.trim() {
        "y" | "Y" | "yes" => Answer::Yes,
        "q" | "Q" | "quit" => Answer::Quit,
        _ => Answer::No,
    })
}

fn say(line: &str) {
    eprintln!("{line}");
}

/// A setting in words: the command, or the file.
fn name_of(setting: &Setting) -> String {
    setting.file().unwrap_or_else(|| setting.line("").trim_end().to_owned())
}

fn namespace() -> Result<String, Failure> {
    Ok(fs::read_link(NAMESPACE)?.display().to_string())
}

/// The current value of the setting.
pub(crate) fn value_now(setting: &Setting) -> Result<String, Failure> {
    let name = || name_of(setting);
    let unknown =
        |reason: String| Failure::Failed(format!("{} cannot be read: {reason}", name()).into());
    if let Some(file) = setting.file() {
        let text = fs::read_to_string(file).map_err(|error| unknown(error.to_string()))?;
        return Ok(chosen(text.trim()).to_owned());
    }
    let names: Vec<String> = setting.interface().map(str::to_owned).into_iter().collect();
    setting
        .value(&read::interfaces(&names)?)
        .ok_or_else(|| unknown("the driver does not report it".to_owned()))
}

/// Sets it: a file is written to, and a program is run that must succeed.
fn set(setting: &Setting, value: &str) -> Result<(), Failure> {
    if let Some(path) = setting.file() {
        let failed = |error: io::Error| {
            Failure::Failed(format!("cannot write {value} to {path}: {error}").into())
        };
        let mut file = OpenOptions::new().write(true).truncate(true).open(&path).map_err(failed)?;
        return file.write_all(format!("{value}\n").as_bytes()).map_err(failed);
    }

    let words = setting.command(value);
    let failed = |text: String| Failure::Failed(format!("{}: {text}", words.join(" ")).into());
    let output = Command::new(&words[0])
        .args(&words[1..])
        .output()
        .map_err(|error| failed(error.to_string()))?;

    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// Whether two texts are one value: the kernel writes masks with more zeros than it was given.
fn is_same(one: &str, other: &str) -> bool {
    let is_mask = |text: &str| text.chars().all(|c| c.is_ascii_hexdigit() || c == ',');
    let short = |text: &str| text.trim_start_matches(['0', ',']).to_owned();
    one == other || (is_mask(one) && is_mask(other) && short(one) == short(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_compared_without_their_zeros() {
        assert!(is_same("00000000,00000003", "3") && is_same("00", "0") && is_same("off", "off"));
        assert!(!is_same("3", "30") && !is_same("0-7", "0") && !is_same("on", "off"));
    }

    #[test]
    fn a_change_of_something_else_is_not_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("value");
        let path = folder.path().join("journal");

        fs::write(&file, "powersave\n").unwrap();
        let setting = Setting::File { path: file.display().to_string() };
        let change = Change { setting, from: "powersave".to_owned(), to: "performance".to_owned() };
        let mut journal = Journal::open(&path).unwrap();
        journal.make(&change).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "performance\n");
        assert!(
            journal.make(&change).unwrap_err().to_string().contains("not changed"),
            "it is no longer powersave"
        );

        fs::write(&file, "schedutil\n").unwrap();
        let mut again = Journal::open(&path).unwrap();
        assert_eq!(again.undo().unwrap(), [], "what others set is left as it is");
        assert_eq!(fs::read_to_string(&file).unwrap(), "schedutil\n");
        assert!(!path.exists(), "there is nothing to be taken back any more");
    }

    #[test]
    fn undo_reverts_exactly_the_changes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("value");
        let path = folder.path().join("run/journal");

        fs::write(&file, "0-7\n").unwrap();
        let setting = Setting::File { path: file.display().to_string() };
        let change =
            Change { setting: setting.clone(), from: "0-7".to_owned(), to: "1-3".to_owned() };
        Journal::open(&path).unwrap().make(&change).unwrap();

        let undone = Journal::open(&path).unwrap().undo().unwrap();
        let expected = [Change { setting, from: "1-3".to_owned(), to: "0-7".to_owned() }];
        assert_eq!(undone, expected, "the reverted changes");
        assert_eq!(fs::read_to_string(&file).unwrap(), "0-7\n");
        assert!(Journal::open(&path).unwrap().entries.is_empty());
    }

    #[test]
    fn nothing_is_changed_that_cannot_be_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("value");
        fs::write(&file, "1\n").unwrap();

        let setting = Setting::File { path: file.display().to_string() };
        let change = Change { setting, from: "1".to_owned(), to: "0".to_owned() };

        // A folder cannot be made below a file.
        let mut journal = Journal { path: file.join("journal"), entries: Vec::new() };
        journal.make(&change).unwrap_err();
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            "1\n",
            "a change that is not in the journal"
        );
    }
}
